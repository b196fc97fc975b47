# Shapes of a node that were met: see known.pyx.

cimport numpy as cnp
from libc.stdint cimport int64_t

from convt._core cimport Run

cdef enum:
    KNOWN = 16      # shapes of a node
    KNOWN_RANK = 8  # axes of them

cdef struct Entry:
    # A shape of X, the output's, and what computes it.
    int64_t users   # threads that read the entry or run it; WRITING while it is filled in
    int64_t until   # as `known_until` had it
    size_t rank
    int64_t sizes[KNOWN_RANK]
    int64_t out_sizes[KNOWN_RANK]
    bint own_threads  # the number of threads is the session's; else convt's own, which a `num_threads` changes
    void *bound       # a Bound of _repeat, and its plan, which the table's list holds
    void *plan
    Run run           # all but data and output
    size_t room


cdef class Known:
    cdef Entry entries[KNOWN]
    cdef list held
    cdef Py_ssize_t next

    cdef learn(self, operator, data, out, int threads)
    cdef int place(self, int rank, const cnp.npy_intp *sizes, int64_t until)
    cdef Entry *find(self, size_t rank, const int64_t *sizes) noexcept nogil


cdef void leave(Entry *entry) noexcept nogil
cdef bint compute(Entry *entry, char *data, char *out) noexcept nogil
