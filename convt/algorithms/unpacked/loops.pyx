# cython: language_level=3
"""The plan of unpacked, its loops and its weights: products of all pixels with all taps, which outputs then sum.

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

from convt._core cimport Call, NativePlan, PackedFilter
from convt._run.kernels cimport (
    CONVT_PIXEL_MR,
    convt_pixel_gemm,
    convt_kernels,
    convt_overlap_gather,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly, fill
from convt.algorithms.packing cimport PackRecipe

from convt.algorithms import reorder
from convt.algorithms.packing import Copy

cnp.import_array()

FEW_PIXELS = CONVT_PIXEL_MR  # the most images, and pixels of each, for which weights are multiplied in place (`multiply_rows`)

cdef enum:
    PREFETCHED = 128  # bytes between the next elements of a row and those that are prefetched
    COPIED_ROWS = 8  # filter rows that are copied side by side; the hardware can prefetch as many streams
    MULTIPLIED_ROWS = 16  # filter rows that one call multiplies in place; with fewer, products are loaded and stored too often


cdef class UnpackedRecipe(PackRecipe):
    """The recipe of weights: one row of (out-channel, tap) per channel group and in-channel, which is IOX order.

    A one-shot filter in IOX order is read in place. All other filters are copied to this order.
    """

    cdef bint in_place  # one-shot filters of this layout are read in place
    cdef object filter_layout  # shape and strides of the filter
    cdef int64_t step_g, step_i  # bytes between channel groups and between in-channels of a copied filter

    def __init__(self, str dtype, filter, bias):
        self.open_recipe(dtype, filter, bias, "vectors")
        self.in_place, self.filter_layout = reorder.memory_order(filter) == reorder.IN_ROWS, (filter.shape, filter.strides)
        self.step_i = self.co * self.ntaps * self.k.s_size
        self.step_g = self.ci * self.step_i
        self.weight_bytes, self.bias_bytes = self.groups * self.step_g, self.groups * self.co * self.k.t_size
        self.set_bias([Copy(0, 0, self.groups * self.co, self.bias_stride)])

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        cdef bint reads_in_place = self.in_place and not persistent
        cdef PackedFilter packed = self.allocate(0 if reads_in_place else self.weight_bytes, bias, persistent)
        packed.finite = True  # the value does not matter, because no zeros outside the input are multiplied
        if reads_in_place:
            packed.source = <char *>cnp.PyArray_DATA(filter)
            return packed
        shape, strides = self.filter_layout
        rows = np.ascontiguousarray(np.lib.stride_tricks.as_strided(filter, shape, strides))
        memcpy(packed.weights, cnp.PyArray_DATA(rows), self.weight_bytes)
        return packed


cdef struct UnpackedRegions:
    # Offsets of the regions of a thread's workspace (schedule.py).
    size_t zeros, pixels, rows, weights, products, sums


cdef class UnpackedPlan(NativePlan):
    """The plan of a `Schedule` of unpacked/schedule.py."""

    cdef UnpackedRecipe recipe
    cdef list keep
    cdef object index_array   # owner of `index`
    cdef int32_t *index       # `UnpackedTables.lanes`
    cdef int64_t *runs        # [run] (offset of the first pixel in elements, pixels) of a run at a constant stride
    cdef int64_t nruns
    cdef int64_t *out_rows    # [output row of all images] offset in elements
    cdef int64_t image_rows, row_outputs  # output rows of an image; outputs of a row
    cdef bint in_place        # weights are multiplied without a copy
    cdef bint dense           # outputs of a channel of an image are contiguous, and stored without a transpose
    cdef int64_t channels, blocks, depth, ld, taps, pixels, image_pixels, outputs
    cdef int terms
    cdef UnpackedRegions at

    def __init__(self, schedule, UnpackedRecipe recipe, in_strides, out_strides, tables):
        """``tables`` are the `UnpackedTables` of bind.py."""
        problem = schedule.problem
        self.open_plan(problem, recipe.k, in_strides, out_strides, schedule.execution)
        self.recipe, self.keep, self.dense = recipe, [], tables.dense
        self.channels, self.blocks, self.depth, self.ld = schedule.channels, schedule.blocks, schedule.depth, schedule.ld
        self.in_place = schedule.in_place
        self.taps, self.image_pixels = int(np.prod(problem.kernel)), int(np.prod(problem.in_sizes))
        self.pixels = self.batch * self.image_pixels
        *_, self.row_outputs = problem.out_sizes
        self.runs, self.nruns = keep_table(self.keep, tables.runs), len(tables.runs)
        self.out_rows = keep_table(self.keep, tables.out_rows)
        self.image_rows = len(tables.out_rows) // max(<int64_t>1, self.batch)
        self.outputs, self.terms, self.index_array = int(np.prod(problem.out_sizes)), tables.lanes.shape[1] - 1, tables.lanes
        self.index = <int32_t *>cnp.PyArray_DATA(self.index_array)
        self.at, self.workspace = schedule.workspace, schedule.workspace.bytes
        self.tasks, self.equal_tasks = self.groups * self.blocks, True

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a block of out-channels of a channel group, in the loop order of the module docstring."""
        cdef const convt_kernels *k = self.k
        cdef int64_t group = convt_quotient(task, self.blocks), first = (task - group * self.blocks) * self.channels
        cdef int64_t count = min(self.channels, self.co - first), columns = count * self.taps, n, start = 0, depth
        cdef int64_t step = self.recipe.step_i
        cdef const char *weights = call.weights + group * self.recipe.step_g
        cdef char *dst
        if call.source != NULL:
            weights, step = call.source + group * self.recipe.sg, self.recipe.si * k.s_size
        weights += first * self.taps * k.s_size
        begin_products(self, count, ws)
        while start < self.ci:
            depth = min(self.depth, self.ci - start)
            dst = ws + self.at.pixels
            for n in range(self.nruns):
                k.pack(dst, k.lda, call.src + (self.runs[2 * n] + (group * self.ci + start) * self.in_c) * k.s_size,
                       self.in_stride.p[self.nd - 1], self.in_c, <int>self.runs[2 * n + 1], <int>depth, <int>depth)
                dst += self.runs[2 * n + 1] * k.lda * k.e_size
            if self.in_place:
                multiply_rows(self, start, depth, columns, weights + start * step, step, ws)
            else:
                copy_weights(k, weights + start * step, depth, columns, step, ws + self.at.weights)
                multiply(self, start, depth, columns, ws)
            start += depth
        sum_products(self, group * self.co + first, count, call, ws)


cdef void begin_products(UnpackedPlan plan, int64_t count, char *ws) noexcept nogil:
    """Set the addresses of the products of each pixel. After those of an image, a row of -0.0 stands for missing products."""
    cdef int64_t image, n
    cdef void **rows = <void **>(ws + plan.at.rows)
    cdef char *dst = ws + plan.at.products
    fill(plan.k, ws + plan.at.zeros, plan.k.nr, -0.0)  # the neutral element of addition: it keeps the sign of zero
    for image in range(plan.batch):
        for n in range(plan.image_pixels):
            rows[image * plan.image_pixels + n] = dst
            dst += plan.ld * plan.k.t_size
        for n in range(count):
            fill(plan.k, dst + n * plan.taps * plan.k.t_size, 1, -0.0)
        dst += plan.ld * plan.k.t_size


cdef void copy_weights(const convt_kernels *k, const char *src, int64_t depth, int64_t columns, int64_t step,
                       char *panels) noexcept nogil:
    """Copy ``depth`` rows of the filter, ``step`` bytes apart, to consecutive panels."""
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


cdef void multiply_rows(UnpackedPlan plan, int64_t first, int64_t depth, int64_t columns, const char *src, int64_t step,
                        char *ws) noexcept nogil:
    """Multiply the few pixels of each image by ``depth`` rows of the filter in place. Rows are ``step`` bytes apart."""
    cdef const convt_kernels *k = plan.k
    cdef int64_t row = 0, image
    cdef convt_pixel_gemm t
    t.pixels, t.cs, t.rs, t.ld = <int>columns, 1, convt_quotient(step, k.s_size), plan.ld
    t.copy, t.pause, t.next_rs = NULL, 0, t.rs
    while row < depth:
        t.kc, t.add, t.src = <int>min(<int64_t>MULTIPLIED_ROWS, depth - row), first + row > 0, src + row * step
        for image in range(plan.batch):
            t.next = <const char *>t.src + PREFETCHED
            t.a = ws + plan.at.pixels + (image * plan.image_pixels * k.lda + row) * k.e_size
            t.out = ws + plan.at.products + image * (plan.image_pixels + 1) * plan.ld * k.t_size
            k.pixel_gemm(<int>plan.image_pixels, &t)
        row += t.kc


cdef void multiply(UnpackedPlan plan, int64_t first, int64_t depth, int64_t columns, char *ws) noexcept nogil:
    """Multiply all pixels by the copied panels of a depth chunk."""
    cdef const convt_kernels *k = plan.k
    cdef convt_tile t
    cdef Cut by_tile
    cdef int64_t column = 0, tiles, i, r0, r1, height, cut_height = 0
    memset(&t, 0, sizeof(t))
    t.kc, t.lda, t.act = <int>depth, k.lda, &plan.none
    t.init = ws + plan.at.zeros if first == 0 else NULL
    t.b = ws + plan.at.weights
    while column < columns:
        t.nv = <int>convt_quotient(k.vl if columns - column <= k.vl else k.nr, k.vl)
        t.cols, t.row_offset = <int>min(<int64_t>k.nr, t.nv * k.vl), column
        height = k.mr[t.nv]
        if height != cut_height:
            cut_height, tiles = height, convt_quotient(plan.pixels + height - 1, height)
            by_tile = cut_evenly(plan.pixels, tiles, 1)
        i = 0
        while i < tiles:
            r0, r1 = cut_at(&by_tile, i), cut_at(&by_tile, i + 1)
            t.more_tiles = <int>((by_tile.taller if i < by_tile.taller else tiles) - i - 1)
            t.a, t.rows = ws + plan.at.pixels + r0 * k.lda * k.e_size, <void **>(ws + plan.at.rows) + r0
            t.prefetch, t.prefetch_step = ws, 0
            k.tile(<int>(r1 - r0), &t)
            i += 1 + t.more_tiles
        t.b = <const char *>t.b + depth * k.nr * k.e_size
        column += k.nr


cdef void sum_products(UnpackedPlan plan, int64_t channel, int64_t count, const Call *call, char *ws) noexcept nogil:
    """Sum the products of each output of ``count`` out-channels. If the outputs of a channel are not contiguous, sum to the
    workspace and transpose."""
    cdef const convt_kernels *k = plan.k
    cdef int64_t image, c, r
    cdef char *sums = ws + plan.at.sums
    cdef char *products = ws + plan.at.products
    cdef convt_overlap_gather o
    o.index, o.terms, o.count, o.act = plan.index, plan.terms, plan.outputs, &plan.act
    for image in range(plan.batch):
        for c in range(count):
            o.col = products + c * plan.taps * k.t_size
            o.init = call.bias + (channel + c) * k.t_size
            o.out = sums + c * plan.outputs * k.s_size
            if plan.dense:
                o.out = call.dst + (image * plan.out_n + (channel + c) * plan.out_c) * k.s_size
            k.overlap_gather(&o)
        products += (plan.image_pixels + 1) * plan.ld * k.t_size
        if plan.dense:
            continue
        for r in range(plan.image_rows):
            k.transpose(call.dst + (plan.out_rows[image * plan.image_rows + r] + channel * plan.out_c) * k.s_size,
                        plan.out_stride.p[plan.nd - 1], plan.out_c, sums + r * plan.row_outputs * k.s_size, 1, plan.outputs,
                        <int>plan.row_outputs, <int>count, False)
