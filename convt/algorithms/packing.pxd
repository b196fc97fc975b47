# Recipes of packed weights (packing.pyx).

from libc.stdint cimport int64_t

from convt._core cimport PackedFilter
from convt._run.kernels cimport convt_kernels
from convt._run.memory cimport Buffer


cdef struct PackClass:
    # A pack class: the weights of one choice of a phase group per axis. Columns are (phase, out-channel), rows (tap,
    # in-channel).
    int64_t nphases, ntaps, ncols, npanels, depth
    int64_t *taps            # [nphases][ntaps] byte offset of each tap in the filter, NO_TAP for a tap that a phase lacks
    # The following fields are for winograd, whose rows are (point, tap window, in-channel).
    int64_t npoints, nwindows # 0 if the class is not transformed
    int64_t *window_start    # [nwindows + 1] index in `window_taps` of the first tap of each window
    int64_t *window_taps     # taps of all windows
    int64_t *start           # [nwindows * npoints + 1] index in `at` and `scale` of the first term of each (window, point)
    int64_t *at              # for each term, the offset of its tap in the stage
    char *scale              # for each term, its coefficient (T)
    int64_t *widths          # [npanels][npoints] number of vectors of columns up to the last one with weights at a point
    bint nested              # some phase lacks taps
    size_t weights, bias     # offsets of the class in the packed weights and bias
    size_t group_weights, group_bias  # bytes per channel group
    int64_t first_job, njobs # jobs of the class; a job packs some in-channels of one panel of one channel group
    int64_t job_channels, panel_jobs  # in-channels of a job, and jobs of a panel


cdef struct CopyJob:
    # The fields of a `Copy`. `map` is NULL if columns have a constant stride.
    int64_t src, dst, ld, rs, cs, rows, cols, padded
    int64_t count[3]
    int64_t src_step[3]
    int64_t dst_step[3]
    int64_t *map
    bint ones           # the copy sets bits and reads nothing
    int64_t first_job   # number of the first job of a recipe that it is; each index of the first loop is one


cdef int64_t NO_TAP
cdef int64_t offset_of(int64_t tap) noexcept nogil

cdef class PackRecipe:
    cdef const convt_kernels *k
    cdef readonly size_t weight_bytes, bias_bytes
    cdef int64_t groups, ci, co, ci_p, ntaps
    cdef int64_t sg, si, so
    cdef readonly int64_t out_channel_stride  # `so`
    cdef int64_t bias_stride
    cdef size_t stage_bytes
    cdef int64_t jobs
    cdef object shape, tap_strides
    cdef list keep           # references to the tables that the structures point into
    cdef CopyJob *bias_jobs  # copies of the bias
    cdef int64_t nbias_jobs

    cdef open_recipe(self, str dtype, filter, bias, str unit)
    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=*, bint on_the_fly=*)
    cdef set_bias(self, copies)
    cdef PackedFilter allocate(self, size_t weight_bytes, bias, bint persistent)
    cdef bint pack_weights(self, filter, PackedFilter packed, int threads) except -1
    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil


cdef class PanelRecipe(PackRecipe):
    cdef int (*packed_finite)(const void *p, size_t bytes) noexcept nogil
    cdef PackClass *classes
    cdef Py_ssize_t nclasses
    cdef object structures
    cdef int64_t stage_channels

    cdef size_class(self, PackClass *c, Py_ssize_t index)
    cdef bint pack_job(self, PackClass *c, int64_t job, char *src, char *dst, char *stage) noexcept nogil
    cdef bint is_source_finite(self, filter, int threads)
    cdef bint pack_tap(self, PackClass *c, int64_t n, int64_t t, int64_t low, int64_t last, char *src, char *dst) noexcept nogil
    cdef const char *source_at(self, PackClass *c, int64_t n, int64_t point, int64_t first, char *src) noexcept nogil
    cdef int64_t piece(self, PackClass *c, int64_t column, int64_t end, char *src, char **from_, int64_t **taps) noexcept nogil


cdef bint pack_depth(PanelRecipe recipe, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src,
                     char *dst) noexcept nogil
