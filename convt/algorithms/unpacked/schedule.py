"""The schedule stage of unpacked: the out-channels of a task, the depth of weights copied at a time, and the workspace.

`schedule` decides from a problem and a machine. cost.py, bind.py and the loops read its decisions.
"""

import math
from typing import NamedTuple

from ... import _core
from ..._base.problem import Problem
from ..._run import execution
from ..._run.workspace import Workspace, book
from .. import common
from ..scatter.reach import most_terms
from .loops import FEW_PIXELS

LIMIT = "at most 256 input pixels of all images together, and a kernel of few taps"

_PIXELS = 256  # the most pixels of all images
_COLUMNS = 256  # columns of a task, about, so that rows of weights are long enough to be read at memory bandwidth
_PRODUCTS = 1 << 18  # the most bytes of the products of a task
_ENTRIES = 1 << 16  # the most entries of the table of products that outputs sum
_BLOCK_SHARE = 1 / 4  # the share of L2 for the weights that are copied at a time, unless this is less than _LEAST_DEPTH
_LEAST_DEPTH = 32  # the fewest in-channels that are copied at a time
_TASKS = 8  # the fewest tasks of a channel group with as many out-channels, for any number of threads (sums keep their order)
_LINE = 64  # the bytes of a cache line


class Schedule(NamedTuple):
    """The decisions about a problem. See stages.py for the fields of all schedules."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # (), because there is one form
    in_place: bool  # weights are multiplied in place, without a copy, because images are few and have few pixels (FEW_PIXELS)
    channels: int  # the out-channels of a task
    blocks: int  # the number of tasks of a channel group
    depth: int  # the in-channels whose weights are copied at a time
    ld: int  # columns between the products of two pixels: an odd number of cache lines, for different sets of L1
    terms: int  # the most products of an output
    execution: execution.Execution
    # Regions: "zeros" (-0.0, with which products begin), "pixels" (packed rows of the GEMM), "rows" (pointers to their
    # products), "weights" (copied panels), "products", "sums" (outputs of a task before they are transposed).
    workspace: Workspace


def takes(problem, unit):
    """Check whether unpacked accepts a problem: a vector unit, few pixels and few products."""
    pixels, taps = problem.batch * math.prod(problem.in_sizes), math.prod(problem.kernel)
    if unit is None or unit.matrix or unit.kstep > 1 or not 0 < pixels <= _PIXELS or 0 in (problem.ci, problem.co):
        return False
    outputs = math.prod(problem.out_sizes)
    channel_bytes = (pixels + problem.batch) * taps * unit.t_size  # bytes of an out-channel
    return channel_bytes <= _PRODUCTS and 0 < outputs * (1 + most_terms(problem)) <= _ENTRIES


def schedule(problem, here, unit, threads, finite):
    """Return the `Schedule` of a problem, or None if unpacked does not accept it."""
    info = here.info(problem.dtype, unit)
    if not takes(problem, info):
        return None
    taps, pixels = math.prod(problem.kernel), problem.batch * math.prod(problem.in_sizes)
    in_place = max(problem.batch, math.prod(problem.in_sizes)) <= FEW_PIXELS  # each image reads the weights again
    rows = pixels + problem.batch  # rows of products: each image has one more, for missing products
    most = max(1, min(-(-problem.co // _TASKS), _COLUMNS // taps, _PRODUCTS // (rows * taps * info.t_size)))
    blocks = -(-problem.co // most)
    channels = -(-problem.co // blocks)
    columns = -(-channels * taps // info.nr) * info.nr
    line = _LINE // info.t_size
    ld = (-(-columns // line) | 1) * line
    depth = min(problem.ci, _core.KC, max(_LEAST_DEPTH, int(here.l2 * _BLOCK_SHARE) // (columns * info.e_size)))
    outputs = math.prod(problem.out_sizes)
    space = book(
        zeros=info.nr * info.t_size, pixels=pixels * info.lda * info.e_size, rows=8 * pixels,
        weights=0 if in_place else columns * depth * info.e_size, products=rows * ld * info.t_size,
        sums=outputs * channels * info.s_size,
    )  # fmt: skip
    return Schedule(
        problem, unit, threads, (), in_place, channels, -(-problem.co // channels), depth, ld, most_terms(problem),
        execution.decide(problem, here, info, threads, 0), space,
    )  # fmt: skip


def least(problem, here, unit="vectors"):
    """Return a lower bound of the cycles: those of the multiply-adds in whole vectors."""
    info = here.info(problem.dtype, unit)
    if not takes(problem, info):
        return math.inf
    products = problem.batch * problem.groups * math.prod((*problem.in_sizes, *problem.kernel, problem.ci, problem.co))
    return products * common.product_price(info, here.profile["unpacked"])
