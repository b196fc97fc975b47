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
    ctypedef struct convt_dw_groups:
        int ci, each
        const int64_t *at
        const int64_t *first
        const int64_t *lanes
        Py_ssize_t w_ld
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
# The data caches of a core, and the last level: of this CPU, or of a small one where it does not say.
L1_BYTES = convt_cache_bytes(1) or 1 << 15
L2_BYTES = convt_cache_bytes(2) or 1 << 20
L3_BYTES = convt_cache_bytes(3) or 1 << 24
# Cores with 32 KiB of first-level cache, as Intel's before Ice Lake, also have few fill buffers: stores that bypass the caches
# hold those which fetch panels meanwhile. There GEMM tiles do not do so, and a panel is used for all rows while it is near.
KEEP_PANELS = L1_BYTES <= 1 << 15
STREAM_BYTES = 1 << 24  # outputs beyond this bypass the caches
SMALL_CYCLES = 8_000  # expected ones, below which a second thread costs more than it gains
BRIEF_FLOPS = 50_000_000  # below this a thread does its tasks in less time than it may have to wait for others' weights
PAST_BYTES = 5 << 24  # those of depthwise, which does nothing but wait for memory
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


# ---------------------------------------------------------------- memory

SPARE_WEIGHTS = 1 << 26  # bytes that are kept of those which held the weights of one-shot calls
cdef enum:
    SPARES = 8  # blocks of a kind that are kept for the next calls

cdef struct Spare:
    # Memory of calls that are over, oldest first; the GIL guards it.
    char *data[SPARES]
    size_t size[SPARES]
    Py_ssize_t count
    size_t bytes, most  # of all of them together, and how many there may be

cdef Spare _workspaces, _weights
_workspaces.most, _weights.most = <size_t>-1, SPARE_WEIGHTS


cdef char *_leave(Spare *spare, Py_ssize_t n) noexcept:
    """Take a block out of those kept."""
    cdef char *data = spare.data[n]
    spare.count -= 1
    spare.bytes -= spare.size[n]
    for n in range(n, spare.count):
        spare.data[n], spare.size[n] = spare.data[n + 1], spare.size[n + 1]
    return data


cdef class Buffer:
    """64-byte aligned memory of our own; with a ``home``, that of one call, which goes there afterwards."""
    cdef char *data
    cdef readonly size_t size
    cdef Spare *home

    def __dealloc__(self):
        cdef Spare *home = self.home
        if home == NULL or self.size > home.most:
            free(self.data)
            return
        while home.count == SPARES or home.bytes + self.size > home.most:
            free(_leave(home, 0))
        home.data[home.count], home.size[home.count] = self.data, self.size
        home.count += 1
        home.bytes += self.size


cdef Buffer _buffer(size_t size, Spare *home=NULL):
    """A Buffer of so many bytes or more: of what is spare the least that is enough, else new."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    cdef Py_ssize_t n, best = -1, largest = 0
    cdef void *p = NULL
    size = max(size, <size_t>64)
    cdef bint huge = size >= 2 * HUGE_BYTES
    if home != NULL:
        for n in range(home.count):
            if home.size[n] >= size and (best < 0 or home.size[n] < home.size[best]):
                best = n
            if home.size[n] > home.size[largest]:
                largest = n
        if best >= 0:
            buffer.home, buffer.size = home, home.size[best]
            buffer.data = _leave(home, best)
            return buffer
        if home.count and size <= home.most:  # the new one will do in its place
            free(_leave(home, largest))
    if posix_memalign(&p, HUGE_BYTES if huge else 64, size) != 0:
        raise MemoryError(f"workspace: {size} bytes are not to be had")
    if huge:  # touching new memory for the first time then takes a third of the time
        convt_huge(p, size)
    buffer.home, buffer.size, buffer.data = home, size, <char *>p
    return buffer


cdef inline size_t _round64(size_t n) noexcept nogil:
    return (n + 63) & ~<size_t>63


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(type subtype, cnp.dtype dtype, int nd, cnp.npy_intp *sizes, cnp.npy_intp *strides, void *data,
                                int flags, object like)


cpdef empty(tuple shape, cnp.dtype dtype):
    """np.empty on a cache line's boundary: NumPy promises less, and whole-line stores want more, as do threads that write
    neighbouring channels."""
    cdef cnp.npy_intp sizes[64]
    cdef cnp.npy_intp bytes = dtype.itemsize
    cdef int ax
    for ax in range(len(shape)):
        sizes[ax] = shape[ax]
        bytes *= sizes[ax]
    bytes += 64
    memory = cnp.PyArray_EMPTY(1, &bytes, cnp.NPY_UINT8, 0)
    cdef char *data = <char *>_round64(<size_t>cnp.PyArray_DATA(memory))
    Py_INCREF(dtype)  # the array takes it over
    result = PyArray_NewFromDescr(cnp.ndarray, dtype, len(shape), sizes, NULL, data, cnp.NPY_ARRAY_CARRAY, None)
    cnp.set_array_base(result, memory)
    return result


cdef class _Table:
    """A contiguous int64 table, from nested Python ints."""
    cdef object array
    cdef int64_t *p

    def __cinit__(self, values):
        self.array = np.ascontiguousarray(values, np.int64)
        if self.array.size:
            self.p = <int64_t *>cnp.PyArray_DATA(self.array)


cdef int64_t *_kept(list keep, values):
    """A table that lives as long as the list it is put into."""
    cdef _Table table = _Table(values)
    keep.append(table)
    return table.p


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


# ---------------------------------------------------------------- plans

cdef struct Call:
    char *src
    char *dst
    char *weights
    char *bias
    char *source  # the filter itself, where tasks pack what they multiply
    char *refused  # set where a plan finds that its result may not be what a direct sum gives
    Py_ssize_t threads, grab  # how many tasks a thread takes at a time
    bint back  # last task first
    int64_t *deal_first  # a Deal; deal_tasks is NULL where there is none
    int64_t *deal_tasks


cdef class Deal:
    """Which tasks each of so many threads does: the next one goes to who is done first with those before."""
    cdef int threads
    cdef _Table first, tasks  # where each thread's start, and the last one's end

    def __init__(self, works, Py_ssize_t tasks, int threads):
        """``works`` lists (cycles of a task, how many), in the order of all the tasks."""
        assert sum(count for _, count in works) == tasks
        done = [(0.0, thread) for thread in range(threads)]
        dealt = [[] for _ in done]
        for work, count in works:
            for _ in range(count):
                end, thread = done[0]
                heapq.heapreplace(done, (end + work, thread))
                dealt[thread].append(sum(map(len, dealt)))
        self.threads = threads
        self.first, self.tasks = _Table(np.cumsum([0, *map(len, dealt)])), _Table(sum(dealt, []))


cdef inline int64_t take_index(int64_t *n, int64_t size) noexcept nogil:
    """The last index of a place counted across axes, of an axis of that size; ``n`` gets what counts the others."""
    cdef int64_t all = n[0]
    n[0] = convt_quotient(all, size)
    return all - n[0] * size


cdef struct Cut:
    # Some rows in equal parts of whole grains: how many each has, and how many parts, the first ones, have a grain more.
    int64_t rows, grain, height, taller


cdef inline Cut cut_evenly(int64_t rows, int64_t parts, int64_t grain) noexcept nogil:
    cdef Cut c
    cdef int64_t grains = rows
    if grain > 1:
        grains = convt_quotient(rows + grain - 1, grain)
    cdef int64_t each = grains
    if parts > 1:
        each = convt_quotient(grains, parts)
    c.rows, c.grain, c.height, c.taller = rows, grain, each * grain, grains - each * parts
    return c


cdef inline int64_t cut_at(const Cut *c, int64_t n) noexcept nogil:
    """Where the n-th part starts, and the one before it ends."""
    return min(c.rows, n * c.height + min(n, c.taller) * c.grain)


cdef class Plan:
    """What both algorithms share: kernels, sizes, strides, activation, workspace, the way to run."""
    cdef readonly str algorithm, isa
    cdef readonly str backend, tile
    cdef const convt_kernels *k
    cdef PackRecipe recipe
    cdef convt_act act, none
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef readonly size_t passing  # more of them, for weights that tasks pack in passing, in calls that bring theirs; 0: not so
    cdef int nd
    cdef int64_t batch, groups, ci, co
    cdef _Table in_size, in_stride, out_stride, stride, kernel  # per spatial axis; strides in elements
    # Row algorithms: for each output of each axis but the last, the (tap, input index) pairs that reach it.
    cdef _Table outer_out, outer_start, outer_taps
    cdef int64_t out_rows, row_taps  # output rows of the batch; the most taps of one
    cdef int64_t in_n, in_c, out_n, out_c
    cdef size_t streamed  # alignment that every output row must have to bypass the caches; 0 where it should not
    cdef bint even  # tasks take the same time: each thread then has the same ones at every call, and their lines in its cache
    cdef bint small  # too little work for a second thread
    cdef bint brief  # so little that weights are best found in the cache of the core that had them at the call before
    cdef list works  # (cycles of a task, tasks), class by class, where tasks are not even
    cdef Deal deal  # of the last call
    cdef bint back  # the call before went through its tasks from the last to the first
    cdef readonly bint hole  # there are outputs that no task writes, as no tap reaches their phase

    def __cinit__(self, *args, **kwargs):
        self.backend = "native"

    cdef _common(self, problem, PackRecipe recipe, in_strides, out_strides, bint hole, cycles):
        self.hole = hole
        self.recipe = recipe
        self.k = recipe.k
        self.isa = recipe.isa.name.decode()
        self.tile = f"{self.k.mr[self.k.nr // self.k.vl]}x{self.k.nr}"
        name, a, b = problem.activation
        self.act.code, self.act.a, self.act.b = _ACTIVATIONS[name], a, b
        if name == "relu":
            self.act.b = float("inf")
        self.nd = problem.rank
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        item = self.k.s_size
        ins, outs = [s // item for s in in_strides], [s // item for s in out_strides]
        self.in_size, self.stride = _Table(problem.in_sizes), _Table([min(s, 2**62) for s in problem.strides])
        self.kernel = _Table(problem.kernel)
        self.in_n, self.in_stride, self.in_c = ins[0], _Table(ins[1:self.nd + 1]), ins[self.nd + 1]
        self.out_n, self.out_stride, self.out_c = outs[0], _Table(outs[1:self.nd + 1]), outs[self.nd + 1]
        self.small = cycles < SMALL_CYCLES
        self.brief = problem.flops < BRIEF_FLOPS
        # Outputs that outgrow the caches are written around them, where every vector of a row starts on a boundary.
        cdef size_t vector = self.k.vl * self.k.t_size
        bytes_out = int(np.prod(problem.out_shape)) * item
        aligned = all(s % vector == 0 for s in out_strides[:self.nd + 1])
        limit = PAST_BYTES if self.algorithm == "depthwise" else STREAM_BYTES
        if self.algorithm == "matrix":
            limit = PASSED_BYTES - problem.batch * int(np.prod(problem.in_sizes)) * problem.groups * problem.ci * item
        self.streamed = vector if bytes_out > limit and aligned else 0

    cdef _outer(self, axes):
        """Tables of the axes but the last: ``axes[ax][output]`` lists (tap, input index)."""
        self.outer_out = _Table([len(axis) for axis in axes])
        starts, pairs = [], []
        self.out_rows, self.row_taps = self.batch, 1
        for axis in axes:
            self.out_rows *= len(axis)
            self.row_taps *= max([len(taps) for taps in axis], default=0)
            for taps in axis:
                starts.append(len(pairs))
                pairs += taps
        self.outer_start, self.outer_taps = _Table([*starts, len(pairs)]), _Table(pairs)

    cdef int64_t row_inputs(self, int64_t row, int64_t *taps, int64_t *src, int64_t *dst) noexcept nogil:
        """Which input rows reach an output row: fills ``taps`` with (input offset, tap of the outer axes), returns how many.

        ``src`` and ``dst`` get the offsets of the row's image and of the row in the output.
        """
        cdef int64_t count = 1, kernel = 1, axis_start = 0, ax, o, first, last, n, more
        cdef int64_t *pair
        for ax in range(self.nd - 1):
            axis_start += self.outer_out.p[ax]
        taps[0] = 0
        taps[1] = 0
        dst[0] = 0
        for ax in range(self.nd - 2, -1, -1):
            axis_start -= self.outer_out.p[ax]
            o = take_index(&row, self.outer_out.p[ax])
            dst[0] += o * self.out_stride.p[ax]
            first, last = self.outer_start.p[axis_start + o], self.outer_start.p[axis_start + o + 1]
            # Expand from the back, so that the entries still to be read are not overwritten.
            for more in range(last - first - 1, -1, -1):
                pair = self.outer_taps.p + 2 * (first + more)
                for n in range(count):
                    taps[2 * (more * count + n)] = taps[2 * n] + pair[1] * self.in_stride.p[ax]
                    taps[2 * (more * count + n) + 1] = taps[2 * n + 1] + pair[0] * kernel
            count *= last - first
            kernel *= self.kernel.p[ax]
        src[0] = row * self.in_n
        dst[0] += row * self.out_n
        return count

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        pass

    cdef void run_shares(self, Py_ssize_t thread, int team, const Call *call, char *ws) noexcept nogil:
        """A thread's tasks where each has its own: those it was dealt, or else a stretch of all; of a team that is smaller
        than it was to be, those of several threads."""
        cdef Py_ssize_t n, i, first, last
        while thread < call.threads:
            first = convt_quotient(thread * self.tasks, call.threads)
            last = convt_quotient((thread + 1) * self.tasks, call.threads)
            if call.deal_tasks != NULL:
                first, last = call.deal_first[thread], call.deal_first[thread + 1]
            for n in range(last - first):
                i = last - 1 - n if call.back else first + n
                self.run_task(i if call.deal_tasks == NULL else call.deal_tasks[i], call, ws)
            thread += team

    cpdef int threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return 1 if self.small else max(1, min(available, self.tasks))

    def run(self, data, out, PackedFilter packed, int available, fill=None):
        """Compute; ``data`` and ``out`` are views in NXC order with the strides the plan was made for.

        ``fill`` is what outputs hold that no product reaches, for a plan with a ``hole``. False where the result
        is worthless, as the data made values that the algorithm can't be trusted with.
        """
        return self.compute(<char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(out), packed, available, out, fill)

    cdef compute(self, char *src, char *dst, PackedFilter packed, int available, out=None, fill=None):
        cdef int threads = self.threads(available)
        cdef size_t per_thread = _round64(self.workspace) + (_round64(self.passing) if packed.source != NULL else 0)
        cdef Buffer ws = _buffer(per_thread * threads, &_workspaces)
        cdef Py_ssize_t t
        cdef Py_ssize_t tasks = self.tasks
        cdef Call call
        cdef char refused = 0
        call.refused = &refused
        call.src, call.dst, call.weights, call.bias, call.source = src, dst, packed.weights, packed.bias, packed.source
        # Several neighbours at a time, which read much the same, yet few enough that the last ones even out.
        call.threads, call.grab = threads, tasks if self.even else max(1, convt_quotient(tasks, GRABS * threads))
        cdef Deal deal = self.deal
        call.deal_tasks = NULL
        if self.brief and not self.even and threads > 1:
            if deal is None or deal.threads != threads:
                self.deal = deal = Deal(self.works, tasks, threads)
            call.deal_first, call.deal_tasks = deal.first.p, deal.tasks.p
        if fill is not None:  # only now, as nothing is written where there is no memory
            out[...] = fill
        # Weights that a core's cache does not hold are read to and fro: first those that the call before read last.
        call.back = self.back = self.brief and packed.nbytes > FAR_BYTES and not self.back
        if threads > 1:
            if not _pool_used:
                _note_pool()
            with nogil, parallel(num_threads=threads):
                if self.k.enter != NULL:
                    self.k.enter()
                if self.even or self.brief:
                    self.run_shares(threadid(), convt_team_size(), &call, ws.data + threadid() * per_thread)
                else:
                    for t in prange(tasks, schedule="dynamic", chunksize=call.grab):
                        self.run_task(t, &call, ws.data + threadid() * per_thread)
                if self.k.leave != NULL:
                    self.k.leave()
        else:
            with nogil:
                if self.k.enter != NULL:
                    self.k.enter()
                self.run_shares(0, 1, &call, ws.data)
                if self.k.leave != NULL:
                    self.k.leave()
        return not refused


include "_core_direct.pxi"
include "_core_winograd.pxi"
include "_core_scatter.pxi"
include "_core_depthwise.pxi"
include "_core_repeat.pxi"
