/* The part of ONNX Runtime's C API that convt calls, declared in convt's own words.
 *
 * ONNX Runtime hands out its entry points as two tables of function pointers whose order never changes: later versions append
 * to them. OrtApi and OrtEpApi name those that convt calls; `from_3[51 - 3]` stands for the entries 3 to 50. The structs at the
 * end are what a library of execution providers fills in; functions that convt leaves out are NULL, for which ONNX Runtime has
 * defaults. setup.py makes Cython's declarations of this file. README.md has origin and licence.
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

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 }; /* codes of statuses */
enum { ORT_DEVICE_CPU = 0 };
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_INTS = 2, ORT_ATTRIBUTE_FLOAT = 3, ORT_ATTRIBUTE_STRING = 5 };

/* Functions for execution providers. */
typedef struct {
    OrtStatus *(*CreateEpDevice)(OrtEpFactory *factory, const OrtHardwareDevice *device, const OrtKeyValuePairs *metadata,
        const OrtKeyValuePairs *options, OrtEpDevice **made);
    void *from_1[2 - 1];
    OrtStatus *(*EpGraphSupportInfo_AddNodesToFuse)(OrtSupportInfo *info, const OrtNode *const *nodes, size_t count,
        const void *options);
    OrtStatus *(*EpGraphSupportInfo_AddSingleNode)(OrtSupportInfo *info, const OrtNode *node);
    void *from_4[18 - 4];
    OrtStatus *(*CreateKernelRegistry)(OrtKernelRegistry **registry);
    void *from_19[20 - 19];
    OrtStatus *(*KernelRegistry_AddKernel)(OrtKernelRegistry *registry, const OrtKernelDef *, OrtStatus *(*create)(void *,
        const OrtKernelInfo *, OrtKernelImpl **), void *state);
    OrtStatus *(*CreateKernelDefBuilder)(OrtKernelDefBuilder **builder);
    void (*ReleaseKernelDefBuilder)(OrtKernelDefBuilder *builder);
    OrtStatus *(*KernelDefBuilder_SetOperatorType)(OrtKernelDefBuilder *builder, const char *type);
    OrtStatus *(*KernelDefBuilder_SetDomain)(OrtKernelDefBuilder *builder, const char *domain);
    OrtStatus *(*KernelDefBuilder_SetSinceVersion)(OrtKernelDefBuilder *builder, int first, int last);
    OrtStatus *(*KernelDefBuilder_SetExecutionProvider)(OrtKernelDefBuilder *builder, const char *name);
    void *from_27[29 - 27];
    OrtStatus *(*KernelDefBuilder_AddTypeConstraint)(OrtKernelDefBuilder *builder, const char *name,
        const OrtDataType *const *types, size_t count);
    void *from_30[32 - 30];
    OrtStatus *(*KernelDefBuilder_Build)(OrtKernelDefBuilder *builder, OrtKernelDef **made);
    void (*ReleaseKernelDef)(OrtKernelDef *definition);
    void *from_34[40 - 34];
    OrtStatus *(*GetTensorDataType)(int element_type, const OrtDataType **type);
    void *from_41[43 - 41];
    OrtStatus *(*KernelInfo_GetEp)(const OrtKernelInfo *info, const OrtEp **ep);
} OrtEpApi;

/* All other functions. The flags that some of them write are C's bool, which has one byte. */
typedef struct {
    OrtStatus *(*CreateStatus)(int code, const char *message);
    int (*GetErrorCode)(const OrtStatus *status);
    const char *(*GetErrorMessage)(const OrtStatus *status);
    void *from_3[51 - 3];
    OrtStatus *(*GetTensorMutableData)(const OrtValue *value, void **data);
    void *from_52[55 - 52];
    OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *type, const OrtShapeInfo **info);
    void *from_56[60 - 56];
    OrtStatus *(*GetTensorElementType)(const OrtShapeInfo *info, int *type);
    OrtStatus *(*GetDimensionsCount)(const OrtShapeInfo *info, size_t *count);
    OrtStatus *(*GetDimensions)(const OrtShapeInfo *info, int64_t *sizes, size_t count);
    void *from_63[90 - 63];
    OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *context, size_t index, const OrtValue **value);
    OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *context, size_t n, const int64_t *sizes, size_t rank,
        OrtValue **value);
    void *from_92[93 - 92];
    void (*ReleaseStatus)(OrtStatus *status);
    void *from_94[233 - 94];
    OrtStatus *(*KernelInfo_GetOutputName)(const OrtKernelInfo *info, size_t index, char *text, size_t *size);
    void *from_234[238 - 234];
    OrtStatus *(*GetSessionConfigEntry)(const OrtSessionOptions *options, const char *key, char *text, size_t *size);
    void *from_239[272 - 239];
    OrtStatus *(*ReadOpAttr)(const OrtOpAttr *attribute, int type, void *data, size_t size, size_t *needed);
    void *from_273[274 - 273];
    OrtStatus *(*KernelContext_ParallelFor)(const OrtKernelContext *context, void (*work)(void *, size_t), size_t count,
        size_t batches, void *job);
    void *from_275[289 - 275];
    OrtStatus *(*GetValueInfoName)(const OrtValueInfo *value, const char **name);
    OrtStatus *(*GetValueInfoTypeInfo)(const OrtValueInfo *value, const OrtTypeInfo **type);
    void *from_291[307 - 291];
    int (*HardwareDevice_Type)(const OrtHardwareDevice *device);
    void *from_308[317 - 308];
    const OrtEpApi *(*GetEpApi)(void);
    void *from_318[323 - 318];
    OrtStatus *(*ValueInfo_GetValueProducer)(const OrtValueInfo *value, const OrtNode **node, size_t *output);
    OrtStatus *(*ValueInfo_GetValueNumConsumers)(const OrtValueInfo *value, size_t *count);
    OrtStatus *(*ValueInfo_GetValueConsumers)(const OrtValueInfo *value, const OrtNode **nodes, int64_t *inputs, size_t count);
    void *from_326[329 - 326];
    OrtStatus *(*ValueInfo_IsOptionalGraphInput)(const OrtValueInfo *value, unsigned char *flag);
    OrtStatus *(*ValueInfo_IsGraphOutput)(const OrtValueInfo *value, unsigned char *flag);
    OrtStatus *(*ValueInfo_IsConstantInitializer)(const OrtValueInfo *value, unsigned char *flag);
    void *from_332[336 - 332];
    OrtStatus *(*Graph_GetNumOperatorSets)(const OrtGraph *graph, size_t *count);
    OrtStatus *(*Graph_GetOperatorSets)(const OrtGraph *graph, const char **domains, int64_t *versions, size_t count);
    void *from_338[344 - 338];
    OrtStatus *(*Graph_GetNumNodes)(const OrtGraph *graph, size_t *count);
    OrtStatus *(*Graph_GetNodes)(const OrtGraph *graph, const OrtNode **nodes, size_t count);
    void *from_346[348 - 346];
    OrtStatus *(*Node_GetId)(const OrtNode *node, size_t *id);
    OrtStatus *(*Node_GetName)(const OrtNode *node, const char **name);
    OrtStatus *(*Node_GetOperatorType)(const OrtNode *node, const char **type);
    OrtStatus *(*Node_GetDomain)(const OrtNode *node, const char **domain);
    OrtStatus *(*Node_GetSinceVersion)(const OrtNode *node, int *version);
    OrtStatus *(*Node_GetNumInputs)(const OrtNode *node, size_t *count);
    OrtStatus *(*Node_GetInputs)(const OrtNode *node, const OrtValueInfo **values, size_t count);
    OrtStatus *(*Node_GetNumOutputs)(const OrtNode *node, size_t *count);
    OrtStatus *(*Node_GetOutputs)(const OrtNode *node, const OrtValueInfo **values, size_t count);
    void *from_357[359 - 357];
    OrtStatus *(*Node_GetNumAttributes)(const OrtNode *node, size_t *count);
    OrtStatus *(*Node_GetAttributes)(const OrtNode *node, const OrtOpAttr **attributes, size_t count);
    void *from_361[363 - 361];
    OrtStatus *(*OpAttr_GetType)(const OrtOpAttr *attribute, int *type);
    OrtStatus *(*OpAttr_GetName)(const OrtOpAttr *attribute, const char **name);
    void *from_365[368 - 365];
    OrtStatus *(*Node_GetEpName)(const OrtNode *node, const char **name);
    void *from_369[414 - 369];
    OrtStatus *(*GetTensorElementTypeAndShapeDataReference)(const OrtValue *value, int *type, const int64_t **sizes,
        size_t *count);
} OrtApi;

typedef struct {
    const OrtApi *(*GetApi)(unsigned version);
} OrtApiBase;

/* A provider with its options, in one session. */
struct OrtEp {
    uint32_t version;
    const char *(*GetName)(const OrtEp *);
    OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtSupportInfo *);
    OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **fused, size_t count, OrtComputeInfo **, OrtNode **);
    void (*ReleaseNodeComputeInfos)(OrtEp *, OrtComputeInfo **, size_t count);
    void *unused[8]; /* layouts, dynamic options, begin and end of runs, memory, streams */
    OrtStatus *(*GetKernelRegistry)(OrtEp *, const OrtKernelRegistry **);
    void *later[16]; /* more than any version has */
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
    void *unused[3]; /* compiled models, allocators */
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, void **);
    bool (*IsStreamAware)(const OrtEpFactory *);
    void *later[16]; /* more than any version has */
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
    void *unused[2]; /* packed weights that ONNX Runtime keeps */
};

#endif
