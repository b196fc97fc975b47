# cython: language_level=3
"""The plan of planes and its loops, and the recipe of widened weights.

For each block, `PlanesPlan` moves the input to the workspace (region "data"), in NXC order and the inner plan's dtype, runs the
inner plan into the region "outputs", and moves the result to the output array. A block is a box of outputs of some images with
all channels; blocks write disjoint outputs. If blocks are many, each is a task, and a thread runs all tasks of the inner plan.
If blocks are few, all threads share each step of one block after the other.
"""

from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport BRIEF, Call, Deal, PackedFilter, NativePlan, RunArguments, kernels_of, run_in_parallel
from convt._run.flags cimport convt_is_set
from convt._run.kernels cimport convt_kernels
from convt._run.memory cimport keep_table, round64
from convt.algorithms.indexing cimport take_index
from convt.algorithms.packing cimport PackRecipe

cnp.import_array()

cdef enum:
    PART_PIXELS = 64  # threads divide the pixels of a run in multiples of this number
    PART_ELEMENTS = 1 << 14  # the fewest elements of a filter that a thread widens, and the most that one call widens


cdef struct Side:
    # The blocks in data or in the output. Its axes are images and the spatial axes; each table has an entry per axis.
    int64_t *size             # indices of the array
    int64_t *block            # indices of a block; block n starts at index first + n * step
    int64_t *first
    int64_t *step
    int64_t *stride           # elements between indices of the array
    int64_t channel, channels # elements between channels; number of channels
    int64_t run_axis          # from this axis on, pixels are at a constant stride; blocks contain the later axes whole
    int64_t pixels, pixel     # pixels of one index of `run_axis`; elements between pixels


def empty_wide(array):
    """Return an uninitialised float32 array of the shape and memory order of ``array``; None for None."""
    return None if array is None else np.empty_like(array, np.float32, subok=False)


cdef struct Widening:
    # The arguments of `widen_part`.
    const convt_kernels *k
    char *src
    char *dst
    int64_t count  # elements
    int64_t parts


cdef void widen_part(void *args, size_t part) noexcept nogil:
    """Widen one of the parts of an array."""
    cdef Widening *w = <Widening *>args
    cdef int64_t first = w.count * part // w.parts, some = w.count * (part + 1) // w.parts - first, n
    while some > 0:
        n = min(some, <int64_t>PART_ELEMENTS)
        w.k.widen(w.dst + first * w.k.t_size, 0, w.src + first * w.k.s_size, 0, 1, 1, <int>n, <int>n)
        first, some = first + n, some - n


cdef widened(array, str dtype, int threads):
    """Return an array of a 16-bit dtype as float32, in the same memory order; None for None."""
    if array is None:
        return None
    cdef Widening w
    wide = empty_wide(array)
    axes = sorted(range(array.ndim), key=lambda ax: -abs(array.strides[ax]))
    flat = array.transpose(axes)
    if not cnp.PyArray_IS_C_CONTIGUOUS(flat) or not cnp.PyArray_IS_C_CONTIGUOUS(wide.transpose(axes)):
        wide[...] = array
        return wide
    w.k, w.src, w.dst = kernels_of(dtype), <char *>cnp.PyArray_DATA(array), <char *>cnp.PyArray_DATA(wide)
    w.count = cnp.PyArray_SIZE(array)
    w.parts = max(1, min(<int64_t>threads, w.count // PART_ELEMENTS))
    with nogil:
        run_in_parallel(widen_part, <int>w.parts, &w)
    return wide


cdef class WideRecipe(PackRecipe):
    """A recipe that widens a 16-bit filter to float32 and packs it with the ``inner`` recipe."""

    cdef readonly PackRecipe inner
    cdef str dtype

    def __init__(self, PackRecipe inner, str dtype):
        self.inner, self.dtype = inner, dtype
        self.weight_bytes, self.bias_bytes = inner.weight_bytes, inner.bias_bytes

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        wide = widened(filter, self.dtype, threads)
        cdef PackedFilter packed = self.inner.pack(wide, widened(bias, self.dtype, threads), threads, persistent, on_the_fly)
        if not persistent:
            packed.filter = wide  # keeps the array alive, because tasks may read it (packing on the fly, or in place)
        return packed


cdef struct Move:
    # The arguments of `move_part`: see `PlanesPlan.move`.
    void *plan
    Side *side
    int64_t block
    char *array
    char *buffer
    bint inward
    int parts


cdef void move_part(void *args, size_t part) noexcept nogil:
    """Move one of the parts of a block."""
    cdef Move *move = <Move *>args
    (<PlanesPlan>move.plan).move(move.side, move.block, move.array, move.buffer, move.inward, part, move.parts)
    if (<PlanesPlan>move.plan).stream:
        (<PlanesPlan>move.plan).k.fence()


cdef class PlanesPlan(NativePlan):
    """The plan of a `Schedule` of blocks.py. It runs ``inner``, the plan of a block, for each block."""

    cdef NativePlan inner
    cdef const convt_kernels *array_kernels  # kernels of the dtype of the arrays
    cdef bint widens          # blocks are float32, arrays have a 16-bit dtype
    cdef Py_ssize_t total     # number of blocks
    cdef bint parallel_blocks # each block is a task; otherwise all threads share each step of one block after the other
    cdef bint stream          # non-temporal stores write the outputs
    cdef list keep
    cdef int64_t *count       # number of blocks of images and of each spatial axis
    cdef Side ins, outs
    # byte offsets of a block's data and outputs in the workspace; their bytes. The workspace of the inner plan follows.
    cdef size_t data_at, outputs_at, block_bytes

    def __init__(self, schedule, NativePlan inner, in_strides, out_strides):
        problem, cut, space = schedule.problem, schedule.cut, schedule.workspace
        self.algorithm, self.k, self.isa, self.tile = inner.algorithm, inner.k, inner.isa, inner.tile
        self.array_kernels, self.widens = kernels_of(problem.dtype), schedule.wide
        self.inner, self.parallel_blocks, self.stream = inner, schedule.parallel_blocks, schedule.stream
        self.has_holes, self.keep, self.brief = inner.has_holes, [], problem.flops < BRIEF
        self.nd = problem.rank
        self.count = keep_table(self.keep, [cut.image_blocks, *(axis.count for axis in cut.axes)])
        images = (cut.images, 0, cut.images)
        in_axes = [images, *((axis.size, axis.first, axis.step) for axis in cut.axes)]
        out_axes = [images, *((axis.out, 0, axis.out) for axis in cut.axes)]
        self.set_side(True, in_axes, problem.in_shape, in_strides)
        self.set_side(False, out_axes, problem.out_shape, out_strides)
        self.data_at, self.outputs_at, self.block_bytes = space["data"], space["outputs"], space.bytes
        self.total = cut.total
        self.tasks = self.total if self.parallel_blocks else self.total * inner.tasks
        self.workspace = self.block_bytes + inner.workspace
        self.packing_workspace = inner.packing_workspace if self.total == 1 else 0  # else blocks would repeat the packing

    def set_side(self, bint inward, axes, shape, strides):
        """Fill the `Side` of the data (``inward``) or of the output. ``axes`` are (size, first, step) of a block on each axis,
        images included; ``strides`` are in bytes."""
        cdef Side *side = &self.ins if inward else &self.outs
        cdef int64_t ax
        *steps, channel = [stride // self.array_kernels.s_size for stride in strides]
        *sizes, channels = shape
        side.size, side.stride = keep_table(self.keep, sizes), keep_table(self.keep, steps)
        side.block = keep_table(self.keep, [size for size, _, _ in axes])
        side.first = keep_table(self.keep, [first for _, first, _ in axes])
        side.step = keep_table(self.keep, [step for _, _, step in axes])
        side.channel, side.channels = channel, channels
        ax, side.pixels, side.pixel = self.nd, 1, side.stride[self.nd]
        while ax > 0 and side.block[ax] == side.size[ax] and side.first[ax] == 0 and (
                side.stride[ax - 1] == side.size[ax] * side.stride[ax]):
            side.pixels *= side.size[ax]
            ax -= 1
        side.run_axis = ax

    cdef void move(self, Side *side, int64_t block, char *array, char *buffer, bint inward, int64_t part,
                   int64_t parts) noexcept nogil:
        """Move part ``part`` of ``parts`` of a block from ``array`` to ``buffer`` (inward), or from ``buffer`` to ``array``.

        ``buffer`` is in NXC order. An inward move writes zeros for pixels outside the array; an outward move leaves them out.
        """
        cdef int64_t block_begin[64]
        cdef int64_t ax, n, row, rows = 1, begin, end, at, index, low, high, pieces, first, last
        cdef int64_t run = side.run_axis, pixel = side.channels * self.k.s_size, item = self.array_kernels.s_size
        cdef bint inside
        for ax in range(self.nd, -1, -1):
            block_begin[ax] = side.first[ax] + take_index(&block, self.count[ax]) * side.step[ax]
        for ax in range(run):
            rows *= side.block[ax]
        low, high = max(<int64_t>0, -block_begin[run]), min(side.block[run], side.size[run] - block_begin[run])
        high = max(low, high)
        low, high = low * side.pixels, high * side.pixels
        # A part is some pieces of PART_PIXELS pixels of every run, or some whole runs if a run has too few pieces.
        pieces, begin, end = (high - low + PART_PIXELS - 1) // PART_PIXELS, 0, rows
        if pieces < min(rows, parts):
            begin, end, part, parts = rows * part // parts, rows * (part + 1) // parts, 0, 1
            buffer += begin * side.block[run] * side.pixels * pixel
        last = min(high, low + pieces * (part + 1) // parts * PART_PIXELS)
        first = low + pieces * part // parts * PART_PIXELS
        for row in range(begin, end):
            n, at, inside = row, block_begin[run] * side.stride[run], True
            for ax in range(run - 1, -1, -1):
                index = block_begin[ax] + take_index(&n, side.block[ax])
                inside = inside and 0 <= index < side.size[ax]
                at += index * side.stride[ax]
            if inside and first < last:
                self.move_run(side, array + (at + first * side.pixel) * item, buffer + first * pixel, last - first, inward)
            if inward and part == 0:
                if inside:
                    memset(buffer, 0, low * pixel)
                    memset(buffer + high * pixel, 0, (side.block[run] * side.pixels - high) * pixel)
                else:
                    memset(buffer, 0, side.block[run] * side.pixels * pixel)
            buffer += side.block[run] * side.pixels * pixel

    cdef void move_run(self, Side *side, char *array, char *buffer, int64_t n, bint inward) noexcept nogil:
        """Move ``n`` pixels at a constant stride."""
        cdef const convt_kernels *k = self.array_kernels
        cdef int channels = <int>side.channels, pixels = <int>n
        if self.widens and side.channel == 1 and side.pixel == channels and n * side.channels <= INT_MAX:  # contiguous elements
            if inward:
                k.widen(buffer, 0, array, 0, 1, 1, pixels * channels, pixels * channels)
            else:
                k.narrow(array, 0, 1, buffer, 0, 1, 1, pixels * channels, self.stream)
        elif self.widens and inward:
            k.widen(buffer, channels, array, side.pixel, side.channel, pixels, channels, channels)
        elif self.widens and side.pixel == 1:
            k.narrow(array, side.channel, 1, buffer, 1, channels, channels, pixels, self.stream)
        elif self.widens:
            k.narrow(array, side.pixel, side.channel, buffer, channels, 1, pixels, channels, False)
        elif inward:
            k.transpose(buffer, side.channels, 1, array, side.pixel, side.channel, pixels, channels, False)
        elif side.pixel == 1:
            k.transpose(array, side.channel, 1, buffer, 1, side.channels, channels, pixels, self.stream)
        else:
            k.transpose(array, side.pixel, side.channel, buffer, side.channels, 1, pixels, channels, False)

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        if convt_is_set(call.refused):  # another task found that the call must be repeated with another plan
            return
        cdef char *block_in = ws + self.data_at
        cdef char *block_out = ws + self.outputs_at
        cdef Call inner_call  # not a copy of `call`, whose shared fields other threads change
        inner_call.weights, inner_call.bias, inner_call.source = call.weights, call.bias, call.source
        inner_call.refused = call.refused
        inner_call.src, inner_call.dst, inner_call.threads = block_in, block_out, 1
        inner_call.task_chunk, inner_call.backwards = self.inner.tasks, False
        self.move(&self.ins, task, call.src, block_in, True, 0, 1)
        if self.has_holes:  # the outputs of holes are filled already: copy them into the block
            self.move(&self.outs, task, call.dst, block_out, True, 0, 1)
        self.inner.run_all(&inner_call, ws + self.block_bytes)
        self.move(&self.outs, task, call.dst, block_out, False, 0, 1)
        if self.stream:
            self.k.fence()

    cdef size_t workspace_bytes(self, const RunArguments *run) noexcept nogil:
        if self.parallel_blocks:
            return NativePlan.workspace_bytes(self, run)
        return round64(self.block_bytes) + self.inner.workspace_bytes(run)

    cdef bint run_with_workspace(self, char *ws, const RunArguments *run) noexcept nogil:
        if self.parallel_blocks:
            return NativePlan.run_with_workspace(self, ws, run)
        cdef Py_ssize_t block
        cdef RunArguments inner = run[0]
        inner.src, inner.dst = ws + self.data_at, ws + self.outputs_at
        for block in range(self.total):
            self.move_in_parallel(&self.ins, block, run.src, inner.src, True, run.threads)
            if self.has_holes:
                self.move_in_parallel(&self.outs, block, run.dst, inner.dst, True, run.threads)
            if not self.inner.run_with_workspace(ws + round64(self.block_bytes), &inner):
                return False
            self.move_in_parallel(&self.outs, block, run.dst, inner.dst, False, run.threads)
        return True

    cdef void move_in_parallel(self, Side *side, int64_t block, char *array, char *buffer, bint inward,
                               int threads) noexcept nogil:
        """Move a block; each thread moves a part."""
        cdef Move move
        move.plan, move.side, move.block, move.array, move.buffer = <void *>self, side, block, array, buffer
        move.inward, move.parts = inward, threads
        run_in_parallel(move_part, threads, &move)

    cdef Deal deal_for(self, int threads):
        return NativePlan.deal_for(self, threads) if self.parallel_blocks else self.inner.deal_for(threads)

    cpdef int threads(self, int available):
        return NativePlan.threads(self, available) if self.parallel_blocks else self.inner.threads(available)

    cpdef tuple dealt(self, int available):  # tasks of one block if threads share the blocks
        return NativePlan.dealt(self, available) if self.parallel_blocks else self.inner.dealt(available)
