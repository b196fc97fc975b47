# Calls seen before, which integrations compute without Python and the GIL: see known.pyx.

from libc.stdint cimport int64_t, uint64_t

from convt._core cimport RunArguments

cdef enum:
    KNOWN = 16      # entries of a Known
    KNOWN_RANK = 8  # maximum rank of a shape in an entry

cdef struct Entry:
    # Shapes of data and output, and what is needed to compute the output.
    int64_t users   # number of threads that read or run the entry; plus CONVT_WRITING while a thread writes it
    int64_t version  # `known_calls_version()` at the time of writing; the entry is valid while that value is unchanged
    uint64_t weights  # of weights that come with each call: their checksum, 1 for constants; 0 if the operator has them
    size_t rank
    int64_t sizes[KNOWN_RANK]
    int64_t out_sizes[KNOWN_RANK]
    bint adds  # the call adds an array of the output's shape
    bint fixed_threads  # the host sets the number of threads; otherwise `convt.num_threads` may change it
    void *call        # a `repeat.PreparedCall`; `Known.references` keeps it and its plan alive
    void *plan
    RunArguments run  # arguments of the plan, except the addresses of data and output
    size_t workspace_bytes


cdef bint compute_entry(Entry *entry, char *data, char *out, const char *add) noexcept nogil
cdef void leave_entry(Entry *entry) noexcept nogil


cdef class Known:
    cdef Entry entries[KNOWN]
    cdef list references
    cdef Py_ssize_t next

    cdef remember(self, operator, data, out, int threads, bint adds, uint64_t weights)
    cdef int entry_index(self, int rank, const int64_t *sizes, uint64_t weights, int64_t version)
    cdef Entry *find(self, size_t rank, const int64_t *sizes, uint64_t weights) noexcept nogil
