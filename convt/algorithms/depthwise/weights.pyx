# cython: language_level=3
"""The packed weights of depthwise: one row of lanes (group, out-channel) per tap and in-channel, in the accumulators' type.

`LaneRecipe` packs a filter for the kernel that kinds.py chooses. The groups and dot-product kernels have other layouts:
`pack_groups` and `pack_dots`.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter, all_finite
from convt._run.kernels cimport convt_kernels
from convt._run.memory cimport Table
from convt.algorithms.packing cimport PackRecipe

from .. import packing

cnp.import_array()


cdef class LaneRecipe(PackRecipe):
    """The recipe of weights for DepthwisePlan.

    For cells, ``cell`` is (stride, width): a row of lanes holds a tap of each phase of the last axis, ``width`` times. Lanes
    without a tap are zero. If the last row lacks taps, a mask row follows, whose bits are set in the lanes that have a tap.
    If ``each`` is not 0, lanes are those of `convt_dw_groups` in kernels/convt_kernels.h; with ``dots``, those of dot products.
    """

    def __init__(self, str dtype, filter, bias, cell=(1, 1), int64_t each=0, bint dots=False):
        self.open_recipe(dtype, filter, bias, "vectors")
        cdef const convt_kernels *k = self.k
        self.taps = Table(packing.tap_bytes(np.arange(self.ntaps), self.shape, self.tap_strides))
        self.kernel_x, self.stride_x = self.shape[len(self.shape) - 1], cell[0]
        self.repeats = cell[0] * cell[1]
        self.terms = (self.kernel_x + self.stride_x - 1) // self.stride_x
        self.weight_bytes = self.ntaps // self.kernel_x * self.terms * self.ci * self.padded_lanes() * k.t_size
        if self.kernel_x % self.stride_x:
            self.mask = self.weight_bytes
            self.weight_bytes += self.padded_lanes() * k.t_size
        self.groups_per_vector, self.dots = each, dots
        if each:
            self.weight_bytes = self.vector_count() * self.ntaps * self.tap_elements() * k.t_size
            self.mask = 0
        if each == 2:
            # In the half of the vector that belongs to the other group, adjacent lanes are swapped, unless a half is one lane.
            half, lane = np.divmod(np.arange(k.vl), self.co)
            self.halves = Table([
                np.where((half == r) | (self.co == 1), lane, lane ^ 1) * self.so + np.arange(k.vl) % 2 * self.si
                for r in range(2)
            ])
        # Vectors may be read from any lane on, because groups and phases of cells begin anywhere. So the bias has one vector
        # more, and a vector of weights may extend into the bias.
        self.bias_bytes = (self.padded_lanes() + k.vl) * k.t_size
        self.already_packed = self.is_packed()

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        """Pack as `PackRecipe.pack` does. A one-shot filter that has the packed layout already is used in place."""
        cdef bint in_place = self.already_packed and not persistent
        cdef PackedFilter packed = self.allocate(0 if in_place else self.weight_bytes, persistent)
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        self.pack_depthwise(src, <char *>cnp.PyArray_DATA(bias) if bias is not None else NULL,
                            NULL if in_place else packed.weights, packed.bias)
        if in_place:
            packed.weights = src
        # depthwise multiplies no zeros outside the input, but the blocks of planes/blocks.py contain such zeros.
        packed.finite = all_finite(self.k, filter, threads)
        return packed

    cdef bint is_packed(self):
        """Check whether the filter has the packed layout already, so that nothing must be packed."""
        cdef int64_t row = self.groups * self.co, size = self.k.s_size, n
        contiguous = self.so == 1 if self.co > 1 else True
        if self.groups_per_vector or self.padded_lanes() != row or self.k.t_size != size:
            return False
        if not contiguous or self.repeats != 1:
            return False
        for n in range(self.ntaps):
            if self.taps.p[n] != n * self.ci * row * size:
                return False
        return (self.groups == 1 or self.sg == self.co * size) and (self.ci == 1 or self.si == row)

    cdef int64_t padded_lanes(self) noexcept nogil:
        """Return the lanes of a row, rounded up to whole vectors."""
        return (self.repeats * self.groups * self.co + self.k.vl - 1) // self.k.vl * self.k.vl

    cdef int64_t tap_elements(self) noexcept nogil:
        """Return the elements of a tap in one of the vectors of the groups layout."""
        return self.ci * (self.co if self.dots else self.k.vl)

    cdef int64_t vector_count(self) noexcept nogil:
        """Return the vectors of out-channels in the groups layout: each holds `groups_per_vector` groups or part of one."""
        cdef int64_t groups = self.groups_per_vector
        return (self.groups + groups - 1) // groups * ((self.co * groups + self.k.vl - 1) // self.k.vl)

    cdef void pack_depthwise(self, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil:
        """Pack weights to ``dst`` and the bias to ``bdst``. If ``dst`` is NULL, pack only the bias."""
        cdef const convt_kernels *k = self.k
        cdef int64_t n, lanes = self.groups * self.co
        if dst != NULL:
            memset(dst, 0, self.weight_bytes)
            if self.dots:
                self.pack_dots(src, dst)
            elif self.groups_per_vector:
                self.pack_groups(src, dst)
            else:
                self.pack_lanes(src, dst)
        for n in range(self.repeats):
            if self.mask and n % self.stride_x < self.kernel_x % self.stride_x:
                memset(dst + self.mask + n * lanes * k.t_size, 0xff, lanes * k.t_size)
            if bsrc != NULL:
                k.widen(bdst + n * lanes * k.t_size, 0, bsrc, 0, self.bias_stride, 1, <int>lanes, <int>lanes)

    cdef void pack_lanes(self, char *src, char *dst) noexcept nogil:
        """Pack [tap][in-channel][lane]. For cells, a row of lanes has the taps of one stride."""
        cdef const convt_kernels *k = self.k
        cdef int64_t row, first, tap, c, n, lanes = self.groups * self.co
        # One call widens all lanes if they are at a constant stride in the filter; otherwise it widens one row per group.
        cdef int64_t group = self.sg // k.s_size, step = self.so, rows = self.groups
        if self.co == 1:
            step, rows = group, 1
        elif group == self.co * step:
            rows = 1
        for row in range(self.ntaps // self.kernel_x * self.terms):
            first = row % self.terms * self.stride_x
            for c in range(self.ci):
                for n in range(self.repeats):
                    tap = first + n % self.stride_x
                    if tap >= self.kernel_x:
                        continue
                    tap += row // self.terms * self.kernel_x
                    k.widen(dst + n * lanes * k.t_size, lanes // rows, src + self.taps.p[tap] + c * self.si * k.s_size, group,
                            step, <int>rows, <int>(lanes // rows), <int>(lanes // rows))
                dst += self.padded_lanes() * k.t_size

    cdef void pack_groups(self, char *src, char *dst) noexcept nogil:
        """Pack [vector][tap][in-channel][lane], the layout of `convt_dw_groups`."""
        cdef const convt_kernels *k = self.k
        cdef int64_t v, tap, r, group, lane, groups_per_vector = self.groups_per_vector
        cdef int64_t vectors = (self.co * groups_per_vector + k.vl - 1) // k.vl
        cdef char *group_src
        for v in range(self.vector_count()):
            lane = v % vectors * k.vl
            for tap in range(self.ntaps):
                for r in range(groups_per_vector):
                    group = v // vectors * groups_per_vector + r
                    group_src = src + self.taps.p[tap] + group * self.sg
                    if groups_per_vector == 1:
                        k.widen(dst, k.vl, group_src + lane * self.so * k.s_size, self.si, self.so, <int>self.ci,
                                <int>min(k.vl, self.co - lane), k.vl)
                    elif group < self.groups:
                        k.gather(dst + r * k.vl * k.t_size, groups_per_vector * k.vl, group_src, groups_per_vector * self.si,
                                 self.halves.p + r * k.vl, <int>(self.ci // groups_per_vector), k.vl, k.vl)
                dst += self.ci * k.vl * k.t_size

    cdef void pack_dots(self, char *src, char *dst) noexcept nogil:
        """Pack [group][tap][vector of in-channels][out-channel][lane]."""
        cdef const convt_kernels *k = self.k
        cdef int64_t group, tap, c
        for group in range(self.groups):
            for tap in range(self.ntaps):
                for c in range(self.co):
                    k.widen(dst + c * k.vl * k.t_size, self.co * k.vl,
                            src + self.taps.p[tap] + group * self.sg + c * self.so * k.s_size, self.si * k.vl, self.si,
                            <int>(self.ci // k.vl), k.vl, k.vl)
                dst += self.tap_elements() * k.t_size
