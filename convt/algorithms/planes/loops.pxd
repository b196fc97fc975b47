# The loops of planes: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_kernels
from convt.algorithms.packing cimport PackRecipe


cdef struct Side:
    # The blocks in data or in the output. Its axes are images and the spatial axes; each table has an entry per axis.
    int64_t *size             # indices of the array
    int64_t *block            # indices of a block; block n starts at index first + n * step
    int64_t *first
    int64_t *step
    int64_t *stride           # elements between indices of the array
    int64_t channel, channels # elements between channels; number of channels
    int64_t run_axis          # from this axis on, pixels are at a constant stride; blocks contain the later axes whole
    int64_t pixels, pixel     # pixels of one index of `run_axis`; elements between pixels


cdef class WideRecipe(PackRecipe):
    cdef readonly PackRecipe inner
    cdef str dtype


cdef class PlanesPlan(Plan):
    cdef Plan inner
    cdef const convt_kernels *array_kernels  # kernels of the dtype of the arrays
    cdef bint widens          # blocks are float32, arrays have a 16-bit dtype
    cdef Py_ssize_t total     # number of blocks
    cdef bint parallel_blocks # each block is a task; otherwise all threads share each step of one block after the other
    cdef bint stream          # non-temporal stores write the outputs
    cdef list keep
    cdef int64_t *count       # number of blocks of images and of each spatial axis
    cdef Side ins, outs
    # byte offsets of a block's data and outputs in the workspace; their bytes. The workspace of the inner plan follows.
    cdef size_t data_at, outputs_at, block_bytes

    cdef void move(self, Side *side, int64_t block, char *array, char *buffer, bint inward, int64_t part,
                   int64_t parts) noexcept nogil
    cdef void move_run(self, Side *side, char *array, char *buffer, int64_t n, bint inward) noexcept nogil
    cdef void move_in_parallel(self, Side *side, int64_t block, char *array, char *buffer, bint inward,
                               int threads) noexcept nogil
