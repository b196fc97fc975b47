# cython: language_level=3
"""The plan of unpacked and its loops: products of all pixels with all taps, which outputs then sum.

A task is a block of out-channels of a channel group; only this task writes their outputs. For each in-channel, the weights of
the block are contiguous in the filter. The task loops over depth chunks: it packs the pixels of all images (region "pixels"),
copies the weights to panels (region "weights"), and multiplies them into the region "products". Then each output sums its
products through a table of indices. Outputs that are not contiguous go through the region "sums". Images of few pixels
multiply the filter in place.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, NativePlan
from convt._run.kernels cimport (
    CONVT_PIXEL_MR,
    convt_pixel_gemm,
    convt_kernels,
    convt_overlap_gather,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly
from convt.algorithms.unpacked.weights cimport UnpackedRecipe

cnp.import_array()

FEW_PIXELS = CONVT_PIXEL_MR  # the most pixels of an image for which weights are multiplied in place (`multiply_rows`)

cdef enum:
    COPIED_ROWS = 8  # filter rows that are copied side by side; the hardware can prefetch as many streams
    MULTIPLIED_ROWS = 16  # filter rows that one call multiplies in place; with fewer, products are loaded and stored too often


cdef class UnpackedPlan(NativePlan):
    """The plan of a `Schedule` of unpacked/schedule.py."""

    def __init__(self, str name, schedule, UnpackedRecipe recipe, in_strides, out_strides, places, runs, out_rows, bint dense):
        """Create the plan.

        ``places`` is [output of an image][term], the index of a product of an out-channel. loops.pxd explains ``runs``,
        ``out_rows`` and ``dense``.
        """
        problem, space = schedule.problem, schedule.workspace
        self.open_plan(name, problem, recipe.k, in_strides, out_strides, schedule.execution)
        self.recipe, self.keep, self.dense = recipe, [], dense
        self.channels, self.blocks, self.depth, self.ld = schedule.channels, schedule.blocks, schedule.depth, schedule.ld
        self.in_place = schedule.in_place
        self.taps, self.image_pixels = int(np.prod(problem.kernel)), int(np.prod(problem.in_sizes))
        self.pixels = self.batch * self.image_pixels
        *_, self.row_outputs = problem.out_sizes
        self.runs, self.nruns, self.out_rows = keep_table(self.keep, runs), len(runs), keep_table(self.keep, out_rows)
        self.image_rows = len(out_rows) // max(<int64_t>1, self.batch)
        self.outputs, self.terms = places.shape[0], <int>places.shape[1]
        vl = self.k.vl
        index = np.zeros((-(-self.outputs // vl) * vl, 1 + self.terms), np.int32)
        index[:self.outputs, 1:] = places
        self.index_array = np.ascontiguousarray(index.reshape(-1, vl, 1 + self.terms).transpose(0, 2, 1))
        self.index = <int32_t *>cnp.PyArray_DATA(self.index_array)
        self.at_pixels, self.at_rows, self.at_weights = space["pixels"], space["rows"], space["weights"]
        self.at_products, self.at_sums = space["products"], space["sums"]
        self.workspace, self.tasks = space.bytes, self.groups * self.blocks
        self.equal_tasks = True

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t group = convt_quotient(task, self.blocks), first = (task - group * self.blocks) * self.channels
        cdef int64_t count = min(self.channels, self.co - first), columns = count * self.taps, row, n, start, depth
        cdef int64_t step = self.recipe.step_i
        cdef void **rows = <void **>(ws + self.at_rows)
        cdef char *products = ws + self.at_products
        cdef char *dst = products
        cdef const char *weights = call.weights
        if call.source != NULL:
            weights, step = call.source, self.recipe.si * k.s_size
            weights += group * self.recipe.sg
        else:
            weights += group * self.recipe.step_g
        weights += first * self.taps * k.s_size
        for n in range(k.nr):  # -0.0 is the neutral element of addition: it keeps the sign of zero
            if k.t_size == 8:
                (<double *>ws)[n] = -0.0
            else:
                (<float *>ws)[n] = -0.0
        for n in range(self.batch):  # after the products of an image, a row of -0.0 stands for missing products
            for row in range(self.image_pixels):
                rows[n * self.image_pixels + row] = dst
                dst += self.ld * k.t_size
            for row in range(count):
                memcpy(dst + row * self.taps * k.t_size, ws, k.t_size)
            dst += self.ld * k.t_size
        start = 0
        while start < self.ci:
            depth = min(self.depth, self.ci - start)
            dst = ws + self.at_pixels
            for n in range(self.nruns):
                k.pack(dst, k.lda, call.src + (self.runs[2 * n] + (group * self.ci + start) * self.in_c) * k.s_size,
                       self.in_stride.p[self.nd - 1], self.in_c, <int>self.runs[2 * n + 1], <int>depth, <int>depth)
                dst += self.runs[2 * n + 1] * k.lda * k.e_size
            if self.in_place:
                self.multiply_rows(start, depth, columns, weights + start * step, step, ws)
            else:
                self.copy_weights(weights + start * step, depth, columns, step, ws + self.at_weights)
                self.multiply(start, depth, columns, ws)
            start += depth
        self.sum_products(group, first, count, call, ws)

    cdef void copy_weights(self, const char *src, int64_t depth, int64_t columns, int64_t step, char *panels) noexcept nogil:
        """Copy ``depth`` rows of the filter, ``step`` bytes apart, to consecutive panels."""
        cdef const convt_kernels *k = self.k
        cdef int64_t column, row, nrows, width, elements = convt_quotient(step, k.s_size)
        cdef char *panel
        column = columns - (columns - 1) % k.nr - 1  # start of the last panel, of which all lanes are multiplied
        width = k.vl if columns - column <= k.vl else k.nr
        if columns - column < width:
            memset(panels + column * depth * k.e_size, 0, width * depth * k.e_size)
        row = 0
        while row < depth:
            nrows = min(<int64_t>COPIED_ROWS, depth - row)
            column, panel = 0, panels
            while column < columns:
                width = k.vl if columns - column <= k.vl else k.nr
                k.pack_b(panel, <int>row, 0, src + row * step + column * k.s_size, elements, 1, <int>nrows,
                         <int>min(width, columns - column), <int>width)
                panel += depth * k.nr * k.e_size
                column += k.nr
            row += nrows

    cdef void multiply_rows(self, int64_t first, int64_t depth, int64_t columns, const char *src, int64_t step,
                            char *ws) noexcept nogil:
        """Multiply the few pixels of each image by ``depth`` rows of the filter in place. Rows are ``step`` bytes apart."""
        cdef const convt_kernels *k = self.k
        cdef int64_t row = 0, image
        cdef convt_pixel_gemm t
        t.pixels, t.cs, t.rs, t.ld = <int>columns, 1, convt_quotient(step, k.s_size), self.ld
        while row < depth:
            t.kc, t.add, t.src = <int>min(<int64_t>MULTIPLIED_ROWS, depth - row), first + row > 0, src + row * step
            for image in range(self.batch):
                t.a = ws + self.at_pixels + (image * self.image_pixels * k.lda + row) * k.e_size
                t.out = ws + self.at_products + image * (self.image_pixels + 1) * self.ld * k.t_size
                k.pixel_gemm(<int>self.image_pixels, &t)
            row += t.kc

    cdef void multiply(self, int64_t first, int64_t depth, int64_t columns, char *ws) noexcept nogil:
        """Multiply all pixels by the copied panels of a depth chunk."""
        cdef const convt_kernels *k = self.k
        cdef convt_tile t
        cdef Cut by_tile
        cdef int64_t column = 0, tiles, i, r0, r1, height, cut_height = 0
        memset(&t, 0, sizeof(t))
        t.kc, t.lda, t.act = <int>depth, k.lda, &self.none
        t.init = ws if first == 0 else NULL
        t.b = ws + self.at_weights
        while column < columns:
            t.nv = <int>convt_quotient(k.vl if columns - column <= k.vl else k.nr, k.vl)
            t.cols, t.row_offset = <int>min(<int64_t>k.nr, t.nv * k.vl), column
            height = k.mr[t.nv]
            if height != cut_height:
                cut_height, tiles = height, convt_quotient(self.pixels + height - 1, height)
                by_tile = cut_evenly(self.pixels, tiles, 1)
            i = 0
            while i < tiles:
                r0, r1 = cut_at(&by_tile, i), cut_at(&by_tile, i + 1)
                t.more_tiles = <int>((by_tile.taller if i < by_tile.taller else tiles) - i - 1)
                t.a, t.rows = ws + self.at_pixels + r0 * k.lda * k.e_size, <void **>(ws + self.at_rows) + r0
                t.prefetch, t.prefetch_step = ws, 0
                k.tile(<int>(r1 - r0), &t)
                i += 1 + t.more_tiles
            t.b = <const char *>t.b + depth * k.nr * k.e_size
            column += k.nr

    cdef void sum_products(self, int64_t group, int64_t first, int64_t count, const Call *call, char *ws) noexcept nogil:
        """Sum the products of each output. If the outputs of a channel are not contiguous, sum to the workspace and
        transpose."""
        cdef const convt_kernels *k = self.k
        cdef int64_t image, c, r, channel = group * self.co + first
        cdef char *sums = ws + self.at_sums
        cdef char *products = ws + self.at_products
        cdef convt_overlap_gather o
        o.index, o.terms, o.count, o.act = self.index, self.terms, self.outputs, &self.act
        for image in range(self.batch):
            for c in range(count):
                o.col = products + c * self.taps * k.t_size
                o.init = call.bias + (channel + c) * k.t_size
                o.out = sums + c * self.outputs * k.s_size
                if self.dense:
                    o.out = call.dst + (image * self.out_n + (channel + c) * self.out_c) * k.s_size
                k.overlap_gather(&o)
            products += (self.image_pixels + 1) * self.ld * k.t_size
            if self.dense:
                continue
            for r in range(self.image_rows):
                k.transpose(call.dst + (self.out_rows[image * self.image_rows + r] + channel * self.out_c) * k.s_size,
                            self.out_stride.p[self.nd - 1], self.out_c, sums + r * self.row_outputs * k.s_size, 1, self.outputs,
                            <int>self.row_outputs, <int>count, False)
