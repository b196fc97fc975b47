"""The bind stage of depthwise: the plan of a schedule for arrays with given strides."""

from ..._model import machine
from .loops import DepthwisePlan
from .schedule import adapted_to_strides


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule, adapted to strides in bytes (`adapted_to_strides`)."""
    info = machine.current().info(schedule.problem.dtype)
    return DepthwisePlan(adapted_to_strides(schedule, in_strides, out_strides, info), recipe.layout, in_strides, out_strides)
