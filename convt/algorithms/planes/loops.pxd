# By blocks: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_kernels
from convt.algorithms.packing cimport PackRecipe


cdef struct Side:
    # How blocks lie in data or output, whose axes are images and the spatial axes.
    int64_t *size             # of the array,
    int64_t *block            # of a block, which starts at `first` + n * `step`,
    int64_t *first
    int64_t *step
    int64_t *stride           # and elements from index to index of the array
    int64_t channel, channels # elements between channels
    int64_t run_axis          # axes after this one are whole, and pixels at a constant stride from this one on:
    int64_t pixels, pixel     # pixels of an index of it, and elements between them


cdef class WideRecipe(PackRecipe):
    cdef readonly PackRecipe inner
    cdef str dtype


cdef class PlanesPlan(Plan):
    cdef Plan inner
    cdef const convt_kernels *mover  # of the array's type
    cdef bint widens          # blocks are of the accumulators' type, which is another
    cdef Py_ssize_t total     # blocks
    cdef bint apart           # blocks are tasks of threads of their own
    cdef bint stream          # outputs take non-temporal stores
    cdef list keep
    cdef int64_t *count       # blocks of images and of each axis
    cdef Side ins, outs
    cdef size_t data_at, outputs_at, block_bytes  # of a block, in the workspace; the inner plan's follows

    cdef void move(self, Side *side, int64_t block, char *array, char *own, bint inward, int64_t part, int64_t parts) noexcept nogil
    cdef void move_run(self, Side *side, char *array, char *own, int64_t n, bint inward) noexcept nogil
    cdef void move_together(self, Side *side, int64_t block, char *array, char *own, bint inward, int threads) noexcept nogil
