# cython: boundscheck=True, wraparound=True
"""One execution of a primitive: its stream, its arguments, its scratch memory."""

cimport numpy as cnp
from libc.stdint cimport uintptr_t

import numpy as np

from .api cimport *
from .library cimport api, engine

cnp.import_array()


cdef class Call:
    """What one execution uses, by one thread at a time: a stream, and the memory objects of its arguments."""

    cdef unsigned bind(self, int arg, onednn_const_desc desc, void *data) noexcept nogil:
        """Add an argument; its data may be set later, by `place`."""
        cdef onednn_memory memory = NULL
        cdef unsigned status = api().dnnl_memory_create(&memory, desc, engine(), data)
        if not status:
            self.args[self.count].arg, self.args[self.count].memory = arg, memory
            self.count += 1
        return status

    cdef unsigned place(self, int n, void *data) noexcept nogil:
        return api().dnnl_memory_set_data_handle(self.args[n].memory, data)

    cdef unsigned execute(self, onednn_primitive primitive) noexcept nogil:
        cdef unsigned status = 0
        if self.stream == NULL:
            status = api().dnnl_stream_create(&self.stream, engine(), ONEDNN_dnnl_stream_in_order)
        status = status or api().dnnl_primitive_execute(primitive, self.stream, self.count, self.args)
        return status or api().dnnl_stream_wait(self.stream)

    def __dealloc__(self):
        cdef int n
        for n in range(self.count):
            api().dnnl_memory_destroy(self.args[n].memory)
        if self.stream != NULL:
            api().dnnl_stream_destroy(self.stream)


_spare = []  # scratch memory of finished calls, for later ones; a list's append and pop are atomic


cdef take_scratch(size_t size):
    """An array of bytes that holds ``size`` of them from its first cache line boundary on; see `aligned`."""
    try:
        memory = _spare.pop()
        if memory.nbytes >= size + 64:
            return memory
    except IndexError:
        pass
    return np.empty(size + 64, np.uint8)


cdef give_scratch(memory):
    if len(_spare) < 8:
        _spare.append(memory)


cdef void *aligned(memory) noexcept:
    """The first cache line boundary in an array of bytes."""
    return <void *>((<uintptr_t>cnp.PyArray_DATA(memory) + 63) & ~<uintptr_t>63)
