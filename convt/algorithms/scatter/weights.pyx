# cython: language_level=3
"""Packed weights of `scatter`: panels whose columns are (phase, tap of the last axis, out-channel), the B of the GEMM.

If vectors run over pixels, the weights are the A of the GEMM: columns become rows, in slabs of depth.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from convt._core cimport all_finite
from convt._run.kernels cimport CONVT_LDA, convt_kernels
from convt._run.memory cimport round64
from convt.algorithms.packing cimport PackClass, PanelRecipe

from ..packing import Copy


cdef class ScatterRecipe(PanelRecipe):
    """The recipe of a form of scatter.

    The bias of each channel group is repeated ``bias_phases`` times for the overlap-add. If ``slab`` is not 0, columns are
    packed as rows of the GEMM's A with a depth of ``slab``, one slab after the other. A slab has whole taps, or a tap takes
    whole slabs, so that ``tap_depth`` (the depth between taps) may exceed the in-channels.
    """

    def __init__(self, str dtype, filter, bias, classes, int64_t bias_phases, int64_t slab, str unit="vectors"):
        cdef int64_t ci = filter.shape[1]
        self.slab = slab
        self.tap_depth = (ci + slab - 1) // slab * slab if 0 < slab < ci else ci
        PanelRecipe.__init__(self, dtype, filter, bias, classes, unit)
        self.bias_bytes = self.groups * bias_phases * self.co * self.k.t_size
        size, row = self.co * self.bias_stride * self.k.s_size, self.co * self.k.t_size
        self.set_bias([
            Copy(0, 0, self.co, self.bias_stride, loops=((self.groups, size, bias_phases * row), (bias_phases, 0, row)))
        ])

    cdef size_class(self, PackClass *c, Py_ssize_t index):
        PanelRecipe.size_class(self, c, index)
        if self.slab:
            c.group_weights = self.slabs(c) * c.ncols * CONVT_LDA * self.k.e_size
            c.njobs = self.groups * c.nphases

    cdef int64_t slabs(self, PackClass *c) noexcept nogil:
        """Return the number of slabs of a pack class."""
        return (c.ntaps * self.tap_depth + self.slab - 1) // self.slab

    cdef bint is_source_finite(self, filter, int threads):
        return not self.slab or all_finite(self.k, filter, threads)

    cdef bint pack_job(self, PackClass *c, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Pack some in-channels of a panel or, with a slab, the rows of one phase of one channel group. Return as
        `PanelRecipe.pack_job`; with a slab, `is_source_finite` checks the filter instead.
        """
        if not self.slab:
            return PanelRecipe.pack_job(self, c, job, src, dst, stage)
        cdef const convt_kernels *k = self.k
        cdef int64_t g = job // c.nphases, phase = job % c.nphases, t, n, depth, rows = k.e_size * CONVT_LDA
        cdef int64_t most = max(<int64_t>1, min(self.slab, self.ci_p)), some
        src += g * self.sg
        dst += c.weights + g * c.group_weights
        for t in range(self.slabs(c)):  # set the padding of rows to zero
            memset(dst + (t * c.ncols + phase * self.co) * rows, 0, self.co * rows)
        for t in range(c.ntaps):
            for n in range((self.ci_p + most - 1) // most):
                depth, some = t * self.tap_depth + n * most, min(most, self.ci_p - n * most)
                k.pack(dst + ((depth // self.slab * c.ncols + phase * self.co) * CONVT_LDA + depth % self.slab) * k.e_size,
                       CONVT_LDA, src + c.taps[phase * c.ntaps + t] + n * most * self.si * k.s_size, self.so, self.si,
                       <int>self.co, <int>some, <int>some)
        return False
