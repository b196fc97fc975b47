"""Byte strides of arrays whose axes are in NXC order and whose memory is in the order of a data format."""

import numpy as np

from .._base.problem import NUMPY_DTYPE


def contiguous(shape, item, data_format="NXC"):
    """Return the strides of an array that is contiguous in ``data_format``; ``item`` is the item size in bytes."""
    order = [*range(len(shape))] if data_format == "NXC" else [0, len(shape) - 1, *range(1, len(shape) - 1)]
    strides, step = [0] * len(shape), item
    for ax in reversed(order):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def normalised(strides, shape, item, data_format):
    """Normalise strides, so that equal layouts have equal strides.

    An axis of at most one element may have any stride; it gets the stride of a contiguous array.
    """
    if min(shape, default=2) > 1:
        return strides
    axes = zip(strides, contiguous(shape, item, data_format), shape, strict=True)
    return tuple(own if n > 1 else plain for own, plain, n in axes)


def empty(shape, dtype, data_format):
    """Return an uninitialised array that is contiguous in ``data_format``, as a view in NXC order."""
    if data_format == "NXC":
        return np.empty(shape, NUMPY_DTYPE[dtype])
    return np.moveaxis(np.empty((shape[0], shape[-1], *shape[1:-1]), NUMPY_DTYPE[dtype]), 1, -1)
