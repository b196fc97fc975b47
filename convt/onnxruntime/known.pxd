# Input shapes of a node seen before: see known.pyx.

cimport numpy as cnp
from libc.stdint cimport int64_t

from convt._core cimport RunArguments

cdef enum:
    KNOWN = 16      # entries of a node
    KNOWN_RANK = 8  # maximum rank of a shape in an entry

cdef struct Entry:
    # Shapes of X and the output, and what is needed to compute the output.
    int64_t users   # number of threads that read or run the entry; plus CONVT_WRITING while a thread writes it
    int64_t version  # `known_calls_version()` at the time of writing; the entry is valid while that value is unchanged
    size_t rank
    int64_t sizes[KNOWN_RANK]
    int64_t out_sizes[KNOWN_RANK]
    bint adds  # the node adds an array of the output's shape
    bint fixed_threads  # the session sets the number of threads; otherwise `convt.num_threads` may change it
    void *bound       # a `_repeat.Bound`; `Known.references` keeps the Bound and its plan alive
    void *plan
    RunArguments run  # arguments of the plan, except the addresses of data and output
    size_t workspace_bytes


cdef class Known:
    cdef Entry entries[KNOWN]
    cdef list references
    cdef Py_ssize_t next

    cdef remember(self, operator, data, out, int threads, bint adds)
    cdef int entry_index(self, int rank, const cnp.npy_intp *sizes, int64_t version)
    cdef Entry *find(self, size_t rank, const int64_t *sizes) noexcept nogil


cdef void release(Entry *entry) noexcept nogil
cdef bint compute(Entry *entry, char *data, char *out, const char *add) noexcept nogil
