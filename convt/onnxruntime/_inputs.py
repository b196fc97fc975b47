"""The inputs of convt's node: their places in a list with "" or None for those that a node lacks.

ONNX Runtime gets only those that a node has, because it crashes when it infers shapes of a node that omits an input before
another.
"""

X, W, B, SCALE, SHIFT, MEAN, VARIANCE, ADDED, SLOPES = range(9)
PARAMETERS = range(W, ADDED)  # filter and bias; scale, shift, mean and variance of a batch norm, or scale and shift alone
COUNT = 9 + 2 * len(PARAMETERS)


def of_dequantization(n):
    """Return the places of the scale and the zero point with which parameter ``n`` is dequantized."""
    return 7 + 2 * n, 8 + 2 * n


def place(node, n, name):
    """Set the ``n``-th input of an onnx.NodeProto that lists all inputs."""
    node.input.extend([""] * (n + 1 - len(node.input)))
    node.input[n] = name


def given(names):
    """Return the names without the inputs that a node lacks."""
    return [name for name in names if name]


def placed(names, values):
    """Return a list of `COUNT` values, with None for the inputs that a node lacks. ``values`` are those of ``given(names)``."""
    values = iter(values)
    found = [next(values) if name else None for name in names]
    return found + [None] * (COUNT - len(found))
