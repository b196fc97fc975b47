from .api cimport onednn_const_desc, onednn_desc, onednn_primitive, onednn_primitive_desc


cdef class Primitive:
    cdef onednn_primitive_desc desc, epilogue_desc
    cdef onednn_primitive primitive, epilogue  # epilogue: NULL if bias and activation are fused
    cdef onednn_desc src, dst, bias
    cdef readonly str info  # oneDNN's name of the implementation
    cdef readonly int threads
    cdef readonly size_t scratch  # bytes of scratch memory

    cdef onednn_const_desc required_desc(self, unsigned query) noexcept nogil


cdef onednn_desc memory_desc(problem, shape, strides) except? NULL
