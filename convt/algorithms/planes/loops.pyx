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

from convt._core cimport BRIEF, BalancedShares, Call, PackedFilter, NativePlan, RunArguments, kernels_of, run_in_parallel
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
    const convt_kernels *k    # kernels of the dtype of the array
    bint widens               # blocks are float32, and the array has a 16-bit dtype
    bint stream               # non-temporal stores write the array
    int64_t nd                # number of spatial axes
    int64_t *count            # blocks
    int64_t *size             # indices of the array
    int64_t *block            # indices of a block; block n starts at index first + n * step
    int64_t *first
    int64_t *step
    int64_t *stride           # elements between indices of the array
    int64_t channel, channels # elements between channels; number of channels
    int64_t run_axis          # from this axis on, pixels are at a constant stride; blocks contain the later axes whole
    int64_t pixels, pixel     # pixels of one index of `run_axis`; elements between pixels of the array
    int64_t pixel_bytes       # bytes of a pixel of a block


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
    # The move of a block from an array to a buffer (inward), or from a buffer to an array. The buffer is in NXC order.
    const Side *side
    int64_t block
    char *array
    char *buffer
    bint inward
    int parts


cdef struct PlanesRegions:
    # Offsets of a block's data and outputs in the workspace. The workspace of the inner plan follows.
    size_t data, outputs


cdef class PlanesPlan(NativePlan):
    """The plan of a `Schedule` of blocks.py. It runs ``inner``, the plan of a block, for each block."""

    cdef NativePlan inner
    cdef Py_ssize_t total     # number of blocks
    cdef bint parallel_blocks # each block is a task; otherwise all threads share each step of one block after the other
    cdef list keep
    cdef Side ins, outs
    cdef PlanesRegions at
    cdef size_t block_bytes   # bytes of a block's data and outputs

    def __init__(self, schedule, NativePlan inner, in_strides, out_strides):
        problem, cut, space = schedule.problem, schedule.cut, schedule.workspace
        self.k, self.isa, self.tile = inner.k, inner.isa, inner.tile
        self.inner, self.parallel_blocks, self.nd = inner, schedule.parallel_blocks, problem.rank
        self.has_empty_phases, self.keep, self.brief = inner.has_empty_phases, [], problem.flops < BRIEF
        images = (cut.images, 0, cut.images)
        in_axes = [images, *((axis.size, axis.first, axis.step) for axis in cut.axes)]
        out_axes = [images, *((axis.out, 0, axis.out) for axis in cut.axes)]
        fill_side(&self.ins, self, schedule, in_axes, problem.in_shape, in_strides)
        fill_side(&self.outs, self, schedule, out_axes, problem.out_shape, out_strides)
        self.at, self.block_bytes, self.total = space, space.bytes, cut.total
        self.tasks = self.total if self.parallel_blocks else self.total * inner.tasks
        self.workspace = self.block_bytes + inner.workspace
        self.packing_workspace = inner.packing_workspace if self.total == 1 else 0  # else blocks would repeat the packing

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a block on one thread."""
        if convt_is_set(call.refused):  # another task found that the call must be repeated with another plan
            return
        cdef Call inner_call  # not a copy of `call`, whose shared fields other threads change
        inner_call.weights, inner_call.bias, inner_call.source = call.weights, call.bias, call.source
        inner_call.refused = call.refused
        inner_call.src, inner_call.dst, inner_call.threads = ws + self.at.data, ws + self.at.outputs, 1
        inner_call.task_chunk, inner_call.backwards = self.inner.tasks, False
        move_block(&self.ins, task, call.src, inner_call.src, True, 1)
        if self.has_empty_phases:  # the outputs of empty phases are filled already: copy them into the block
            move_block(&self.outs, task, call.dst, inner_call.dst, True, 1)
        self.inner.run_all(&inner_call, ws + self.block_bytes)
        move_block(&self.outs, task, call.dst, inner_call.dst, False, 1)

    cdef size_t workspace_bytes(self, const RunArguments *run) noexcept nogil:
        if self.parallel_blocks:
            return NativePlan.workspace_bytes(self, run)
        return round64(self.block_bytes) + self.inner.workspace_bytes(run)

    cdef bint run_with_workspace(self, char *ws, const RunArguments *run) noexcept nogil:
        if self.parallel_blocks:
            return NativePlan.run_with_workspace(self, ws, run)
        cdef Py_ssize_t block
        cdef RunArguments inner = run[0]
        inner.src, inner.dst = ws + self.at.data, ws + self.at.outputs
        for block in range(self.total):
            move_block(&self.ins, block, run.src, inner.src, True, run.threads)
            if self.has_empty_phases:
                move_block(&self.outs, block, run.dst, inner.dst, True, run.threads)
            if not self.inner.run_with_workspace(ws + round64(self.block_bytes), &inner):
                return False
            move_block(&self.outs, block, run.dst, inner.dst, False, run.threads)
        return True

    cdef BalancedShares balanced_shares_for(self, int threads):
        if self.parallel_blocks:
            return NativePlan.balanced_shares_for(self, threads)
        return self.inner.balanced_shares_for(threads)

    cpdef int threads(self, int available):
        return NativePlan.threads(self, available) if self.parallel_blocks else self.inner.threads(available)

    cpdef tuple task_shares(self, int available):  # tasks of one block if threads share the blocks
        return NativePlan.task_shares(self, available) if self.parallel_blocks else self.inner.task_shares(available)


cdef fill_side(Side *side, PlanesPlan plan, schedule, axes, shape, strides):
    """Fill a `Side`. ``axes`` are (size, first, step) of a block on each axis, images included; ``strides`` are in bytes."""
    cdef int64_t ax = plan.nd
    keep, cut = plan.keep, schedule.cut
    side.k, side.widens, side.stream, side.nd = kernels_of(schedule.problem.dtype), schedule.wide, schedule.stream, ax
    *steps, channel = [stride // side.k.s_size for stride in strides]
    *sizes, channels = shape
    side.count = keep_table(keep, [cut.image_blocks, *(axis.count for axis in cut.axes)])
    side.size, side.stride = keep_table(keep, sizes), keep_table(keep, steps)
    blocks, firsts, steps = zip(*axes)
    side.block, side.first, side.step = keep_table(keep, blocks), keep_table(keep, firsts), keep_table(keep, steps)
    side.channel, side.channels, side.pixel_bytes = channel, channels, channels * plan.k.s_size
    side.pixels, side.pixel = 1, side.stride[ax]
    while ax > 0 and side.block[ax] == side.size[ax] and side.first[ax] == 0 and (
            side.stride[ax - 1] == side.size[ax] * side.stride[ax]):
        side.pixels *= side.size[ax]
        ax -= 1
    side.run_axis = ax


cdef void move_block(const Side *side, int64_t block, char *array, char *buffer, bint inward, int threads) noexcept nogil:
    """Move a block from ``array`` to ``buffer`` (inward), or from ``buffer`` to ``array``. Each thread moves a part."""
    cdef Move move
    move.side, move.block, move.array, move.buffer, move.inward, move.parts = side, block, array, buffer, inward, threads
    if threads == 1:
        move_part(&move, 0)
    else:
        run_in_parallel(move_part, threads, &move)


cdef void move_part(void *args, size_t number) noexcept nogil:
    """Move one of the parts of a block.

    An inward move writes zeros for pixels outside the array; an outward move leaves them out.
    """
    cdef Move *move = <Move *>args
    cdef const Side *side = move.side
    cdef int64_t block_begin[64]
    cdef int64_t ax, n, row, rows = 1, begin, end, at, index, low, high, pieces, first, last, part = number, parts = move.parts
    cdef int64_t run = side.run_axis, pixel = side.pixel_bytes, item = side.k.s_size, block = move.block
    cdef int64_t run_bytes = side.block[run] * side.pixels * pixel
    cdef bint inside
    cdef char *buffer = move.buffer
    for ax in range(side.nd, -1, -1):
        block_begin[ax] = side.first[ax] + take_index(&block, side.count[ax]) * side.step[ax]
    for ax in range(run):
        rows *= side.block[ax]
    low, high = max(<int64_t>0, -block_begin[run]), min(side.block[run], side.size[run] - block_begin[run])
    high = max(low, high)
    low, high = low * side.pixels, high * side.pixels
    # A part is some pieces of PART_PIXELS pixels of every run, or some whole runs if a run has too few pieces.
    pieces, begin, end = (high - low + PART_PIXELS - 1) // PART_PIXELS, 0, rows
    if pieces < min(rows, parts):
        begin, end, part, parts = rows * part // parts, rows * (part + 1) // parts, 0, 1
        buffer += begin * run_bytes
    last = min(high, low + pieces * (part + 1) // parts * PART_PIXELS)
    first = low + pieces * part // parts * PART_PIXELS
    for row in range(begin, end):
        n, at, inside = row, block_begin[run] * side.stride[run], True
        for ax in range(run - 1, -1, -1):
            index = block_begin[ax] + take_index(&n, side.block[ax])
            inside = inside and 0 <= index < side.size[ax]
            at += index * side.stride[ax]
        if inside and first < last:
            move_run(side, move.array + (at + first * side.pixel) * item, buffer + first * pixel, last - first, move.inward)
        if move.inward and part == 0:
            if inside:
                memset(buffer, 0, low * pixel)
                memset(buffer + high * pixel, 0, run_bytes - high * pixel)
            else:
                memset(buffer, 0, run_bytes)
        buffer += run_bytes
    if side.stream and not move.inward:
        side.k.fence()


cdef void move_run(const Side *side, char *array, char *buffer, int64_t n, bint inward) noexcept nogil:
    """Move ``n`` pixels at a constant stride."""
    cdef const convt_kernels *k = side.k
    cdef int channels = <int>side.channels, pixels = <int>n
    if side.widens and side.channel == 1 and side.pixel == channels and n * side.channels <= INT_MAX:  # contiguous elements
        if inward:
            k.widen(buffer, 0, array, 0, 1, 1, pixels * channels, pixels * channels)
        else:
            k.narrow(array, 0, 1, buffer, 0, 1, 1, pixels * channels, side.stream)
    elif side.widens and inward:
        k.widen(buffer, channels, array, side.pixel, side.channel, pixels, channels, channels)
    elif side.widens and side.pixel == 1:
        k.narrow(array, side.channel, 1, buffer, 1, channels, channels, pixels, side.stream)
    elif side.widens:
        k.narrow(array, side.pixel, side.channel, buffer, channels, 1, pixels, channels, False)
    elif inward:
        k.transpose(buffer, side.channels, 1, array, side.pixel, side.channel, pixels, channels, False)
    elif side.pixel == 1:
        k.transpose(array, side.channel, 1, buffer, 1, side.channels, channels, pixels, side.stream)
    else:
        k.transpose(array, side.pixel, side.channel, buffer, side.channels, 1, pixels, channels, False)
