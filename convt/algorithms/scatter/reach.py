"""Counts of the input rows that output rows read, along all axes except the last.

schedule.py and cost.py need only these counts. bind.py makes the tables, for a plan that runs.
"""

import math
from typing import NamedTuple

from .. import phases
from ..caches import remembered


class Reach(NamedTuple):
    """The rows of one axis, or of all axes except the last together. Phases that read the same inputs are one row of several
    outputs."""

    kinds: tuple  # (phases, rows, taps): number of rows with this many phases, and input rows that they read together
    rows: int  # rows of all kinds
    taps: int  # the most input rows that a row reads
    phases: int  # the most phases of a row
    groups: int  # number of phase groups
    row_js: int  # number of j that have a row; fewer than rows if there are several phase groups
    entries: int  # the most entries of the tables of a plan


ONE_ROW = Reach(((1, 1, 1),), 1, 1, 1, 1, 1, 1)  # the Reach of a problem with one axis


@remembered(512)
def of_axis(k, s, d, size, begin, out):
    """Return the Reach of one axis."""
    groups, inputs = phases.phase_groups(k, s, d, True), -(-size * math.gcd(s, d) // d)  # inputs that one phase may read
    row_js, empty_phases = -(-(begin + out) // s) - begin // s, phases.empty_phase_count(k, s, d, begin, out)
    entries, taps, kinds = empty_phases, 0, {}
    for residues, offsets, _ in groups:
        spans = [(-((r - begin) // s), -((r - begin - out) // s)) for r in residues]  # the j of each phase
        spans = [span for span in spans if span[0] < span[1]]
        if spans:
            low, high = min(spans)[0], max([end for _, end in spans])
            reached = min(len(offsets), inputs)
            taps, entries = max(taps, reached), entries + min(2 * len(offsets) + 1, high - low) * (reached + len(residues))
            read = sum([max(0, min(high, off + size) - max(low, off)) for off in offsets])
            _add(kinds, len(residues), high - low, read)  # products are computed for all phases, even for those not shown
    if empty_phases:
        _add(kinds, empty_phases, row_js, 0)
    found = tuple((count, n, read) for count, (n, read) in kinds.items())
    return Reach(found, sum([n for _, n, _ in found]), taps, max(kinds, default=1), max(1, len(groups)), row_js, entries)


def of_axes(problem):
    """Return (the Reach of the first axis, the Reach of the axes between the first and the last) of a problem."""
    p = problem
    first = of_axis(p.kernel[0], p.strides[0], p.dilations[0], p.in_sizes[0], p.begin[0], p.out_sizes[0])
    cut = {name: getattr(p, name)[1:] for name in ("kernel", "strides", "dilations", "in_sizes", "begin", "out_sizes")}
    return first, of_problem(p._replace(**cut))


def shared_inputs(problem):
    """Return the most input positions along the first axis that two neighbouring parts of the output both read."""
    return (problem.kernel[0] - 1) * problem.dilations[0] // problem.strides[0]


def of_problem(problem):
    """Return the Reach of all axes except the last."""
    p, found = problem, ONE_ROW
    for axis in zip(p.kernel[:-1], p.strides, p.dilations, p.in_sizes, p.begin, p.out_sizes, strict=False):
        one, kinds = of_axis(*axis), {}
        if found is ONE_ROW:
            found = one
            continue
        for count, n, t in found.kinds:
            for more, m, u in one.kinds:
                _add(kinds, count * more, n * m, t * u)
        products = (a * b for a, b in zip(found[1:], one[1:], strict=True))
        found = Reach(tuple((count, n, t) for count, (n, t) in kinds.items()), *products)
    return found


def _add(kinds, phases, rows, read):
    """Add rows of a kind, which read so many input rows together."""
    before = kinds.get(phases, (0, 0))
    kinds[phases] = before[0] + rows, before[1] + read


def most_terms(problem):
    """Return the most terms of an output."""
    terms = 1
    for k, s, d, size in zip(problem.kernel, problem.strides, problem.dilations, problem.in_sizes, strict=True):
        terms *= min(phases.most_taps(k, s, d), -(-size * math.gcd(s, d) // d))
    return terms
