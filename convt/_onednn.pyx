# cython: language_level=3, boundscheck=True, wraparound=True
"""The optional oneDNN backend: its deconvolution primitive behind the interface of _core's plans.

The library is opened with dlopen when first needed and never linked. It is looked for at CONVT_ONEDNN_LIB and nowhere else
if that is set; else where the wheel onednn-cpu-gomp puts it, in this environment or beside its installed distribution;
else on the loader's path. Whatever is missing, too old, damaged or not to oneDNN's taste is a BackendUnavailableError.
Its instruction set is its own choice (ONEDNN_MAX_CPU_ISA limits it).

Data and output in memory order NXC or NCX are used in place, anything else goes through a contiguous copy. Weights are
reordered once per layout that oneDNN asks for; plain weights would leave only its reference loops, also in a one-shot call.

Primitives are cached by problem (see `set_capacity`) and know nothing of weights. They are made for a thread count, as
oneDNN divides its work when it creates them.

NaN and infinity reach only the sums that contain them in float32 and float16 without an activation. But some bfloat16
kernels multiply them by zeros of the padding, and most activations have results of their own for them (ReLU of NaN is 0):
such plans look at their input first, and refuse what is not finite.

Bias and activation are fused, but where that would be wrong (see `_fuses_right`): there they are a primitive of their own.
"""

import collections
import os
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path

cimport numpy as cnp
from cython.parallel cimport prange
from libc.stdint cimport int64_t, uint16_t, uint32_t, uintptr_t

import numpy as np

from . import _check, _core
from ._errors import BackendUnavailableError
from ._problem import ITEMSIZE, NUMPY_DTYPE

cnp.import_array()

cdef extern from "dlfcn.h" nogil:
    int RTLD_NOW, RTLD_LOCAL
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *name)
    const char *dlerror()

cdef extern from "onednn_api.h" nogil:
    const unsigned ONEDNN_dnnl_success, ONEDNN_dnnl_out_of_memory, ONEDNN_dnnl_invalid_arguments
    const unsigned ONEDNN_dnnl_unimplemented, ONEDNN_dnnl_runtime_error
    const unsigned ONEDNN_DNNL_RUNTIME_SEQ, ONEDNN_DNNL_RUNTIME_OMP, ONEDNN_DNNL_RUNTIME_TBB
    const unsigned ONEDNN_DNNL_RUNTIME_THREADPOOL, ONEDNN_DNNL_RUNTIME_SYCL
    const unsigned ONEDNN_dnnl_cpu, ONEDNN_dnnl_stream_in_order
    const unsigned ONEDNN_dnnl_f16, ONEDNN_dnnl_bf16, ONEDNN_dnnl_f32, ONEDNN_dnnl_format_tag_any
    const unsigned ONEDNN_dnnl_scratchpad_mode_user, ONEDNN_dnnl_forward_inference, ONEDNN_dnnl_deconvolution_direct
    const unsigned ONEDNN_dnnl_binary_add
    const unsigned ONEDNN_dnnl_eltwise_relu, ONEDNN_dnnl_eltwise_tanh, ONEDNN_dnnl_eltwise_logistic
    const unsigned ONEDNN_dnnl_eltwise_swish, ONEDNN_dnnl_eltwise_clip, ONEDNN_dnnl_eltwise_gelu_erf
    const unsigned ONEDNN_dnnl_query_impl_info_str, ONEDNN_dnnl_query_weights_md, ONEDNN_dnnl_query_scratchpad_md
    const int ONEDNN_DNNL_ARG_SRC, ONEDNN_DNNL_ARG_SRC_1, ONEDNN_DNNL_ARG_DST, ONEDNN_DNNL_ARG_WEIGHTS, ONEDNN_DNNL_ARG_BIAS
    const int ONEDNN_DNNL_ARG_SCRATCHPAD
    const unsigned ONEDNN_dnnl_cpu_isa_sse41, ONEDNN_dnnl_cpu_isa_avx, ONEDNN_dnnl_cpu_isa_avx2
    const unsigned ONEDNN_dnnl_cpu_isa_avx2_vnni, ONEDNN_dnnl_cpu_isa_avx2_vnni_2, ONEDNN_dnnl_cpu_isa_avx512_core
    const unsigned ONEDNN_dnnl_cpu_isa_avx512_core_vnni, ONEDNN_dnnl_cpu_isa_avx512_core_bf16
    const unsigned ONEDNN_dnnl_cpu_isa_avx512_core_fp16, ONEDNN_dnnl_cpu_isa_avx512_core_amx
    const unsigned ONEDNN_dnnl_cpu_isa_avx512_core_amx_fp16
    ctypedef int64_t onednn_dims[12]
    ctypedef void *onednn_engine
    ctypedef void *onednn_stream
    ctypedef void *onednn_desc
    ctypedef const void *onednn_const_desc
    ctypedef void *onednn_memory
    ctypedef void *onednn_post_ops
    ctypedef void *onednn_attr
    ctypedef void *onednn_primitive_desc
    ctypedef void *onednn_primitive
    ctypedef struct onednn_version:
        int major, minor, patch
        unsigned cpu_runtime
    ctypedef struct onednn_exec_arg:
        int arg
        onednn_memory memory
    struct onednn_api:
        const onednn_version *(*dnnl_version)() noexcept nogil
        unsigned (*dnnl_get_effective_cpu_isa)() noexcept nogil
        unsigned (*dnnl_engine_create)(onednn_engine *, unsigned, size_t) noexcept nogil
        unsigned (*dnnl_stream_create)(onednn_stream *, onednn_engine, unsigned) noexcept nogil
        unsigned (*dnnl_stream_wait)(onednn_stream) noexcept nogil
        unsigned (*dnnl_stream_destroy)(onednn_stream) noexcept nogil
        unsigned (*dnnl_memory_desc_create_with_strides)(
            onednn_desc *, int, const int64_t *, unsigned, const int64_t *) noexcept nogil
        unsigned (*dnnl_memory_desc_create_with_tag)(
            onednn_desc *, int, const int64_t *, unsigned, unsigned) noexcept nogil
        int (*dnnl_memory_desc_equal)(onednn_const_desc, onednn_const_desc) noexcept nogil
        size_t (*dnnl_memory_desc_get_size)(onednn_const_desc) noexcept nogil
        unsigned (*dnnl_memory_desc_destroy)(onednn_desc) noexcept nogil
        unsigned (*dnnl_memory_create)(onednn_memory *, onednn_const_desc, onednn_engine, void *) noexcept nogil
        unsigned (*dnnl_memory_set_data_handle)(onednn_memory, void *) noexcept nogil
        unsigned (*dnnl_memory_destroy)(onednn_memory) noexcept nogil
        unsigned (*dnnl_post_ops_create)(onednn_post_ops *) noexcept nogil
        unsigned (*dnnl_post_ops_append_eltwise)(onednn_post_ops, unsigned, float, float) noexcept nogil
        unsigned (*dnnl_post_ops_destroy)(onednn_post_ops) noexcept nogil
        unsigned (*dnnl_primitive_attr_create)(onednn_attr *) noexcept nogil
        unsigned (*dnnl_primitive_attr_set_scratchpad_mode)(onednn_attr, unsigned) noexcept nogil
        unsigned (*dnnl_primitive_attr_set_post_ops)(onednn_attr, onednn_post_ops) noexcept nogil
        unsigned (*dnnl_primitive_attr_destroy)(onednn_attr) noexcept nogil
        unsigned (*dnnl_deconvolution_forward_primitive_desc_create)(
            onednn_primitive_desc *, onednn_engine, unsigned, unsigned, onednn_const_desc, onednn_const_desc,
            onednn_const_desc, onednn_const_desc, const int64_t *, const int64_t *, const int64_t *, const int64_t *,
            onednn_attr) noexcept nogil
        unsigned (*dnnl_binary_primitive_desc_create)(
            onednn_primitive_desc *, onednn_engine, unsigned, onednn_const_desc, onednn_const_desc, onednn_const_desc,
            onednn_attr) noexcept nogil
        unsigned (*dnnl_reorder_primitive_desc_create)(
            onednn_primitive_desc *, onednn_const_desc, onednn_engine, onednn_const_desc, onednn_engine,
            onednn_attr) noexcept nogil
        unsigned (*dnnl_primitive_desc_query)(onednn_primitive_desc, unsigned, int, void *) noexcept nogil
        onednn_const_desc (*dnnl_primitive_desc_query_md)(onednn_primitive_desc, unsigned, int) noexcept nogil
        unsigned (*dnnl_primitive_desc_destroy)(onednn_primitive_desc) noexcept nogil
        unsigned (*dnnl_primitive_create)(onednn_primitive *, onednn_primitive_desc) noexcept nogil
        unsigned (*dnnl_primitive_execute)(onednn_primitive, onednn_stream, int, const onednn_exec_arg *) noexcept nogil
        unsigned (*dnnl_primitive_destroy)(onednn_primitive) noexcept nogil
    const char *onednn_resolve(onednn_api *, void *)

_DTYPES = {"float16": ONEDNN_dnnl_f16, "bfloat16": ONEDNN_dnnl_bf16, "float32": ONEDNN_dnnl_f32}
_RUNTIMES = {
    ONEDNN_DNNL_RUNTIME_SEQ: "sequential", ONEDNN_DNNL_RUNTIME_OMP: "OpenMP", ONEDNN_DNNL_RUNTIME_TBB: "TBB",
    ONEDNN_DNNL_RUNTIME_THREADPOOL: "thread pool", ONEDNN_DNNL_RUNTIME_SYCL: "SYCL",
}
_ISAS = {
    ONEDNN_dnnl_cpu_isa_sse41: "sse41", ONEDNN_dnnl_cpu_isa_avx: "avx", ONEDNN_dnnl_cpu_isa_avx2: "avx2",
    ONEDNN_dnnl_cpu_isa_avx2_vnni: "avx2_vnni", ONEDNN_dnnl_cpu_isa_avx2_vnni_2: "avx2_vnni_2",
    ONEDNN_dnnl_cpu_isa_avx512_core: "avx512_core", ONEDNN_dnnl_cpu_isa_avx512_core_vnni: "avx512_core_vnni",
    ONEDNN_dnnl_cpu_isa_avx512_core_bf16: "avx512_core_bf16", ONEDNN_dnnl_cpu_isa_avx512_core_fp16: "avx512_core_fp16",
    ONEDNN_dnnl_cpu_isa_avx512_core_amx: "avx512_core_amx",
    ONEDNN_dnnl_cpu_isa_avx512_core_amx_fp16: "avx512_core_amx_fp16",
}
_STATUSES = {
    ONEDNN_dnnl_out_of_memory: "out of memory", ONEDNN_dnnl_invalid_arguments: "invalid arguments",
    ONEDNN_dnnl_unimplemented: "unimplemented", ONEDNN_dnnl_runtime_error: "runtime error",
}
# Activation -> eltwise kind; the parameters are convt's own, but for swish whose factor is 1.
_ELTWISE = {
    "relu": ONEDNN_dnnl_eltwise_relu, "leaky_relu": ONEDNN_dnnl_eltwise_relu, "clip": ONEDNN_dnnl_eltwise_clip,
    "tanh": ONEDNN_dnnl_eltwise_tanh, "sigmoid": ONEDNN_dnnl_eltwise_logistic, "gelu": ONEDNN_dnnl_eltwise_gelu_erf,
    "swish": ONEDNN_dnnl_eltwise_swish,
}


# ---------------------------------------------------------------- the library

INSTALL = 'pip install "convt[onednn]"'

cdef onednn_api _api
cdef onednn_engine _engine = NULL
cdef int (*_omp_get_max_threads)() noexcept nogil
cdef void (*_omp_set_num_threads)(int) noexcept nogil
_omp_get_max_threads = NULL
_omp_set_num_threads = NULL
_lock = threading.Lock()
_library = None  # what `library` returns, or the BackendUnavailableError it raises


def library():
    """The library, opened at the first call: a dict of version, path, threading and isa.

    Raises BackendUnavailableError, in dlerror's own words where it has some.
    """
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                try:
                    _library = _open(_where())
                except BackendUnavailableError as error:
                    _library = error
    if isinstance(_library, Exception):
        raise BackendUnavailableError(*_library.args)
    return _library


def available():
    """Whether there is a library to use; opens it."""
    try:
        return bool(library())
    except BackendUnavailableError:
        return False


def describe():
    """The library, or why there is none, in a line."""
    try:
        return "oneDNN {version}, {isa}, threads by {threading}, {path}".format(**library())
    except BackendUnavailableError as error:
        return f"not available: {error}"


def _where():
    """The path to open."""
    asked = os.environ.get("CONVT_ONEDNN_LIB")
    if asked:
        return asked
    import importlib.metadata  # here, as it is slow to load

    places = [Path(sys.prefix, "lib", "libdnnl.so.3")]
    try:
        places += [f.locate() for f in importlib.metadata.files("onednn-cpu-gomp") or () if f.name == "libdnnl.so.3"]
    except importlib.metadata.PackageNotFoundError:
        pass
    return next((str(place.resolve()) for place in map(Path, places) if place.exists()), "libdnnl.so.3")


cdef _open(str path):
    global _engine, _omp_get_max_threads, _omp_set_num_threads
    source = "CONVT_ONEDNN_LIB:" if os.environ.get("CONVT_ONEDNN_LIB") else "backend: got 'onednn', but"
    wanted = f"wanted oneDNN 3.x: {INSTALL}, or set CONVT_ONEDNN_LIB to the path of libdnnl.so.3"
    if _cut_short(path):
        raise BackendUnavailableError(f"{source} {path} ends before what its ELF header announces; {wanted}")
    cdef void *handle = dlopen(os.fsencode(path), RTLD_NOW | RTLD_LOCAL)
    if handle == NULL:
        raise BackendUnavailableError(f"{source} {dlerror().decode(errors='replace')}; {wanted}")
    # The version first: it explains better than a missing symbol.
    cdef const onednn_version *(*get_version)() noexcept nogil
    get_version = <const onednn_version *(*)() noexcept nogil>dlsym(handle, b"dnnl_version")
    if get_version == NULL:
        raise BackendUnavailableError(f"{source} {dlerror().decode(errors='replace')}; {wanted}")
    cdef const onednn_version *found = get_version()
    version = f"{found.major}.{found.minor}.{found.patch}"
    if found.major != 3:
        raise BackendUnavailableError(f"{source} {path} is oneDNN {version}; {wanted}")
    if onednn_resolve(&_api, handle) != NULL:
        raise BackendUnavailableError(f"{source} {dlerror().decode(errors='replace')}; {wanted}")
    runtime = _RUNTIMES.get(found.cpu_runtime, f"runtime {found.cpu_runtime}")
    if found.cpu_runtime == ONEDNN_DNNL_RUNTIME_OMP:
        _omp_get_max_threads = <int (*)() noexcept nogil>dlsym(handle, b"omp_get_max_threads")
        _omp_set_num_threads = <void (*)(int) noexcept nogil>dlsym(handle, b"omp_set_num_threads")
    if found.cpu_runtime != ONEDNN_DNNL_RUNTIME_SEQ and (_omp_get_max_threads == NULL or _omp_set_num_threads == NULL):
        raise BackendUnavailableError(
            f"{source} {path} runs its threads by {runtime}, wanted OpenMP or none, whose number convt can set; {wanted}"
        )
    cdef unsigned status = _api.dnnl_engine_create(&_engine, ONEDNN_dnnl_cpu, 0)
    if status != ONEDNN_dnnl_success:
        raise BackendUnavailableError(f"{source} {path}: dnnl_engine_create says {_status(status)}; {wanted}")
    isa = _api.dnnl_get_effective_cpu_isa()
    return {"version": version, "path": path, "threading": runtime, "isa": _ISAS.get(isa, hex(isa))}


cdef bint _cut_short(str path):
    """Whether a 64-bit ELF file ends before one of its segments does: opening it would end in a bus error."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
                return False  # dlopen has words for what is no ELF file at all
            offset, = struct.unpack_from("<Q", head, 32)
            step, count = struct.unpack_from("<HH", head, 54)
            file.seek(offset)
            table = file.read(step * count)
    except OSError:
        return False
    if step < 56 or len(table) < step * count:
        return True
    segments = (struct.unpack_from("<QQQQ", table, step * n + 8) for n in range(count))  # offset, addresses, size
    return any(start + length > size for start, _, _, length in segments)


def _status(unsigned status):
    return f"'{_STATUSES.get(status, status)}'"


cdef int _use_threads(int count) noexcept nogil:
    """Set how many threads oneDNN uses when called from this thread; returns what it was, for giving it back."""
    if _omp_set_num_threads == NULL:
        return 1
    cdef int before = _omp_get_max_threads()
    if before != count:
        _omp_set_num_threads(count)
    return before


# ---------------------------------------------------------------- problems in oneDNN's words

def can(problem):
    """Whether there is a library, with words for the problem."""
    return available() and _reason(problem) is None


def _reason(problem):
    """Why oneDNN has no words for the problem; None if it has."""
    if problem.dtype not in _DTYPES:
        return f"it has no {problem.dtype} on CPUs"
    elif problem.rank > 3:
        return f"it has at most 3 spatial axes, not {problem.rank}"
    elif 0 in problem.in_sizes or problem.ci == 0:
        return "it computes nothing from an empty input"
    elif min(problem.begin) < 0:
        return f"its begin pads are at least 0, not {problem.begin}"
    elif any(e <= -s for e, s in zip(pads_end(problem), problem.strides)):
        return f"its end pads are greater than minus the strides {problem.strides}, not {pads_end(problem)}"
    elif max(problem.strides + problem.dilations + problem.kernel + problem.out_sizes) >= 2**31:
        return "a size, stride or dilation does not fit in 32 bits"
    return None


def pads_end(problem):
    """The pads that make oneDNN's size formula give the window; below 0 where that reaches past the full scatter."""
    axes = zip(problem.in_sizes, problem.kernel, problem.strides, problem.dilations, problem.begin, problem.out_sizes)
    return tuple(s * (n - 1) + d * (k - 1) + 1 - b - o for n, k, s, d, b, o in axes)


def _raise(unsigned status, str asked, problem):
    if status == ONEDNN_dnnl_success:
        return
    kind = MemoryError if status == ONEDNN_dnnl_out_of_memory else BackendUnavailableError
    raise kind(
        f"backend: oneDNN {library()['version']} says {_status(status)} to {asked} for {problem.descriptor()}; "
        f"wanted 'auto' or 'native'"
    )


cdef onednn_desc _desc(problem, shape, strides) except? NULL:
    """A descriptor of ``shape`` (axes in oneDNN's order), with strides in elements or, for None, what oneDNN likes best."""
    cdef onednn_dims c_shape
    cdef onednn_dims c_strides
    cdef int n, count = len(shape)
    cdef unsigned status, dtype = _DTYPES[problem.dtype]
    cdef onednn_desc desc = NULL
    for n in range(count):
        c_shape[n] = shape[n]
    if strides is None:
        status = _api.dnnl_memory_desc_create_with_tag(&desc, count, c_shape, dtype, ONEDNN_dnnl_format_tag_any)
    else:
        for n in range(count):
            c_strides[n] = strides[n]
        status = _api.dnnl_memory_desc_create_with_strides(&desc, count, c_shape, dtype, c_strides)
    _raise(status, f"describing memory of shape {tuple(shape)} and strides {strides}", problem)
    return desc


def _dense(shape, str layout):
    """Strides in elements of a contiguous array; axes named (N, C, *spatial) and lying in memory as ``layout`` says."""
    order = (0, *range(2, len(shape)), 1) if layout == "NXC" else range(len(shape))
    strides, step = [0] * len(shape), 1
    for ax in reversed(order):
        strides[ax], step = step, step * shape[ax]
    return tuple(strides)


def _layout(shape, strides, item):
    """"NXC" or "NCX" if memory with these strides (NXC axis order) is contiguous that way, else None."""
    shape, strides = ((a[0], a[-1], *a[1:-1]) for a in (shape, strides))
    for layout in ("NXC", "NCX"):
        if all(n == 1 or s == item * d for n, s, d in zip(shape, strides, _dense(shape, layout))):
            return layout
    return None


# ---------------------------------------------------------------- primitives

cdef class _Primitive:
    """A deconvolution made for one problem, layout of data and of output, and number of threads; weights are arguments.

    Not ``fused``, its bias and activation are a second primitive, ``after``, over the output in place.
    """
    cdef onednn_primitive_desc desc, after_desc
    cdef onednn_primitive primitive, after
    cdef onednn_desc src, dst, bias
    cdef readonly str info
    cdef readonly int threads
    cdef readonly size_t scratch

    def __init__(self, problem, str src_layout, str dst_layout, bint bias, int threads, bint fused=True):
        cdef onednn_dims strides
        cdef onednn_dims dilates
        cdef onednn_dims begin
        cdef onednn_dims end
        cdef int n
        self.threads = threads
        for n, (s, d, b, e) in enumerate(zip(problem.strides, problem.dilations, problem.begin, pads_end(problem))):
            strides[n], dilates[n], begin[n], end[n] = s, d - 1, b, e
        source = (problem.batch, problem.groups * problem.ci, *problem.in_sizes)
        target = (problem.batch, problem.groups * problem.co, *problem.out_sizes)
        self.src = _desc(problem, source, _dense(source, src_layout))
        self.dst = _desc(problem, target, _dense(target, dst_layout))
        if not fused:
            across = (1, target[1], *(1,) * problem.rank)
            self.bias = _desc(problem, across, _dense(across, "NCX"))
        elif bias:
            self.bias = _desc(problem, target[1:2], (1,))
        weights = (problem.groups,) * (problem.groups > 1) + (problem.co, problem.ci, *problem.kernel)
        cdef onednn_desc any_layout = _desc(problem, weights, None)
        name, a, b = problem.activation
        cdef unsigned kind = _ELTWISE.get(name, 0), status
        cdef float alpha = 1.0 if name == "swish" else a, beta = b
        cdef onednn_post_ops ops = NULL
        cdef onednn_attr attr = NULL, attr_after = NULL
        cdef const char *words = NULL
        cdef const char *words_after = NULL
        cdef int before
        with nogil:
            before = _use_threads(threads)
            status = _api.dnnl_primitive_attr_create(&attr)
            status = status or _api.dnnl_primitive_attr_set_scratchpad_mode(attr, ONEDNN_dnnl_scratchpad_mode_user)
            status = status or _api.dnnl_primitive_attr_create(&attr_after)
            if kind and not status:
                status = _api.dnnl_post_ops_create(&ops)
                status = status or _api.dnnl_post_ops_append_eltwise(ops, kind, alpha, beta)
                status = status or _api.dnnl_primitive_attr_set_post_ops(attr if fused else attr_after, ops)
            status = status or _api.dnnl_deconvolution_forward_primitive_desc_create(
                &self.desc, _engine, ONEDNN_dnnl_forward_inference, ONEDNN_dnnl_deconvolution_direct,
                self.src, any_layout, self.bias if fused else NULL, self.dst, strides, dilates, begin, end, attr)
            status = status or _api.dnnl_primitive_create(&self.primitive, self.desc)
            status = status or _api.dnnl_primitive_desc_query(self.desc, ONEDNN_dnnl_query_impl_info_str, 0, &words)
            if not fused:
                status = status or _api.dnnl_binary_primitive_desc_create(
                    &self.after_desc, _engine, ONEDNN_dnnl_binary_add, self.dst, self.bias, self.dst, attr_after)
                status = status or _api.dnnl_primitive_create(&self.after, self.after_desc)
                status = status or _api.dnnl_primitive_desc_query(
                    self.after_desc, ONEDNN_dnnl_query_impl_info_str, 0, &words_after)
            if not status:
                self.scratch = _api.dnnl_memory_desc_get_size(self.wants(ONEDNN_dnnl_query_scratchpad_md))
            _use_threads(before)
            _api.dnnl_memory_desc_destroy(any_layout)
            _api.dnnl_post_ops_destroy(ops)
            _api.dnnl_primitive_attr_destroy(attr)
            _api.dnnl_primitive_attr_destroy(attr_after)
        _raise(status, "creating a deconvolution", problem)
        self.info = words.decode() if fused else f"{words.decode()}+{words_after.decode()}"

    cdef onednn_const_desc wants(self, unsigned what) noexcept nogil:
        return _api.dnnl_primitive_desc_query_md(self.desc, what, 0)

    def __dealloc__(self):
        if _engine != NULL:
            _api.dnnl_primitive_destroy(self.primitive)
            _api.dnnl_primitive_destroy(self.after)
            _api.dnnl_primitive_desc_destroy(self.desc)
            _api.dnnl_primitive_desc_destroy(self.after_desc)
            _api.dnnl_memory_desc_destroy(self.src)
            _api.dnnl_memory_desc_destroy(self.dst)
            _api.dnnl_memory_desc_destroy(self.bias)


_primitives = collections.OrderedDict()  # the most recent last
_capacity = 256


def set_capacity(n):
    """Keep at most ``n`` primitives for later plans (plans keep their own). Raises ValueError below 0."""
    global _capacity
    _capacity = _check.integer("n", n, 0)
    with _lock:
        _trim()


def _trim():
    while len(_primitives) > _capacity:
        _primitives.popitem(last=False)


def _primitive(*key):
    with _lock:
        found = _primitives.get(key)
        if found is not None:
            _primitives.move_to_end(key)
            return found
    made = _make(*key)  # without the lock: it can take seconds
    with _lock:
        made = _primitives.setdefault(key, made)
        _trim()
    return made


def _make(problem, src_layout, dst_layout, bint bias, threads):
    made = _Primitive(problem, src_layout, dst_layout, bias, threads)
    plain = problem.activation[0] == "none"
    if (bias or not plain) and not _fuses_right(made, problem, src_layout, dst_layout):
        made = _Primitive(problem, src_layout, dst_layout, bias, threads, fused=False)
    return made


cdef bint _fuses_right(_Primitive made, problem, src_layout, dst_layout):
    """Whether a primitive applies its bias and its activation once.

    oneDNN 3.2's strided brgemm kernels may take the taps of the axes before the last one by one. With a stride, some of
    these have no input to meet, and after each such empty block the kernels apply all that is fused: bias argument, binary
    and eltwise post-ops alike. In bfloat16 and float16 that is harmless, as sums are kept apart from the output; in float32
    the next block adds to what was written. They divide so by a model of the caches, mostly where the depth is large, and do
    not say. So it is tried: one run on zeros with a bias of ones. (Neither bias nor activation changes how they divide.)
    """
    risky = any(s > 1 and k > 1 for s, k in zip(problem.strides[:-1], problem.kernel[:-1]))
    if problem.dtype != "float32" or "brgconv_strided" not in made.info or not risky:
        return True
    cdef _Primitive trial = _Primitive(
        replace(problem, activation=("none", 0.0, 0.0)), src_layout, dst_layout, True, made.threads)
    cdef _Call call = _Call()
    cdef onednn_const_desc weights = trial.wants(ONEDNN_dnnl_query_weights_md)
    cdef size_t size = max(_api.dnnl_memory_desc_get_size(trial.src), _api.dnnl_memory_desc_get_size(weights))
    zeros, scratch = np.zeros(size + 64, np.uint8), _take(trial.scratch)  # never written, the zeros take no memory
    ones, out = np.ones(problem.groups * problem.co, np.float32), np.empty(problem.out_shape, np.float32)
    cdef unsigned status = call.bind(ONEDNN_DNNL_ARG_SRC, trial.src, _aligned(zeros))
    status = status or call.bind(ONEDNN_DNNL_ARG_WEIGHTS, weights, _aligned(zeros))
    status = status or call.bind(ONEDNN_DNNL_ARG_BIAS, trial.bias, cnp.PyArray_DATA(ones))
    status = status or call.bind(ONEDNN_DNNL_ARG_DST, trial.dst, cnp.PyArray_DATA(out))
    status = status or call.bind(
        ONEDNN_DNNL_ARG_SCRATCHPAD, trial.wants(ONEDNN_dnnl_query_scratchpad_md), _aligned(scratch))
    cdef int before
    with nogil:
        before = _use_threads(trial.threads)
        status = status or call.execute(trial.primitive)
        _use_threads(before)
    _give(scratch)
    _raise(status, "trying a deconvolution", problem)
    return bool((out == 1).all())


# ---------------------------------------------------------------- memory

_spare = []  # scratch memory of finished calls, for the next ones; a list's append and pop are atomic


cdef _take(size_t size):
    try:
        memory = _spare.pop()
        if memory.nbytes >= size + 64:
            return memory
    except IndexError:
        pass
    return np.empty(size + 64, np.uint8)


cdef _give(memory):
    if len(_spare) < 8:
        _spare.append(memory)


cdef inline void *_aligned(memory) noexcept:
    """The first cache line boundary in an array of bytes."""
    return <void *>((<uintptr_t>cnp.PyArray_DATA(memory) + 63) & ~<uintptr_t>63)


# ---------------------------------------------------------------- what a plan runs with

cdef class _Weights:
    """A filter in the layout that a primitive asks for."""
    cdef _Primitive primitive
    cdef object memory

    def __init__(self, _Primitive primitive, view, problem):
        cdef onednn_const_desc wanted = primitive.wants(ONEDNN_dnnl_query_weights_md)
        cdef onednn_desc given = _desc(problem, view.shape, tuple(s // view.itemsize for s in view.strides))
        cdef onednn_primitive_desc desc = NULL
        cdef onednn_primitive reorder = NULL
        cdef _Call call = _Call()
        cdef unsigned status
        cdef int before
        self.primitive = primitive  # which keeps the descriptor
        self.memory = np.empty(_api.dnnl_memory_desc_get_size(wanted) + 64, np.uint8)
        cdef void *src = cnp.PyArray_DATA(view)
        cdef void *dst = _aligned(self.memory)
        with nogil:
            before = _use_threads(primitive.threads)
            status = _api.dnnl_reorder_primitive_desc_create(&desc, given, _engine, wanted, _engine, NULL)
            status = status or _api.dnnl_primitive_create(&reorder, desc)
            status = status or call.bind(ONEDNN_DNNL_ARG_SRC, given, src)
            status = status or call.bind(ONEDNN_DNNL_ARG_DST, wanted, dst)
            status = status or call.execute(reorder)
            _use_threads(before)
            _api.dnnl_primitive_destroy(reorder)
            _api.dnnl_primitive_desc_destroy(desc)
            _api.dnnl_memory_desc_destroy(given)
        _raise(status, "reordering the filter", problem)

    cdef bint fits(self, _Primitive other) noexcept:
        cdef unsigned what = ONEDNN_dnnl_query_weights_md
        return _api.dnnl_memory_desc_equal(self.primitive.wants(what), other.wants(what))


class Recipe:
    """How filters of one shape and strides (groups, ci, co, *kernel) become `Filter`s."""

    def __init__(self, filter, bias):
        self._shape, self._strides, self.biased = filter.shape, filter.strides, bias is not None

    def pack(self, filter, bias, threads):
        """``filter`` begins where the view of that shape and strides does, whatever its own axes are."""
        return Filter(np.lib.stride_tricks.as_strided(filter, self._shape, self._strides, writeable=False), bias)


class Filter:
    """A filter and its bias, reordered once to each layout that a primitive asks for."""

    finite = True  # unlike _core's, no plan differs for a filter that is not; those that refuse it ask `all_finite`

    def __init__(self, filter, bias):
        view = filter.swapaxes(1, 2)  # oneDNN: (groups, co, ci, *kernel), without groups if there is one
        view = view if view.shape[0] > 1 else view[0]
        self._view = view if _reorderable(view) else view.copy()
        self._bias = None if bias is None else np.ascontiguousarray(bias)
        self._weights = []
        self._bound = {}  # primitive -> _Bound
        self._lock = threading.Lock()
        self._finite = None

    def all_finite(self):
        if self._finite is None:
            self._finite = all(bool(np.isfinite(a).all()) for a in (self._view, self._bias) if a is not None)
        return self._finite

    def bind(self, _Primitive primitive, problem):
        found = self._bound.get(primitive)
        if found is None:
            with self._lock:
                found = _Bound(primitive, self._reordered(primitive, problem), self._bias, problem)
                self._bound[primitive] = found
                if len(self._bound) > _BOUND:
                    del self._bound[next(iter(self._bound))]
        return found

    def _reordered(self, _Primitive primitive, problem):
        cdef _Weights found
        for found in self._weights:
            if found.fits(primitive):
                return found
        self._weights.append(_Weights(primitive, self._view, problem))
        return self._weights[-1]


_BOUND = 64  # primitives that a filter keeps ready


def _reorderable(view):
    """Whether oneDNN can describe the view: strides above 0, no element reached twice."""
    end = 1
    for stride, size in sorted(zip(view.strides, view.shape)):
        if size > 1:
            if stride < end:
                return False
            end = stride * size
    return all(s > 0 for s in view.strides)


cdef class _Call:
    """What an execution writes to, for one thread at a time: a stream, and the memory objects of the arguments."""
    cdef onednn_stream stream
    cdef onednn_exec_arg args[5]
    cdef int count
    cdef _Call after  # of the primitive's second part, if it has one

    cdef unsigned bind(self, int arg, onednn_const_desc desc, void *data) noexcept nogil:
        """Add an argument; its data may be set later, by `place`."""
        cdef onednn_memory memory = NULL
        cdef unsigned status = _api.dnnl_memory_create(&memory, desc, _engine, data)
        if not status:
            self.args[self.count].arg, self.args[self.count].memory = arg, memory
            self.count += 1
        return status

    cdef unsigned place(self, int n, void *data) noexcept nogil:
        return _api.dnnl_memory_set_data_handle(self.args[n].memory, data)

    cdef unsigned execute(self, onednn_primitive primitive) noexcept nogil:
        cdef unsigned status = 0
        if self.stream == NULL:
            status = _api.dnnl_stream_create(&self.stream, _engine, ONEDNN_dnnl_stream_in_order)
        status = status or _api.dnnl_primitive_execute(primitive, self.stream, self.count, self.args)
        return status or _api.dnnl_stream_wait(self.stream)

    def __dealloc__(self):
        cdef int n
        for n in range(self.count):
            _api.dnnl_memory_destroy(self.args[n].memory)
        if self.stream != NULL:
            _api.dnnl_stream_destroy(self.stream)


cdef class _Bound:
    """A primitive with its weights and bias, and the calls not in use."""
    cdef _Primitive primitive
    cdef _Weights weights
    cdef object bias
    cdef list calls

    def __init__(self, _Primitive primitive, weights, bias, problem):
        if bias is None and primitive.after != NULL:
            bias = np.zeros(problem.groups * problem.co, NUMPY_DTYPE[problem.dtype])
        self.primitive, self.weights, self.bias, self.calls = primitive, weights, bias, []

    cdef _Call call(self, problem):
        try:
            return self.calls.pop()
        except IndexError:
            pass
        cdef _Call made = _Call()
        cdef _Primitive p = self.primitive
        cdef unsigned status = made.bind(ONEDNN_DNNL_ARG_SRC, p.src, NULL)
        status = status or made.bind(ONEDNN_DNNL_ARG_DST, p.dst, NULL)
        status = status or made.bind(ONEDNN_DNNL_ARG_SCRATCHPAD, p.wants(ONEDNN_dnnl_query_scratchpad_md), NULL)
        status = status or made.bind(
            ONEDNN_DNNL_ARG_WEIGHTS, p.wants(ONEDNN_dnnl_query_weights_md), _aligned(self.weights.memory))
        if p.after != NULL:
            made.after = _Call()
            status = status or made.after.bind(ONEDNN_DNNL_ARG_SRC, p.dst, NULL)
            status = status or made.after.bind(ONEDNN_DNNL_ARG_DST, p.dst, NULL)
            status = status or made.after.bind(ONEDNN_DNNL_ARG_SRC_1, p.bias, cnp.PyArray_DATA(self.bias))
        elif self.bias is not None:
            status = status or made.bind(ONEDNN_DNNL_ARG_BIAS, p.bias, cnp.PyArray_DATA(self.bias))
        _raise(status, "making memory objects", problem)
        return made


cdef bint _finite(const void *data, Py_ssize_t count, str dtype, int threads):
    """Whether no element has all bits of the exponent set."""
    cdef const uint32_t *wide = <const uint32_t *>data
    cdef const uint16_t *narrow = <const uint16_t *>data
    cdef uint16_t mask = 0x7F80 if dtype == "bfloat16" else 0x7C00
    cdef bint single = dtype == "float32"
    cdef Py_ssize_t block, blocks = (count + 8191) // 8192
    cdef int found = 0
    threads = max(1, min(threads, blocks))
    for block in prange(blocks, nogil=True, schedule="static", num_threads=threads):
        if single:
            found += _any_wide(wide + 8192 * block, min(8192, count - 8192 * block), 0x7F800000)
        else:
            found += _any_narrow(narrow + 8192 * block, min(8192, count - 8192 * block), mask)
    return found == 0


cdef int _any_wide(const uint32_t *p, Py_ssize_t count, uint32_t mask) noexcept nogil:
    cdef Py_ssize_t n
    cdef uint32_t found = 0
    for n in range(count):
        found |= (p[n] & mask) == mask
    return found


cdef int _any_narrow(const uint16_t *p, Py_ssize_t count, uint16_t mask) noexcept nogil:
    cdef Py_ssize_t n
    cdef uint16_t found = 0
    for n in range(count):
        found |= (p[n] & mask) == mask
    return found


cdef class Plan:
    """One problem, and strides of data and output (NXC axis order): the interface of _core's plans."""
    cdef readonly str backend, algorithm, isa
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef readonly size_t packed_bytes
    cdef readonly bint hole
    cdef bint wary  # only finite data and filters are computed right
    cdef object problem
    cdef str src_layout, dst_layout  # None: through a contiguous copy
    cdef bint bias
    cdef dict primitives  # threads -> _Primitive

    def __init__(self, problem, bint bias, in_strides, out_strides, int available):
        self.backend, self.isa = "onednn", library()["isa"]
        reason = _reason(problem)
        if reason:
            raise BackendUnavailableError(f"backend: 'onednn' can't do this problem: {reason}; wanted 'auto' or 'native'")
        item = ITEMSIZE[problem.dtype]
        in_shape = (problem.batch, *problem.in_sizes, problem.groups * problem.ci)
        self.problem, self.bias = problem, bias
        self.src_layout = _layout(in_shape, in_strides, item)
        self.dst_layout = _layout(problem.out_shape, out_strides, item)
        self.primitives = {}
        cdef _Primitive primitive = self.primitive(self.threads(available))
        name, slope, _ = problem.activation
        self.wary = problem.dtype == "bfloat16" or not (
            name in ("none", "tanh") or (name == "leaky_relu" and <float>slope != 0))
        self.algorithm, self.tasks = primitive.info, primitive.threads
        self.packed_bytes = _api.dnnl_memory_desc_get_size(primitive.wants(ONEDNN_dnnl_query_weights_md))
        self.workspace = (primitive.scratch + primitive.threads - 1) // primitive.threads

    cdef _Primitive primitive(self, int threads):
        found = self.primitives.get(threads)
        if found is None:
            if threads > 1:
                _core._note_pool()
            found = self.primitives[threads] = _primitive(
                self.problem, self.src_layout or "NXC", self.dst_layout or "NXC", self.bias, threads)
        return found

    def threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return available if _omp_set_num_threads != NULL else 1

    def run(self, data, out, filter, int available):
        """Compute; ``data`` and ``out`` have the strides the plan was made for.

        False, and nothing done, if the input is not finite and oneDNN would not compute convt's result.
        """
        cdef _Primitive primitive = self.primitive(self.threads(available))
        cdef _Bound bound = filter.bind(primitive, self.problem)
        source = data if self.src_layout else np.ascontiguousarray(data)
        if self.wary and not (filter.all_finite() and _finite(
                cnp.PyArray_DATA(source), cnp.PyArray_SIZE(source), self.problem.dtype, primitive.threads)):
            return False
        target = out if self.dst_layout else np.empty(out.shape, out.dtype)
        scratch = _take(primitive.scratch)
        cdef _Call call = bound.call(self.problem)
        cdef _Call after = call.after
        cdef void *src = cnp.PyArray_DATA(source)
        cdef void *dst = cnp.PyArray_DATA(target)
        cdef void *work = _aligned(scratch)
        cdef int before
        cdef unsigned status
        with nogil:
            before = _use_threads(primitive.threads)
            status = call.place(0, src) or call.place(1, dst) or call.place(2, work) or call.execute(primitive.primitive)
            if after is not None:
                status = status or after.place(0, dst) or after.place(1, dst) or after.execute(primitive.after)
            _use_threads(before)
        bound.calls.append(call)
        _give(scratch)
        _raise(status, "executing", self.problem)
        if target is not out:
            out[...] = target
        return True
