# cython: language_level=3
"""The core: OpenMP loops over cache blocks that feed the micro-kernels. Knows layouts only as strides.

Four algorithms, each a plan class that holds flat tables made by its module in _plans and runs on views in NXC axis order:

* DirectPlan: every phase is an implicit GEMM. Rows are pixels of the phase, across rows and images; columns are out
  channels, of several phases where those read the same inputs; depth is taps times in-channels. Tasks are blocks of
  rows by blocks of panels: a block's input is packed once per depth chunk (gathering the taps, zeros outside the input),
  unless it lies in memory as the GEMM wants it, then meets every weight panel of the task.
* WinogradPlan: phases of two taps or more with fewer multiplications. Tasks are blocks of tiles by blocks of panels;
  tiles are transformed, multiplied point by point and transformed back within the caches. Its other classes are DirectPlan's.
* ScatterPlan: for few out channels. Along x the GEMM makes every tap's products at once (columns are taps times out
  channels), which are overlap-added in the cache; across the other axes it gathers. A task is a stretch of some output rows,
  which keeps the input rows that it has packed.
* DepthwisePlan: for small groups. Vectors are out channels of many groups; a task is a stretch of an output row.

Nothing below can fail: sizes were checked above, memory is taken before the parallel region.
"""

import heapq
import itertools
import os

cimport cython
from cython.parallel cimport parallel, prange, threadid
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

cimport numpy as cnp

import numpy as np

cnp.import_array()

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size)

cdef extern from *:
    """
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    #ifdef MADV_HUGEPAGE
    #define convt_huge(p, size) madvise(p, size, MADV_HUGEPAGE)
    #else
    #define convt_huge(p, size) ((void)(p), (void)(size))
    #endif
    """
    void convt_huge(void *p, size_t size) nogil

cdef extern from "convt_kernels.h" nogil:
    enum:
        CONVT_KC
        CONVT_LDA
        CONVT_LEAKY
        CONVT_ACROSS
        CONVT_ACROSS_MR
        CONVT_DW_TERMS
        CONVT_DW_SOURCES
        CONVT_DW_PRODUCTS
        CONVT_DW_ORDERED
        CONVT_DOTS
    ctypedef struct convt_act:
        int code
        double a
        double b
    ctypedef struct convt_late:
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
        Py_ssize_t at
        int cols
        const convt_act *act
        int stream
        const void *b2
        const void *init2
        Py_ssize_t at2
        const char *ahead
        Py_ssize_t ahead_step
        int more
        convt_late *late
    ctypedef struct convt_dw_term:
        Py_ssize_t in_ "in"
        Py_ssize_t w
    ctypedef struct convt_dw_phase:
        const convt_dw_term *term
        int terms
        int cut
        int sharing
        int sliding
        int before
        int after
        Py_ssize_t out
        int64_t first, last
    ctypedef struct convt_dw_groups:
        int ci, each
        const int64_t *at
        const int64_t *first
        const int64_t *lanes
        Py_ssize_t w_ld
        int dots
    ctypedef struct convt_dw:
        int n
        int cols
        int phases
        int sources
        int low
        int high
        const int64_t *at
        const int32_t *index
        int room
        ptrdiff_t apart
        const convt_dw_phase *phase
        const void **in_ "in"
        Py_ssize_t from_ "from"
        Py_ssize_t in_ld
        const void **w
        const void *mask
        int none
        const void *init
        void *out
        Py_ssize_t out_ld
        Py_ssize_t ahead
        const convt_act *act
        int stream
        const convt_dw_groups *groups
        int v0, v1
        int64_t start, low_pixel, high_pixel
        int skips, far, ordered
        const void *coming
        Py_ssize_t beside
    ctypedef struct convt_overlap:
        void *col
        Py_ssize_t ld
        int64_t i0, i1, j0, j1
        int terms, lanes, cols, channels, lane_lo, lane_hi
        const void *init
        void *out
        Py_ssize_t out_j, out_x, out_c
        const convt_act *act
    ctypedef struct convt_across:
        int kc, pixels, add
        const void *src
        Py_ssize_t cs, ld
        const void *a
        void *out
    ctypedef struct convt_picked:
        const void *col
        const void *init
        const int32_t *index
        int64_t count
        int terms
        void *out
        const convt_act *act
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
        const int64_t *at
        const void *scale
    ctypedef struct convt_kernels:
        int mr[3]
        int wide, nr, vl, kstep, grain, pace, lda, parts, s_size, e_size, t_size, direct_store, reach
        void (*tile)(int mr, const convt_tile *tile) noexcept nogil
        void (*flush)(convt_late *late) noexcept nogil
        void (*stream)(void *dst, const void *src, size_t bytes) noexcept nogil
        void (*fence)() noexcept nogil
        void (*enter)() noexcept nogil
        void (*leave)() noexcept nogil
        void (*depthwise)(const convt_dw *run) noexcept nogil
        int (*wino_in)(int ny, int nx, const convt_wino_in *tile) noexcept nogil
        int (*wino_rows)(int ny, int nx, const convt_wino_in *tile) noexcept nogil
        void (*wino_out)(int kind_y, int kind_x, const convt_wino_out *tile) noexcept nogil
        int (*wino_filter)(const convt_wino_filter *panel) noexcept nogil
        int (*pack)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                    int padded) noexcept nogil
        int (*pack_far)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                    int padded) noexcept nogil
        int (*widen)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                     int padded) noexcept nogil
        void (*gather)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, const int64_t *map, int rows, int cols,
                       int room) noexcept nogil
        void (*across)(int mr, const convt_across *run) noexcept nogil
        void (*overlap)(const convt_overlap *o) noexcept nogil
        void (*overlap_across)(const convt_overlap *o) noexcept nogil
        void (*overlap_picked)(const convt_picked *o) noexcept nogil
        int (*finite)(const void *p, size_t bytes) noexcept nogil
        int (*pack_b)(void *dst, int k0, int n0, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                      int nb) noexcept nogil
        void (*store)(void **rows, Py_ssize_t cs, const void *src, Py_ssize_t ld, int mr, int cols,
                      const convt_act *act) noexcept nogil
    ctypedef struct convt_isa:
        const char *name
        const convt_kernels *set
        const convt_kernels *matrix
        double (*peak)(int dtype, double seconds) noexcept nogil
    void convt_prefetch_row(const char *row, Py_ssize_t bytes)
    void convt_prefetch_ahead(const char *row, Py_ssize_t bytes)
    int64_t convt_quotient(int64_t a, int64_t b)
    long convt_cache_bytes(int level)
    int convt_isa_count()
    const convt_isa *convt_isa_at(int index)
    int convt_isa_available(int index)
    int convt_isa_preferred(int index)

cdef enum:
    MOST_ROWS = 32  # of a tile, of any instruction set; of two of vectors

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    #define CONVT_OPENMP _OPENMP
    #define convt_team_size omp_get_num_threads
    #else
    #define CONVT_OPENMP 0
    #define convt_team_size() 1
    #endif
    #ifdef __VERSION__
    #define CONVT_COMPILER __VERSION__
    #else
    #define CONVT_COMPILER "unknown"
    #endif
    """
    int CONVT_OPENMP
    int convt_team_size() nogil
    const char *CONVT_COMPILER

_DTYPES = ("float32", "float64", "float16", "bfloat16")
_ACTIVATIONS = {"none": 0, "clip": 1, "relu": 1, "leaky_relu": 2, "tanh": 3, "sigmoid": 4, "gelu": 5, "swish": 6}

KC, ACROSS, ALIAS, SHALLOW = CONVT_KC, CONVT_ACROSS, ALIAS_BYTES, SHALLOW_DEPTH
DW_TERMS, DW_SOURCES, DW_PRODUCTS, DOTS = CONVT_DW_TERMS, CONVT_DW_SOURCES, CONVT_DW_PRODUCTS, CONVT_DOTS
# The data caches of a core, and the last level: of this CPU, or of a small one where it does not say.
L1_BYTES = convt_cache_bytes(1) or 1 << 15
L2_BYTES = convt_cache_bytes(2) or 1 << 20
L3_BYTES = convt_cache_bytes(3) or 1 << 24
# Cores with 32 KiB of first-level cache, as Intel's before Ice Lake, also have few fill buffers: stores that bypass the caches
# hold those which fetch panels meanwhile. There GEMM tiles do not do so, and a panel is used for all rows while it is near.
KEEP_PANELS = L1_BYTES <= 1 << 15
STREAM_BYTES = min(1 << 24, L3_BYTES // 4)  # outputs beyond this bypass the caches
SMALL_CYCLES = 8_000  # expected ones, below which a second thread costs more than it gains
BRIEF_FLOPS = 50_000_000  # below this a thread does its tasks in less time than it may have to wait for others' weights
PAST_BYTES = min(5 << 24, L3_BYTES)  # inputs and outputs of depthwise, which does nothing but wait for memory
ORDERED_BYTES = 5 << 24  # the same where outputs can be written in order
PASSED_BYTES = 11 << 22  # those of matrix, if data and result take more
PARALLEL_PACK_BYTES = 1 << 18
PASSING_BYTES = 1 << 18  # weights from which on tasks of a one-shot call pack what they multiply,
PASSING_AGAIN = 2  # if that is no more than so many times as much
cdef int64_t NEAR_BYTES = L2_BYTES >> 3  # a task's weights up to this stay in the second-level cache beside its rows
cdef enum:
    PACK_JOB_BYTES = 1 << 17  # of packed weights that a thread makes at a time
    PACK_STREAM_BYTES = 1 << 22  # transformed weights beyond this bypass the caches
    PASSING_TERMS = 27  # of a point, of three axes of three taps
    GRABS = 32  # shares of a thread's tasks
    HUGE_BYTES = 1 << 21  # of a huge page
    FAR_BYTES = 1 << 19  # weights beyond this do not stay in the second-level cache
    APART_BYTES = 3 << 10  # of a pixel's outputs in a row, from which the next one's are in another page
    SHALLOW_DEPTH = 32  # up to which a tile is done so soon that what is between tiles counts
    ALIAS_BYTES = 1 << 12  # so far apart, lines share a set of the first-level cache, which holds 8 or 12
    FINITE_BYTES = 1 << 16  # that a thread looks at in one go


# ---------------------------------------------------------------- what this build and this CPU offer

def openmp():
    """The OpenMP version this build uses, as a string, or an empty one."""
    return str(CONVT_OPENMP) if CONVT_OPENMP else ""


def compiler():
    return CONVT_COMPILER.decode()


def isa_rows():
    """The instruction sets built, from least to most; whether this CPU can run them, and should unasked."""
    return [
        {
            "name": convt_isa_at(i).name.decode(),
            "available": bool(convt_isa_available(i)),
            "preferred": bool(convt_isa_preferred(i)),
        }
        for i in range(convt_isa_count())
    ]


cdef const convt_isa *_isa = NULL


def use_isa(str name):
    """Make later plans and packings use this instruction set; raises LookupError if it is not built or not there."""
    global _isa
    for i in range(convt_isa_count()):
        if convt_isa_at(i).name.decode() == name and convt_isa_available(i):
            _isa = convt_isa_at(i)
            return
    raise LookupError(name)


def isa():
    """The instruction set in use."""
    return _isa.name.decode()


cdef const convt_kernels *_kernels(str dtype, bint matrix):
    cdef int index = _DTYPES.index(dtype)
    return &_isa.matrix[index] if matrix else &_isa.set[index]


def kernel_info(str dtype, bint matrix=False):
    """Tile and vector sizes of the kernels in use for a dtype, those of the matrix unit if it is that: None without one."""
    cdef const convt_kernels *k = _kernels(dtype, matrix)
    if k.tile == NULL:
        return None
    sizes = {"mr": [k.mr[i] for i in range(3)], "nr": k.nr, "vl": k.vl, "kstep": k.kstep, "e_size": k.e_size, "t_size": k.t_size}
    return {**sizes, "grain": k.grain, "lda": k.lda, "wide": k.wide, "parts": k.parts, "reach": k.reach if k.direct_store else 0}


def fma_peak(str dtype, int threads, double seconds):
    """Measured peak of the multiply-add units used for a dtype: GFLOP/s of ``threads`` threads together."""
    cdef const convt_isa *table = _isa
    cdef int index = _DTYPES.index(dtype), t
    cdef double total = 0
    cdef int count = threads if CONVT_OPENMP and not forked() else 1
    if count > 1:
        _note_pool()
    for t in prange(count, num_threads=count, nogil=True, schedule="static", chunksize=1):
        total += table.peak(index, seconds)
    return total * 1e-9


# ---------------------------------------------------------------- threads

# libgomp's pool does not survive a fork: a child of a process that has used it computes on one thread.
_pool_used = False
_forked = False


def _note_pool():
    global _pool_used
    _pool_used = True


def _after_fork():
    global _forked
    _forked = _pool_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def forked():
    """Whether this process was forked from one whose thread pool was already running."""
    return _forked


include "_core_memory.pxi"


# ---------------------------------------------------------------- NaN and infinity

def finite(str dtype, array, int threads):
    """Whether no element of an array is NaN or infinite; any strides."""
    return _all_finite(&_isa.set[_DTYPES.index(dtype)], array, threads)


cdef bint _all_finite(const convt_kernels *k, array, int threads):
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        # Most views are permutations of contiguous memory, which need no copy.
        axes = sorted(range(array.ndim), key=lambda ax: -abs(array.strides[ax]))
        array = np.ascontiguousarray(array.transpose(axes))
    cdef const char *p = <const char *>cnp.PyArray_DATA(array)
    cdef Py_ssize_t bytes = cnp.PyArray_NBYTES(array), blocks = (bytes + FINITE_BYTES - 1) // FINITE_BYTES, n
    cdef Py_ssize_t wrong = 0
    threads = <int>min(threads, blocks)
    if threads <= 1:
        return k.finite(p, bytes)
    _note_pool()
    for n in prange(blocks, num_threads=threads, nogil=True, schedule="static"):
        wrong += not k.finite(p + n * FINITE_BYTES, min(<Py_ssize_t>FINITE_BYTES, bytes - n * FINITE_BYTES))
    return wrong == 0


include "_core_pack.pxi"


include "_core_plan.pxi"
include "_core_direct.pxi"
include "_core_winograd_task.pxi"
include "_core_winograd.pxi"
include "_core_scatter.pxi"
include "_core_depthwise.pxi"
include "_core_repeat.pxi"
