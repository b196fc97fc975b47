from .api cimport onednn_api, onednn_engine

# `api` and `engine` are valid after `opened` has returned. Before, all entry points and the engine are NULL.
cdef onednn_api *api() noexcept nogil
cdef onednn_engine engine() noexcept nogil

cdef bint has_threads() noexcept nogil
cdef int use_threads(int count) noexcept nogil
cdef int check(unsigned status, str request, problem) except -1
