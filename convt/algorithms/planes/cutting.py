"""How a problem of planes is cut into blocks: boxes of outputs with all their channels, each a problem of its own.

All blocks of a problem are alike. What a block would read outside the input is zeros; what it computes outside the window
is not stored.
"""

import functools
import math
from typing import NamedTuple

from ..._problem import ITEMSIZE, Problem

_LEAST_PIXELS = 256  # of a block's input: fewer would read the weights too often
_MOST_BYTES = 4  # times the bytes that a block should have, even for so many pixels
_EVEN = 4  # few blocks are a multiple of so many, for any number of threads
_FEW = 32
_ROW = 8  # the last axis is cut where its blocks are so many times as long as others


class AxisCut(NamedTuple):
    """An axis in blocks of ``out`` outputs, which read ``size`` inputs: those of block n start at ``first + n * step``."""

    count: int
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
def blocks(problem, here):
    """The `Blocks` of a problem whose channels are planes: of `planes_block` bytes at most, if that is pixels enough."""
    item, most = ITEMSIZE[problem.dtype], here.limits.planes_block
    channels_in, channels_out = problem.groups * problem.ci, problem.groups * problem.co
    counts = [1] * problem.rank

    def axes(counts):
        p = problem
        each = zip(p.in_sizes, p.kernel, p.strides, p.dilations, p.begin, p.out_sizes, counts, strict=True)
        return tuple(cut_axis(*axis) for axis in each)

    def size_of(cut):
        """(bytes, input pixels) of a block of one image."""
        pixels = math.prod(axis.size for axis in cut)
        return item * (channels_in * pixels + channels_out * math.prod(axis.out for axis in cut)), pixels

    found, ways = axes(counts), {ax for ax in range(problem.rank) if problem.out_sizes[ax] > problem.strides[ax]}
    while ways:
        bytes, pixels = size_of(found)
        if bytes <= most or (pixels <= _LEAST_PIXELS and bytes <= _MOST_BYTES * most):
            break
        # The axis whose blocks are longest beside the inputs that two of them share; rows are best left whole.
        length = lambda ax: found[ax].out / (problem.kernel[ax] * (_ROW if 0 < ax == problem.rank - 1 else 1))  # noqa: B023, E731
        ax = max(sorted(ways), key=length)
        counts[ax] += 1 + counts[ax] // 8
        found = axes(counts)
        if counts[ax] * problem.strides[ax] >= problem.out_sizes[ax] or (counts[ax] > 2 and found[ax].count == 1):
            ways.remove(ax)
    bytes, _ = size_of(found)
    images = max(1, min(problem.batch, most // max(bytes, 1)))
    image_blocks = -(-problem.batch // images) if problem.batch else 0
    inner = math.prod(axis.count for axis in found)
    if 1 < image_blocks * inner < _FEW and image_blocks * inner % _EVEN:
        if inner == 1:
            image_blocks = min(problem.batch, -(-image_blocks // _EVEN) * _EVEN)
        else:
            ax = max(range(problem.rank), key=lambda ax: found[ax].count)
            others = image_blocks * inner // found[ax].count
            step = _EVEN // math.gcd(_EVEN, others)
            counts[ax] = -(-found[ax].count // step) * step
            found = axes(counts)
    images = -(-problem.batch // image_blocks) if image_blocks else 0
    sub = problem._replace(
        batch=images, in_sizes=tuple(axis.size for axis in found), begin=tuple(axis.begin for axis in found),
        out_sizes=tuple(axis.out for axis in found), planar=False,
    )  # fmt: skip
    return Blocks(images, -(-problem.batch // images) if images else 0, found, sub)
