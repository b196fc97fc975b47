# unpacked's loops: see loops.pyx.

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call, Plan
from convt.algorithms.unpacked.weights cimport UnpackedRecipe


cdef class UnpackedPlan(Plan):
    cdef UnpackedRecipe recipe
    cdef list keep
    cdef object places
    cdef int32_t *index       # what outputs of an image sum, by vectors: places of bias and of products
    cdef int64_t *runs        # pixels at a constant stride: (elements to the first one, number)
    cdef int64_t nruns
    cdef int64_t *out_rows    # elements to each row of outputs, of all images
    cdef int64_t rows_of_image, row
    cdef bint in_place        # weights are not copied
    cdef bint dense           # outputs of a channel of an image are one stretch: they are stored at once
    cdef int64_t channels, blocks, depth, ld, taps, pixels, image_pixels, outputs
    cdef int terms
    cdef size_t at_pixels, at_rows, at_weights, at_products, at_sums  # in the workspace

    cdef void copy_weights(self, const char *src, int64_t depth, int64_t columns, int64_t step, char *to) noexcept nogil
    cdef void multiply_rows(self, int64_t first, int64_t depth, int64_t columns, const char *src, int64_t step, char *ws) noexcept nogil
    cdef void multiply(self, int64_t first, int64_t depth, int64_t columns, char *ws) noexcept nogil
    cdef void add_up(self, int64_t group, int64_t first, int64_t count, const Call *call, char *ws) noexcept nogil
