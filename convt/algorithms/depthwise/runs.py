"""Runs: outputs of a row, of one phase or of cells, that the same taps reach."""

import itertools
from typing import NamedTuple

from .. import common
from .. import phases as _phases
from .kernels import KEPT


class Run(NamedTuple):
    """Outputs that the same taps reach, of one phase or of a cell."""

    start: int  # absolute j
    stop: int
    first_out: int  # the output of lane 0 at ``start``
    taps: list  # (row of weights, input index minus j)
    low: int  # lanes of a j
    high: int
    cut: bool = False  # the last tap is one that not all lanes have
    before: int = 0  # outputs that belong to it before its first and after its last, each of which has a tap less
    after: int = 0
    lacks: tuple = (0, 0)  # outputs at its start and end that it has not
    step: int = 1  # from each of its j's to the next one


def runs_of_cells(problem, width):
    """Runs of cells: every phase, as a row of lanes."""
    s, k, size = problem.strides[-1], problem.kernel[-1], problem.in_sizes[-1]
    begin, end = problem.begin[-1], problem.begin[-1] + problem.out_sizes[-1]
    channels = problem.groups * problem.co
    terms = -(-k // s)
    j0, j1 = begin // s, -(-end // s)
    cuts = {j0, j1, *(u + at for u in range(terms) for at in (0, size))}
    cuts |= {-(-begin // s), end // s}  # where the window cuts a cell
    runs = []
    for a, b in itertools.pairwise(sorted(c for c in cuts if j0 <= c <= j1)):
        taps = [(u, -u) for u in range(terms) if 0 <= a - u < size]
        low, high = max(0, begin - s * a) * channels, min(s, end - s * a) * channels
        cut = k % s != 0 and (terms - 1, 1 - terms) in taps
        runs.append(Run(a, b, s * a - begin, taps, low, high, cut))
    return runs, False


def steps_apart(runs, step):
    """Runs of stride 1, each as those of every ``step``-th j."""
    return [
        run._replace(start=run.start + r, first_out=run.first_out + r, step=step)
        for run in runs
        for r in range(min(step, run.stop - run.start))
    ]


def runs_by_phase(problem, skips):
    """Runs of single phases, and whether there are phases that no tap reaches."""
    s, k, d = problem.strides[-1], problem.kernel[-1], problem.dilations[-1]
    begin, out, size = problem.begin[-1], problem.out_sizes[-1], problem.in_sizes[-1]
    lanes = problem.groups * problem.co
    groups = _phases.phase_groups(k, s, d, merge=False)
    runs, hole = [], False
    for c in _phases.axis_classes(groups, size, s, begin, out, split=not skips):
        if c.group < 0:
            hole = True
            continue
        group = groups[c.group]
        low, high = c.valid[0]
        # Nearest first: phases share the inputs that their taps begin with.
        reached = range(len(group.offsets)) if skips else range(*c.tap_range)
        taps = [(group.taps[0][n], -group.offsets[n]) for n in reversed(reached)]
        runs.append(Run(c.start + low, c.start + high, c.first_out[0] + s * low, taps, 0, lanes))
    return (runs if skips else _side_by_side(runs, s)), hole


def all_abreast(runs, s):
    """Runs of all phases as one, where each phase has only some of the outputs; as they are, if there are runs of few taps."""
    start, stop = min((run.start for run in runs), default=0), max((run.stop for run in runs), default=0)
    if any(run.start > start + 1 or run.stop < stop - 1 for run in runs):
        return runs
    lacks = [(run.start - start, stop - run.stop) for run in runs]
    return sorted(
        run._replace(start=start, stop=stop, first_out=run.first_out - s * before, lacks=(before, after))
        for run, (before, after) in zip(runs, lacks, strict=True)
    )


def _side_by_side(runs, s):
    """Runs cut where another begins or ends, so that those of the same j are computed together; in order of j."""
    cuts = sorted({j for run in runs for j in (run.start, run.stop)})
    if len(cuts) * len(runs) > common.MANY_CLASSES:
        return sorted(runs)
    pieces = []
    for run in runs:
        inside = [j for j in cuts if run.start <= j <= run.stop]
        for a, b in itertools.pairwise(inside):
            pieces.append(run._replace(start=a, stop=b, first_out=run.first_out + s * (a - run.start)))
    return sorted(pieces)


def with_ends(runs):
    """The same, but outputs at the ends of the longest runs, which some of their taps reach, belong to these."""
    size = max((run.stop - run.start for run in runs), default=0)
    main = [run for run in runs if run.stop - run.start == size > 1]
    terms = max((len(run.taps) for run in main), default=0)
    counts = [len(run.taps) for run in main]
    if not 0 < terms <= KEPT or main[-1].start > main[0].start or counts not in ([terms] * len(main), [terms, terms - 1]):
        return runs
    if any(a[1] != b[1] for run in main for a, b in zip(run.taps, main[0].taps, strict=False)):
        return runs  # they don't read the same inputs
    single = {(run.start, *run.taps[:1]): run for run in runs if run.stop - run.start == 1}
    taken, longer = [], []
    for run in main:
        ends = []
        for wanted in (
            [(run.start - i, run.taps[: terms - i]) for i in range(1, terms)],
            [(run.stop - 1 + i, run.taps[i:]) for i in range(1, len(run.taps))],
        ):
            found = [single.get((j, taps[0])) for j, taps in wanted]
            there = [end is not None and end.taps == taps for end, (_, taps) in zip(found, wanted, strict=True)]
            ends.append([*there, False].index(False))
            taken += found[: ends[-1]]
        longer.append(run._replace(before=ends[0], after=ends[1]))
    return sorted([*longer, *(run for run in runs if run not in main and run not in taken)])
