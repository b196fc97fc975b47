# cython: boundscheck=True, wraparound=True
"""Deconvolution primitives of problems, their cache, and the check whether oneDNN can compute a problem.

run.pyx gets primitives from `cached`; schedule.py asks `can`.
"""

import collections
import os
import threading

cimport numpy as cnp

import numpy as np

from ..._base import activation, check as _check
from ..._base.dtypes import COMPUTED
from .library import available

from .api cimport *
from .call cimport Call, aligned, give_scratch, take_scratch
from .library cimport api, check, engine, use_threads

cnp.import_array()

_DTYPES = {each.dtype.name: each.onednn for each in COMPUTED if each.onednn}


def can(problem):
    """Check whether there is a library and oneDNN can express the problem."""
    return available() and reason(problem) is None


def reason(problem):
    """Return the reason why oneDNN cannot express the problem, or None if it can."""
    if problem.dtype not in _DTYPES:
        return f"it has no {problem.dtype} on CPUs"
    elif activation.ACTIVATIONS[problem.activation[0]].onednn is None:
        return f"it has no activation {problem.activation[0]}"
    elif problem.rank > 3:
        return f"it has at most 3 spatial axes, not {problem.rank}"
    elif 0 in problem.in_sizes or problem.ci == 0:
        return "it does not accept an empty input"
    elif min(problem.begin) < 0:
        return f"it requires begin pads of at least 0, not {problem.begin}"
    elif any(e <= -s for e, s in zip(pads_end(problem), problem.strides)):
        return f"it requires end pads greater than minus the strides {problem.strides}, not {pads_end(problem)}"
    elif max(problem.strides + problem.dilations + problem.kernel + problem.out_sizes) >= 2**31:
        return "a size, stride or dilation does not fit in 32 bits"
    return None


def pads_end(problem):
    """Return the end pads with which oneDNN's size formula gives the window. They are negative if the window extends beyond the
    full scatter."""
    axes = zip(problem.in_sizes, problem.kernel, problem.strides, problem.dilations, problem.begin, problem.out_sizes)
    return tuple(s * (n - 1) + d * (k - 1) + 1 - b - o for n, k, s, d, b, o in axes)


cdef onednn_desc memory_desc(problem, shape, strides) except? NULL:
    """Return a descriptor of ``shape`` (axes in oneDNN's order). Strides are in elements; None lets oneDNN choose the
    layout."""
    cdef onednn_dims c_shape
    cdef onednn_dims c_strides
    cdef int n, count = len(shape)
    cdef unsigned status, dtype = _DTYPES[problem.dtype]
    cdef onednn_desc desc = NULL
    for n in range(count):
        c_shape[n] = shape[n]
    if strides is None:
        status = api().dnnl_memory_desc_create_with_tag(&desc, count, c_shape, dtype, ONEDNN_dnnl_format_tag_any)
    else:
        for n in range(count):
            c_strides[n] = strides[n]
        status = api().dnnl_memory_desc_create_with_strides(&desc, count, c_shape, dtype, c_strides)
    check(status, f"describing memory of shape {tuple(shape)} and strides {strides}", problem)
    return desc


def _contiguous_strides(shape, str layout):
    """Return the strides, in elements, of a contiguous array with axes (N, C, *spatial) and memory order ``layout``."""
    order = (0, *range(2, len(shape)), 1) if layout == "NXC" else range(len(shape))
    strides, step = [0] * len(shape), 1
    for ax in reversed(order):
        strides[ax], step = step, step * shape[ax]
    return tuple(strides)


def layout(shape, strides, item):
    """Return the memory order, "NXC" or "NCX", in which an array with these strides (NXC axis order) is contiguous, or None."""
    shape, strides = ((a[0], a[-1], *a[1:-1]) for a in (shape, strides))
    for order in ("NXC", "NCX"):
        if all(n == 1 or s == item * d for n, s, d in zip(shape, strides, _contiguous_strides(shape, order))):
            return order
    return None


cdef class Primitive:
    """A deconvolution for one problem, layout of data, layout of output and number of threads. Weights are arguments of a call.

    If it is not ``fused``, a second primitive, ``epilogue``, adds the bias and applies the activation to the output in place.
    """

    def __init__(self, problem, str src_layout, str dst_layout, bint bias, int threads, bint fused=True):
        cdef onednn_dims strides, dilates, begin, end
        cdef int n
        self.threads = threads
        for n, (s, d, b, e) in enumerate(zip(problem.strides, problem.dilations, problem.begin, pads_end(problem))):
            strides[n], dilates[n], begin[n], end[n] = s, d - 1, b, e
        source = (problem.batch, problem.groups * problem.ci, *problem.in_sizes)
        target = (problem.batch, problem.groups * problem.co, *problem.out_sizes)
        self.src = memory_desc(problem, source, _contiguous_strides(source, src_layout))
        self.dst = memory_desc(problem, target, _contiguous_strides(target, dst_layout))
        if not fused:
            across = (1, target[1], *(1,) * problem.rank)
            self.bias = memory_desc(problem, across, _contiguous_strides(across, "NCX"))
        elif bias:
            self.bias = memory_desc(problem, target[1:2], (1,))
        weights = (problem.groups,) * (problem.groups > 1) + (problem.co, problem.ci, *problem.kernel)
        cdef onednn_desc any_layout = memory_desc(problem, weights, None)
        cdef unsigned kind = activation.ACTIVATIONS[problem.activation[0]].onednn_kind, status
        a, b = activation.numbers_of(*problem.activation)
        cdef float alpha = a, beta = b
        cdef onednn_post_ops ops = NULL
        cdef onednn_attr attr = NULL, epilogue_attr = NULL
        cdef const char *impl = NULL
        cdef const char *epilogue_impl = NULL
        cdef int old_threads
        with nogil:
            old_threads = use_threads(threads)
            status = api().dnnl_primitive_attr_create(&attr)
            status = status or api().dnnl_primitive_attr_set_scratchpad_mode(attr, ONEDNN_dnnl_scratchpad_mode_user)
            status = status or api().dnnl_primitive_attr_create(&epilogue_attr)
            if kind and not status:
                status = api().dnnl_post_ops_create(&ops)
                status = status or api().dnnl_post_ops_append_eltwise(ops, kind, alpha, beta)
                status = status or api().dnnl_primitive_attr_set_post_ops(attr if fused else epilogue_attr, ops)
            status = status or api().dnnl_deconvolution_forward_primitive_desc_create(
                &self.desc, engine(), ONEDNN_dnnl_forward_inference, ONEDNN_dnnl_deconvolution_direct,
                self.src, any_layout, self.bias if fused else NULL, self.dst, strides, dilates, begin, end, attr)
            status = status or api().dnnl_primitive_create(&self.primitive, self.desc)
            status = status or api().dnnl_primitive_desc_query(self.desc, ONEDNN_dnnl_query_impl_info_str, 0, &impl)
            if not fused:
                status = status or api().dnnl_binary_primitive_desc_create(
                    &self.epilogue_desc, engine(), ONEDNN_dnnl_binary_add, self.dst, self.bias, self.dst, epilogue_attr)
                status = status or api().dnnl_primitive_create(&self.epilogue, self.epilogue_desc)
                status = status or api().dnnl_primitive_desc_query(
                    self.epilogue_desc, ONEDNN_dnnl_query_impl_info_str, 0, &epilogue_impl)
            if not status:
                self.scratch = api().dnnl_memory_desc_get_size(self.required_desc(ONEDNN_dnnl_query_scratchpad_md))
            use_threads(old_threads)
            api().dnnl_memory_desc_destroy(any_layout)
            api().dnnl_post_ops_destroy(ops)
            api().dnnl_primitive_attr_destroy(attr)
            api().dnnl_primitive_attr_destroy(epilogue_attr)
        check(status, "creating a deconvolution", problem)
        self.info = impl.decode() if fused else f"{impl.decode()}+{epilogue_impl.decode()}"

    cdef onednn_const_desc required_desc(self, unsigned query) noexcept nogil:
        """Return a memory descriptor that the primitive requires: of the weights or of the scratch memory."""
        return api().dnnl_primitive_desc_query_md(self.desc, query, 0)

    def __dealloc__(self):
        if engine() != NULL:
            api().dnnl_primitive_destroy(self.primitive)
            api().dnnl_primitive_destroy(self.epilogue)
            api().dnnl_primitive_desc_destroy(self.desc)
            api().dnnl_primitive_desc_destroy(self.epilogue_desc)
            api().dnnl_memory_desc_destroy(self.src)
            api().dnnl_memory_desc_destroy(self.dst)
            api().dnnl_memory_desc_destroy(self.bias)


_primitives = collections.OrderedDict()  # the most recent last
_capacity = 256
_lock = threading.Lock()


def _unlock():
    """Replace the lock in a forked child, which would wait forever for a lock that another thread of the parent held."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def set_capacity(n):
    """Keep at most ``n`` primitives for later plans; plans keep their own. Raise ValueError if ``n`` is negative."""
    global _capacity
    _capacity = _check.integer("n", n, 0)
    with _lock:
        _trim()


def _trim():
    """Drop the least recently used primitives beyond the capacity."""
    while len(_primitives) > _capacity:
        _primitives.popitem(last=False)


def cached(*key):
    """Return the `Primitive` of ``(problem, src_layout, dst_layout, bias, threads)``, from the cache or a new one."""
    with _lock:
        found = _primitives.get(key)
        if found is not None:
            _primitives.move_to_end(key)
            return found
    made = _make(*key)  # without the lock, because it can take seconds
    with _lock:
        made = _primitives.setdefault(key, made)
        _trim()
    return made


def _make(problem, src_layout, dst_layout, bint bias, threads):
    """Create a primitive, fused if that gives right results."""
    made = Primitive(problem, src_layout, dst_layout, bias, threads)
    has_activation = problem.activation[0] != "none"
    if (bias or has_activation) and not _fuses_right(made, problem, src_layout, dst_layout):
        made = Primitive(problem, src_layout, dst_layout, bias, threads, fused=False)
    return made


cdef bint _fuses_right(Primitive made, problem, src_layout, dst_layout):
    """Check whether a primitive applies its bias and its activation exactly once.

    The strided brgemm kernels of oneDNN 3.2 may process the taps of the axes before the last axis one by one. With a stride,
    some taps reach no input, and after each such empty block the kernels apply everything that is fused: the bias argument and
    the binary and eltwise post-ops. In bfloat16 and float16 this is harmless, because the output holds no partial sums. In
    float32 the next block adds to the written values. Whether the kernels divide the work this way depends on oneDNN's model
    of the caches and cannot be queried. It does not depend on bias or activation. So one run on zeros with a bias of ones
    finds out.
    """
    risky = any(s > 1 and k > 1 for s, k in zip(problem.strides[:-1], problem.kernel[:-1]))
    if problem.dtype != "float32" or "brgconv_strided" not in made.info or not risky:
        return True
    cdef Primitive trial = Primitive(
        problem._replace(activation=("none", 0.0, 0.0)), src_layout, dst_layout, True, made.threads)
    cdef Call call = Call()
    cdef onednn_const_desc weights = trial.required_desc(ONEDNN_dnnl_query_weights_md)
    cdef size_t size = max(api().dnnl_memory_desc_get_size(trial.src), api().dnnl_memory_desc_get_size(weights))
    # The zeros are never written, so they occupy no memory.
    zeros, scratch = np.zeros(size + 64, np.uint8), take_scratch(trial.scratch)
    ones, out = np.ones(problem.groups * problem.co, np.float32), np.empty(problem.out_shape, np.float32)
    cdef unsigned status = call.bind(ONEDNN_DNNL_ARG_SRC, trial.src, aligned(zeros))
    status = status or call.bind(ONEDNN_DNNL_ARG_WEIGHTS, weights, aligned(zeros))
    status = status or call.bind(ONEDNN_DNNL_ARG_BIAS, trial.bias, cnp.PyArray_DATA(ones))
    status = status or call.bind(ONEDNN_DNNL_ARG_DST, trial.dst, cnp.PyArray_DATA(out))
    status = status or call.bind(
        ONEDNN_DNNL_ARG_SCRATCHPAD, trial.required_desc(ONEDNN_dnnl_query_scratchpad_md), aligned(scratch))
    cdef int old_threads
    with nogil:
        old_threads = use_threads(trial.threads)
        status = status or call.execute(trial.primitive)
        use_threads(old_threads)
    give_scratch(scratch)
    check(status, "trying a deconvolution", problem)
    return bool((out == 1).all())
