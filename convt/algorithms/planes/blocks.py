"""The division of a problem into blocks of `planes`.

A block is a box of outputs with all channels, and a problem of its own in NXC order. `blocks` divides a problem for
schedule.py, given the bytes that a block should have. All blocks of a problem have the same sizes. A block reads zeros outside
the input, and its outputs outside the window are not stored.
"""

import math
from typing import Any, NamedTuple

from ..._base.problem import ITEMSIZE, Problem
from ..._run.workspace import Workspace
from .. import phases
from ..caches import remembered

# Blocks of up to this many input pixels, which read the weights, may have _MOST_BYTES times the bytes that a block should have.
_LEAST_PIXELS, _LEAST_PIXELS_OF_FEW_WEIGHTS = 256, 64
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


class _Search(NamedTuple):
    """The values that the search for a division reads.

    A division is a list of `AxisCut`, one for each axis. Its rank is (excess bytes, score), and the lowest is the best. Excess
    bytes are 0 if a block is small enough, else the bytes of a block.
    """

    axes: list  # the phases.Axis of each axis
    batch: int
    most: int  # bytes that a block should have
    least_pixels: int  # blocks of up to this many input pixels may have more bytes
    in_bytes: int  # bytes of a pixel of data, and of the output
    out_bytes: int
    out_share: float  # the score of computing one output, and of moving one input
    in_share: float
    vl: int
    cut_penalty: float
    split_penalty: float  # the score of a cache line of each row that two blocks write, times the pixels of a row

    def rank(self, count, outputs, inputs, last):
        """Return the rank of ``count`` blocks of these numbers of pixels. ``last`` is the AxisCut of the last axis."""
        bytes = self.in_bytes * inputs + self.out_bytes * outputs
        large = bytes > self.most and (inputs > self.least_pixels or bytes > _MOST_BYTES * self.most)
        images, even, total = 1, 1.0, count * self.batch
        if count == 1:
            images = max(1, min(self.most // max(bytes, 1), self.batch))
        elif _EVEN <= total < _FEW:  # blocks of whole images are made even at the end of `blocks`
            even = -(-total // _EVEN) * _EVEN / total
        score = even * count * outputs * self.out_share + count * inputs * self.in_share
        score += _WEIGHT_PENALTY / max(1, inputs * images)
        if last.count > 1 and len(self.axes) > 1:
            vl, size, out = self.vl, last.size, last.out
            score += _PARTIAL_VECTOR_PENALTY * (-(-size // vl) * vl / size + -(-out // vl) * vl / out - 2) + self.cut_penalty
            score += self.split_penalty / out
        return (bytes if large else 0), score

    def best_cut(self, cuts, ax):
        """Return (rank, division) of the best division of axis ``ax``, with the other axes as in ``cuts``.

        It has the fewest blocks that are small enough, or a few more for an even number.
        """
        inputs = outputs = others = 1
        for at, (count, out, size, *_) in enumerate(cuts):
            if at != ax:
                inputs, outputs, others = inputs * size, outputs * out, others * count
        axis, most = self.axes[ax], self.most
        units, halo, fixed = axis.units(), axis.halo(), self.in_bytes * inputs
        each = fixed + self.out_bytes * outputs * axis.s  # bytes of a unit
        larger = (_MOST_BYTES * most - fixed * halo) // max(each, 1)
        size = max((most - fixed * halo) // max(each, 1), min(larger, self.least_pixels // max(inputs, 1) - halo), 1)
        count = max(1, -(-units // size))
        counts, step = [count], _EVEN // math.gcd(_EVEN, others * self.batch)
        if count % step and others * self.batch * count < _FEW:
            counts.append(-(-count // step) * step)
        found, is_last = [], ax == len(cuts) - 1
        for count in counts:
            cut = axis.cut(count)
            n, out, size, *_ = cut
            found.append((self.rank(others * n, outputs * out, inputs * size, cut if is_last else cuts[-1]), cut))
        rank, cut = min(found)
        return rank, [*cuts[:ax], cut, *cuts[ax + 1 :]]

    def best(self, divisible):
        """Return the best division found. ``divisible`` are the axes that may be cut.

        One axis is cut so that blocks are small enough. For each other axis, a few numbers of blocks are tried.
        """
        cuts = [axis.cut(1) for axis in self.axes]
        best = self.rank(1, math.prod([cut.out for cut in cuts]), math.prod([cut.size for cut in cuts]), cuts[-1]), cuts
        if best[0][0] == 0 or not divisible:
            return cuts
        best, main_axis = min([(self.best_cut(cuts, ax), ax) for ax in divisible])
        for ax in divisible:
            count, step = 2, 1
            tries = 3 if best[0] > _GOOD_SCORE else 1  # the number of trials that may bring no improvement
            while ax != main_axis and count <= self.axes[ax].units() and tries:
                cuts = best[1]
                found = self.best_cut([*cuts[:ax], self.axes[ax].cut(count), *cuts[ax + 1 :]], main_axis)
                tries -= found >= best
                best, count, step = min(best, found), count + step, 2 * step
        return best[1]


@remembered(256)
def blocks(problem, here, most, wide=False, few_weights=False):
    """Return the `Blocks` of a problem, of about ``most`` bytes of data and output each.

    Blocks may be larger if they would have too few pixels otherwise. ``wide`` says that blocks are widened to float32,
    ``few_weights`` that reading the weights and computing takes less time than moving the outputs.
    """
    p, item, batch = problem, ITEMSIZE[problem.dtype] * problem.groups, problem.batch
    inputs, outputs = math.prod(p.in_sizes), math.prod(p.out_sizes)
    least_pixels, line = (_LEAST_PIXELS_OF_FEW_WEIGHTS, 64 / ITEMSIZE[p.dtype]) if few_weights else (_LEAST_PIXELS, 0.0)
    search = _Search(
        phases.axes_of(p), batch, most, least_pixels, item * p.ci, item * p.co, 1 / (outputs or 1),
        _INPUT_PENALTY / (inputs or 1), here.info(p.dtype).vl, _WIDE_CUT_PENALTY if wide else _CUT_PENALTY, line,
    )  # fmt: skip
    divisible = [ax for ax in range(p.rank) if p.order is None or p.order.divisible]
    axes = tuple(search.best([ax for ax in divisible if search.axes[ax].units() > 1]))
    images = 1
    if all([axis.count == 1 for axis in axes]):
        images = max(1, min(batch, most // max(search.in_bytes * inputs + search.out_bytes * outputs, 1)))
    image_blocks = -(-batch // images)
    if 1 < image_blocks < _FEW and images > 1:
        image_blocks = min(batch, -(-image_blocks // _EVEN) * _EVEN)
        images = -(-batch // image_blocks)
    block = p._replace(
        batch=images, in_sizes=tuple([axis.size for axis in axes]), begin=tuple([axis.begin for axis in axes]),
        out_sizes=tuple([axis.out for axis in axes]), planar=False,
    )  # fmt: skip
    return Blocks(images, -(-batch // images), axes, block)
