/* The part of ONNX Runtime's C API that convt calls, declared in convt's own words.
 *
 * ONNX Runtime hands out its entry points as a table of function pointers whose order never changes: later versions append to
 * it. ORT_ENTRIES names those that convt calls, by their place in it. `OrtCustomOp` is what a library of operators fills in; fields
 * that convt leaves out are NULL, for which ONNX Runtime has defaults. README.md has origin and licence.
 */
#ifndef CONVT_ONNXRUNTIME_API_H
#define CONVT_ONNXRUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

/* The version of the interface that is asked for, and that OrtCustomOp below is laid out by: ONNX Runtime 1.17. */
#define ORT_VERSION 17

typedef struct OrtStatus OrtStatus; /* NULL: success */
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtValue OrtValue;
typedef struct OrtShapeInfo OrtShapeInfo;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtOpAttr OrtOpAttr;
typedef void (*OrtEntry)(void);

typedef struct {
    const OrtEntry *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

enum { ORT_UINT8 = 2, ORT_INT8 = 3, ORT_UINT16 = 4, ORT_INT16 = 5, ORT_INT32 = 6 };
enum { ORT_FAIL = 1, ORT_FLOAT = 1, ORT_FLOAT16 = 10, ORT_DOUBLE = 11, ORT_BFLOAT16 = 16 };
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 };
enum { ORT_STRING_ATTRIBUTE = 5 };

typedef struct OrtCustomOp OrtCustomOp;
struct OrtCustomOp {
    uint32_t version;
    void *(*CreateKernel)(const OrtCustomOp *, const OrtEntry *, const OrtKernelInfo *);
    const char *(*GetName)(const OrtCustomOp *);
    const char *(*GetExecutionProviderType)(const OrtCustomOp *);
    int (*GetInputType)(const OrtCustomOp *, size_t);
    size_t (*GetInputTypeCount)(const OrtCustomOp *);
    int (*GetOutputType)(const OrtCustomOp *, size_t);
    size_t (*GetOutputTypeCount)(const OrtCustomOp *);
    void (*KernelCompute)(void *, OrtKernelContext *);
    void (*KernelDestroy)(void *);
    int (*GetInputCharacteristic)(const OrtCustomOp *, size_t);
    int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t);
    int (*GetInputMemoryType)(const OrtCustomOp *, size_t);
    int (*GetVariadicInputMinArity)(const OrtCustomOp *);
    int (*GetVariadicInputHomogeneity)(const OrtCustomOp *);
    int (*GetVariadicOutputMinArity)(const OrtCustomOp *);
    int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *);
    OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const OrtEntry *, const OrtKernelInfo *, void **);
    OrtStatus *(*KernelComputeV2)(void *, OrtKernelContext *);
    OrtStatus *(*InferOutputShape)(const OrtCustomOp *, OrtShapeInferContext *); /* ONNX Runtime ignores the status */
    int (*GetStartVersion)(const OrtCustomOp *);
    int (*GetEndVersion)(const OrtCustomOp *);
    /* convt's own, behind what ONNX Runtime reads: */
    int element_type;
};

/* F(place, name, (types of parameters)), all of which return an OrtStatus * */
#define ORT_ENTRIES(F) \
    F(0, CreateStatus, (int code, const char *message)) \
    F(26, CreateCustomOpDomain, (const char *name, OrtCustomOpDomain **domain)) \
    F(27, CustomOpDomain_Add, (OrtCustomOpDomain *domain, const OrtCustomOp *op)) \
    F(28, AddCustomOpDomain, (OrtSessionOptions *options, OrtCustomOpDomain *domain)) \
    F(51, GetTensorMutableData, (const OrtValue *value, void **data)) \
    F(57, CreateTensorTypeAndShapeInfo, (OrtShapeInfo **info)) \
    F(58, SetTensorElementType, (OrtShapeInfo *info, int type)) \
    F(59, SetDimensions, (OrtShapeInfo *info, const int64_t *sizes, size_t count)) \
    F(60, GetTensorElementType, (const OrtShapeInfo *info, int *type)) \
    F(61, GetDimensionsCount, (const OrtShapeInfo *info, size_t *count)) \
    F(62, GetDimensions, (const OrtShapeInfo *info, int64_t *sizes, size_t count)) \
    F(63, GetSymbolicDimensions, (const OrtShapeInfo *info, const char **names, size_t count)) \
    F(65, GetTensorTypeAndShape, (const OrtValue *value, OrtShapeInfo **info)) \
    F(87, KernelInfoGetAttribute_string, (const OrtKernelInfo *info, const char *name, char *text, size_t *size)) \
    F(88, KernelContext_GetInputCount, (const OrtKernelContext *context, size_t *count)) \
    F(90, KernelContext_GetInput, (const OrtKernelContext *context, size_t index, const OrtValue **value)) \
    F(91, KernelContext_GetOutput, (OrtKernelContext *context, size_t index, const int64_t *sizes, size_t count, OrtValue **value)) \
    F(230, KernelInfo_GetInputCount, (const OrtKernelInfo *info, size_t *count)) \
    F(249, KernelInfoGetConstantInput_tensor, (const OrtKernelInfo *info, size_t index, int *is_constant, const OrtValue **value)) \
    F(267, ShapeInferContext_GetInputCount, (const OrtShapeInferContext *context, size_t *count)) \
    F(268, ShapeInferContext_GetInputTypeShape, (const OrtShapeInferContext *context, size_t index, OrtShapeInfo **info)) \
    F(269, ShapeInferContext_GetAttribute, (const OrtShapeInferContext *context, const char *name, const OrtOpAttr **value)) \
    F(270, ShapeInferContext_SetOutputTypeShape, (const OrtShapeInferContext *context, size_t n, const OrtShapeInfo *info)) \
    F(271, SetSymbolicDimensions, (OrtShapeInfo *info, const char **names, size_t count)) \
    F(272, ReadOpAttr, (const OrtOpAttr *attribute, int type, void *data, size_t size, size_t *needed)) \
    F(274, KernelContext_ParallelFor, (const OrtKernelContext *context, void (*work)(void *, size_t), size_t count, \
      size_t batches, void *job))

/* These return nothing. */
#define ORT_RELEASES(F) \
    F(93, ReleaseStatus, (OrtStatus *status)) \
    F(99, ReleaseTensorTypeAndShapeInfo, (OrtShapeInfo *info))

/* These return what went wrong: a code and a message. */
#define ORT_GET_ERROR_CODE 1
#define ORT_GET_ERROR_MESSAGE 2

typedef struct {
#define F(place, name, parameters) OrtStatus *(*name) parameters;
    ORT_ENTRIES(F)
#undef F
#define F(place, name, parameters) void (*name) parameters;
    ORT_RELEASES(F)
#undef F
    int (*GetErrorCode)(const OrtStatus *status);
    const char *(*GetErrorMessage)(const OrtStatus *status);
} OrtCalls;

/* Fills in the entries of ONNX Runtime's table; 0 where that has no such version. */
static inline int ort_calls(const OrtApiBase *base, OrtCalls *calls)
{
    const OrtEntry *api = base->GetApi(ORT_VERSION);
    if (!api)
        return 0;
#define F(place, name, parameters) calls->name = (OrtStatus *(*) parameters)api[place];
    ORT_ENTRIES(F)
#undef F
#define F(place, name, parameters) calls->name = (void (*) parameters)api[place];
    ORT_RELEASES(F)
#undef F
    calls->GetErrorCode = (int (*)(const OrtStatus *))api[ORT_GET_ERROR_CODE];
    calls->GetErrorMessage = (const char *(*)(const OrtStatus *))api[ORT_GET_ERROR_MESSAGE];
    return 1;
}

#endif
