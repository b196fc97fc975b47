# cython: language_level=3
"""The plan of rows and its loops: output rows of NCX planes, with vectors over pixels.

A task is a block of j of some output rows of a channel group; only this task writes their outputs. It loops over output rows:

1. The input rows that reach the output row are copied to the region "inputs", with zeros at their ends, and kept for the next
   output rows. "kept" names the input rows there.
2. For each channel block and each block of phases, a micro-kernel sums all input rows, in-channels and taps into rows of the
   region "phase_rows". "taps", "sources" and "weights" are its tables.
3. The phases of a channel block are interleaved into the output row, with activation and rounding. Outputs that exceed the
   caches are interleaved into the region "stage" and copied by non-temporal stores, because pads leave few rows aligned.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, kernels_of
from convt._run.kernels cimport (
    CONVT_INTERLEAVED,
    CONVT_MOST_ROWS,
    CONVT_STAGED_BYTES,
    convt_interleave,
    convt_kernels,
    convt_prefetch_row_l2,
    convt_rows,
)
from convt._run.memory cimport keep_table, round64, structures
from convt.algorithms.indexing cimport take_block
from convt.algorithms.row_plan cimport KeptRow, RowPlan, clear_kept_rows, place_of_row

cnp.import_array()

MOST_PHASES = CONVT_INTERLEAVED  # the most phases of the last axis

cdef enum:
    PREFETCH_BYTES = 1 << 11  # the most bytes of a row that are prefetched; the hardware prefetches the rest


cdef struct RowBlock:
    # Fields of layout.OutputBlock.
    int64_t outputs, shifts, weights, bias


cdef struct RowOutputs:
    # The outputs (channel, phase) of a `RowBlock`: where they are computed and what they read.
    int64_t *phase_row       # [output] row of the region "phase_rows", which has a row per (channel, phase) of a channel block
    Py_ssize_t *shift        # [shift] elements from the start of a packed input row to the input that the first j reads
    int64_t shifts           # number of taps of each output on the last axis


cdef struct RowsRegions:
    # Offsets of the regions of a thread's workspace (schedule.py).
    size_t kept, taps, sources, weights, phase_rows, stage, inputs


cdef class RowsPlan(RowPlan):
    """The plan of a `Schedule` of rows/schedule.py."""

    cdef RowBlock *weights   # [channel block][block of phases]
    cdef int64_t nblocks, group_weights, group_bias  # number of them; bytes of a channel group
    cdef list keep
    cdef RowOutputs *outputs  # [phase_blocks], equal for all channel blocks
    cdef int64_t channel_blocks, phase_blocks  # blocks of out-channels; blocks of phases in each of them
    cdef int64_t rows, row_blocks, block, blocks, j0, js  # see schedule.py
    cdef int64_t reach       # j reads the inputs j - reach to j
    cdef int64_t begin, out_size  # window of the last axis
    cdef int64_t pitch, pixels  # elements between packed input rows; outputs of a row of "phase_rows"
    cdef int64_t input_row_bytes  # bytes of a packed input row of all in-channels of a group
    cdef RowsRegions at
    cdef bint stream         # non-temporal stores, of outputs from the region "stage"
    cdef bint in_place       # rows of a single in-channel are read in place if they contain all pixels of the task

    def __init__(self, schedule, layout, in_strides, out_strides):
        """``layout`` is the `Layout` of the packed weights."""
        problem, phases = schedule.problem, schedule.phases
        self.open_plan(problem, kernels_of(problem.dtype), in_strides, out_strides, schedule.execution)
        self.open_rows(problem)
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, n, d = problem.dilations[x]
        self.keep, self.equal_tasks, self.nblocks = [], True, len(layout.blocks)
        self.weights = <RowBlock *>keep_table(self.keep, layout.blocks)
        self.group_weights, self.group_bias = layout.group_weights, layout.group_bias
        self.row_taps, self.rows = schedule.row_taps, schedule.rows
        self.block, self.blocks, self.j0, self.js = schedule.block, schedule.blocks, schedule.j0, schedule.js
        self.row_blocks = (self.out_rows + self.rows - 1) // self.rows
        self.begin, self.out_size = problem.begin[x], problem.out_sizes[x]
        self.stream = schedule.stream and self.out_stride.p[x] == 1
        self.reach = d * (problem.kernel[x] - 1) // problem.strides[x]
        self.channel_blocks, self.phase_blocks = schedule.channel_blocks, len(phases)
        # Channel blocks differ only in their number of channels, so they share the tables.
        self.outputs = <RowOutputs *>cnp.PyArray_DATA(structures(self.keep, self.phase_blocks, sizeof(RowOutputs)))
        channels = np.arange((self.co + self.channel_blocks - 1) // self.channel_blocks)[:, None] * problem.strides[x]
        for n, block in enumerate(phases):
            self.outputs[n].phase_row = keep_table(self.keep, channels + block.residues)
            shift = self.reach - block.offset - d * np.arange(block.terms - 1, -1, -1)
            self.outputs[n].shift, self.outputs[n].shifts = <Py_ssize_t *>keep_table(self.keep, shift), block.terms
        self.pixels, self.pitch = (self.block + k.vl - 1) // k.vl * k.vl, schedule.pitch
        self.input_row_bytes = round64(self.ci * self.pitch * k.t_size)
        self.in_place = k.direct_store and self.ci == 1 and self.in_stride.p[x] == 1
        self.tasks = self.row_blocks * self.groups * self.blocks
        self.at, self.workspace = schedule.workspace, schedule.workspace.bytes

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a block of j of some output rows of a channel group."""
        cdef int64_t group = task, n, ja, jb, first, end
        take_block(&group, self.js, self.block, self.blocks, &ja, &jb)
        take_block(&group, self.out_rows, self.rows, self.row_blocks, &first, &end)
        cdef KeptRow *kept = <KeptRow *>ws
        clear_kept_rows(kept, self.row_taps)
        # The zeros at the ends of rows. They are at the same places in all rows of a task, and packing does not overwrite them.
        memset(ws + self.at.inputs, 0, self.row_taps * self.input_row_bytes)
        for n in range(first, end):
            run_row(self, n, group, ja, jb, call, kept, ws)
        if self.stream:
            self.k.fence()


cdef char *packed_row(RowsPlan plan, int64_t row, int64_t out_row, char *src, int64_t first, int64_t last, KeptRow *kept,
                      char *inputs) noexcept nogil:
    """Return the packed inputs ``first`` to ``last`` - 1 of the row at ``src``, with zeros outside the input. A row that
    an earlier output row packed is reused. Return NULL if the row can be read in place: one in-channel, and whole vectors
    inside."""
    cdef const convt_kernels *k = plan.k
    cdef bint is_packed
    if plan.in_place and first >= 0 and first + plan.pitch <= plan.in_size.p[plan.nd - 1]:
        return NULL
    cdef int64_t place = place_of_row(kept, plan.row_taps, row, out_row, &is_packed), x = plan.nd - 1
    cdef int64_t low = min(max(0, -first), last - first), high = max(low, min(last, plan.in_size.p[x]) - first)
    inputs += place * plan.input_row_bytes
    if is_packed:
        return inputs
    if high > low:
        k.widen(inputs + low * k.t_size, plan.pitch, src + (first + low) * plan.in_stride.p[x] * k.s_size, plan.in_c,
                plan.in_stride.p[x], <int>plan.ci, <int>(high - low), <int>(high - low))
    return inputs


cdef void run_row(RowsPlan plan, int64_t row, int64_t group, int64_t ja, int64_t jb, const Call *call, KeptRow *kept,
                  char *ws) noexcept nogil:
    """Compute ja <= j < jb (counted from j0) of an output row of a channel group."""
    cdef const convt_kernels *k = plan.k
    cdef int64_t x = plan.nd - 1, s = plan.stride.p[x], t_size = k.t_size
    cdef int64_t *row_tap = <int64_t *>(ws + plan.at.taps)
    cdef const void **sources = <const void **>(ws + plan.at.sources)
    cdef const void **weights = <const void **>(ws + plan.at.weights)
    cdef char *phase_rows = ws + plan.at.phase_rows
    cdef char *inputs = ws + plan.at.inputs
    cdef int64_t image, at, n, u, c, m, count, step, first_c, phase_row_bytes = (plan.pixels + k.vl) * t_size
    cdef char *source
    cdef char *weight
    cdef RowBlock *b
    cdef RowOutputs *o
    cdef void *rows[CONVT_MOST_ROWS]
    cdef void *outs[CONVT_MOST_ROWS]
    cdef convt_rows r
    cdef convt_interleave w
    count = plan.row_inputs(row, row_tap, &image, &at)
    cdef char *dst = call.dst + (at + group * plan.co * plan.out_c) * k.s_size
    cdef int64_t first = plan.j0 + ja - plan.reach
    for u in range(count):
        at = image + row_tap[2 * u] + group * plan.ci * plan.in_c
        source = packed_row(plan, at, row, call.src + at * k.s_size, first, plan.j0 + jb, kept, inputs)
        step = plan.pitch
        if source == NULL:
            source, step = call.src + (at + first) * k.s_size, plan.in_c
        for c in range(plan.ci):
            sources[u * plan.ci + c] = source + c * step * t_size
    # Prefetch the next block of the first input row while this block is computed.
    if plan.in_stride.p[x] == 1 and count > 0:
        convt_prefetch_row_l2(call.src + (at + first + plan.pitch) * k.s_size,
                              min(plan.pitch * k.s_size, <int64_t>PREFETCH_BYTES))
    r.n, r.sources = <int>(jb - ja), <int>(count * plan.ci)
    r.in_, r.w, r.rows = sources, weights, rows
    w.phases, w.step, w.act, w.stream = s, plan.out_stride.p[x], &plan.act, plan.stream
    w.first = max(0, plan.begin - s * (plan.j0 + ja))
    w.last = min(s * (jb - ja), plan.begin + plan.out_size - s * (plan.j0 + ja))
    w.ld, w.bias = phase_row_bytes // t_size, NULL
    for n in range(plan.nblocks):
        b, o = &plan.weights[n], &plan.outputs[n % plan.phase_blocks]
        weight = call.weights + group * plan.group_weights + b.weights
        m = o.shifts * b.outputs * t_size  # bytes of the weights of an outer tap and in-channel
        for u in range(count):
            for c in range(plan.ci):
                weights[u * plan.ci + c] = weight + (row_tap[2 * u + 1] * plan.ci + c) * m
        r.shifts, r.shift = <int>o.shifts, o.shift
        r.init = call.bias + group * plan.group_bias + b.bias
        for m in range(b.outputs):
            rows[m] = phase_rows + o.phase_row[m] * phase_row_bytes
        k.rows(<int>b.outputs, &r)
        if (n + 1) % plan.phase_blocks:
            continue
        # All phases of a channel block are computed: interleave them.
        c = n // plan.phase_blocks
        first_c = plan.co * c // plan.channel_blocks
        w.rows = <int>(plan.co * (c + 1) // plan.channel_blocks - first_c)
        for m in range(w.rows):
            outs[m] = dst + ((first_c + m) * plan.out_c + (s * (plan.j0 + ja) - plan.begin) * w.step) * k.s_size
        w.row, w.out = phase_rows, outs
        if w.stream and <size_t>outs[0] & 63 and (w.last - w.first) * k.s_size >= CONVT_STAGED_BYTES:
            interleave_non_temporal(k, &w, ws + plan.at.stage)
        else:
            k.interleave(&w)


cdef void interleave_non_temporal(const convt_kernels *k, const convt_interleave *w, char *stage) noexcept nogil:
    """Interleave each row of outputs into the stage, and copy it with non-temporal stores."""
    cdef int64_t n, count = w.last - w.first
    cdef void **outs = w.out
    cdef void *staged
    cdef char *out
    cdef convt_interleave row = w[0]
    row.rows, row.out, row.stream = 1, &staged, 0
    for n in range(w.rows if count > 0 else 0):
        out = <char *>outs[n] + w.first * k.s_size
        staged = stage + (<size_t>out & 63) - w.first * k.s_size  # the stage and the output are aligned alike
        k.interleave(&row)
        k.copy_non_temporal(out, stage + (<size_t>out & 63), count * k.s_size)
        row.row = <const char *>row.row + w.phases * w.ld * k.t_size
