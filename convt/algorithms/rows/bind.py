"""The packing and bind stages of rows: the recipe of the weights, and the plan of a schedule for arrays with given strides."""

from ..._model import machine
from .loops import RowsPlan, RowsRecipe
from .schedule import channel_blocks, phase_blocks


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that packs weights. There is one form."""
    most = machine.current().info(attributes.dtype).mr[2]
    k, s = attributes.kernel[-1], attributes.strides[-1]
    phases = phase_blocks(k, s, attributes.dilations[-1], most)
    return RowsRecipe(attributes.dtype, filter, bias, s, phases, channel_blocks(attributes.co, phases, most))


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule. Strides are in bytes."""
    return RowsPlan(schedule, recipe, in_strides, out_strides)
