"""What `by_blocks` decides of a problem whose channels are apart in memory or whose elements have 16 bits."""

import functools
import math

from ..._problem import ITEMSIZE
from .. import common, execution
from ..stages import SHARED
from ..workspace import book
from . import cost
from .blocks import Schedule, blocks

WIDE = "float32"  # in a form: weights are those of a filter widened to it
_SHARED_WORK = 0.8, 0.64  # of the time of threads that share a block is work: up to so many threads, and of more
_SHARERS = 8
_LARGE = 8  # Larger blocks have so many times the bytes of others,
_LARGE_SHARE = 1 / 4  # but at most this share of the last-level cache.
_GAIN = 0.12  # Larger blocks of planes are worth while from this gain on, because the estimate knows little of caches.


def always(problem, here):
    return True


def never(problem, here):
    return False


def schedule(stages, widens, strided, problem, here, unit, threads, finite=True):
    """The `Schedule` of a problem by blocks, which an algorithm of these ``stages`` computes, or the algorithm's own where
    channels lie side by side; None where it does not do it. ``widens`` says of a problem of a 16-bit type whether it is widened
    to float32; if not, the algorithm knows the type itself. One that is ``strided`` computes on any strides if weights are not
    finite, which must not meet the zeros that blocks have around the input."""
    there = math.prod(problem.in_shape) * math.prod(problem.out_shape) > 0
    wide = there and ITEMSIZE[problem.dtype] == 2 and widens(problem, here)
    return _schedule(stages, wide, strided, problem, here, unit, threads, finite, problem.planar and there)


def _schedule(stages, wide, strided, problem, here, unit, threads, finite, planar):
    alone = problem._replace(planar=False)
    if not planar and not wide:
        return stages.schedule(alone, here, unit, threads, finite)
    if not wide and stages.planar and cheaper_on_planes(stages, problem, here, unit, finite):
        return stages.schedule(problem, here, unit, threads, finite)
    return _in_blocks(stages, wide, strided, problem, here, unit, threads, finite)


@functools.lru_cache(maxsize=256)
def cheaper_on_planes(stages, problem, here, unit, finite):
    """Whether an algorithm that computes on planes does this problem in less time so than by blocks."""
    own, blocks = (
        stages.schedule(problem, here, unit, SHARED, finite),
        _in_blocks(stages, False, False, problem, here, unit, SHARED, finite),
    )
    return own is not None and (blocks is None or stages.cost(own, here) < cost.cost(stages, blocks, here))


def _in_blocks(stages, wide, strided, problem, here, unit, threads, finite):
    """The `Schedule` of a problem by blocks, or the algorithm's own for any strides, as of `schedule`."""
    alone = problem._replace(planar=False)
    block = alone._replace(dtype=WIDE) if wide else alone
    if math.isinf(stages.least(block, here, unit)):
        return None
    cut = chosen_blocks(stages, wide, problem, block, here, unit)
    if cut.framed and not finite:
        return stages.schedule(alone, here, unit, threads, finite) if strided else None
    return _of_blocks(stages, wide, problem, cut, here, unit, threads, finite)


@functools.lru_cache(maxsize=256)
def chosen_blocks(stages, wide, problem, block, here, unit):
    """The `Blocks` of a problem: they fit in the cache, or are larger and read the weights less often, whichever costs less."""
    small = blocks(block, here, here.limits.wide_block if wide else here.limits.planes_block, wide)
    if small.total == 1 or not (wide or common.filter_bytes(block, here.info(block.dtype, unit)) > here.limits.far):
        return small
    most = here.limits.planes_block
    large = blocks(block, here, most if wide else max(most, min(_LARGE * most, int(_LARGE_SHARE * here.l3))), wide)
    found = [_of_blocks(stages, wide, problem, cut, here, unit, SHARED, True) for cut in (small, large)]
    if large == small or None in found:
        return small
    cycles = [cost.cost(stages, each, here) for each in found]
    return large if (cycles[1], large.total) < ((1 if wide else 1 - _GAIN) * cycles[0], small.total) else small


def _of_blocks(stages, wide, problem, cut, here, unit, threads, finite):
    """The `Schedule` of these blocks."""
    # Each thread its own blocks, where that keeps more threads busy than all threads at one block after the other do.
    rounds = -(-cut.total // threads)
    apart = threads > 1 and cut.total >= _SHARED_WORK[threads > _SHARERS] * rounds * threads
    inner = stages.schedule(cut.problem, here, unit, 1 if apart else threads, finite)
    if inner is None:
        return None
    if not apart and threads > 1 and cut.total > 1 and inner.threads == 1:  # there is too little work in a block to share it
        apart, inner = True, stages.schedule(cut.problem, here, unit, 1, finite)
    return Schedule(
        problem=problem,
        unit=unit,
        threads=threads,
        form=(WIDE, *inner.form) if wide else inner.form,
        cut=cut,
        inner=inner,
        apart=apart,
        stream=execution.outgrows(problem, here.limits.non_temporal),
        wide=wide,
        workspace=space(cut),
    )


def space(cut):
    """The `Workspace` of a block, with room for lines that start elsewhere."""
    p = cut.problem
    return book(data=execution.data_bytes(p) + 64, outputs=execution.output_bytes(p) + 64)


def cheaper_widened(stages):
    """Whether an algorithm takes less time for a problem of a 16-bit type if its blocks are widened: of few channels `direct`
    reads float32 where it lies, but has to copy other types one by one. A part of a problem is computed as its order says."""

    @functools.lru_cache(maxsize=256)
    def widens(problem, here):
        if problem.order is not None:
            return False
        found = [_schedule(stages, wide, False, problem, here, "vectors", 2, True, problem.planar) for wide in (True, False)]
        return cost.cost(stages, found[0], here) < cost.cost(stages, found[1], here)

    return widens
