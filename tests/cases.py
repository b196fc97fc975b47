"""The inputs of the test suite: dtypes, layouts, filter formats, activations, instruction sets, memory layouts and problems.

`Case` is a problem with its options, and `cases` draws one. `Case.expected` computes the result in float64 from the definition:
it adds each input through each tap to the full scatter and takes the window that the padding rules select. It shares no code
with convt.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fuzz import memory as walls
from hypothesis import strategies as st

import convt
from convt import _core
from convt._base.activation import ACTIVATIONS
from convt._base.dtypes import COMPUTED
from convt._model import machine
from convt._plan import plans
from convt._plan.run import prepared
from convt.algorithms import name_of, onednn


def _tolerance(dtype):
    """Return the tolerance of results in units of the output's scale: of a sum in float64 or float32, and of its rounding."""
    return 1e-12 if dtype.itemsize == 8 else max(1e-5, 1.28 * float(ml_dtypes.finfo(dtype).eps))


DTYPES = {each.dtype.name: (each.dtype, _tolerance(each.dtype)) for each in COMPUTED}
ALL_DTYPES = [each.dtype for each in COMPUTED]
DATA_FORMATS = ("NXC", "NCX")
FILTER_FORMATS = ("XIO", "OIX", "IOX", "XOI", "GIOX")
BACKENDS = ("native", "reference")
ALGORITHMS = [name for name, each in plans.ALGORITHMS.items() if each.precision == "highest"]  # as exact as the sum of products
NCX_ONLY = sorted({name_of(key) for key, each in plans.ALGORITHMS.items() if (each.limit or "").startswith("NCX data")})
# Parameters of activations: first those of most tests, then ends of their ranges, both signs, and those of usual networks.
PARAMETERS = {
    "leaky_relu": [(0.25,), (0.01,), (0,), (1,), (3,), (-2,)], "elu": [(0.75,), (1,), (0,), (2.5,), (-0.5,)],
    "clip": [(-3, 5.5), (0, 6), (2, 2), (-4, -1), (-np.inf, 1), (-1, np.inf), (-np.inf, np.inf)],
}  # fmt: skip
_SAMPLES = {name: (name, *PARAMETERS[name][0]) if row.parameters else name for name, row in ACTIVATIONS.items()}
# Activations that are exact on the small integers of most cases, and those that are not.
_IN_REGISTERS = ACTIVATIONS["leaky_relu"].code  # the last one that is applied to registers
EXACT_ACTIVATIONS = (None, *(each for name, each in _SAMPLES.items() if 0 < ACTIVATIONS[name].code <= _IN_REGISTERS))
CURVED_ACTIVATIONS = tuple(each for name, each in _SAMPLES.items() if ACTIVATIONS[name].code > _IN_REGISTERS)
ISA_ROWS = {row["name"]: row["available"] for row in _core.isa_rows()}
ISAS = [name for name, available in ISA_ROWS.items() if available]  # in ascending order

# Tests of sources, tools and builds need a checkout. All others also run beside an installed wheel.
ROOT = Path(__file__).parents[1]
HAS_CHECKOUT = (ROOT / "setup.py").exists()
needs_checkout = pytest.mark.skipif(not HAS_CHECKOUT, reason="needs a checkout")

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_isa = pytest.mark.parametrize(
    "isa",
    [
        pytest.param(name, marks=pytest.mark.skipif(not available, reason=f"this CPU lacks {name}"))
        for name, available in ISA_ROWS.items()
    ],
)


@contextlib.contextmanager
def using_isa(name):
    """Use an instruction set for the plans and packings made inside."""
    before = _core.isa()
    _core.use_isa(name)
    try:
        yield
    finally:
        _core.use_isa(before)


MACHINES = Path(machine.__file__).parent / "machines"


def machine_caches(path):
    """Return ``{"l1": bytes, "l2": bytes, "l3": bytes}`` of a machine file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))["caches"]


@contextlib.contextmanager
def pretend(isa=None, **changes):
    """Make plans for a machine with another instruction set, caches or limits. Skip the test if the build lacks the set.

    ``family`` names a machine file, whose caches count as well as its constants.
    """
    if isa is not None and isa not in ISA_ROWS:
        pytest.skip(f"this build lacks {isa}")
    if "family" in changes:
        changes = machine_caches(MACHINES / f"{changes['family']}.json") | changes
    with machine.pretend(isa=isa, **changes):
        yield


# Machines whose caches hold nothing: outputs are written in order, or by non-temporal stores.
NON_TEMPORAL = dict.fromkeys(("non_temporal", "direct_non_temporal", "depthwise_non_temporal"), 0)
NO_CACHES = (
    {"l2": 0, "l3": 0, "depthwise_non_temporal": 80 << 20},
    {"l2": 0, "l3": 0, "depthwise_ordered": 0, "ordinary_stores": False, **NON_TEMPORAL},
)


def matrix_unit(dtype="float32"):
    """Check whether the instruction set in use multiplies a dtype on a matrix unit."""
    return _core.kernel_info(dtype, "amx") is not None


@contextlib.contextmanager
def without_matrix_unit():
    """Use the vectors of the current instruction set without its matrix unit, to test what "auto" chooses then."""
    with using_isa("avx512" if matrix_unit() else _core.isa()):
        yield


def onednn_has(dtype):
    """Check whether oneDNN has a deconvolution of a dtype for the instruction set that it uses."""
    needed = {"float16": "fp16|amx", "bfloat16": "avx512_core"}.get(dtype, "")
    row = next(each for each in COMPUTED if each.dtype.name == dtype)
    return bool(row.onednn and re.search(needed, onednn.library.opened()["isa"]))


# ---------------------------------------------------------------- the definition


def scatter(x, w, strides, dilations):
    """Return the full scatter of x (N, *in, G, ci) and w (G, ci, co, *kernel): (N, *natural, G, co), float64, read-only."""
    return _scatter(x.shape, x.tobytes(), w.shape, w.tobytes(), strides, dilations)


@functools.lru_cache(64)  # most cases are checked again: for other threads, layouts, algorithms, instruction sets
def _scatter(x_shape, x_bytes, w_shape, w_bytes, strides, dilations):
    x, w = np.ndarray(x_shape, np.float64, x_bytes), np.ndarray(w_shape, np.float64, w_bytes)
    in_sizes, kernel = x.shape[1:-2], w.shape[3:]
    natural = [s * (n - 1) + (k - 1) * d + 1 for n, k, s, d in zip(in_sizes, kernel, strides, dilations, strict=True)]
    y = np.zeros((x.shape[0], *(max(n, 0) for n in natural), w.shape[0], w.shape[2]))
    if x.size and w.size:
        # Channels without NaN and infinity take a matrix product, which may leave out products with zero.
        finite = np.isfinite(x).all(tuple(range(x.ndim - 1))) & np.isfinite(w).all((0, *range(2, w.ndim)))
        (rows, w), (others, other_w) = ((x[..., which], w[:, which]) for which in (finite, ~finite))
        rows = np.moveaxis(rows, -2, 0).reshape(w.shape[0], math.prod(x.shape[:-2]), w.shape[1])  # (G, pixels, channels)
        for tap in itertools.product(*map(range, kernel)):
            at = tuple(
                slice(t * d, t * d + s * (n - 1) + 1, s) for t, n, s, d in zip(tap, in_sizes, strides, dilations, strict=True)
            )
            products = np.einsum("...gi,gio->...go", others, other_w[(..., *tap)])
            products += np.moveaxis(rows @ w[(..., *tap)], 0, 1).reshape(products.shape)
            y[(slice(None), *at)] += products
    y.flags.writeable = False
    return y


def window(full, begin, out):
    """Return positions [begin, begin + out) of each spatial axis of the scatter, and zeros at positions outside the scatter."""
    y = np.zeros((full.shape[0], *out, *full.shape[-2:]))
    take, put = [slice(None)], [slice(None)]
    for have, first, want in zip(full.shape[1:-2], begin, out, strict=True):
        low, high = max(first, 0), max(min(first + want, have), max(first, 0))
        take.append(slice(low, high))
        put.append(slice(low - first, high - first))
    y[tuple(put)] = full[tuple(take)]
    return y


def window_of(size, k, s, d, begin, end, auto_pad, output_padding, output_shape):
    """Return (begin, out) of one axis by the rules of oneDNN Graph's ConvTranspose."""
    reach = s * (size - 1) + (k - 1) * d + 1 + output_padding
    if auto_pad in ("same_upper", "same_lower"):
        total = max((k - 1) * d + 1 - s, 0)
        return (total // 2 if auto_pad == "same_upper" else total - total // 2), reach - total
    if auto_pad == "valid":
        return 0, reach
    if output_shape is not None:
        total = max(reach - output_shape, 0)
        return total - total // 2, output_shape
    return begin, reach - begin - end


def codes_of_activations():
    """Return ``{name: code}`` of the kernels' activations, as the text of their headers defines them."""
    kernels = Path(convt.__file__).parent / "kernels"
    contract, curved = ((kernels / name).read_text() for name in ("convt_kernels.h", "activations.h"))
    names = re.findall(r"\w+", re.search(r"enum { CONVT_NONE, (.*?) }", contract)[1].replace("CONVT_", ""))
    names += re.findall(r"^    X\((\w+), ", curved, re.MULTILINE)
    return {name: code for code, name in enumerate(["NONE", *names])}


def activate(activation, y):
    name, *p = activation if isinstance(activation, tuple) else (activation,)
    erfc = np.vectorize(math.erfc, otypes=[float])
    with np.errstate(over="ignore", invalid="ignore"):
        if name is None:
            return y
        if name == "relu":
            return np.where(y < 0, 0, y)
        if name == "leaky_relu":
            return np.where(y < 0, p[0] * y, y)
        if name == "clip":
            return np.where(np.isnan(y), y, np.clip(y, *p))
        if name == "tanh":
            return np.tanh(y)
        if name == "elu":
            return np.where(y < 0, p[0] * np.expm1(y), y)
        if name == "hard_swish":
            return y * np.where(np.isnan(y), y, np.clip((y + 3) / 6, 0, 1))
        sigmoid = np.where(y < 0, np.exp(y) / (1 + np.exp(y)), 1 / (1 + np.exp(-y)))
        if name == "sigmoid":
            return np.where(y == np.inf, 1, sigmoid)
        gate = {"swish": sigmoid, "gelu": 0.5 * erfc(-y * math.sqrt(0.5))}[name]
        return np.where(y == np.inf, np.inf, y * gate)  # NaN at -inf


@functools.lru_cache(256)
def slopes(activation):
    """Return the least and the greatest slope of an activation, to about 1%."""
    x = np.linspace(-32, 32, 1 << 14)
    found = np.diff(activate(activation, x)) / np.diff(x)
    return tuple(np.round([found.min(), found.max()], 9))


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A problem with its layouts and options. The arrays are drawn from ``seed``. Of the spatial attributes, an integer stands
    for all axes, and what is left out is 1 or no pads."""

    dtype: str = "float32"
    batch: int = 1
    groups: int = 1
    ci: int = 1  # in-channels of one group
    co: int = 1
    in_sizes: tuple = (1,)
    kernel: tuple = 1
    strides: tuple = 1
    dilations: tuple = 1
    pads_begin: tuple = 0
    pads_end: tuple = 0
    output_padding: tuple = 0
    output_shape: tuple | None = None
    auto_pad: str | None = None
    bias: bool = True
    activation: object = None
    data_format: str = "NXC"
    filter_format: str = "XIO"
    seed: int = 0

    def __post_init__(self):
        for name in ("kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding"):
            if isinstance(value := getattr(self, name), int):
                object.__setattr__(self, name, (value,) * len(self.in_sizes))

    @property
    def numpy_dtype(self):
        return DTYPES[self.dtype][0]

    @property
    def keywords(self):
        names = ("strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape", "auto_pad")
        names += ("activation", "data_format", "filter_format", "groups")
        return {name: getattr(self, name) for name in names}

    @property
    def windows(self):
        """Return two tuples: begin and out of each axis."""
        axes = zip(
            self.in_sizes, self.kernel, self.strides, self.dilations, self.pads_begin, self.pads_end,
            (self.auto_pad,) * len(self.kernel), self.output_padding, self.output_shape or (None,) * len(self.kernel),
            strict=True,
        )  # fmt: skip
        return tuple(zip(*(window_of(*axis) for axis in axes), strict=True))

    @property
    def data_shape(self):
        return self.data_layout((self.batch, *self.in_sizes, self.groups * self.ci))

    @property
    def out_shape(self):
        return self.data_layout((self.batch, *self.windows[1], self.groups * self.co))

    def data_layout(self, nxc_shape):
        """Return a shape that is given in NXC order in this case's format."""
        return tuple(nxc_shape) if self.data_format == "NXC" else (nxc_shape[0], nxc_shape[-1], *nxc_shape[1:-1])

    def arrays(self, exact=True):
        """Return (data, filter, bias or None) in the case's layouts. With ``exact`` the values are small integers: their sums
        are exact in float32, so only the last rounding to the dtype can differ from the definition."""
        rng = np.random.default_rng(self.seed)

        def draw(shape, top):
            return rng.integers(-top, top + 1, shape) if exact else rng.uniform(-1, 1, shape)

        data = draw(self.data_shape, 4).astype(self.numpy_dtype)
        filter = draw((self.groups, self.ci, self.co, *self.kernel), 3).astype(self.numpy_dtype)
        bias = draw(self.groups * self.co, 8).astype(self.numpy_dtype) if self.bias else None
        return data, filter_in(self.filter_format, filter), bias

    def expected(self, data, filter, bias, magnitude=False):
        """Return the float64 result in the case's layout. With ``magnitude`` return the sum of the products' magnitudes
        instead."""
        x = np.asarray(data).astype(np.float64)
        x = x if self.data_format == "NXC" else np.moveaxis(x, 1, -1)
        x = x.reshape(self.batch, *self.in_sizes, self.groups, self.ci)
        w = filter_out(self.filter_format, np.asarray(filter).astype(np.float64), self.groups)
        b = np.zeros(self.groups * self.co) if bias is None else np.asarray(bias).astype(np.float64)
        if magnitude:
            x, w, b = np.abs(x), np.abs(w), np.abs(b)
        with np.errstate(invalid="ignore", over="ignore"):
            y = window(scatter(x, w, self.strides, self.dilations), *self.windows)
            y = y.reshape(*y.shape[:-2], self.groups * self.co) + b
            y = y if magnitude else activate(self.activation, y)
        return y if self.data_format == "NXC" else np.moveaxis(y, -1, 1)

    def check(self, got, data, filter, bias, exact=True):
        """Assert that ``got`` is the result, bit for bit where the only permitted error is one rounding."""
        want = self.expected(data, filter, bias)
        assert got.dtype == self.numpy_dtype and got.shape == want.shape == self.out_shape
        if exact and self.activation in EXACT_ACTIVATIONS:
            assert_same(got, want.astype(self.numpy_dtype))
        elif got.size:
            scale = max(np.abs(want).max(), 1.0)  # the sums are exact: only the activation has an error
            if not exact:
                scale = max(np.abs(want).max(), self.expected(data, filter, bias, magnitude=True).max(), 1e-30)
            error = np.abs(got.astype(np.float64) - want).max()
            assert error <= DTYPES[self.dtype][1] * scale, (error, scale)


def assert_same(got, want):
    """Assert equal shape, dtype and values. NaN equals NaN, which NumPy's own assertion does not support for bfloat16."""
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def filter_in(filter_format, w):
    """Convert (groups, ci, co, *kernel) to a contiguous array of the format."""
    if filter_format == "GIOX":
        return w
    w = w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])  # (channels, co, *kernel)
    w = {
        "IOX": w, "OIX": np.moveaxis(w, 1, 0), "XIO": np.moveaxis(w, (0, 1), (-2, -1)), "XOI": np.moveaxis(w, (0, 1), (-1, -2)),
    }[filter_format]  # fmt: skip
    return np.ascontiguousarray(w)


def filter_out(filter_format, f, groups):
    """Invert `filter_in`."""
    if filter_format == "GIOX":
        return f
    f = {
        "IOX": f, "OIX": np.moveaxis(f, 0, 1), "XIO": np.moveaxis(f, (-2, -1), (0, 1)), "XOI": np.moveaxis(f, (-1, -2), (0, 1)),
    }[filter_format]  # fmt: skip
    return f.reshape(groups, f.shape[0] // groups, *f.shape[1:])


# ---------------------------------------------------------------- memory layouts of arrays

_EDGE = 64  # elements around every array; their bytes are 0xff, NaN in every dtype, so a read outside the array shows


def _memory(elements, itemsize):
    """Return 0xff bytes for the elements and the edges around them, aligned to a cache line."""
    size = (elements + 2 * _EDGE) * itemsize
    raw = np.full(size + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def _within(a, shape, index, shift=0):
    """Return a view with the shape of ``a`` and its buffer. The view is ``index`` applied to ``shape`` elements in the
    buffer."""
    raw, item = _memory(math.prod(shape), a.dtype.itemsize), a.dtype.itemsize
    return raw[(_EDGE + shift) * item :][: math.prod(shape) * item].view(a.dtype).reshape(shape)[index], raw


def _bytes_off(a):
    raw = _memory(a.size, a.dtype.itemsize)
    return raw[_EDGE * a.dtype.itemsize + 1 :][: a.nbytes].view(a.dtype).reshape(a.shape), raw


def _field(a):
    raw = np.full(a.shape, 0, np.dtype([("before", "u1"), ("x", a.dtype), ("after", "u1", 2)]))
    raw.view(np.uint8)[...] = 0xFF
    return raw["x"], raw


def _at_wall(end, a):
    """Return a view whose end, or beginning, borders on a page without access rights: an access there ends the process."""
    guarded = walls.Guarded(a.shape, a.dtype, {"end": end})
    return guarded.view, guarded._bytes


# name -> (view with a's shape, the whole buffer)
MEMORY = {
    "contiguous": lambda a: _within(a, a.shape, ...),  # aligned to a cache line
    "an element off": lambda a: _within(a, a.shape, ..., shift=1),
    "fortran": lambda a: (lambda v: (v[0].transpose(), v[1]))(_within(a, a.shape[::-1], ...)),
    "reversed": lambda a: _within(a, a.shape, (slice(None, None, -1),) * a.ndim),
    "strided": lambda a: _within(a, tuple(2 * n for n in a.shape), (slice(1, None, 2),) * a.ndim),
    "cropped": lambda a: _within(a, tuple(n + 3 for n in a.shape), tuple(slice(1, n + 1) for n in a.shape)),
    "permuted": lambda a: (lambda v: (np.moveaxis(v[0], -1, 0), v[1]))(_within(a, (*a.shape[1:], a.shape[0]), ...)),
    "byte off": _bytes_off,
    "field": _field,
}
WALLS = ("begins at a wall", "ends at a wall") if sys.platform.startswith("linux") else ()
MEMORY |= {name: functools.partial(_at_wall, name == "ends at a wall") for name in WALLS}
INPUT_MEMORY = (*MEMORY, "read-only", "broadcast", "sliding")


def copy_in(memory, a):
    """Copy ``a`` to the given kind of memory. "broadcast" and "sliding" repeat elements, so they change the values."""
    if a is None:
        return None
    if memory == "broadcast":
        axis = int(np.argmax(a.shape))
        return np.broadcast_to(np.take(a, [0], axis) if a.shape[axis] else a, a.shape)
    if memory == "sliding":
        flat = np.resize(a, sum(a.shape) + 1)
        return np.lib.stride_tricks.as_strided(flat, a.shape, (a.itemsize,) * a.ndim, writeable=False)
    if memory == "read-only":
        a = a.copy()
        a.flags.writeable = False
        return a
    view, _ = MEMORY[memory](a)
    view[...] = a
    return view


class Out:
    """An ``out`` in the given kind of memory. It can check that only its elements were written."""

    def __init__(self, memory, like):
        self.memory, self.like = memory, like
        self.view, self.raw = MEMORY[memory](like)

    def assert_only_elements_written(self):
        twin, raw = MEMORY[self.memory](self.like)
        twin[...] = self.view
        assert self.raw.tobytes() == raw.tobytes()

    def assert_untouched(self):
        assert self.raw.tobytes() == MEMORY[self.memory](self.like)[1].tobytes()


# ---------------------------------------------------------------- drawing cases

# rank -> largest input, kernel, stride, dilation
_SIZES = {1: (40, 9, 7, 4), 2: (9, 5, 4, 3), 3: (5, 4, 3, 2), 4: (3, 3, 3, 2)}
_WORK = 1_500_000  # most multiply-adds of a case
_RARELY = st.sampled_from([False] * 9 + [True])


@st.composite
def geometries(draw, rank=None, auto_pad=True):
    """Draw the spatial part of a Case, as keywords."""
    rank = rank or draw(st.sampled_from([1, 1, 2, 2, 2, 3, 3, 4]))
    top_in, top_k, top_s, top_d = _SIZES[rank]
    axes = []
    mode = draw(st.sampled_from(["pads", "pads", "pads", "output_shape", "auto_pad", "both"] if auto_pad else ["pads"]))
    word = draw(st.sampled_from(["same_upper", "same_lower", "valid"])) if mode in ("auto_pad", "both") else None
    for _ in range(rank):
        size = 0 if draw(_RARELY) and draw(_RARELY) else draw(st.integers(1, top_in))
        k, s, d = draw(st.integers(1, top_k)), draw(st.integers(1, top_s)), draw(st.integers(1, top_d))
        op = draw(st.integers(0, s + 3)) if draw(st.booleans()) else 0
        reach = s * (size - 1) + (k - 1) * d + 1 + op
        if reach < 0:  # an empty input or a stride larger than the kernel: the output has a size only because of output_padding
            op, reach = op - reach, 0
        begin = draw(st.integers(0, min(reach, (k - 1) * d + 3)))
        end = draw(st.integers(0, min(reach - begin, (k - 1) * d + 3)))
        want = None
        if mode == "output_shape":
            want = draw(st.integers(0, reach + 4))
        elif word:
            out = window_of(size, k, s, d, 0, 0, word, op, None)[1]
            if out < 0:
                op, out = op - out, 0
            want = out if mode == "both" else None
        axes.append((size, k, s, d, begin, end, op, want))
    names = ("in_sizes", "kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape")
    found = dict(zip(names, zip(*axes, strict=True), strict=True))
    if found["output_shape"][0] is None:
        found["output_shape"] = None
    return {**found, "auto_pad": word}


@st.composite
def cases(draw, rank=None, dtypes=tuple(DTYPES), activations=EXACT_ACTIVATIONS, auto_pad=True, layouts=True):
    """Draw a Case: one to four axes; dense, grouped, depthwise, deep (several depth chunks) or without channels."""
    geometry = draw(geometries(rank, auto_pad))
    batch = 0 if draw(_RARELY) and draw(_RARELY) else draw(st.integers(1, 3))
    budget = _WORK // max(1, batch * math.prod(geometry["in_sizes"]) * math.prod(geometry["kernel"]))
    kind = draw(st.sampled_from(["dense", "dense", "grouped", "depthwise", "deep", "wide"]))
    groups = {"grouped": st.integers(2, 4), "depthwise": st.integers(1, 70)}.get(kind, st.just(1))
    ci, co = {
        "dense": (st.integers(1, 70), st.integers(1, 70)),
        "grouped": (st.integers(1, 20), st.integers(1, 20)),
        "depthwise": (st.just(1), st.just(1)),
        "deep": (st.integers(100, 600), st.integers(1, 9)),
        "wide": (st.integers(0, 5), st.integers(60, 200)),
    }[kind]
    groups = draw(groups)
    ci = min(draw(ci), max(1, budget // groups))
    co = min(draw(co), max(1, budget // max(1, groups * ci)))
    return Case(
        dtype=draw(st.sampled_from(dtypes)),
        batch=batch,
        groups=groups,
        ci=ci,
        co=co,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(activations)),
        data_format=draw(st.sampled_from(DATA_FORMATS)) if layouts else "NCX",
        filter_format=draw(st.sampled_from(FILTER_FORMATS)) if layouts else "IOX",
        seed=draw(st.integers(0, 2**16)),
        **geometry,
    )


def random_case(
    rng, rank=None, in_sizes=(1, 2, 5, 11), kernel=(1, 2, 3, 4, 6), strides=(1, 1, 2, 3), dilations=(1, 1, 1, 2), **fixed
):
    """Return a case that has outputs, from a NumPy generator: windows that cut the first and the last cell, empty phases,
    any layout. Axes have the given sizes."""
    ranks = rank or int(rng.integers(1, 4))
    pick = lambda *values: tuple(int(v) for v in rng.choice(values, ranks))  # noqa: E731
    case = Case(
        batch=int(rng.choice([1, 1, 2, 3])), in_sizes=pick(*in_sizes), kernel=pick(*kernel), strides=pick(*strides),
        dilations=pick(*dilations), pads_begin=pick(0, 0, 1, 2), pads_end=pick(0, 0, 1, 3), output_padding=pick(0, 0, 2),
        bias=bool(rng.integers(2)), data_format=str(rng.choice(DATA_FORMATS)), filter_format=str(rng.choice(FILTER_FORMATS)),
        seed=int(rng.integers(1 << 16)), **fixed,
    )  # fmt: skip
    return case if min(case.windows[1]) >= 1 else random_case(rng, rank, in_sizes, kernel, strides, dilations, **fixed)


# Samples for tests about something other than geometry. They are large enough for several threads.
SAMPLES = {
    "dense": Case(
        batch=2, ci=40, co=24, in_sizes=(9, 11), kernel=(4, 3), strides=2, dilations=(1, 2), pads_begin=(1, 0), pads_end=(0, 2),
        output_padding=(1, 0),
    ),
    "deep": Case(ci=300, co=20, in_sizes=(60,), kernel=5, strides=2, pads_begin=2, pads_end=1, output_padding=3),
    "grouped": Case(
        batch=2, groups=3, ci=17, co=19, in_sizes=(4, 5, 6), kernel=(2, 3, 3), strides=(3, 1, 2), pads_begin=(0, 1, 1),
        pads_end=(0, 1, 0), output_padding=(2, 0, 1),
    ),
    "depthwise": Case(
        batch=2, groups=70, in_sizes=(23, 21), kernel=(3, 5), strides=(2, 1), dilations=(2, 1), pads_begin=(1, 2),
        pads_end=(0, 3), output_padding=(0, 1),
    ),
}  # fmt: skip
each_sample = pytest.mark.parametrize("case", SAMPLES.values(), ids=SAMPLES)


def child(script, *arguments, timeout=60, **environment):
    """Run a script in a process of its own that can import these tests and this convt. Return (exit code, stdout, stderr)."""
    here, package = Path(__file__).parent, Path(convt.__file__).parent.parent
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("CONVT_", "OMP_"))}
    path = os.pathsep.join([str(here), str(package), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
        env={**ours, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def run(case, data, filter, bias=None, **more):
    """Call convt.conv_transpose for a case."""
    return convt.conv_transpose(data, filter, bias, **{**case.keywords, **more})


def operator(case, filter, bias=None, **more):
    """Return the convt.ConvTranspose of a case, on the native backend unless told otherwise."""
    return convt.ConvTranspose(filter, bias, **{**case.keywords, "backend": "native", **more})


def errors(case, *algorithms):
    """Return the errors of each algorithm on real numbers, in units of the largest sum of the products' magnitudes."""
    arrays, found = case.arrays(exact=False), []
    exact, scale = case.expected(*arrays), max(case.expected(*arrays, magnitude=True).max(), 1e-30)
    for algorithm in algorithms:
        op = operator(case, *arrays[1:], algorithm=algorithm)
        assert op.plan(case.data_shape).key == algorithm
        found.append(np.abs(op(arrays[0]).astype(np.float64) - exact) / scale)
    return found


@contextlib.contextmanager
def may_refuse():
    """Run a block, which ends early if the algorithm that it asks for does not accept the problem."""
    try:
        yield
    except ValueError as error:
        assert str(error).startswith("algorithm: got"), error


def on_threads(call, threads=(1, 2, 3)):
    """Return the result of a call, which must have the same bits for each of these numbers of threads."""
    results = set()
    for n in threads:
        with convt.num_threads(n):
            got = call()
        results.add(got.tobytes())
    assert len(results) == 1
    return got


def checked_on_threads(case, algorithm, arrays, data=None, threads=(1, 2, 3), memory="contiguous", **limits):
    """Check the results of an algorithm and the ``memory`` around them for each number of threads, with plans for a machine
    with these limits. Return their bytes, which must be the same, as those of real numbers must. ``data`` are the case's in
    other memory."""
    results, real = set(), replace(case, seed=case.seed + 1).arrays(exact=False)[0]
    with pretend(**limits):
        op = operator(case, *arrays[1:], algorithm=algorithm)  # in here, because its plans are kept for any machine
        for n in threads:
            with convt.num_threads(n):
                for _ in range(2):  # the second call is a repeated one
                    out = Out(memory, np.empty(case.out_shape, case.numpy_dtype))
                    case.check(op(arrays[0] if data is None else data, out.view), *arrays)
                    out.assert_only_elements_written()
                results.add((out.view.tobytes(), op(real).tobytes()))
    ((found, _),) = results
    return found


def check_all_ways(case, algorithm, machines=NO_CACHES):
    """Check an algorithm on one thread and three, in other memory, with data between NaN on one of the machines with these
    limits, and with NaN or infinity at an edge of data and filter. Results of the same numbers must have the same bits.

    The seed of the case chooses among memories, machines and edges, so cases of a kind should have different ones."""
    try:
        rng, arrays = np.random.default_rng(case.seed), case.arrays()
        memory = rng.choice(["contiguous", *WALLS])
        found = {checked_on_threads(case, algorithm, arrays, copy_in(memory, arrays[0]), (1, 3), memory)}
        data = _with_steps(arrays[0], rng) if rng.integers(2) else copy_in(rng.choice(list(MEMORY)), arrays[0])
        found.add(checked_on_threads(case, algorithm, arrays, data, (2,), rng.choice(list(MEMORY))))
        limits = machines[rng.integers(len(machines))]
        found.add(checked_on_threads(case, algorithm, arrays, _between_nan(case, arrays[0], rng), (2,), **limits))
        assert len(found) == 1
        case = replace(case, activation=None)
        data, filter = (_with_bad_number(array, rng) for array in arrays[:2])
        for values in (data, *arrays[1:]), (arrays[0], filter, arrays[2]):
            case.check(run(case, *values, algorithm=algorithm), *values)
    except AssertionError:
        print(case, algorithm)
        raise


def _with_steps(array, rng):
    """Return a copy in memory with a step of -1, 1 or 2 elements on each axis."""
    steps = rng.choice([-1, 1, 1, 1, 2], array.ndim)
    around = np.full([n * abs(step) for n, step in zip(array.shape, steps, strict=True)], np.nan, array.dtype)
    view = around[tuple(slice(None, None, step) for step in steps)]
    view[...] = array
    return view


def _between_nan(case, data, rng):
    """Return a copy with NaN around each plane, or beside each row of NXC: one pixel or more, between channels, or pixels."""
    if case.data_format == "NCX":
        return copy_in("cropped", data)
    pixels, step, gap = rng.choice([1, 20]), rng.choice([1, 1, 2]), rng.integers(2)
    channels = data.shape[-1] * step
    around = np.full((*data.shape[:-2], data.shape[-2] + 2 * pixels, channels + gap), np.nan, data.dtype)
    view = around[..., pixels:-pixels, :channels:step]
    view[...] = data
    return view


def _with_bad_number(array, rng):
    array = copy_in(rng.choice(["contiguous", *WALLS]), array)
    if array.size:
        array[tuple(rng.choice([0, n - 1, rng.integers(n)]) for n in array.shape)] = rng.choice([np.nan, np.inf, -np.inf])
    return array


@contextlib.contextmanager
def meanwhile(work, threads=1):
    """Call a function over and over in other threads while the block runs, and raise what it raised."""
    over = threading.Event()

    def repeat():
        while not over.is_set():
            work()

    with ThreadPoolExecutor(threads) as pool:
        repeating = [pool.submit(repeat) for _ in range(threads)]
        try:
            yield
        finally:
            over.set()
    for each in repeating:
        each.result()


def in_threads(work, threads=8):
    """Call a function with the number of each thread in as many threads, which start together, and return the results."""
    start = threading.Barrier(threads)

    def begin(n):
        start.wait(60)
        return work(n)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


@contextlib.contextmanager
def switching_often(seconds=1e-6):
    """Make threads switch as often as possible, so that they meet in as many places as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def taken(op, data):
    """Check whether the plan of its shape completes a call. If the data is out of range, direct repeats the call and the result
    is False."""
    problem, view = op._attributes.problem(data.shape), op._attributes.nxc(data)
    out = np.empty(problem.out_shape, data.dtype)
    return op._plans.run(prepared(op._plans, problem, view.strides, out.strides), view, out)


@contextlib.contextmanager
def doing(case, algorithm, isa):
    """Use an instruction set and skip the test if the algorithm does not accept the case on it."""
    with using_isa(isa):
        try:
            operator(case, case.arrays()[1], algorithm=algorithm).plan(case.data_shape)
        except ValueError as error:
            pytest.skip(f"{isa}: {error}")
        yield


def kept_forms(op):
    """Return the forms whose packed weights an operator keeps."""
    return [form for form in op._plans._forms.values() if form.weights() is not None]
