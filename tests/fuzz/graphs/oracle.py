"""What rounding can change in the outputs of a model: `bounds` interprets it in float64, with an error beside each element.

An error bounds how far any way to compute the element in the dtypes of the model may be from the value. It is infinite where
nothing is sure, as where a sum nearly overflows. It shares no code with convt.
"""

import math
from typing import NamedTuple

import cases
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from convt._base.activation import ACTIVATIONS

_DTYPES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64"}
_CURVED = {"float16": 2.0**-10, "float32": 4e-6, "float64": 1e-13}  # error of an exponential or of an approximation of one
_STRAIGHT = ("Relu", "LeakyRelu", "HardSwish", "HardSigmoid", "ThresholdedRelu", "Neg", "Abs")  # without an exponential


class Bound(NamedTuple):
    """A tensor: values, errors and dtype. Integers and booleans have no errors, except those of a QuantizeLinear.

    ``size`` is None or the sum of the magnitudes of the terms of each value. If it overflows, the value may be anything,
    because what follows a sum, such as a scale, may be applied to its terms.
    """

    v: np.ndarray
    e: np.ndarray
    dtype: str
    size: np.ndarray | None = None

    def magnitude(self):
        return np.where(np.isfinite(self.v), np.abs(self.v), 0) if self.size is None else self.size


def bounds(model, feed, added=None, files=None):
    """Return {name of an output: (values, errors)} for a feed. ``added`` are values of `SessionOptions.add_initializer`, and
    ``files`` the files of external data."""
    with np.errstate(all="ignore"):
        environment = _tensors(model.graph, files or {}) | {name: _exact(each) for name, each in (added or {}).items()}
        environment |= {name: _exact(each) for name, each in feed.items()}
        functions = {(each.domain, each.name): each for each in model.functions}
        _Run(functions, files or {}).graph(model.graph.node, environment, {})
    return {each.name: (environment[each.name].v, environment[each.name].e) for each in model.graph.output}


def _exact(value):
    value = np.asarray(value)
    wide = value.astype(np.float64) if value.dtype.kind == "f" else value
    return Bound(wide, np.zeros(value.shape), value.dtype.name)


def _tensors(graph, files):
    return {each.name: _exact(array_of(each, files)) for each in graph.initializer}


def array_of(tensor, files):
    """Return the values of a tensor, which may be in one of these files."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    if not place:
        return numpy_helper.to_array(tensor)
    start = int(place.get("offset", 0))
    data = files[place["location"]][start : start + int(place["length"])]
    return np.frombuffer(data, helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tuple(tensor.dims))


def _done(v, e, dtype, terms=None):
    """Return the `Bound` of a result with this error before it is rounded to its dtype. ``terms`` is its `Bound.size`."""
    info = np.finfo(dtype)
    e = np.where(np.isnan(e), np.inf, e)
    finite = np.isfinite(v)
    e = e + np.where(finite, np.abs(v), 0) * float(info.eps) + float(info.smallest_subnormal)
    if terms is not None:
        e = np.where(terms >= float(info.max) * 0.99, np.inf, e)
    size, largest = np.where(finite, np.abs(v), 0), float(info.max)
    near = finite & (size + e >= largest * (1 - float(info.eps)))
    if dtype == "float16":  # ONNX Runtime computes some nodes in float32, and may keep what float16 cannot hold
        e = np.where(near, np.inf, e)
    elif dtype == "float32":
        over = near & (size - e > largest)
        v, e = np.where(over, np.copysign(np.inf, v), v), np.where(near & ~over, np.inf, e)
    return Bound(v, np.where(np.isfinite(v) | np.isinf(e), e, 0), dtype, terms)


def _product_error(a, ea, b, eb):
    """Return the error of a product. What may be an infinity times a number that may be 0 may be anything."""
    fa, fb = (np.where(np.isfinite(each), np.abs(each), 0) for each in (a, b))
    e = _times(fa, eb) + _times(fb, ea) + _times(ea, eb)
    unsure = (~np.isfinite(a) & (eb > 0) & (fb <= eb)) | (~np.isfinite(b) & (ea > 0) & (fa <= ea))
    return np.where(unsure | np.isinf(ea) | np.isinf(eb), np.inf, e)


def _times(a, b):
    return np.where((a == 0) | (b == 0), 0, a * b)


class _Run:
    def __init__(self, functions, files):
        self.functions, self.files = functions, files

    def graph(self, nodes, environment, given):
        """Compute nodes into ``environment``. ``given`` are the attributes of the function that they are in."""
        for node in nodes:
            attributes = {}
            for each in node.attribute:
                if not each.ref_attr_name:
                    attributes[each.name] = helper.get_attribute_value(each)
                elif each.ref_attr_name in given:
                    attributes[each.name] = given[each.ref_attr_name]
            inputs = [environment.get(name) for name in node.input]
            function = self.functions.get((node.domain, node.op_type))
            if function is not None:
                outputs = self._call(function, inputs, attributes)
            elif node.op_type in ("If", "Loop", "Scan"):
                outputs = getattr(self, f"_{node.op_type.lower()}")(inputs, environment, given, **attributes)
            elif node.op_type == "Constant":
                outputs = [_exact(array_of(attributes["value"], self.files))]
            elif node.op_type in _ACTIVATIONS:
                outputs = [_activation(node.op_type, inputs[0], attributes)]
            else:
                found = _OPERATORS[node.op_type](*inputs, **attributes)
                outputs = [found]
            environment.update(zip(node.output, outputs, strict=False))

    def _call(self, function, inputs, attributes):
        given = {each.name: helper.get_attribute_value(each) for each in function.attribute_proto} | attributes
        inside = dict(zip(function.input, inputs, strict=False))
        self.graph(function.node, inside, given)
        return [inside[name] for name in function.output]

    def _inside(self, graph, environment, given, arguments=()):
        inside = environment | _tensors(graph, self.files)
        inside |= dict(zip([each.name for each in graph.input], arguments, strict=True))
        self.graph(graph.node, inside, given)
        return [inside[each.name] for each in graph.output]

    def _if(self, inputs, environment, given, then_branch, else_branch):
        return self._inside(then_branch if inputs[0].v.item() else else_branch, environment, given)

    def _loop(self, inputs, environment, given, body):
        trips, truth, *carried = inputs
        for n in range(int(trips.v.item())):
            _, *carried = self._inside(body, environment, given, [_exact(np.int64(n)), truth, *carried])
        return carried

    def _scan(self, inputs, environment, given, body, num_scan_inputs):
        results = []
        for n in range(len(inputs[0].v)):
            results.append(self._inside(body, environment, given, [Bound(each.v[n], each.e[n], each.dtype) for each in inputs]))
        parts = zip(*results, strict=True)
        return [Bound(np.stack([p.v for p in each]), np.stack([p.e for p in each]), each[0].dtype) for each in parts]


# ---------------------------------------------------------------- operators


def windows(sizes, kernel, given):
    """Return (begin, size) of each axis of a ConvTranspose in its full scatter. ``given`` has the node's attributes."""
    rank, found = len(kernel), []
    axis = lambda name, plain: list(given.get(name) or [plain] * rank)  # noqa: E731
    strides, dilations, extra = axis("strides", 1), axis("dilations", 1), axis("output_padding", 0)
    pads, shape = list(given.get("pads") or [0] * 2 * rank), given.get("output_shape")
    auto = given.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    for n, size in enumerate(sizes):
        full = strides[n] * (size - 1) + (kernel[n] - 1) * dilations[n] + 1 + extra[n]
        want = shape[n] if shape else min(full, size * strides[n]) if auto.startswith("SAME") else None
        if want is None:
            found.append((0, full) if auto == "VALID" else (pads[n], full - pads[n] - pads[n + rank]))
        else:
            total = max(full - want, 0)
            found.append((total // 2 if auto == "SAME_UPPER" else -(-total // 2), want))
    return found


def _conv(x, w, b=None, **given):
    group, rank, kernel = given.get("group", 1), x.v.ndim - 2, w.v.shape[2:]
    strides, dilations = (list(given.get(name) or [1] * rank) for name in ("strides", "dilations"))
    begins, outs = zip(*windows(x.v.shape[2:], kernel, given), strict=True)
    scatter = lambda a, c: _scatter(a, c, group, strides, dilations, begins, outs)  # noqa: E731
    fx, fw = (np.where(np.isfinite(each.v), np.abs(each.v), 0) for each in (x, w))
    v, size = scatter(x.v, w.v), scatter(fx, fw)
    unsure_x, unsure_w = x.e > fx * (x.e > 0), w.e > fw * (w.e > 0)
    e = np.zeros_like(size)
    if x.e.any() or w.e.any():
        top = 1e300  # an infinite error times 0 is not 0, because the element may be an infinity
        ex, ew = np.minimum(x.e, top), np.minimum(w.e, top)
        e = scatter(ex, fw + ew) + scatter(fx, ew)
        e = np.where(scatter((x.e > top) * 1.0, np.ones_like(fw)) + scatter(np.ones_like(fx), (w.e > top) * 1.0) > 0, np.inf, e)
        e = np.where(scatter(~np.isfinite(x.v) * 1.0, unsure_w * 1.0) > 0, np.inf, e)
        e = np.where(scatter(unsure_x * 1.0, ~np.isfinite(w.v) * 1.0) > 0, np.inf, e)
    if b is not None:
        bias = b.v.reshape(-1, *[1] * rank)
        v, size = v + bias, size + np.where(np.isfinite(bias), np.abs(bias), 0)
        e = e + b.e.reshape(bias.shape)
    unit = "float64" if x.dtype == "float64" else "float32"
    terms = w.v.shape[0] // group * math.prod(kernel) + 8
    largest = max(fx.max(initial=1), fw.max(initial=1))  # what a transformed subnormal, which is rounded, is multiplied by
    e = e + 2 * terms * float(np.finfo(unit).eps) * size + 8 * terms * largest * float(np.finfo(unit).smallest_subnormal)
    e = e + 64 * float(np.finfo(unit).eps) * size.max(axis=tuple(range(2, rank + 2)), keepdims=True, initial=0)  # of Winograd
    return _done(v, e, x.dtype, size)


def _scatter(x, w, group, strides, dilations, begins, outs):
    """Return the window of the scatter of x (N, C, ...) with w (C, M / group, ...)."""
    (n, channels, *sizes), (_, out, *kernel) = x.shape, w.shape
    x = np.moveaxis(x.reshape(n, group, channels // group, *sizes), (1, 2), (-2, -1)).astype(np.float64)
    w = w.reshape(group, channels // group, out, *kernel).astype(np.float64)
    full = cases.scatter(x, w, tuple(strides), tuple(dilations))
    return np.moveaxis(cases.window(full, begins, outs).reshape(n, *outs, group * out), -1, 1)


def _norm(x, scale, shift, mean, variance, epsilon=1e-5, **_):
    shape = (1, -1, *[1] * (x.v.ndim - 2))
    part = lambda a: Bound(a.v.reshape(shape), a.e.reshape(shape), a.dtype)  # noqa: E731
    scale, shift, mean, variance = map(part, (scale, shift, mean, variance))
    epsilon = float(np.float32(epsilon))
    total = variance.v + epsilon
    deviation = 1 / np.sqrt(total)
    relative = np.where(variance.e > 0, variance.e / np.abs(total), 0)
    factor = _mul(Bound(deviation, np.where(np.isfinite(deviation), relative * deviation, 0), x.dtype), scale)
    return _add(_mul(x, factor), _add(shift, _negated(_mul(mean, factor))), more=_mul(mean, factor))


def _negated(a):
    return Bound(-a.v, a.e, a.dtype)


def _add(a, b, more=None):
    """Return a sum. ``more`` is a term that a part of it may contain."""
    e = a.e + b.e
    for each in (a, b, *([] if more is None else [more])):
        e = e + np.where(np.isfinite(each.v), np.abs(each.v), 0) * 2 * float(np.finfo(a.dtype).eps)
    return _done(a.v + b.v, e, a.dtype, a.magnitude() + b.magnitude())


def _mul(a, b):
    sizes = _times(a.magnitude(), b.magnitude()) if a.size is not None or b.size is not None else None
    return _done(a.v * b.v, _product_error(a.v, a.e, b.v, b.e), a.dtype, sizes)


def _prelu(x, slope):
    scaled = _mul(x, slope)
    v = np.where(x.v >= 0, x.v, scaled.v)
    v = np.where(np.isnan(x.v), np.nan, v)
    unsure = np.abs(x.v) <= x.e
    e = np.where(unsure, np.maximum(x.e, scaled.e) + np.abs(np.where(np.isfinite(scaled.v), scaled.v, 0)) + x.e, 0)
    e = np.where(unsure, e, np.where(x.v >= 0, x.e + 0 * slope.v, scaled.e))
    return _done(v, e, x.dtype)


def _instance(x, scale, shift, epsilon=1e-5):
    axes, shape = tuple(range(2, x.v.ndim)), (1, -1, *[1] * (x.v.ndim - 2))
    mean, largest = x.v.mean(axes, keepdims=True), np.abs(x.v).max(axes, keepdims=True)
    deviation = np.sqrt(x.v.var(axes, keepdims=True) + float(np.float32(epsilon)))
    error = x.e.max(axes, keepdims=True) + largest * 64 * float(np.finfo(x.dtype).eps)
    y = (x.v - mean) / deviation
    unsure = ~(error * 100 < deviation) | ~np.isfinite(largest) | (largest > 1e15)
    e = np.where(unsure, np.inf, error / deviation * (2 + 4 * np.abs(y)))
    scale, shift = (a.v.reshape(shape) for a in (scale, shift))
    return _done(y * scale + shift, e * np.abs(scale) + np.abs(shift) * 4 * float(np.finfo(x.dtype).eps), x.dtype)


def _quantize(x, scale, zero):
    info = np.iinfo(zero.dtype)
    rounded = lambda v: np.clip(np.rint(v / scale.v) + zero.v, info.min, info.max)  # noqa: E731
    v = rounded(x.v)
    near = x.e + np.abs(x.v) * 2 * float(np.finfo(x.dtype).eps)
    e = np.maximum(np.abs(rounded(x.v + near) - v), np.abs(v - rounded(x.v - near)))
    return Bound(np.nan_to_num(v), np.where(np.isfinite(x.v) & np.isfinite(e), e, 255), zero.dtype)


def _dequantize(x, scale, zero=None, axis=1):
    shape = [1] * x.v.ndim
    if scale.v.ndim:
        shape[axis] = -1
    factor = scale.v.reshape(shape)
    start = 0 if zero is None else zero.v.astype(np.float64).reshape(shape)
    return _done((x.v.astype(np.float64) - start) * factor, x.e * np.abs(factor), scale.dtype)


def _cast(x, to):
    dtype = _DTYPES[to]
    exact = not x.e.any() and "float16" not in (dtype, x.dtype)
    if exact:
        return Bound(x.v.astype(dtype).astype(np.float64), x.e, dtype)
    return _done(x.v, x.e, dtype)


def _moved(change):
    """Return an operator that moves elements."""
    return lambda x, *others, **given: Bound(change(x.v, *others, **given), change(x.e, *others, **given), x.dtype)


def _concat(*parts, axis):
    return Bound(np.concatenate([p.v for p in parts], axis), np.concatenate([p.e for p in parts], axis), parts[0].dtype)


def _activation(kind, x, given):
    function, slope = _ACTIVATIONS[kind]
    given = _DEFAULTS.get(kind, {}) | given
    given = {name: float(np.float32(value)) if isinstance(value, float) else value for name, value in given.items()}
    f = lambda v: function(v, **given)  # noqa: E731
    v = f(x.v)
    slope = slope(**given) if callable(slope) else slope
    if slope is None:  # monotone
        e = np.maximum(np.abs(f(x.v + x.e) - v), np.abs(f(x.v - x.e) - v))
        e = np.where(x.e == 0, 0, e)
    else:
        e = x.e * slope
    if kind not in _STRAIGHT:
        size = np.where(np.isfinite(x.v), np.abs(x.v), 0)
        e = e + _CURVED[x.dtype] * np.maximum(1, size if kind == "Gelu" else np.where(np.isfinite(v), np.abs(v), 0))
        if kind == "Softplus" and x.dtype == "float64":  # where the exponential overflows, ONNX Runtime often gives infinity
            e = np.where(x.v > np.log(np.finfo(np.float64).max) - 1, np.inf, e)
        if kind == "Gelu" and x.dtype == "float64" and given.get("approximate") in (b"tanh", "tanh"):
            # ONNX Runtime's constants are float32.
            e = e + 2.0**-25 * size
    elif kind in ("HardSwish", "HardSigmoid"):
        size = np.where(np.isfinite(x.v), np.abs(x.v), 0)
        e = e + 4 * float(np.finfo(x.dtype).eps) * size
        if kind == "HardSwish" and x.dtype == "float64":  # ONNX Runtime multiplies by 1 / 6 as an attribute, a float32
            e = e + size * np.minimum(size, 3) * 2.0**-27
    return _done(v, np.where(np.isinf(x.e), np.inf, e), x.dtype)  # it may be NaN where x may be anything


def _gelu(v, approximate=b"none"):
    if approximate in (b"tanh", "tanh"):
        return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    return 0.5 * v * (1 + np.vectorize(math.erf, otypes=[float])(v / math.sqrt(2)))


def _selu(v):
    alpha, gamma = 1.6732631921768188, 1.0507010221481323  # ONNX Runtime rounds both to float32, also in float64 models
    return gamma * np.where(v > 0, v, alpha * np.expm1(v))


def _fused(name):
    """Return the function of an activation that convt fuses and its largest slope, for an entry of `_ACTIVATIONS`."""

    def function(v, **given):
        return cases.activate((name, *given.values()) if given else name, v)

    def slope(**given):
        low, high = cases.slopes((name, *given.values()) if given else name)
        return None if low >= 0 else 1.01 * max(-low, high)

    return function, slope


_FUSED = {row.onnx[0]: name for name, row in ACTIVATIONS.items() if row.onnx}
_DEFAULTS = {kind: dict(ACTIVATIONS[name].onnx[1:]) for kind, name in _FUSED.items()}  # those that float32 rounds
_DEFAULTS["HardSigmoid"] = {"alpha": 0.2, "beta": 0.5}
# Operator -> function, and the largest slope, or None for a monotone function, or a function that returns it for attributes.
_ACTIVATIONS = {kind: _fused(name) for kind, name in _FUSED.items()} | {
    "Gelu": (_gelu, 1.2), "Selu": (_selu, 1.76), "HardSigmoid": (lambda v, alpha, beta: np.clip(alpha * v + beta, 0, 1), None),
    "Softplus": (lambda v: np.logaddexp(v, 0), None), "Neg": (np.negative, 1), "Abs": (np.abs, 1),
    "ThresholdedRelu": (lambda v, alpha=1.0: np.where(v > alpha, v, 0), None),
}  # fmt: skip

_OPERATORS = {
    "ConvTranspose": _conv, "BatchNormalization": _norm, "InstanceNormalization": _instance, "PRelu": _prelu,
    "Add": _add, "Mul": _mul, "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "Cast": _cast, "Concat": _concat,
    "Identity": lambda x: x, "Unsqueeze": _moved(lambda a, axes=None, **_: a[None]),
    "Gather": _moved(lambda a, at, axis: np.take(a, int(at.v), axis)),
}  # fmt: skip
