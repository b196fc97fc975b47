# cython: language_level=3, boundscheck=True, wraparound=True
"""The optional oneDNN backend: its deconvolution primitive behind the interface of _core's plans.

The library is opened with dlopen when first needed and never linked. It is looked for at CONVT_ONEDNN_LIB and nowhere else
if that is set; else where the wheel onednn-cpu-gomp puts it, in this environment or beside its installed distribution;
else on the loader's path. Whatever is missing, too old, damaged or not to oneDNN's taste is a BackendUnavailableError.
Its instruction set is its own choice (ONEDNN_MAX_CPU_ISA limits it).

Data and output in memory order NXC or NCX are used in place, anything else goes through a contiguous copy. Weights are
reordered once per layout that oneDNN asks for; plain weights would leave only its reference loops, also in a one-shot call.

Primitives are cached by problem (see `set_capacity`) and know nothing of weights. They are made for a thread count, as
oneDNN divides its work when it creates them.

NaN and infinity reach only the sums that contain them in float32 and float16 without an activation. But some bfloat16
kernels multiply them by zeros of the padding, and most activations have results of their own for them (ReLU of NaN is 0):
such plans look at their input first, and refuse what is not finite.

Bias and activation are fused, but where that would be wrong (see `_fuses_right`): there they are a primitive of their own.

In parts: _onednn_api.pxi (the C API), _onednn_file.py and _onednn_library.pxi (finding and opening it),
_onednn_primitive.pxi (problems in its words), _onednn_weights.pxi (weights and arguments), and here the plan, which runs them.
"""

import collections
import os
import threading
from dataclasses import replace

cimport numpy as cnp
from libc.stdint cimport int64_t, uintptr_t

import numpy as np

from . import _check, _core, _onednn_file
from ._errors import BackendUnavailableError
from ._problem import ITEMSIZE, NUMPY_DTYPE

cnp.import_array()

include "_onednn_api.pxi"
include "_onednn_library.pxi"
include "_onednn_primitive.pxi"
include "_onednn_weights.pxi"


cdef class Plan:
    """One problem, and strides of data and output (NXC axis order): the interface of _core's plans."""
    cdef readonly str backend, algorithm, isa
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef readonly size_t packed_bytes
    cdef readonly bint hole
    cdef bint wary  # only finite data and filters are computed right
    cdef object problem
    cdef str src_layout, dst_layout  # None: through a contiguous copy
    cdef bint bias
    cdef dict primitives  # threads -> _Primitive

    def __init__(self, problem, bint bias, in_strides, out_strides, int available):
        self.backend, self.isa = "onednn", library()["isa"]
        reason = _reason(problem)
        if reason:
            raise BackendUnavailableError(f"backend: 'onednn' can't do this problem: {reason}; wanted 'auto' or 'native'")
        item = ITEMSIZE[problem.dtype]
        in_shape = (problem.batch, *problem.in_sizes, problem.groups * problem.ci)
        self.problem, self.bias = problem, bias
        self.src_layout = _layout(in_shape, in_strides, item)
        self.dst_layout = _layout(problem.out_shape, out_strides, item)
        self.primitives = {}
        cdef _Primitive primitive = self.primitive(self.threads(available))
        name, slope, _ = problem.activation
        self.wary = problem.dtype == "bfloat16" or not (
            name in ("none", "tanh") or (name == "leaky_relu" and <float>slope != 0))
        self.algorithm, self.tasks = primitive.info, primitive.threads
        self.packed_bytes = _api.dnnl_memory_desc_get_size(primitive.wants(ONEDNN_dnnl_query_weights_md))
        self.workspace = (primitive.scratch + primitive.threads - 1) // primitive.threads

    cdef _Primitive primitive(self, int threads):
        found = self.primitives.get(threads)
        if found is None:
            if threads > 1:
                _core._note_pool()
            found = self.primitives[threads] = _primitive(
                self.problem, self.src_layout or "NXC", self.dst_layout or "NXC", self.bias, threads)
        return found

    def threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return available if _omp_set_num_threads != NULL else 1

    def run(self, data, out, filter, int available):
        """Compute; ``data`` and ``out`` have the strides the plan was made for.

        False, and nothing done, if the input is not finite and oneDNN would not compute convt's result.
        """
        cdef _Primitive primitive = self.primitive(self.threads(available))
        cdef _Bound bound = filter.bind(primitive, self.problem)
        source = data if self.src_layout else np.ascontiguousarray(data)
        if self.wary and not (filter.all_finite(available) and _core.finite(self.problem.dtype, source, available)):
            return False
        target = out if self.dst_layout else np.empty(out.shape, out.dtype)
        scratch = _take(primitive.scratch)
        cdef _Call call = bound.call(self.problem)
        cdef _Call after = call.after
        cdef void *src = cnp.PyArray_DATA(source)
        cdef void *dst = cnp.PyArray_DATA(target)
        cdef void *work = _aligned(scratch)
        cdef int before
        cdef unsigned status
        with nogil:
            before = _use_threads(primitive.threads)
            status = call.place(0, src) or call.place(1, dst) or call.place(2, work) or call.execute(primitive.primitive)
            if after is not None:
                status = status or after.place(0, dst) or after.place(1, dst) or after.execute(primitive.after)
            _use_threads(before)
        bound.calls.append(call)
        _give(scratch)
        _raise(status, "executing", self.problem)
        if target is not out:
            out[...] = target
        return True
