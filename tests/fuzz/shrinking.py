"""Reduction of a failing case of any fuzzer."""


def shrink(case, smaller, fails, tries=400):
    """Return a smaller case that fails as ``case`` does, of which no step makes a smaller one, or the smallest found in
    ``tries``. ``smaller(case)`` yields cases that are one step smaller, large steps first."""
    found = True
    while found and tries > 0:
        found = False
        for candidate in smaller(case):
            tries -= 1
            if fails(candidate):
                case, found = candidate, True
                break
            if tries <= 0:
                break
    return case
