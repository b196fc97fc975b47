# Problems in oneDNN's words, and the primitives made of them.
# Included by _onednn.pyx.

def can(problem):
    """Whether there is a library, with words for the problem."""
    return available() and _reason(problem) is None


def _reason(problem):
    """Why oneDNN has no words for the problem; None if it has."""
    if problem.dtype not in _DTYPES:
        return f"it has no {problem.dtype} on CPUs"
    elif problem.rank > 3:
        return f"it has at most 3 spatial axes, not {problem.rank}"
    elif 0 in problem.in_sizes or problem.ci == 0:
        return "it computes nothing from an empty input"
    elif min(problem.begin) < 0:
        return f"its begin pads are at least 0, not {problem.begin}"
    elif any(e <= -s for e, s in zip(pads_end(problem), problem.strides)):
        return f"its end pads are greater than minus the strides {problem.strides}, not {pads_end(problem)}"
    elif max(problem.strides + problem.dilations + problem.kernel + problem.out_sizes) >= 2**31:
        return "a size, stride or dilation does not fit in 32 bits"
    return None


def pads_end(problem):
    """The pads that make oneDNN's size formula give the window; below 0 where that reaches past the full scatter."""
    axes = zip(problem.in_sizes, problem.kernel, problem.strides, problem.dilations, problem.begin, problem.out_sizes)
    return tuple(s * (n - 1) + d * (k - 1) + 1 - b - o for n, k, s, d, b, o in axes)


def _raise(unsigned status, str asked, problem):
    if status == ONEDNN_dnnl_success:
        return
    kind = MemoryError if status == ONEDNN_dnnl_out_of_memory else BackendUnavailableError
    raise kind(
        f"backend: oneDNN {library()['version']} says {_status(status)} to {asked} for {problem.descriptor()}; "
        f"wanted 'auto' or 'native'"
    )


cdef onednn_desc _desc(problem, shape, strides) except? NULL:
    """A descriptor of ``shape`` (axes in oneDNN's order), with strides in elements or, for None, what oneDNN likes best."""
    cdef onednn_dims c_shape
    cdef onednn_dims c_strides
    cdef int n, count = len(shape)
    cdef unsigned status, dtype = _DTYPES[problem.dtype]
    cdef onednn_desc desc = NULL
    for n in range(count):
        c_shape[n] = shape[n]
    if strides is None:
        status = _api.dnnl_memory_desc_create_with_tag(&desc, count, c_shape, dtype, ONEDNN_dnnl_format_tag_any)
    else:
        for n in range(count):
            c_strides[n] = strides[n]
        status = _api.dnnl_memory_desc_create_with_strides(&desc, count, c_shape, dtype, c_strides)
    _raise(status, f"describing memory of shape {tuple(shape)} and strides {strides}", problem)
    return desc


def _dense(shape, str layout):
    """Strides in elements of a contiguous array; axes named (N, C, *spatial) and lying in memory as ``layout`` says."""
    order = (0, *range(2, len(shape)), 1) if layout == "NXC" else range(len(shape))
    strides, step = [0] * len(shape), 1
    for ax in reversed(order):
        strides[ax], step = step, step * shape[ax]
    return tuple(strides)


def _layout(shape, strides, item):
    """"NXC" or "NCX" if memory with these strides (NXC axis order) is contiguous that way, else None."""
    shape, strides = ((a[0], a[-1], *a[1:-1]) for a in (shape, strides))
    for layout in ("NXC", "NCX"):
        if all(n == 1 or s == item * d for n, s, d in zip(shape, strides, _dense(shape, layout))):
            return layout
    return None


# ---------------------------------------------------------------- primitives

cdef class _Primitive:
    """A deconvolution made for one problem, layout of data and of output, and number of threads; weights are arguments.

    Not ``fused``, its bias and activation are a second primitive, ``after``, over the output in place.
    """
    cdef onednn_primitive_desc desc, after_desc
    cdef onednn_primitive primitive, after
    cdef onednn_desc src, dst, bias
    cdef readonly str info
    cdef readonly int threads
    cdef readonly size_t scratch

    def __init__(self, problem, str src_layout, str dst_layout, bint bias, int threads, bint fused=True):
        cdef onednn_dims strides
        cdef onednn_dims dilates
        cdef onednn_dims begin
        cdef onednn_dims end
        cdef int n
        self.threads = threads
        for n, (s, d, b, e) in enumerate(zip(problem.strides, problem.dilations, problem.begin, pads_end(problem))):
            strides[n], dilates[n], begin[n], end[n] = s, d - 1, b, e
        source = (problem.batch, problem.groups * problem.ci, *problem.in_sizes)
        target = (problem.batch, problem.groups * problem.co, *problem.out_sizes)
        self.src = _desc(problem, source, _dense(source, src_layout))
        self.dst = _desc(problem, target, _dense(target, dst_layout))
        if not fused:
            across = (1, target[1], *(1,) * problem.rank)
            self.bias = _desc(problem, across, _dense(across, "NCX"))
        elif bias:
            self.bias = _desc(problem, target[1:2], (1,))
        weights = (problem.groups,) * (problem.groups > 1) + (problem.co, problem.ci, *problem.kernel)
        cdef onednn_desc any_layout = _desc(problem, weights, None)
        name, a, b = problem.activation
        cdef unsigned kind = _ELTWISE.get(name, 0), status
        cdef float alpha = 1.0 if name == "swish" else a, beta = b
        cdef onednn_post_ops ops = NULL
        cdef onednn_attr attr = NULL, attr_after = NULL
        cdef const char *words = NULL
        cdef const char *words_after = NULL
        cdef int before
        with nogil:
            before = _use_threads(threads)
            status = _api.dnnl_primitive_attr_create(&attr)
            status = status or _api.dnnl_primitive_attr_set_scratchpad_mode(attr, ONEDNN_dnnl_scratchpad_mode_user)
            status = status or _api.dnnl_primitive_attr_create(&attr_after)
            if kind and not status:
                status = _api.dnnl_post_ops_create(&ops)
                status = status or _api.dnnl_post_ops_append_eltwise(ops, kind, alpha, beta)
                status = status or _api.dnnl_primitive_attr_set_post_ops(attr if fused else attr_after, ops)
            status = status or _api.dnnl_deconvolution_forward_primitive_desc_create(
                &self.desc, _engine, ONEDNN_dnnl_forward_inference, ONEDNN_dnnl_deconvolution_direct,
                self.src, any_layout, self.bias if fused else NULL, self.dst, strides, dilates, begin, end, attr)
            status = status or _api.dnnl_primitive_create(&self.primitive, self.desc)
            status = status or _api.dnnl_primitive_desc_query(self.desc, ONEDNN_dnnl_query_impl_info_str, 0, &words)
            if not fused:
                status = status or _api.dnnl_binary_primitive_desc_create(
                    &self.after_desc, _engine, ONEDNN_dnnl_binary_add, self.dst, self.bias, self.dst, attr_after)
                status = status or _api.dnnl_primitive_create(&self.after, self.after_desc)
                status = status or _api.dnnl_primitive_desc_query(
                    self.after_desc, ONEDNN_dnnl_query_impl_info_str, 0, &words_after)
            if not status:
                self.scratch = _api.dnnl_memory_desc_get_size(self.wants(ONEDNN_dnnl_query_scratchpad_md))
            _use_threads(before)
            _api.dnnl_memory_desc_destroy(any_layout)
            _api.dnnl_post_ops_destroy(ops)
            _api.dnnl_primitive_attr_destroy(attr)
            _api.dnnl_primitive_attr_destroy(attr_after)
        _raise(status, "creating a deconvolution", problem)
        self.info = words.decode() if fused else f"{words.decode()}+{words_after.decode()}"

    cdef onednn_const_desc wants(self, unsigned what) noexcept nogil:
        return _api.dnnl_primitive_desc_query_md(self.desc, what, 0)

    def __dealloc__(self):
        if _engine != NULL:
            _api.dnnl_primitive_destroy(self.primitive)
            _api.dnnl_primitive_destroy(self.after)
            _api.dnnl_primitive_desc_destroy(self.desc)
            _api.dnnl_primitive_desc_destroy(self.after_desc)
            _api.dnnl_memory_desc_destroy(self.src)
            _api.dnnl_memory_desc_destroy(self.dst)
            _api.dnnl_memory_desc_destroy(self.bias)


_primitives = collections.OrderedDict()  # the most recent last
_capacity = 256


def set_capacity(n):
    """Keep at most ``n`` primitives for later plans (plans keep their own). Raises ValueError below 0."""
    global _capacity
    _capacity = _check.integer("n", n, 0)
    with _lock:
        _trim()


def _trim():
    while len(_primitives) > _capacity:
        _primitives.popitem(last=False)


def _primitive(*key):
    with _lock:
        found = _primitives.get(key)
        if found is not None:
            _primitives.move_to_end(key)
            return found
    made = _make(*key)  # without the lock: it can take seconds
    with _lock:
        made = _primitives.setdefault(key, made)
        _trim()
    return made


def _make(problem, src_layout, dst_layout, bint bias, threads):
    made = _Primitive(problem, src_layout, dst_layout, bias, threads)
    plain = problem.activation[0] == "none"
    if (bias or not plain) and not _fuses_right(made, problem, src_layout, dst_layout):
        made = _Primitive(problem, src_layout, dst_layout, bias, threads, fused=False)
    return made


cdef bint _fuses_right(_Primitive made, problem, src_layout, dst_layout):
    """Whether a primitive applies its bias and its activation once.

    oneDNN 3.2's strided brgemm kernels may take the taps of the axes before the last one by one. With a stride, some of
    these have no input to meet, and after each such empty block the kernels apply all that is fused: bias argument, binary
    and eltwise post-ops alike. In bfloat16 and float16 that is harmless, as sums are kept apart from the output; in float32
    the next block adds to what was written. They divide so by a model of the caches, mostly where the depth is large, and do
    not say. So it is tried: one run on zeros with a bias of ones. (Neither bias nor activation changes how they divide.)
    """
    risky = any(s > 1 and k > 1 for s, k in zip(problem.strides[:-1], problem.kernel[:-1]))
    if problem.dtype != "float32" or "brgconv_strided" not in made.info or not risky:
        return True
    cdef _Primitive trial = _Primitive(
        replace(problem, activation=("none", 0.0, 0.0)), src_layout, dst_layout, True, made.threads)
    cdef _Call call = _Call()
    cdef onednn_const_desc weights = trial.wants(ONEDNN_dnnl_query_weights_md)
    cdef size_t size = max(_api.dnnl_memory_desc_get_size(trial.src), _api.dnnl_memory_desc_get_size(weights))
    zeros, scratch = np.zeros(size + 64, np.uint8), _take(trial.scratch)  # never written, the zeros take no memory
    ones, out = np.ones(problem.groups * problem.co, np.float32), np.empty(problem.out_shape, np.float32)
    cdef unsigned status = call.bind(ONEDNN_DNNL_ARG_SRC, trial.src, _aligned(zeros))
    status = status or call.bind(ONEDNN_DNNL_ARG_WEIGHTS, weights, _aligned(zeros))
    status = status or call.bind(ONEDNN_DNNL_ARG_BIAS, trial.bias, cnp.PyArray_DATA(ones))
    status = status or call.bind(ONEDNN_DNNL_ARG_DST, trial.dst, cnp.PyArray_DATA(out))
    status = status or call.bind(
        ONEDNN_DNNL_ARG_SCRATCHPAD, trial.wants(ONEDNN_dnnl_query_scratchpad_md), _aligned(scratch))
    cdef int before
    with nogil:
        before = _use_threads(trial.threads)
        status = status or call.execute(trial.primitive)
        _use_threads(before)
    _give(scratch)
    _raise(status, "trying a deconvolution", problem)
    return bool((out == 1).all())
