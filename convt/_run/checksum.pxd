# C interface of checksum.

from libc.stdint cimport uint64_t


cdef uint64_t checksum_of_bytes(const char *p, Py_ssize_t bytes, int threads) noexcept nogil
cdef uint64_t checksum_of_samples(const char *p, Py_ssize_t bytes) noexcept nogil
