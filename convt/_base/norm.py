"""Folding of an inference batch norm into the weights and bias of the transposed convolution before it."""

import numpy as np


def fold(filter, bias, scale, shift, mean, variance, epsilon, groups):
    """Return ``(filter, bias)`` of the filter's dtype that also apply the batch norm, or (None, None) if results could change.

    ``filter`` has shape (C, M / groups, *kernel), all other arrays have shape (M,). All but ``filter`` may be None: a scale
    alone has neither mean nor variance. The factors are computed in float64.

    Results could change if the new weights or bias are not all finite, or if a product of a weight and a factor is below the
    normal range of the dtype: it lacks digits there that the output of the convolution times the factor has.
    """
    with np.errstate(all="ignore"):
        factor = np.ones(groups * filter.shape[1])
        if variance is not None:
            factor /= np.sqrt(variance.astype(np.float64) + epsilon)
        if scale is not None:
            factor *= scale
        centred = (0 if bias is None else bias.astype(np.float64)) - (0 if mean is None else mean)
        term = (centred * factor + (0 if shift is None else shift)).astype(filter.dtype)
        grouped = filter.reshape(groups, -1, *filter.shape[1:])
        each = factor.reshape(groups, 1, -1, *[1] * (filter.ndim - 2))
        folded = (grouped * each).astype(filter.dtype)
    small = (np.abs(folded) < np.finfo(filter.dtype).tiny) & (grouped != 0) & (each != 0)
    if small.any() or not (np.isfinite(folded).all() and np.isfinite(term).all()):
        return None, None
    return folded.reshape(filter.shape), term
