"""Tests of phases and runs: they must contain every (output, input, tap) triple of the full scatter once, and no other."""

import random

import pytest

from convt.algorithms import phases as _phases


def triples_by_definition(size, k, s, d, begin, out):
    want = {o: set() for o in range(out)}
    for i in range(size):
        for t in range(k):
            o = s * i + d * t - begin
            if 0 <= o < out:
                want[o].add((i, t))
    return want


def triples_by_classes(size, k, s, d, begin, out, merge, split):
    groups = _phases.phase_groups(k, s, d, merge)
    got = {}
    for c in _phases.axis_classes(groups, size, s, begin, out, split):
        for p, first in enumerate(c.first_out):
            for jj in range(*c.valid[p]):
                o = first + s * jj
                assert o not in got, "two runs write one output"
                got[o] = set()
                for n in range(*c.tap_range):
                    i = c.first_in[n - c.tap_range[0]] + jj
                    tap = groups[c.group].taps[p][n]
                    if 0 <= i < size and tap >= 0:
                        got[o].add((i, tap))
                    elif tap >= 0:
                        assert not split, "a split run has all its taps inside the input"
    return got


def random_axes(count):
    """Yield (size, k, s, d, begin, out) of random axes."""
    rng = random.Random(5)
    for _ in range(count):
        yield (
            rng.randint(0, 6), rng.randint(1, 6), rng.randint(1, 5), rng.randint(1, 4), rng.randint(-4, 12),
            rng.randint(0, 20),
        )  # fmt: skip


each_analysis = pytest.mark.parametrize(
    "merge, split", [(merge, split) for merge in (False, True, _phases.NESTED) for split in (False, True)]
)


@each_analysis
def test_classes_cover_the_scatter(merge, split):
    for case in random_axes(3000):
        assert triples_by_classes(*case, merge, split) == triples_by_definition(*case), case


@each_analysis
def test_kinds_count_what_leaves_the_input_and_the_window(merge, split):
    for size, k, s, d, begin, out in random_axes(1000):
        groups, runs = _phases.axis(k, s, d, merge, size, begin, out, split)
        for kind, numbers in _phases.kinds(k, s, d, merge, size, begin, out, split):
            for run in (runs[number] for number in numbers):
                positions, group = range(run.start, run.start + run.count), groups[run.group]
                seen = [[0 <= s * j + residue - begin < out for j in positions] for residue in group.residues]
                shown = [phase for phase in seen if any(phase)]
                outside = sum(not all(phases) for phases in zip(*shown, strict=True))
                offsets = group.offsets[slice(*run.tap_range)]
                before = any(positions[0] - offset < 0 for offset in offsets)
                after = any(positions[-1] - offset >= size for offset in offsets)
                got = kind.shown, kind.outside, kind.ends
                assert got == (len(shown), outside, before + after), (size, k, s, d, begin, out, run)


def test_equal_taps_share_a_group():
    assert len(_phases.phase_groups(4, 2, 1, merge=True)) == 1
    assert len(_phases.phase_groups(4, 2, 1, merge=False)) == 2
    assert len(_phases.phase_groups(3, 2, 1, merge=True)) == 2  # one with 2 taps, one with 1 tap
    assert _phases.phase_groups(4, 4, 2, merge=True)[0].residues == (0, 2)
    (group,) = _phases.phase_groups(3, 2, 1, merge=_phases.NESTED)
    assert (group.offsets, group.taps) == ((1, 0), ((2, 0), (-1, 1)))


def test_huge_stride_costs_nothing():
    groups = _phases.phase_groups(3, 2**62, 1, merge=True)
    classes = _phases.axis_classes(groups, 1, 2**62, 0, 5, split=False)
    assert sum(hi - lo for c in classes for lo, hi in c.valid) == 5
