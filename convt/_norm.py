"""Folding of an inference batch norm into the weights and bias of the transposed convolution before it."""

import numpy as np


def fold(filter, bias, scale, shift, mean, variance, epsilon, groups):
    """Return ``(filter, bias)`` of the filter's dtype that also apply the batch norm.

    ``filter`` has shape (C, M / groups, *kernel), all other arrays have shape (M,). All but ``filter`` may be None: a scale
    alone has neither mean nor variance. The factors are computed in float64.
    """
    factor = np.ones(groups * filter.shape[1])
    if variance is not None:
        factor /= np.sqrt(variance.astype(np.float64) + epsilon)
    if scale is not None:
        factor *= scale
    centred = (0 if bias is None else bias.astype(np.float64)) - (0 if mean is None else mean)
    term = centred * factor + (0 if shift is None else shift)
    grouped = filter.reshape(groups, -1, *filter.shape[1:])
    each = factor.reshape(groups, 1, -1, *[1] * (filter.ndim - 2))
    return (grouped * each).astype(filter.dtype).reshape(filter.shape), term.astype(filter.dtype)
