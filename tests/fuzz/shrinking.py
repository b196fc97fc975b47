"""Reduction of a failing case of any fuzzer."""


def shrink(case, smaller, fails, tries=400):
    """Return a smaller case that fails as ``case`` does, of which no step makes a smaller one, or the smallest found in
    ``tries``. ``smaller(case)`` yields cases that are one step smaller, large steps first."""
    found = True
    while found:
        found, first = False, 0
        while first is not None:
            candidates, begin, first = enumerate(smaller(case)), first, None
            for n, candidate in candidates:
                if n < begin:  # these failed to fail a moment ago
                    continue
                if tries <= 0:
                    return case
                tries -= 1
                if fails(candidate):
                    case, found, first = candidate, True, n
                    break
    return case
