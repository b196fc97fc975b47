"""oneDNN through its C API: a deconvolution primitive whose weights have the layout that it asks for.

With tags "plain", data and result have the layout of the problem, as a caller's arrays do. With tags "any", they have the
layouts that the primitive asks for, as inside a network that oneDNN runs as a whole; reordering them is not timed. In mode
one-shot, the weights are reordered at each call, and the primitive is kept, as in oneDNN's own cache. The enumerators below are
those of oneDNN 3.x, whose ABI is stable.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

import numpy as np

from ..problem import Problem, as_nxc, empty, in_layout
from ..shared import environment
from . import Ready, Unsupported

DTYPES = {"f16": 1, "bf16": 2, "f32": 3, "f64": 7}
PRECISIONS = {"highest": 0, "high": 4, "medium": 1}  # floating-point math modes strict, tf32, bf16

CPU = 1
IN_ORDER = 1
FORWARD_INFERENCE = 96
DECONVOLUTION_DIRECT = 0xA
TAG_ANY = 1
QUERY_IMPLEMENTATION = 8
QUERY_SRC, QUERY_WEIGHTS, QUERY_DST = 129, 131, 133
ARG_SRC, ARG_DST, ARG_WEIGHTS, ARG_BIAS = 1, 17, 33, 41
STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 5: "runtime error", 6: "not required"}

Dims = ctypes.c_int64 * 12


class Argument(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int), ("memory", ctypes.c_void_p))


class Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


def _open() -> ctypes.CDLL:
    asked = environment.read("CONVT_ONEDNN_LIB")
    wheel = Path(sys.prefix, "lib", "libdnnl.so.3")
    return ctypes.CDLL(asked or (str(wheel) if wheel.exists() else wheel.name))


LIB = _open()
LIB.dnnl_version.restype = ctypes.POINTER(Version)
LIB.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
LIB.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p


def version() -> str:
    found = LIB.dnnl_version().contents
    return f"{found.major}.{found.minor}.{found.patch}"


def _check(name: str, status: int) -> None:
    if status:
        raise Unsupported(f"{name}: {STATUS.get(status, f'status {status}')}")


class Handle:
    """A oneDNN object, created by `dnnl_<kind>_create<how>` and destroyed with its Python object."""

    def __init__(self, kind: str, *arguments, how: str = "", maker: str = ""):
        self._as_parameter_ = ctypes.c_void_p()
        self._destroy = getattr(LIB, f"dnnl_{kind}_destroy")
        maker = f"{maker or kind}_create{how}"
        _check(maker, getattr(LIB, f"dnnl_{maker}")(ctypes.byref(self._as_parameter_), *arguments))

    def __del__(self):
        if self._as_parameter_:
            self._destroy(self)


@cache
def _engine() -> Handle:
    return Handle("engine", CPU, ctypes.c_size_t(0))


@cache
def _stream() -> Handle:
    return Handle("stream", _engine(), IN_ORDER)


def _dims(values) -> Dims:
    return Dims(*values)


def _desc(shape: tuple[int, ...], dtype: int, strides: tuple[int, ...] | None) -> Handle:
    """Return a memory descriptor. If ``strides`` is None, the primitive chooses the layout."""
    if strides is None:
        return Handle("memory_desc", len(shape), _dims(shape), dtype, TAG_ANY, how="_with_tag")
    return Handle("memory_desc", len(shape), _dims(shape), dtype, _dims(strides), how="_with_strides")


def _element_strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def _describe(array: np.ndarray, dtype: int) -> Handle:
    return _desc(array.shape, dtype, _element_strides(array))


def _memory(desc, array: np.ndarray) -> Handle:
    return Handle("memory", desc, _engine(), ctypes.c_void_p(array.ctypes.data))


class Bound:
    """A primitive with its memory objects, callable without arguments."""

    def __init__(self, primitive: Handle, memories: dict[int, Handle]):
        self._keep = memories
        arguments = (Argument * len(memories))(*((i, m._as_parameter_) for i, m in memories.items()))
        self._arguments = (primitive, _stream(), len(arguments), arguments)
        self._execute = LIB.dnnl_primitive_execute

    def __call__(self) -> None:
        if status := self._execute(*self._arguments):
            _check("primitive_execute", status)


class ReorderedCopy:
    """A copy of an array in the layout of a memory descriptor. `fill` copies from the array, `read` copies back."""

    def __init__(self, array: np.ndarray, dtype: int, wanted: ctypes.c_void_p):
        plain = _describe(array, dtype)
        self._buffer = empty((LIB.dnnl_memory_desc_get_size(wanted),), np.dtype(np.uint8))
        self.memory = _memory(wanted, self._buffer)
        outside = _memory(plain, array)
        self.fill = _reorder(plain, wanted, outside, self.memory)
        self.read = _reorder(wanted, plain, self.memory, outside)
        self._keep = array


def _reorder(from_desc, to_desc, source: Handle, target: Handle) -> Bound:
    plan = Handle("primitive_desc", from_desc, _engine(), to_desc, _engine(), None, maker="reorder_primitive_desc")
    return Bound(Handle("primitive", plan), {ARG_SRC: source, ARG_DST: target})


def prepare(problem: Problem, threads: int, tags: str) -> Ready:
    """Prepare a problem. The number of threads is OMP_NUM_THREADS, which was set before the library was loaded."""
    layer, dtype = problem.layer, DTYPES[problem.dtype]
    data = in_layout(problem.data(), problem.layout)
    result = in_layout(np.zeros(layer.result_shape, data.dtype), problem.layout)

    # The axes of oneDNN are (N, C, *spatial) and (groups, O, I, *spatial), in any memory order.
    groups, spatial = layer.groups, range(len(layer.kernel))
    split = problem.filter().reshape(*layer.kernel, groups, layer.cin // groups, layer.cout // groups)
    filter = split.transpose(-3, -1, -2, *spatial)
    filter = filter if groups > 1 else filter[0]

    def axes_named(array):
        return np.moveaxis(as_nxc(array, problem.layout), -1, 1)

    def desc(array):
        return _describe(array, dtype) if tags == "plain" else _desc(array.shape, dtype, None)

    source, target, bias = axes_named(data), axes_named(result), problem.bias()
    attributes = Handle("primitive_attr")
    _check("set_fpmath_mode", LIB.dnnl_primitive_attr_set_fpmath_mode(attributes, PRECISIONS[problem.precision]))
    plan = Handle(
        "primitive_desc",
        _engine(),
        FORWARD_INFERENCE,
        DECONVOLUTION_DIRECT,
        desc(source),
        _desc(filter.shape, dtype, None),
        None if bias is None else _describe(bias, dtype),
        desc(target),
        _dims(layer.strides),
        _dims(d - 1 for d in layer.dilations),
        _dims(layer.pads_begin),
        _dims(np.subtract(layer.pads_end, layer.output_padding)),
        attributes,
        maker="deconvolution_forward_primitive_desc",
    )

    def held(array: np.ndarray, query: int) -> ReorderedCopy:
        return ReorderedCopy(array, dtype, ctypes.c_void_p(LIB.dnnl_primitive_desc_query_md(plan, query, 0)))

    weights = held(filter, QUERY_WEIGHTS)
    weights.fill()
    memories = {ARG_WEIGHTS: weights.memory}
    if bias is not None:
        memories[ARG_BIAS] = _memory(_describe(bias, dtype), bias)
    if tags == "plain":
        memories |= {index: _memory(desc(array), array) for index, array in ((ARG_SRC, source), (ARG_DST, target))}
        bring_back, buffers = None, ()
    else:
        inside, outside = held(source, QUERY_SRC), held(target, QUERY_DST)
        inside.fill()
        memories |= {ARG_SRC: inside.memory, ARG_DST: outside.memory}
        bring_back, buffers = outside.read, (inside, outside)
    execute = Bound(Handle("primitive", plan), memories)

    def one_shot():
        weights.fill()
        execute()

    def nxc(_):
        if bring_back:
            bring_back()
        return as_nxc(result, problem.layout)

    name = ctypes.c_char_p()
    LIB.dnnl_primitive_desc_query(plan, QUERY_IMPLEMENTATION, 0, ctypes.byref(name))
    keep = (data, bias, weights, buffers)
    return Ready(execute if problem.prepacked else one_shot, nxc, name.value.decode(), keep)
