# How weights become panels: see packing.pyx. Winograd, scatter and depthwise extend these recipes in rooms of their own.

from libc.stdint cimport int64_t

from convt._core cimport PackedFilter
from convt._kernels cimport convt_kernels
from convt._memory cimport Buffer


cdef struct PackClass:
    # Weights that one class of phases reads: panels of columns (phase, out-channel) and rows (tap, in-channel).
    int64_t nphases, ntaps, ncols, npanels, depth
    int64_t *taps            # [nphases][ntaps] byte offset of each tap in the filter, NO_TAP where a phase has none
    int64_t together, step   # columns at a constant stride `step`, in elements: `together` of them, the out-channels of a phase, or
                             # all phases where there is one channel and they lie at a constant stride
    # Winograd's: rows are the points of each window, instead of taps.
    int64_t npoints, nwindows # 0 where rows are taps
    int64_t *window_start    # [nwindows + 1] in `window_taps`
    int64_t *window_taps     # which taps each window has
    int64_t *start           # [nwindows][npoints], and the end: the terms of each row
    int64_t *at              # where the tap of each term is staged
    char *scale              # T: its coefficient
    int64_t *widths          # [npanels][npoints]: beyond so many vectors of columns a point has no weights
    bint nested              # some phase has not all taps
    size_t weights, bias     # where the class starts in the buffers
    size_t group_weights, group_bias
    int64_t first_job, njobs # a job packs some in-channels of one panel of one group
    int64_t share, shares    # how many of them, and the jobs of a panel


cdef int64_t NO_TAP
cdef int64_t offset_of(int64_t tap) noexcept nogil

cdef class PackRecipe:
    cdef const convt_kernels *k
    cdef readonly size_t weight_bytes, bias_bytes
    cdef int64_t groups, ci, co, ci_p, ntaps
    cdef int64_t sg, si, so
    cdef readonly int64_t out_channel_stride  # `so`
    cdef int64_t bias_stride
    cdef size_t staged
    cdef object shape, tap_strides

    cdef open_recipe(self, str dtype, filter, bias, str unit)
    cpdef PackedFilter pack(self, filter, bias, int threads, bint lasting=*, bint on_the_fly=*)
    cdef PackedFilter room(self, size_t weight_bytes, bint lasting)


cdef class PanelRecipe(PackRecipe):
    cdef int (*packed_finite)(const void *p, size_t bytes) noexcept nogil
    cdef PackClass *classes
    cdef Py_ssize_t nclasses
    cdef object structures
    cdef list keep
    cdef int64_t jobs
    cdef int64_t some

    cdef size_class(self, PackClass *c, Py_ssize_t index)
    cdef void pack_bias(self, char *src, char *dst) noexcept nogil
    cdef bint pack_job(self, PackClass *c, int64_t job, char *src, char *dst, char *stage) noexcept nogil
    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil
    cdef bint finite_source(self, filter, int threads)
    cdef bint pack_tap(self, PackClass *c, int64_t n, int64_t t, int64_t low, int64_t last, char *src, char *dst) noexcept nogil
    cdef bint pack_depth(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src, char *dst) noexcept nogil
    cdef const char *source_at(self, PackClass *c, int64_t n, int64_t point, int64_t first, char *src) noexcept nogil
    cdef int64_t piece(self, PackClass *c, int64_t column, int64_t end, char *src, char **from_, int64_t **taps) noexcept nogil
