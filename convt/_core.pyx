# cython: language_level=3
"""The core: OpenMP loops over cache blocks that feed the micro-kernels. Knows layouts only as strides.

Two algorithms, each a plan class that holds flat tables made by _plan.py and runs on views in NXC axis order:

* DirectPlan: every phase is an implicit GEMM. Rows are pixels of the phase, across rows and images; columns are out
  channels, of several phases where those read the same inputs; depth is taps times in-channels. Tasks are blocks of
  rows by blocks of panels: a block's input is packed once per depth chunk (gathering the taps, zeros outside the input),
  then meets every weight panel of the task.
* DepthwisePlan: one channel in and out per group. Tasks are runs of an output row by blocks of channels.

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
    ctypedef struct convt_kernels:
        int mr, nr, vl, kstep, s_size, e_size, t_size, direct_store
        void (*tile)(int mr, const convt_tile *tile) noexcept nogil
        void (*depthwise)(const convt_dw *run) noexcept nogil
        void (*pack)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                     int padded) noexcept nogil
        void (*widen)(void *dst, Py_ssize_t ld, const void *src, Py_ssize_t rs, Py_ssize_t cs, int rows, int cols,
                      int padded) noexcept nogil
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


# ---------------------------------------------------------------- what this build and this CPU offer

def openmp():
    """The OpenMP version this build uses, as a string, or an empty one."""
    return str(CONVT_OPENMP) if CONVT_OPENMP else ""


def compiler():
    return CONVT_COMPILER.decode()


def isa_rows():
    """The instruction sets built, from least to most, and whether this CPU can run them."""
    return [
        {"name": convt_isa_at(i).name.decode(), "available": bool(convt_isa_available(i))}
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

cdef class PackedFilter:
    """Weights in the panels of one instruction set.

    ``classes`` lists ``(taps, residues)`` per pack class: ``residues`` phases each with ``taps`` kernel taps, given as flat
    indices into the kernel, [phase][tap]. A panel row is one (tap, in-channel); columns are (phase, out-channel).
    ``depthwise`` packs rows of channels per tap instead (in sums' type).
    """
    cdef const convt_isa *isa
    cdef const convt_kernels *k
    cdef Buffer weights
    cdef Buffer bias
    cdef list weight_offsets, bias_offsets, group_bytes, bias_group_bytes
    cdef readonly bint finite
    cdef readonly size_t nbytes

    def __init__(self, str dtype, filter, bias, classes, bint depthwise=False):
        self.isa = _isa
        self.k = &self.isa.set[_DTYPES.index(dtype)]
        # NaN or Inf times the zeros outside the input must not reach the output: _plan then avoids such zeros.
        self.finite = depthwise or bool(np.isfinite(filter).all())
        if depthwise:
            self._pack_depthwise(filter, bias)
        else:
            self._pack_direct(filter, bias, classes)
        self.nbytes = self.weights.size + self.bias.size

    cdef _pack_direct(self, filter, bias, classes):
        cdef const convt_kernels *k = self.k
        cdef Py_ssize_t groups = filter.shape[0], ci = filter.shape[1], co = filter.shape[2], item = k.s_size
        cdef Py_ssize_t ci_p = (ci + k.kstep - 1) // k.kstep * k.kstep
        cdef Py_ssize_t ntaps, nphases, depth, ncols, npanels, n, p, width, g, col, phase, c0, c1, t
        cdef size_t wsize = 0, bsize = 0
        sizes = []
        for taps in classes:
            nphases, ntaps = len(taps), len(taps[0])
            ncols, depth = nphases * co, ntaps * ci_p
            npanels = (ncols + k.nr - 1) // k.nr
            sizes.append((wsize, bsize))
            wsize += _round64(groups * npanels * k.nr * depth * k.e_size)
            bsize += groups * npanels * k.nr * k.t_size
        self.weights, self.bias = Buffer(wsize), Buffer(bsize)
        memset(self.weights.data, 0, self.weights.size)
        memset(self.bias.data, 0, self.bias.size)
        self.weight_offsets = [w for w, _ in sizes]
        self.bias_offsets = [b for _, b in sizes]
        self.group_bytes, self.bias_group_bytes = [], []

        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        cdef char *bsrc = <char *>cnp.PyArray_DATA(bias) if bias is not None else NULL
        cdef Py_ssize_t bstride = bias.strides[0] // item if bias is not None else 0
        cdef Py_ssize_t sg = filter.strides[0], si = filter.strides[1] // item, so = filter.strides[2] // item
        cdef char *dst
        cdef char *bdst
        cdef _Table tap_offsets
        cdef int64_t *tap
        for index, taps in enumerate(classes):
            nphases, ntaps = len(taps), len(taps[0])
            ncols, depth = nphases * co, ntaps * ci_p
            npanels = (ncols + k.nr - 1) // k.nr
            self.group_bytes.append(npanels * k.nr * depth * k.e_size)
            self.bias_group_bytes.append(npanels * k.nr * k.t_size)
            tap_offsets = _Table(np.dot(np.stack(np.unravel_index(np.asarray(taps, np.int64), filter.shape[3:]), -1),
                                        np.asarray(filter.strides[3:], np.int64)))
            tap = tap_offsets.p
            dst = self.weights.data + <size_t>self.weight_offsets[index]
            bdst = self.bias.data + <size_t>self.bias_offsets[index]
            with nogil:
                for g in range(groups):
                    for n in range(npanels):
                        width = k.vl if ncols - n * k.nr <= k.vl else k.nr
                        col = n * k.nr
                        while col < min(ncols, (n + 1) * k.nr):
                            phase = col // co
                            c0 = col - phase * co
                            c1 = min(co, c0 + min(ncols, (n + 1) * k.nr) - col)
                            for t in range(ntaps):
                                k.pack_b(dst, t * ci_p, col - n * k.nr,
                                         src + g * sg + tap[phase * ntaps + t] + c0 * so * item, si, so, ci, c1 - c0, width)
                            if bsrc != NULL:
                                k.widen(bdst + (col - n * k.nr) * k.t_size, k.nr,
                                        bsrc + (g * co + c0) * bstride * item, 0, bstride, 1, c1 - c0, c1 - c0)
                            col += c1 - c0
                        dst += k.nr * depth * k.e_size
                        bdst += k.nr * k.t_size

    cdef _pack_depthwise(self, filter, bias):
        cdef const convt_kernels *k = self.k
        cdef Py_ssize_t channels = filter.shape[0], item = k.s_size, t
        cdef Py_ssize_t padded = (channels + k.vl - 1) // k.vl * k.vl
        cdef Py_ssize_t ntaps = int(np.prod(filter.shape[3:]))
        cdef _Table offsets = _Table(np.dot(np.stack(np.unravel_index(np.arange(ntaps), filter.shape[3:]), -1),
                                            np.asarray(filter.strides[3:], np.int64)))
        self.weights, self.bias = Buffer(ntaps * padded * k.t_size), Buffer(padded * k.t_size)
        memset(self.bias.data, 0, self.bias.size)
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        for t in range(ntaps):
            k.widen(self.weights.data + t * padded * k.t_size, 0, src + offsets.p[t], 0, filter.strides[0] // item,
                    1, channels, padded)
        if bias is not None:
            k.widen(self.bias.data, 0, <char *>cnp.PyArray_DATA(bias), 0, bias.strides[0] // item, 1, channels, padded)


cdef class Plan:
    """What both algorithms share: kernels, sizes, strides, activation, workspace, the way to run."""
    cdef readonly str algorithm, isa
    cdef readonly str backend
    cdef const convt_kernels *k
    cdef PackedFilter packed
    cdef convt_act act, none
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef int nd
    cdef int64_t batch, groups, ci, co
    cdef _Table in_size, in_stride, out_stride, stride  # per spatial axis; strides in elements
    cdef int64_t in_n, in_c, out_n, out_c
    cdef bint small  # too little work for a second thread
    cdef object fill  # what outputs hold that no product reaches, or None where there are none

    def __cinit__(self, *args, **kwargs):
        self.backend = "native"

    cdef _common(self, problem, PackedFilter packed, in_strides, out_strides, fill):
        self.fill = fill
        self.packed = packed
        self.k = packed.k
        self.isa = packed.isa.name.decode()
        name, a, b = problem.activation
        self.act.code, self.act.a, self.act.b = _ACTIVATIONS[name], a, b
        if name == "relu":
            self.act.b = float("inf")
        self.nd = problem.rank
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        item = self.k.s_size
        ins, outs = [s // item for s in in_strides], [s // item for s in out_strides]
        self.in_size, self.stride = _Table(problem.in_sizes), _Table([min(s, 2**62) for s in problem.strides])
        self.in_n, self.in_stride, self.in_c = ins[0], _Table(ins[1:self.nd + 1]), ins[self.nd + 1]
        self.out_n, self.out_stride, self.out_c = outs[0], _Table(outs[1:self.nd + 1]), outs[self.nd + 1]
        self.small = problem.flops < 400_000

    cdef void run_task(self, Py_ssize_t task, char *src, char *dst, char *ws) noexcept nogil:
        pass

    def packed_bytes(self):
        return self.packed.nbytes

    def packed_finite(self):
        return self.packed.finite

    def threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return 1 if self.small else max(1, min(available, self.tasks))

    def run(self, data, out, int available):
        """Compute; ``data`` and ``out`` are views in NXC order with the strides the plan was made for."""
        cdef char *src = <char *>cnp.PyArray_DATA(data)
        cdef char *dst = <char *>cnp.PyArray_DATA(out)
        if self.fill is not None:
            out[...] = self.fill
        cdef int threads = self.threads(available)
        cdef size_t per_thread = _round64(self.workspace)
        cdef Buffer ws = _take(per_thread * threads)
        cdef Py_ssize_t t
        cdef Py_ssize_t tasks = self.tasks
        if threads > 1:
            if not _pool_used:
                _note_pool()
            with nogil, parallel(num_threads=threads):
                for t in prange(tasks, schedule="dynamic", chunksize=1):
                    self.run_task(t, src, dst, ws.data + threadid() * per_thread)
        else:
            with nogil:
                for t in range(tasks):
                    self.run_task(t, src, dst, ws.data)
        _give(ws)


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
    # packed weights
    char *weights
    char *bias
    int64_t depth, group_bytes, bias_group_bytes
    int64_t first_task, ntasks


cdef class DirectPlan(Plan):
    cdef DirectClass *classes
    cdef Py_ssize_t nclasses
    cdef list keep  # the tables that the structures point into
    cdef object structures
    cdef int64_t max_block, max_panels
    cdef bint chunked

    def __init__(self, problem, PackedFilter packed, in_strides, out_strides, fill, classes):
        self.algorithm = "direct"
        self._common(problem, packed, in_strides, out_strides, fill)
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
            pack = spec["pack"]
            c.weights = packed.weights.data + <size_t>packed.weight_offsets[pack]
            c.bias = packed.bias.data + <size_t>packed.bias_offsets[pack]
            c.group_bytes, c.bias_group_bytes = packed.group_bytes[pack], packed.bias_group_bytes[pack]
            c.depth = spec["depth"]
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

    cdef void run_task(self, Py_ssize_t task, char *src, char *dst, char *ws) noexcept nogil:
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
        src += group * self.ci * self.in_c * k.s_size
        dst += group * self.co * self.out_c * k.s_size

        cdef int64_t tiles = (m + k.mr - 1) // k.mr
        cdef int64_t chunk, p, i, r0, r1, r, b_row
        cdef int64_t *ch
        cdef int64_t *panel
        cdef bint first, last, inside, straight
        cdef bint fast = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        cdef void *rows[32]
        cdef convt_tile t
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            first, last = chunk == 0, chunk == c.nchunks - 1
            self.pack_rows(c, ch[0], ch[1], m0, m, coords, src, a)
            t.kc = <int>ch[1]
            for p in range(p0, p1):
                panel = c.panels + 5 * p
                t.nv = <int>((panel[0] + k.vl - 1) // k.vl)
                t.b = c.weights + group * c.group_bytes + (p * k.nr * c.depth + ch[2] * t.nv * k.vl) * k.e_size
                for i in range(tiles):
                    r0, r1 = i * m // tiles, (i + 1) * m // tiles
                    t.a = a + r0 * CONVT_LDA * k.e_size
                    if first:
                        t.init = c.bias + group * c.bias_group_bytes + p * k.nr * k.t_size
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
                        for r in range(r1 - r0):
                            rows[r] = dst + (offset[r0 + r] + panel[2]) * k.s_size
                        k.tile(<int>(r1 - r0), &t)
                    else:
                        for r in range(r1 - r0):
                            rows[r] = scratch + r * k.nr * k.t_size
                        k.tile(<int>(r1 - r0), &t)
                        self.store_pieces(c, panel, r0, r1, offset, coords, inside, scratch, dst)

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
    cdef int64_t out_rows, blocks, block, j0, channel_block, channel_blocks
    cdef int64_t max_taps, row_taps, max_inputs, min_off, max_off
    cdef _Table kernel, outer_out, outer_start, outer_taps
    cdef bint straight_in, straight_out

    def __init__(self, problem, PackedFilter packed, in_strides, out_strides, fill, spec):
        self.algorithm = "depthwise"
        self._common(problem, packed, in_strides, out_strides, fill)
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
        # For each outer axis and each of its outputs: the (kernel tap, input index) pairs that reach it.
        self.outer_out = _Table([len(axis) for axis in spec["outer"]])
        starts, pairs = [], []
        for axis in spec["outer"]:
            for taps in axis:
                starts.append(len(pairs))
                pairs += taps
        self.outer_start, self.outer_taps = _Table([*starts, len(pairs)]), _Table(pairs)
        self.out_rows = self.batch
        self.row_taps = 1
        for axis in spec["outer"]:
            self.out_rows *= len(axis)
            self.row_taps *= max([len(taps) for taps in axis], default=0)
        self.kernel = _Table(problem.kernel)
        self.block, self.blocks, self.j0 = spec["block"], spec["blocks"], spec["j0"]
        self.channel_block = spec["channel_block"]
        self.channel_blocks = (self.groups + self.channel_block - 1) // self.channel_block
        self.min_off, self.max_off = spec["min_off"], spec["max_off"]
        self.max_inputs = min(self.block + self.max_off - self.min_off, max(1, self.in_size.p[self.nd - 1]))
        self.max_taps = self.row_taps * max([len(taps) for _, _, _, taps in spec["runs"]], default=0)
        self.straight_in = k.direct_store and self.in_c == 1
        self.straight_out = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        self.tasks = self.out_rows * self.blocks * self.channel_blocks
        self.workspace = self._bytes()

    cdef int64_t _padded(self) noexcept nogil:
        return (self.channel_block + self.k.vl - 1) // self.k.vl * self.k.vl

    cdef size_t _bytes(self):
        cdef size_t n = _round64(self.row_taps * 2 * sizeof(int64_t))  # the row's outer taps: input offset, kernel tap
        n += 2 * _round64(self.max_taps * sizeof(void *))  # the run's input and weight pointers
        n += _round64(32 * self._padded() * self.k.t_size)  # outputs on their way to the store
        if not self.straight_in:
            n += _round64(self.row_taps * self.max_inputs * self._padded() * self.k.t_size)  # widened inputs
        return n

    cdef void run_task(self, Py_ssize_t task, char *src, char *dst, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t padded = self._padded()
        cdef int64_t x = self.nd - 1
        cdef int64_t block = task % self.blocks
        cdef int64_t channels = task // self.blocks % self.channel_blocks
        cdef int64_t row = task // self.blocks // self.channel_blocks
        cdef int64_t c0 = channels * self.channel_block
        cdef int64_t cols = min(self.channel_block, self.groups - c0)
        cdef int64_t all_padded = (self.groups + k.vl - 1) // k.vl * k.vl

        cdef int64_t *row_tap = <int64_t *>ws
        ws += _round64(self.row_taps * 2 * sizeof(int64_t))
        cdef const void **ins = <const void **>ws
        ws += _round64(self.max_taps * sizeof(void *))
        cdef const void **weights = <const void **>ws
        ws += _round64(self.max_taps * sizeof(void *))
        cdef char *outs = ws
        ws += _round64(32 * padded * k.t_size)
        cdef char *inputs = ws

        # Which input rows reach this output row, through which taps of the outer axes.
        cdef int64_t count = 1, ax, o, first, last, n, more, axis_start, at
        at = 0
        axis_start = 0
        for ax in range(x):
            axis_start += self.outer_out.p[ax]
        row_tap[0] = 0
        row_tap[1] = 0
        cdef int64_t kernel = 1
        for ax in range(x - 1, -1, -1):
            axis_start -= self.outer_out.p[ax]
            o = row % self.outer_out.p[ax]
            row = row // self.outer_out.p[ax]
            at += o * self.out_stride.p[ax]
            first, last = self.outer_start.p[axis_start + o], self.outer_start.p[axis_start + o + 1]
            # Expand from the back, so that the entries still to be read are not overwritten.
            for more in range(last - first - 1, -1, -1):
                for n in range(count):
                    row_tap[2 * (more * count + n)] = row_tap[2 * n] + self.outer_taps.p[2 * (first + more) + 1] * self.in_stride.p[ax]
                    row_tap[2 * (more * count + n) + 1] = row_tap[2 * n + 1] + self.outer_taps.p[2 * (first + more)] * kernel
            count *= last - first
            kernel *= self.kernel.p[ax]
        src += (row * self.in_n + c0 * self.in_c) * k.s_size
        dst += (row * self.out_n + at + c0 * self.out_c) * k.s_size

        cdef int64_t j_lo = self.j0 + block * self.block
        cdef int64_t j_hi = j_lo + self.block
        cdef int64_t i_lo = min(max(0, j_lo - self.max_off), self.in_size.p[x])
        cdef int64_t i_hi = max(i_lo, min(self.in_size.p[x], j_hi - self.min_off))
        cdef int64_t in_ld = self.in_stride.p[x]
        if not self.straight_in:
            for n in range(count):
                k.widen(inputs + n * self.max_inputs * padded * k.t_size, padded,
                        src + (row_tap[2 * n] + i_lo * in_ld) * k.s_size, in_ld, self.in_c,
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
        d.init = self.packed.bias.data + c0 * k.t_size
        for n in range(self.nruns):
            run = &self.runs[n]
            start, stop = max(run.start, j_lo), min(run.stop, j_hi)
            if start >= stop:
                continue
            d.taps = 0
            for r in range(count):
                for t in range(run.ntaps):
                    i = run.taps[2 * t + 1] + start
                    if self.straight_in:
                        ins[d.taps] = src + (row_tap[2 * r] + i * in_ld) * k.t_size
                    else:
                        ins[d.taps] = inputs + (r * self.max_inputs + i - i_lo) * padded * k.t_size
                    weights[d.taps] = self.packed.weights.data + (
                        (row_tap[2 * r + 1] * self.kernel.p[x] + run.taps[2 * t]) * all_padded + c0) * k.t_size
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
