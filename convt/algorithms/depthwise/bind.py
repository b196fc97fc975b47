"""The packing and bind stages of depthwise: the recipe of a form, and the plan of a schedule for arrays with given strides."""

from .. import execution, machine
from .loops import DepthwisePlan
from .schedule import permitted
from .weights import LaneRecipe


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that packs weights in a form, ``(width, each, dots)`` of a `kinds.Kind`."""
    width, each, dots = form
    return LaneRecipe(attributes.dtype, filter, bias, (attributes.strides[-1], width) if width else (1, 1), each, dots)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule. Strides are in bytes. Decisions that they do not permit are replaced (`permitted`)."""
    info = machine.current().info(schedule.problem.dtype)
    schedule = permitted(schedule, in_strides, out_strides, info)
    how = execution.Execution(schedule.hole, schedule.threads == 1, schedule.pinned, schedule.alternate, 0)
    return DepthwisePlan(schedule, recipe, in_strides, out_strides, how)
