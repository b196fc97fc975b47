# cython: language_level=3
"""Packed weights of `winograd`: panels whose rows are (point, tap window, in-channel).

A point is a sum of taps times coefficients. `WinogradRecipe` packs whole filters in parallel jobs, and packs on the fly for
tasks: all points of a panel at once on vectors (`pack_all_points`), one point at a time on AMX (`pack_one_point`).
"""

from libc.stdint cimport int64_t

cimport numpy as cnp

import numpy as np

from convt._run.kernels cimport convt_kernels, convt_quotient, convt_wino_filter
from convt._run.memory cimport keep_table
from convt.algorithms.packing cimport NO_TAP, PackClass, PanelRecipe, offset_of

cnp.import_array()

cdef enum:
    MOST_TERMS = 27  # the most terms of a point: three taps on each of three axes


cdef class WinogradRecipe(PanelRecipe):
    """The recipe of a form of winograd.

    ``transforms`` has one item for each class: None if the class is packed as in direct, or ``(windows, widths)``. ``windows``
    has for each tap window its taps and the matrix [point][tap] of their transform. ``widths`` is transforms.panel_vectors.
    """

    def __init__(self, str dtype, filter, bias, classes, transforms, str unit="vectors"):
        self.transforms = transforms
        PanelRecipe.__init__(self, dtype, filter, bias, classes, unit)

    cdef size_class(self, PackClass *c, Py_ssize_t index):
        if self.transforms[index] is not None:
            windows, widths = self.transforms[index]
            self.set_transform_tables(c, windows, widths)
        PanelRecipe.size_class(self, c, index)

    cdef set_transform_tables(self, PackClass *c, windows, widths):
        """Set the tables of a transformed class."""
        cdef int64_t slot = self.stage_channels * self.k.nr
        c.npoints, c.nwindows = len(windows[0][1]), len(windows)
        c.depth = c.npoints * c.nwindows * self.ci_p
        at, scale = [], []
        for taps, points in windows:
            self.stage_bytes = max(self.stage_bytes, <size_t>(len(taps) * slot * self.k.t_size))
            for point in points:
                terms = np.flatnonzero(point)
                at.append(terms * slot)
                scale.append(point[terms])
        starts = np.cumsum([0, *map(len, at)])
        scale = np.concatenate(scale).astype(np.float32 if self.k.t_size == 4 else np.float64)
        c.window_start = keep_table(self.keep, np.cumsum([0, *(len(taps) for taps, _ in windows)]))
        c.window_taps = keep_table(self.keep, np.concatenate([taps for taps, _ in windows]))
        c.start, c.at = keep_table(self.keep, starts), keep_table(self.keep, np.concatenate(at))
        c.widths = keep_table(self.keep, widths)
        self.keep.append(scale)
        c.scale = <char *>cnp.PyArray_DATA(scale)

    cdef bint pack_job(self, PackClass *c, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Pack some in-channels of all points of one panel. Return whether some weights are not finite or exceed their type."""
        if not c.npoints:
            return PanelRecipe.pack_job(self, c, job, src, dst, stage)
        cdef const convt_kernels *k = self.k
        cdef int64_t g = job // c.panel_jobs // c.npanels, n = job // c.panel_jobs % c.npanels
        cdef int64_t low = job % c.panel_jobs * c.job_channels
        cdef int64_t column = n * k.nr, high = min(self.ci, low + c.job_channels), t
        cdef int64_t width = (min(c.ncols, column + k.nr) - column + k.vl - 1) // k.vl * k.vl
        cdef bint wrong = False
        src += g * self.sg
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        for t in range(c.nwindows):
            wrong |= self.transform(c, n, t, low, high, src, dst, c.nwindows * self.ci_p * width, t * self.ci_p + low,
                                    stage)
        return wrong

    cdef bint transform(self, PackClass *c, int64_t n, int64_t w, int64_t low, int64_t high, char *src, char *dst,
                        int64_t out_row, int64_t at_row, char *stage) noexcept nogil:
        """Transform in-channels [low, high) of tap window ``w`` to all points of the n-th panel.

        Loop order: a few in-channels at a time, whose taps are first widened to ``stage``, then points of equal width. ``src``
        is the filter of the channel group. In ``dst``, points are ``out_row`` elements apart, and the first in-channel is row
        ``at_row``. Return whether some points are not finite or exceed the range of their type.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), at, count, tap, point
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        cdef int64_t *widths = c.widths + n * c.npoints
        cdef bint wrong = False
        cdef char *column_src
        cdef char *slot
        cdef int64_t *taps
        cdef convt_wino_filter f
        f.in_, f.in_step, f.out_row = stage, k.nr, out_row
        f.offset, f.scale = c.at, c.scale
        while low < high:
            f.n = <int>min(self.stage_channels, high - low)
            at = column
            while at < end:
                count = self.piece(c, at, end, src, &column_src, &taps)
                slot = stage + (at - column) * k.t_size
                for n in range(c.window_start[w], c.window_start[w + 1]):
                    tap = taps[c.window_taps[n]]
                    k.widen(slot, k.nr, column_src + offset_of(tap) + low * self.si * k.s_size, self.si, self.so, f.n,
                            <int>(count if tap != NO_TAP else 0), <int>(count if at + count < end else width - (at - column)))
                    slot += self.stage_channels * k.nr * k.t_size
                at += count
            point = 0
            while point < c.npoints:  # points of equal width together
                f.start, f.rows = c.start + w * c.npoints + point, 1
                while point + f.rows < c.npoints and widths[point + f.rows] == widths[point]:
                    f.rows += 1
                f.cols = <int>(widths[point] * k.vl)
                f.out_step = f.cols
                f.out = dst + (point * f.out_row + at_row * f.out_step) * k.e_size
                if f.cols:
                    wrong |= not k.wino_filter(&f)
                point += f.rows
            low += f.n
            at_row += f.n
        return wrong

    cdef bint pack_all_points(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src, char *dst,
                              char *stage) noexcept nogil:
        """Pack ``depth`` of all points of the n-th panel from depth ``first`` on, on vectors. Return as `transform` does."""
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, last, packed_depth = 0
        cdef int64_t width = min(self.k.nr, (c.ncols - n * self.k.nr + self.k.vl - 1) // self.k.vl * self.k.vl)
        cdef bint wrong = False
        while packed_depth < depth:
            last = min(self.ci_p, low + depth - packed_depth)
            wrong |= self.transform(c, n, w, low, min(self.ci, last), src, dst, depth * width, packed_depth, stage)
            packed_depth += last - low
            w, low = w + 1, 0
        return wrong

    cdef bint pack_one_point(self, PackClass *c, int64_t n, int64_t point, int64_t first, int64_t depth, char *src,
                             char *dst) noexcept nogil:
        """Pack ``depth`` of one point of the n-th panel from depth ``first`` on, straight from the filter, on AMX.

        The columns of the panel must be contiguous in the filter. Return what `transform` returns.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, last, high, i, e
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr)
        cdef int64_t start[2]
        cdef int64_t at[MOST_TERMS]
        cdef int64_t *terms
        cdef int64_t *taps
        cdef char *column_src
        cdef char *next
        cdef bint wrong = False
        cdef convt_wino_filter f
        self.piece(c, column, end, src, &column_src, &taps)
        f.in_step, f.out_row, f.out_step, f.cols, f.rows = self.si, 0, end - column, <int>(end - column), 1
        f.start, f.offset, start[0] = start, at, 0
        while depth:
            last = min(self.ci_p, low + depth)
            high = min(self.ci, last)
            terms = c.start + w * c.npoints + point
            start[1] = terms[1] - terms[0]
            for e in range(start[1]):
                i = c.window_start[w] + convt_quotient(c.at[terms[0] + e], self.stage_channels * k.nr)
                at[e] = convt_quotient(taps[c.window_taps[i]], k.s_size)
            f.scale = c.scale + terms[0] * k.t_size
            depth -= last - low
            next = dst + (last - low) * f.out_step * k.e_size  # whole steps of depth, also if the last one has fewer in-channels
            while low < high:
                f.in_, f.out, f.n = column_src + low * self.si * k.s_size, dst, <int>min(self.stage_channels, high - low)
                wrong |= not k.wino_filter(&f)
                dst += f.n * f.out_step * k.e_size
                low += f.n
            w, low, dst = w + 1, 0, next
        return wrong
