"""Comparison of a result with the definition of the operator, in float64. Every element of the output is checked.

Computing the exact sum of each output would take minutes on large layers. Instead, the out channels of each group are added up
with random weights, in the result and in the filter (Freivalds' check of a matrix product). The expected sums are then a
transposed convolution with one out channel per group, and a wrong element anywhere in the result changes a sum.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from .problem import Problem

# The largest accepted error, in units of the root mean square of the output. It leaves room for rounded products, sums and
# results, and is far below the error of one misplaced tap.
TOLERANCE = {"f64": 1e-12, "f32": 5e-5, "f16": 1e-2, "bf16": 8e-2}
F32_TOLERANCE = {"high": 5e-3, "medium": 8e-2}  # for f32 at a lower precision

BLOCK_PIXELS = 1 << 14


def weights(problem: Problem) -> np.ndarray:
    """Return a distinct random factor, not near zero, for each out channel, shaped (groups, out channels / groups)."""
    layer, random = problem.layer, np.random.default_rng(0)
    shape = (layer.groups, layer.cout // layer.groups)
    return random.choice((-1.0, 1.0), shape) * random.uniform(0.5, 1.5, shape)


def expected(problem: Problem) -> np.ndarray:
    """Compute the weighted channel sums of the exact result, shaped (pixels, groups), by the scatter of the definition."""
    layer, weight = problem.layer, weights(problem)
    grouped = (layer.groups, layer.cin // layer.groups)
    data = problem.data().astype(np.float64).reshape(layer.batch, *layer.size, *grouped)
    taps = problem.filter().astype(np.float64).reshape(*layer.kernel, *grouped, -1)
    taps = np.einsum("...gio,go->...gi", taps, weight)
    full = np.zeros((layer.batch, *np.add(layer.natural, layer.output_padding), layer.groups))
    for tap in product(*map(range, layer.kernel)):
        axes = zip(tap, layer.dilations, layer.strides, layer.size, strict=True)
        hit = tuple(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in axes)
        full[(slice(None), *hit)] += np.einsum("...gi,gi->...g", data, taps[tap])
    axes = zip(layer.pads_begin, layer.output, strict=True)
    truth = full[(slice(None), *(slice(begin, begin + size) for begin, size in axes))].reshape(-1, layer.groups)
    if problem.with_bias:
        truth += (problem.bias().astype(np.float64).reshape(weight.shape) * weight).sum(-1)
    return truth


def error(problem: Problem, result: np.ndarray, truth: np.ndarray) -> float:
    """Return the largest error of an NXC result in units of the root mean square of the output; inf if the shape is wrong."""
    layer, weight = problem.layer, weights(problem)
    if result.shape != layer.result_shape:
        return np.inf
    pixels = result.reshape(-1, *weight.shape)
    worst = 0.0
    for start in range(0, len(pixels), BLOCK_PIXELS):
        block = slice(start, start + BLOCK_PIXELS)
        sums = np.einsum("pgo,go->pg", pixels[block].astype(np.float64), weight)
        gap = np.abs(sums - truth[block]).max()
        worst = max(worst, np.inf if np.isnan(gap) else gap)
    return float(worst / np.sqrt(np.mean(np.square(truth))))


def is_right(problem: Problem, size: float) -> bool:
    """Check whether an error returned by `error` is within the tolerance of the problem's dtype and precision."""
    return size <= F32_TOLERANCE.get(problem.precision, TOLERANCE[problem.dtype])
