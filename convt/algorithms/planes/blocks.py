"""Blocks: boxes of outputs with all their channels, each a problem of its own in NXC order, and how a problem is cut into them.

All blocks of a problem are alike. What a block would read outside the input is zeros; what it computes outside the window
is not stored.
"""

import functools
import math
from typing import Any, NamedTuple

from ..._problem import ITEMSIZE, Problem
from ..workspace import Workspace

_LEAST_PIXELS = 256  # of a block's input: so many may take _MOST_BYTES times the bytes that a block should have
_MOST_BYTES = 4
_EVEN = 4  # few blocks are a multiple of so many, for any number of threads
_FEW = 32
# What makes a way to cut worse than another, as shares of the time that all outputs take:
_READ = 0.15  # inputs that blocks share, transposed again
_PIXELS = 20  # reading the weights for a block, over the pixels of its input
_SHORT = 0.1  # vectors of the last axis that are not full, where it is cut,
_CUT = 0.02  # and that its rows are not beside each other;
_CUT_WIDE = 0.3  # the same of blocks that are widened, which else take little more than the algorithm itself
_GOOD = 0, 1.4  # (bytes that do not fit, how bad it is) of a way to cut that is hardly worth improving


class AxisCut(NamedTuple):
    """An axis in blocks of ``out`` outputs, which read ``size`` inputs: those of block n start at ``first + n * step``."""

    count: int  # type: ignore[assignment]
    out: int
    size: int
    first: int
    step: int
    begin: int  # the window's begin in each block


class Blocks(NamedTuple):
    images: int  # of a block
    image_blocks: int
    axes: tuple  # an AxisCut each
    problem: Problem  # what a block computes, in NXC order

    @property
    def total(self):
        return self.image_blocks * math.prod(axis.count for axis in self.axes)

    @property
    def framed(self):
        """Whether blocks read zeros outside the input."""
        return any(axis.count > 1 for axis in self.axes)


class Schedule(NamedTuple):
    """See stages.py. Where nothing is to be moved there is none: then the schedule is the algorithm's own."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # of the weights of a block, after WIDE where they are widened
    cut: Blocks
    inner: Any  # the schedule of a block
    apart: bool  # each thread has blocks of its own; else all threads share each step of one block after the other
    stream: bool  # outputs take non-temporal stores
    wide: bool  # blocks are of float32, and the problem of a type of 16 bits
    workspace: Workspace  # a block's data and outputs, before the workspace of its plan


def cut_axis(size, kernel, stride, dilation, begin, out, count):
    """An axis in at most ``count`` blocks; in one where blocks would read as much as the whole."""
    whole = AxisCut(1, out, size, 0, 0, begin)
    each = -(-out // (count * stride)) * stride
    if each >= out:
        return whole
    first = -((dilation * (kernel - 1) - begin) // stride)  # the first input that output 0 reads
    reads = max(1, (begin + each - 1) // stride - first + 1)
    if reads >= size:
        return whole
    return AxisCut(-(-out // each), each, reads, first, each // stride, begin - stride * first)


@functools.lru_cache(maxsize=256)
def blocks(problem, here, most, wide=False):
    """The `Blocks` of a problem whose channels are planes, or whose elements were widened: of ``most`` bytes, if that is pixels
    enough."""
    p = problem
    item, vl = ITEMSIZE[p.dtype] * p.groups, here.info(p.dtype).vl
    in_bytes, out_bytes, cut_rows = item * p.ci, item * p.co, _CUT_WIDE if wide else _CUT
    batch, last = p.batch, p.rank - 1
    units = [-(-out // s) for out, s in zip(p.out_sizes, p.strides, strict=True)]  # an axis is cut between units of a stride
    all_in, all_out = math.prod(p.in_sizes) or 1, math.prod(p.out_sizes) or 1
    free = [p.order is None or p.order.free[ax] for ax in range(p.rank)]

    def along(ax, count):
        if not free[ax]:
            count = 1
        return cut_axis(p.in_sizes[ax], p.kernel[ax], p.strides[ax], p.dilations[ax], p.begin[ax], p.out_sizes[ax], count)

    def judged(axes):
        """``(whether it is too large, how bad a way to cut is)``"""
        count = reads = makes = 1
        for n, out, size, _, _, _ in axes:
            count, reads, makes = count * n, reads * size, makes * out
        bytes = in_bytes * reads + out_bytes * makes
        large = bytes > most and (reads > _LEAST_PIXELS or bytes > _MOST_BYTES * most)
        images, even, total = 1, 1.0, count * batch
        if count == 1:
            images = max(1, min(most // max(bytes, 1), batch))
        elif _EVEN <= total < _FEW:  # (Where blocks are images, they are evened below.)
            even = -(-total // _EVEN) * _EVEN / total
        score = even * count * makes / all_out + _READ * count * reads / all_in + _PIXELS / max(1, reads * images)
        n, out, size, _, _, _ = axes[last]
        if n > 1 and last:
            score += _SHORT * (-(-size // vl) * vl / size + -(-out // vl) * vl / out - 2) + cut_rows
        return (bytes if large else 0, score), axes

    def solved(axes, ax):
        """The best of the ways to cut an axis beside others that are cut: into as few blocks as make one fit, or a few more
        that are even."""
        inputs = outputs = others = 1
        for at, cut in enumerate(axes):
            if at != ax:
                inputs, outputs, others = inputs * cut.size, outputs * cut.out, others * cut.count
        s, d, begin = p.strides[ax], p.dilations[ax], p.begin[ax]
        more = -(-begin // s) + (d * (p.kernel[ax] - 1) - begin) // s  # inputs of a block beyond one for each unit
        fixed, each = in_bytes * inputs, in_bytes * inputs + out_bytes * outputs * s  # bytes of an input, of a unit
        size = (most - fixed * more) // max(each, 1)
        size = max(size, min((_MOST_BYTES * most - fixed * more) // max(each, 1), _LEAST_PIXELS // max(inputs, 1) - more), 1)
        counts = [max(1, -(-units[ax] // size))]
        step = _EVEN // math.gcd(_EVEN, others * batch)
        if counts[0] % step and others * batch * counts[0] < _FEW:
            counts.append(-(-counts[0] // step) * step)
        if units[ax] % size and size > 1:  # the last block has the less to do
            counts.append(-(-units[ax] // (size - 1)))
        return min(judged([*axes[:ax], along(ax, count), *axes[ax + 1 :]]) for count in counts)

    best = judged([along(ax, 1) for ax in range(p.rank)])
    cuts = [ax for ax in range(p.rank) if free[ax] and units[ax] > 1] if best[0][0] else []
    if cuts:
        whole = best[1]
        best, main = min((solved(whole, ax), ax) for ax in cuts)
        for ax in cuts:
            count, step = 2, 1
            tries = 3 if best[0] > _GOOD else 1  # that may be in vain
            while ax != main and count <= units[ax] and tries:
                found = solved([along(ax, count) if at == ax else cut for at, cut in enumerate(best[1])], main)
                tries -= found >= best
                best, count, step = min(best, found), count + step, 2 * step
    axes = tuple(best[1])
    if all(axis.count == 1 for axis in axes):
        bytes = in_bytes * math.prod(axis.size for axis in axes) + out_bytes * math.prod(axis.out for axis in axes)
        images = max(1, min(batch, most // max(bytes, 1)))
    else:
        images = 1
    image_blocks = -(-batch // images)
    if 1 < image_blocks < _FEW and images > 1:
        image_blocks = min(batch, -(-image_blocks // _EVEN) * _EVEN)
        images = -(-batch // image_blocks)
    block = p._replace(
        batch=images, in_sizes=tuple([axis.size for axis in axes]), begin=tuple([axis.begin for axis in axes]),
        out_sizes=tuple([axis.out for axis in axes]), planar=False,
    )  # fmt: skip
    return Blocks(images, -(-batch // images), axes, block)
