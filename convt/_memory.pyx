# cython: language_level=3
"""Memory: blocks that calls leave for the next ones, outputs that start on a cache line, tables of integers for the loops."""

import os

cimport cython
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

from convt._kernels cimport convt_kernels

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
    /* One lock for all pools: it is held for less time than an allocation takes, by threads with and without the GIL. */
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
    #define convt_forbid __asan_poison_memory_region
    #define convt_allow __asan_unpoison_memory_region
    #else
    #define convt_forbid(p, size) ((void)(p), (void)(size))
    #define convt_allow convt_forbid
    #endif
    """
    void convt_huge(void *p, size_t size) nogil
    void convt_lock_pools() noexcept nogil
    void convt_unlock_pools() noexcept nogil
    # For AddressSanitizer: blocks that are kept, and what a block has beyond what was asked for, must not be touched.
    void convt_forbid(void *p, size_t size) nogil
    void convt_allow(void *p, size_t size) nogil

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(type subtype, cnp.dtype dtype, int nd, cnp.npy_intp *sizes, cnp.npy_intp *strides, void *data,
                                int flags, object like)

cdef enum:
    HUGE_BYTES = 1 << 21  # of a huge page

    OUTPUT_BYTES = 1 << 18  # smaller outputs are NumPy's: the C library keeps memory of that size itself

CACHED_WEIGHT_BYTES = 1 << 26  # most bytes kept of those that held the weights of one-shot calls
CACHED_OUTPUT_BYTES = 1 << 30  # and of outputs that were dropped

cdef Pool _workspaces, _weights, _outputs
_workspaces.most, _weights.most, _outputs.most = <size_t>-1, CACHED_WEIGHT_BYTES, CACHED_OUTPUT_BYTES
_outputs.close_fit = True


def kept_bytes():
    """Bytes of the memory that is kept for later calls."""
    return _workspaces.bytes + _weights.bytes + _outputs.bytes


cdef _give_back(Pool *pool):
    convt_lock_pools()
    while pool.count:
        free(_remove(pool, 0))
    convt_unlock_pools()


def _lock():
    convt_lock_pools()


def _unlock():
    convt_unlock_pools()


# A child forked while another thread held the lock would wait for it for ever, or find a pool half changed.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock, after_in_parent=_unlock, after_in_child=_unlock)


def clear():
    """Give back the memory that is kept for later calls."""
    _give_back(&_workspaces)
    _give_back(&_weights)
    _give_back(&_outputs)


cdef Pool *workspaces() noexcept nogil:
    return &_workspaces


cdef Pool *one_shot_weights():
    return &_weights


cdef char *_remove(Pool *pool, Py_ssize_t n) noexcept nogil:
    """Take a block out of a pool."""
    cdef char *data = pool.data[n]
    pool.count -= 1
    pool.bytes -= pool.size[n]
    for n in range(n, pool.count):
        pool.data[n], pool.size[n] = pool.data[n + 1], pool.size[n + 1]
    return data


cdef class Buffer:
    """64-byte aligned memory of our own. One with a ``home`` serves one call and goes to that pool afterwards."""

    def __dealloc__(self):
        give_block(self.data, self.size, self.home)


cdef char *_reuse(size_t size, Pool *home, size_t *got) noexcept nogil:
    """The smallest block of a pool that holds ``size`` bytes, and how many it has; NULL where there is none."""
    cdef Py_ssize_t n, best = -1, largest = 0
    for n in range(home.count):
        if home.size[n] >= size and (best < 0 or home.size[n] < home.size[best]) and not (
                home.close_fit and home.size[n] > size + size // 4):
            best = n
        if home.size[n] > home.size[largest]:
            largest = n
    if best >= 0:
        got[0] = home.size[best]
        return _remove(home, best)
    if home.count and size <= home.most and not home.close_fit:  # the new block replaces one that was too small
        free(_remove(home, largest))
    return NULL


cdef char *take_block(size_t size, Pool *home, size_t *got) noexcept nogil:
    """Memory of ``size`` bytes or more, and how many: the smallest block of the pool that is large enough, else new memory. NULL
    where there is none."""
    cdef void *p = NULL
    size = max(size, <size_t>64)
    cdef bint huge = size >= 2 * HUGE_BYTES
    if home != NULL:
        convt_lock_pools()
        p = _reuse(size, home, got)
        convt_unlock_pools()
        if p != NULL:
            convt_allow(p, size)
            return <char *>p
    if posix_memalign(&p, HUGE_BYTES if huge else 64, size) != 0:
        return NULL
    if huge:  # the first touch of new memory then takes a third of the time
        convt_huge(p, size)
    got[0] = size
    return <char *>p


cdef void give_block(char *data, size_t size, Pool *home) noexcept nogil:
    """Give memory back to a pool; to the system where there is none."""
    if data == NULL or home == NULL or size > home.most:
        free(data)
        return
    convt_lock_pools()
    while home.count == CACHED_BLOCKS or home.bytes + size > home.most:
        free(_remove(home, 0))
    convt_forbid(data, size)
    home.data[home.count], home.size[home.count] = data, size
    home.count += 1
    home.bytes += size
    convt_unlock_pools()


cdef Buffer take_buffer(size_t size, Pool *home):
    """A Buffer of ``size`` bytes or more, of a pool's memory where it has some."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.data = take_block(size, home, &buffer.size)
    if buffer.data == NULL:
        raise MemoryError(f"{size} bytes of memory are not to be had")
    buffer.home = home
    return buffer


cpdef empty(tuple shape, cnp.dtype dtype):
    """np.empty that starts on a cache line: NumPy promises less, but stores of whole lines need it, and threads that write
    neighbouring channels gain by it. A large one is in memory of outputs that were dropped, where there is some of its size: new
    pages take longer than many a call."""
    return _empty(shape, dtype, &_outputs)


cdef empty_for_weights(tuple shape, cnp.dtype dtype):
    """An array as `empty` makes it, for weights that will be packed from it. Large ones use memory of earlier one-shot weights."""
    return _empty(shape, dtype, &_weights)


cdef _empty(tuple shape, cnp.dtype dtype, Pool *pool):
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
    """A contiguous int64 table, from nested Python ints."""

    def __cinit__(self, values):
        self.array = np.ascontiguousarray(values, np.int64)
        if self.array.size:
            self.p = <int64_t *>cnp.PyArray_DATA(self.array)


cdef int64_t *keep_table(list keep, values):
    """A table that lives as long as the list it is put into."""
    cdef Table table = Table(values)
    keep.append(table)
    return table.p


cdef object structures(list keep, Py_ssize_t count, Py_ssize_t size):
    """Zeroed memory for ``count`` C structures, at least one, that lives as long as the list it is put into."""
    memory = np.zeros(max(1, count) * size, np.uint8)
    keep.append(memory)
    return memory


cdef void copy_non_temporal(const convt_kernels *k, char *to, const char *from_, size_t bytes) noexcept nogil:
    """A copy whose whole cache lines are written by non-temporal stores."""
    cdef size_t head = -<size_t>to & 63, lines
    if bytes < 128:
        memcpy(to, from_, bytes)
        return
    lines = (bytes - head) & ~<size_t>63
    memcpy(to, from_, head)
    k.stream(to + head, from_ + head, lines)
    memcpy(to + head + lines, from_ + head + lines, bytes - head - lines)


cdef int64_t odd_line_stride(const convt_kernels *k, int64_t depth) noexcept:
    """Elements from row to row of a packed GEMM operand A: an odd number of cache lines, or of AMX steps of depth, so that
    rows fall into different sets of the caches."""
    cdef int64_t line = max(k.kstep, 64 // k.e_size)
    return ((depth + line - 1) // line | 1) * line


cdef size_t spread_over_sets(size_t bytes) noexcept:
    """A stride of at least ``bytes`` whose multiples fall into different sets of the caches: five lines more than a multiple
    of 4 KiB, or an odd number of lines where it is short."""
    cdef size_t lines = round64(bytes) // 64
    return (lines + (69 - lines % 64) % 64 if lines > 32 else lines | 1) * 64
