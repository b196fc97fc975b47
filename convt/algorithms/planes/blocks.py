"""The division of a problem into blocks of `planes`.

A block is a box of outputs with all channels, and a problem of its own in NXC order. `blocks` divides a problem for
schedule.py, given the bytes that a block should have. All blocks of a problem have the same sizes. A block reads zeros outside
the input, and its outputs outside the window are not stored.
"""

import functools
import math
from typing import Any, NamedTuple

from ..._base.problem import ITEMSIZE, Problem
from ..._run.workspace import Workspace

_LEAST_PIXELS = 256  # blocks of up to this many input pixels may have _MOST_BYTES times the bytes that a block should have
_MOST_BYTES = 4
_EVEN = 4  # fewer than _FEW blocks are a multiple of _EVEN, because this suits most numbers of threads
_FEW = 32
# The score of a division adds these penalties, as fractions of the time of all outputs:
_INPUT_PENALTY = 0.15  # transposing the inputs; blocks that share inputs transpose them again
_WEIGHT_PENALTY = 20  # reading the weights once per block, divided by the input pixels of a block
_PARTIAL_VECTOR_PENALTY = 0.1  # partly filled vectors of the last axis, if it is cut
_CUT_PENALTY = 0.02  # rows that are not contiguous, if the last axis is cut
_WIDE_CUT_PENALTY = 0.3  # _CUT_PENALTY of widened blocks, because moving contiguous widened blocks costs very little
_GOOD_SCORE = 0, 1.4  # (excess bytes, score) of a division that is hardly worth improving


class AxisCut(NamedTuple):
    """An axis in blocks of ``out`` outputs and ``size`` inputs. The inputs of block n start at ``first + n * step``."""

    count: int  # type: ignore[assignment]
    out: int
    size: int
    first: int
    step: int
    begin: int  # the begin of the window in each block


class Blocks(NamedTuple):
    """The division of a problem into blocks of equal sizes."""

    images: int  # the images of a block
    image_blocks: int  # the number of blocks of images
    axes: tuple  # the AxisCut of each axis
    problem: Problem  # the problem of a block, in NXC order

    @property
    def total(self):
        """The number of blocks."""
        return self.image_blocks * math.prod(axis.count for axis in self.axes)

    @property
    def framed(self):
        """True if blocks read zeros outside the input."""
        return any(axis.count > 1 for axis in self.axes)


class Schedule(NamedTuple):
    """The decisions about a problem that is computed in blocks. See stages.py for the fields of all schedules.

    A problem that needs no blocks has a schedule of the algorithm instead.
    """

    problem: Problem
    unit: str
    threads: int
    form: tuple  # the form of the weights of a block, preceded by WIDE if the filter is widened
    cut: Blocks
    inner: Any  # the schedule of a block
    parallel_blocks: bool  # each thread computes its own blocks; otherwise all threads share each block, one after the other
    stream: bool  # non-temporal stores write the outputs
    wide: bool  # a 16-bit problem in float32 blocks
    workspace: Workspace  # data and outputs of a block; the workspace of the inner plan follows


def cut_axis(size, kernel, stride, dilation, begin, out, count):
    """Return the `AxisCut` of an axis into at most ``count`` blocks; into one if the blocks would read as much as the whole
    axis."""
    whole = AxisCut(1, out, size, 0, 0, begin)
    each = -(-out // (count * stride)) * stride
    if each >= out:
        return whole
    first = -((dilation * (kernel - 1) - begin) // stride)  # the first input that the first block reads
    reads = max(1, (begin + each - 1) // stride - first + 1)
    if reads >= size:
        return whole
    return AxisCut(-(-out // each), each, reads, first, each // stride, begin - stride * first)


@functools.lru_cache(maxsize=256)
def blocks(problem, here, most, wide=False):
    """Return the `Blocks` of a problem, of about ``most`` bytes of data and output each.

    Blocks may be larger if they would have too few pixels otherwise. ``wide`` says that blocks are widened to float32.
    """
    p, item = problem, ITEMSIZE[problem.dtype] * problem.groups
    vl, in_bytes, out_bytes = here.info(p.dtype).vl, item * p.ci, item * p.co
    cut_penalty = _WIDE_CUT_PENALTY if wide else _CUT_PENALTY
    batch, rank, last, outs, sizes, strides = p.batch, p.rank, p.rank - 1, p.out_sizes, p.in_sizes, p.strides
    out_share, in_share = 1 / (math.prod(outs) or 1), _INPUT_PENALTY / (math.prod(sizes) or 1)
    units = [-(-out // s) for out, s in zip(outs, strides, strict=True)]  # a unit has `stride` outputs; cuts are between units
    # The inputs that a block reads in addition to one per unit, on each axis.
    halo = [
        -(-begin // s) + (d * (k - 1) - begin) // s
        for k, s, d, begin in zip(p.kernel, strides, p.dilations, p.begin, strict=True)
    ]

    def divide_axis(ax, count):
        """Return (blocks, outputs of a block, inputs of a block) of an axis in at most ``count`` blocks, as `cut_axis` divides
        it."""
        each = -(-units[ax] // count)
        reads, out = max(1, each + halo[ax]), each * strides[ax]
        return (1, outs[ax], sizes[ax]) if out >= outs[ax] or reads >= sizes[ax] else (-(-outs[ax] // out), out, reads)

    def score_blocks(count, block_outputs, block_inputs, last_cut):
        """Return (excess bytes, score) of ``count`` blocks of ``block_outputs`` outputs and ``block_inputs`` inputs.

        The lowest is the best. ``last_cut`` is the division of the last axis. Excess bytes are 0 if a block is small enough,
        else the bytes of a block.
        """
        bytes = in_bytes * block_inputs + out_bytes * block_outputs
        large = bytes > most and (block_inputs > _LEAST_PIXELS or bytes > _MOST_BYTES * most)
        images, even, total = 1, 1.0, count * batch
        if count == 1:
            images = max(1, min(most // max(bytes, 1), batch))
        elif _EVEN <= total < _FEW:  # blocks of whole images are made even at the end of `blocks`
            even = -(-total // _EVEN) * _EVEN / total
        score = even * count * block_outputs * out_share + count * block_inputs * in_share
        score += _WEIGHT_PENALTY / max(1, block_inputs * images)
        n, out, size = last_cut
        if n > 1 and last:
            score += _PARTIAL_VECTOR_PENALTY * (-(-size // vl) * vl / size + -(-out // vl) * vl / out - 2) + cut_penalty
        return (bytes if large else 0), score

    def best_cut(axes, ax):
        """Return ((excess bytes, score), axes) of the best division of axis ``ax``, with the other axes as in ``axes``.

        It has the fewest blocks that are small enough, or a few more for an even number.
        """
        inputs = outputs = others = 1
        for at, (n, out, size) in enumerate(axes):
            if at != ax:
                inputs, outputs, others = inputs * size, outputs * out, others * n
        fixed, each = in_bytes * inputs, in_bytes * inputs + out_bytes * outputs * strides[ax]  # bytes of an input; of a unit
        size = (most - fixed * halo[ax]) // max(each, 1)
        larger = (_MOST_BYTES * most - fixed * halo[ax]) // max(each, 1)
        size = max(size, min(larger, _LEAST_PIXELS // max(inputs, 1) - halo[ax]), 1)
        count = max(1, -(-units[ax] // size))
        counts, step = [count], _EVEN // math.gcd(_EVEN, others * batch)
        if count % step and others * batch * count < _FEW:
            counts.append(-(-count // step) * step)
        if units[ax] % size and size > 1:  # the last block is not full: try smaller blocks
            counts.append(-(-units[ax] // (size - 1)))
        found = []
        for count in counts:
            cut = divide_axis(ax, count)
            n, out, size = cut
            found.append((score_blocks(others * n, outputs * out, inputs * size, cut if ax == last else axes[last]), cut))
        score, cut = min(found)
        return score, [*axes[:ax], cut, *axes[ax + 1 :]]

    axes = [(1, out, size) for out, size in zip(outs, sizes, strict=True)]
    best = score_blocks(1, math.prod(outs), math.prod(sizes), axes[last]), axes
    cuts = []
    if best[0][0]:
        cuts = [ax for ax in range(rank) if units[ax] > 1 and (p.order is None or p.order.divisible[ax])]
    if cuts:
        best, main_axis = min([(best_cut(axes, ax), ax) for ax in cuts])
        for ax in cuts:
            count, step = 2, 1
            tries = 3 if best[0] > _GOOD_SCORE else 1  # the number of trials that may bring no improvement
            while ax != main_axis and count <= units[ax] and tries:
                axes = best[1]
                found = best_cut([*axes[:ax], divide_axis(ax, count), *axes[ax + 1 :]], main_axis)
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
