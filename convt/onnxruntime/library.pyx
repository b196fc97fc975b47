"""The custom-operator library that ONNX Runtime loads. It defines the operator ``convt.ConvTranspose``.

ONNX Runtime looks up ``RegisterCustomOps`` in this module's shared library. For each node of a session it creates a kernel,
which holds a `_node.Node`, and calls the kernel on the tensors of a run. The node gets NumPy arrays that share the tensors'
memory. ONNX Runtime allocates the output for the shape that the node returns. Tasks run on the session's threads. While ONNX
Runtime loads a model, it asks for the shapes of outputs (`infer`), so that it declares and checks them as without convt.

The GIL is held, except while convt computes. A node with constant weights computes shapes seen before (`Known`) without Python
and the GIL. Exceptions do not propagate through ONNX Runtime: each becomes a status, whose message ONNX Runtime raises. An
exception of a signal handler is stored, and the session raises it unchanged.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t

import json
from threading import get_ident

from .._base import dtypes
from . import _host, _inputs, _node, _replaced

cimport numpy as cnp

from convt._core cimport ThreadPool, use_thread_pool
from convt._plan.known cimport KNOWN_RANK, Entry, Known, compute_entry, leave_entry
from convt._run.addition cimport Slopes

cnp.import_array()

cdef enum:
    MAX_RANK = 64   # NumPy's


# ---------------------------------------------------------------- ONNX Runtime's interface


cdef extern from "onnxruntime_api.h" nogil:
    const int ORT_FAIL, ORT_STRING_ATTRIBUTE
    ctypedef struct OrtStatus
    ctypedef struct OrtSessionOptions
    ctypedef struct OrtCustomOpDomain
    ctypedef struct OrtKernelInfo
    ctypedef struct OrtKernelContext
    ctypedef struct OrtValue
    ctypedef struct OrtShapeInfo
    ctypedef struct OrtShapeInferContext
    ctypedef struct OrtOpAttr
    ctypedef void (*OrtEntry)() noexcept
    ctypedef struct OrtApiBase
    ctypedef struct OrtCustomOp:
        int element_type
    ctypedef struct OrtCalls:
        OrtStatus *(*CreateStatus)(int, const char *) noexcept nogil
        OrtStatus *(*CreateCustomOpDomain)(const char *, OrtCustomOpDomain **) noexcept nogil
        OrtStatus *(*CustomOpDomain_Add)(OrtCustomOpDomain *, const OrtCustomOp *) noexcept nogil
        OrtStatus *(*AddCustomOpDomain)(OrtSessionOptions *, OrtCustomOpDomain *) noexcept nogil
        OrtStatus *(*GetTensorMutableData)(const OrtValue *, void **) noexcept nogil
        OrtStatus *(*CreateTensorTypeAndShapeInfo)(OrtShapeInfo **) noexcept nogil
        OrtStatus *(*SetTensorElementType)(OrtShapeInfo *, int) noexcept nogil
        OrtStatus *(*SetDimensions)(OrtShapeInfo *, const int64_t *, size_t) noexcept nogil
        OrtStatus *(*GetTensorElementType)(const OrtShapeInfo *, int *) noexcept nogil
        OrtStatus *(*GetDimensionsCount)(const OrtShapeInfo *, size_t *) noexcept nogil
        OrtStatus *(*GetDimensions)(const OrtShapeInfo *, int64_t *, size_t) noexcept nogil
        OrtStatus *(*GetSymbolicDimensions)(const OrtShapeInfo *, const char **, size_t) noexcept nogil
        OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtShapeInfo **) noexcept nogil
        OrtStatus *(*KernelInfoGetAttribute_string)(const OrtKernelInfo *, const char *, char *, size_t *) noexcept nogil
        OrtStatus *(*KernelContext_GetInputCount)(const OrtKernelContext *, size_t *) noexcept nogil
        OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *, size_t, const OrtValue **) noexcept nogil
        OrtStatus *(*KernelContext_GetOutput)(
            OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **) noexcept nogil
        OrtStatus *(*KernelInfo_GetInputCount)(const OrtKernelInfo *, size_t *) noexcept nogil
        OrtStatus *(*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo *, size_t, int *, const OrtValue **) noexcept nogil
        OrtStatus *(*ShapeInferContext_GetInputCount)(const OrtShapeInferContext *, size_t *) noexcept nogil
        OrtStatus *(*ShapeInferContext_GetInputTypeShape)(
            const OrtShapeInferContext *, size_t, OrtShapeInfo **) noexcept nogil
        OrtStatus *(*ShapeInferContext_GetAttribute)(
            const OrtShapeInferContext *, const char *, const OrtOpAttr **) noexcept nogil
        OrtStatus *(*ShapeInferContext_SetOutputTypeShape)(
            const OrtShapeInferContext *, size_t, const OrtShapeInfo *) noexcept nogil
        OrtStatus *(*SetSymbolicDimensions)(OrtShapeInfo *, const char **, size_t) noexcept nogil
        OrtStatus *(*ReadOpAttr)(const OrtOpAttr *, int, void *, size_t, size_t *) noexcept nogil
        OrtStatus *(*KernelContext_ParallelFor)(
            const OrtKernelContext *, void (*)(void *, size_t) noexcept nogil, size_t, size_t, void *) noexcept nogil
        void (*ReleaseStatus)(OrtStatus *) noexcept nogil
        void (*ReleaseTensorTypeAndShapeInfo)(OrtShapeInfo *) noexcept nogil
        int (*GetErrorCode)(const OrtStatus *) noexcept nogil
        const char *(*GetErrorMessage)(const OrtStatus *) noexcept nogil
    int ort_calls(const OrtApiBase *base, OrtCalls *calls)

# Only RegisterCustomOps is visible outside this shared library.
cdef extern from * nogil:
    """
    static OrtStatus *convt_register(OrtSessionOptions *, const OrtApiBase *);
    static OrtStatus *convt_create(const OrtCustomOp *, const OrtEntry *, const OrtKernelInfo *, void **);
    static OrtStatus *convt_infer(const OrtCustomOp *, OrtShapeInferContext *);
    static OrtStatus *convt_compute(void *, OrtKernelContext *);
    static void convt_destroy(void *);

    __attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);
    OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) { return convt_register(options, base); }

    static size_t convt_inputs;
    static const char *convt_name(const OrtCustomOp *op) { return "ConvTranspose"; }
    static const char *convt_provider(const OrtCustomOp *op) { return NULL; } /* the CPU */
    static int convt_input_type(const OrtCustomOp *op, size_t n) { return n ? 0 : op->element_type; } /* 0 permits all types */
    static size_t convt_input_count(const OrtCustomOp *op) { return convt_inputs; }
    static int convt_output_type(const OrtCustomOp *op, size_t n) { return op->element_type; }
    static size_t convt_output_count(const OrtCustomOp *op) { return 1; }
    static int convt_need(const OrtCustomOp *op, size_t n) { return n < 2 ? ORT_REQUIRED : ORT_OPTIONAL; }
    static int convt_memory(const OrtCustomOp *op, size_t n) { return 0; } /* the default of the provider */

    static OrtCustomOp convt_operator(int element_type)
    {
        return (OrtCustomOp){
            .version = ORT_VERSION, .element_type = element_type, .GetName = convt_name,
            .GetExecutionProviderType = convt_provider, .GetInputType = convt_input_type,
            .GetInputTypeCount = convt_input_count, .GetOutputType = convt_output_type,
            .GetOutputTypeCount = convt_output_count, .GetInputCharacteristic = convt_need,
            .GetOutputCharacteristic = convt_need, .GetInputMemoryType = convt_memory, .CreateKernelV2 = convt_create,
            .KernelComputeV2 = convt_compute, .KernelDestroy = convt_destroy, .InferOutputShape = convt_infer,
        };
    }
    """
    size_t convt_inputs
    OrtCustomOp convt_operator(int element_type) noexcept

_TYPE_NUMBERS = {each.onnx: each.dtype.num for each in dtypes.ALL}  # ONNX Runtime's element type -> NumPy's type number

cdef enum:
    OPERATORS = 4  # one for each dtype
cdef OrtCalls ort
cdef OrtCustomOpDomain *domain = NULL
cdef OrtCustomOp operators[OPERATORS]
convt_inputs = _inputs.COUNT
assert len(dtypes.COMPUTED) == OPERATORS
for _n, _row in enumerate(dtypes.COMPUTED):
    operators[_n] = convt_operator(_row.onnx)


cdef OrtStatus *register_operators "convt_register"(OrtSessionOptions *options, const OrtApiBase *base) noexcept nogil:
    """Add the operators to the options of a session. They are created at the first call and never freed."""
    cdef OrtStatus *status = NULL
    global domain
    if domain == NULL:
        if not ort_calls(base, &ort):
            return NULL  # older than ORT_VERSION: without the operator, sessions keep ONNX Runtime's nodes
        status = ort.CreateCustomOpDomain("convt", &domain)
        for n in range(OPERATORS):
            if status == NULL:
                status = ort.CustomOpDomain_Add(domain, &operators[n])
    return status if status != NULL else ort.AddCustomOpDomain(options, domain)


# ---------------------------------------------------------------- errors


cdef bint is_error(OrtStatus *status) noexcept nogil:
    """Check whether a status is an error, and release it."""
    if status != NULL:
        ort.ReleaseStatus(status)
    return status != NULL


cdef int check(OrtStatus *status) except -1:
    """Raise `_host.StatusError` with the code and message of a status, and release the status."""
    if status != NULL:
        code, text = ort.GetErrorCode(status), (<bytes>ort.GetErrorMessage(status)).decode(errors="replace")
        ort.ReleaseStatus(status)
        raise _host.StatusError(code, text)
    return 0


cdef OrtStatus *error_status(error) noexcept:
    """Return the status of an exception. Must not raise: without a status, ONNX Runtime would use an uncomputed output."""
    cdef bytes text = b"a node raised an exception, and a signal handler raised another while it was reported"
    cdef int code = ORT_FAIL
    try:
        code, text = _host.status(error)
    except BaseException as another:  # from another signal handler
        _host.foreign_exceptions[get_ident()] = another
    return ort.CreateStatus(code, text)


# ---------------------------------------------------------------- shapes, while a model is loaded


cdef OrtStatus *infer "convt_infer"(const OrtCustomOp *op, OrtShapeInferContext *context) noexcept with gil:
    """Tell ONNX Runtime the shape of a node's output, as far as it follows from the shapes of the inputs.

    ONNX Runtime ignores the status, so errors are stored (`_host.store_shape_error`).
    """
    arguments = None
    try:
        arguments = json.loads(inferred_attribute(context))
        element_type, shapes = inferred_inputs(context)
        set_inferred_shape(context, element_type, _replaced.output_dims(arguments, element_type, shapes))
    except BaseException as error:
        try:
            _host.store_shape_error(error, arguments)
        except BaseException as another:  # from another signal handler
            _host.foreign_exceptions[get_ident()] = another
    return NULL


cdef str inferred_attribute(OrtShapeInferContext *context):
    """Return the node's argument text while shapes are inferred. Versions differ in whether it ends with a zero."""
    cdef const OrtOpAttr *attribute = NULL
    cdef char first
    cdef size_t size = 0
    check(ort.ShapeInferContext_GetAttribute(context, "arguments", &attribute))
    is_error(ort.ReadOpAttr(attribute, ORT_STRING_ATTRIBUTE, &first, 1, &size))  # fails, because the text is longer
    text = bytearray(size + 1)
    check(ort.ReadOpAttr(attribute, ORT_STRING_ATTRIBUTE, <char *>text, size + 1, &size))
    return text.rstrip(b"\0").decode()


cdef inferred_inputs(OrtShapeInferContext *context):
    """Return the element type of a node's inputs, and for each a list of sizes, with a name or None for one that is open."""
    cdef size_t count = 0, rank = 0
    cdef int element_type = 0
    cdef OrtShapeInfo *info = NULL  # belongs to the context
    cdef int64_t sizes[MAX_RANK]
    cdef const char *names[MAX_RANK]
    check(ort.ShapeInferContext_GetInputCount(context, &count))
    shapes = []
    for n in range(count):
        check(ort.ShapeInferContext_GetInputTypeShape(context, n, &info))
        if n == 0:
            check(ort.GetTensorElementType(info, &element_type))
        check(ort.GetDimensionsCount(info, &rank))
        rank = min(rank, <size_t>MAX_RANK)
        check(ort.GetDimensions(info, sizes, rank))
        check(ort.GetSymbolicDimensions(info, names, rank))
        shapes.append([sizes[ax] if sizes[ax] >= 0 else (<bytes>names[ax]).decode() or None for ax in range(rank)])
    return element_type, shapes


cdef set_inferred_shape(OrtShapeInferContext *context, int element_type, dims):
    """Tell ONNX Runtime the shape of a node's output: integers and names, or None if nothing is known."""
    cdef OrtShapeInfo *info = NULL
    cdef int64_t sizes[MAX_RANK]
    cdef const char *names[MAX_RANK]
    if dims is None:
        return
    texts = [b"" if isinstance(size, int) else size.encode() for size in dims]
    for ax, size in enumerate(dims):
        sizes[ax], names[ax] = size if isinstance(size, int) else -1, <bytes>texts[ax]
    check(ort.CreateTensorTypeAndShapeInfo(&info))
    try:
        check(ort.SetTensorElementType(info, element_type))
        check(ort.SetDimensions(info, sizes, len(dims)))
        check(ort.SetSymbolicDimensions(info, names, len(dims)))
        check(ort.ShapeInferContext_SetOutputTypeShape(context, 0, info))
    finally:
        ort.ReleaseTensorTypeAndShapeInfo(info)


# ---------------------------------------------------------------- tensors


cdef bint read_shape(const OrtValue *value, int *element_type, size_t *rank, int64_t *sizes, size_t most) noexcept nogil:
    """Read the element type (unless NULL) and shape of a tensor. Return False if it has more than ``most`` axes or is none."""
    cdef OrtShapeInfo *info = NULL
    cdef bint is_read
    if value == NULL or is_error(ort.GetTensorTypeAndShape(value, &info)):
        return False
    is_read = element_type == NULL or not is_error(ort.GetTensorElementType(info, element_type))
    is_read = is_read and not is_error(ort.GetDimensionsCount(info, rank)) and rank[0] <= most
    is_read = is_read and not is_error(ort.GetDimensions(info, sizes, rank[0]))
    ort.ReleaseTensorTypeAndShapeInfo(info)
    return is_read


cdef tensor(const OrtValue *value):
    """Return a NumPy array that shares the memory of a tensor."""
    cdef size_t rank = 0, ax
    cdef int64_t sizes[MAX_RANK]
    cdef cnp.npy_intp shape[MAX_RANK]
    cdef void *data = NULL
    cdef int element_type = 0
    if not read_shape(value, &element_type, &rank, sizes, MAX_RANK):
        raise ValueError(f"a tensor: got rank {rank}, wanted {MAX_RANK} at most")
    check(ort.GetTensorMutableData(value, &data))
    for ax in range(rank):
        shape[ax] = sizes[ax]
    return cnp.PyArray_SimpleNewFromData(<int>rank, shape, _TYPE_NUMBERS[element_type], data)


cdef output(OrtKernelContext *context, shape):
    """Return the output tensor of a node as an array of this shape."""
    cdef OrtValue *result = NULL
    cdef int64_t sizes[MAX_RANK]
    for n, size in enumerate(shape):
        sizes[n] = size
    check(ort.KernelContext_GetOutput(context, 0, sizes, len(shape), &result))
    return tensor(result)


# ---------------------------------------------------------------- kernels


cdef class _Kernel:
    """A node and its entries of input shapes seen before."""
    cdef object node
    cdef Known known
    cdef Slopes slopes  # the slopes of a PRelu that is fused with the node, or None
    cdef bint has_slopes
    cdef size_t added  # index of the input that is added to the output, 0 if there is none

    def __init__(self, node):
        self.node, self.known, self.added = node, Known(), node.added
        self.slopes = None if node.packed is None else node.packed.slopes
        self.has_slopes = self.slopes is not None


cdef OrtStatus *create "convt_create"(
        const OrtCustomOp *op, const OrtEntry *api, const OrtKernelInfo *info, void **kernel) noexcept with gil:
    try:
        made = _Kernel(new_node(info, op.element_type))
    except BaseException as error:
        return error_status(error)
    Py_INCREF(made)
    kernel[0] = <void *>made
    return NULL


cdef void destroy "convt_destroy"(void *kernel) noexcept with gil:
    if kernel != NULL:
        Py_DECREF(<object>kernel)


cdef new_node(const OrtKernelInfo *info, int element_type):
    cdef size_t size = 0, count = 0
    cdef int constant = 0
    cdef const OrtValue *value = NULL
    check(ort.KernelInfoGetAttribute_string(info, "arguments", NULL, &size))
    text = bytearray(size)
    check(ort.KernelInfoGetAttribute_string(info, "arguments", text, &size))
    check(ort.KernelInfo_GetInputCount(info, &count))
    constants = []
    for n in range(count):
        check(ort.KernelInfoGetConstantInput_tensor(info, n, &constant, &value))
        constants.append(tensor(value) if constant and value != NULL else None)
    return _node.Node(text[:size - 1].decode(), element_type, constants)


cdef OrtStatus *compute "convt_compute"(void *kernel, OrtKernelContext *context) noexcept nogil:
    return NULL if run_known(kernel, context) else compute_by_python(kernel, context)


cdef OrtStatus *compute_by_python(void *kernel, OrtKernelContext *context) noexcept with gil:
    try:
        run(<_Kernel>kernel, context)
    except BaseException as error:
        return error_status(error)
    return NULL


cdef run(_Kernel kernel, OrtKernelContext *context):
    cdef size_t count = 0
    cdef const OrtValue *value = NULL
    node = kernel.node
    check(ort.KernelContext_GetInputCount(context, &count))
    given = []
    for n in range(count):
        check(ort.KernelContext_GetInput(context, n, &value))
        given.append(tensor(value))
    inputs = _inputs.placed(node.names, given)
    try:
        out = output(context, node.output_shape(inputs))
        compute_on_session_threads(node, context, inputs, out)
    except _host.StatusError:
        raise
    except Exception as error:
        found = node.compute_with_onnxruntime(error, inputs)
        output(context, found.shape)[...] = found
        return
    adds = kernel.added > 0
    if node.operator is not None and (not adds or given[kernel.added].shape == out.shape == node.shape_before_sum(inputs)):
        kernel.known.remember(node.operator, inputs[0], out, node.threads, adds, 0)


# ---------------------------------------------------------------- the session's threads


cdef struct Threads:
    # The threads of a session, for a run of a kernel.
    ThreadPool pool
    OrtKernelContext *context
    OrtStatus *status  # the first error, or NULL


cdef void use_session_threads(Threads *threads, OrtKernelContext *context) noexcept nogil:
    """Let this thread's calls of convt compute on the session's threads, until `use_thread_pool` gets NULL."""
    threads.context, threads.status = context, NULL
    threads.pool.run, threads.pool.context = run_on_session_threads, threads
    use_thread_pool(&threads.pool)


cdef void run_on_session_threads(
        void *given, void (*work)(void *, size_t) noexcept nogil, size_t count, void *job) noexcept nogil:
    """Run tasks on the session's threads (``ThreadPool.run``), because their spinning would slow down a second pool."""
    cdef Threads *threads = <Threads *>given
    cdef OrtStatus *status = ort.KernelContext_ParallelFor(threads.context, work, count, count, job)
    if threads.status == NULL:
        threads.status = status
    else:
        is_error(status)


cdef compute_on_session_threads(node, OrtKernelContext *context, inputs, out):
    """Compute the output of a node on the session's threads."""
    cdef Threads threads
    use_session_threads(&threads, context)
    try:
        node.compute(inputs, out)
    except BaseException:
        is_error(threads.status)
        raise
    finally:
        use_thread_pool(NULL)
    check(threads.status)


# ---------------------------------------------------------------- input shapes seen before


cdef bint run_known(void *kernel, OrtKernelContext *context) noexcept nogil:
    """Compute an input shape seen before. Return False for a new shape or an error; Python then computes and reports it."""
    cdef const OrtValue *value = NULL
    cdef OrtValue *result = NULL
    cdef void *data = NULL
    cdef void *out = NULL
    cdef void *add = NULL
    cdef size_t rank = 0
    cdef int64_t sizes[KNOWN_RANK]
    cdef bint done
    cdef Entry *entry
    cdef Threads threads
    if is_error(ort.KernelContext_GetInput(context, 0, &value)) or not read_shape(value, NULL, &rank, sizes, KNOWN_RANK):
        return False
    entry = (<_Kernel>kernel).known.find(rank, sizes, 0)
    if entry == NULL:
        return False
    done = not (
        is_error(ort.GetTensorMutableData(value, &data))
        or (entry.adds and not read_addend(context, (<_Kernel>kernel).added, entry, &add))
        or is_error(ort.KernelContext_GetOutput(context, 0, entry.out_sizes, rank, &result))
        or is_error(ort.GetTensorMutableData(result, &out))
    )
    if done:
        use_session_threads(&threads, context)
        done = compute_entry(entry, <char *>data, <char *>out, <const char *>add)
        if done and (<_Kernel>kernel).has_slopes:
            apply_slopes((<_Kernel>kernel).slopes, entry, <char *>out)
        use_thread_pool(NULL)
        done = not is_error(threads.status) and done
    leave_entry(entry)
    return done


cdef bint read_addend(OrtKernelContext *context, size_t added, const Entry *entry, void **add) noexcept nogil:
    """Read the address of the array that is added. Return False if its shape is not that of the entry's output."""
    cdef const OrtValue *value = NULL
    cdef size_t rank = 0, ax
    cdef int64_t sizes[KNOWN_RANK]
    if is_error(ort.KernelContext_GetInput(context, added, &value)) or not read_shape(value, NULL, &rank, sizes, KNOWN_RANK):
        return False
    if rank != entry.rank:
        return False
    for ax in range(rank):
        if sizes[ax] != entry.out_sizes[ax]:
            return False
    return not is_error(ort.GetTensorMutableData(value, add))


cdef void apply_slopes(Slopes slopes, const Entry *entry, char *out) noexcept nogil:
    """Apply the slopes of a PRelu to an entry's output."""
    cdef int64_t plane = 1
    cdef size_t ax
    for ax in range(2, entry.rank):
        plane *= entry.out_sizes[ax]
    slopes.compute(out, entry.out_sizes[0] * entry.out_sizes[1], plane, entry.run.threads)
