# cython: language_level=3
"""The core: OpenMP loops over cache blocks that feed the micro-kernels. Knows layouts only as strides.

Three algorithms, each a plan class that holds flat tables made by _plan.py and runs on views in NXC axis order:

* DirectPlan: every phase is an implicit GEMM. Rows are pixels of the phase, across rows and images; columns are out
  channels, of several phases where those read the same inputs; depth is taps times in-channels. Tasks are blocks of
  rows by blocks of panels: a block's input is packed once per depth chunk (gathering the taps, zeros outside the input),
  then meets every weight panel of the task.
* ScatterPlan: for few out channels. Along x the GEMM makes every tap's products at once (columns are taps times out
  channels), which are overlap-added in the cache; across the other axes it gathers. A task is a stretch of an output row.
* DepthwisePlan: for small groups. Vectors are out channels of many groups; a task is a stretch of an output row.

Nothing below can fail: sizes were checked above, memory is taken before the parallel region.
"""

import os

cimport cython
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

cnp.import_array()

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **out, size_t alignment, size_t size)

cdef extern from "convt_kernels.h" nogil:
    enum:
        CONVT_KC
        CONVT_LDA
        CONVT_LEAKY
    ctypedef struct convt_act:
        int code
        double a
        double b
    ctypedef struct convt_tile:
        int kc
        int nv
        const void *a
        const void *b
        const void *init
        Py_ssize_t init_ld
        void **rows
        int cols
        const convt_act *act
        int stream
    ctypedef struct convt_dw:
        int n
        int cols
        int taps
        const void **in_ "in"
        Py_ssize_t in_ld
        const void **w
        const void *init
        void *out
        Py_ssize_t out_ld
        const convt_act *act
    ctypedef struct convt_overlap:
        const void *col
        Py_ssize_t ld
        int64_t i0, i1, j0, j1
        int terms, lanes, cols, channels, lane_lo, lane_hi
        const void *init
        void *out
        Py_ssize_t out_j, out_x, out_c
        const convt_act *act
    ctypedef struct convt_kernels:
        int mr, nr, vl, kstep, s_size, e_size, t_size, direct_store
        void (*tile)(int mr, const convt_tile *tile) noexcept nogil
        void (*fence)() noexcept nogil
        void (*depthwise)(const convt_dw *run) noexcept nogil
        void (*pack)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                     int padded) noexcept nogil
        void (*widen)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                      int padded) noexcept nogil
        void (*gather)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, const int64_t *map, int rows, int cols,
                       int padded) noexcept nogil
        void (*overlap)(const convt_overlap *o) noexcept nogil
        int (*finite)(const void *packed, size_t bytes) noexcept nogil
        void (*pack_b)(void *dst, int k0, int n0, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                       int nb) noexcept nogil
        void (*store)(void **rows, Py_ssize_t cs, const void *src, Py_ssize_t ld, int mr, int cols,
                      const convt_act *act) noexcept nogil
    ctypedef struct convt_isa:
        const char *name
        const convt_kernels *set
        double (*peak)(int dtype, double seconds) noexcept nogil
    int convt_isa_count()
    const convt_isa *convt_isa_at(int index)
    int convt_isa_available(int index)
    int convt_isa_preferred(int index)

cdef extern from *:
    """
    #ifdef _OPENMP
    #define CONVT_OPENMP _OPENMP
    #else
    #define CONVT_OPENMP 0
    #endif
    #ifdef __VERSION__
    #define CONVT_COMPILER __VERSION__
    #else
    #define CONVT_COMPILER "unknown"
    #endif
    """
    int CONVT_OPENMP
    const char *CONVT_COMPILER

_DTYPES = ("float32", "float64", "float16", "bfloat16")
_ACTIVATIONS = {"none": 0, "clip": 1, "relu": 1, "leaky_relu": 2, "tanh": 3, "sigmoid": 4, "gelu": 5, "swish": 6}

KC = CONVT_KC
STREAM_BYTES = 1 << 23  # outputs beyond this bypass the caches
PARALLEL_PACK_BYTES = 1 << 18


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


def kernel_info(str dtype):
    """Tile and vector sizes of the kernels in use for a dtype."""
    cdef const convt_kernels *k = &_isa.set[_DTYPES.index(dtype)]
    return {"mr": k.mr, "nr": k.nr, "vl": k.vl, "kstep": k.kstep, "e_size": k.e_size, "t_size": k.t_size}


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

cdef class Buffer:
    """64-byte aligned memory of our own."""
    cdef char *data
    cdef readonly size_t size

    def __cinit__(self, size_t size):
        cdef void *p = NULL
        self.size = size if size > 64 else 64
        if posix_memalign(&p, 64, self.size) != 0:
            raise MemoryError(f"workspace: {size} bytes are not to be had")
        self.data = <char *>p

    def __dealloc__(self):
        free(self.data)


_spare = []  # workspaces of finished calls, for the next ones; a list's append and pop are atomic


cdef Buffer _take(size_t size):
    cdef Buffer b
    try:
        b = _spare.pop()
        if b.size >= size:
            return b
    except IndexError:
        pass
    return Buffer(size)


cdef _give(Buffer b):
    if len(_spare) < 8:
        _spare.append(b)


cdef inline size_t _round64(size_t n) noexcept nogil:
    return (n + 63) & ~<size_t>63


cdef class _Table:
    """A contiguous int64 table, from nested Python ints."""
    cdef object array
    cdef int64_t *p

    def __cinit__(self, values):
        self.array = np.ascontiguousarray(values, np.int64)
        if self.array.size:
            self.p = <int64_t *>cnp.PyArray_DATA(self.array)


# ---------------------------------------------------------------- packed weights

cdef struct PackClass:
    int64_t nphases, ntaps, ncols, npanels, depth
    int64_t *taps            # [nphases][ntaps] byte offset of each tap in the filter
    size_t weights, bias     # where the class starts in the buffers
    size_t group_weights, group_bias
    int64_t first_job, njobs # a job packs one panel of one group


cdef class PackedFilter:
    """Weights and bias in the panels of one instruction set; made by a PackRecipe."""
    cdef Buffer weights, bias
    cdef readonly bint finite
    cdef readonly size_t nbytes


cdef class PackRecipe:
    """How filters of one shape and one memory layout are packed for the instruction set in use.

    ``classes`` lists, per pack class, the flat kernel taps as [phase][tap]. A row of the class's panels is one (tap,
    in-channel), a column one (phase, out-channel). Without classes it packs for DepthwisePlan: rows of lanes (group,
    out-channel) per tap and in-channel, in sums' type. With ``bias_phases`` the bias is not packed by panels but as that
    many repetitions of each group's, which is what ScatterPlan adds.
    """
    cdef const convt_isa *isa
    cdef const convt_kernels *k
    cdef PackClass *classes
    cdef Py_ssize_t nclasses
    cdef object structures
    cdef list keep
    cdef size_t weight_bytes, bias_bytes
    cdef int64_t groups, ci, co, ci_p, jobs, ntaps
    cdef int64_t sg, si, so  # strides of the filter: bytes, elements, elements
    cdef int64_t bias_stride, bias_phases
    cdef _Table taps
    cdef bint depthwise

    def __init__(self, str dtype, filter, bias, classes, int64_t bias_phases=0):
        self.isa = _isa
        self.k = &self.isa.set[_DTYPES.index(dtype)]
        cdef const convt_kernels *k = self.k
        cdef int64_t item = k.s_size
        cdef PackClass *c
        self.groups, self.ci, self.co = filter.shape[0], filter.shape[1], filter.shape[2]
        self.ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        self.sg, self.si, self.so = filter.strides[0], filter.strides[1] // item, filter.strides[2] // item
        self.bias_stride = bias.strides[0] // item if bias is not None else 0
        shape, strides = filter.shape[3:], np.asarray(filter.strides[3:], np.int64)
        self.ntaps = int(np.prod(shape))
        self.depthwise = classes is None
        self.bias_phases = bias_phases
        if self.depthwise:
            self.taps = _Table(_tap_bytes(np.arange(self.ntaps), shape, strides))
            self.weight_bytes = self.ntaps * self.ci * self.padded() * k.t_size
            self.bias_bytes = self.padded() * k.t_size
            return
        self.nclasses = len(classes)
        self.structures = np.zeros(max(1, self.nclasses) * sizeof(PackClass), np.uint8)
        self.classes = <PackClass *>cnp.PyArray_DATA(self.structures)
        self.keep = []
        for i, taps in enumerate(classes):
            c = &self.classes[i]
            c.nphases, c.ntaps = taps.shape
            table = _Table(_tap_bytes(taps, shape, strides))
            self.keep.append(table)
            c.taps = (<_Table>table).p
            c.ncols, c.depth = c.nphases * self.co, c.ntaps * self.ci_p
            c.npanels = (c.ncols + k.nr - 1) // k.nr
            c.weights, c.bias = self.weight_bytes, self.bias_bytes
            c.group_weights = c.npanels * k.nr * c.depth * k.e_size
            c.group_bias = c.npanels * k.nr * k.t_size
            self.weight_bytes += _round64(self.groups * c.group_weights)
            self.bias_bytes += self.groups * c.group_bias
            c.first_job, c.njobs = self.jobs, self.groups * c.npanels
            self.jobs += c.njobs
        if bias_phases:
            self.bias_bytes = self.groups * bias_phases * self.co * k.t_size

    cdef int64_t padded(self) noexcept nogil:
        return (self.groups * self.co + self.k.vl - 1) // self.k.vl * self.k.vl

    def pack(self, filter, bias, int threads):
        """Pack a filter of the recipe's shape and strides."""
        cdef PackedFilter packed = PackedFilter()
        packed.weights, packed.bias = Buffer(self.weight_bytes), Buffer(self.bias_bytes)
        packed.nbytes = packed.weights.size + packed.bias.size
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        cdef char *bsrc = <char *>cnp.PyArray_DATA(bias) if bias is not None else NULL
        cdef char *dst = packed.weights.data
        cdef char *bdst = packed.bias.data
        cdef int64_t job
        cdef Py_ssize_t c
        cdef size_t used
        cdef int count = threads if self.weight_bytes > PARALLEL_PACK_BYTES else 1
        memset(bdst, 0, packed.bias.size)
        if self.depthwise:
            with nogil:
                self.pack_depthwise(src, bsrc, dst, bdst)
            packed.finite = True  # it multiplies no zeros outside the input
            return packed
        for c in range(self.nclasses):  # what alignment leaves between classes: `finite` reads it
            used = self.classes[c].weights + self.groups * self.classes[c].group_weights
            memset(dst + used, 0, _round64(used) - used)
        if bsrc != NULL:
            for job in range(self.groups * self.bias_phases):
                self.k.widen(bdst + job * self.co * self.k.t_size, 0,
                             bsrc + job // self.bias_phases * self.co * self.bias_stride * self.k.s_size, 0,
                             self.bias_stride, 1, <int>self.co, <int>self.co)
        if count > 1:
            if not _pool_used:
                _note_pool()
            for job in prange(self.jobs, num_threads=count, nogil=True, schedule="static"):
                self.pack_panel(job, src, bsrc, dst, bdst)
        else:
            with nogil:
                for job in range(self.jobs):
                    self.pack_panel(job, src, bsrc, dst, bdst)
        # NaN or Inf times the zeros outside the input must not reach the output: _plan then avoids such zeros.
        packed.finite = self.k.finite(dst, self.weight_bytes)
        return packed

    cdef void pack_panel(self, int64_t job, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef PackClass *c = self.classes
        while job >= c.first_job + c.njobs:
            c += 1
        cdef int64_t g = (job - c.first_job) // c.npanels, n = (job - c.first_job) % c.npanels
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), phase, first, count, t
        cdef int64_t width = k.vl if end - column <= k.vl else k.nr
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        bdst += c.bias + g * c.group_bias + column * k.t_size
        if end - column < width or self.ci_p != self.ci or n == c.npanels - 1:
            memset(dst, 0, k.nr * c.depth * k.e_size)
        while column < end:
            phase = column // self.co
            first = column - phase * self.co
            count = min(self.co - first, end - column)
            for t in range(c.ntaps):
                k.pack_b(dst, <int>(t * self.ci_p), <int>(column % k.nr),
                         src + g * self.sg + c.taps[phase * c.ntaps + t] + first * self.so * k.s_size,
                         self.si, self.so, <int>self.ci, <int>count, <int>width)
            if bsrc != NULL and not self.bias_phases:
                k.widen(bdst + column % k.nr * k.t_size, k.nr, bsrc + (g * self.co + first) * self.bias_stride * k.s_size,
                        0, self.bias_stride, 1, <int>count, <int>count)
            column += count

    cdef void pack_depthwise(self, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t t, c, g, lanes = self.groups * self.co
        memset(dst, 0, self.weight_bytes)
        for t in range(self.ntaps):
            for c in range(self.ci):
                for g in range(self.groups):
                    k.widen(dst + g * self.co * k.t_size, 0, src + self.taps.p[t] + c * self.si * k.s_size + g * self.sg,
                            0, self.so, 1, <int>self.co, <int>self.co)
                dst += self.padded() * k.t_size
        if bsrc != NULL:
            k.widen(bdst, 0, bsrc, 0, self.bias_stride, 1, <int>lanes, <int>lanes)


def _tap_bytes(taps, shape, strides):
    """Byte offsets of flat kernel taps."""
    return np.dot(np.stack(np.unravel_index(taps, shape), -1), strides)


# ---------------------------------------------------------------- plans

cdef struct Call:
    char *src
    char *dst
    char *weights
    char *bias


cdef class Plan:
    """What both algorithms share: kernels, sizes, strides, activation, workspace, the way to run."""
    cdef readonly str algorithm, isa
    cdef readonly str backend
    cdef const convt_kernels *k
    cdef PackRecipe recipe
    cdef convt_act act, none
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef int nd
    cdef int64_t batch, groups, ci, co
    cdef _Table in_size, in_stride, out_stride, stride, kernel  # per spatial axis; strides in elements
    # Row algorithms: for each output of each axis but the last, the (tap, input index) pairs that reach it.
    cdef _Table outer_out, outer_start, outer_taps
    cdef int64_t out_rows, row_taps  # output rows of the batch; the most taps of one
    cdef int64_t in_n, in_c, out_n, out_c
    cdef size_t streamed  # alignment that every output row must have to bypass the caches; 0 where it should not
    cdef bint small  # too little work for a second thread
    cdef readonly bint hole  # there are outputs that no task writes, as no tap reaches their phase

    def __cinit__(self, *args, **kwargs):
        self.backend = "native"

    cdef _common(self, problem, PackRecipe recipe, in_strides, out_strides, bint hole):
        self.hole = hole
        self.recipe = recipe
        self.k = recipe.k
        self.isa = recipe.isa.name.decode()
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
        self.small = problem.flops < 400_000
        # Outputs that outgrow the caches are written around them, where every vector of a row starts on a boundary.
        cdef size_t vector = self.k.vl * self.k.t_size
        bytes_out = int(np.prod(problem.out_shape)) * item
        aligned = all(s % vector == 0 for s in out_strides[:self.nd + 1])
        self.streamed = vector if bytes_out > STREAM_BYTES and aligned else 0

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
            o = row % self.outer_out.p[ax]
            row = row // self.outer_out.p[ax]
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

    def threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return 1 if self.small else max(1, min(available, self.tasks))

    def run(self, data, out, PackedFilter packed, int available):
        """Compute; ``data`` and ``out`` are views in NXC order with the strides the plan was made for.

        Where the plan has a ``hole``, the caller fills the output first.
        """
        self.compute(<char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(out), packed, available)

    cdef compute(self, char *src, char *dst, PackedFilter packed, int available):
        cdef int threads = self.threads(available)
        cdef size_t per_thread = _round64(self.workspace)
        cdef Buffer ws = _take(per_thread * threads)
        cdef Py_ssize_t t
        cdef Py_ssize_t tasks = self.tasks
        cdef Call call
        call.src, call.dst, call.weights, call.bias = src, dst, packed.weights.data, packed.bias.data
        if threads > 1:
            if not _pool_used:
                _note_pool()
            with nogil, parallel(num_threads=threads):
                for t in prange(tasks, schedule="dynamic", chunksize=1):
                    self.run_task(t, &call, ws.data + threadid() * per_thread)
        else:
            with nogil:
                for t in range(tasks):
                    self.run_task(t, &call, ws.data)
        _give(ws)


cdef class Bound:
    """A plan for contiguous data of one shape: what a repeated call needs, checked with a few comparisons.

    dtype, shape and strides are the output's; ``empty(shape, dtype)`` makes one.
    """
    cdef Plan plan
    cdef object dtype, empty
    cdef tuple shape, strides

    def __init__(self, Plan plan, dtype, tuple shape, tuple strides, empty):
        self.plan, self.dtype, self.shape, self.strides, self.empty = plan, dtype, shape, strides, empty

    def run(self, data, out, PackedFilter packed, int threads):
        """The output of a call that fits exactly; None, and nothing done, for every other call.

        ``data`` must have the shape and strides that were bound; its dtype and alignment are looked at here.
        """
        cdef char *src
        cdef char *dst
        if <object>cnp.PyArray_DESCR(data) is not self.dtype or not cnp.PyArray_ISALIGNED(data):
            return None
        result = out
        if out is None:
            result = self.empty(self.shape, self.dtype)
        elif (type(out) is not cnp.ndarray or <object>cnp.PyArray_DESCR(out) is not self.dtype or out.shape != self.shape
                or out.strides != self.strides or not cnp.PyArray_ISBEHAVED(out)):
            return None
        src, dst = <char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(result)
        if out is not None and src < dst + cnp.PyArray_NBYTES(result) and dst < src + cnp.PyArray_NBYTES(data):
            return None
        self.plan.compute(src, dst, packed, threads)
        return result


# ---------------------------------------------------------------- direct

cdef struct DirectClass:
    # rows: pixels of the class's box, batch outermost
    int64_t *count        # [nd]
    int64_t rows
    int64_t block, blocks
    # depth
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd] input index at the box's first pixel
    int64_t nchunks
    int64_t *chunks       # [nchunks][3]: first depth of the class, depth, first depth of the panel
    # columns
    int64_t npanels, panel_block, panel_blocks
    int64_t *panels       # [npanels][5]: columns, adjacent in the output?, its offset, first piece, one past the last
    int64_t *pieces       # [..][3 + 2 nd]: first column, columns, output offset, then (low, high) of valid per axis
    int64_t *inner        # [nd][2]: where every phase is valid
    PackClass *pack
    int64_t first_task, ntasks


cdef class DirectPlan(Plan):
    cdef DirectClass *classes
    cdef Py_ssize_t nclasses
    cdef list keep  # the tables that the structures point into
    cdef object structures
    cdef int64_t max_block, max_panels
    cdef bint chunked

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, hole, classes):
        self.algorithm = "direct"
        self._common(problem, recipe, in_strides, out_strides, hole)
        self.nclasses = len(classes)
        self.structures = np.zeros(max(1, self.nclasses) * sizeof(DirectClass), np.uint8)
        self.classes = <DirectClass *>cnp.PyArray_DATA(self.structures)
        self.keep = []
        cdef DirectClass *c
        cdef int64_t task = 0
        for i, spec in enumerate(classes):
            c = &self.classes[i]
            c.count = self._keep(spec["count"])
            c.rows, c.block, c.blocks = spec["rows"], spec["block"], spec["blocks"]
            c.ntaps, c.tap_in = len(spec["tap_in"]), self._keep(spec["tap_in"])
            c.nchunks, c.chunks = len(spec["chunks"]), self._keep(spec["chunks"])
            c.npanels, c.panels, c.pieces = len(spec["panels"]), self._keep(spec["panels"]), self._keep(spec["pieces"])
            c.panel_block, c.panel_blocks = spec["panel_block"], spec["panel_blocks"]
            c.inner = self._keep(spec["inner"])
            c.pack = &recipe.classes[<Py_ssize_t>spec["pack"]]
            c.first_task = task
            c.ntasks = self.groups * c.blocks * c.panel_blocks
            task += c.ntasks
            self.max_block = max(self.max_block, c.block)
            if c.nchunks > 1:
                self.chunked = True
                self.max_panels = max(self.max_panels, c.panel_block)
        self.tasks = task
        self.workspace = self._bytes()

    cdef int64_t *_keep(self, values):
        cdef _Table t = _Table(values)
        self.keep.append(t)
        return t.p

    cdef size_t _bytes(self):
        cdef size_t n = _round64(self.max_block * CONVT_LDA * self.k.e_size)  # A
        n += _round64(self.max_block * sizeof(int64_t))  # output offset of each row
        n += _round64(self.max_block * self.nd * sizeof(int64_t))  # its coordinates
        n += _round64(self.max_block)  # whether some phase is outside the window there
        n += _round64(self.k.mr * self.k.nr * self.k.t_size)  # a tile on its way to the store
        if self.chunked:
            n += _round64(self.max_panels * self.max_block * self.k.nr * self.k.t_size)  # sums between depth chunks
        return n

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c = self.classes
        while task >= c.first_task + c.ntasks:
            c += 1
        task -= c.first_task
        cdef int64_t block = task % c.blocks
        cdef int64_t panel_block = task // c.blocks % c.panel_blocks
        cdef int64_t group = task // c.blocks // c.panel_blocks
        cdef int64_t m0 = block * c.block
        cdef int64_t m = min(c.block, c.rows - m0)
        cdef int64_t p0 = panel_block * c.panel_block
        cdef int64_t p1 = min(c.npanels, p0 + c.panel_block)

        cdef char *a = ws
        ws += _round64(self.max_block * CONVT_LDA * k.e_size)
        cdef int64_t *offset = <int64_t *>ws
        ws += _round64(self.max_block * sizeof(int64_t))
        cdef int64_t *coords = <int64_t *>ws
        ws += _round64(self.max_block * self.nd * sizeof(int64_t))
        cdef char *edge = ws
        ws += _round64(self.max_block)
        cdef char *scratch = ws
        ws += _round64(k.mr * k.nr * k.t_size)
        cdef char *sums = ws

        self.locate(c, m0, m, offset, coords, edge)
        cdef char *src = call.src + group * self.ci * self.in_c * k.s_size
        cdef char *dst = call.dst + group * self.co * self.out_c * k.s_size
        cdef char *weights = call.weights + c.pack.weights + group * c.pack.group_weights
        cdef char *bias = call.bias + c.pack.bias + group * c.pack.group_bias

        cdef int64_t tiles = (m + k.mr - 1) // k.mr
        cdef int64_t chunk, p, i, r0, r1, r, b_row
        cdef int64_t *ch
        cdef int64_t *panel
        cdef bint first, last, inside, straight
        cdef bint fast = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        cdef void *rows[32]
        cdef convt_tile t
        t.stream = 0
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            first, last = chunk == 0, chunk == c.nchunks - 1
            self.pack_rows(c, ch[0], ch[1], m0, m, coords, src, a)
            t.kc = <int>ch[1]
            for p in range(p0, p1):
                panel = c.panels + 5 * p
                t.nv = <int>((panel[0] + k.vl - 1) // k.vl)
                t.b = weights + (p * k.nr * c.pack.depth + ch[2] * t.nv * k.vl) * k.e_size
                for i in range(tiles):
                    r0, r1 = i * m // tiles, (i + 1) * m // tiles
                    t.a = a + r0 * CONVT_LDA * k.e_size
                    if first:
                        t.init = bias + p * k.nr * k.t_size
                        t.init_ld = 0
                    else:
                        t.init = sums + ((p - p0) * self.max_block + r0) * k.nr * k.t_size
                        t.init_ld = k.nr
                    t.act = &self.none
                    t.cols = <int>panel[0]
                    t.rows = rows
                    if not last:
                        for r in range(r1 - r0):
                            rows[r] = sums + ((p - p0) * self.max_block + r0 + r) * k.nr * k.t_size
                        k.tile(<int>(r1 - r0), &t)
                        continue
                    inside = True
                    for r in range(r0, r1):
                        if edge[r]:
                            inside = False
                    straight = fast and panel[1] and inside
                    if straight:
                        t.act = &self.act
                        t.stream = self.streamed and not (<size_t>(dst + panel[2] * k.s_size)) % self.streamed
                        for r in range(r1 - r0):
                            rows[r] = dst + (offset[r0 + r] + panel[2]) * k.s_size
                        k.tile(<int>(r1 - r0), &t)
                        t.stream = 0
                    else:
                        for r in range(r1 - r0):
                            rows[r] = scratch + r * k.nr * k.t_size
                        k.tile(<int>(r1 - r0), &t)
                        self.store_pieces(c, panel, r0, r1, offset, coords, inside, scratch, dst)
        if self.streamed:
            k.fence()

    cdef void locate(self, DirectClass *c, int64_t m0, int64_t m, int64_t *offset, int64_t *coords,
                     char *edge) noexcept nogil:
        """For each row of the block: its coordinates, output offset, and whether some phase is outside there."""
        cdef int64_t row, rest, ax, at, j
        for row in range(m):
            rest = m0 + row
            at = 0
            edge[row] = 0
            for ax in range(self.nd - 1, -1, -1):
                j = rest % c.count[ax]
                rest = rest // c.count[ax]
                coords[row * self.nd + ax] = j
                if j:  # with one j the stride may be anything, and a product with it too
                    at += self.stride.p[ax] * j * self.out_stride.p[ax]
                if j < c.inner[2 * ax] or j >= c.inner[2 * ax + 1]:
                    edge[row] = 1
            offset[row] = at + rest * self.out_n

    cdef void pack_rows(self, DirectClass *c, int64_t k0, int64_t kc, int64_t m0, int64_t m, int64_t *coords,
                        char *src, char *a) noexcept nogil:
        """Gather a depth chunk of the block's rows: run by run along x, tap by tap."""
        cdef const convt_kernels *k = self.k
        cdef int nd = self.nd, ax
        cdef int64_t x = nd - 1
        cdef int64_t ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        cdef int64_t pixels = 1
        for ax in range(nd):
            pixels *= c.count[ax]
        cdef int64_t row = 0, run, batch, tap, first, last, depth, lo, hi, i, at, cols, r
        cdef int64_t *j
        cdef int64_t *first_in
        cdef bint inside
        cdef char *to
        while row < m:
            j = coords + row * nd
            run = min(c.count[x] - j[x], m - row)
            batch = (m0 + row) // pixels
            depth = k0
            while depth < k0 + kc:
                tap = depth // ci_p
                first = depth - tap * ci_p
                last = min(ci_p, first + k0 + kc - depth)
                first_in = c.tap_in + tap * nd
                inside = True
                at = batch * self.in_n + first * self.in_c
                for ax in range(nd - 1):
                    i = first_in[ax] + j[ax]
                    if i < 0 or i >= self.in_size.p[ax]:
                        inside = False
                        break
                    at += i * self.in_stride.p[ax]
                i = first_in[x] + j[x]
                lo = min(run, max(0, -i))
                hi = max(lo, min(run, self.in_size.p[x] - i)) if inside else lo
                if not inside:
                    lo = hi = 0
                to = a + (row * CONVT_LDA + depth - k0) * k.e_size
                cols = min(self.ci, last) - first
                for r in range(lo):
                    memset(to + r * CONVT_LDA * k.e_size, 0, (last - first) * k.e_size)
                if hi > lo:
                    k.pack(to + lo * CONVT_LDA * k.e_size, CONVT_LDA,
                           src + (at + (i + lo) * self.in_stride.p[x]) * k.s_size, self.in_stride.p[x], self.in_c,
                           <int>(hi - lo), <int>cols, <int>(last - first))
                for r in range(hi, run):
                    memset(to + r * CONVT_LDA * k.e_size, 0, (last - first) * k.e_size)
                depth += last - first
            row += run

    cdef void store_pieces(self, DirectClass *c, int64_t *panel, int64_t r0, int64_t r1, int64_t *offset,
                           int64_t *coords, bint inside, char *scratch, char *dst) noexcept nogil:
        """Round a finished tile into the output, phase by phase, where the phase is inside the window."""
        cdef const convt_kernels *k = self.k
        cdef int64_t width = 3 + 2 * self.nd, r, ax, n, j
        cdef int64_t *piece
        cdef void *rows[32]
        cdef bint valid
        if inside and panel[1]:
            for r in range(r0, r1):
                rows[r - r0] = dst + (offset[r] + panel[2]) * k.s_size
            k.store(rows, self.out_c, scratch, k.nr, <int>(r1 - r0), <int>panel[0], &self.act)
            return
        for n in range(panel[3], panel[4]):
            piece = c.pieces + n * width
            for r in range(r0, r1):
                valid = True
                if not inside:
                    for ax in range(self.nd):
                        j = coords[r * self.nd + ax]
                        if j < piece[3 + 2 * ax] or j >= piece[4 + 2 * ax]:
                            valid = False
                rows[r - r0] = dst + (offset[r] + piece[2]) * k.s_size if valid else NULL
            k.store(rows, self.out_c, scratch + piece[0] * k.t_size, k.nr, <int>(r1 - r0), <int>piece[1], &self.act)


# ---------------------------------------------------------------- depthwise

cdef struct DepthwiseRun:
    int64_t start, stop      # absolute j
    int64_t first_out        # output index at j = start
    int64_t ntaps
    int64_t *taps            # [ntaps][2]: kernel tap, input index minus j


cdef class DepthwisePlan(Plan):
    cdef list keep
    cdef object structures
    cdef DepthwiseRun *runs
    cdef Py_ssize_t nruns
    cdef int64_t blocks, block, j0, lanes, lane_block, lane_blocks
    cdef int64_t max_taps, max_inputs, min_off, max_off
    cdef _Table maps  # [ci][lanes]: offset of each lane's in-channel
    cdef bint straight_in, straight_out

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, hole, spec):
        self.algorithm = "depthwise"
        self._common(problem, recipe, in_strides, out_strides, hole)
        cdef const convt_kernels *k = self.k
        self.keep = []
        self.nruns = len(spec["runs"])
        self.structures = np.zeros(max(1, self.nruns) * sizeof(DepthwiseRun), np.uint8)
        self.runs = <DepthwiseRun *>cnp.PyArray_DATA(self.structures)
        cdef _Table t
        for i, (start, stop, first_out, taps) in enumerate(spec["runs"]):
            t = _Table(taps)
            self.keep.append(t)
            self.runs[i].start, self.runs[i].stop, self.runs[i].first_out = start, stop, first_out
            self.runs[i].ntaps, self.runs[i].taps = len(taps), t.p
        self._outer(spec["outer"])
        self.block, self.blocks, self.j0 = spec["block"], spec["blocks"], spec["j0"]
        self.lanes, self.lane_block = self.groups * self.co, spec["lane_block"]
        self.lane_blocks = (self.lanes + self.lane_block - 1) // self.lane_block
        self.min_off, self.max_off = spec["min_off"], spec["max_off"]
        self.max_inputs = min(self.block + self.max_off - self.min_off, max(1, self.in_size.p[self.nd - 1]))
        self.max_taps = self.row_taps * self.ci * max([len(taps) for _, _, _, taps in spec["runs"]], default=0)
        group = np.arange(self.lanes) // self.co
        self.maps = _Table([(group * self.ci + c) * self.in_c for c in range(self.ci)])
        self.straight_in = k.direct_store and self.in_c == 1 and self.ci == 1 and self.co == 1
        self.straight_out = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        self.tasks = self.out_rows * self.blocks * self.lane_blocks
        self.workspace = self._bytes()

    cdef int64_t _padded(self) noexcept nogil:
        return (self.lane_block + self.k.vl - 1) // self.k.vl * self.k.vl

    cdef size_t _bytes(self):
        cdef size_t n = _round64((self.row_taps + 1) * 2 * sizeof(int64_t))  # the row's input offsets and taps
        n += 2 * _round64(self.max_taps * sizeof(void *))  # the run's input and weight pointers
        n += _round64(32 * self._padded() * self.k.t_size)  # outputs on their way to the store
        if not self.straight_in:  # widened inputs
            n += _round64(self.row_taps * self.ci * self.max_inputs * self._padded() * self.k.t_size)
        return n

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t padded = self._padded()
        cdef int64_t x = self.nd - 1
        cdef int64_t block = task % self.blocks
        cdef int64_t l0 = task // self.blocks % self.lane_blocks * self.lane_block
        cdef int64_t row = task // self.blocks // self.lane_blocks
        cdef int64_t cols = min(self.lane_block, self.lanes - l0)
        cdef int64_t all_padded = (self.lanes + k.vl - 1) // k.vl * k.vl

        cdef int64_t *row_tap = <int64_t *>ws
        ws += _round64((self.row_taps + 1) * 2 * sizeof(int64_t))
        cdef const void **ins = <const void **>ws
        ws += _round64(self.max_taps * sizeof(void *))
        cdef const void **weights = <const void **>ws
        ws += _round64(self.max_taps * sizeof(void *))
        cdef char *outs = ws
        ws += _round64(32 * padded * k.t_size)
        cdef char *inputs = ws

        cdef int64_t image, at, n, c
        cdef int64_t count = self.row_inputs(row, row_tap, &image, &at)
        cdef char *src = call.src + image * k.s_size
        cdef char *dst = call.dst + (at + l0 * self.out_c) * k.s_size

        cdef int64_t j_lo = self.j0 + block * self.block
        cdef int64_t j_hi = j_lo + self.block
        cdef int64_t i_lo = min(max(0, j_lo - self.max_off), self.in_size.p[x])
        cdef int64_t i_hi = max(i_lo, min(self.in_size.p[x], j_hi - self.min_off))
        cdef int64_t in_ld = self.in_stride.p[x]
        if not self.straight_in:
            for n in range(count):
                for c in range(self.ci):
                    k.gather(inputs + (n * self.ci + c) * self.max_inputs * padded * k.t_size, padded,
                             src + (row_tap[2 * n] + i_lo * in_ld) * k.s_size, in_ld, self.maps.p + c * self.lanes + l0,
                             <int>(i_hi - i_lo), <int>cols, <int>padded)
            in_ld = padded

        cdef convt_dw d
        cdef DepthwiseRun *run
        cdef int64_t start, stop, t, i, r, now, out_ld
        cdef void *rows[32]
        d.cols = <int>cols
        d.in_ = ins
        d.in_ld = in_ld
        d.w = weights
        d.init = call.bias + l0 * k.t_size
        for n in range(self.nruns):
            run = &self.runs[n]
            start, stop = max(run.start, j_lo), min(run.stop, j_hi)
            if start >= stop:
                continue
            d.taps = 0
            for r in range(count):
                for t in range(run.ntaps):
                    i = run.taps[2 * t + 1] + start
                    for c in range(self.ci):
                        if self.straight_in:
                            ins[d.taps] = src + (row_tap[2 * r] + i * in_ld + l0) * k.t_size
                        else:
                            ins[d.taps] = inputs + ((r * self.ci + c) * self.max_inputs + i - i_lo) * padded * k.t_size
                        weights[d.taps] = call.weights + (
                            ((row_tap[2 * r + 1] * self.kernel.p[x] + run.taps[2 * t]) * self.ci + c) * all_padded + l0
                        ) * k.t_size
                        d.taps += 1
            at = run.first_out * self.out_stride.p[x]
            if start > run.start:
                at += (start - run.start) * self.stride.p[x] * self.out_stride.p[x]
            out_ld = self.stride.p[x] * self.out_stride.p[x] if stop - start > 1 else 0
            if self.straight_out:
                d.n = <int>(stop - start)
                d.out = dst + at * k.s_size
                d.out_ld = out_ld
                d.act = &self.act
                k.depthwise(&d)
                continue
            d.act = &self.none
            d.out = outs
            d.out_ld = padded
            while start < stop:
                now = min(32, stop - start)
                d.n = <int>now
                k.depthwise(&d)
                for r in range(now):
                    rows[r] = dst + (at + r * out_ld) * k.s_size
                k.store(rows, self.out_c, outs, padded, <int>now, <int>cols, &self.act)
                for r in range(d.taps):
                    ins[r] = <const char *>ins[r] + now * in_ld * k.t_size
                at += now * out_ld
                start += now


# ---------------------------------------------------------------- scatter

cdef struct ScatterClass:
    # A row of the class: one j of every axis but the last, where all its taps are inside the input.
    int64_t *count        # [nd - 1]
    int64_t rows          # of the batch
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd - 1] input index at the first row
    int64_t nchunks
    int64_t *chunks       # [nchunks][3]: first depth of the class, depth, first depth of the panel
    int64_t nphases
    int64_t *phases       # [nphases][1 + 2 (nd - 1)]: output offset at the first row, then (low, high) of valid per axis
    int64_t npanels, ld
    PackClass *pack
    int64_t first_task, ntasks


cdef class ScatterPlan(Plan):
    cdef ScatterClass *classes
    cdef object structures
    cdef list keep
    cdef int64_t j0, j1, block, blocks, begin, window, taps_x, terms, lanes, max_rows, sums

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, bint hole, spec):
        self.algorithm = "scatter"
        self._common(problem, recipe, in_strides, out_strides, hole)
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c
        cdef int64_t task = 0
        x = self.nd - 1
        self.taps_x, self.begin, self.window = self.kernel.p[x], problem.begin[x], problem.out_sizes[x]
        self.lanes = self.stride.p[x] * self.co
        self.terms = (self.taps_x + self.stride.p[x] - 1) // self.stride.p[x]
        self.j0, self.j1, self.block, self.blocks = spec["j0"], spec["j1"], spec["block"], spec["blocks"]
        self.max_rows = self.block + self.terms - 1
        self.keep = []
        self.structures = np.zeros(max(1, len(spec["classes"])) * sizeof(ScatterClass), np.uint8)
        self.classes = <ScatterClass *>cnp.PyArray_DATA(self.structures)
        for i, row in enumerate(spec["classes"]):
            c = &self.classes[i]
            c.count, c.rows = self._keep(row["count"]), row["rows"]
            c.ntaps, c.tap_in = len(row["tap_in"]), self._keep(row["tap_in"])
            c.nchunks, c.chunks = len(row["chunks"]), self._keep(row["chunks"])
            c.nphases, c.phases = len(row["phases"]), self._keep(row["phases"])
            c.pack = &recipe.classes[<Py_ssize_t>row["pack"]]
            if c.ntaps:
                c.npanels = c.pack.npanels
                c.ld = c.npanels * k.nr + 16
                self.sums = max(self.sums, self.max_rows * c.ld * k.t_size)
            c.first_task, c.ntasks = task, c.rows * self.groups * self.blocks
            task += c.ntasks
        self.tasks = task
        self.workspace = _round64(k.nr * k.t_size) + _round64(self.max_rows * CONVT_LDA * k.e_size) + _round64(self.sums)

    cdef int64_t *_keep(self, values):
        cdef _Table t = _Table(values)
        self.keep.append(t)
        return t.p

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c = self.classes
        while task >= c.first_task + c.ntasks:
            c += 1
        task -= c.first_task
        cdef int64_t x = self.nd - 1
        cdef int64_t j_lo = self.j0 + task % self.blocks * self.block
        cdef int64_t j_hi = min(self.j1, j_lo + self.block)
        cdef int64_t group = task // self.blocks % self.groups
        cdef int64_t row = task // self.blocks // self.groups
        cdef char *col = ws + _round64(k.nr * k.t_size) + _round64(self.max_rows * CONVT_LDA * k.e_size)

        cdef int64_t j[64]
        cdef int64_t ax, at = 0
        for ax in range(x - 1, -1, -1):
            j[ax] = row % c.count[ax]
            row = row // c.count[ax]
            if j[ax]:  # with one row the stride may be anything, and a product with it too
                at += self.stride.p[ax] * j[ax] * self.out_stride.p[ax]
        at += row * self.out_n + group * self.co * self.out_c

        cdef int64_t i_lo = max(0, j_lo - self.terms + 1)
        cdef int64_t i_hi = min(self.in_size.p[x], j_hi)
        if c.ntaps and i_lo < i_hi:
            self.products(c, call.weights + c.pack.weights + group * c.pack.group_weights,
                          call.src + (row * self.in_n + group * self.ci * self.in_c) * k.s_size, j, i_lo, i_hi, ws, col)
        else:
            i_hi = i_lo

        cdef convt_overlap o
        o.ld, o.i0, o.i1 = c.ld, i_lo, i_hi
        o.terms, o.lanes, o.cols = <int>self.terms, <int>self.lanes, <int>(self.taps_x * self.co)
        o.channels = <int>self.co
        o.init = call.bias + group * self.lanes * k.t_size
        o.out_x, o.out_c = self.out_stride.p[x], self.out_c
        o.act = &self.act
        cdef int64_t p
        cdef int64_t *phase
        cdef bint valid
        for p in range(c.nphases):
            phase = c.phases + p * (1 + 2 * x)
            valid = True
            for ax in range(x):
                if j[ax] < phase[1 + 2 * ax] or j[ax] >= phase[2 + 2 * ax]:
                    valid = False
            if valid:
                o.col = col + p * o.cols * k.t_size
                self.overlap_row(&o, j_lo, j_hi, call.dst + (at + phase[0]) * k.s_size)

    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil:
        """Finish outputs [s * j, s * j_hi) of a row: whole j in one go; where the window cuts one, that one alone."""
        cdef int64_t s = self.stride.p[self.nd - 1], lo, hi
        o.out_j = s * o.out_x
        while j < j_hi:
            lo, hi = max(0, self.begin - s * j), min(s, self.begin + self.window - s * j)
            o.j0, o.j1 = j, j + 1
            if lo == 0 and hi == s:
                o.j1 = max(j + 1, min(j_hi, (self.begin + self.window) // s))
            o.lane_lo, o.lane_hi = <int>(lo * self.co), <int>(hi * self.co)
            o.out = dst + (s * j - self.begin) * o.out_x * self.k.s_size
            self.k.overlap(o)
            j = o.j1

    cdef void products(self, ScatterClass *c, char *weights, char *src, int64_t *j, int64_t i_lo, int64_t i_hi,
                       char *ws, char *col) noexcept nogil:
        """col[i - i_lo][(phase, tap, channel)] = the products of input pixel i, summed over the row's taps."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        cdef int64_t m = i_hi - i_lo, tiles = (m + k.mr - 1) // k.mr
        cdef int64_t in_x = self.in_stride.p[x]
        cdef int64_t chunk, depth, tap, first, last, at, ax, p, i, r0, r1, r
        cdef int64_t *ch
        cdef char *zeros = ws
        cdef char *a = ws + _round64(k.nr * k.t_size)
        cdef void *rows[32]
        cdef convt_tile t
        for i in range(k.nr):  # -0, the sum of nothing that keeps the sign of zero
            if k.t_size == 8:
                (<double *>zeros)[i] = -0.0
            else:
                (<float *>zeros)[i] = -0.0
        t.rows = rows
        t.act = &self.none
        t.stream = 0
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            depth = ch[0]
            while depth < ch[0] + ch[1]:
                tap = depth // ci_p
                first = depth - tap * ci_p
                last = min(ci_p, first + ch[0] + ch[1] - depth)
                at = i_lo * in_x + first * self.in_c
                for ax in range(x):
                    at += (c.tap_in[tap * x + ax] + j[ax]) * self.in_stride.p[ax]
                k.pack(a + (depth - ch[0]) * k.e_size, CONVT_LDA, src + at * k.s_size, in_x, self.in_c,
                       <int>m, <int>(min(self.ci, last) - first), <int>(last - first))
                depth += last - first
            t.kc = <int>ch[1]
            for p in range(c.npanels):
                t.nv = <int>((min(k.nr, c.pack.ncols - p * k.nr) + k.vl - 1) // k.vl)
                t.cols = t.nv * k.vl
                t.b = weights + (p * k.nr * c.pack.depth + ch[2] * t.cols) * k.e_size
                for i in range(tiles):
                    r0, r1 = i * m // tiles, (i + 1) * m // tiles
                    t.a = a + r0 * CONVT_LDA * k.e_size
                    for r in range(r0, r1):
                        rows[r - r0] = col + (r * c.ld + p * k.nr) * k.t_size
                    t.init = rows[0] if chunk else zeros
                    t.init_ld = c.ld if chunk else 0
                    k.tile(<int>(r1 - r0), &t)
