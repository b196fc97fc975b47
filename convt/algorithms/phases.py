"""The analysis of one axis: a transposed convolution as a set of stride-1 convolutions, one per phase.

Position ``q = o + begin`` of the full scatter receives tap ``t`` of input ``i`` when ``q = s * i + d * t``. Positions with
the same residue ``q mod s`` form a phase: writing ``q = s * j + r``, tap t of phase r reads input ``j - off`` with
``off = (d * t - r) / s``, and phase r has exactly the taps with ``d * t mod s = r``. No zero between inputs is multiplied.

`Axis` is one axis of a problem. Its methods return phases, runs, kinds, the reach of a tap, and blocks. There are two steps,
because weights are packed before sizes are known:

* ``phase_groups`` needs only kernel, stride and dilation. Phases whose taps read the same inputs may share a group.
* ``axis_classes`` returns the runs of j for given sizes, with the taps that reach the input in each run.
"""

import bisect
import itertools
import math
import operator
from typing import NamedTuple

from .caches import remembered

NESTED = 2  # a way to merge beside False and True: all phases, also those that read only some of the others' inputs
# From this stride on a window shows a phase once or twice, and offsets to its next position overflow 32 bits.
WIDE_STRIDE = 2**31


class PhaseGroup(NamedTuple):
    """Phases that read the same inputs. ``taps[p][n]`` is the kernel tap of phase ``residues[p]`` at ``offsets[n]``, or -1."""

    residues: tuple
    offsets: tuple  # in descending order, so that inputs ascend
    taps: tuple


class AxisClass(NamedTuple):
    """A run of ``count`` consecutive j of one phase group. ``jj`` is j relative to the first one.

    Phase p of the group writes output ``first_out[p] + s * jj`` for ``valid[p][0] <= jj < valid[p][1]``; tap n of
    ``range(*tap_range)`` reads input ``first_in[n - tap_range[0]] + jj``, which may fall outside the input.
    """

    group: int  # number of the phase group; -1 for phases that no tap reaches
    count: int  # type: ignore[assignment]
    tap_range: tuple
    first_in: tuple
    first_out: tuple
    valid: tuple
    start: int  # the j at jj = 0
    shown: tuple  # the `valid` of the phases that have outputs in the window
    inner: tuple  # (low, high) of the jj at which all shown phases have outputs in the window
    run: int = -1  # number of the order.Run that it is from, if runs were given


@remembered(256)
def axis(k, s, d, merge, size, begin, out, split):
    """Return ``(phase groups, runs)`` of an axis. Results are cached, because axes are often alike."""
    groups = phase_groups(k, s, d, merge)
    return groups, axis_classes(groups, size, s, begin, out, split)


class Kind(NamedTuple):
    """The properties of a run that its cost depends on. Mirror-image runs at the two ends of an axis have one kind."""

    count: int  # type: ignore[assignment]
    taps: int
    group_taps: int  # taps of its phase group
    phases: int
    shown: int  # phases that have outputs in the window
    outside: int  # number of j at which some of these phases are outside the window
    ends: int  # number of ends of the run (0 to 2) at which some tap reads outside the input
    consecutive: bool  # its taps read consecutive inputs
    reached: tuple  # for each tap the number of j at which it is inside the input, ascending; () if all taps always are
    group: int  # phase group of the first run of this kind


@remembered(512)
def kinds(k, s, d, merge, size, begin, out, split):
    """Return the kinds of the runs of `axis` that have taps, a tuple of (Kind, numbers of its runs).

    Runs that an order gives (order.py) have a kind each, because the order decides about each of them.
    """
    groups, runs = axis(k, s, d, merge, size, begin, out, split)
    found, given = {}, isinstance(split, tuple)
    for number, run in enumerate(runs):
        if run.group >= 0:
            kind = _kind(groups, run, size)
            found.setdefault(number if given else kind[:-1], (kind, []))[1].append(number)
    return tuple([(kind, tuple(numbers)) for kind, numbers in found.values()])


@remembered(256)
def empty_phase_count(k, s, d, begin, out):
    """Return the number of phases that the window shows and that no tap reaches."""
    with_taps = {d * t % s for t in range(min(k, s))}
    return min(s, out) - sum([(r - begin) % s < out for r in with_taps])


def most_taps(k, s, d):
    """Return the most taps of a phase."""
    return -(-k * math.gcd(s, d) // s)


def _kind(groups, run, size):
    """Return the kind of a run."""
    first_in, count, ends, reached, consecutive = run.first_in, run.count, 0, (), True
    if first_in:
        ends = (first_in[0] < 0) + (first_in[-1] + count > size)
        consecutive = first_in[-1] - first_in[0] == len(first_in) - 1
    if ends:
        reached = tuple(sorted([max(0, min(count, size - i) - max(0, -i)) for i in first_in]))
    outside = count - max(0, run.inner[1] - run.inner[0])
    return Kind(count, len(first_in), len(groups[run.group].offsets), len(run.first_out), len(run.shown), outside, ends,
                consecutive, reached, run.group)  # fmt: skip


@remembered(256)
def phase_groups(k, s, d, merge):
    """Return the phases that have taps, as a tuple of PhaseGroup.

    With ``merge`` True, phases that read the same inputs share a group. With ``NESTED``, all phases share one group.
    """
    merge = s < WIDE_STRIDE and merge
    by_residue = {}
    for t in range(k):
        offset, residue = divmod(d * t, s)
        by_residue.setdefault(residue, []).append((offset, t))
    if merge == NESTED and by_residue:
        offsets = tuple(sorted({offset for pairs in by_residue.values() for offset, _ in pairs}, reverse=True))
        found = [(residue, dict(pairs)) for residue, pairs in sorted(by_residue.items())]
        taps = tuple(tuple(at.get(offset, -1) for offset in offsets) for _, at in found)
        return (PhaseGroup(tuple(residue for residue, _ in found), offsets, taps),)
    by_offsets = {}
    for residue, pairs in sorted(by_residue.items()):
        offsets = tuple(offset for offset, _ in reversed(pairs))  # offsets ascend with t
        taps = tuple(t for _, t in reversed(pairs))
        by_offsets.setdefault(offsets if merge else residue, []).append((residue, offsets, taps))
    return tuple(
        PhaseGroup(tuple(m[0] for m in members), members[0][1], tuple(m[2] for m in members)) for members in by_offsets.values()
    )


def _inside(offsets, size, a, b):
    """Return (first, end) of the taps, at descending offsets, that are inside the input for some j in [a, b)."""
    first = bisect.bisect_right(offsets, -b, key=operator.neg)
    end = bisect.bisect_left(offsets, size - a, first, key=operator.neg)
    return (first, end) if first < end else (0, 0)


def _span(residue, s, begin, out):
    """Return (first, end) of the j whose position s * j + residue is in the window."""
    return -((residue - begin) // s), -((residue - begin - out) // s)


def axis_classes(groups, size, s, begin, out, split):
    """Return the runs of one axis for an input of ``size`` and the window [begin, begin + out).

    If ``split`` is True, a run ends where the set of taps inside the input changes, so that each tap of a run is inside for the
    whole run, and where a phase enters or leaves the window. If it is False, runs are as long as possible, and taps outside the
    input read zeros. If it is a tuple of order.Run, the runs are these, limited to the window.
    """
    if isinstance(split, tuple):
        classes = list(_given(groups, size, s, begin, out, split))
    else:
        classes = _found(groups, size, s, begin, out, split)
    with_taps = {r for group in groups for r in group.residues}
    if len(with_taps) < s:
        seen = dict.fromkeys((begin + o) % s for o in range(min(s, out)))
        residues = [r for r in seen if r not in with_taps]
        spans = [_span(r, s, begin, out) for r in residues]
        if residues:
            low, high = min(a for a, _ in spans), max(b for _, b in spans)
            runs = [(low, high)] if s < WIDE_STRIDE else [(j, j + 1) for j in range(low, high)]
            for a, b in runs:
                shown = [(r, span) for r, span in zip(residues, spans, strict=True) if span[0] < b and a < span[1]]
                if shown:
                    classes.append(_run(-1, *zip(*shown, strict=True), (), size, s, begin, a, b))
    return classes


def _found(groups, size, s, begin, out, split):
    """Return the runs of the phases that have taps."""
    classes = []
    for index, group in enumerate(groups):
        spans = [_span(r, s, begin, out) for r in group.residues]
        reached = [span for span in spans if span[0] < span[1]]
        if reached:
            low, high = min(reached)[0], max([b for _, b in reached])
            cuts = {low, high}
            if split:
                edges = [*group.offsets, *[off + size for off in group.offsets], *itertools.chain(*reached)]
                cuts.update([j for j in edges if low < j < high])
            a, *ends = sorted(cuts)
            for b in ends:
                classes.append(_run(index, group.residues, spans, group.offsets, size, s, begin, a, b))
                a = b
    return classes


def _given(groups, size, s, begin, out, runs):
    """Yield the classes of given runs, limited to the window."""
    for number, run in enumerate(runs):
        group = groups[run.group]
        spans = [_span(r, s, begin, out) for r in group.residues]
        reached = [span for span in spans if span[0] < span[1]]
        low, high = min((a for a, _ in reached), default=0), max((b for _, b in reached), default=0)
        low, high = max(low, run.low), min(high, run.high)
        if low < high:
            found = _run(run.group, group.residues, spans, group.offsets, size, s, begin, low, high, run.taps)
            yield found._replace(run=number)


def _run(index, residues, spans, offsets, size, s, begin, a, b, taps=None):
    """Return the AxisClass of j in [a, b), with ``taps`` (first, end) or the taps that are inside the input somewhere in it.

    These taps are adjacent, because offsets descend.
    """
    if taps is None:
        taps = _inside(offsets, size, a, b)
    count, base = b - a, s * a - begin
    inside = [(max(lo, a) - a, min(hi, b) - a) if lo < hi > a and lo < b else (0, 0) for lo, hi in spans]
    valid = tuple(inside)
    shown = tuple([span for span in valid if span[1]])
    inner = (max([lo for lo, _ in shown]), min([hi for _, hi in shown])) if shown else (0, count)
    return AxisClass(
        index, count, taps, tuple([a - off for off in offsets[taps[0] : taps[1]]]),
        tuple([base + r if lo < hi else 0 for r, (lo, hi) in zip(residues, spans, strict=True)]), valid, a, shown, inner,
    )  # fmt: skip


class AxisCut(NamedTuple):
    """An axis in blocks of ``out`` outputs and ``size`` inputs. The inputs of block n start at ``first + n * step``."""

    count: int  # type: ignore[assignment]
    out: int
    size: int
    first: int
    step: int
    begin: int  # the begin of the window in each block


class Axis(NamedTuple):
    """An axis of a problem: kernel, stride and dilation, the number of inputs, and the window."""

    k: int
    s: int
    d: int
    size: int
    begin: int
    out: int

    def groups(self, merge):
        """Return the phase groups (`phase_groups`)."""
        return phase_groups(self.k, self.s, self.d, merge)

    def runs(self, merge, split):
        """Return the runs (`axis_classes`)."""
        return axis(self.k, self.s, self.d, merge, self.size, self.begin, self.out, split)[1]

    def kinds(self, merge, split):
        """Return the kinds of the runs that have taps (`kinds`)."""
        return kinds(self.k, self.s, self.d, merge, self.size, self.begin, self.out, split)

    def has_empty_phases(self):
        """Check whether the window shows a phase that no tap reaches."""
        return empty_phase_count(self.k, self.s, self.d, self.begin, self.out) > 0

    def reach(self, tap):
        """Return (first input, end of the inputs, output of the first input) that a tap brings into the window."""
        first = tap * self.d - self.begin
        low = max(0, -(first // self.s))
        return low, min(self.size, (self.out - 1 - first) // self.s + 1), first + low * self.s

    def units(self):
        """Return the number of units of ``s`` outputs. Blocks end between units."""
        return -(-self.out // self.s)

    def halo(self):
        """Return the number of inputs that a block reads in addition to one per unit."""
        k, s, d, _, begin, _ = self
        return -(-begin // s) + (d * (k - 1) - begin) // s

    def cut(self, count):
        """Return the `AxisCut` into at most ``count`` blocks; into one if a block would read as much as the whole axis."""
        k, s, d, size, begin, out = self
        step, before = -(-out // (s * count)), (d * (k - 1) - begin) // s  # units of a block; inputs that it reads before them
        reads = max(1, step - (-begin // s) + before)
        if step * s >= out or reads >= size:
            return AxisCut(1, out, size, 0, 0, begin)
        return AxisCut(-(-out // (step * s)), step * s, reads, -before, step, begin + s * before)


def axes_of(problem):
    """Return the `Axis` of each axis of a problem."""
    p = problem
    return [Axis(*each) for each in zip(p.kernel, p.strides, p.dilations, p.in_sizes, p.begin, p.out_sizes, strict=True)]
