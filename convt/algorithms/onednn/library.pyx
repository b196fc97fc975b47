# The library: opening it, and its threads.
# Included by _onednn.pyx.

INSTALL = 'pip install "convt[onednn]"'

cdef onednn_api _api
cdef onednn_engine _engine = NULL
cdef int (*_omp_get_max_threads)() noexcept nogil
cdef void (*_omp_set_num_threads)(int) noexcept nogil
_omp_get_max_threads = NULL
_omp_set_num_threads = NULL
_lock = threading.Lock()
_reordering = threading.Lock()
_library = None  # what `library` returns, or the BackendUnavailableError it raises


def _unlock():
    """A child forked while another thread held a lock would wait for it for ever."""
    global _lock, _reordering
    _lock, _reordering = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def library():
    """The library, opened at the first call: a dict of version, path, threading and isa.

    Raises BackendUnavailableError, in dlerror's own words where it has some.
    """
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                try:
                    _library = _open(_onednn_file.where())
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


cdef _open(str path):
    global _engine, _omp_get_max_threads, _omp_set_num_threads
    source = "CONVT_ONEDNN_LIB:" if os.environ.get("CONVT_ONEDNN_LIB") else "backend: got 'onednn', but"
    wanted = f"wanted oneDNN 3.x: {INSTALL}, or set CONVT_ONEDNN_LIB to the path of libdnnl.so.3"
    harm = _onednn_file.harm(path)
    if harm:
        raise BackendUnavailableError(f"{source} {path} is damaged: a process that opened it ended with {harm}; {wanted}")
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
