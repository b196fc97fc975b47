# cython: boundscheck=True, wraparound=True
"""The plan of onednn: it runs the primitive of a problem on arrays, or on contiguous copies of them."""

cimport numpy as cnp

import numpy as np

from ... import _core
from ..._base.errors import BackendUnavailableError
from ..._base.problem import ITEMSIZE
from .library import opened
from .primitive import cached, layout, reason

from .api cimport *
from .call cimport Call, aligned, give_scratch, take_scratch
from .library cimport api, check, has_threads, use_threads
from .primitive cimport Primitive
from .weights cimport BoundWeights

cnp.import_array()


cdef class OneDnnPlan:
    """The plan of a problem for data and output with given strides (NXC axis order, bytes), with the interface of _core's
    plans."""
    cdef readonly str backend, algorithm, isa
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef readonly size_t packed_bytes
    cdef readonly bint has_empty_phases
    cdef bint finite_only  # results are correct only for finite data and filters
    cdef object problem
    cdef str src_layout, dst_layout  # "NXC", "NCX", or None: a contiguous copy is made
    cdef bint bias
    cdef dict primitives  # threads -> Primitive

    def __init__(self, problem, bint bias, in_strides, out_strides, int available):
        self.backend, self.isa = "onednn", opened()["isa"]
        why = reason(problem)
        if why:
            raise BackendUnavailableError(f"backend: 'onednn' can't do this problem: {why}; wanted 'auto' or 'native'")
        item = ITEMSIZE[problem.dtype]
        in_shape = (problem.batch, *problem.in_sizes, problem.groups * problem.ci)
        self.problem, self.bias = problem, bias
        self.src_layout = layout(in_shape, in_strides, item)
        self.dst_layout = layout(problem.out_shape, out_strides, item)
        self.primitives = {}
        cdef Primitive primitive = self.primitive(self.threads(available))
        name, slope, _ = problem.activation
        self.finite_only = problem.dtype == "bfloat16" or not (
            name in ("none", "tanh") or (name == "leaky_relu" and <float>slope != 0))
        self.algorithm, self.tasks = primitive.info, primitive.threads
        self.packed_bytes = api().dnnl_memory_desc_get_size(primitive.required_desc(ONEDNN_dnnl_query_weights_md))
        self.workspace = (primitive.scratch + primitive.threads - 1) // primitive.threads

    cdef Primitive primitive(self, int threads):
        """Return the primitive for a number of threads."""
        found = self.primitives.get(threads)
        if found is None:
            if threads > 1:
                _core.note_pool()
            made = cached(self.problem, self.src_layout or "NXC", self.dst_layout or "NXC", self.bias, threads)
            found = self.primitives.setdefault(threads, made)
        return found

    def threads(self, int available):
        """Return the number of threads of a run that may use ``available`` threads."""
        return available if has_threads() else 1

    def run(self, data, out, filter, int available):
        """Compute the output. ``data`` and ``out`` have the strides that the plan was made for.

        Return True. Return False, without computing, if the input is not finite and oneDNN's result would differ from convt's.
        """
        cdef Primitive primitive = self.primitive(self.threads(available))
        cdef BoundWeights bound = filter.bind(primitive, self.problem)
        source = data if self.src_layout else np.ascontiguousarray(data)
        if self.finite_only and not (filter.all_finite(available) and _core.finite(self.problem.dtype, source, available)):
            return False
        target = out if self.dst_layout else np.empty(out.shape, out.dtype)
        scratch = take_scratch(primitive.scratch)
        cdef Call call = bound.call(self.problem)
        cdef Call epilogue = call.epilogue
        cdef void *src = cnp.PyArray_DATA(source)
        cdef void *dst = cnp.PyArray_DATA(target)
        cdef void *work = aligned(scratch)
        cdef int old_threads
        cdef unsigned status
        with nogil:
            old_threads = use_threads(primitive.threads)
            status = call.set_data(0, src) or call.set_data(1, dst) or call.set_data(2, work)
            status = status or call.execute(primitive.primitive)
            if epilogue is not None:
                status = status or epilogue.set_data(0, dst) or epilogue.set_data(1, dst)
                status = status or epilogue.execute(primitive.epilogue)
            use_threads(old_threads)
        bound.calls.append(call)
        give_scratch(scratch)
        check(status, "executing", self.problem)
        if target is not out:
            out[...] = target
        return True
