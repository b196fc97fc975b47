"""One spatial axis as phases and taps: where a transposed convolution becomes small stride-1 convolutions.

Position ``q = o + begin`` of the full scatter receives tap ``t`` of input ``i`` when ``q = s * i + d * t``. Positions with
the same residue ``q mod s`` form a phase: writing ``q = s * j + r``, tap t of phase r reads input ``j - off`` with
``off = (d * t - r) / s``, for exactly the taps with ``d * t mod s = r``. No zero is ever multiplied inside the input.

Two steps, because weights are packed once and data comes in any size:

* ``phase_groups``: from kernel, stride and dilation alone. Phases whose taps read the same inputs may share a group.
* ``axis_classes``: for given sizes, runs of j (relative to the run's start) with the taps that reach the input there.
"""

import bisect
import functools
import itertools
import operator
from typing import NamedTuple

NESTED = 2  # how phases are merged, beside False and True: also with phases that read more than they do
FAR = 2**31  # a stride with which a window shows a phase once or twice, and offsets to its other places overflow


class PhaseGroup(NamedTuple):
    """Phases that read the same inputs: ``taps[p][n]`` is the kernel tap of phase ``residues[p]`` at ``offsets[n]``, or -1."""

    residues: tuple
    offsets: tuple  # descending, so that the inputs ascend
    taps: tuple


class AxisClass(NamedTuple):
    """A run of ``count`` consecutive j of one group; everything is relative to the first of them.

    Phase p of the group writes output ``first_out[p] + s * jj`` for ``valid[p][0] <= jj < valid[p][1]``; tap n of
    ``range(*tap_range)`` reads input ``first_in[n - tap_range[0]] + jj``, which may fall outside the input.
    """

    group: int  # index into the groups; -1 for phases that no tap reaches
    count: int  # type: ignore[assignment]
    tap_range: tuple
    first_in: tuple
    first_out: tuple
    valid: tuple
    start: int  # the absolute j of jj = 0
    shown: tuple  # the `valid` of phases that have outputs in the window,
    inner: tuple  # and where they all have: (low, high)
    run: int = -1  # its number among runs that were given

    def earlier(self, s):
        """The same run, begun a j earlier, where no phase is shown."""
        reached = [lo < hi for lo, hi in self.valid]
        valid = tuple((lo + there, hi + there) for (lo, hi), there in zip(self.valid, reached, strict=True))
        shown = tuple(span for span in valid if span[0] < span[1])
        return self._replace(
            count=self.count + 1,
            first_in=tuple(i - 1 for i in self.first_in),
            first_out=tuple(o - s * there for o, there in zip(self.first_out, reached, strict=True)),
            valid=valid,
            start=self.start - 1,
            shown=shown,
            inner=(max((low for low, _ in shown), default=0), min((high for _, high in shown), default=self.count + 1)),
        )


@functools.lru_cache(maxsize=256)
def axis(k, s, d, merge, size, begin, out, split):
    """``(phase groups, runs)`` of an axis, which are kept: axes are often alike, and every algorithm asks for the same."""
    groups = phase_groups(k, s, d, merge)
    return groups, axis_classes(groups, size, s, begin, out, split)


class Kind(NamedTuple):
    """What the cost of a run depends on. The runs at the two ends of an axis are mirror images, and of one kind."""

    count: int  # type: ignore[assignment]
    taps: int
    of: int  # taps of its group
    phases: int
    shown: int  # phases that have outputs in the window
    outside: int  # how many j some of these have outside the window
    ends: int  # how many ends of the run some tap reads outside the input
    follow: bool  # its taps read inputs that follow each other
    reached: tuple  # for how many j each tap reads an input that is there, the least first; () if all do for all j
    group: int  # of the first run of this kind


@functools.lru_cache(maxsize=512)
def kinds(k, s, d, merge, size, begin, out, split):
    """The kinds of the runs of `axis` that have taps: a tuple of (Kind, the numbers of its runs)."""
    if isinstance(split, tuple):
        groups, classes = axis(k, s, d, merge, size, begin, out, split)
        return tuple((_kind(groups, c, size), (n,)) for n, c in enumerate(classes) if c.group >= 0)
    found, number = {}, 0
    for index, (residues, offsets, _) in enumerate(phase_groups(k, s, d, merge)):
        spans = [(-((r - begin) // s), -((r - begin - out) // s)) for r in residues]
        spans = [span for span in spans if span[0] < span[1]]
        if not spans:
            continue
        lows, highs = zip(*spans, strict=True)
        low, high, inner_low, inner_high = min(lows), max(highs), max(lows), min(highs)
        cuts = {low, high}
        if split:
            edges = [*offsets, *[off + size for off in offsets], *lows, *highs]
            cuts.update([j for j in edges if low < j < high])
        a, *ends = sorted(cuts)
        for b in ends:
            count, shown, outside = b - a, len(spans), 0
            if a < inner_low or b > inner_high:
                some = [span for span in spans if span[0] < b and a < span[1]]
                shown = len(some)
                if some:
                    inner = min(b, *[hi for _, hi in some]) - max(a, *[lo for lo, _ in some])
                    outside = count - max(0, inner)
            first, end = _inside(offsets, size, a, b)
            taps = offsets[first:end]
            cut = (taps[0] > a) + (taps[-1] + size < b) if taps else 0
            reached = tuple(sorted([min(b, off + size) - max(a, off) for off in taps])) if cut else ()
            follow = len(taps) <= 1 or taps[0] - taps[-1] == len(taps) - 1
            key = count, len(taps), len(offsets), len(residues), shown, outside, cut, follow, reached
            found.setdefault(key, [index]).append(number)
            number += 1
            a = b
    return tuple([(Kind(*key, at[0]), tuple(at[1:])) for key, at in found.items()])


@functools.lru_cache(maxsize=256)
def has_hole(k, s, d, begin, out):
    """Whether the window shows a phase of an axis that no tap reaches."""
    with_taps = {d * t % s for t in range(min(k, s))}
    return len(with_taps) < s and any((begin + o) % s not in with_taps for o in range(min(s, out)))


def _kind(groups, c, size):
    """The kind of a run."""
    ends = (c.first_in[0] < 0) + (c.first_in[-1] + c.count > size) if c.first_in else 0
    reached = sorted(max(0, min(c.count, size - i) - max(0, -i)) for i in c.first_in) if ends else ()
    follow = all(b - a == 1 for a, b in itertools.pairwise(c.first_in))
    outside = c.count - max(0, c.inner[1] - c.inner[0])
    of, phases = len(groups[c.group].offsets), len(c.first_out)
    return Kind(c.count, len(c.first_in), of, phases, len(c.shown), outside, ends, follow, tuple(reached), c.group)


@functools.lru_cache(maxsize=256)
def phase_groups(k, s, d, merge):
    """The phases that have taps, as a tuple of PhaseGroup; with ``merge``, phases that read the same inputs share one, if it is
    ``NESTED`` all phases."""
    merge = s < FAR and merge
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
        offsets = tuple(offset for offset, _ in reversed(pairs))  # t ascends, and the offsets with it
        taps = tuple(t for _, t in reversed(pairs))
        by_offsets.setdefault(offsets if merge else residue, []).append((residue, offsets, taps))
    return tuple(
        PhaseGroup(tuple(m[0] for m in members), members[0][1], tuple(m[2] for m in members)) for members in by_offsets.values()
    )


def _inside(offsets, size, a, b):
    """Of taps at descending offsets, which read an input that is there for some j in [a, b): (first, one past the last)."""
    first = bisect.bisect_right(offsets, -b, key=operator.neg)
    end = bisect.bisect_left(offsets, size - a, first, key=operator.neg)
    return (first, end) if first < end else (0, 0)


def _span(residue, s, begin, out):
    """The j whose position s * j + residue lies in the window."""
    return -((residue - begin) // s), -((residue - begin - out) // s)


def axis_classes(groups, size, s, begin, out, split):
    """The runs of one axis for an input of ``size`` and the window [begin, begin + out).

    With ``split`` a run ends wherever the set of taps inside the input changes, so that every tap of a run is inside for
    all of it, and where a phase enters the window or leaves it. Without, taps may be outside for some j of the run (they read
    as zero) and runs are as long as can be. Or ``split`` are the runs themselves, a tuple of order.Run, of which those are
    taken that the window shows.
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
            runs = [(low, high)] if s < FAR else [(j, j + 1) for j in range(low, high)]
            for a, b in runs:
                shown = [(r, span) for r, span in zip(residues, spans, strict=True) if span[0] < b and a < span[1]]
                if shown:
                    classes.append(_run(-1, *zip(*shown, strict=True), (), size, s, begin, a, b))
    return classes


def _found(groups, size, s, begin, out, split):
    """The runs of phases that have taps."""
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
    """Runs that are given, as far as the window shows them."""
    for number, run in enumerate(runs):
        group, first, end = groups[run.group], max(run.first, 0), min(run.end, out)
        spans = [_span(r, s, begin + first, end - first) for r in group.residues]
        reached = [span for span in spans if span[0] < span[1]]
        low, high = min((a for a, _ in reached), default=0), max((b for _, b in reached), default=0)
        low, high = max(low, run.low), min(high, run.high)
        if low < high:
            found = _run(run.group, group.residues, spans, group.offsets, size, s, begin, low, high, run.taps)
            yield found._replace(run=number)


def _run(index, residues, spans, offsets, size, s, begin, a, b, taps=None):
    """The class of j in [a, b), with the taps given or those that reach the input somewhere in it (they are adjacent, as
    offsets descend)."""
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
