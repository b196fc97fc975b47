# cython: language_level=3
"""Winograd's weights: rows of a panel are (point, window, in-channel), each point a sum of taps times coefficients."""

from libc.stdint cimport int64_t

cimport numpy as cnp

import numpy as np

from convt._kernels cimport convt_kernels, convt_quotient, convt_wino_filter
from convt._memory cimport keep_table
from convt.algorithms.packing cimport NO_TAP, PackClass, PanelRecipe, offset_of

cnp.import_array()

cdef enum:
    NON_TEMPORAL_BYTES = 1 << 22  # transformed weights beyond this are written by non-temporal stores
    MOST_TERMS = 27  # of a point, of three axes of three taps


cdef class WinogradRecipe(PanelRecipe):
    """``transforms`` has, for each class, None where it is as direct's, or ``(windows, widths)``: for each window its taps and
    [point][tap] of their transform; and [panel][point] how many vectors of columns have weights there."""

    def __init__(self, str dtype, filter, bias, classes, transforms, str unit="vectors"):
        self.transforms = transforms
        PanelRecipe.__init__(self, dtype, filter, bias, classes, unit)

    cdef size_class(self, PackClass *c, Py_ssize_t index):
        if self.transforms[index] is not None:
            windows, widths = self.transforms[index]
            self.transformed(c, windows, widths)
        PanelRecipe.size_class(self, c, index)

    cdef transformed(self, PackClass *c, windows, widths):
        """The tables of a class with a transform."""
        cdef int64_t slot = self.some * self.k.nr
        c.npoints, c.nwindows = len(windows[0][1]), len(windows)
        c.depth = c.npoints * c.nwindows * self.ci_p
        at, scale = [], []
        for taps, points in windows:
            self.staged = max(self.staged, <size_t>(len(taps) * slot * self.k.t_size))
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
        if not c.npoints:
            return PanelRecipe.pack_job(self, c, job, src, dst, stage)
        cdef const convt_kernels *k = self.k
        cdef int64_t g = job // c.shares // c.npanels, n = job // c.shares % c.npanels, low = job % c.shares * c.share
        cdef int64_t column = n * k.nr, high = min(self.ci, low + c.share), t
        cdef int64_t width = (min(c.ncols, column + k.nr) - column + k.vl - 1) // k.vl * k.vl
        cdef bint wrong = False, non_temporal = self.weight_bytes > NON_TEMPORAL_BYTES
        src += g * self.sg
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        for t in range(c.nwindows):
            wrong |= self.transform(c, n, t, low, high, src, dst, c.nwindows * self.ci_p * width, t * self.ci_p + low,
                                    non_temporal, stage)
        if non_temporal:
            k.fence()
        return wrong

    cdef const char *line_at(self, PackClass *c, int64_t n, int64_t first, int64_t line, char *src) noexcept nogil:
        """The line-th of the lines where some depth of all points of a panel starts in a group's filter, those of a tap after
        the other; NULL beyond them."""
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, bytes = self.k.nr * self.k.s_size
        cdef int64_t split = (<size_t>src | self.si * self.k.s_size) & 63, lines = (bytes + 63) // 64 + (split > 0)
        cdef int64_t t = c.window_start[w] + convt_quotient(line, lines)
        cdef int64_t *taps
        cdef char *from_
        if t >= c.window_start[w + 1] or n * self.k.nr >= c.ncols:
            return NULL
        self.piece(c, n * self.k.nr, c.ncols, src, &from_, &taps)
        from_ += offset_of(taps[c.window_taps[t]]) + low * self.si * self.k.s_size
        return from_ + min(bytes - 1, line % lines * 64)

    cdef bint transform(self, PackClass *c, int64_t n, int64_t w, int64_t low, int64_t high, char *src, char *dst,
                        int64_t out_row, int64_t at_row, bint non_temporal, char *stage) noexcept nogil:
        """Some in-channels of a window, all points of the n-th panel of a group whose filter is at ``src``: a few of them at a
        time, whose taps are laid out side by side. Points are ``out_row`` elements apart, these channels their rows from
        ``at_row`` on. Returns whether some points overflowed, or are not what their type can hold."""
        cdef const convt_kernels *k = self.k
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), at, count, tap, point
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        cdef int64_t *widths = c.widths + n * c.npoints
        cdef bint wrong = False
        cdef char *from_
        cdef char *slot
        cdef int64_t *taps
        cdef convt_wino_filter f
        f.in_, f.in_step, f.out_row, f.stream = stage, k.nr, out_row, non_temporal
        f.at, f.scale = c.at, c.scale
        while low < high:
            f.n = <int>min(self.some, high - low)
            at = column
            while at < end:
                count = self.piece(c, at, end, src, &from_, &taps)
                slot = stage + (at - column) * k.t_size
                for n in range(c.window_start[w], c.window_start[w + 1]):
                    tap = taps[c.window_taps[n]]
                    k.widen(slot, k.nr, from_ + offset_of(tap) + low * self.si * k.s_size, self.si, c.step, f.n,
                            <int>(count if tap != NO_TAP else 0), <int>(count if at + count < end else width - (at - column)))
                    slot += self.some * k.nr * k.t_size
                at += count
            point = 0
            while point < c.npoints:  # those of a width
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

    cdef bint make_points(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src, char *dst,
                          char *stage) noexcept nogil:
        """`pack_depth` of all points of a panel."""
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, last, done = 0
        cdef int64_t width = min(self.k.nr, (c.ncols - n * self.k.nr + self.k.vl - 1) // self.k.vl * self.k.vl)
        cdef bint wrong = False
        while done < depth:
            last = min(self.ci_p, low + depth - done)
            wrong |= self.transform(c, n, w, low, min(self.ci, last), src, dst, depth * width, done, False, stage)
            done += last - low
            w, low = w + 1, 0
        return wrong

    cdef bint transform_depth(self, PackClass *c, int64_t n, int64_t point, int64_t first, int64_t depth, char *src,
                              char *dst) noexcept nogil:
        """`pack_depth` of a point, of weights that lie ready."""
        cdef const convt_kernels *k = self.k
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, last, high, i, e
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr)
        cdef int64_t start[2]
        cdef int64_t at[MOST_TERMS]
        cdef int64_t *terms
        cdef int64_t *taps
        cdef char *from_
        cdef bint wrong = False
        cdef convt_wino_filter f
        self.piece(c, column, end, src, &from_, &taps)
        f.in_step, f.out_row, f.out_step, f.cols, f.rows, f.stream = self.si, 0, end - column, <int>(end - column), 1, 0
        f.start, f.at, start[0] = start, at, 0
        while depth:
            last = min(self.ci_p, low + depth)
            high = min(self.ci, last)
            terms = c.start + w * c.npoints + point
            start[1] = terms[1] - terms[0]
            for e in range(start[1]):
                i = c.window_start[w] + convt_quotient(c.at[terms[0] + e], self.some * k.nr)
                at[e] = convt_quotient(taps[c.window_taps[i]], k.s_size)
            f.scale = c.scale + terms[0] * k.t_size
            depth -= last - low
            while low < high:
                f.in_, f.out, f.n = from_ + low * self.si * k.s_size, dst, <int>min(self.some, high - low)
                wrong |= not k.wino_filter(&f)
                dst += f.n * f.out_step * k.e_size
                low += f.n
            w, low = w + 1, 0
        return wrong
