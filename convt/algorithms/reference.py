"""The "reference" backend: slow and simple, in NumPy and float64, one strided addition per tap.

It shares only `Problem` and the activations with the native backend, so tests can compare the two.
"""

import itertools

import numpy as np

from .._base import activation


def run(problem, data, filter, bias, out):
    """Compute ``problem`` into ``out``.

    ``data`` (N, *in, C) and ``out`` (N, *out, C) are views in NXC axis order. ``filter`` is a view (groups, ci, co, *kernel),
    ``bias`` has shape (groups * co,) or is None.
    """
    p = problem
    x = data.astype(np.float64).reshape(p.batch, *p.in_sizes, p.groups, p.ci)
    w = filter.astype(np.float64)
    y = np.zeros((p.batch, *p.out_sizes, p.groups, p.co))
    for tap in itertools.product(*map(range, p.kernel)):
        source, target = [slice(None)], [slice(None)]
        for ax, t in enumerate(tap):
            s = p.strides[ax]
            first = t * p.dilations[ax] - p.begin[ax]  # output position that input 0 of this axis adds to
            lo = max(0, -(first // s))  # smallest input i with first + i * s >= 0
            hi = min(p.in_sizes[ax], (p.out_sizes[ax] - 1 - first) // s + 1)  # one past the last input inside the output
            if lo >= hi:
                break
            source.append(slice(lo, hi))
            target.append(slice(first + lo * s, first + (hi - 1) * s + 1, s))
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                y[tuple(target)] += np.einsum("...gi,gio->...go", x[tuple(source)], w[(..., *tap)])
    y = y.reshape(p.out_shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if bias is not None:
            y += bias.astype(np.float64)
        out[...] = activation.reference(*p.activation, y).astype(out.dtype)
