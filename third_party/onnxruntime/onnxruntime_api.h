/* The part of ONNX Runtime's C API that convt calls, declared in convt's own words.
 *
 * ONNX Runtime hands out its entry points as two tables of function pointers whose order never changes: later versions append
 * to them. ORT_ENTRIES names those that convt calls, by their place in the table. The structs at the end are what a library of
 * execution providers fills in; functions that convt leaves out are NULL, for which ONNX Runtime has defaults. README.md has
 * origin and licence.
 */
#ifndef CONVT_ONNXRUNTIME_API_H
#define CONVT_ONNXRUNTIME_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the interface that is asked for, and that the structs below are laid out by: ONNX Runtime 1.25. */
#define ORT_VERSION 25

typedef struct OrtStatus OrtStatus; /* NULL: success */
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtShapeInfo OrtShapeInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtLogger OrtLogger;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtSupportInfo OrtSupportInfo; /* receives the nodes that a provider claims */
typedef struct OrtComputeContext OrtComputeContext;
typedef struct OrtKernelRegistry OrtKernelRegistry;
typedef struct OrtKernelDefBuilder OrtKernelDefBuilder;
typedef struct OrtKernelDef OrtKernelDef;
typedef struct OrtDataType OrtDataType;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtEp OrtEp;
typedef struct OrtComputeInfo OrtComputeInfo;
typedef struct OrtKernelImpl OrtKernelImpl;
typedef void (*OrtEntry)(void);

typedef struct {
    const OrtEntry *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

typedef OrtStatus *(*OrtCreateKernel)(void *state, const OrtKernelInfo *info, OrtKernelImpl **kernel);

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 }; /* codes of statuses */
enum { ORT_DEVICE_CPU = 0 };
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_INTS = 2, ORT_ATTRIBUTE_FLOAT = 3, ORT_ATTRIBUTE_STRING = 5 };

/* F(place, name, (types of parameters)), all of which return an OrtStatus * */
#define ORT_ENTRIES(F) \
    F(0, CreateStatus, (int code, const char *message)) \
    F(51, GetTensorMutableData, (const OrtValue *value, void **data)) \
    F(55, CastTypeInfoToTensorInfo, (const OrtTypeInfo *type, const OrtShapeInfo **info)) \
    F(60, GetTensorElementType, (const OrtShapeInfo *info, int *type)) \
    F(61, GetDimensionsCount, (const OrtShapeInfo *info, size_t *count)) \
    F(62, GetDimensions, (const OrtShapeInfo *info, int64_t *sizes, size_t count)) \
    F(86, KernelInfoGetAttribute_int64, (const OrtKernelInfo *info, const char *name, int64_t *value)) \
    F(87, KernelInfoGetAttribute_string, (const OrtKernelInfo *info, const char *name, char *text, size_t *size)) \
    F(90, KernelContext_GetInput, (const OrtKernelContext *context, size_t index, const OrtValue **value)) \
    F(91, KernelContext_GetOutput, (OrtKernelContext *context, size_t n, const int64_t *sizes, size_t rank, OrtValue **value)) \
    F(163, KernelInfoGetAttributeArray_int64, (const OrtKernelInfo *info, const char *name, int64_t *values, size_t *count)) \
    F(230, KernelInfo_GetInputCount, (const OrtKernelInfo *info, size_t *count)) \
    F(232, KernelInfo_GetInputName, (const OrtKernelInfo *info, size_t index, char *text, size_t *size)) \
    F(233, KernelInfo_GetOutputName, (const OrtKernelInfo *info, size_t index, char *text, size_t *size)) \
    F(238, GetSessionConfigEntry, (const OrtSessionOptions *options, const char *key, char *text, size_t *size)) \
    F(244, KernelInfo_GetNodeName, (const OrtKernelInfo *info, char *text, size_t *size)) \
    F(249, KernelInfoGetConstantInput_tensor, (const OrtKernelInfo *info, size_t n, int *is_constant, const OrtValue **value)) \
    F(272, ReadOpAttr, (const OrtOpAttr *attribute, int type, void *data, size_t size, size_t *needed)) \
    F(274, KernelContext_ParallelFor, (const OrtKernelContext *context, void (*work)(void *, size_t), size_t count, \
      size_t batches, void *job)) \
    F(289, GetValueInfoName, (const OrtValueInfo *value, const char **name)) \
    F(290, GetValueInfoTypeInfo, (const OrtValueInfo *value, const OrtTypeInfo **type)) \
    F(323, ValueInfo_GetValueProducer, (const OrtValueInfo *value, const OrtNode **node, size_t *output)) \
    F(324, ValueInfo_GetValueNumConsumers, (const OrtValueInfo *value, size_t *count)) \
    F(325, ValueInfo_GetValueConsumers, (const OrtValueInfo *value, const OrtNode **nodes, int64_t *inputs, size_t count)) \
    F(329, ValueInfo_IsOptionalGraphInput, (const OrtValueInfo *value, bool *is)) \
    F(330, ValueInfo_IsGraphOutput, (const OrtValueInfo *value, bool *is)) \
    F(331, ValueInfo_IsConstantInitializer, (const OrtValueInfo *value, bool *is)) \
    F(336, Graph_GetNumOperatorSets, (const OrtGraph *graph, size_t *count)) \
    F(337, Graph_GetOperatorSets, (const OrtGraph *graph, const char **domains, int64_t *versions, size_t count)) \
    F(344, Graph_GetNumNodes, (const OrtGraph *graph, size_t *count)) \
    F(345, Graph_GetNodes, (const OrtGraph *graph, const OrtNode **nodes, size_t count)) \
    F(348, Node_GetId, (const OrtNode *node, size_t *id)) \
    F(349, Node_GetName, (const OrtNode *node, const char **name)) \
    F(350, Node_GetOperatorType, (const OrtNode *node, const char **type)) \
    F(351, Node_GetDomain, (const OrtNode *node, const char **domain)) \
    F(352, Node_GetSinceVersion, (const OrtNode *node, int *version)) \
    F(353, Node_GetNumInputs, (const OrtNode *node, size_t *count)) \
    F(354, Node_GetInputs, (const OrtNode *node, const OrtValueInfo **values, size_t count)) \
    F(355, Node_GetNumOutputs, (const OrtNode *node, size_t *count)) \
    F(356, Node_GetOutputs, (const OrtNode *node, const OrtValueInfo **values, size_t count)) \
    F(359, Node_GetNumAttributes, (const OrtNode *node, size_t *count)) \
    F(360, Node_GetAttributes, (const OrtNode *node, const OrtOpAttr **attributes, size_t count)) \
    F(363, OpAttr_GetType, (const OrtOpAttr *attribute, int *type)) \
    F(364, OpAttr_GetName, (const OrtOpAttr *attribute, const char **name)) \
    F(368, Node_GetEpName, (const OrtNode *node, const char **name)) \
    F(394, KernelInfo_GetOperatorSinceVersion, (const OrtKernelInfo *info, int *version)) \
    F(414, GetTensorElementTypeAndShapeDataReference, (const OrtValue *value, int *type, const int64_t **sizes, size_t *count))

/* The same for the table of functions for execution providers. */
#define ORT_EP_ENTRIES(F) \
    F(0, CreateEpDevice, (OrtEpFactory *factory, const OrtHardwareDevice *device, const OrtKeyValuePairs *metadata, \
      const OrtKeyValuePairs *options, OrtEpDevice **made)) \
    F(2, EpGraphSupportInfo_AddNodesToFuse, (OrtSupportInfo *info, const OrtNode *const *nodes, size_t count, \
      const void *options)) \
    F(3, EpGraphSupportInfo_AddSingleNode, (OrtSupportInfo *info, const OrtNode *node)) \
    F(18, CreateKernelRegistry, (OrtKernelRegistry **registry)) \
    F(20, KernelRegistry_AddKernel, (OrtKernelRegistry *registry, const OrtKernelDef *, OrtCreateKernel create, void *state)) \
    F(21, CreateKernelDefBuilder, (OrtKernelDefBuilder **builder)) \
    F(23, KernelDefBuilder_SetOperatorType, (OrtKernelDefBuilder *builder, const char *type)) \
    F(24, KernelDefBuilder_SetDomain, (OrtKernelDefBuilder *builder, const char *domain)) \
    F(25, KernelDefBuilder_SetSinceVersion, (OrtKernelDefBuilder *builder, int first, int last)) \
    F(26, KernelDefBuilder_SetExecutionProvider, (OrtKernelDefBuilder *builder, const char *name)) \
    F(29, KernelDefBuilder_AddTypeConstraint, (OrtKernelDefBuilder *builder, const char *name, \
      const OrtDataType *const *types, size_t count)) \
    F(32, KernelDefBuilder_Build, (OrtKernelDefBuilder *builder, OrtKernelDef **def)) \
    F(40, GetTensorDataType, (int element_type, const OrtDataType **type)) \
    F(43, KernelInfo_GetEp, (const OrtKernelInfo *info, const OrtEp **ep))

/* Other entries: G(place, what it returns, name, (types of parameters)) */
#define ORT_OTHERS(G) \
    G(1, int, GetErrorCode, (const OrtStatus *status)) \
    G(2, const char *, GetErrorMessage, (const OrtStatus *status)) \
    G(93, void, ReleaseStatus, (OrtStatus *status)) \
    G(307, int, HardwareDevice_Type, (const OrtHardwareDevice *device)) \
    G(317, const OrtEntry *, GetEpApi, (void))
#define ORT_EP_OTHERS(G) \
    G(22, void, ReleaseKernelDefBuilder, (OrtKernelDefBuilder *builder)) \
    G(33, void, ReleaseKernelDef, (OrtKernelDef *def))

typedef struct {
#define F(place, name, parameters) OrtStatus *(*name) parameters;
#define G(place, type, name, parameters) type (*name) parameters;
    ORT_ENTRIES(F)
    ORT_EP_ENTRIES(F)
    ORT_OTHERS(G)
    ORT_EP_OTHERS(G)
#undef F
#undef G
} OrtCalls;

/* Fills in the entries of ONNX Runtime's tables. Returns NULL, or a status where ONNX Runtime is older. */
static inline OrtStatus *ort_calls(const OrtApiBase *base, OrtCalls *calls)
{
    const OrtEntry *api = base->GetApi(ORT_VERSION), *first = api ? api : base->GetApi(1);
    calls->CreateStatus = (OrtStatus *(*)(int, const char *))first[0];
    if (!api)
        return calls->CreateStatus(ORT_FAIL, "convt's execution provider needs ONNX Runtime 1.25 or newer");
#define F(place, name, parameters) calls->name = (OrtStatus *(*) parameters)api[place];
#define G(place, type, name, parameters) calls->name = (type(*) parameters)api[place];
    ORT_ENTRIES(F)
    ORT_OTHERS(G)
    api = calls->GetEpApi();
    ORT_EP_ENTRIES(F)
    ORT_EP_OTHERS(G)
#undef F
#undef G
    return NULL;
}

/* A provider with its options, in one session. */
struct OrtEp {
    uint32_t version;
    const char *(*GetName)(const OrtEp *);
    OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtSupportInfo *);
    OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **fused, size_t count, OrtComputeInfo **, OrtNode **);
    void (*ReleaseNodeComputeInfos)(OrtEp *, OrtComputeInfo **, size_t count);
    OrtEntry unused[8]; /* layouts, dynamic options, begin and end of runs, memory, streams */
    OrtStatus *(*GetKernelRegistry)(OrtEp *, const OrtKernelRegistry **);
    OrtEntry later[16]; /* more than any version has */
};

/* What makes the providers of sessions. */
struct OrtEpFactory {
    uint32_t version;
    const char *(*GetName)(const OrtEpFactory *);
    const char *(*GetVendor)(const OrtEpFactory *);
    OrtStatus *(*GetSupportedDevices)(
        OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t most, size_t *count);
    OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                           const OrtSessionOptions *, const OrtLogger *, OrtEp **);
    void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
    uint32_t (*GetVendorId)(const OrtEpFactory *);
    const char *(*GetVersion)(const OrtEpFactory *);
    OrtEntry unused[3]; /* compiled models, allocators */
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, void **);
    bool (*IsStreamAware)(const OrtEpFactory *);
    OrtEntry later[16]; /* more than any version has */
};

/* The computation of nodes that were fused into one. */
struct OrtComputeInfo {
    uint32_t version;
    OrtStatus *(*CreateState)(OrtComputeInfo *, OrtComputeContext *, void **state);
    OrtStatus *(*Compute)(OrtComputeInfo *, void *state, OrtKernelContext *);
    void (*ReleaseState)(OrtComputeInfo *, void *state);
};

/* The computation of one node. */
struct OrtKernelImpl {
    uint32_t version;
    uint32_t flags;
    OrtStatus *(*Compute)(OrtKernelImpl *, OrtKernelContext *);
    void (*Release)(OrtKernelImpl *);
    OrtEntry unused[2]; /* packed weights that ONNX Runtime keeps */
};

#endif
