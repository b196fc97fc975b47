# cython: language_level=3
"""The plan of rows and its loops: output rows of NCX planes, with vectors over pixels.

A task is a block of j of some output rows of a channel group; only this task writes their outputs. It loops over output rows:

1. The input rows that reach the output row are copied to the region "inputs", with zeros at their ends, and kept for the next
   output rows. "kept" names the input rows there.
2. For each channel block and each block of phases, a micro-kernel sums all input rows, in-channels and taps into rows of the
   region "phase_rows". "taps", "sources" and "weights" are its tables.
3. The phases of a channel block are interleaved into the output row, with activation and rounding.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport Call
from convt._run.kernels cimport CONVT_INTERLEAVED, MOST_ROWS, convt_interleave, convt_kernels, convt_prefetch_row_l2, convt_rows
from convt._run.memory cimport keep_table, round64, structures
from convt.algorithms.indexing cimport take_index
from convt.algorithms.row_plan cimport KeptRow, RowPlan, clear_kept_rows, place_of_row
from convt.algorithms.rows.weights cimport RowBlock, RowsRecipe

cnp.import_array()

MOST_PHASES = CONVT_INTERLEAVED  # the most phases of the last axis

cdef enum:
    PREFETCH_BYTES = 1 << 11  # the most bytes of a row that are prefetched; the hardware prefetches the rest


cdef struct RowOutputs:
    # The outputs of a `RowBlock`: where they are computed and what they read.
    int64_t *phase_row       # [output] row of the region "phase_rows", which has a row per (channel, phase) of a channel block
    Py_ssize_t *shift        # [shift] elements from the start of a packed input row to the input that the first j reads
    int64_t shifts           # number of taps of each output on the last axis


cdef class RowsPlan(RowPlan):
    """The plan of a `Schedule` of rows/schedule.py."""

    cdef RowsRecipe recipe
    cdef list keep
    cdef RowOutputs *outputs  # [phase_blocks], equal for all channel blocks
    cdef int64_t channel_blocks, phase_blocks, most_channels  # blocks of phases in a channel block; the most channels of one
    cdef int64_t rows, row_blocks, block, blocks, j0, js  # see schedule.py
    cdef int64_t low_offset, high_offset  # j reads the inputs j - high_offset to j - low_offset
    cdef int64_t begin, out_size  # window of the last axis
    cdef int64_t pitch, pixels  # elements between packed input rows; outputs of a row of "phase_rows"
    cdef int64_t at_taps, at_sources, at_weights, at_phase_rows, at_inputs  # byte offsets of regions of the workspace
    cdef bint stream         # non-temporal stores
    cdef bint in_place       # rows of a single in-channel are read in place if they contain all pixels of the task

    def __init__(self, schedule, RowsRecipe recipe, in_strides, out_strides, execution):
        problem, phases = schedule.problem, schedule.phases
        self.open_plan("rows", problem, recipe.k, in_strides, out_strides, execution)
        self.open_rows(problem)
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, c, n, m
        cdef RowOutputs *out
        self.recipe, self.keep, self.equal_tasks = recipe, [], True
        self.row_taps, self.rows = schedule.row_taps, schedule.rows
        self.block, self.blocks, self.j0, self.js = schedule.block, schedule.blocks, schedule.j0, schedule.js
        self.row_blocks = (self.out_rows + self.rows - 1) // self.rows
        self.begin, self.out_size, self.stream = problem.begin[x], problem.out_sizes[x], schedule.stream
        self.low_offset, self.high_offset = 0, problem.dilations[x] * (problem.kernel[x] - 1) // problem.strides[x]
        self.channel_blocks, self.phase_blocks = schedule.channel_blocks, len(phases)
        self.most_channels = (self.co + self.channel_blocks - 1) // self.channel_blocks
        # Channel blocks differ only in their number of channels, so they share the tables.
        self.outputs = <RowOutputs *>cnp.PyArray_DATA(structures(self.keep, self.phase_blocks, sizeof(RowOutputs)))
        channels = np.arange(self.most_channels)[:, None] * problem.strides[x]
        for n, block in enumerate(phases):
            out = &self.outputs[n]
            out.phase_row = keep_table(self.keep, channels + block.residues)
            out.shift = <Py_ssize_t *>keep_table(
                self.keep, self.high_offset - block.offset - problem.dilations[x] * np.arange(block.terms - 1, -1, -1))
            out.shifts = block.terms
        self.pixels, self.pitch = (self.block + k.vl - 1) // k.vl * k.vl, schedule.pitch
        self.in_place = k.direct_store and self.ci == 1 and self.in_stride.p[x] == 1
        self.tasks = self.row_blocks * self.groups * self.blocks
        at = {name: place for name, place, _ in schedule.workspace.regions}
        self.at_taps, self.at_sources, self.at_weights = at["taps"], at["sources"], at["weights"]
        self.at_phase_rows, self.at_inputs = at["phase_rows"], at["inputs"]
        self.workspace = schedule.workspace.bytes

    cdef size_t input_row_bytes(self) noexcept nogil:
        """Return the bytes of a packed input row of all in-channels of a group."""
        return round64(self.ci * self.pitch * self.k.t_size)

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef int64_t rest = task, n
        cdef int64_t ja = take_index(&rest, self.blocks) * self.block
        cdef int64_t first = take_index(&rest, self.row_blocks) * self.rows
        cdef KeptRow *kept = <KeptRow *>ws
        clear_kept_rows(kept, self.row_taps)
        # The zeros at the ends of rows. They are at the same places in all rows of a task, and packing does not overwrite them.
        memset(ws + self.at_inputs, 0, self.row_taps * self.input_row_bytes())
        for n in range(first, min(self.out_rows, first + self.rows)):
            self.run_row(n, rest, ja, min(self.js, ja + self.block), call, kept, ws)
        if self.stream:
            self.k.fence()

    cdef char *packed_row(self, int64_t row, int64_t out_row, char *src, int64_t first, int64_t last, KeptRow *kept,
                          char *inputs) noexcept nogil:
        """Return the packed inputs ``first`` to ``last`` - 1 of the row at ``src``, with zeros outside the input. A row that
        an earlier output row packed is reused. Return NULL if the row can be read in place: one in-channel, and whole vectors
        inside."""
        cdef const convt_kernels *k = self.k
        cdef bint is_packed
        if self.in_place and first >= 0 and first + self.pitch <= self.in_size.p[self.nd - 1]:
            return NULL
        cdef int64_t place = place_of_row(kept, self.row_taps, row, out_row, &is_packed), x = self.nd - 1
        cdef int64_t low = min(max(0, -first), last - first), high = max(low, min(last, self.in_size.p[x]) - first)
        inputs += place * self.input_row_bytes()
        if is_packed:
            return inputs
        if high > low:
            k.widen(inputs + low * k.t_size, self.pitch, src + (first + low) * self.in_stride.p[x] * k.s_size, self.in_c,
                    self.in_stride.p[x], <int>self.ci, <int>(high - low), <int>(high - low))
        return inputs

    cdef void run_row(self, int64_t row, int64_t group, int64_t ja, int64_t jb, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil:
        """Compute ja <= j < jb (counted from j0) of an output row of a channel group."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, s = self.stride.p[x], t_size = k.t_size
        cdef int64_t *row_tap = <int64_t *>(ws + self.at_taps)
        cdef const void **sources = <const void **>(ws + self.at_sources)
        cdef const void **weights = <const void **>(ws + self.at_weights)
        cdef char *phase_rows = ws + self.at_phase_rows
        cdef char *inputs = ws + self.at_inputs
        cdef int64_t image, at, n, u, c, m, count, step, first_c, phase_row_bytes = (self.pixels + k.vl) * t_size
        cdef char *source
        cdef char *weight
        cdef RowBlock *b
        cdef RowOutputs *o
        cdef void *rows[MOST_ROWS]
        cdef void *outs[MOST_ROWS]
        cdef convt_rows r
        cdef convt_interleave w
        count = self.row_inputs(row, row_tap, &image, &at)
        cdef char *dst = call.dst + (at + group * self.co * self.out_c) * k.s_size
        cdef int64_t first = self.j0 + ja - self.high_offset
        for u in range(count):
            at = image + row_tap[2 * u] + group * self.ci * self.in_c
            source = self.packed_row(at, row, call.src + at * k.s_size, first, self.j0 + jb - self.low_offset, kept, inputs)
            step = self.pitch
            if source == NULL:
                source, step = call.src + (at + first) * k.s_size, self.in_c
            for c in range(self.ci):
                sources[u * self.ci + c] = source + c * step * t_size
        # Prefetch the next block of the first input row while this block is computed.
        if self.in_stride.p[x] == 1 and count > 0:
            convt_prefetch_row_l2(call.src + (at + first + self.pitch) * k.s_size,
                                  min(self.pitch * k.s_size, <int64_t>PREFETCH_BYTES))
        r.n, r.sources = <int>(jb - ja), <int>(count * self.ci)
        r.in_, r.w, r.rows = sources, weights, rows
        w.phases, w.step, w.act, w.stream = s, self.out_stride.p[x], &self.act, self.stream
        w.first = max(0, self.begin - s * (self.j0 + ja))
        w.last = min(s * (jb - ja), self.begin + self.out_size - s * (self.j0 + ja))
        w.ld, w.row, w.bias, w.out = phase_row_bytes // t_size, phase_rows, NULL, outs
        for n in range(self.recipe.nblocks):
            b, o = &self.recipe.blocks[n], &self.outputs[n % self.phase_blocks]
            weight = call.weights + group * self.recipe.group_weights + b.weights
            m = o.shifts * b.outputs * t_size  # bytes of the weights of an outer tap and in-channel
            for u in range(count):
                for c in range(self.ci):
                    weights[u * self.ci + c] = weight + (row_tap[2 * u + 1] * self.ci + c) * m
            r.shifts, r.shift = <int>o.shifts, o.shift
            r.init = call.bias + group * self.recipe.group_bias + b.bias
            for m in range(b.outputs):
                rows[m] = phase_rows + o.phase_row[m] * phase_row_bytes
            k.rows(<int>b.outputs, &r)
            if (n + 1) % self.phase_blocks:
                continue
            # All phases of a channel block are computed: interleave them.
            c = n // self.phase_blocks
            first_c = self.co * c // self.channel_blocks
            w.rows = <int>(self.co * (c + 1) // self.channel_blocks - first_c)
            for m in range(w.rows):
                outs[m] = dst + ((first_c + m) * self.out_c + (s * (self.j0 + ja) - self.begin) * w.step) * k.s_size
            k.interleave(&w)
