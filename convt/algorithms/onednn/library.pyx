# cython: boundscheck=True, wraparound=True
"""The oneDNN library: loading it, its number of threads, and its errors. All other modules call oneDNN through `api`."""

import os
import threading

from libc.stdint cimport uintptr_t

from ..._base import environment
from ..._base.errors import BackendUnavailableError
from . import file

from .api cimport *

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

INSTALL = "pip install onednn-cpu-gomp"

cdef onednn_api _api  # the library's entry points
cdef onednn_engine _engine = NULL
cdef int (*_omp_get_max_threads)() noexcept nogil
cdef void (*_omp_set_num_threads)(int) noexcept nogil
_omp_get_max_threads = NULL
_omp_set_num_threads = NULL
_lock = threading.Lock()
_library = None  # the result of `opened`, or the message of the error that it raises; None before the first call


def _unlock():
    """Replace the lock in a forked child, which would wait forever for a lock that another thread of the parent held."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def opened():
    """Return a dict with version, path, threading and isa of the library. The first call loads it.

    Raise BackendUnavailableError if there is no usable library, with the message of the dynamic loader if it has one.
    """
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                try:
                    _library = _open(file.library_path())
                except BackendUnavailableError as error:
                    _library = str(error)  # the exception's traceback would keep the arrays and models of its callers
    if isinstance(_library, str):
        raise BackendUnavailableError(_library)
    return _library


def available():
    """Load the library and check whether it can be used."""
    try:
        return bool(opened())
    except BackendUnavailableError:
        return False


def describe():
    """Return one line about the library, or the reason why there is none."""
    try:
        return "oneDNN {version}, {isa}, threads by {threading}, {path}".format(**opened())
    except BackendUnavailableError as error:
        return f"not available: {error}"


cdef _open(str path):
    """Load the library at ``path`` and return the result of `opened`, or raise BackendUnavailableError."""
    global _engine, _omp_get_max_threads, _omp_set_num_threads
    source = "CONVT_ONEDNN_LIB:" if environment.read("CONVT_ONEDNN_LIB") else "backend: got 'onednn', but"
    advice = f"wanted oneDNN 3.x: {INSTALL}, or set CONVT_ONEDNN_LIB to the path of libdnnl.so.3"
    crash = file.loading_crash(path)
    if crash:
        raise BackendUnavailableError(f"{source} {path} is damaged: a process that opened it ended with {crash}; {advice}")
    import ctypes  # imported here, because most processes never load the library

    # ctypes finds dlopen, which C libraries keep in different places, some under a symbol version of its own.
    address = lambda entry: ctypes.cast(entry, ctypes.c_void_p).value or 0  # noqa: E731
    cdef const onednn_version *(*get_version)() noexcept nogil
    cdef int n
    try:
        dll = ctypes.CDLL(path)
        # The version is checked first, because it explains more than a missing symbol.
        get_version = <const onednn_version *(*)() noexcept nogil><uintptr_t>address(dll.dnnl_version)
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError(f"{source} {error}; {advice}") from None
    cdef const onednn_version *found = get_version()
    version = f"{found.major}.{found.minor}.{found.patch}"
    if found.major != 3:
        raise BackendUnavailableError(f"{source} {path} is oneDNN {version}; {advice}")
    try:
        for n in range(ONEDNN_ENTRY_POINT_COUNT):
            onednn_set(&_api, n, address(dll[onednn_name(n).decode()]))
    except AttributeError as error:
        raise BackendUnavailableError(f"{source} {error}; {advice}") from None
    runtime = _RUNTIMES.get(found.cpu_runtime, f"runtime {found.cpu_runtime}")
    if found.cpu_runtime == ONEDNN_DNNL_RUNTIME_OMP:
        _omp_get_max_threads = <int (*)() noexcept nogil><uintptr_t>address(getattr(dll, "omp_get_max_threads", None))
        _omp_set_num_threads = <void (*)(int) noexcept nogil><uintptr_t>address(getattr(dll, "omp_set_num_threads", None))
    if found.cpu_runtime != ONEDNN_DNNL_RUNTIME_SEQ and (_omp_get_max_threads == NULL or _omp_set_num_threads == NULL):
        raise BackendUnavailableError(
            f"{source} {path} uses {runtime} threads, whose number convt cannot set; wanted OpenMP or sequential; {advice}"
        )
    cdef unsigned status = _api.dnnl_engine_create(&_engine, ONEDNN_dnnl_cpu, 0)
    if status != ONEDNN_dnnl_success:
        raise BackendUnavailableError(f"{source} {path}: dnnl_engine_create says {_status(status)}; {advice}")
    isa = _api.dnnl_get_effective_cpu_isa()
    return {"version": version, "path": path, "threading": runtime, "isa": _ISAS.get(isa, hex(isa))}


def _status(unsigned status):
    """Return the quoted name of a status."""
    return f"'{_STATUSES.get(status, status)}'"


cdef int check(unsigned status, str request, problem) except -1:
    """Raise MemoryError or BackendUnavailableError unless ``status`` is success. ``request`` describes the request."""
    if status == ONEDNN_dnnl_success:
        return 0
    kind = MemoryError if status == ONEDNN_dnnl_out_of_memory else BackendUnavailableError
    raise kind(
        f"backend: oneDNN {opened()['version']} says {_status(status)} to {request} for {problem.descriptor()}; "
        f"wanted 'auto' or 'native'"
    )


cdef onednn_api *api() noexcept nogil:
    """Return the entry points of the library."""
    return &_api


cdef onednn_engine engine() noexcept nogil:
    """Return the CPU engine."""
    return _engine


cdef bint has_threads() noexcept nogil:
    """Check whether the library has threads whose number `use_threads` can set."""
    return _omp_set_num_threads != NULL


cdef int use_threads(int count) noexcept nogil:
    """Set the number of threads that oneDNN uses in calls from this thread. Return the previous number, to be restored."""
    if _omp_set_num_threads == NULL:
        return 1
    cdef int previous = _omp_get_max_threads()
    if previous != count:
        _omp_set_num_threads(count)
    return previous
