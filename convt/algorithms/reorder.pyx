# cython: language_level=3
"""Reordering of filters to (tap, group, in-channel, out-channel) before they are packed.

Packing reads all out-channels of one tap, then those of the next tap. In IOX order (ONNX, OpenVINO, PyTorch) the out-channels
of a tap are as many elements apart as there are taps. Packing would read each cache line once per tap and use few of its
elements. `ReorderRecipe` first transposes taps and out-channels of each in-channel, which reads and writes whole cache lines,
and packs the result as a filter in XIO order. `pays` decides for which filters that is faster.
"""

from libc.stdint cimport int64_t

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter, kernels_of, run_in_parallel
from convt._run.kernels cimport convt_kernels
from convt._run.memory cimport empty_for_weights
from convt.algorithms.packing cimport PackRecipe

cnp.import_array()

cdef enum:
    LEAST_BYTES = 1 << 15  # A smaller filter is not reordered, because it stays in L1 while it is packed.
    LEAST_CHANNELS = 8  # A filter with fewer out-channels is not reordered.
    PART_BYTES = 1 << 17  # Each thread reorders at least this many bytes.


# A filter is in rows if the taps of all out-channels are contiguous for each in-channel.
IN_ROWS, NOT_IN_ROWS = "in rows", "not in rows"


cdef struct Reorder:
    # The arguments of `reorder_part`, one filter for all threads.
    const convt_kernels *k
    char *src
    char *dst
    int64_t groups, ci, co, taps
    int64_t sg, si, so  # strides of group (bytes), in-channel (bytes) and out-channel (elements)
    int64_t parts


def memory_order(filter):
    """Return the memory order of a filter (groups, ci, co, *kernel): IN_ROWS or NOT_IN_ROWS."""
    return IN_ROWS if filter[:1, :1].flags.c_contiguous else NOT_IN_ROWS


def pays(filter):
    """Check whether reordering makes packing of a filter (groups, ci, co, *kernel) faster: its taps are contiguous, its
    out-channels are not."""
    item, taps = filter.itemsize, int(np.prod(filter.shape[3:]))
    return (
        filter.nbytes >= LEAST_BYTES and filter.shape[2] >= LEAST_CHANNELS and taps > 1
        and filter[:1, :1, :1].flags.c_contiguous and abs(filter.strides[2]) > item
    )


def empty_reordered(filter):
    """Return an empty array of a filter's shape and dtype in the memory order of a reordered filter."""
    return as_filter(np.empty((*filter.shape[3:], *filter.shape[:3]), filter.dtype))


cdef as_filter(array):
    """Return an array (*kernel, groups, ci, co) viewed as a filter (groups, ci, co, *kernel)."""
    return array.transpose(*range(array.ndim - 3, array.ndim), *range(array.ndim - 3))


cdef void reorder_part(void *job, size_t part) noexcept nogil:
    """Reorder the in-channels of one thread, the ``part``-th part of the in-channels of all groups."""
    cdef Reorder *r = <Reorder *>job
    cdef int64_t rows = r.groups * r.ci, row
    for row in range(rows * part // r.parts, rows * (part + 1) // r.parts):
        r.k.transpose(r.dst + row * r.co * r.k.s_size, rows * r.co, 1, r.src + row // r.ci * r.sg + row % r.ci * r.si, 1, r.so,
                      <int>r.taps, <int>r.co, False)


cdef class ReorderRecipe(PackRecipe):
    """A recipe that reorders filters of the shape and strides of ``filter`` and packs them with the ``inner`` recipe."""

    cdef readonly PackRecipe inner
    cdef object dtype
    cdef tuple filter_shape
    cdef Reorder arguments

    def __init__(self, PackRecipe inner, str dtype, filter):
        self.inner, self.weight_bytes, self.bias_bytes = inner, inner.weight_bytes, inner.bias_bytes
        self.dtype, self.filter_shape = filter.dtype, (*filter.shape[3:], *filter.shape[:3])
        self.arguments.k, self.arguments.taps = kernels_of(dtype), int(np.prod(filter.shape[3:]))
        self.arguments.groups, self.arguments.ci, self.arguments.co = filter.shape[:3]
        self.arguments.sg, self.arguments.si = filter.strides[0], filter.strides[1]
        self.arguments.so = filter.strides[2] // filter.itemsize
        self.arguments.parts = max(1, min(self.arguments.groups * self.arguments.ci, filter.nbytes // PART_BYTES))

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        """Reorder and pack a filter; see `PackRecipe.pack`. Shape and strides are the recipe's, not those of ``filter``."""
        cdef Reorder arguments = self.arguments
        ordered = empty_for_weights(self.filter_shape, self.dtype)
        arguments.src, arguments.dst = <char *>cnp.PyArray_DATA(filter), <char *>cnp.PyArray_DATA(ordered)
        arguments.parts = min(arguments.parts, <int64_t>threads)
        with nogil:
            run_in_parallel(reorder_part, <int>arguments.parts, &arguments)
        cdef PackedFilter packed = self.inner.pack(as_filter(ordered), bias, threads, persistent, on_the_fly)
        if not persistent and packed.filter is None:
            packed.filter = ordered  # tasks of the call may read it: they pack on the fly, or it serves as packed weights
        return packed
