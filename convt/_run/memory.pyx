# cython: language_level=3
"""Memory pools of workspaces, weights and outputs; outputs aligned to cache lines; integer tables for the loops."""

import os

cimport cython
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free

cimport numpy as cnp

import numpy as np

from convt._run.kernels cimport convt_kernels

cnp.import_array()

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size)

cdef extern from *:
    """
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    #ifdef MADV_HUGEPAGE
    #define convt_huge(p, size) madvise(p, size, MADV_HUGEPAGE)
    #else
    #define convt_huge(p, size) ((void)(p), (void)(size))
    #endif
    /* One lock for all pools, taken by threads with and without the GIL; it is held for less time than an allocation takes. */
    #ifdef _WIN32
    #include <windows.h>
    static SRWLOCK convt_pools = SRWLOCK_INIT;
    #define convt_lock_pools() AcquireSRWLockExclusive(&convt_pools)
    #define convt_unlock_pools() ReleaseSRWLockExclusive(&convt_pools)
    #else
    #include <pthread.h>
    static pthread_mutex_t convt_pools = PTHREAD_MUTEX_INITIALIZER;
    #define convt_lock_pools() ((void)pthread_mutex_lock(&convt_pools))
    #define convt_unlock_pools() ((void)pthread_mutex_unlock(&convt_pools))
    #endif
    #ifdef __SANITIZE_ADDRESS__
    #include <sanitizer/asan_interface.h>
    #define convt_poison __asan_poison_memory_region
    #define convt_unpoison __asan_unpoison_memory_region
    #else
    #define convt_poison(p, size) ((void)(p), (void)(size))
    #define convt_unpoison convt_poison
    #endif
    """
    void convt_huge(void *p, size_t size) nogil
    void convt_lock_pools() noexcept nogil
    void convt_unlock_pools() noexcept nogil
    # For AddressSanitizer: marks unused blocks of a pool, and the rest of a block beyond the requested size, as inaccessible.
    void convt_poison(void *p, size_t size) nogil
    void convt_unpoison(void *p, size_t size) nogil

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(type subtype, cnp.dtype dtype, int nd, cnp.npy_intp *sizes, cnp.npy_intp *strides, void *data,
                                int flags, object like)

cdef enum:
    HUGE_BYTES = 1 << 21  # size of a huge page

    OUTPUT_BYTES = 1 << 18  # NumPy allocates smaller outputs, because the C library reuses memory of that size

CACHED_WEIGHT_BYTES = 1 << 26  # limit of the pool for packed weights of one-shot calls, bytes
CACHED_OUTPUT_BYTES = 1 << 30  # limit of the pool for dropped outputs, bytes

cdef MemoryPool _workspaces, _weights, _outputs
_workspaces.limit, _weights.limit, _outputs.limit = <size_t>-1, CACHED_WEIGHT_BYTES, CACHED_OUTPUT_BYTES
_outputs.close_fit = True


def kept_bytes():
    """Return the bytes of all unused blocks in the pools."""
    return _workspaces.bytes + _weights.bytes + _outputs.bytes


cdef _free_blocks(MemoryPool *pool):
    """Free all blocks of a pool."""
    convt_lock_pools()
    while pool.count:
        free(_remove(pool, 0))
    convt_unlock_pools()


def _lock():
    convt_lock_pools()


def _unlock():
    convt_unlock_pools()


# A fork holds the lock, so that the child finds it free and the pools consistent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock, after_in_parent=_unlock, after_in_child=_unlock)


def clear():
    """Free all unused blocks of the pools."""
    _free_blocks(&_workspaces)
    _free_blocks(&_weights)
    _free_blocks(&_outputs)


cdef MemoryPool *workspaces() noexcept nogil:
    return &_workspaces


cdef MemoryPool *one_shot_weights():
    return &_weights


cdef char *_remove(MemoryPool *pool, Py_ssize_t n) noexcept nogil:
    """Remove block ``n`` from a pool and return its address."""
    cdef char *data = pool.data[n]
    pool.count -= 1
    pool.bytes -= pool.size[n]
    for n in range(n, pool.count):
        pool.data[n], pool.size[n] = pool.data[n + 1], pool.size[n + 1]
    return data


cdef class Buffer:
    """A block of memory aligned to 64 bytes. When the object is deleted, it returns to ``pool``, or is freed without a pool."""

    def __dealloc__(self):
        return_block(self.data, self.size, self.pool)


cdef char *_reuse(size_t size, MemoryPool *pool, size_t *actual_size) noexcept nogil:
    """Take the smallest block of at least ``size`` bytes from a pool, or return NULL; ``actual_size`` receives its size."""
    cdef Py_ssize_t n, best = -1, largest = 0
    for n in range(pool.count):
        if pool.size[n] >= size and (best < 0 or pool.size[n] < pool.size[best]) and not (
                pool.close_fit and pool.size[n] > size + size // 4):
            best = n
        if pool.size[n] > pool.size[largest]:
            largest = n
    if best >= 0:
        actual_size[0] = pool.size[best]
        return _remove(pool, best)
    if pool.count and size <= pool.limit and not pool.close_fit:  # the new block replaces the largest one, which is too small
        free(_remove(pool, largest))
    return NULL


cdef char *take_block(size_t size, MemoryPool *pool, size_t *actual_size) noexcept nogil:
    """Return at least ``size`` bytes of memory from ``pool`` or from the system; ``actual_size`` receives the size.

    ``pool`` may be NULL. Return NULL if the system has no memory.
    """
    cdef void *p = NULL
    size = max(size, <size_t>64)
    cdef bint huge = size >= 2 * HUGE_BYTES
    if pool != NULL:
        convt_lock_pools()
        p = _reuse(size, pool, actual_size)
        convt_unlock_pools()
        if p != NULL:
            convt_unpoison(p, size)
            return <char *>p
    if posix_memalign(&p, HUGE_BYTES if huge else 64, size) != 0:
        return NULL
    if huge:  # with huge pages, the first touch of new memory takes a third of the time
        convt_huge(p, size)
    actual_size[0] = size
    return <char *>p


cdef void return_block(char *data, size_t size, MemoryPool *pool) noexcept nogil:
    """Return a block to its pool, which frees its oldest blocks to make room; without a pool, free the block."""
    if data == NULL or pool == NULL or size > pool.limit:
        free(data)
        return
    convt_lock_pools()
    while pool.count == CACHED_BLOCKS or pool.bytes + size > pool.limit:
        free(_remove(pool, 0))
    convt_poison(data, size)
    pool.data[pool.count], pool.size[pool.count] = data, size
    pool.count += 1
    pool.bytes += size
    convt_unlock_pools()


cdef Buffer take_buffer(size_t size, MemoryPool *pool):
    """Return a `Buffer` of at least ``size`` bytes, preferably from ``pool``; raise MemoryError if there is none."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.data = take_block(size, pool, &buffer.size)
    if buffer.data == NULL:
        raise MemoryError(f"workspace, weights or output: cannot allocate {size} bytes of memory")
    buffer.pool = pool
    return buffer


cpdef empty(tuple shape, cnp.dtype dtype):
    """Return an uninitialised C-contiguous array that starts on a cache line.

    NumPy guarantees less alignment. Non-temporal stores of whole lines need it, and it keeps threads that write neighbouring
    channels from sharing lines. Arrays of OUTPUT_BYTES or more reuse the memory of dropped outputs of about the same size,
    because touching new pages takes longer than many calls.
    """
    return _empty(shape, dtype, &_outputs)


cdef empty_for_weights(tuple shape, cnp.dtype dtype):
    """Return an array as `empty` does, for a reordered filter. Large ones reuse the memory of earlier one-shot weights."""
    return _empty(shape, dtype, &_weights)


cdef _empty(tuple shape, cnp.dtype dtype, MemoryPool *pool):
    cdef cnp.npy_intp sizes[64]
    cdef cnp.npy_intp bytes = dtype.itemsize
    cdef int ax
    cdef char *data
    for ax in range(len(shape)):
        sizes[ax] = shape[ax]
        bytes *= sizes[ax]
    if bytes >= OUTPUT_BYTES:
        memory = take_buffer(bytes, pool)
        data = (<Buffer>memory).data
    else:
        bytes += 64
        memory = cnp.PyArray_EMPTY(1, &bytes, cnp.NPY_UINT8, 0)
        data = <char *>round64(<size_t>cnp.PyArray_DATA(memory))
    Py_INCREF(dtype)  # PyArray_NewFromDescr steals this reference
    result = PyArray_NewFromDescr(cnp.ndarray, dtype, len(shape), sizes, NULL, data, cnp.NPY_ARRAY_CARRAY, None)
    cnp.set_array_base(result, memory)
    return result


cdef class Table:
    """A C-contiguous int64 array made from nested Python ints, with a C pointer ``p``."""

    def __cinit__(self, values):
        self.array = np.ascontiguousarray(values, np.int64)
        if self.array.size:
            self.p = <int64_t *>cnp.PyArray_DATA(self.array)


cdef int64_t *keep_table(list keep, values):
    """Append a `Table` to the list ``keep``, which keeps it alive, and return its pointer."""
    cdef Table table = Table(values)
    keep.append(table)
    return table.p


cdef object structures(list keep, Py_ssize_t count, Py_ssize_t size):
    """Append zeroed memory for ``count`` C structures, at least one, to the list ``keep``, which keeps it alive; return it."""
    memory = np.zeros(max(1, count) * size, np.uint8)
    keep.append(memory)
    return memory


cdef int64_t odd_line_stride(const convt_kernels *k, int64_t depth) noexcept:
    """Return the row stride, in elements, of a packed GEMM operand A with ``depth`` columns.

    It is an odd number of cache lines, or of AMX steps of depth, so that rows map to different cache sets.
    """
    cdef int64_t line = max(k.kstep, 64 // k.e_size)
    return ((depth + line - 1) // line | 1) * line


cdef size_t spread_over_sets(size_t bytes) noexcept:
    """Return a stride of at least ``bytes`` bytes whose multiples map to different cache sets.

    It is five lines more than a multiple of 4 KiB, or an odd number of lines if ``bytes`` is at most 2 KiB.
    """
    cdef size_t lines = round64(bytes) // 64
    return (lines + (69 - lines % 64) % 64 if lines > 32 else lines | 1) * 64
