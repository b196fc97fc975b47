"""The packing and bind stages of depthwise: the recipe of a form, and the plan of a schedule for arrays with given strides."""

from ..._model import machine
from .loops import DepthwisePlan
from .schedule import adapted_to_strides
from .weights import LaneRecipe


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that packs weights in a form, ``(width, groups_per_vector, dots)`` of a `kinds.CellKind`."""
    width, groups_per_vector, dots = form
    cell = (attributes.strides[-1], width) if width else (1, 1)
    return LaneRecipe(attributes.dtype, filter, bias, cell, groups_per_vector, dots)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule, adapted to strides in bytes (`adapted_to_strides`)."""
    info = machine.current().info(schedule.problem.dtype)
    return DepthwisePlan(adapted_to_strides(schedule, in_strides, out_strides, info), recipe, in_strides, out_strides)
