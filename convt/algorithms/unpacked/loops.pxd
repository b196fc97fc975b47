# The loops of unpacked: see loops.pyx.

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call, NativePlan
from convt.algorithms.unpacked.weights cimport UnpackedRecipe


cdef class UnpackedPlan(NativePlan):
    cdef UnpackedRecipe recipe
    cdef list keep
    cdef object index_array   # owner of `index`
    cdef int32_t *index       # [vector of outputs of an image][1 + term][lane] index of the bias (0), then of each product
    cdef int64_t *runs        # [run] (offset of the first pixel in elements, pixels) of a run at a constant stride
    cdef int64_t nruns
    cdef int64_t *out_rows    # [output row of all images] offset in elements
    cdef int64_t image_rows, row_outputs  # output rows of an image; outputs of a row
    cdef bint in_place        # weights are multiplied without a copy
    cdef bint dense           # outputs of a channel of an image are contiguous, and stored without a transpose
    cdef int64_t channels, blocks, depth, ld, taps, pixels, image_pixels, outputs
    cdef int terms
    cdef size_t at_pixels, at_rows, at_weights, at_products, at_sums  # byte offsets of regions of the workspace

    cdef void copy_weights(self, const char *src, int64_t depth, int64_t columns, int64_t step, char *panels) noexcept nogil
    cdef void multiply_rows(self, int64_t first, int64_t depth, int64_t columns, const char *src, int64_t step, char *ws) noexcept nogil
    cdef void multiply(self, int64_t first, int64_t depth, int64_t columns, char *ws) noexcept nogil
    cdef void sum_products(self, int64_t group, int64_t first, int64_t count, const Call *call, char *ws) noexcept nogil
