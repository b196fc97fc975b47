# cython: language_level=3
"""The base class of plans that compute one output row after the other, a row being all positions along the last axis.

`RowPlan` finds the input rows that reach an output row, from tables of the other axes. `clear_kept_rows` and `place_of_row`
manage the places in which a task keeps packed input rows for its next output rows.
"""

from libc.stdint cimport int64_t

import numpy as np

from convt._core cimport NativePlan
from convt._run.memory cimport Table
from convt.algorithms.indexing cimport take_index

from convt.algorithms.phases import axes_of


cdef class RowPlan(NativePlan):
    """A plan that computes output rows along the last axis."""

    cdef open_rows(self, problem):
        """Make the tables of all axes except the last: for each output position the (tap, input index) pairs that reach it."""
        cdef int64_t at = 0, o, i, low, high, tap, step
        cdef int64_t *starts
        cdef int64_t *pairs
        spans = []  # (index of the first output in the table, tap, first input, number of inputs, distance of outputs)
        self.out_rows = self.batch
        for axis in axes_of(problem)[:problem.rank - 1]:
            for t in range(axis.k):
                begins, ends, first = axis.reach(t)
                if begins < ends:
                    spans.append((at + first, t, begins, ends - begins, min(axis.s, axis.out)))
            at += axis.out
            self.out_rows *= axis.out
        self.outer_out = Table(problem.out_sizes[:problem.rank - 1])
        self.outer_start = Table(np.zeros(at + 2, np.int64))
        self.outer_taps = Table(np.empty(2 * sum([span[3] for span in spans]), np.int64))
        starts, pairs = self.outer_start.p + 1, self.outer_taps.p
        for place, _, _, count, out_step in spans:
            o, high, step = place, count, out_step
            for i in range(high):
                starts[o + 1 + i * step] += 1
        for o in range(at):
            starts[o + 1] += starts[o]
        # starts[o] counts up while pairs are written, so that it ends as the start of output o + 1.
        for place, t, begins, count, out_step in spans:
            o, tap, low, high, step = place, t, begins, count, out_step
            for i in range(high):
                at = starts[o + i * step]
                pairs[2 * at], pairs[2 * at + 1] = tap, low + i
                starts[o + i * step] = at + 1

    cdef int64_t row_inputs(self, int64_t row, int64_t *taps, int64_t *src, int64_t *dst) noexcept nogil:
        """Fill ``taps`` with (input offset, tap of the outer axes) of each input row that reaches an output row.

        Return the number of these rows.
        ``src`` receives the input offset of the row's image, ``dst`` the output offset of the row.
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
            # Expand from the back, so that no entry is overwritten before it is read.
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


cdef void clear_kept_rows(KeptRow *kept, int64_t places) noexcept nogil:
    """Mark ``places`` places as empty."""
    cdef int64_t n
    for n in range(places):
        kept[n].used = -1


cdef int64_t place_of_row(KeptRow *kept, int64_t places, int64_t row, int64_t out_row, bint *is_kept) noexcept nogil:
    """Return the place for an input row that an output row reads. ``is_kept`` says whether the place already holds it.

    If it does not, the row takes the least recently used place.
    """
    cdef int64_t n, place = 0
    is_kept[0] = True
    for n in range(places):
        if kept[n].used >= 0 and kept[n].row == row:
            kept[n].used = out_row
            return n
        if kept[n].used < kept[place].used:
            place = n
    is_kept[0] = False
    kept[place].row, kept[place].used = row, out_row
    return place
