# cython: boundscheck=True, wraparound=True
"""Executions of primitives: a stream with the arguments of a call, and scratch memory. Used by primitive, weights and run."""

cimport numpy as cnp
from libc.stdint cimport uintptr_t

import numpy as np

from .api cimport *
from .library cimport api, engine

cnp.import_array()


cdef class Call:
    """A stream, and the memory objects of the arguments of an execution. One thread uses it at a time."""

    cdef unsigned bind(self, int arg, onednn_const_desc desc, void *data) noexcept nogil:
        """Add an argument. `set_data` can set its data later. Return oneDNN's status."""
        cdef onednn_memory memory = NULL
        cdef unsigned status = api().dnnl_memory_create(&memory, desc, engine(), data)
        if not status:
            self.args[self.count].arg, self.args[self.count].memory = arg, memory
            self.count += 1
        return status

    cdef unsigned set_data(self, int n, void *data) noexcept nogil:
        """Set the data of the n-th argument. Return oneDNN's status."""
        return api().dnnl_memory_set_data_handle(self.args[n].memory, data)

    cdef unsigned execute(self, onednn_primitive primitive) noexcept nogil:
        """Execute a primitive and wait for its end. Return oneDNN's status."""
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


_spare_scratch = []  # scratch memory of finished calls, for later calls; append and pop of a list are atomic


cdef take_scratch(size_t size):
    """Return an array that has ``size`` bytes after its first cache line boundary (`aligned`)."""
    try:
        memory = _spare_scratch.pop()
        if memory.nbytes >= size + 64:
            return memory
    except IndexError:
        pass
    return np.empty(size + 64, np.uint8)


cdef give_scratch(memory):
    """Keep scratch memory for later calls, at most 8 arrays."""
    if len(_spare_scratch) < 8:
        _spare_scratch.append(memory)


cdef void *aligned(memory) noexcept:
    """Return the address of the first cache line boundary in an array of bytes."""
    return <void *>((<uintptr_t>cnp.PyArray_DATA(memory) + 63) & ~<uintptr_t>63)
