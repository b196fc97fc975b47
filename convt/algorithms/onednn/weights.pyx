# What a primitive runs with: weights in its layout, memory objects, scratch memory.
# Included by _onednn.pyx.

_spare = []  # scratch memory of finished calls, for the next ones; a list's append and pop are atomic


cdef _take(size_t size):
    try:
        memory = _spare.pop()
        if memory.nbytes >= size + 64:
            return memory
    except IndexError:
        pass
    return np.empty(size + 64, np.uint8)


cdef _give(memory):
    if len(_spare) < 8:
        _spare.append(memory)


cdef inline void *_aligned(memory) noexcept:
    """The first cache line boundary in an array of bytes."""
    return <void *>((<uintptr_t>cnp.PyArray_DATA(memory) + 63) & ~<uintptr_t>63)


cdef class _Weights:
    """A filter in the layout that a primitive asks for."""
    cdef _Primitive primitive
    cdef object memory

    def __init__(self, _Primitive primitive, view, problem):
        cdef onednn_const_desc wanted = primitive.wants(ONEDNN_dnnl_query_weights_md)
        cdef onednn_desc given = _desc(problem, view.shape, tuple(s // view.itemsize for s in view.strides))
        cdef onednn_primitive_desc desc = NULL
        cdef onednn_primitive reorder = NULL
        cdef _Call call = _Call()
        cdef unsigned status
        cdef int before
        self.primitive = primitive  # which keeps the descriptor
        self.memory = np.empty(_api.dnnl_memory_desc_get_size(wanted) + 64, np.uint8)
        cdef void *src = cnp.PyArray_DATA(view)
        cdef void *dst = _aligned(self.memory)
        with nogil:
            before = _use_threads(primitive.threads)
            status = _api.dnnl_reorder_primitive_desc_create(&desc, given, _engine, wanted, _engine, NULL)
            status = status or _api.dnnl_primitive_create(&reorder, desc)
            status = status or call.bind(ONEDNN_DNNL_ARG_SRC, given, src)
            status = status or call.bind(ONEDNN_DNNL_ARG_DST, wanted, dst)
            status = status or call.execute(reorder)
            _use_threads(before)
            _api.dnnl_primitive_destroy(reorder)
            _api.dnnl_primitive_desc_destroy(desc)
            _api.dnnl_memory_desc_destroy(given)
        _raise(status, "reordering the filter", problem)

    cdef bint fits(self, _Primitive other) noexcept:
        cdef unsigned what = ONEDNN_dnnl_query_weights_md
        return _api.dnnl_memory_desc_equal(self.primitive.wants(what), other.wants(what))


class Recipe:
    """How filters of one shape and strides (groups, ci, co, *kernel) become `Filter`s."""

    def __init__(self, dtype, filter, bias):
        self._dtype, self._shape, self._strides, self.biased = dtype, filter.shape, filter.strides, bias is not None

    def pack(self, filter, bias, threads):
        """``filter`` begins where the view of that shape and strides does, whatever its own axes are."""
        return Filter(self._dtype, np.lib.stride_tricks.as_strided(filter, self._shape, self._strides, writeable=False), bias)


class Filter:
    """A filter and its bias, reordered once to each layout that a primitive asks for."""

    finite = True  # unlike _core's, no plan differs for a filter that is not; those that refuse it ask `all_finite`

    def __init__(self, dtype, filter, bias):
        view = filter.swapaxes(1, 2)  # oneDNN: (groups, co, ci, *kernel), without groups if there is one
        view = view if view.shape[0] > 1 else view[0]
        self._view = view if _reorderable(view) else view.copy()
        self._bias = None if bias is None else np.ascontiguousarray(bias)
        self._weights = []
        self._bound = {}  # primitive -> _Bound
        self._dtype = dtype
        self._finite = None

    def all_finite(self, threads):
        """Whether neither filter nor bias has a NaN or an infinity."""
        if self._finite is None:
            arrays = [a for a in (self._view, self._bias) if a is not None]
            self._finite = all(_core.finite(self._dtype, a, threads) for a in arrays)
        return self._finite

    def bind(self, _Primitive primitive, problem):
        found = self._bound.get(primitive)
        if found is None:
            with _reordering:
                found = _Bound(primitive, self._reordered(primitive, problem), self._bias, problem)
                self._bound[primitive] = found
                if len(self._bound) > _BOUND:
                    del self._bound[next(iter(self._bound))]
        return found

    def _reordered(self, _Primitive primitive, problem):
        cdef _Weights found
        for found in self._weights:
            if found.fits(primitive):
                return found
        self._weights.append(_Weights(primitive, self._view, problem))
        return self._weights[-1]


_BOUND = 64  # primitives that a filter keeps ready


def _reorderable(view):
    """Whether oneDNN can describe the view: strides above 0, no element reached twice."""
    end = 1
    for stride, size in sorted(zip(view.strides, view.shape)):
        if size > 1:
            if stride < end:
                return False
            end = stride * size
    return all(s > 0 for s in view.strides)


cdef class _Call:
    """What an execution writes to, for one thread at a time: a stream, and the memory objects of the arguments."""
    cdef onednn_stream stream
    cdef onednn_exec_arg args[5]
    cdef int count
    cdef _Call after  # of the primitive's second part, if it has one

    cdef unsigned bind(self, int arg, onednn_const_desc desc, void *data) noexcept nogil:
        """Add an argument; its data may be set later, by `place`."""
        cdef onednn_memory memory = NULL
        cdef unsigned status = _api.dnnl_memory_create(&memory, desc, _engine, data)
        if not status:
            self.args[self.count].arg, self.args[self.count].memory = arg, memory
            self.count += 1
        return status

    cdef unsigned place(self, int n, void *data) noexcept nogil:
        return _api.dnnl_memory_set_data_handle(self.args[n].memory, data)

    cdef unsigned execute(self, onednn_primitive primitive) noexcept nogil:
        cdef unsigned status = 0
        if self.stream == NULL:
            status = _api.dnnl_stream_create(&self.stream, _engine, ONEDNN_dnnl_stream_in_order)
        status = status or _api.dnnl_primitive_execute(primitive, self.stream, self.count, self.args)
        return status or _api.dnnl_stream_wait(self.stream)

    def __dealloc__(self):
        cdef int n
        for n in range(self.count):
            _api.dnnl_memory_destroy(self.args[n].memory)
        if self.stream != NULL:
            _api.dnnl_stream_destroy(self.stream)


cdef class _Bound:
    """A primitive with its weights and bias, and the calls not in use."""
    cdef _Primitive primitive
    cdef _Weights weights
    cdef object bias
    cdef list calls

    def __init__(self, _Primitive primitive, weights, bias, problem):
        if bias is None and primitive.after != NULL:
            bias = np.zeros(problem.groups * problem.co, NUMPY_DTYPE[problem.dtype])
        self.primitive, self.weights, self.bias, self.calls = primitive, weights, bias, []

    cdef _Call call(self, problem):
        try:
            return self.calls.pop()
        except IndexError:
            pass
        cdef _Call made = _Call()
        cdef _Primitive p = self.primitive
        cdef unsigned status = made.bind(ONEDNN_DNNL_ARG_SRC, p.src, NULL)
        status = status or made.bind(ONEDNN_DNNL_ARG_DST, p.dst, NULL)
        status = status or made.bind(ONEDNN_DNNL_ARG_SCRATCHPAD, p.wants(ONEDNN_dnnl_query_scratchpad_md), NULL)
        status = status or made.bind(
            ONEDNN_DNNL_ARG_WEIGHTS, p.wants(ONEDNN_dnnl_query_weights_md), _aligned(self.weights.memory))
        if p.after != NULL:
            made.after = _Call()
            status = status or made.after.bind(ONEDNN_DNNL_ARG_SRC, p.dst, NULL)
            status = status or made.after.bind(ONEDNN_DNNL_ARG_DST, p.dst, NULL)
            status = status or made.after.bind(ONEDNN_DNNL_ARG_SRC_1, p.bias, cnp.PyArray_DATA(self.bias))
        elif self.bias is not None:
            status = status or made.bind(ONEDNN_DNNL_ARG_BIAS, p.bias, cnp.PyArray_DATA(self.bias))
        _raise(status, "making memory objects", problem)
        return made
