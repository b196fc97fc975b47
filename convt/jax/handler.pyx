# cython: language_level=3
"""The handler that XLA calls for convt's operators in a compiled program, through its foreign function interface (FFI).

When XLA loads a program, it instantiates the handler for each call in it (`instantiate`): a `_Site`, which XLA destroys together
with the program. When the program runs, XLA calls the handler on its buffers (`execute`). A site computes shapes and weights
seen before (`Known`) without Python and the GIL. Tasks run on XLA's threads.

Exceptions do not propagate through XLA: each becomes an error of XLA, whose message JAX raises.
"""

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t

import atexit
import os
import time

from .._base import dtypes
from .._run import config
from . import _site

cimport numpy as cnp

from convt._core cimport ThreadPool, Work, use_thread_pool
from convt._plan.known cimport KNOWN_RANK, Entry, Known, compute_entry, leave_entry
from convt._run.checksum cimport checksum_of_bytes, checksum_of_samples
from convt.jax.xla cimport *

cnp.import_array()

TARGET = "convt_conv_transpose"  # the handler's name in programs
ARGUMENTS = "arguments"  # the name of the only attribute of a call: the text that `_site.computer` reads

cdef enum:
    MAX_RANK = 64  # NumPy's
    SAMPLED = 4  # weights of earlier calls whose samples are remembered


# ---------------------------------------------------------------- XLA's interface


cdef extern from * nogil:
    """
    #include <sched.h>
    #include <stdlib.h>

    #if defined(__x86_64__) || defined(__i386__)
    #define convt_pause() __builtin_ia32_pause()
    #else
    #define convt_pause() ((void)0)
    #endif
    #define CONVT_SPINS 2000 /* looks before a waiting thread offers its core to others */

    /* XLA's threads, for one call of the handler. */
    typedef struct {
        const XlaApi *api;
        XlaContext *context;
    } convt_xla_pool;

    /* The parts of a parallel region. The thread that begins the region and XLA's threads take them in order. Only parts that
     * have begun are waited for, so the region ends even if no thread of XLA is free. A thread that comes late finds no part
     * left and only reads this structure, so the last user frees it. */
    typedef struct {
        void (*work)(void *, size_t);
        void *job;
        size_t count, next, done, users;
    } convt_parts;

    static void convt_take_parts(convt_parts *parts)
    {
        size_t n;
        while ((n = __atomic_fetch_add(&parts->next, 1, __ATOMIC_RELAXED)) < parts->count) {
            parts->work(parts->job, n);
            __atomic_fetch_add(&parts->done, 1, __ATOMIC_RELEASE);
        }
    }

    static void convt_leave_parts(convt_parts *parts)
    {
        if (__atomic_fetch_sub(&parts->users, 1, __ATOMIC_ACQ_REL) == 1)
            free(parts);
    }

    static void convt_help(void *given)
    {
        convt_take_parts(given);
        convt_leave_parts(given);
    }

    static void convt_forget_error(const XlaApi *api, XlaError *error)
    {
        XlaErrorDestroy arguments = {.error = error};
        if (error)
            xla_error_destroy(api, &arguments);
    }

    /* ThreadPool.run on XLA's threads */
    static void convt_run_on_xla_threads(void *context, void (*work)(void *, size_t), size_t count, void *job)
    {
        const convt_xla_pool *pool = context;
        convt_parts *parts = malloc(sizeof *parts);
        if (!parts) {
            for (size_t n = 0; n < count; n++)
                work(job, n);
            return;
        }
        *parts = (convt_parts){.work = work, .job = job, .count = count, .users = count};
        for (size_t n = 1; n < count; n++) {
            XlaSchedule arguments = {.context = pool->context, .task = convt_help, .data = parts};
            XlaError *error = xla_schedule(pool->api, &arguments);
            if (error) {
                convt_forget_error(pool->api, error);
                convt_leave_parts(parts);
            }
        }
        convt_take_parts(parts);
        for (long spins = 0; __atomic_load_n(&parts->done, __ATOMIC_ACQUIRE) < count; spins++)
            if (spins < CONVT_SPINS)
                convt_pause();
            else
                sched_yield();
        convt_leave_parts(parts);
    }

    /* Threads of one program may store and read the number of threads of a site at the same time; either number is correct. */
    #define convt_load_threads(site) __atomic_load_n(site, __ATOMIC_RELAXED)
    #define convt_store_threads(site, threads) __atomic_store_n(site, threads, __ATOMIC_RELAXED)

    /* Returns whether a number is one of `count` numbers; else adds it in place of the oldest. Threads that do so at the same
     * time may lose each other's numbers. */
    static int convt_seen_before(uint64_t *numbers, uint64_t count, uint64_t *added, uint64_t number)
    {
        for (uint64_t n = 0; n < count; n++)
            if (__atomic_load_n(numbers + n, __ATOMIC_RELAXED) == number)
                return 1;
        __atomic_store_n(numbers + __atomic_fetch_add(added, 1, __ATOMIC_RELAXED) % count, number, __ATOMIC_RELAXED);
        return 0;
    }

    /* The number of calls that use or wait for Python, and whether Python ends. Python never gives its lock to other threads
     * when it ends, but waits for XLA's threads; so they must not wait for the lock. */
    static long convt_python_calls, convt_python_ends;
    static int convt_enter_python(void)
    {
        __atomic_fetch_add(&convt_python_calls, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&convt_python_ends, __ATOMIC_SEQ_CST))
            return 1;
        __atomic_fetch_sub(&convt_python_calls, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    #define convt_leave_python() __atomic_fetch_sub(&convt_python_calls, 1, __ATOMIC_SEQ_CST)
    #define convt_count_python_calls() __atomic_load_n(&convt_python_calls, __ATOMIC_SEQ_CST)
    #define convt_end_python() __atomic_store_n(&convt_python_ends, 1, __ATOMIC_SEQ_CST)
    #define convt_forget_python_calls() __atomic_store_n(&convt_python_calls, 0, __ATOMIC_SEQ_CST)
    """
    ctypedef struct convt_xla_pool:
        const XlaApi *api
        XlaContext *context
    void convt_run_on_xla_threads(void *context, Work work, size_t count, void *job) noexcept
    void convt_forget_error(const XlaApi *api, XlaError *error) noexcept
    int convt_load_threads(int *threads) noexcept
    void convt_store_threads(int *threads, int number) noexcept
    bint convt_seen_before(uint64_t *numbers, uint64_t count, uint64_t *added, uint64_t number) noexcept
    bint convt_enter_python() noexcept
    long convt_leave_python() noexcept
    long convt_count_python_calls() noexcept
    void convt_end_python() noexcept
    void convt_forget_python_calls() noexcept

cdef XlaTypeId site_type
cdef XlaTypeInfo site_info
site_type.id = 0  # XLA assigns one


def capsules():
    """Return the handler as capsules, by XLA's names of the stages."""
    return {
        "instantiate": PyCapsule_New(<void *>instantiate, NULL, NULL), "execute": PyCapsule_New(<void *>execute, NULL, NULL),
    }  # fmt: skip


def version():
    """Return the version of XLA's interface that convt was written for: major and minor."""
    return XLA_MAJOR, XLA_MINOR


cdef XlaError *describe(XlaCall *call, int stage) noexcept nogil:
    """Answer XLA's question for version and type of state, which it asks when the handler is registered."""
    cdef XlaMetadata *metadata = (<XlaMetadataExtension *>call.extension).metadata
    cdef XlaTypeRegister arguments
    cdef XlaError *error = NULL
    metadata.version.major, metadata.version.minor, metadata.traits = XLA_MAJOR, XLA_MINOR, 0
    if not xla_supported(call.api) or metadata.size < XLA_METADATA_BYTES:
        return NULL
    if site_type.id == 0:
        site_info.size, site_info.destroy = sizeof(XlaTypeInfo), destroy
        arguments.name.text, arguments.name.length = "convt_site", 10
        arguments.id, arguments.info = &site_type, &site_info
        error = xla_type_register(call.api, &arguments)
    metadata.state_type.id = site_type.id if stage == XLA_INSTANTIATE else 0
    return error


cdef bint asks_for_metadata(const XlaCall *call) noexcept nogil:
    return call.extension != NULL and call.extension.type == XLA_METADATA


cdef XlaError *new_error(const XlaApi *api, const char *text, int code) noexcept nogil:
    cdef XlaErrorCreate arguments
    arguments.message, arguments.code = text, code
    return xla_error_create(api, &arguments)


cdef XlaError *error_of(const XlaApi *api, error) noexcept:
    """Return the error for an exception. Must not raise: without an error, JAX would use an uncomputed output."""
    cdef bytes text = b"convt raised an exception, and a signal handler raised another while it was reported"
    try:
        text = f"convt: {type(error).__name__}: {error}".encode(errors="replace")
    except BaseException:  # noqa: S110
        pass
    return new_error(api, text, XLA_EXHAUSTED if isinstance(error, MemoryError) else XLA_INTERNAL)


def _wait_for_calls():
    """Let no more calls use Python, and wait for those that do."""
    convt_end_python()
    while convt_count_python_calls():
        time.sleep(0.001)


def _forget_calls():
    """Forget the calls of other threads in a forked child, which does not have these threads."""
    convt_forget_python_calls()


atexit.register(_wait_for_calls)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_calls)


# ---------------------------------------------------------------- sites


cdef class _Site:
    """A call in a program: its computer (`_site`), and its entries of shapes and weights seen before."""
    cdef object computer
    cdef Known known
    cdef bint brings_weights, is_constant
    cdef int threads  # number of threads of the last call that Python computed
    cdef uint64_t samples[SAMPLED]  # checksums of samples of earlier calls' weights
    cdef uint64_t sampled  # number of such checksums so far

    def __init__(self, computer):
        self.computer, self.known, self.threads = computer, Known(), 1
        self.brings_weights, self.is_constant = computer.brings_weights, computer.is_constant


cdef XlaError *instantiate(XlaCall *call) noexcept nogil:
    if asks_for_metadata(call):
        return describe(call, XLA_INSTANTIATE)
    return new_site(call)


cdef XlaError *new_site(XlaCall *call) noexcept with gil:
    cdef XlaState arguments
    cdef XlaError *error
    try:
        site = _Site(_site.computer(read_arguments(call)))
    except BaseException as raised:
        return error_of(call.api, raised)
    arguments.context, arguments.stage, arguments.id, arguments.state = call.context, XLA_INSTANTIATE, &site_type, <void *>site
    error = xla_state_set(call.api, &arguments)
    if error == NULL:
        Py_INCREF(site)
    return error


cdef void destroy(void *site) noexcept nogil:
    """Release a site, unless Python ends."""
    if convt_enter_python():
        release(site)
        convt_leave_python()


cdef void release(void *site) noexcept with gil:
    Py_DECREF(<object>site)


cdef str read_arguments(XlaCall *call):
    """Return the text of the attribute `ARGUMENTS`."""
    cdef int64_t n
    cdef XlaSpan *name
    cdef XlaSpan *value
    for n in range(call.attributes.count):
        name, value = call.attributes.names[n], <XlaSpan *>call.attributes.values[n]
        if name.text[:name.length] == ARGUMENTS.encode() and call.attributes.types[n] == XLA_STRING:
            return value.text[:value.length].decode()
    raise ValueError(f"attributes: got a call without {ARGUMENTS!r}, wanted one that convt.jax made")


# ---------------------------------------------------------------- execution


cdef XlaError *execute(XlaCall *call) noexcept nogil:
    cdef XlaState state
    cdef XlaError *error
    cdef convt_xla_pool own
    cdef ThreadPool pool
    cdef uint64_t weights = 0
    if asks_for_metadata(call):
        return describe(call, XLA_EXECUTE)
    if call.size < sizeof(XlaCall):
        return new_error(call.api, "convt: got a call frame of another version of XLA's interface", XLA_INTERNAL)
    state.context, state.stage, state.id, state.state = call.context, XLA_INSTANTIATE, &site_type, NULL
    error = xla_state_get(call.api, &state)
    if error != NULL:
        return error
    own.api, own.context = call.api, call.context
    pool.run, pool.context = convt_run_on_xla_threads, &own
    use_thread_pool(&pool)
    if not run_known(<_Site>state.state, call, &weights):
        error = compute_by_python(state.state, call, weights)
    use_thread_pool(NULL)
    return error


cdef XlaBuffer *argument(const XlaCall *call, int n) noexcept nogil:
    return <XlaBuffer *>call.arguments.values[n]


cdef XlaBuffer *result(const XlaCall *call) noexcept nogil:
    return <XlaBuffer *>call.results.values[0]


cdef int64_t bytes_of(const XlaBuffer *buffer) noexcept nogil:
    """Return the bytes of a buffer of floating-point numbers."""
    cdef int64_t ax, bytes = 8 if buffer.dtype == XLA_F64 else 4 if buffer.dtype == XLA_F32 else 2
    for ax in range(buffer.rank):
        bytes *= buffer.sizes[ax]
    return bytes


cdef bint run_known(_Site site, const XlaCall *call, uint64_t *weights) noexcept nogil:
    """Compute a shape, and weights, seen before. Return False for others; Python then computes them and reports errors.

    ``weights`` gets what identifies the weights that the call brings: see `weights_seen_before`.
    """
    cdef XlaBuffer *data = argument(call, 0)
    cdef Entry *entry
    cdef bint done
    if site.brings_weights:
        weights[0] = weights_seen_before(site, argument(call, 1))
        if weights[0] == 0:
            return False
    if data.rank > KNOWN_RANK:
        return False
    entry = site.known.find(data.rank, data.sizes, weights[0])
    if entry == NULL:
        return False
    done = compute_entry(entry, <char *>data.data, <char *>result(call).data, NULL)
    leave_entry(entry)
    return done


cdef uint64_t weights_seen_before(_Site site, const XlaBuffer *filter) noexcept nogil:
    """Return the checksum of weights whose samples are those of an earlier call, 1 for constants, and 0 for new weights.

    New weights get no checksum, because that would take as long as packing.
    """
    cdef const char *p = <const char *>filter.data
    cdef Py_ssize_t bytes = bytes_of(filter)
    if site.is_constant:
        return 1
    if not convt_seen_before(site.samples, SAMPLED, &site.sampled, checksum_of_samples(p, bytes)):
        return 0
    return checksum_of_bytes(p, bytes, convt_load_threads(&site.threads))


cdef XlaError *compute_by_python(void *site, const XlaCall *call, uint64_t weights) noexcept nogil:
    cdef XlaError *error
    if not convt_enter_python():
        return new_error(call.api, "convt: got a call of a program while Python ends", XLA_INTERNAL)
    error = compute_with_gil(site, call, weights)
    convt_leave_python()
    return error


cdef XlaError *compute_with_gil(void *site, const XlaCall *call, uint64_t weights) noexcept with gil:
    try:
        run(<_Site>site, call, weights)
    except BaseException as error:
        return error_of(call.api, error)
    return NULL


cdef run(_Site site, const XlaCall *call, uint64_t weights):
    data, out = array(argument(call, 0)), array(result(call))
    filter = array(argument(call, 1)) if site.brings_weights else None
    cdef int threads = min(threads_of(call), <int>config.get_num_threads())
    convt_store_threads(&site.threads, threads)
    operator = site.computer.compute(data, filter, weights, out, threads)
    if operator is not None:
        site.known.remember(operator, data, out, threads, False, weights)


cdef int threads_of(const XlaCall *call) noexcept:
    """Return the number of XLA's threads, 1 without any."""
    cdef int64_t threads = 1
    cdef XlaThreads arguments
    arguments.context, arguments.threads = call.context, &threads
    convt_forget_error(call.api, xla_threads(call.api, &arguments))
    return <int>max(<int64_t>1, min(threads, <int64_t>1024))


_DTYPES = {XLA_F16: "float16", XLA_F32: "float32", XLA_F64: "float64", XLA_BF16: "bfloat16"}
_TYPE_NUMBERS = {each.dtype.name: each.dtype.num for each in dtypes.COMPUTED}


cdef array(const XlaBuffer *buffer):
    """Return a NumPy array that shares the memory of a buffer."""
    cdef cnp.npy_intp shape[MAX_RANK]
    cdef int64_t ax
    if buffer.rank > MAX_RANK or buffer.dtype not in _DTYPES:
        raise ValueError(f"a buffer: got rank {buffer.rank} and XLA's dtype {buffer.dtype}, wanted one that convt.jax made")
    for ax in range(buffer.rank):
        shape[ax] = buffer.sizes[ax]
    return cnp.PyArray_SimpleNewFromData(<int>buffer.rank, shape, _TYPE_NUMBERS[_DTYPES[buffer.dtype]], buffer.data)
