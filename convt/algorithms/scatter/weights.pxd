# Packed weights of `scatter` (weights.pyx).

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackClass, PanelRecipe


cdef class ScatterRecipe(PanelRecipe):
    cdef int64_t slab, tap_depth
    cdef int64_t slabs(self, PackClass *c) noexcept nogil
