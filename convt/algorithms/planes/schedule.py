"""The schedule stage of planes: the decision for or against blocks, the blocks, and their threads.

`schedule` decides for problems whose channels are not contiguous (NCX) or whose elements have 16 bits. Blocks are computed
with the stages of another algorithm. bind.py makes the plan.
"""

import math

from ..._run import execution
from ..._run.workspace import book
from .. import common
from ..caches import remembered
from ..stages import SHARED, class_representative, schedule_of
from . import cost
from .blocks import Schedule, blocks

WIDE = "float32"  # the first entry of a form: weights are packed from a filter that was widened to this dtype
_SHARED_WORK = 0.8, 0.64  # the fraction of time that threads sharing a block compute: up to _SHARERS threads, and more threads
_SHARERS = 8
_LARGE = 8  # large blocks have this many times the bytes of ordinary blocks, ...
_LARGE_SHARE = 1 / 4  # ... but at most this share of the last-level cache
_SLOW = 4  # the last-level cache is slow if L2 reads more than this many times as many bytes per cycle
_GAIN = 0.12  # large NCX blocks are taken if they gain at least this much, because the estimate of cache effects is rough


def schedule(stages, widens, strided, problem, here, unit, threads, finite=True):
    """Return the schedule of a problem that an algorithm with ``stages`` computes, or None if it does not accept the problem.

    It is a `Schedule` of blocks, or the schedule of the algorithm alone if channels are contiguous. ``widens(problem, here)``
    says whether a 16-bit problem is computed in float32 blocks; otherwise the algorithm accepts the 16-bit dtype itself.
    ``strided`` says that the algorithm alone accepts any strides. It then computes problems whose weights are not finite,
    because these weights must not be multiplied by the zeros of framed blocks.
    """
    info, nonempty = here.info(problem.dtype), math.prod(problem.in_shape) * math.prod(problem.out_shape) > 0
    wide = nonempty and info.s_size < info.t_size and widens(problem, here)
    return _schedule(stages, wide, strided, problem, here, unit, threads, finite, problem.planar and nonempty)


def _schedule(stages, wide, strided, problem, here, unit, threads, finite, planar):
    """Return the schedule, given whether the problem is ``wide`` (widened) and ``planar`` (channels are not contiguous)."""
    contiguous = problem._replace(planar=False)
    if not planar and not wide:
        return stages.schedule(contiguous, here, unit, threads, finite)
    if not wide and stages.planar and cheaper_on_planes(stages, class_representative(problem), here, unit, finite):
        on_planes = stages.schedule(problem, here, unit, threads, finite)
        if on_planes is not None:
            return on_planes
    return _schedule_in_blocks(stages, wide, strided, problem, here, unit, threads, finite)


@remembered(256)
def cheaper_on_planes(stages, problem, here, unit, finite):
    """Check whether computing on planes directly is expected to be faster than computing in blocks."""
    on_planes, blocks = (
        stages.schedule(problem, here, unit, SHARED, finite),
        _schedule_in_blocks(stages, False, False, problem, here, unit, SHARED, finite),
    )
    return on_planes is not None and (blocks is None or stages.cost(on_planes, here) < cost.cost(stages, blocks, here))


def _schedule_in_blocks(stages, wide, strided, problem, here, unit, threads, finite):
    """Return the `Schedule` of a problem in blocks, or that of a ``strided`` algorithm alone if weights are not finite."""
    block = _contiguous(wide, problem)
    if math.isinf(stages.least(block, here, unit)):
        return None
    cut = chosen_blocks(stages, wide, problem, block, here, unit)
    if cut.framed and not finite:
        return stages.schedule(_contiguous(False, problem), here, unit, threads, finite) if strided else None
    return _schedule_of_cut(stages, wide, problem, cut, here, unit, threads, finite)


def chosen_blocks(stages, wide, problem, block, here, unit):
    """Return the `Blocks` of a problem: ordinary ones, or large ones, which read the weights less often, if they cost less.

    The costs are compared for the problem that represents a problem class (stages.class_representative).
    """
    small, large = _two_sizes(wide, problem, block, here, unit)
    representative = class_representative(problem)
    return large if small != large and _large_pays(stages, wide, representative, here, unit) else small


def _two_sizes(wide, problem, block, here, unit):
    """Return ordinary and large `Blocks` of a problem. They are equal where large ones cannot gain."""
    weights, most = common.filter_bytes(block, here.info(block.dtype, unit)), here.limits.planes_block
    # If the last-level cache is slow, L2 should hold a block, unless it then reads many weights more often.
    few_weights = weights <= here.l1 and _SLOW * here.constants.l3_read < here.constants.l2_read
    small = blocks(block, here, here.limits.wide_block if wide else most // 4 if few_weights else most, wide, few_weights)
    if small.total == 1 or not (wide or weights > here.limits.far):
        return small, small
    most = here.limits.planes_block
    most = most if wide else max(most, min(_LARGE * most, int(_LARGE_SHARE * here.l3)))
    large = blocks(block, here, most, wide)
    # `blocks` exceeds the limit for blocks of few pixels
    return small, small if block_workspace(large).bytes > 2 * most else large


@remembered(256)
def _large_pays(stages, wide, problem, here, unit):
    """Check whether large blocks of a problem cost less than ordinary ones."""
    small, large = _two_sizes(wide, problem, _contiguous(wide, problem), here, unit)
    found = [_schedule_of_cut(stages, wide, problem, cut, here, unit, SHARED, True) for cut in (small, large)]
    if None in found:
        return False
    cycles = [cost.cost(stages, each, here) for each in found]
    return (cycles[1], large.total) < ((1 if wide else 1 - _GAIN) * cycles[0], small.total)


def _contiguous(wide, problem):
    """Return the problem that blocks divide: with contiguous channels, and widened if it is ``wide``."""
    contiguous = problem._replace(planar=False)
    return contiguous._replace(dtype=WIDE) if wide else contiguous


def _schedule_of_cut(stages, wide, problem, cut, here, unit, threads, finite):
    """Return the `Schedule` of the blocks ``cut``, or None if the algorithm does not accept a block."""
    # Each thread computes blocks of its own if that keeps threads busier than sharing one block after the other.
    rounds = -(-cut.total // threads)
    parallel_blocks = threads > 1 and cut.total >= _SHARED_WORK[threads > _SHARERS] * rounds * threads
    inner = schedule_of(stages, cut.problem, here, unit, 1 if parallel_blocks else threads, finite)
    if inner is None:
        return None
    return Schedule(
        problem=problem,
        unit=unit,
        threads=threads,
        form=(WIDE, *inner.form) if wide else inner.form,
        cut=cut,
        inner=inner,
        parallel_blocks=parallel_blocks,
        stream=execution.outgrows(problem, here.limits.non_temporal),
        wide=wide,
        workspace=block_workspace(cut),
    )


def block_workspace(cut):
    """Return the `Workspace` of a block: its data and outputs, each with room for another 64 bytes."""
    p = cut.problem
    return book(data=execution.data_bytes(p) + 64, outputs=execution.output_bytes(p) + 64)


def cheaper_widened(stages):
    """Return ``widens`` of `schedule` that widens a 16-bit problem if that is expected to be faster.

    `direct` reads few channels in place in float32, but copies 16-bit elements one by one. A problem with an ``order`` is not
    widened.
    """

    @remembered(256)
    def widens(problem, here):
        """Check whether float32 blocks are expected to be faster than 16-bit loops."""
        if problem.order is not None:
            return False
        found = [_schedule(stages, wide, False, problem, here, "vectors", 2, True, problem.planar) for wide in (True, False)]
        return cost.cost(stages, found[0], here) < cost.cost(stages, found[1], here)

    return widens
