from .api cimport onednn_const_desc, onednn_exec_arg, onednn_primitive, onednn_stream


cdef class Call:
    cdef onednn_stream stream
    cdef onednn_exec_arg args[5]
    cdef int count
    cdef Call epilogue  # the call of the second primitive, if bias and activation are not fused

    cdef unsigned bind(self, int arg, onednn_const_desc desc, void *data) noexcept nogil
    cdef unsigned set_data(self, int n, void *data) noexcept nogil
    cdef unsigned execute(self, onednn_primitive primitive) noexcept nogil


cdef take_scratch(size_t size)
cdef give_scratch(memory)
cdef void *aligned(memory) noexcept
