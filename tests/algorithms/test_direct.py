"""Tests of the direct algorithm: input rows that are read in place, rows that are packed, and rows that are left out because a
tap does not reach the input, against the definition."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    DTYPES,
    Case,
    check_all_ways,
    checked_on_threads,
    each_dtype,
    each_isa,
    matrix_unit,
    using_isa,
)

import convt
from convt.algorithms import caches
from convt.algorithms.direct import schedule

FORCED = {
    "one tap": [
        Case(ci=22, co=37, batch=3, in_sizes=(7, 9), kernel=k, strides=k, pads_begin=pads, output_padding=more)
        for k, pads, more in ((1, 0, 0), (2, 0, 0), (2, (1, 0), 0), (2, (0, 1), 0), (2, 0, 1), (3, (3, 0), 0)) * 3
    ],
    # Depths for which one kernel call computes several tiles and two panels at once.
    "little depth": [
        Case(ci=ci, co=co, in_sizes=sizes, pads_begin=pads)
        for (ci, co), (sizes, pads) in zip(
            itertools.product((16, 20, 32, 33), (64, 80, 96, 80)),
            itertools.cycle([((9, 31), 0), ((9, 31), (0, 1)), ((27, 28), (1, 1))]),
            strict=False,
        )
    ],
    # Depths larger than a chunk, columns with and without a partial panel, few weights and many.
    "one tap in several chunks": [
        Case(ci=ci, co=co, in_sizes=(7, 9), kernel=2, strides=2)
        for ci, co in itertools.product((256, 257, 600, 1024), (8, 40, 300))
    ],
    # Weights larger than L2, whose calls run tasks alternately forwards and backwards: several classes of different work that
    # are divided among threads, and one class.
    "weights read forwards and backwards": [
        Case(batch=2, ci=130, co=co, in_sizes=(2, 2), kernel=k, strides=2) for k, co in ((3, 240), (2, 520))
    ],
    # Phases whose channels are not a multiple of a vector, a few panels at a time.
    "pixels far apart in the output": [
        Case(batch=2, ci=16, co=33, in_sizes=(5, 9), kernel=(4, 64), strides=(2, 32), pads_begin=begin, pads_end=end)
        for begin, end in (((0, 0), (0, 0)), ((1, 19), (2, 25)), ((3, 63), (1, 90)))
    ],
    # The stride of an axis of one pixel has no effect.
    "an axis of one pixel": [
        Case(batch=2, ci=20, co=18, in_sizes=sizes, kernel=(4, 3), **keywords)
        for sizes in ((1, 1), (1, 3), (3, 1), (3, 3))
        for keywords in ({}, {"strides": 2, "pads_begin": 1}, {"strides": (1, 2), "output_padding": (0, 1)})
    ],
    # Small images with large kernels, where many taps fall outside the input: one row block and several, depth chunks packed at
    # once and separately, one chunk and several per tap, and cut edges.
    "pose": Case(ci=300, co=40, in_sizes=(8, 6), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "odd kernel": Case(batch=3, ci=128, co=64, in_sizes=(4, 4), kernel=5, strides=2, pads_begin=2, pads_end=2),
    "two taps of four": Case(batch=2, ci=512, co=33, in_sizes=(2, 2), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "one pixel": Case(batch=2, ci=260, co=64, in_sizes=(1, 1), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "stride 1": Case(batch=9, ci=100, co=20, in_sizes=(5, 3), kernel=3, pads_begin=1, pads_end=1),
    "many images": Case(batch=4, ci=513, co=18, in_sizes=(4, 4), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "1-D": Case(batch=2, ci=257, co=70, in_sizes=(4,), kernel=8, strides=2, pads_begin=3, pads_end=2),
    "3-D": Case(ci=130, co=17, in_sizes=(3, 2, 2), kernel=3, strides=2, pads_begin=1),
    "two groups": Case(batch=2, groups=2, ci=128, co=32, in_sizes=(4, 4), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "kernel beyond the image": Case(ci=301, co=8, in_sizes=(3, 3), kernel=9, pads_begin=4, pads_end=4),
    "uneven pads": Case(ci=128, co=34, in_sizes=(4, 4), kernel=5, strides=2, pads_begin=3),
    # Rows of several taps that are adjacent in memory, or that are not because of dilation, of several groups or of the first
    # axis. The depth is one chunk, chunks of several taps, or parts of a tap. Blocks lie inside an image, at its ends, and
    # across images.
    "one chunk": Case(ci=16, co=24, in_sizes=(500,), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "several chunks": Case(ci=96, co=40, in_sizes=(400,), kernel=8, strides=2, pads_begin=3, pads_end=3),
    "chunks that end within taps": Case(ci=100, co=20, in_sizes=(330,), kernel=6, strides=2, pads_begin=2, pads_end=1),
    "chunks within a tap": Case(ci=514, co=10, in_sizes=(300,), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "unlike phases": Case(ci=32, co=18, in_sizes=(450,), kernel=5, strides=2, pads_begin=2, pads_end=1),
    "long rows of stride 1": Case(batch=2, ci=34, co=34, in_sizes=(317,), kernel=3, pads_begin=1, pads_end=1),
    "images": Case(batch=7, ci=64, co=20, in_sizes=(61,), kernel=6, strides=2, pads_begin=2, pads_end=2),
    "no pads": Case(batch=3, ci=48, co=16, in_sizes=(200,), kernel=5),
    "cut beyond the border taps": Case(batch=2, ci=20, co=32, in_sizes=(400,), kernel=4, strides=2, pads_begin=9, pads_end=160),
    "dilated": Case(ci=130, co=24, in_sizes=(390,), kernel=3, dilations=3, pads_begin=3, pads_end=3),
    "dilated and strided": Case(
        batch=2, ci=66, co=24, in_sizes=(301,), kernel=4, strides=2, dilations=3, pads_begin=4, pads_end=4
    ),
    "groups": Case(groups=3, ci=132, co=22, in_sizes=(350,), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "first axis": Case(ci=260, co=20, in_sizes=(9, 150), kernel=(4, 1), strides=(2, 1), pads_begin=(1, 0)),
    "last axis": Case(ci=64, co=20, in_sizes=(4, 311), kernel=(1, 4), strides=(1, 2), pads_begin=(0, 1), pads_end=(0, 1)),
    "both axes": Case(ci=40, co=20, in_sizes=(5, 301), kernel=3, pads_begin=1, pads_end=1),
}


@each_isa
@pytest.mark.parametrize("name", FORCED)
def test_problems_that_force_a_branch(name, isa):
    forced = FORCED[name] if isinstance(FORCED[name], list) else [FORCED[name]] * len(DTYPES)
    with using_isa(isa):
        for seed, (case, dtype) in enumerate(zip(forced, itertools.cycle(DTYPES), strict=False)):
            check_all_ways(replace(case, dtype=dtype, seed=seed, activation=[None, "relu"][seed % 2]), "direct:vectors")


@each_isa
@pytest.mark.parametrize("ci, co, kernel", [(48, 40, 2), (300, 70, 2), (20, 33, 3), (16, 33, (4, 64))])
def test_the_order_of_tiles_follows_the_cache(ci, co, kernel, isa):
    """Check both orders of AMX tiles: all panels for a few rows, or, if there are many weights, one panel for all rows."""
    case = Case(batch=2, ci=ci, co=co, in_sizes=(9, 21), kernel=kernel, strides=2, pads_end=1)
    case = case if kernel != (4, 64) else replace(case, strides=(2, 32))
    with using_isa(isa):
        for near in (0, 1 << 40):
            algorithm = "direct:amx" if matrix_unit() else "direct:vectors"
            checked_on_threads(case, algorithm, case.arrays(), near_weights=near)


@pytest.mark.parametrize("ci", [1024, 1040])
def test_rows_that_share_a_set_of_the_cache_are_packed(ci):
    """Check pixels that are 4 KiB apart."""
    filter = np.ones((1, 1, ci, 128), np.float32)
    plan = convt.ConvTranspose(filter, algorithm="direct:vectors").plan((1, 100, 100, ci))
    assert (plan.workspace_bytes > plan.threads * 128 << 10) == (ci == 1024)


def test_one_pixel_is_planned_alike_for_every_stride():
    filter = np.ones((4, 4, 64, 64), np.float32)
    plans = {convt.ConvTranspose(filter, strides=s, backend="native").plan((1, 1, 1, 64)) for s in (1, 2, 3, 4)}
    assert len(plans) == 1


def test_rows_that_lie_in_the_input_take_no_workspace():
    filter = np.ones((1, 1, 64, 128), np.float32)
    plan = convt.ConvTranspose(filter, algorithm="direct:vectors").plan((1, 100, 100, 64))
    assert plan.workspace_bytes < plan.threads * 32 << 10


@each_isa
@each_dtype
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("co", [1, 3, 21, 40])
def test_windows_that_cut_phases(co, split, merge, dtype, isa, monkeypatch):
    """Check windows that hide some or all columns of panels, at borders and inside, for every division of the axes."""
    monkeypatch.setattr(schedule, "_ways", lambda problem, unit, finite: [((merge, merge), (split, split))])
    for begin, end, activation in (((15, 3), (17, 6), None), ((2, 5), (1, 24), "relu"), ((31, 0), (5, 13), ("clip", -9, 9))):
        case = Case(
            dtype=dtype, batch=2, ci=5, co=co, in_sizes=(9, 7), kernel=8, strides=4, pads_begin=begin, pads_end=end,
            activation=activation,
        )  # fmt: skip
        caches.clear()
        with using_isa(isa):
            checked_on_threads(case, "direct:vectors", case.arrays(), threads=(2,))
    caches.clear()
