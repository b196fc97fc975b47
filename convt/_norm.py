"""A batch norm behind a transposed convolution, in inference: folded into its weights and bias."""

import numpy as np


def fold(filter, bias, scale, shift, mean, variance, epsilon, groups):
    """Filter and bias, of the filter's dtype, that do a batch norm as well.

    ``filter`` is (C, M / groups, *kernel), the others are (M,); ``bias``, ``scale`` and ``shift`` may be None.
    """
    factor = 1 / np.sqrt(variance.astype(np.float64) + epsilon)
    if scale is not None:
        factor *= scale
    term = ((0 if bias is None else bias.astype(np.float64)) - mean) * factor + (0 if shift is None else shift)
    grouped = filter.reshape(groups, -1, *filter.shape[1:])
    each = factor.reshape(groups, 1, -1, *[1] * (filter.ndim - 2))
    return (grouped * each).astype(filter.dtype).reshape(filter.shape), term.astype(filter.dtype)
