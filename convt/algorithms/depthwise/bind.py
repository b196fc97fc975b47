"""The plan of a schedule of depthwise, for arrays of some strides."""

from .. import execution, machine
from .loops import DepthwisePlan
from .schedule import permitted
from .weights import LaneRecipe


def recipe(attributes, filter, bias, form, unit):
    """How weights are packed in a form."""
    width, each, dots = form
    return LaneRecipe(attributes.dtype, filter, bias, (attributes.strides[-1], width) if width else (1, 1), each, dots)


def bind(schedule, in_strides, out_strides, recipe):
    """The plan of a schedule."""
    info = machine.current().info(schedule.problem.dtype)
    schedule = permitted(schedule, in_strides, out_strides, info)
    how = execution.Execution(schedule.hole, schedule.threads == 1, schedule.pinned, schedule.alternate, 0)
    return DepthwisePlan(schedule, recipe, in_strides, out_strides, how)
