"""The bind stage of rows: the plan of a schedule for arrays with given strides."""

from .loops import RowsPlan


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule. Strides are in bytes."""
    return RowsPlan(schedule, recipe.layout, in_strides, out_strides)
