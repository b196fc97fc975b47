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

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
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

cnp.import_array()

cdef enum:
    MAX_RANK = 64   # NumPy's
    TEXT_BYTES = 4096  # the most bytes of a name or an option


# ---------------------------------------------------------------- ONNX Runtime's interface


cdef extern from "onnxruntime_api.h" nogil:
    ctypedef bint boolean "bool"
    const int ORT_VERSION, ORT_FAIL, ORT_INVALID_ARGUMENT, ORT_DEVICE_CPU
    const int ORT_ATTRIBUTE_INT, ORT_ATTRIBUTE_INTS, ORT_ATTRIBUTE_FLOAT, ORT_ATTRIBUTE_STRING
    ctypedef struct OrtStatus
    ctypedef struct OrtSessionOptions
    ctypedef struct OrtKernelInfo
    ctypedef struct OrtKernelContext
    ctypedef struct OrtValue
    ctypedef struct OrtTypeInfo
    ctypedef struct OrtShapeInfo
    ctypedef struct OrtOpAttr
    ctypedef struct OrtGraph
    ctypedef struct OrtNode
    ctypedef struct OrtValueInfo
    ctypedef struct OrtHardwareDevice
    ctypedef struct OrtEpDevice
    ctypedef struct OrtSupportInfo
    ctypedef struct OrtKernelRegistry
    ctypedef struct OrtKernelDefBuilder
    ctypedef struct OrtKernelDef
    ctypedef struct OrtDataType
    ctypedef struct OrtApiBase
    ctypedef struct OrtEpFactory
    ctypedef struct OrtEp
    ctypedef struct OrtComputeInfo
    ctypedef struct OrtKernelImpl
    # The C compiler checks arguments, by the types in the header.
    ctypedef OrtStatus *(*Call)(...) noexcept nogil
    ctypedef struct OrtCalls:
        Call CreateStatus, GetTensorMutableData, GetTensorElementTypeAndShapeDataReference
        Call CastTypeInfoToTensorInfo, GetTensorElementType, GetDimensionsCount, GetDimensions
        Call KernelInfoGetAttribute_int64, KernelInfoGetAttribute_string, KernelInfoGetAttributeArray_int64
        Call KernelInfo_GetNodeName, KernelInfo_GetOutputName, KernelInfo_GetOperatorSinceVersion, KernelInfo_GetEp
        Call KernelInfoGetConstantInput_tensor, KernelInfo_GetInputCount, KernelInfo_GetInputName
        Call KernelContext_GetInput, KernelContext_GetOutput, KernelContext_ParallelFor
        Call GetSessionConfigEntry
        Call GetValueInfoName, GetValueInfoTypeInfo, ValueInfo_GetValueProducer, ValueInfo_GetValueNumConsumers
        Call ValueInfo_GetValueConsumers, ValueInfo_IsOptionalGraphInput, ValueInfo_IsGraphOutput
        Call ValueInfo_IsConstantInitializer
        Call Graph_GetNumOperatorSets, Graph_GetOperatorSets, Graph_GetNumNodes, Graph_GetNodes
        Call Node_GetId, Node_GetName, Node_GetOperatorType, Node_GetDomain, Node_GetSinceVersion, Node_GetEpName
        Call Node_GetNumInputs, Node_GetInputs, Node_GetNumOutputs, Node_GetOutputs, Node_GetNumAttributes, Node_GetAttributes
        Call OpAttr_GetType, OpAttr_GetName, ReadOpAttr
        Call CreateEpDevice, EpGraphSupportInfo_AddNodesToFuse, EpGraphSupportInfo_AddSingleNode
        Call CreateKernelRegistry, KernelRegistry_AddKernel, CreateKernelDefBuilder, KernelDefBuilder_SetOperatorType
        Call KernelDefBuilder_SetDomain, KernelDefBuilder_SetSinceVersion, KernelDefBuilder_SetExecutionProvider
        Call KernelDefBuilder_AddTypeConstraint, KernelDefBuilder_Build, GetTensorDataType
        int (*GetErrorCode)(const OrtStatus *) noexcept nogil
        const char *(*GetErrorMessage)(const OrtStatus *) noexcept nogil
        void (*ReleaseStatus)(OrtStatus *) noexcept nogil
        int (*HardwareDevice_Type)(const OrtHardwareDevice *) noexcept nogil
        void (*ReleaseKernelDefBuilder)(OrtKernelDefBuilder *) noexcept nogil
        void (*ReleaseKernelDef)(OrtKernelDef *) noexcept nogil
    OrtStatus *ort_calls(const OrtApiBase *base, OrtCalls *calls) noexcept

ctypedef OrtStatus *(*TextOfNode)(const OrtNode *, const char **) noexcept nogil
ctypedef OrtStatus *(*FlagOfValue)(const OrtValueInfo *, boolean *) noexcept nogil

# Only the two functions of the factory are visible outside this shared library.
cdef extern from * nogil:
    """
    #define CONVT_PROVIDER "ConvtExecutionProvider"
    #define CONVT_OPTION "ep.convtexecutionprovider." /* the prefix of its options in those of a session */

    typedef struct { OrtEp base; PyObject *provider; } convt_provider;
    typedef struct { OrtKernelImpl base; PyObject *kernel; } convt_kernel;
    typedef struct { OrtComputeInfo base; PyObject *kernel; } convt_group;

    static OrtStatus *convt_factories(const OrtApiBase *, OrtEpFactory **, size_t, size_t *);
    static OrtStatus *convt_devices(
        OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t, size_t *);
    static OrtStatus *convt_create(const OrtSessionOptions *, OrtEp **);
    static void convt_release(OrtEpFactory *, OrtEp *);
    static OrtStatus *convt_capability(OrtEp *, const OrtGraph *, OrtSupportInfo *);
    static OrtStatus *convt_compile(
        OrtEp *, const OrtGraph **, const OrtNode **, size_t, OrtComputeInfo **, OrtNode **);
    static void convt_release_groups(OrtEp *, OrtComputeInfo **, size_t);
    static OrtStatus *convt_registry(OrtEp *, const OrtKernelRegistry **);
    static void convt_release_kernel(OrtKernelImpl *);
    static OrtStatus *convt_compute(void *, OrtKernelContext *);

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
    static OrtStatus *convt_create_state(OrtComputeInfo *group, OrtComputeContext *context, void **state)
    {
        *state = ((convt_group *)group)->kernel;
        return NULL;
    }
    static void convt_release_state(OrtComputeInfo *group, void *state) { }
    static OrtStatus *convt_compute_group(OrtComputeInfo *group, void *state, OrtKernelContext *context)
    {
        return convt_compute(state, context);
    }
    static OrtStatus *convt_compute_kernel(OrtKernelImpl *kernel, OrtKernelContext *context)
    {
        return convt_compute(((convt_kernel *)kernel)->kernel, context);
    }

    static OrtEpFactory convt_factory_functions = {
        .version = ORT_VERSION, .GetName = convt_factory_name, .GetVendor = convt_vendor, .GetSupportedDevices = convt_devices,
        .CreateEp = convt_create_provider, .ReleaseEp = convt_release, .GetVendorId = convt_vendor_id,
        .GetVersion = convt_factory_version, .CreateDataTransfer = convt_transfer, .IsStreamAware = convt_has_streams,
    };
    static OrtEpFactory *const convt_factory = &convt_factory_functions;
    static const convt_provider convt_new_provider = {{
        .version = ORT_VERSION, .GetName = convt_name, .GetCapability = convt_capability, .Compile = convt_compile,
        .ReleaseNodeComputeInfos = convt_release_groups, .GetKernelRegistry = convt_registry,
    }};
    static const convt_kernel convt_new_kernel = {{
        .version = ORT_VERSION, .Compute = convt_compute_kernel, .Release = convt_release_kernel,
    }};
    static const convt_group convt_new_group = {{
        .version = ORT_VERSION, .CreateState = convt_create_state, .Compute = convt_compute_group,
        .ReleaseState = convt_release_state,
    }};
    """
    const char *CONVT_PROVIDER
    const char *CONVT_OPTION
    ctypedef struct convt_provider:
        void *provider
    ctypedef struct convt_kernel:
        void *kernel
    ctypedef struct convt_group:
        void *kernel
    const char *convt_version
    OrtEpFactory *convt_factory
    const convt_provider convt_new_provider
    const convt_kernel convt_new_kernel
    const convt_group convt_new_group

assert _provider.NAME == CONVT_PROVIDER.decode()
_TYPE_NUMBERS = {each.onnx: each.dtype.num for each in dtypes.ALL}  # ONNX Runtime's element type -> NumPy's type number
# ONNX Runtime wants three numbers.
cdef bytes version = re.match(r"\d+\.\d+\.\d+", __version__).group().encode()
convt_version = <const char *>version

cdef OrtCalls ort
cdef OrtKernelRegistry *registry = NULL
cdef bint is_imported = True  # the module's initialization ran; a library that is only opened lacks it


cdef OrtStatus *make_factories "convt_factories"(
        const OrtApiBase *base, OrtEpFactory **factories, size_t most, size_t *count) noexcept nogil:
    """Hand out the factory, at the first call with the kernel registry."""
    cdef OrtStatus *status = ort_calls(base, &ort)
    if status == NULL and not is_imported:
        status = ort.CreateStatus(ORT_FAIL, b"import convt.onnxruntime before its library is registered")
    if status == NULL:
        status = make_registry()
    count[0] = 1 if status == NULL and most > 0 else 0
    if count[0]:
        factories[0] = convt_factory
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
            check(ort.GetTensorDataType(<int>row.onnx, &types[n]))
        check(ort.CreateKernelRegistry(&registry))
        for first, last in _fuse.VERSIONS:
            check(ort.CreateKernelDefBuilder(&builder))
            check(ort.KernelDefBuilder_SetOperatorType(builder, b"ConvTranspose"))
            check(ort.KernelDefBuilder_SetDomain(builder, b""))
            check(ort.KernelDefBuilder_SetSinceVersion(builder, <int>first, <int>last))
            check(ort.KernelDefBuilder_SetExecutionProvider(builder, CONVT_PROVIDER))
            check(ort.KernelDefBuilder_AddTypeConstraint(builder, b"T", types, <size_t>len(dtypes.COMPUTED)))
            check(ort.KernelDefBuilder_Build(builder, &definition))
            check(ort.KernelRegistry_AddKernel(registry, definition, create_kernel, NULL))
            ort.ReleaseKernelDef(definition)
            ort.ReleaseKernelDefBuilder(builder)
    except BaseException as error:
        return error_status(error)
    return NULL


cdef OrtStatus *list_devices "convt_devices"(
        OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **made, size_t most,
        size_t *number) noexcept nogil:
    """List the CPU as the device that convt computes on."""
    cdef size_t n
    number[0] = 0
    for n in range(count):
        if number[0] < min(most, <size_t>1) and ort.HardwareDevice_Type(devices[n]) == ORT_DEVICE_CPU:
            number[0] += 1
            return ort.CreateEpDevice(factory, devices[n], NULL, NULL, made)
    return NULL


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
    return ort.CreateStatus(code, <const char *>text)


# ---------------------------------------------------------------- providers


cdef OrtStatus *create_provider "convt_create"(const OrtSessionOptions *options, OrtEp **made) noexcept with gil:
    cdef convt_provider *provider
    try:
        values = {name: option(options, CONVT_OPTION + name.encode()) for name in _provider.OPTIONS}
        values["context"] = option(options, b"ep.context_enable")
        held = _provider.Provider(values)
        provider = <convt_provider *>calloc(1, sizeof(convt_provider))
        provider[0] = convt_new_provider
        Py_INCREF(held)
        provider.provider = <void *>held
        made[0] = <OrtEp *>provider
    except BaseException as error:
        return error_status(error)
    return NULL


cdef option(const OrtSessionOptions *options, bytes name):
    """Return a value of a session's options, or "" if it is not set."""
    cdef char text[TEXT_BYTES]
    cdef size_t size = TEXT_BYTES
    return "" if is_error(ort.GetSessionConfigEntry(options, <const char *>name, text, &size)) else text.decode()


cdef void release_provider "convt_release"(OrtEpFactory *factory, OrtEp *provider) noexcept with gil:
    Py_DECREF(<object>(<convt_provider *>provider).provider)
    free(provider)


cdef OrtStatus *get_registry "convt_registry"(OrtEp *provider, const OrtKernelRegistry **found) noexcept nogil:
    found[0] = registry
    return NULL


cdef OrtStatus *claim "convt_capability"(OrtEp *provider, const OrtGraph *graph, OrtSupportInfo *support) noexcept with gil:
    """Claim the nodes of a graph that convt computes."""
    cdef const OrtNode *addresses[64]
    cdef GraphNode node
    try:
        transposed = transposed_nodes(graph)
        if not transposed:
            return NULL
        held = <object>(<convt_provider *>provider).provider
        for group in held.claim(transposed, opset_of(graph)):
            for n, node in enumerate(group):
                addresses[n] = node.node
            if len(group) == 1:
                check(ort.EpGraphSupportInfo_AddSingleNode(support, addresses[0]))
            else:
                check(ort.EpGraphSupportInfo_AddNodesToFuse(support, addresses, <size_t>len(group), NULL))
    except BaseException as error:
        return error_status(error)
    return NULL


cdef OrtStatus *compile_groups "convt_compile"(
        OrtEp *provider, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtComputeInfo **made,
        OrtNode **contexts) noexcept with gil:
    """Make a kernel for each group of nodes that ONNX Runtime fused into one."""
    cdef convt_group *group
    cdef size_t n
    try:
        for n in range(count):
            node = node_of(fused[n])
            kernel = _Kernel((<object>(<convt_provider *>provider).provider).compile(node))
            group = <convt_group *>calloc(1, sizeof(convt_group))
            group[0] = convt_new_group
            Py_INCREF(kernel)
            group.kernel = <void *>kernel
            made[n] = <OrtComputeInfo *>group
    except BaseException as error:
        return error_status(error)
    return NULL


cdef void release_groups "convt_release_groups"(OrtEp *provider, OrtComputeInfo **made, size_t count) noexcept with gil:
    for n in range(count):
        if made[n] != NULL:
            Py_DECREF(<object>(<convt_group *>made[n]).kernel)
            free(made[n])


# ---------------------------------------------------------------- graphs


cdef transposed_nodes(const OrtGraph *graph):
    """Return the ConvTranspose nodes of a graph."""
    cdef size_t count = 0, n
    cdef const OrtNode **nodes
    cdef const char *text
    check(ort.Graph_GetNumNodes(graph, &count))
    nodes = <const OrtNode **>calloc(count + 1, sizeof(void *))
    try:
        check(ort.Graph_GetNodes(graph, nodes, count))
        found = []
        for n in range(count):
            check(ort.Node_GetOperatorType(nodes[n], &text))
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
    check(ort.Graph_GetNumOperatorSets(graph, &count))
    check(ort.Graph_GetOperatorSets(graph, domains, versions, min(count, <size_t>256)))
    return max(versions[n] for n in range(min(count, <size_t>256)) if domains[n][0] == 0)


cdef node_of(const OrtNode *address):
    cdef GraphNode node = GraphNode.__new__(GraphNode)
    node.node = address
    return node


cdef class GraphNode:
    """A node of a graph, valid while ONNX Runtime shows the graph."""
    cdef const OrtNode *node

    cdef str text(self, TextOfNode call):
        cdef const char *text = NULL
        return "" if is_error(call(self.node, &text)) or text == NULL else (<bytes>text).decode()

    def __eq__(self, other):
        return type(other) is GraphNode and (<GraphNode>other).node == self.node

    def __hash__(self):
        return hash(<uintptr_t>self.node)

    @property
    def op_type(self):
        return self.text(<TextOfNode>ort.Node_GetOperatorType)

    @property
    def domain(self):
        return self.text(<TextOfNode>ort.Node_GetDomain)

    @property
    def name(self):
        return self.text(<TextOfNode>ort.Node_GetName)

    @property
    def provider(self):
        """The name of the provider that computes the node, "" if none is chosen."""
        return self.text(<TextOfNode>ort.Node_GetEpName)

    @property
    def id(self):
        cdef size_t number = 0
        check(ort.Node_GetId(self.node, &number))
        return number

    @property
    def version(self):
        """The first version of ONNX's operators in which the node's operator is the present one."""
        cdef int version = 0
        check(ort.Node_GetSinceVersion(self.node, &version))
        return version

    @property
    def inputs(self):
        """A list of `GraphValue`, or None for inputs that are not given."""
        cdef const OrtValueInfo *values[64]
        cdef size_t count = 0
        check(ort.Node_GetNumInputs(self.node, &count))
        check(ort.Node_GetInputs(self.node, values, min(count, <size_t>64)))
        return [value_of(values[n]) for n in range(min(count, <size_t>64))]

    @property
    def outputs(self):
        cdef const OrtValueInfo *values[64]
        cdef size_t count = 0
        check(ort.Node_GetNumOutputs(self.node, &count))
        check(ort.Node_GetOutputs(self.node, values, min(count, <size_t>64)))
        return [value_of(values[n]) for n in range(min(count, <size_t>64))]

    @property
    def attributes(self):
        """A dict of integers, floats, strings and lists of integers; None for attributes of other types."""
        cdef const OrtOpAttr *attributes[64]
        cdef const char *name
        cdef size_t count = 0, n
        check(ort.Node_GetNumAttributes(self.node, &count))
        count = min(count, <size_t>64)
        check(ort.Node_GetAttributes(self.node, attributes, count))
        found = {}
        for n in range(count):
            check(ort.OpAttr_GetName(attributes[n], &name))
            found[(<bytes>name).decode()] = attribute_of(attributes[n])
        return found


cdef attribute_of(const OrtOpAttr *attribute):
    cdef int kind = 0
    cdef int64_t number
    cdef int64_t numbers[MAX_RANK]
    cdef float real
    cdef char text[256]
    cdef size_t size = 0, n
    check(ort.OpAttr_GetType(attribute, &kind))
    if kind == ORT_ATTRIBUTE_INT:
        check(ort.ReadOpAttr(attribute, kind, &number, sizeof(number), &size))
        return number
    if kind == ORT_ATTRIBUTE_FLOAT:
        check(ort.ReadOpAttr(attribute, kind, &real, sizeof(real), &size))
        return real
    if kind == ORT_ATTRIBUTE_STRING and not is_error(ort.ReadOpAttr(attribute, kind, text, sizeof(text), &size)):
        return text[:size].rstrip(b"\0").decode(errors="replace")
    if kind == ORT_ATTRIBUTE_INTS and not is_error(ort.ReadOpAttr(attribute, kind, numbers, sizeof(numbers), &size)):
        return [numbers[n] for n in range(size // sizeof(int64_t))]
    return None


cdef value_of(const OrtValueInfo *address):
    cdef GraphValue value
    if address == NULL:
        return None
    value = GraphValue.__new__(GraphValue)
    value.value = address
    return value


cdef class GraphValue:
    """A value of a graph, valid while ONNX Runtime shows the graph."""
    cdef const OrtValueInfo *value

    cdef bint flag(self, FlagOfValue call) noexcept:
        cdef boolean found = False
        return not is_error(call(self.value, &found)) and found

    @property
    def name(self):
        cdef const char *text = NULL
        check(ort.GetValueInfoName(self.value, &text))
        return (<bytes>text).decode()

    @property
    def is_constant(self):
        """Whether the value is an initializer that no run can change."""
        return self.flag(<FlagOfValue>ort.ValueInfo_IsConstantInitializer)

    @property
    def is_optional(self):
        """Whether the value is an initializer that a run may change."""
        return self.flag(<FlagOfValue>ort.ValueInfo_IsOptionalGraphInput)

    @property
    def is_output(self):
        return self.flag(<FlagOfValue>ort.ValueInfo_IsGraphOutput)

    @property
    def is_read(self):
        """Whether the value is an output of the graph, or a node reads it."""
        cdef size_t count = 0
        return self.is_output or (not is_error(ort.ValueInfo_GetValueNumConsumers(self.value, &count)) and count > 0)

    @property
    def type(self):
        """``(element type, shape)``: a shape has -1 for open sizes."""
        cdef const OrtTypeInfo *kind = NULL
        cdef const OrtShapeInfo *info = NULL
        cdef int element = 0
        cdef size_t rank = 0, ax
        cdef int64_t sizes[MAX_RANK]
        if is_error(ort.GetValueInfoTypeInfo(self.value, &kind)) or is_error(ort.CastTypeInfoToTensorInfo(kind, &info)):
            return 0, ()
        if info == NULL or is_error(ort.GetTensorElementType(info, &element)):
            return 0, ()
        check(ort.GetDimensionsCount(info, &rank))
        rank = min(rank, <size_t>MAX_RANK)
        check(ort.GetDimensions(info, sizes, rank))
        return element, tuple([sizes[ax] for ax in range(rank)])

    @property
    def producer(self):
        cdef const OrtNode *node = NULL
        cdef size_t output = 0
        return None if is_error(ort.ValueInfo_GetValueProducer(self.value, &node, &output)) or node == NULL else node_of(node)

    @property
    def reader(self):
        """The node that reads the value, or None if there are none or several."""
        cdef const OrtNode *node = NULL
        cdef int64_t place = 0
        cdef size_t count = 0
        if is_error(ort.ValueInfo_GetValueNumConsumers(self.value, &count)) or count != 1:
            return None
        check(ort.ValueInfo_GetValueConsumers(self.value, &node, &place, count))
        return node_of(node) if place >= 0 else None  # -1: a graph inside the node reads it


# ---------------------------------------------------------------- tensors


cdef tensor(const OrtValue *value):
    """Return a NumPy array that shares the memory of a tensor, or None for an input that is not given."""
    cdef size_t rank = 0, ax
    cdef const int64_t *sizes = NULL
    cdef cnp.npy_intp shape[MAX_RANK]
    cdef void *data = NULL
    cdef int element_type = 0
    if value == NULL:
        return None
    check(ort.GetTensorElementTypeAndShapeDataReference(value, &element_type, &sizes, &rank))
    if rank > MAX_RANK:
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
    check(ort.KernelContext_GetOutput(context, 0, sizes, <size_t>len(shape), &result))
    return tensor(result)


# ---------------------------------------------------------------- kernels


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


cdef OrtStatus *create_kernel(void *state, const OrtKernelInfo *info, OrtKernelImpl **made) noexcept with gil:
    cdef convt_kernel *kernel
    cdef const OrtEp *provider = NULL
    try:
        check(ort.KernelInfo_GetEp(info, &provider))
        held = _Kernel(node_of_kernel(info, <object>(<convt_provider *>provider).provider))
        kernel = <convt_kernel *>calloc(1, sizeof(convt_kernel))
        kernel[0] = convt_new_kernel
        Py_INCREF(held)
        kernel.kernel = <void *>held
        made[0] = <OrtKernelImpl *>kernel
    except BaseException as error:
        return error_status(error)
    return NULL


cdef void release_kernel "convt_release_kernel"(OrtKernelImpl *kernel) noexcept with gil:
    Py_DECREF(<object>(<convt_kernel *>kernel).kernel)
    free(kernel)


cdef node_of_kernel(const OrtKernelInfo *info, provider):
    """Return the node of a registered kernel."""
    cdef int64_t number = 0
    cdef int64_t numbers[MAX_RANK]
    cdef char text[TEXT_BYTES]
    cdef size_t size = TEXT_BYTES, count = 0, n
    cdef int version = 0, constant = 0
    cdef const OrtValue *value
    attributes = {}
    for name in (b"dilations", b"kernel_shape", b"output_padding", b"output_shape", b"pads", b"strides"):
        size = MAX_RANK
        if not is_error(ort.KernelInfoGetAttributeArray_int64(info, <const char *>name, numbers, &size)):
            attributes[name.decode()] = [numbers[n] for n in range(size)]
    if not is_error(ort.KernelInfoGetAttribute_int64(info, b"group", &number)):
        attributes["group"] = number
    size = TEXT_BYTES
    if not is_error(ort.KernelInfoGetAttribute_string(info, b"auto_pad", text, &size)):
        attributes["auto_pad"] = text.decode()
    check(ort.KernelInfo_GetOperatorSinceVersion(info, &version))
    inputs = []  # (name, whether it is a constant)
    check(ort.KernelInfo_GetInputCount(info, &count))
    for n in range(count):
        value, size = NULL, TEXT_BYTES
        name = f"input {n}" if is_error(ort.KernelInfo_GetInputName(info, n, text, &size)) else text.decode()
        is_constant = not is_error(ort.KernelInfoGetConstantInput_tensor(info, n, &constant, &value)) and constant != 0
        inputs.append((name, is_constant))
    size = TEXT_BYTES
    name = "" if is_error(ort.KernelInfo_GetNodeName(info, text, &size)) else text.decode()
    size = TEXT_BYTES
    result = "output" if is_error(ort.KernelInfo_GetOutputName(info, 0, text, &size)) else text.decode()
    return provider.single(name, result, attributes, version, inputs)


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
    node = kernel.node
    given = []
    for n in range(node.count):
        value = NULL
        if not is_error(ort.KernelContext_GetInput(context, <size_t>n, &value)):
            given.append(tensor(value))
        else:
            given.append(None)
    inputs = node.placed(given)
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
    if node.operator is not None and (not adds or given[kernel.added - 1].shape == out.shape == node.shape_before_sum(inputs)):
        if not kernel.has_slopes and node.packed.slopes is not None:
            kernel.slopes = node.packed.slopes
            kernel.has_slopes = True
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


cdef bint read_shape(const OrtValue *value, size_t *rank, const int64_t **sizes) noexcept nogil:
    """Read the shape of a tensor. Return False if it has more axes than an entry of `Known`, or is none."""
    cdef int element_type
    return value != NULL and not is_error(
        ort.GetTensorElementTypeAndShapeDataReference(value, &element_type, sizes, rank)) and rank[0] <= KNOWN_RANK


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
    if is_error(ort.KernelContext_GetInput(context, (<_Kernel>kernel).data, &value)) or not read_shape(value, &rank, &sizes):
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
    cdef const int64_t *sizes = NULL
    cdef size_t rank = 0, ax
    if is_error(ort.KernelContext_GetInput(context, added - 1, &value)) or not read_shape(value, &rank, &sizes):
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
