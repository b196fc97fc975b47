"""What unpacked decides: how many out-channels are a task, and how much depth of their weights is copied at a time."""

import math
from typing import NamedTuple

from ... import _core
from ..._problem import Problem
from .. import common, execution
from ..workspace import Workspace, book
from . import cost
from .loops import FEW_PIXELS

LIMIT = "it wants few pixels, of all images together, and kernels of few taps"
NAME = "unpacked"

_PIXELS = 256  # at most, of all images
_COLUMNS = 256  # of a task, about: a row of weights is then long enough to be read at the speed of memory
_PRODUCTS = 1 << 18  # bytes of the products of a task
_ENTRIES = 1 << 16  # of the table of what outputs sum
_BLOCK_SHARE = 1 / 4  # of L2 for the weights that are copied at a time,
_LEAST_DEPTH = 32  # of at least so many in-channels
_TASKS = 8  # of a group at least, if it has so many out-channels, whatever the threads, so that sums keep their order
_LINE = 64  # bytes


class Schedule(NamedTuple):
    """See stages.py."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # empty: weights are as they lie
    in_place: bool  # an image has so few pixels that weights are multiplied where they lie, not copied
    channels: int  # out-channels of a task
    blocks: int  # tasks of a group
    depth: int  # in-channels whose weights are copied at a time
    ld: int  # columns between the products of pixels, so many that these fall into different sets of L1
    terms: int  # products of an output, at most
    execution: execution.Execution
    # "zeros" (-0, with which products begin), "pixels" (packed rows of the GEMM), "rows" (where their products go), "weights",
    # "products", "sums" (outputs of a task, where they are not stored at once)
    workspace: Workspace


def takes(problem, unit):
    """Whether there are few pixels and products."""
    pixels, taps = problem.batch * math.prod(problem.in_sizes), math.prod(problem.kernel)
    if unit is None or unit.matrix or unit.kstep > 1 or not 0 < pixels <= _PIXELS or 0 in (problem.ci, problem.co):
        return False
    outputs = math.prod(problem.out_sizes)
    one = (pixels + problem.batch) * taps * unit.t_size  # of an out-channel
    return one <= _PRODUCTS and 0 < outputs * (1 + most_terms(problem)) <= _ENTRIES


def most_terms(problem):
    """The most products that an output sums, or more."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, problem.in_sizes, strict=True)
    return math.prod([min(size, -(-k // (s // math.gcd(s, d)))) for k, s, d, size in axes])


def schedule(problem, here, unit, threads, finite):
    """The `Schedule`; None if there is none."""
    info = here.info(problem.dtype, unit)
    if not takes(problem, info):
        return None
    taps, pixels = math.prod(problem.kernel), problem.batch * math.prod(problem.in_sizes)
    in_place = math.prod(problem.in_sizes) <= FEW_PIXELS
    rows = pixels + problem.batch  # of products: of each image also those of no pixel
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
    found = Schedule(
        problem, unit, threads, (), in_place, channels, -(-problem.co // channels), depth, ld, most_terms(problem), None, space
    )
    cycles = cost.cost(found, here)
    how = execution.decide(problem, here, info, False, cycles, 0, False)
    return found._replace(threads=common.threads(cycles, threads, here), execution=how)
