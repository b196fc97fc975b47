# Memory pools, aligned outputs, and tables for the loops: see memory.pyx.

cimport numpy as cnp
from libc.stdint cimport int64_t

from convt._run.kernels cimport convt_kernels

cdef enum:
    CACHED_BLOCKS = 8


cdef struct MemoryPool:
    # Unused blocks, oldest first. A lock guards them.
    char *data[CACHED_BLOCKS]
    size_t size[CACHED_BLOCKS]
    Py_ssize_t count
    size_t bytes, limit  # total bytes of the blocks, and their limit
    bint close_fit  # reuse a block only for requests of nearly its size, because outputs live long and may be many


cdef class Buffer:
    cdef char *data
    cdef size_t size
    cdef MemoryPool *pool


cdef class Table:
    cdef object array
    cdef int64_t *p


cdef MemoryPool *workspaces() noexcept nogil
cdef MemoryPool *one_shot_weights()
cdef char *take_block(size_t size, MemoryPool *pool, size_t *actual_size) noexcept nogil
cdef void return_block(char *data, size_t size, MemoryPool *pool) noexcept nogil
cdef Buffer take_buffer(size_t size, MemoryPool *pool)
cdef int64_t *keep_table(list keep, values)
cdef object structures(list keep, Py_ssize_t count, Py_ssize_t size)
cpdef empty(tuple shape, cnp.dtype dtype)
cdef empty_for_weights(tuple shape, cnp.dtype dtype)

cdef inline size_t round64(size_t n) noexcept nogil:
    return (n + 63) & ~<size_t>63

cdef int64_t odd_line_stride(const convt_kernels *k, int64_t depth) noexcept
cdef size_t spread_over_sets(size_t bytes) noexcept
