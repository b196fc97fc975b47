"""The library that ONNX Runtime loads: the execution provider ``ConvtExecutionProvider``.

ONNX Runtime looks up ``CreateEpFactories`` in this module's shared library. For each session it creates a provider, which holds
a `_provider.Provider`, and shows it each graph of the model. The provider claims the ConvTranspose nodes that convt computes:
a node that stands alone gets a registered kernel, and a node with others that are fused with it becomes one compiled node. Both
hold a `_node.Node` and call it on the tensors of a run: NumPy arrays that share the tensors' memory. ONNX Runtime allocates the
output for the shape that the node returns. Tasks run on the session's threads.

The GIL is held, except while convt computes. A node with constant weights computes shapes seen before (`Known`) without Python
and the GIL. Exceptions do not propagate through ONNX Runtime: each becomes a status, whose message ONNX Runtime raises.
The factory and the kernel registry are never freed, because ONNX Runtime reads them until the process ends.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport strcmp

import re
from threading import get_ident

from .._base import dtypes
from .._version import __version__
from . import _fuse, _host, _provider

cimport numpy as cnp

from convt._core cimport ThreadPool, use_thread_pool
from convt._plan.known cimport KNOWN_RANK, Entry, Known, compute_entry, leave_entry
from convt._run.addition cimport Slopes
from convt.onnxruntime.host cimport *

cnp.import_array()

cdef enum:
    MAX_RANK = 64  # NumPy's
    MOST = 64  # inputs, outputs and attributes of a node, and nodes that are fused
    TEXT_BYTES = 4096  # the most bytes of an option


# ---------------------------------------------------------------- what ONNX Runtime calls


# Only the two functions of the factory are visible outside this shared library.
cdef extern from * nogil:
    """
    #define CONVT_PROVIDER "ConvtExecutionProvider"
    #define CONVT_OPTION "ep.convtexecutionprovider." /* the prefix of its options in those of a session */

    /* A provider, a kernel or a group of fused nodes, with the Python object behind it. */
    typedef struct {
        union { OrtEp provider; OrtKernelImpl kernel; OrtComputeInfo group; };
        PyObject *held;
    } convt_holder;

    static OrtStatus *convt_factories(const OrtApiBase *, OrtEpFactory **, size_t, size_t *);
    static OrtStatus *convt_devices(
        OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t, size_t *);
    static OrtStatus *convt_create(const OrtSessionOptions *, OrtEp **);
    static OrtStatus *convt_capability(OrtEp *, const OrtGraph *, OrtSupportInfo *);
    static OrtStatus *convt_compile(
        OrtEp *, const OrtGraph **, const OrtNode **, size_t, OrtComputeInfo **, OrtNode **);
    static OrtStatus *convt_registry(OrtEp *, const OrtKernelRegistry **);
    static OrtStatus *convt_compute(void *, OrtKernelContext *);
    static void convt_release(void *);

    __attribute__((visibility("default"))) OrtStatus *CreateEpFactories(
        const char *, const OrtApiBase *, const OrtLogger *, OrtEpFactory **, size_t, size_t *);
    OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
                                 size_t most, size_t *count) { return convt_factories(base, factories, most, count); }
    __attribute__((visibility("default"))) OrtStatus *ReleaseEpFactory(OrtEpFactory *);
    OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) { return NULL; }

    static const char *convt_version;
    static const char *convt_factory_name(const OrtEpFactory *factory) { return CONVT_PROVIDER; }
    static const char *convt_vendor(const OrtEpFactory *factory) { return "convt"; }
    static uint32_t convt_vendor_id(const OrtEpFactory *factory) { return 0; }
    static const char *convt_factory_version(const OrtEpFactory *factory) { return convt_version; }
    static bool convt_has_streams(const OrtEpFactory *factory) { return false; }
    static OrtStatus *convt_transfer(OrtEpFactory *factory, void **transfer) { *transfer = NULL; return NULL; }
    static const char *convt_name(const OrtEp *provider) { return CONVT_PROVIDER; }
    static OrtStatus *convt_create_provider(
        OrtEpFactory *factory, const OrtHardwareDevice *const *devices, const OrtKeyValuePairs *const *metadata, size_t count,
        const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **made) { return convt_create(options, made); }
    static void convt_release_provider(OrtEpFactory *factory, OrtEp *provider) { convt_release(provider); }
    static void convt_release_kernel(OrtKernelImpl *kernel) { convt_release(kernel); }
    static void convt_release_groups(OrtEp *provider, OrtComputeInfo **groups, size_t count)
    {
        while (count--)
            convt_release(groups[count]);
    }
    static OrtStatus *convt_compute_kernel(OrtKernelImpl *kernel, OrtKernelContext *context)
    {
        return convt_compute(((convt_holder *)kernel)->held, context);
    }
    static OrtStatus *convt_create_state(OrtComputeInfo *group, OrtComputeContext *context, void **state)
    {
        *state = ((convt_holder *)group)->held;
        return NULL;
    }
    static OrtStatus *convt_compute_group(OrtComputeInfo *group, void *state, OrtKernelContext *context)
    {
        return convt_compute(state, context);
    }
    static void convt_release_state(OrtComputeInfo *group, void *state) { }

    static OrtEpFactory convt_factory_functions = {
        .version = ORT_VERSION, .GetName = convt_factory_name, .GetVendor = convt_vendor, .GetSupportedDevices = convt_devices,
        .CreateEp = convt_create_provider, .ReleaseEp = convt_release_provider, .GetVendorId = convt_vendor_id,
        .GetVersion = convt_factory_version, .CreateDataTransfer = convt_transfer, .IsStreamAware = convt_has_streams,
    };
    static OrtEpFactory *const convt_factory = &convt_factory_functions;
    static const convt_holder convt_provider = {.provider = {
        .version = ORT_VERSION, .GetName = convt_name, .GetCapability = convt_capability, .Compile = convt_compile,
        .ReleaseNodeComputeInfos = convt_release_groups, .GetKernelRegistry = convt_registry,
    }};
    static const convt_holder convt_kernel = {.kernel = {
        .version = ORT_VERSION, .Compute = convt_compute_kernel, .Release = convt_release_kernel,
    }};
    static const convt_holder convt_group = {.group = {
        .version = ORT_VERSION, .CreateState = convt_create_state, .Compute = convt_compute_group,
        .ReleaseState = convt_release_state,
    }};
    """
    const char *CONVT_PROVIDER
    const char *CONVT_OPTION
    ctypedef struct convt_holder:
        PyObject *held
    const char *convt_version
    OrtEpFactory *convt_factory
    const convt_holder convt_provider, convt_kernel, convt_group

assert _provider.NAME == CONVT_PROVIDER.decode()
_TYPE_NUMBERS = {each.onnx: each.dtype.num for each in dtypes.ALL}  # ONNX Runtime's element type -> NumPy's type number
# ONNX Runtime wants three numbers.
cdef bytes version = re.match(r"\d+\.\d+\.\d+", __version__).group().encode()
convt_version = <const char *>version

cdef const OrtApi *api = NULL
cdef const OrtEpApi *ep_api = NULL
cdef OrtKernelRegistry *registry = NULL
cdef bint is_imported = True  # the module's initialization ran; a library that is only opened lacks it


cdef void *holder(const convt_holder *kind, held) except NULL:
    """Return a copy of one of the structures above that holds a Python object, until `release` gets it."""
    cdef convt_holder *made = <convt_holder *>malloc(sizeof(convt_holder))
    if made == NULL:
        raise MemoryError
    made[0] = kind[0]
    Py_INCREF(held)
    made.held = <PyObject *>held
    return made


cdef void release "convt_release"(void *made) noexcept with gil:
    if made != NULL:
        Py_DECREF(<object>(<convt_holder *>made).held)
        free(made)


cdef OrtStatus *make_factories "convt_factories"(
        const OrtApiBase *base, OrtEpFactory **factories, size_t most, size_t *count) noexcept nogil:
    """Hand out the factory, at the first call with the kernel registry."""
    global api, ep_api
    cdef OrtStatus *status = NULL
    count[0] = 0
    api = base.GetApi(ORT_VERSION)
    if api == NULL:
        return base.GetApi(1).CreateStatus(ORT_FAIL, b"convt's execution provider needs ONNX Runtime 1.25 or newer")
    if not is_imported:
        return api.CreateStatus(ORT_FAIL, b"import convt.onnxruntime before its library is registered")
    ep_api = api.GetEpApi()
    status = make_registry()
    if status == NULL and most > 0:
        factories[0], count[0] = convt_factory, 1
    return status


cdef OrtStatus *make_registry() noexcept with gil:
    """Make the registry of convt's kernels: ConvTranspose of each version, in the dtypes that convt computes."""
    cdef const OrtDataType *types[8]
    cdef OrtKernelDefBuilder *builder = NULL
    cdef OrtKernelDef *definition = NULL
    if registry != NULL:
        return NULL
    try:
        for n, row in enumerate(dtypes.COMPUTED):
            check(ep_api.GetTensorDataType(row.onnx, &types[n]))
        check(ep_api.CreateKernelRegistry(&registry))
        for first, last in _fuse.VERSIONS:
            check(ep_api.CreateKernelDefBuilder(&builder))
            check(ep_api.KernelDefBuilder_SetOperatorType(builder, b"ConvTranspose"))
            check(ep_api.KernelDefBuilder_SetDomain(builder, b""))
            check(ep_api.KernelDefBuilder_SetSinceVersion(builder, first, last))
            check(ep_api.KernelDefBuilder_SetExecutionProvider(builder, CONVT_PROVIDER))
            check(ep_api.KernelDefBuilder_AddTypeConstraint(builder, b"T", types, len(dtypes.COMPUTED)))
            check(ep_api.KernelDefBuilder_Build(builder, &definition))
            check(ep_api.KernelRegistry_AddKernel(registry, definition, create_kernel, NULL))
            ep_api.ReleaseKernelDef(definition)
            ep_api.ReleaseKernelDefBuilder(builder)
    except BaseException as error:
        return error_status(error)
    return NULL


cdef OrtStatus *get_registry "convt_registry"(OrtEp *provider, const OrtKernelRegistry **found) noexcept nogil:
    found[0] = registry
    return NULL


cdef OrtStatus *list_devices "convt_devices"(
        OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **made, size_t most,
        size_t *number) noexcept nogil:
    """List the CPU as the device that convt computes on."""
    cdef size_t n
    number[0] = 0
    for n in range(count):
        if most > 0 and api.HardwareDevice_Type(devices[n]) == ORT_DEVICE_CPU:
            number[0] = 1
            return ep_api.CreateEpDevice(factory, devices[n], NULL, NULL, made)
    return NULL


# ---------------------------------------------------------------- errors


cdef bint is_error(OrtStatus *status) noexcept nogil:
    """Check whether a status is an error, and release it."""
    if status != NULL:
        api.ReleaseStatus(status)
    return status != NULL


cdef int check(OrtStatus *status) except -1:
    """Raise `_host.StatusError` with the code and message of a status, and release the status."""
    if status != NULL:
        code, text = api.GetErrorCode(status), (<bytes>api.GetErrorMessage(status)).decode(errors="replace")
        api.ReleaseStatus(status)
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
    return api.CreateStatus(code, <const char *>text)


# ---------------------------------------------------------------- providers and kernels


cdef held_by(const void *address):
    """Return the Python object that a structure of `holder` holds."""
    return <object>(<const convt_holder *>address).held


cdef OrtStatus *create_provider "convt_create"(const OrtSessionOptions *options, OrtEp **made) noexcept with gil:
    try:
        values = {name: option(options, CONVT_OPTION + name.encode()) for name in _provider.OPTIONS}
        values["context"] = option(options, b"ep.context_enable")
        made[0] = <OrtEp *>holder(&convt_provider, _provider.Provider(values))
    except BaseException as error:
        return error_status(error)
    return NULL


cdef option(const OrtSessionOptions *options, bytes name):
    """Return a value of a session's options, or "" if it is not set."""
    cdef char text[TEXT_BYTES]
    cdef size_t size = TEXT_BYTES
    return "" if is_error(api.GetSessionConfigEntry(options, <const char *>name, text, &size)) else text.decode()


cdef OrtStatus *claim "convt_capability"(OrtEp *provider, const OrtGraph *graph, OrtSupportInfo *support) noexcept with gil:
    """Claim the nodes of a graph that convt computes."""
    cdef const OrtNode *addresses[MOST]
    cdef GraphNode node
    try:
        transposed = transposed_nodes(graph)
        if not transposed:
            return NULL
        for members, is_fused in held_by(provider).claim(transposed, opset_of(graph)):
            for n, node in enumerate(members):
                addresses[n] = node.address
            if is_fused:
                check(ep_api.EpGraphSupportInfo_AddNodesToFuse(support, addresses, len(members), NULL))
            else:
                check(ep_api.EpGraphSupportInfo_AddSingleNode(support, addresses[0]))
    except BaseException as error:
        return error_status(error)
    return NULL


cdef OrtStatus *compile_groups "convt_compile"(
        OrtEp *provider, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtComputeInfo **made,
        OrtNode **contexts) noexcept with gil:
    """Make a kernel for each group of nodes that ONNX Runtime fused into one."""
    cdef size_t n
    try:
        for n in range(count):
            made[n] = <OrtComputeInfo *>holder(&convt_group, _Kernel(held_by(provider).fused(node_of(fused[n]))))
    except BaseException as error:
        return error_status(error)
    return NULL


cdef OrtStatus *create_kernel(void *state, const OrtKernelInfo *info, OrtKernelImpl **made) noexcept with gil:
    """Make the kernel of a node that stands alone."""
    cdef const OrtEp *provider = NULL
    cdef char *text
    cdef size_t size = 0
    try:
        check(ep_api.KernelInfo_GetEp(info, &provider))
        check(api.KernelInfo_GetOutputName(info, 0, NULL, &size))
        output = bytearray(size)
        text = output
        check(api.KernelInfo_GetOutputName(info, 0, text, &size))
        made[0] = <OrtKernelImpl *>holder(&convt_kernel, _Kernel(held_by(provider).alone(output[:-1].decode())))
    except BaseException as error:
        return error_status(error)
    return NULL


# ---------------------------------------------------------------- graphs


cdef transposed_nodes(const OrtGraph *graph):
    """Return the ConvTranspose nodes of a graph."""
    cdef size_t count = 0, n
    cdef const OrtNode **nodes
    cdef const char *text
    check(api.Graph_GetNumNodes(graph, &count))
    nodes = <const OrtNode **>calloc(count + 1, sizeof(void *))
    try:
        check(api.Graph_GetNodes(graph, nodes, count))
        found = []
        for n in range(count):
            check(api.Node_GetOperatorType(nodes[n], &text))
            if strcmp(text, b"ConvTranspose") == 0:
                found.append(node_of(nodes[n]))
        return found
    finally:
        free(nodes)


cdef opset_of(const OrtGraph *graph):
    """Return the version of ONNX's operators that a graph uses."""
    cdef const char *domains[256]
    cdef int64_t versions[256]
    cdef size_t count = 0, n
    check(api.Graph_GetNumOperatorSets(graph, &count))
    count = min(count, <size_t>256)
    check(api.Graph_GetOperatorSets(graph, domains, versions, count))
    return max(versions[n] for n in range(count) if domains[n][0] == 0)


cdef class GraphNode:
    """A node of a graph, valid while ONNX Runtime shows the graph."""
    cdef const OrtNode *address
    cdef readonly size_t id
    cdef readonly str name, op_type, domain
    cdef readonly str provider  # the name of the provider that computes the node, "" if none is chosen
    cdef readonly int version  # the first version of ONNX's operators in which the node's operator is the present one
    cdef readonly list inputs, outputs  # of `GraphValue`, None for inputs that are not given
    cdef readonly dict attributes  # integers, floats, strings and lists of integers; None for attributes of other types


cdef node_of(const OrtNode *address):
    """Read a node."""
    cdef GraphNode node = GraphNode.__new__(GraphNode)
    cdef const OrtValueInfo *values[MOST]
    cdef const OrtOpAttr *attributes[MOST]
    cdef const char *text = NULL
    cdef size_t count = 0, n
    node.address = address
    check(api.Node_GetId(address, &node.id))
    check(api.Node_GetSinceVersion(address, &node.version))
    node.name = text_of(api.Node_GetName(address, &text), &text)
    node.op_type = text_of(api.Node_GetOperatorType(address, &text), &text)
    node.domain = text_of(api.Node_GetDomain(address, &text), &text)
    node.provider = text_of(api.Node_GetEpName(address, &text), &text)
    check(api.Node_GetNumInputs(address, &count))
    check(api.Node_GetInputs(address, values, min(count, <size_t>MOST)))
    node.inputs = [value_of(values[n]) for n in range(min(count, <size_t>MOST))]
    check(api.Node_GetNumOutputs(address, &count))
    check(api.Node_GetOutputs(address, values, min(count, <size_t>MOST)))
    node.outputs = [value_of(values[n]) for n in range(min(count, <size_t>MOST))]
    check(api.Node_GetNumAttributes(address, &count))
    check(api.Node_GetAttributes(address, attributes, min(count, <size_t>MOST)))
    node.attributes = {}
    for n in range(min(count, <size_t>MOST)):
        name = text_of(api.OpAttr_GetName(attributes[n], &text), &text)
        node.attributes[name] = attribute_of(attributes[n])
    return node


cdef text_of(OrtStatus *status, const char **text):
    """Return the text that a call with this status has found, "" if it is NULL."""
    check(status)
    return "" if text[0] == NULL else (<bytes>text[0]).decode()


cdef attribute_of(const OrtOpAttr *attribute):
    cdef int kind = 0
    cdef int64_t numbers[MAX_RANK]
    cdef float real
    cdef char text[256]
    cdef size_t size = 0, n
    check(api.OpAttr_GetType(attribute, &kind))
    if kind == ORT_ATTRIBUTE_FLOAT:
        check(api.ReadOpAttr(attribute, kind, &real, sizeof(real), &size))
        return real
    if kind == ORT_ATTRIBUTE_STRING and not is_error(api.ReadOpAttr(attribute, kind, text, sizeof(text), &size)):
        return text[:size].rstrip(b"\0").decode(errors="replace")
    if kind not in (ORT_ATTRIBUTE_INT, ORT_ATTRIBUTE_INTS):
        return None
    if is_error(api.ReadOpAttr(attribute, kind, numbers, sizeof(numbers), &size)):
        return None
    return numbers[0] if kind == ORT_ATTRIBUTE_INT else [numbers[n] for n in range(size // sizeof(int64_t))]


cdef class GraphValue:
    """A value of a graph, valid while ONNX Runtime shows the graph."""
    cdef const OrtValueInfo *address
    cdef readonly str name
    cdef readonly tuple type  # (element type, shape), with -1 for open sizes
    cdef readonly bint is_constant, is_optional  # an initializer that no run can change, that a run may change
    cdef readonly bint is_output
    cdef size_t readers

    @property
    def is_read(self):
        """Whether the value is an output of the graph, or a node reads it."""
        return self.is_output or self.readers > 0

    @property
    def producer(self):
        cdef const OrtNode *node = NULL
        cdef size_t output = 0
        return None if is_error(api.ValueInfo_GetValueProducer(self.address, &node, &output)) or node == NULL else node_of(node)

    @property
    def reader(self):
        """The node that reads the value, or None if there are none or several."""
        cdef const OrtNode *node = NULL
        cdef int64_t place = 0
        if self.readers != 1:
            return None
        check(api.ValueInfo_GetValueConsumers(self.address, &node, &place, 1))
        return node_of(node) if place >= 0 else None  # -1: a graph inside the node reads it


cdef value_of(const OrtValueInfo *address):
    """Read a value; NULL gives None."""
    cdef GraphValue value
    cdef const char *text = NULL
    cdef unsigned char flags[3]
    if address == NULL:
        return None
    value = GraphValue.__new__(GraphValue)
    value.address = address
    value.name = text_of(api.GetValueInfoName(address, &text), &text)
    value.type = type_of(address)
    value.is_constant = not is_error(api.ValueInfo_IsConstantInitializer(address, &flags[0])) and flags[0]
    value.is_optional = not is_error(api.ValueInfo_IsOptionalGraphInput(address, &flags[1])) and flags[1]
    value.is_output = not is_error(api.ValueInfo_IsGraphOutput(address, &flags[2])) and flags[2]
    if is_error(api.ValueInfo_GetValueNumConsumers(address, &value.readers)):
        value.readers = 0
    return value


cdef tuple type_of(const OrtValueInfo *address):
    cdef const OrtTypeInfo *kind = NULL
    cdef const OrtShapeInfo *info = NULL
    cdef int element = 0
    cdef size_t rank = 0, ax
    cdef int64_t sizes[MAX_RANK]
    if is_error(api.GetValueInfoTypeInfo(address, &kind)) or is_error(api.CastTypeInfoToTensorInfo(kind, &info)):
        return 0, ()
    if info == NULL or is_error(api.GetTensorElementType(info, &element)):
        return 0, ()
    check(api.GetDimensionsCount(info, &rank))
    rank = min(rank, <size_t>MAX_RANK)
    check(api.GetDimensions(info, sizes, rank))
    return element, tuple([sizes[ax] for ax in range(rank)])


# ---------------------------------------------------------------- runs


cdef tensor(const OrtValue *value):
    """Return a NumPy array that shares the memory of a tensor, or None for an input that is not given."""
    cdef size_t rank = 0, ax
    cdef const int64_t *sizes = NULL
    cdef cnp.npy_intp shape[MAX_RANK]
    cdef void *data = NULL
    cdef int element_type = 0
    if value == NULL:
        return None
    check(api.GetTensorElementTypeAndShapeDataReference(value, &element_type, &sizes, &rank))
    if rank > MAX_RANK:
        raise ValueError(f"a tensor: got rank {rank}, wanted {MAX_RANK} at most")
    check(api.GetTensorMutableData(value, &data))
    for ax in range(rank):
        shape[ax] = sizes[ax]
    return cnp.PyArray_SimpleNewFromData(<int>rank, shape, _TYPE_NUMBERS[element_type], data)


cdef output(OrtKernelContext *context, shape):
    """Return the output tensor of a node as an array of this shape."""
    cdef OrtValue *result = NULL
    cdef int64_t sizes[MAX_RANK]
    for n, size in enumerate(shape):
        sizes[n] = size
    check(api.KernelContext_GetOutput(context, 0, sizes, len(shape), &result))
    return tensor(result)


cdef class _Kernel:
    """A node and its entries of input shapes seen before."""
    cdef object node
    cdef Known known
    cdef Slopes slopes  # the slopes of a PRelu that is fused with the node, or None
    cdef bint has_slopes
    cdef size_t data, added  # places of the data, and of the array that is added to the output, among the inputs

    def __init__(self, node):
        self.node, self.known = node, Known()
        self.data, self.added = node.data_index, node.added_index


cdef OrtStatus *compute "convt_compute"(void *kernel, OrtKernelContext *context) noexcept nogil:
    return NULL if run_known(kernel, context) else compute_by_python(kernel, context)


cdef OrtStatus *compute_by_python(void *kernel, OrtKernelContext *context) noexcept with gil:
    try:
        run(<_Kernel>kernel, context)
    except BaseException as error:
        return error_status(error)
    return NULL


cdef run(_Kernel kernel, OrtKernelContext *context):
    cdef const OrtValue *value = NULL
    node, inputs = kernel.node, {}
    for n, name in enumerate(node.order):
        value = NULL
        inputs[name] = None if is_error(api.KernelContext_GetInput(context, n, &value)) else tensor(value)
    try:
        out = output(context, node.output_shape(inputs))
        compute_on_session_threads(node, context, inputs, out)
    except _host.StatusError:
        raise
    except Exception as error:
        found = node.compute_with_onnxruntime(error, inputs)
        output(context, found.shape)[...] = found
        return
    if node.is_known(inputs, out):
        if not kernel.has_slopes and node.packed.slopes is not None:
            kernel.slopes = node.packed.slopes
            kernel.has_slopes = True
        kernel.known.remember(node.operator, inputs[node.group.data], out, node.threads, kernel.added > 0, 0)


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
    cdef OrtStatus *status = api.KernelContext_ParallelFor(threads.context, work, count, count, job)
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


cdef bint read_shape(const OrtValue *value, size_t *rank, const int64_t **sizes) noexcept nogil:
    """Read the shape of a tensor. Return False if it has more axes than an entry of `Known`, or is none."""
    cdef int element_type
    return value != NULL and not is_error(
        api.GetTensorElementTypeAndShapeDataReference(value, &element_type, sizes, rank)) and rank[0] <= KNOWN_RANK


cdef bint run_known(void *kernel, OrtKernelContext *context) noexcept nogil:
    """Compute an input shape seen before. Return False for a new shape or an error; Python then computes and reports it."""
    cdef const OrtValue *value = NULL
    cdef OrtValue *result = NULL
    cdef void *data = NULL
    cdef void *out = NULL
    cdef void *add = NULL
    cdef size_t rank = 0
    cdef const int64_t *sizes = NULL
    cdef bint done
    cdef Entry *entry
    cdef Threads threads
    if is_error(api.KernelContext_GetInput(context, (<_Kernel>kernel).data, &value)) or not read_shape(value, &rank, &sizes):
        return False
    entry = (<_Kernel>kernel).known.find(rank, sizes, 0)
    if entry == NULL:
        return False
    done = not (
        is_error(api.GetTensorMutableData(value, &data))
        or (entry.adds and not read_addend(context, (<_Kernel>kernel).added, entry, &add))
        or is_error(api.KernelContext_GetOutput(context, 0, entry.out_sizes, rank, &result))
        or is_error(api.GetTensorMutableData(result, &out))
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
    cdef const int64_t *sizes = NULL
    cdef size_t rank = 0, ax
    if is_error(api.KernelContext_GetInput(context, added - 1, &value)) or not read_shape(value, &rank, &sizes):
        return False
    if rank != entry.rank:
        return False
    for ax in range(rank):
        if sizes[ax] != entry.out_sizes[ax]:
            return False
    return not is_error(api.GetTensorMutableData(value, add))


cdef void apply_slopes(Slopes slopes, const Entry *entry, char *out) noexcept nogil:
    """Apply the slopes of a PRelu to an entry's output."""
    cdef int64_t plane = 1
    cdef size_t ax
    for ax in range(2, entry.rank):
        plane *= entry.out_sizes[ax]
    slopes.compute(out, entry.out_sizes[0] * entry.out_sizes[1], plane, entry.run.threads)
