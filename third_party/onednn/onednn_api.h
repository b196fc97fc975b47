/* The part of oneDNN's C API (major version 3) that convt calls, declared in convt's own words.
 *
 * Two lists say all of it: the constants and the entry points. convt/algorithms/onednn/library.pyx fills
 * `struct onednn_api` from an opened library; tests/algorithms/test_onednn.py expands the same lists against the real headers. Enumerations are `unsigned`, which
 * is what they are compatible with. README.md has origin and licence.
 */
#ifndef CONVT_ONEDNN_API_H
#define CONVT_ONEDNN_API_H

#include <stddef.h>
#include <stdint.h>

typedef int64_t onednn_dims[12];

typedef struct dnnl_engine *onednn_engine;
typedef struct dnnl_stream *onednn_stream;
typedef struct dnnl_memory_desc *onednn_desc;
typedef const struct dnnl_memory_desc *onednn_const_desc;
typedef struct dnnl_memory *onednn_memory;
typedef struct dnnl_post_ops *onednn_post_ops;
typedef struct dnnl_primitive_attr *onednn_attr;
typedef struct dnnl_primitive_desc *onednn_primitive_desc;
typedef struct dnnl_primitive *onednn_primitive;

typedef struct {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} onednn_version;

typedef struct {
    int arg;
    onednn_memory memory;
} onednn_exec_arg;

/* F(name, value) */
#define ONEDNN_CONSTANTS(F) \
    F(dnnl_success, 0) \
    F(dnnl_out_of_memory, 1) \
    F(dnnl_invalid_arguments, 2) \
    F(dnnl_unimplemented, 3) \
    F(dnnl_runtime_error, 5) \
    F(DNNL_RUNTIME_SEQ, 1) \
    F(DNNL_RUNTIME_OMP, 2) \
    F(DNNL_RUNTIME_TBB, 4) \
    F(DNNL_RUNTIME_THREADPOOL, 8) \
    F(DNNL_RUNTIME_SYCL, 512) \
    F(dnnl_cpu, 1) \
    F(dnnl_stream_in_order, 1) \
    F(dnnl_format_tag_any, 1) \
    F(dnnl_scratchpad_mode_user, 1) \
    F(dnnl_forward_inference, 96) \
    F(dnnl_deconvolution_direct, 0xa) \
    F(dnnl_binary_add, 0x1fff0) \
    F(dnnl_query_impl_info_str, 8) \
    F(dnnl_query_weights_md, 131) \
    F(dnnl_query_scratchpad_md, 136) \
    F(DNNL_ARG_SRC, 1) \
    F(DNNL_ARG_SRC_1, 2) \
    F(DNNL_ARG_DST, 17) \
    F(DNNL_ARG_WEIGHTS, 33) \
    F(DNNL_ARG_BIAS, 41) \
    F(DNNL_ARG_SCRATCHPAD, 80) \
    F(dnnl_cpu_isa_sse41, 0x1) \
    F(dnnl_cpu_isa_avx, 0x3) \
    F(dnnl_cpu_isa_avx2, 0x7) \
    F(dnnl_cpu_isa_avx2_vnni, 0xf) \
    F(dnnl_cpu_isa_avx2_vnni_2, 0x1f) \
    F(dnnl_cpu_isa_avx512_core, 0x27) \
    F(dnnl_cpu_isa_avx512_core_vnni, 0x67) \
    F(dnnl_cpu_isa_avx512_core_bf16, 0xe7) \
    F(dnnl_cpu_isa_avx512_core_fp16, 0x1ef) \
    F(dnnl_cpu_isa_avx512_core_amx, 0xfef) \
    F(dnnl_cpu_isa_avx512_core_amx_fp16, 0x1fef)

/* F(result, name, parameters) */
#define ONEDNN_ENTRY_POINTS(F) \
    F(const onednn_version *, dnnl_version, (void)) \
    F(unsigned, dnnl_get_effective_cpu_isa, (void)) \
    F(unsigned, dnnl_engine_create, (onednn_engine *engine, unsigned kind, size_t index)) \
    F(unsigned, dnnl_stream_create, (onednn_stream *stream, onednn_engine engine, unsigned flags)) \
    F(unsigned, dnnl_stream_wait, (onednn_stream stream)) \
    F(unsigned, dnnl_stream_destroy, (onednn_stream stream)) \
    F(unsigned, dnnl_memory_desc_create_with_strides, \
      (onednn_desc *desc, int ndims, const int64_t *dims, unsigned type, const int64_t *strides)) \
    F(unsigned, dnnl_memory_desc_create_with_tag, \
      (onednn_desc *desc, int ndims, const int64_t *dims, unsigned type, unsigned tag)) \
    F(int, dnnl_memory_desc_equal, (onednn_const_desc a, onednn_const_desc b)) \
    F(size_t, dnnl_memory_desc_get_size, (onednn_const_desc desc)) \
    F(unsigned, dnnl_memory_desc_destroy, (onednn_desc desc)) \
    F(unsigned, dnnl_memory_create, (onednn_memory *memory, onednn_const_desc desc, onednn_engine engine, void *data)) \
    F(unsigned, dnnl_memory_set_data_handle, (onednn_memory memory, void *data)) \
    F(unsigned, dnnl_memory_destroy, (onednn_memory memory)) \
    F(unsigned, dnnl_post_ops_create, (onednn_post_ops *ops)) \
    F(unsigned, dnnl_post_ops_append_eltwise, (onednn_post_ops ops, unsigned kind, float alpha, float beta)) \
    F(unsigned, dnnl_post_ops_destroy, (onednn_post_ops ops)) \
    F(unsigned, dnnl_primitive_attr_create, (onednn_attr *attr)) \
    F(unsigned, dnnl_primitive_attr_set_scratchpad_mode, (onednn_attr attr, unsigned mode)) \
    F(unsigned, dnnl_primitive_attr_set_post_ops, (onednn_attr attr, const struct dnnl_post_ops *ops)) \
    F(unsigned, dnnl_primitive_attr_destroy, (onednn_attr attr)) \
    F(unsigned, dnnl_deconvolution_forward_primitive_desc_create, \
      (onednn_primitive_desc *made, onednn_engine engine, unsigned propagation, unsigned algorithm, \
       onednn_const_desc src, onednn_const_desc weights, onednn_const_desc bias, onednn_const_desc dst, \
       const int64_t *strides, const int64_t *dilates, const int64_t *padding_l, const int64_t *padding_r, \
       const struct dnnl_primitive_attr *attr)) \
    F(unsigned, dnnl_binary_primitive_desc_create, \
      (onednn_primitive_desc *made, onednn_engine engine, unsigned algorithm, onednn_const_desc a, onednn_const_desc b, \
       onednn_const_desc dst, const struct dnnl_primitive_attr *attr)) \
    F(unsigned, dnnl_reorder_primitive_desc_create, \
      (onednn_primitive_desc *made, onednn_const_desc src, onednn_engine src_engine, onednn_const_desc dst, \
       onednn_engine dst_engine, const struct dnnl_primitive_attr *attr)) \
    F(unsigned, dnnl_primitive_desc_query, (const struct dnnl_primitive_desc *of, unsigned what, int index, void *answer)) \
    F(onednn_const_desc, dnnl_primitive_desc_query_md, (const struct dnnl_primitive_desc *of, unsigned what, int index)) \
    F(unsigned, dnnl_primitive_desc_destroy, (onednn_primitive_desc desc)) \
    F(unsigned, dnnl_primitive_create, (onednn_primitive *primitive, const struct dnnl_primitive_desc *desc)) \
    F(unsigned, dnnl_primitive_execute, \
      (const struct dnnl_primitive *primitive, onednn_stream stream, int count, const onednn_exec_arg *args)) \
    F(unsigned, dnnl_primitive_destroy, (onednn_primitive primitive))

/* The constants, as ONEDNN_<name>: free to stand beside the real headers. */
enum {
#define ONEDNN_ENUM(name, value) ONEDNN_##name = value,
    ONEDNN_CONSTANTS(ONEDNN_ENUM)
#undef ONEDNN_ENUM
};

struct onednn_api {
#define ONEDNN_FIELD(result, name, parameters) result(*name) parameters;
    ONEDNN_ENTRY_POINTS(ONEDNN_FIELD)
#undef ONEDNN_FIELD
};

enum {
#define ONEDNN_ONE(result, name, parameters) +1
    ONEDNN_ENTRY_POINT_COUNT = 0 ONEDNN_ENTRY_POINTS(ONEDNN_ONE)
#undef ONEDNN_ONE
};

/* The name of an entry point, by its place in the table. */
static inline const char *onednn_name(int n) {
#define ONEDNN_NAME(result, name, parameters) #name,
    static const char *const names[] = {ONEDNN_ENTRY_POINTS(ONEDNN_NAME)};
#undef ONEDNN_NAME
    return names[n];
}

static inline void onednn_set(struct onednn_api *api, int n, uintptr_t address) {
    ((uintptr_t *)api)[n] = address;
}

#endif
