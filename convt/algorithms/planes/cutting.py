"""How a problem of planes is cut into blocks: boxes of outputs with all their channels, each a problem of its own.

All blocks of a problem are alike. What a block would read outside the input is zeros; what it computes outside the window
is not stored.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from ..._problem import ITEMSIZE, Problem

_COUNTS = (*range(1, 17), *(int(16 * 1.125**n) for n in range(1, 80)))  # of blocks along an axis, to choose from
_FEW_COUNTS = tuple(2**n for n in range(18))  # the same where axes are many
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


def _options(problem, ax):
    """The ways to cut an axis, which is not cut where its outputs are to be summed in several orders: blocks are all alike."""
    p = problem
    if p.order is not None and not p.order.free[ax]:
        return [AxisCut(1, p.out_sizes[ax], p.in_sizes[ax], 0, 0, p.begin[ax])]
    found = {}
    for count in _COUNTS if p.rank <= 3 else _FEW_COUNTS:
        if count > 1 and count * p.strides[ax] >= p.out_sizes[ax]:
            break
        cut = cut_axis(p.in_sizes[ax], p.kernel[ax], p.strides[ax], p.dilations[ax], p.begin[ax], p.out_sizes[ax], count)
        found.setdefault((cut.count, cut.out), cut)
    return list(found.values())


def _best(problem, most, vl, cut_rows):
    """Of all ways to cut an image, the best whose blocks have ``most`` bytes or less; ``cut_rows`` is what it costs to cut the
    last axis."""
    options = [_options(problem, ax) for ax in range(problem.rank)]

    def along(what):
        """[way of axis 0, way of axis 1, ...]: the product over axes."""
        return functools.reduce(np.multiply, np.ix_(*[[float(what(cut)) for cut in ways] for ways in options]))

    count, reads, makes = along(lambda cut: cut.count), along(lambda cut: cut.size), along(lambda cut: cut.out)
    bytes = ITEMSIZE[problem.dtype] * problem.groups * (problem.ci * reads + problem.co * makes)
    images = np.where(count == 1, np.clip(most // np.maximum(bytes, 1), 1, max(1, problem.batch)), 1)
    total = count * problem.batch  # (Where blocks are images, `blocks` evens them.)
    uneven = (count > 1) & (total >= _EVEN) & (total < _FEW)
    even = np.where(uneven, -(-total // _EVEN) * _EVEN / np.maximum(total, 1), 1)
    full = lambda n: -(-n // vl) * vl / n  # noqa: E731
    short = lambda cut: _SHORT * (full(cut.size) + full(cut.out) - 2) + cut_rows  # noqa: E731
    row = [short(cut) if cut.count > 1 and problem.rank > 1 else 0 for cut in options[-1]]
    score = (
        even * count * makes / max(1, math.prod(problem.out_sizes))
        + _READ * count * reads / max(1, math.prod(problem.in_sizes))
        + _PIXELS / np.maximum(1, reads * images)
        + np.array(row)
    )
    fits = (bytes <= most) | ((reads <= _LEAST_PIXELS) & (bytes <= _MOST_BYTES * most))
    at = np.unravel_index(np.argmin(np.where(fits, score, math.inf) if fits.any() else bytes), bytes.shape)
    return tuple(ways[n] for ways, n in zip(options, at, strict=True)), int(bytes[at])


@functools.lru_cache(maxsize=256)
def blocks(problem, here, most, wide=False):
    """The `Blocks` of a problem whose channels are planes, or whose elements were widened: of ``most`` bytes, if that is pixels
    enough."""
    found, bytes = _best(problem, most, here.info(problem.dtype)["vl"], _CUT_WIDE if wide else _CUT)
    images = max(1, min(problem.batch, most // max(bytes, 1))) if all(axis.count == 1 for axis in found) else 1
    image_blocks = -(-problem.batch // images) if problem.batch else 0
    if 1 < image_blocks < _FEW and images > 1:
        image_blocks = min(problem.batch, -(-image_blocks // _EVEN) * _EVEN)
        images = -(-problem.batch // image_blocks)
    sub = problem._replace(
        batch=images, in_sizes=tuple(axis.size for axis in found), begin=tuple(axis.begin for axis in found),
        out_sizes=tuple(axis.out for axis in found), planar=False,
    )  # fmt: skip
    return Blocks(images, -(-problem.batch // images) if images else 0, found, sub)
