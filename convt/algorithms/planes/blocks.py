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
    p, item = problem, ITEMSIZE[problem.dtype] * problem.groups
    vl, in_bytes, out_bytes, cut_rows = here.info(p.dtype).vl, item * p.ci, item * p.co, _CUT_WIDE if wide else _CUT
    batch, rank, last, outs, sizes, strides = p.batch, p.rank, p.rank - 1, p.out_sizes, p.in_sizes, p.strides
    out_share, in_share = 1 / (math.prod(outs) or 1), _READ / (math.prod(sizes) or 1)
    units = [-(-out // s) for out, s in zip(outs, strides, strict=True)]  # an axis is cut between units of a stride
    # Inputs of a block beyond one for each unit.
    more = [
        -(-begin // s) + (d * (k - 1) - begin) // s
        for k, s, d, begin in zip(p.kernel, strides, p.dilations, p.begin, strict=True)
    ]

    def along(ax, count):
        """``(blocks, outputs, inputs)`` of an axis in at most ``count`` blocks, as `cut_axis`."""
        each = -(-units[ax] // count)
        reads, out = max(1, each + more[ax]), each * strides[ax]
        return (1, outs[ax], sizes[ax]) if out >= outs[ax] or reads >= sizes[ax] else (-(-outs[ax] // out), out, reads)

    def judged(count, makes, reads, row):
        """``(bytes that are too many, how bad it is)`` of so many blocks, whose last axis is cut so."""
        bytes = in_bytes * reads + out_bytes * makes
        large = bytes > most and (reads > _LEAST_PIXELS or bytes > _MOST_BYTES * most)
        images, even, total = 1, 1.0, count * batch
        if count == 1:
            images = max(1, min(most // max(bytes, 1), batch))
        elif _EVEN <= total < _FEW:  # (Where blocks are images, they are evened below.)
            even = -(-total // _EVEN) * _EVEN / total
        score = even * count * makes * out_share + count * reads * in_share + _PIXELS / max(1, reads * images)
        n, out, size = row
        if n > 1 and last:
            score += _SHORT * (-(-size // vl) * vl / size + -(-out // vl) * vl / out - 2) + cut_rows
        return (bytes if large else 0), score

    def solved(axes, ax):
        """The best of the ways to cut an axis beside others that are cut: into as few blocks as make one fit, or a few more
        that are even. ``(how bad, axes)``"""
        inputs = outputs = others = 1
        for at, (n, out, size) in enumerate(axes):
            if at != ax:
                inputs, outputs, others = inputs * size, outputs * out, others * n
        fixed, each = in_bytes * inputs, in_bytes * inputs + out_bytes * outputs * strides[ax]  # bytes of an input, of a unit
        size = (most - fixed * more[ax]) // max(each, 1)
        some = (_MOST_BYTES * most - fixed * more[ax]) // max(each, 1)
        size = max(size, min(some, _LEAST_PIXELS // max(inputs, 1) - more[ax]), 1)
        count = max(1, -(-units[ax] // size))
        counts, step = [count], _EVEN // math.gcd(_EVEN, others * batch)
        if count % step and others * batch * count < _FEW:
            counts.append(-(-count // step) * step)
        if units[ax] % size and size > 1:  # the last block has the less to do
            counts.append(-(-units[ax] // (size - 1)))
        found = []
        for count in counts:
            cut = along(ax, count)
            n, out, size = cut
            found.append((judged(others * n, outputs * out, inputs * size, cut if ax == last else axes[last]), cut))
        bad, cut = min(found)
        return bad, [*axes[:ax], cut, *axes[ax + 1 :]]

    axes = [(1, out, size) for out, size in zip(outs, sizes, strict=True)]
    best = judged(1, math.prod(outs), math.prod(sizes), axes[last]), axes
    cuts = []
    if best[0][0]:
        cuts = [ax for ax in range(rank) if units[ax] > 1 and (p.order is None or p.order.free[ax])]
    if cuts:
        best, main = min([(solved(axes, ax), ax) for ax in cuts])
        for ax in cuts:
            count, step = 2, 1
            tries = 3 if best[0] > _GOOD else 1  # that may be in vain
            while ax != main and count <= units[ax] and tries:
                axes = best[1]
                found = solved([*axes[:ax], along(ax, count), *axes[ax + 1 :]], main)
                tries -= found >= best
                best, count, step = min(best, found), count + step, 2 * step
    axes = tuple([
        cut_axis(sizes[ax], p.kernel[ax], strides[ax], p.dilations[ax], p.begin[ax], outs[ax], n)
        for ax, (n, _, _) in enumerate(best[1])
    ])  # fmt: skip
    images = 1
    if all([axis.count == 1 for axis in axes]):
        images = max(1, min(batch, most // max(in_bytes * math.prod(sizes) + out_bytes * math.prod(outs), 1)))
    image_blocks = -(-batch // images)
    if 1 < image_blocks < _FEW and images > 1:
        image_blocks = min(batch, -(-image_blocks // _EVEN) * _EVEN)
        images = -(-batch // image_blocks)
    block = p._replace(
        batch=images, in_sizes=tuple([axis.size for axis in axes]), begin=tuple([axis.begin for axis in axes]),
        out_sizes=tuple([axis.out for axis in axes]), planar=False,
    )  # fmt: skip
    return Blocks(images, -(-batch // images), axes, block)
