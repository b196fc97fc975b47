"""The custom-operator library that ONNX Runtime loads. It defines the operator ``convt.ConvTranspose``.

ONNX Runtime looks up ``RegisterCustomOps`` in this module's shared library. For each node of a session it creates a kernel,
which holds a `_node.Node`, and calls the kernel on the tensors of a run. The node gets NumPy arrays that share the tensors'
memory. ONNX Runtime allocates the output for the shape that the node returns. Tasks run on the session's threads. While ONNX
Runtime loads a model, it asks for the shapes of outputs (`infer`), so that it declares and checks them as without convt.

The GIL is held, except while convt computes. A node with constant weights computes shapes seen before (known.pyx) without
Python and the GIL. Exceptions do not propagate through ONNX Runtime: each becomes a status, whose message ONNX Runtime raises.
An exception of a signal handler is stored, and the session raises it unchanged.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t

import json
from threading import get_ident

import ml_dtypes
import numpy as np

from . import _host, _inputs, _node, _replaced

cimport numpy as cnp

from convt._run.addition cimport Slopes
from convt._core cimport ThreadPool, use_thread_pool
from convt.onnxruntime cimport known
from convt.onnxruntime.known cimport KNOWN_RANK, Entry, Known

cnp.import_array()

cdef enum:
    MAX_RANK = 64  # NumPy's


cdef extern from "onnxruntime_api.h" nogil:
    const unsigned ORT_VERSION
    const int ORT_UINT8, ORT_INT8, ORT_UINT16, ORT_INT16, ORT_INT32
    const int ORT_FAIL, ORT_FLOAT, ORT_FLOAT16, ORT_DOUBLE, ORT_BFLOAT16, ORT_REQUIRED, ORT_OPTIONAL, ORT_STRING_ATTRIBUTE
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
        unsigned version
        const char *(*GetName)(const OrtCustomOp *) noexcept nogil
        const char *(*GetExecutionProviderType)(const OrtCustomOp *) noexcept nogil
        int (*GetInputType)(const OrtCustomOp *, size_t) noexcept nogil
        size_t (*GetInputTypeCount)(const OrtCustomOp *) noexcept nogil
        int (*GetOutputType)(const OrtCustomOp *, size_t) noexcept nogil
        size_t (*GetOutputTypeCount)(const OrtCustomOp *) noexcept nogil
        int (*GetInputCharacteristic)(const OrtCustomOp *, size_t) noexcept nogil
        int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t) noexcept nogil
        int (*GetInputMemoryType)(const OrtCustomOp *, size_t) noexcept nogil
        void (*KernelDestroy)(void *) noexcept nogil
        OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const OrtEntry *, const OrtKernelInfo *, void **) noexcept nogil
        OrtStatus *(*KernelComputeV2)(void *, OrtKernelContext *) noexcept nogil
        OrtStatus *(*InferOutputShape)(const OrtCustomOp *, OrtShapeInferContext *) noexcept nogil
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
    static OrtStatus *convt_register(OrtSessionOptions *options, const OrtApiBase *base);
    __attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);
    OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base)
    {
        return convt_register(options, base);
    }
    """

# ONNX Runtime's element type -> NumPy type number of the same size, and the dtype to view the array as, or None.
_TYPES = {
    ORT_FLOAT: (cnp.NPY_FLOAT32, None),
    ORT_DOUBLE: (cnp.NPY_FLOAT64, None),
    ORT_FLOAT16: (cnp.NPY_FLOAT16, None),
    ORT_BFLOAT16: (cnp.NPY_UINT16, np.dtype(ml_dtypes.bfloat16)),
    # Types of quantized weights only:
    ORT_UINT8: (cnp.NPY_UINT8, None),
    ORT_INT8: (cnp.NPY_INT8, None),
    ORT_UINT16: (cnp.NPY_UINT16, None),
    ORT_INT16: (cnp.NPY_INT16, None),
    ORT_INT32: (cnp.NPY_INT32, None),
}

cdef size_t most_inputs = _inputs.COUNT
cdef OrtCalls ort
cdef OrtCustomOpDomain *domain = NULL
cdef OrtCustomOp ops[4]
for _n, _type in enumerate([*_TYPES][:4]):
    ops[_n].version = ORT_VERSION
    ops[_n].element_type = _type
    ops[_n].GetName = name_of
    ops[_n].GetExecutionProviderType = provider_of
    ops[_n].GetInputType = input_type_of
    ops[_n].GetInputTypeCount = inputs_of
    ops[_n].GetOutputType = output_type_of
    ops[_n].GetOutputTypeCount = outputs_of
    ops[_n].GetInputCharacteristic = need_of
    ops[_n].GetOutputCharacteristic = output_need_of
    ops[_n].GetInputMemoryType = memory_of
    ops[_n].CreateKernelV2 = create
    ops[_n].KernelComputeV2 = compute
    ops[_n].KernelDestroy = destroy
    ops[_n].InferOutputShape = infer


cdef const char *name_of(const OrtCustomOp *op) noexcept nogil:
    return "ConvTranspose"


cdef const char *provider_of(const OrtCustomOp *op) noexcept nogil:
    return NULL  # NULL means the CPU


cdef int input_type_of(const OrtCustomOp *op, size_t index) noexcept nogil:
    return op.element_type if index == 0 else 0  # others may be quantized; 0 permits all types


cdef int output_type_of(const OrtCustomOp *op, size_t index) noexcept nogil:
    return op.element_type


cdef size_t inputs_of(const OrtCustomOp *op) noexcept nogil:
    return most_inputs


cdef size_t outputs_of(const OrtCustomOp *op) noexcept nogil:
    return 1


cdef int need_of(const OrtCustomOp *op, size_t index) noexcept nogil:
    return ORT_REQUIRED if index < 2 else ORT_OPTIONAL


cdef int output_need_of(const OrtCustomOp *op, size_t index) noexcept nogil:
    return ORT_REQUIRED


cdef int memory_of(const OrtCustomOp *op, size_t index) noexcept nogil:
    return 0  # the provider's default memory, which is CPU memory


cdef OrtStatus *convt_register "convt_register"(OrtSessionOptions *options, const OrtApiBase *base) noexcept nogil:
    """Add the operators to the options of a session. They are created at the first call and never freed."""
    cdef OrtStatus *status = NULL
    global domain
    if domain == NULL:
        if not ort_calls(base, &ort):
            return NULL  # older than ORT_VERSION: without the operator, sessions keep ONNX Runtime's nodes
        status = ort.CreateCustomOpDomain("convt", &domain)
        for n in range(4):
            if status == NULL:
                status = ort.CustomOpDomain_Add(domain, &ops[n])
    return status if status != NULL else ort.AddCustomOpDomain(options, domain)


cdef OrtStatus *create(
    const OrtCustomOp *op, const OrtEntry *api, const OrtKernelInfo *info, void **kernel) noexcept with gil:
    try:
        made = _Kernel(new_node(info, op.element_type))
    except BaseException as error:
        return error_status(error)
    Py_INCREF(made)
    kernel[0] = <void *>made
    return NULL


cdef OrtStatus *infer(const OrtCustomOp *op, OrtShapeInferContext *context) noexcept with gil:
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


cdef void destroy(void *kernel) noexcept with gil:
    if kernel != NULL:
        Py_DECREF(<object>kernel)


cdef OrtStatus *compute(void *kernel, OrtKernelContext *context) noexcept nogil:
    cdef OrtStatus *status = NULL
    return status if run_known(kernel, context, &status) else compute_by_python(kernel, context)


cdef OrtStatus *compute_by_python(void *kernel, OrtKernelContext *context) noexcept with gil:
    try:
        run(<_Kernel>kernel, context)
    except BaseException as error:
        return error_status(error)
    return NULL


cdef bint run_known(void *kernel, OrtKernelContext *context, OrtStatus **status) noexcept nogil:
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
    cdef ThreadPool pool
    if is_error(ort.KernelContext_GetInput(context, 0, &value)) or not shape_of(value, &rank, sizes, KNOWN_RANK):
        return False
    entry = (<_Kernel>kernel).known.find(rank, sizes)
    if entry == NULL:
        return False
    done = not (
        is_error(ort.GetTensorMutableData(value, &data))
        or (entry.adds and not read_addend(context, (<_Kernel>kernel).added, entry, &add))
        or is_error(ort.KernelContext_GetOutput(context, 0, entry.out_sizes, rank, &result))
        or is_error(ort.GetTensorMutableData(result, &out))
    )
    if done:
        threads.context, threads.status = context, NULL
        pool.run, pool.context = run_on_session_threads, &threads
        use_thread_pool(&pool)
        done = known.compute(entry, <char *>data, <char *>out, <const char *>add)
        if done and (<_Kernel>kernel).has_slopes:
            apply_slopes((<_Kernel>kernel).slopes, entry, <char *>out)
        use_thread_pool(NULL)
        done = not is_error(threads.status) and done
    known.release(entry)
    return done


cdef void apply_slopes(Slopes slopes, const Entry *entry, char *out) noexcept nogil:
    """Apply the slopes of a PRelu to an entry's output."""
    cdef int64_t plane = 1
    cdef size_t ax
    for ax in range(2, entry.rank):
        plane *= entry.out_sizes[ax]
    slopes.compute(out, entry.out_sizes[0] * entry.out_sizes[1], plane, entry.run.threads)


cdef bint read_addend(OrtKernelContext *context, size_t added, const Entry *entry, void **add) noexcept nogil:
    """Read the address of the array that is added. Return False if its shape is not that of the entry's output."""
    cdef const OrtValue *value = NULL
    cdef size_t rank = 0, ax
    cdef int64_t sizes[KNOWN_RANK]
    if is_error(ort.KernelContext_GetInput(context, added, &value)) or not shape_of(value, &rank, sizes, KNOWN_RANK):
        return False
    if rank != entry.rank:
        return False
    for ax in range(rank):
        if sizes[ax] != entry.out_sizes[ax]:
            return False
    return not is_error(ort.GetTensorMutableData(value, add))


cdef bint is_error(OrtStatus *status) noexcept nogil:
    """Check whether a status is an error, and release it."""
    if status != NULL:
        ort.ReleaseStatus(status)
    return status != NULL


cdef bint shape_of(const OrtValue *value, size_t *rank, int64_t *sizes, size_t most) noexcept nogil:
    """Read the shape of a tensor. Return False if it has more than ``most`` axes or cannot be read."""
    cdef OrtShapeInfo *info = NULL
    cdef bint is_read
    if value == NULL or is_error(ort.GetTensorTypeAndShape(value, &info)):
        return False
    is_read = not is_error(ort.GetDimensionsCount(info, rank)) and rank[0] <= most
    is_read = is_read and not is_error(ort.GetDimensions(info, sizes, rank[0]))
    ort.ReleaseTensorTypeAndShapeInfo(info)
    return is_read


cdef OrtStatus *error_status(error) noexcept:
    """Return the status of an exception. Must not raise: without a status, ONNX Runtime would use an uncomputed output."""
    cdef bytes text = b"a node raised an exception, and a signal handler raised another while it was reported"
    cdef int code = ORT_FAIL
    try:
        code, text = _host.status(error)
    except BaseException as another:  # from another signal handler
        _host.foreign_exceptions[get_ident()] = another
    return ort.CreateStatus(code, text)


cdef int check(OrtStatus *status) except -1:
    """Raise `_host.StatusError` with the code and message of a status, and release the status."""
    if status != NULL:
        code, text = ort.GetErrorCode(status), (<bytes>ort.GetErrorMessage(status)).decode(errors="replace")
        ort.ReleaseStatus(status)
        raise _host.StatusError(code, text)
    return 0


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
        kernel.known.remember(node.operator, inputs[0], out, node.threads, adds)


cdef output(OrtKernelContext *context, shape):
    """Return the output tensor of a node as an array of this shape."""
    cdef OrtValue *result = NULL
    cdef int64_t sizes[MAX_RANK]
    for n, size in enumerate(shape):
        sizes[n] = size
    check(ort.KernelContext_GetOutput(context, 0, sizes, len(shape), &result))
    return tensor(result)


cdef compute_on_session_threads(node, OrtKernelContext *context, inputs, out):
    """Compute the output of a node on the session's threads."""
    cdef Threads threads
    cdef ThreadPool pool
    threads.context, threads.status = context, NULL
    pool.run, pool.context = run_on_session_threads, &threads
    use_thread_pool(&pool)
    try:
        node.compute(inputs, out)
    except BaseException:
        if threads.status != NULL:
            ort.ReleaseStatus(threads.status)
        raise
    finally:
        use_thread_pool(NULL)
    check(threads.status)


cdef struct Threads:
    # The threads of a session, for a run of a kernel.
    OrtKernelContext *context
    OrtStatus *status  # the first error, or NULL


cdef void run_on_session_threads(
        void *given, void (*work)(void *, size_t) noexcept nogil, size_t count, void *job) noexcept nogil:
    """Run tasks on the session's threads (``ThreadPool.run``), because their spinning would slow down a second pool."""
    cdef Threads *threads = <Threads *>given
    cdef OrtStatus *status = ort.KernelContext_ParallelFor(threads.context, work, count, count, job)
    if threads.status == NULL:
        threads.status = status
    elif status != NULL:
        ort.ReleaseStatus(status)


cdef tensor(const OrtValue *value):
    """Return a NumPy array that shares the memory of a tensor."""
    cdef OrtShapeInfo *info = NULL
    cdef size_t rank = 0
    cdef int64_t sizes[MAX_RANK]
    cdef cnp.npy_intp shape[MAX_RANK]
    cdef void *data = NULL
    cdef int element_type = 0
    check(ort.GetTensorTypeAndShape(value, &info))
    try:
        check(ort.GetTensorElementType(info, &element_type))
        check(ort.GetDimensionsCount(info, &rank))
        if rank > MAX_RANK:
            raise ValueError(f"a tensor: got rank {rank}, wanted {MAX_RANK} at most")
        check(ort.GetDimensions(info, sizes, rank))
    finally:
        ort.ReleaseTensorTypeAndShapeInfo(info)
    check(ort.GetTensorMutableData(value, &data))
    for n in range(rank):
        shape[n] = sizes[n]
    kind, dtype = _TYPES[element_type]
    array = cnp.PyArray_SimpleNewFromData(<int>rank, shape, kind, data)
    return array if dtype is None else array.view(dtype)
