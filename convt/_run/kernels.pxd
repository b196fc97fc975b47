# Cython declarations of kernels/convt_kernels.h, the interface between the loops and the micro-kernels. The header documents
# each field. Only convt._core links the functions of dispatch.c; other modules call kernels through a `const convt_kernels *`.

from libc.stdint cimport int32_t, int64_t

cdef extern from "convt_kernels.h" nogil:
    enum:
        CONVT_CHECKS
        CONVT_KC
        CONVT_UNITS
        CONVT_DTYPES
        CONVT_LDA
        CONVT_LEAKY
        CONVT_PIXEL_LANES
        CONVT_INTERLEAVED
        CONVT_FITS_WEIGHTS
        CONVT_PIXEL_MR
        CONVT_DW_TERMS
        CONVT_DW_SOURCES
        CONVT_DW_PRODUCTS
        CONVT_DW_ORDERED
        CONVT_DOTS
    ctypedef struct convt_act:
        int code
        double a
        double b
    ctypedef struct convt_pending_stores:
        void *sums
        int left
    ctypedef struct convt_tile:
        int kc
        int nv
        const void *a
        const void *b
        Py_ssize_t lda
        const void *init
        Py_ssize_t init_ld
        void **rows
        Py_ssize_t row_offset
        int cols
        const convt_act *act
        int stream
        int narrow_dtype
        const void *b2
        const void *init2
        Py_ssize_t row_offset2
        const char *prefetch
        Py_ssize_t prefetch_step
        int more_tiles
        convt_pending_stores *pending
    ctypedef struct convt_dw_term:
        Py_ssize_t in_ "in"
        Py_ssize_t w
    ctypedef struct convt_dw_phase:
        const convt_dw_term *term
        int terms
        int masked
        int set_size
        int sliding
        int outputs_before
        int outputs_after
        Py_ssize_t out
        int64_t first, last
    ctypedef struct convt_dw_groups:
        int ci, groups_per_vector
        const int64_t *group_offset
        const int64_t *first
        const int64_t *lanes
        Py_ssize_t w_ld
        int dots
    ctypedef struct convt_dw:
        int n
        int cols
        int phases
        int sources
        int has_before
        int has_after
        const int64_t *vector_offset
        const int32_t *index
        int can_overread
        ptrdiff_t vector_step
        const convt_dw_phase *phase
        const void **in_ "in"
        Py_ssize_t in_offset
        Py_ssize_t in_ld
        const void **w
        const void *mask
        int mask_end
        const void *init
        void *out
        Py_ssize_t out_ld
        Py_ssize_t out_prefetch
        const convt_act *act
        int stream
        const convt_dw_groups *groups
        int v0, v1
        int64_t first_j, low_pixel, high_pixel
        int skip_outside, inputs_uncached, ordered
        const void *next_input_row
        Py_ssize_t pair_distance
    ctypedef struct convt_overlap:
        void *col
        Py_ssize_t ld
        int64_t i0, i1, j0, j1
        int terms, lanes, cols, channels, lane_lo, lane_hi
        const void *init
        void *out
        Py_ssize_t out_j, out_x, out_c
        const convt_act *act
    ctypedef struct convt_pixel_gemm:
        int kc, pixels, add
        const void *src
        Py_ssize_t cs, rs, ld
        const void *a
        void *out
    ctypedef struct convt_overlap_gather:
        const void *col
        const void *init
        const int32_t *index
        int64_t count
        int terms
        void *out
        const convt_act *act
    ctypedef struct convt_rows:
        int n, sources, shifts
        const void **in_ "in"
        const void **w
        const Py_ssize_t *shift
        const void *init
        void **rows
    ctypedef struct convt_interleave:
        int64_t phases, first, last
        int rows
        const void *row
        Py_ssize_t ld
        const void *bias
        void **out
        Py_ssize_t step
        const convt_act *act
        int stream
    ctypedef struct convt_wino_in:
        const void **in_ "in"
        void *out
        Py_ssize_t out_y, out_x
        int first, last
    ctypedef struct convt_wino_out:
        const void *in_ "in"
        Py_ssize_t in_y, in_x
        const void *init
        void **rows
        int cols
        int stream
        const convt_act *act
        void *check
    ctypedef struct convt_wino_filter:
        const void *in_ "in"
        Py_ssize_t in_step
        void *out
        Py_ssize_t out_row, out_step
        int n, cols, rows, stream
        const int64_t *start
        const int64_t *offset
        const void *scale
    ctypedef struct convt_kernels:
        int mr[3]
        int wide, nr, vl, kstep, grain, prefetch_interval, lda, parts, s_size, e_size, t_size
        int direct_store, narrow_dtype, reach
        void (*tile)(int mr, const convt_tile *tile) noexcept nogil
        void (*flush_stores)(convt_pending_stores *pending) noexcept nogil
        void (*copy_non_temporal)(void *dst, const void *src, size_t bytes) noexcept nogil
        void (*fence)() noexcept nogil
        void (*begin_tiles)() noexcept nogil
        void (*end_tiles)() noexcept nogil
        void (*depthwise)(const convt_dw *run) noexcept nogil
        void (*rows)(int mr, const convt_rows *run) noexcept nogil
        void (*interleave)(const convt_interleave *run) noexcept nogil
        int (*wino_in)(int ny, int nx, const convt_wino_in *tile) noexcept nogil
        int (*wino_rows)(int ny, int nx, const convt_wino_in *tile) noexcept nogil
        void (*wino_out)(int kind_y, int kind_x, const convt_wino_out *tile) noexcept nogil
        int (*wino_filter)(const convt_wino_filter *panel) noexcept nogil
        int (*pack)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                    int padded) noexcept nogil
        int (*pack_uncached)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                             int padded) noexcept nogil
        void (*transpose)(void *dst, Py_ssize_t ld, Py_ssize_t dc, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows,
                          int cols, int stream) noexcept nogil
        int (*widen)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                     int padded) noexcept nogil
        void (*narrow)(void *dst, Py_ssize_t ld, Py_ssize_t dc, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows,
                       int cols, int stream) noexcept nogil
        void (*gather)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, const int64_t *map, int rows, int cols,
                       int cols_writable) noexcept nogil
        void (*pixel_gemm)(int mr, const convt_pixel_gemm *run) noexcept nogil
        void (*overlap)(const convt_overlap *o) noexcept nogil
        void (*overlap_pixels)(const convt_overlap *o) noexcept nogil
        void (*overlap_gather)(const convt_overlap_gather *o) noexcept nogil
        int (*finite)(const void *p, size_t bytes) noexcept nogil
        int (*pack_b)(void *dst, int k0, int n0, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                      int nb) noexcept nogil
        void (*store)(void **rows, Py_ssize_t cs, const void *src, Py_ssize_t ld, int mr, int cols,
                      const convt_act *act) noexcept nogil
        void (*add)(void *to, const void *from_, int64_t n, const convt_act *act) noexcept nogil
    ctypedef struct convt_isa:
        const char *name
        convt_kernels set[CONVT_UNITS][CONVT_DTYPES]
        double (*peak[CONVT_UNITS])(int dtype, double seconds) noexcept nogil
    void convt_prefetch_row_l1(const char *row, Py_ssize_t bytes)
    void convt_prefetch_row_l2(const char *row, Py_ssize_t bytes)
    int64_t convt_quotient(int64_t a, int64_t b)
    long convt_cache_bytes(int level)
    int convt_isa_count()
    const convt_isa *convt_isa_at(int index)
    int convt_isa_available(int index)

cdef enum:
    MOST_ROWS = 32  # maximum rows of a register tile over all instruction sets
