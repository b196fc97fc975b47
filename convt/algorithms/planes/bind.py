"""The packing and bind stages of planes, and `make`, which makes the plan of a call.

A schedule of blocks becomes a `PlanesPlan` with the inner plan of a block. A schedule of the algorithm alone becomes the plan
of the algorithm.
"""

from ..._base.problem import ITEMSIZE
from ..._model import machine
from ..._run import execution
from ..stages import cached_schedule
from .blocks import Schedule
from .loops import PlanesPlan, WideRecipe, empty_wide
from .schedule import WIDE


def with_layout(problem, in_strides, out_strides):
    """Return the problem with ``planar`` set if the channels of data or output are not contiguous at these byte strides.

    The stride of a single channel is ignored.
    """
    item = ITEMSIZE[problem.dtype]
    ins = problem.groups * problem.ci == 1 or in_strides[-1] == item
    outs = problem.groups * problem.co == 1 or out_strides[-1] == item
    return problem._replace(planar=not (ins and outs))


def recipe(stages, attributes, filter, bias, form, unit="vectors"):
    """Return the recipe that packs weights in a form. It widens the filter first if the form begins with WIDE."""
    if form[:1] != (WIDE,):
        return stages.recipe(attributes, filter, bias, form, unit)
    inner = stages.recipe(attributes._replace(dtype=WIDE), empty_wide(filter), empty_wide(bias), form[1:], unit)
    return WideRecipe(inner, attributes.dtype)


def bind(stages, schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule: of all blocks, or of the algorithm alone. Strides are in bytes."""
    in_strides, out_strides = _single_channel_strides(schedule.problem, in_strides, out_strides)
    if type(schedule) is not Schedule:
        return stages.bind(schedule, in_strides, out_strides, recipe)
    block = schedule.cut.problem
    ins, outs = execution.contiguous_in_strides(block), execution.contiguous_strides(block)
    inner = stages.bind(schedule.inner, ins, outs, recipe.inner if schedule.wide else recipe)
    return PlanesPlan(schedule, inner, in_strides, out_strides)


def _single_channel_strides(problem, in_strides, out_strides):
    """Return the strides, with the element size as the channel stride of arrays of a single channel."""
    item = ITEMSIZE[problem.dtype]
    ins = (*in_strides[:-1], item) if problem.groups * problem.ci == 1 else in_strides
    outs = (*out_strides[:-1], item) if problem.groups * problem.co == 1 else out_strides
    return ins, outs


def make(
    stages, problem, recipe, finite, in_strides, out_strides, threads, name, unit="vectors", fallback=None, permits=None
):
    """Return ``(plan, key of its weights)``, as `stages.make`, for data and output with any strides.

    ``fallback`` makes the plan if the algorithm has no schedule: for problems that it does not accept, for weights that are
    not finite, and for weights that the unit cannot represent. If ``permits`` rejects the strides for a schedule of the
    algorithm alone, the problem is computed in blocks, which are contiguous.
    """
    here, layout_problem = machine.current(), with_layout(problem, in_strides, out_strides)
    found = cached_schedule(stages, layout_problem, here, unit, threads)
    unblocked = found is not None and type(found) is not Schedule
    if unblocked and permits is not None and not permits(found, in_strides, out_strides):
        layout_problem = layout_problem._replace(planar=True)
        found = cached_schedule(stages, layout_problem, here, unit, threads)
    if found is not None:
        key = (name, *found.form)
        if finite(key):
            return stages.bind(found, in_strides, out_strides, recipe(key)), key
        found = cached_schedule(stages, layout_problem, here, unit, threads, False) if unit == "vectors" else None
    if found is None:
        return fallback(problem, recipe, finite, in_strides, out_strides, threads)
    key = (name, *found.form)
    return stages.bind(found, in_strides, out_strides, recipe(key)), key
