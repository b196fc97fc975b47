"""The inputs of a node: their places in a list with "" or None for those that a node lacks."""

X, W, B, SCALE, SHIFT, MEAN, VARIANCE, ADDED, SLOPES = range(9)
PARAMETERS = range(W, ADDED)  # filter and bias; scale, shift, mean and variance of a batch norm, or scale and shift alone
COUNT = 9 + 2 * len(PARAMETERS)


def of_dequantization(n):
    """Return the places of the scale and the zero point with which parameter ``n`` is dequantized."""
    return 7 + 2 * n, 8 + 2 * n
