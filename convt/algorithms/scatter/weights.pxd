# Packed weights of `scatter` (weights.pyx).

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PanelRecipe


cdef class ScatterRecipe(PanelRecipe):
    cdef int64_t slab, bias_phases
