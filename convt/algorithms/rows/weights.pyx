# cython: language_level=3
"""The packed weights of rows.

For each channel group and each output block, the layout is [tap of the other axes][in-channel][tap of the last axis][output],
so that a micro-kernel reads its weights in order.
"""

from libc.stdint cimport int64_t

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter, all_finite
from convt._run.kernels cimport convt_kernels
from convt._run.memory cimport keep_table, round64, structures
from convt.algorithms.packing cimport PackRecipe

from .. import packing

cnp.import_array()


cdef class RowsRecipe(PackRecipe):
    """The recipe of weights for ``phases``, the `Block`s of rows/schedule.py, and for ``channel_blocks`` parts of the
    out-channels."""

    def __init__(self, str dtype, filter, bias, stride, phases, int64_t channel_blocks):
        self.open_recipe(dtype, filter, bias, "vectors")
        cdef const convt_kernels *k = self.k
        cdef RowBlock *b
        cdef RowBlock *same_height
        cdef int64_t last = self.shape[len(self.shape) - 1], c, n = 0, each = len(phases), first, height, other
        self.outer_taps, self.keep, self.nblocks = self.ntaps // last, [], channel_blocks * each
        self.blocks = <RowBlock *>cnp.PyArray_DATA(structures(self.keep, self.nblocks, sizeof(RowBlock)))
        outer = np.arange(self.outer_taps)[:, None, None] * last
        first_of_height = {}  # number of channels -> first channel block with this number; blocks of equal height share tables
        for c in range(channel_blocks):
            first = self.co * c // channel_blocks
            height = self.co * (c + 1) // channel_blocks - first
            other = first_of_height.setdefault(height, c)
            for m, block in enumerate(phases):
                b, same_height = &self.blocks[n], &self.blocks[other * each + <int64_t>m]
                b.outputs, b.shifts = height * <int64_t>len(block.residues), block.terms
                if other == c:
                    taps = np.array(block.taps) + stride * np.arange(block.terms - 1, -1, -1)[:, None]  # [shift][phase]
                    places = packing.tap_bytes(outer + taps, self.shape, self.tap_strides) // k.s_size
                    channels = np.arange(height)
                    b.weight_offsets = keep_table(self.keep, places[:, :, None, :] + channels[:, None] * self.so)
                    b.bias_offsets = keep_table(self.keep, np.repeat(channels * self.bias_stride, len(block.residues)))
                else:
                    b.weight_offsets, b.bias_offsets = same_height.weight_offsets, same_height.bias_offsets
                b.first_weight, b.first_bias = first * self.so, first * self.bias_stride
                b.weights, b.bias = self.group_weights, self.group_bias
                self.group_weights += round64(self.outer_taps * self.ci * b.shifts * b.outputs * k.t_size)
                self.group_bias += round64(b.outputs * k.t_size)
                n += 1
        self.weight_bytes, self.bias_bytes = self.groups * self.group_weights, self.groups * self.group_bias
        self.jobs = self.groups

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        cdef PackedFilter packed = self.allocate(self.weight_bytes, persistent)
        self.pack_weights(filter, packed, threads)
        if bias is not None:
            self.pack_bias(<char *>cnp.PyArray_DATA(bias), packed.bias)
        # Plans check `finite`, because the zeros at the ends of input rows are multiplied by every weight.
        packed.finite = all_finite(self.k, filter, threads)
        return packed

    cdef bint run_job(self, int64_t group, char *src, char *dst, char *stage) noexcept nogil:
        """Pack the weights of a channel group."""
        cdef const convt_kernels *k = self.k
        cdef RowBlock *b
        cdef int64_t n, u, t, shifts
        cdef char *at
        src, dst = src + group * self.sg, dst + group * self.group_weights
        for n in range(self.nblocks):
            b = &self.blocks[n]
            shifts = b.shifts
            for u in range(self.outer_taps):
                at = dst + b.weights + u * self.ci * shifts * b.outputs * k.t_size
                for t in range(shifts):
                    k.gather(at + t * b.outputs * k.t_size, shifts * b.outputs, src + b.first_weight * k.s_size, self.si,
                             b.weight_offsets + (u * shifts + t) * b.outputs, <int>self.ci, <int>b.outputs, <int>b.outputs)
        return False

    cdef void pack_bias(self, char *src, char *dst) noexcept nogil:
        """Pack the bias of all channel groups."""
        cdef const convt_kernels *k = self.k
        cdef RowBlock *b
        cdef int64_t group, n
        for group in range(self.groups):
            for n in range(self.nblocks):
                b = &self.blocks[n]
                k.gather(dst + group * self.group_bias + b.bias, 0,
                         src + (group * self.co * self.bias_stride + b.first_bias) * k.s_size, 0, b.bias_offsets, 1,
                         <int>b.outputs, <int>b.outputs)
