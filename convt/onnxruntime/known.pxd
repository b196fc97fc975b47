# Shapes of a node that were met: see known.pyx.

cimport numpy as cnp
from libc.stdint cimport int64_t

from convt._core cimport Run

cdef enum:
    KNOWN = 16      # shapes that a node keeps
    KNOWN_RANK = 8  # the most axes of a shape that is kept

cdef struct Entry:
    # A shape of X, the output's, and what computes it.
    int64_t users   # threads that read the entry or run it; WRITING while it is filled in
    int64_t until   # `known_until()` when the entry was made: it is valid while that is the same
    size_t rank
    int64_t sizes[KNOWN_RANK]
    int64_t out_sizes[KNOWN_RANK]
    bint own_threads  # the session sets the number of threads; else convt does, whose number `num_threads` changes
    void *bound       # a `_repeat.Bound`; `Known.held` keeps it and its plan alive
    void *plan
    Run run           # complete but for the addresses of data and output
    size_t room       # bytes of workspace


cdef class Known:
    cdef Entry entries[KNOWN]
    cdef list held
    cdef Py_ssize_t next

    cdef learn(self, operator, data, out, int threads)
    cdef int place(self, int rank, const cnp.npy_intp *sizes, int64_t until)
    cdef Entry *find(self, size_t rank, const int64_t *sizes) noexcept nogil


cdef void leave(Entry *entry) noexcept nogil
cdef bint compute(Entry *entry, char *data, char *out) noexcept nogil
