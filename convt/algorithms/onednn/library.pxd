from .api cimport onednn_api, onednn_engine

# Valid once `opened` has returned: before, no entry point is there and the engine is NULL.
cdef onednn_api *api() noexcept nogil
cdef onednn_engine engine() noexcept nogil

cdef bint has_threads() noexcept nogil
cdef int use_threads(int count) noexcept nogil
cdef int check(unsigned status, str asked, problem) except -1
