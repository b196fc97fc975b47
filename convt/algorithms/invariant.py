"""invariant: sums in an order that depends on the operator alone, not on sizes, positions or batch.

The bits of an output are then the same wherever the output is computed: in a part of the data, in a chunk of a stream, in
another batch. "auto" never takes it, because another algorithm is as fast or faster for a given size. It is one of two:

* `direct` with `order.invariant_order`; it accepts every operator;
* `depthwise` for operators on which it is expected to be faster, and whose outputs it sums in one order (`_in_one_order`).
"""

from functools import partial

from . import depthwise, order, phases, planes
from .caches import remembered

_DEPTHWISE = planes.by_blocks(depthwise.STAGES, depthwise.STAGES.widens)
_MARK = ("depthwise",)  # the beginning of the forms of `depthwise`
_BLOCK_TERMS = 4  # terms of a block of two phases (DW_BLOCK_TERMS - 1)
_PIXELS = 1 << 9  # the two algorithms are compared for about this many pixels
_OUTPUTS = 1 << 14  # and for about this many outputs at most, because counting walks over all phases of the window


def _schedule(problem, here, unit, threads, finite=True):
    """Return the schedule of a problem: of `depthwise`, marked in its form, or of `direct` with an order."""
    if finite and _depthwise_is_faster(_operator(problem), here):
        found = _DEPTHWISE.schedule(problem, here, unit, threads)
        if found is not None:  # it does not accept an axis without inputs in 16-bit types, whose outputs have no sums
            return found._replace(form=_MARK + found.form)
    problem = problem._replace(order=order.invariant_order(problem, finite, here))
    return order.DIRECT.schedule(problem, here, unit, threads, finite)


def _operator(problem):
    """Return the problem of the same operator whose sizes and window do not depend on the data."""
    size, most = [max(2, round(count ** (1 / problem.rank))) for count in (_PIXELS, _OUTPUTS)]
    axes = phases.axes_of(problem)
    return problem._replace(
        batch=1, in_sizes=(size,) * problem.rank, begin=(0,) * problem.rank,
        out_sizes=tuple([min(size * axis.s, most) for axis in axes]), planar=False, activation=("none", 0.0, 0.0),
    )  # fmt: skip


@remembered(256)
def _depthwise_is_faster(problem, here):
    """Check whether `depthwise` sums in one order and is expected to be faster than `direct`."""
    if not _in_one_order(problem, here):
        return False
    cycles = [each.cost(each.schedule(problem, here, "vectors", 1), here) for each in (_DEPTHWISE, order.DIRECT)]
    return cycles[0] < cycles[1]


def _in_one_order(problem, here):
    """Check whether `depthwise` sums each output in an order that sizes and positions do not change.

    Its kernels add blocks of terms of the last axis; within a block, sources, which are in-channels and input rows; within a
    source, the terms of the block (kernels/body_blocks.h). A block begins at the first term inside the input, and is shorter
    where two phases are computed together. The order is fixed if there is one source, or if all terms are one block. The
    kernels of groups of several channels have other orders.
    """
    kind = depthwise.kinds.kind_of(problem, here)
    if kind is None or kind.groups_per_vector:
        return False
    if problem.rank == problem.ci == 1:
        return True
    return phases.most_taps(problem.kernel[-1], problem.strides[-1], problem.dilations[-1]) <= _BLOCK_TERMS


def _plain(schedule):
    """Return (stages, schedule without the mark)."""
    if schedule.form[:1] == _MARK:
        return _DEPTHWISE, schedule._replace(form=schedule.form[1:])
    return order.DIRECT, schedule


def _of_schedule(stage, schedule, *more):
    """Call a stage of the algorithm that made a schedule."""
    stages, schedule = _plain(schedule)
    return getattr(stages, stage)(schedule, *more)


def _recipe(attributes, filter, bias, form, unit):
    if form[:1] == _MARK:
        return _DEPTHWISE.recipe(attributes, filter, bias, form[1:], unit)
    return order.DIRECT.recipe(attributes, filter, bias, form, unit)


STAGES = order.DIRECT._replace(
    schedule=_schedule, cost=partial(_of_schedule, "cost"), recipe=_recipe, bind=partial(_of_schedule, "bind"), by_name=True,
    units=("vectors",),
    does="sums in an order that depends on the operator alone; for equal bits at all sizes",
)  # fmt: skip
