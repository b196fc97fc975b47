"""The expected result of a case: the definition in float64, by the rules of each dialect. It shares no code with convt."""

import itertools
import math

import cases
import ml_dtypes
import numpy as np


class Invalid(Exception):
    """The rules of the dialect forbid the call."""


def windows(problem, dialect):
    """Return (begin, out) of each axis in the full scatter, or raise `Invalid`."""
    p, found = problem, []
    want = p.get("output_shape") or [None] * len(p["kernel"])
    if dialect == "onnx" and p["auto_pad"] and any(p["pads_begin"] + p["pads_end"]):
        raise Invalid("pads beside auto_pad")
    names = ("in_sizes", "kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding")
    for *axis, shape in zip(*(p[name] for name in names), want, strict=True):
        least = (0, 1, 1, 1, 0, 0, 0)
        if any(not low <= n < 2**63 for n, low in zip((*axis, shape or 0), (*least, 0), strict=True)):
            raise Invalid("out of range")
        begin, out = _RULES[dialect](*axis, p["auto_pad"], shape)
        if out < 0:
            raise Invalid("an output size below 0")
        found.append((begin, out))
    return found


def _core(n, k, s, d, begin, end, op, auto_pad, want):
    first, out = cases.window_of(n, k, s, d, begin, end, auto_pad, op, want)
    if auto_pad and want is not None and want != out:
        raise Invalid("output_shape beside auto_pad")
    return first, out


def _onnx(n, k, s, d, begin, end, op, auto_pad, want):
    full = s * (n - 1) + (k - 1) * d + 1 + op
    if op >= max(s, d) or (want is not None and want >= full + s):
        raise Invalid("past the scatter")
    if want is not None:
        total = max(full - want, 0)
        return (total // 2 if auto_pad == "same_upper" else -(-total // 2)), want
    if auto_pad in ("same_upper", "same_lower"):
        total = max(full - n * s, 0)
        return (total // 2 if auto_pad == "same_upper" else -(-total // 2)), n * s
    return (0, full) if auto_pad else (begin, full - begin - end)


def _openvino(n, k, s, d, begin, end, op, auto_pad, want):
    full = s * (n - 1) + (k - 1) * d + 1 + op
    if want is not None:
        total = max(full - want, 0)
        return (-(-total // 2) if auto_pad == "same_upper" else total // 2), want
    return (0, full) if auto_pad else (begin, full - begin - end)


_RULES = {"core": _core, "onnx": _onnx, "openvino": _openvino}


def nxc(a, data_format):
    return a if data_format == "NXC" else np.moveaxis(a, 1, -1)


def sums(problem, found, data, filter, bias, add=None):
    """Return the window of the scatter plus bias and ``add``, the same sums of magnitudes, and the error of rounding to a
    16-bit dtype before the addition, in float64 and NXC."""
    p, groups = problem, problem["groups"]
    x = nxc(data, p["data_format"]).astype(np.float64)
    x = x.reshape(*x.shape[:-1], groups, p["ci"])
    w = cases.filter_out(p["filter_format"], filter.astype(np.float64), groups)
    b = np.zeros(groups * p["co"]) if bias is None else bias.astype(np.float64)
    y = np.zeros((p["batch"], *(out for _, out in found), groups, p["co"]))
    sizes = np.zeros_like(y)
    axes = zip(p["in_sizes"], p["kernel"], p["strides"], p["dilations"], found, strict=True)
    products = [[_products(n, t, s, d, *window) for t in range(k)] for n, k, s, d, window in axes]
    batch = np.arange(p["batch"])
    with np.errstate(invalid="ignore", over="ignore"):
        for tap in itertools.product(*map(range, p["kernel"])):
            pairs = [axis[t] for axis, t in zip(products, tap, strict=True)]
            if all(len(inputs) for inputs, _ in pairs) and x.size and y.size:
                read, written = (np.ix_(batch, *side) for side in zip(*pairs, strict=True))
                y[written] += np.einsum("...gi,gio->...go", x[read], w[(..., *tap)])
                sizes[written] += np.einsum("...gi,gio->...go", np.abs(x[read]), np.abs(w[(..., *tap)]))
        shape = (*y.shape[:-2], groups * p["co"])
        y, sizes = y.reshape(shape) + b, sizes.reshape(shape) + np.abs(b)
        if add is None:
            return y, sizes, 0
        rounding = 0
        if add.itemsize == 2:
            y = y.astype(add.dtype).astype(np.float64)
            rounding = np.where(np.isfinite(y), np.abs(y), 0) * float(ml_dtypes.finfo(add.dtype).eps)
        a = nxc(add, p["data_format"]).astype(np.float64)
        return y + a, sizes + np.abs(a), rounding


def _products(n, tap, s, d, begin, out):
    """Return the inputs whose product with a tap lands in the window, and the outputs. Python integers, because sizes may be
    near 2**63."""
    pairs = [(i, i * s + tap * d - begin) for i in range(n)]
    pairs = [(i, o) for i, o in pairs if 0 <= o < out]
    return [i for i, _ in pairs], [o for _, o in pairs]


# Relative error of a product, by the unit that multiplies. The error of sums is counted in units of the accumulators' rounding.
_PRODUCT = {"amx_two": 2.0**-10, "amx_one": 2.0**-7, "dots": 2.0**-7}
# Algorithms that are not exact on small integers.
INEXACT = ("winograd:six:vectors", "winograd:amx_two")


def assert_right(call, algorithms, got, y, sizes, rounding=0):
    """Assert that ``got``, in NXC, is the result for these `sums`, computed by algorithms with these keys."""
    p = call["problem"]
    dtype, activation = got.dtype, p["activation"]
    activation = tuple(activation) if isinstance(activation, list) else activation
    want = cases.activate(activation, y)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(dtype).astype(np.float64)
    got = got.astype(np.float64)
    exact = call["values"] in ("integers", "special", "denormal") and activation in cases.EXACT_ACTIVATIONS
    if exact and not set(algorithms) & set(INEXACT) and not (call["values"] == "denormal" and _use_winograd(algorithms)):
        np.testing.assert_array_equal(got, rounded)
        return
    wide = dtype == np.float64
    unit = 2.0**-53 if wide else 2.0**-24
    terms = p["ci"] * math.prod(p["kernel"]) + 8
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.where(np.isfinite(sizes), sizes, 0)
        factor = max([terms * unit * 4] + [_PRODUCT.get(key.rpartition(":")[2], 0) for key in algorithms])
        error = factor * size + rounding
        if _use_winograd(algorithms) and size.size:
            error = error + 64 * factor * size.max() * (200 if "winograd:six:vectors" in algorithms else 1)
        slope = max(1.5, *map(abs, cases.slopes(activation)))
        error = error * slope + (
            0 if activation in cases.EXACT_ACTIVATIONS else (1e-14 if wide else 1e-6) * np.maximum(1, np.abs(want))
        )
        info = ml_dtypes.finfo(dtype)
        error = error + np.abs(want) * float(info.eps) * 0.51 + 4 * float(info.smallest_subnormal)
        if _use_winograd(algorithms):
            accumulator = np.finfo(np.float64 if wide else np.float32)
            large = "winograd:six:vectors" in algorithms
            error = error + _winograd_denormal_error(p, large) * float(accumulator.smallest_subnormal)
        comparable = ~np.isfinite(want) | (np.abs(want) + error < float(info.max))
        if call["values"] == "huge":  # partial sums may overflow although the sums do not
            largest = float(info.max if not wide and info.bits < 32 else np.finfo(dtype).max)
            comparable = np.isfinite(sizes) & (size < largest / 8)
        finite = comparable & np.isfinite(want)
        np.testing.assert_array_equal(np.where(comparable & ~finite, got, 0), np.where(comparable & ~finite, rounded, 0))
        bad = finite & ~(np.abs(got - want) <= error)
    if bad.any():
        at = tuple(int(n[0]) for n in np.nonzero(bad))
        raise AssertionError(
            f"{int(bad.sum())} of {bad.size} wrong, at {at}: got {got[at]!r}, wanted {want[at]!r} +- {error[at]:.3g}"
        )


def same_bits(a, b):
    """Check whether two arrays have the same bits. Different NaNs count as equal."""
    bits = [np.ascontiguousarray(each).view(f"u{each.itemsize}") for each in (a, b)]
    return bool(((bits[0] == bits[1]) | (np.isnan(a) & np.isnan(b))).all())


def _winograd_denormal_error(problem, large):
    """Return the largest error of Winograd on denormal numbers, in units of the accumulator's smallest number.

    Each in-channel of each tap window adds a product to each point, rounded by half a unit. The output transform then adds
    points exactly, with factors whose magnitudes sum to 3 per axis for F(2, 3) and F(3, 2), and to 34 for F(5, 2), the largest
    sum of all transforms.
    """
    p = problem
    phases = [s // math.gcd(s, d) for s, d in zip(p["strides"], p["dilations"], strict=True)]
    windows = math.prod(-(-k // (2 * n)) for k, n in zip(p["kernel"], phases, strict=True))  # tap windows of at least two taps
    return 0.5 * p["ci"] * windows * (34 if large else 3) ** len(phases)


def _use_winograd(algorithms):
    return any("winograd" in name for name in algorithms)
