# cython: boundscheck=True, wraparound=True
"""Filters in the layouts that primitives require, and the arguments of calls. `Recipe` is the recipe of the stages."""

import os
import threading

cimport numpy as cnp

import numpy as np

from ... import _core
from ..._base.problem import NUMPY_DTYPE

from .api cimport *
from .call cimport Call, aligned
from .library cimport api, check, engine, use_threads
from .primitive cimport Primitive, memory_desc

cnp.import_array()

_reordering = threading.Lock()


def _unlock():
    """Replace the lock in a forked child, which would wait forever for a lock that another thread of the parent held."""
    global _reordering
    _reordering = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


cdef class Weights:
    """A filter in the layout that a primitive requires."""

    def __init__(self, Primitive primitive, view, problem):
        cdef onednn_const_desc target_desc = primitive.required_desc(ONEDNN_dnnl_query_weights_md)
        cdef onednn_desc source_desc = memory_desc(problem, view.shape, tuple(s // view.itemsize for s in view.strides))
        cdef onednn_primitive_desc desc = NULL
        cdef onednn_primitive reorder = NULL
        cdef Call call = Call()
        cdef unsigned status
        cdef int old_threads
        self.primitive = primitive  # keeps the descriptor alive
        self.memory = np.empty(api().dnnl_memory_desc_get_size(target_desc) + 64, np.uint8)
        cdef void *src = cnp.PyArray_DATA(view)
        cdef void *dst = aligned(self.memory)
        with nogil:
            old_threads = use_threads(primitive.threads)
            status = api().dnnl_reorder_primitive_desc_create(&desc, source_desc, engine(), target_desc, engine(), NULL)
            status = status or api().dnnl_primitive_create(&reorder, desc)
            status = status or call.bind(ONEDNN_DNNL_ARG_SRC, source_desc, src)
            status = status or call.bind(ONEDNN_DNNL_ARG_DST, target_desc, dst)
            status = status or call.execute(reorder)
            use_threads(old_threads)
            api().dnnl_primitive_destroy(reorder)
            api().dnnl_primitive_desc_destroy(desc)
            api().dnnl_memory_desc_destroy(source_desc)
        check(status, "reordering the filter", problem)

    cdef bint same_layout(self, Primitive other) noexcept:
        """Check whether another primitive requires the same layout."""
        cdef unsigned query = ONEDNN_dnnl_query_weights_md
        return api().dnnl_memory_desc_equal(self.primitive.required_desc(query), other.required_desc(query))


class Recipe:
    """A recipe that makes a `Filter` from filters of one shape and strides (groups, ci, co, *kernel)."""

    def __init__(self, dtype, filter, bias):
        self._dtype, self._shape, self._strides, self.biased = dtype, filter.shape, filter.strides, bias is not None

    def pack(self, filter, bias, threads):
        """Return the `Filter`. Only the address of ``filter`` is used, with the shape and the strides of the recipe."""
        return Filter(self._dtype, np.lib.stride_tricks.as_strided(filter, self._shape, self._strides, writeable=False), bias)


class Filter:
    """A filter and its bias, reordered once to each layout that a primitive requires."""

    finite = True  # plans are the same for all filters, unlike those of _core; plans that reject a filter call `all_finite`

    def __init__(self, dtype, filter, bias):
        view = filter.swapaxes(1, 2)  # oneDNN: (groups, co, ci, *kernel), without groups if there is one
        view = view if view.shape[0] > 1 else view[0]
        self._view = view if _reorderable(view) else view.copy()
        self._bias = None if bias is None else np.ascontiguousarray(bias)
        self._weights, self._use_count, self._most_bytes = [], 0, float("inf")
        self._bound = {}  # primitive -> BoundWeights
        self._dtype = dtype
        self._finite = None

    def all_finite(self, threads):
        """Check whether filter and bias are free of NaN and infinity."""
        if self._finite is None:
            arrays = [a for a in (self._view, self._bias) if a is not None]
            self._finite = all(_core.finite(self._dtype, a, threads) for a in arrays)
        return self._finite

    @property
    def nbytes(self):
        """The bytes of all reordered weights."""
        cdef Weights each
        return sum([each.memory.nbytes for each in self._weights.copy()])

    def bound_to(self, most):
        """Keep at most ``most`` bytes of reordered weights and drop the least recently used layouts first.

        At least one layout is kept. Running calls keep the layouts that they use alive.
        """
        self._most_bytes = most
        with _reordering:
            self._drop_layouts()

    def _drop_layouts(self):
        """Drop the least recently used layouts beyond the bound."""
        cdef Weights oldest
        while len(self._weights) > 1 and self.nbytes > self._most_bytes:
            oldest = min(self._weights, key=_last_use)
            self._weights.remove(oldest)
            self._bound = {primitive: bound for primitive, bound in self._bound.items() if (<BoundWeights>bound).weights is not oldest}

    def bind(self, Primitive primitive, problem):
        """Return the `BoundWeights` of a primitive; reorder the filter if its layout is not kept."""
        found = self._bound.get(primitive)
        if found is None:
            with _reordering:
                found = BoundWeights(primitive, self._reordered(primitive, problem), self._bias, problem)
                self._bound[primitive] = found
                if len(self._bound) > _MOST_BOUND:
                    del self._bound[next(iter(self._bound))]
        self._note_use((<BoundWeights>found).weights)
        return found

    def _note_use(self, Weights weights):
        """Record that a layout is used now."""
        self._use_count += 1
        weights.used = self._use_count

    def _reordered(self, Primitive primitive, problem):
        """Return the weights in the layout of a primitive, kept or reordered now."""
        cdef Weights found
        for found in self._weights:
            if found.same_layout(primitive):
                return found
        found = Weights(primitive, self._view, problem)
        self._note_use(found)
        self._weights.append(found)
        self._drop_layouts()
        return found


def _last_use(Weights weights):
    """Return the sequence number of the last use."""
    return weights.used



_MOST_BOUND = 64  # the most primitives for which a filter keeps a `BoundWeights`


def _reorderable(view):
    """Check whether oneDNN can describe a view: positive strides, and no element with two indices."""
    end = 1
    for stride, size in sorted(zip(view.strides, view.shape)):
        if size > 1:
            if stride < end:
                return False
            end = stride * size
    return all(s > 0 for s in view.strides)


cdef class BoundWeights:
    """A primitive with its weights and bias, and the `Call`s that are not in use."""

    def __init__(self, Primitive primitive, weights, bias, problem):
        if bias is None and primitive.epilogue != NULL:
            bias = np.zeros(problem.groups * problem.co, NUMPY_DTYPE[problem.dtype])
        self.primitive, self.weights, self.bias, self.calls = primitive, weights, bias, []

    cdef Call call(self, problem):
        """Return a `Call` that is not in use, or a new one."""
        try:
            return self.calls.pop()
        except IndexError:
            pass
        cdef Call made = Call()
        cdef Primitive p = self.primitive
        cdef unsigned status = made.bind(ONEDNN_DNNL_ARG_SRC, p.src, NULL)
        status = status or made.bind(ONEDNN_DNNL_ARG_DST, p.dst, NULL)
        status = status or made.bind(ONEDNN_DNNL_ARG_SCRATCHPAD, p.required_desc(ONEDNN_dnnl_query_scratchpad_md), NULL)
        status = status or made.bind(
            ONEDNN_DNNL_ARG_WEIGHTS, p.required_desc(ONEDNN_dnnl_query_weights_md), aligned(self.weights.memory))
        if p.epilogue != NULL:
            made.epilogue = Call()
            status = status or made.epilogue.bind(ONEDNN_DNNL_ARG_SRC, p.dst, NULL)
            status = status or made.epilogue.bind(ONEDNN_DNNL_ARG_DST, p.dst, NULL)
            status = status or made.epilogue.bind(ONEDNN_DNNL_ARG_SRC_1, p.bias, cnp.PyArray_DATA(self.bias))
        elif self.bias is not None:
            status = status or made.bind(ONEDNN_DNNL_ARG_BIAS, p.bias, cnp.PyArray_DATA(self.bias))
        check(status, "making memory objects", problem)
        return made
