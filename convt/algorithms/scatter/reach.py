"""Counts of the input rows that output rows read, along all axes except the last.

schedule.py and cost.py need only these counts. bind.py makes the tables, for a plan that runs.
"""

import functools
import math
from typing import NamedTuple

from .. import phases


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


@functools.lru_cache(maxsize=512)
def of_axis(k, s, d, size, begin, out):
    """Return the Reach of one axis."""
    groups, gap = phases.phase_groups(k, s, d, True), d // math.gcd(s, d)  # distance of the inputs of a phase's taps
    below, above = begin // s, (begin + out) // s
    first_residue, end_residue = begin - below * s, begin + out - above * s  # the residues at which the window starts and ends
    kinds, rows, taps, most, lows, highs, entries, shown = {}, 0, 0, 1, [], [], 0, 0
    for residues, offsets, _ in groups:
        count = len(residues)  # products are computed for all phases, even for those outside the window
        if out < s:
            residues = [r for r in residues if (r - begin) % s < out]
            if not residues:
                continue
        low, high = below + (residues[-1] < first_residue), above + (residues[0] < end_residue)
        read = 0
        for off in offsets:
            a, b = (low if low > off else off), (high if high < off + size else off + size)
            if a < b:
                read += b - a
        reached = min(len(offsets), -(-size // gap))
        before = kinds.get(count, (0, 0))
        kinds[count] = before[0] + high - low, before[1] + read
        rows, taps, most, shown = rows + high - low, max(taps, reached), max(most, count), shown + len(residues)
        entries += min(2 * len(offsets) + 1, high - low) * (reached + count)
        lows.append(low)
        highs.append(high)
    if shown < min(s, out):  # phases that no tap reaches
        count, high = min(s, out) - shown, above + (end_residue > 0)
        before = kinds.get(count, (0, 0))
        kinds[count] = before[0] + high - below, before[1]
        rows, entries, most = rows + high - below, entries + count, max(most, count)
        lows.append(below)
        highs.append(high)
    row_js = max(highs) - min(lows) if lows else 0
    found = tuple((count, n, read) for count, (n, read) in kinds.items())
    return Reach(found, rows, taps, most, max(1, len(groups)), row_js, entries)


def of_problem(problem):
    """Return the Reach of all axes except the last."""
    found = ONE_ROW
    for ax in range(len(problem.kernel) - 1):
        axis = of_axis(
            problem.kernel[ax], problem.strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.begin[ax],
            problem.out_sizes[ax],
        )  # fmt: skip
        if ax == 0:
            found = axis
            continue
        kinds = {}
        for p, n, t in found.kinds:
            for q, m, u in axis.kinds:
                before = kinds.get(p * q, (0, 0))
                kinds[p * q] = before[0] + n * m, before[1] + t * u
        products = (a * b for a, b in zip(found[1:], axis[1:], strict=True))
        found = Reach(tuple((p, n, t) for p, (n, t) in kinds.items()), *products)
    return found


def most_terms(problem):
    """Return the most terms of an output."""
    terms = 1
    for k, s, d, size in zip(problem.kernel, problem.strides, problem.dilations, problem.in_sizes, strict=True):
        common = math.gcd(s, d)
        terms *= min(-(-k // (s // common)), -(-size // (d // common)))
    return terms
