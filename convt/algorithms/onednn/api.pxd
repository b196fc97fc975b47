"""Declarations of the part of oneDNN's C API that convt uses (third_party/onednn)."""

from libc.stdint cimport int64_t, uintptr_t

cdef extern from "onednn_api.h" nogil:
    const unsigned ONEDNN_dnnl_success, ONEDNN_dnnl_out_of_memory, ONEDNN_dnnl_invalid_arguments
    const unsigned ONEDNN_dnnl_unimplemented, ONEDNN_dnnl_runtime_error
    const unsigned ONEDNN_DNNL_RUNTIME_SEQ, ONEDNN_DNNL_RUNTIME_OMP, ONEDNN_DNNL_RUNTIME_TBB
    const unsigned ONEDNN_DNNL_RUNTIME_THREADPOOL, ONEDNN_DNNL_RUNTIME_SYCL
    const unsigned ONEDNN_dnnl_cpu, ONEDNN_dnnl_stream_in_order
    const unsigned ONEDNN_dnnl_format_tag_any
    const unsigned ONEDNN_dnnl_scratchpad_mode_user, ONEDNN_dnnl_forward_inference, ONEDNN_dnnl_deconvolution_direct
    const unsigned ONEDNN_dnnl_binary_add
    const unsigned ONEDNN_dnnl_query_impl_info_str, ONEDNN_dnnl_query_weights_md, ONEDNN_dnnl_query_scratchpad_md
    const int ONEDNN_DNNL_ARG_SRC, ONEDNN_DNNL_ARG_SRC_1, ONEDNN_DNNL_ARG_DST, ONEDNN_DNNL_ARG_WEIGHTS, ONEDNN_DNNL_ARG_BIAS
    const int ONEDNN_DNNL_ARG_SCRATCHPAD
    const unsigned ONEDNN_dnnl_cpu_isa_sse41, ONEDNN_dnnl_cpu_isa_avx, ONEDNN_dnnl_cpu_isa_avx2
    const unsigned ONEDNN_dnnl_cpu_isa_avx2_vnni, ONEDNN_dnnl_cpu_isa_avx2_vnni_2, ONEDNN_dnnl_cpu_isa_avx512_core
    const unsigned ONEDNN_dnnl_cpu_isa_avx512_core_vnni, ONEDNN_dnnl_cpu_isa_avx512_core_bf16
    const unsigned ONEDNN_dnnl_cpu_isa_avx512_core_fp16, ONEDNN_dnnl_cpu_isa_avx512_core_amx
    const unsigned ONEDNN_dnnl_cpu_isa_avx512_core_amx_fp16
    ctypedef int64_t onednn_dims[12]
    ctypedef void *onednn_engine
    ctypedef void *onednn_stream
    ctypedef void *onednn_desc
    ctypedef const void *onednn_const_desc
    ctypedef void *onednn_memory
    ctypedef void *onednn_post_ops
    ctypedef void *onednn_attr
    ctypedef void *onednn_primitive_desc
    ctypedef void *onednn_primitive
    ctypedef struct onednn_version:
        int major, minor, patch
        unsigned cpu_runtime
    ctypedef struct onednn_exec_arg:
        int arg
        onednn_memory memory
    struct onednn_api:
        const onednn_version *(*dnnl_version)() noexcept nogil
        unsigned (*dnnl_get_effective_cpu_isa)() noexcept nogil
        unsigned (*dnnl_engine_create)(onednn_engine *, unsigned, size_t) noexcept nogil
        unsigned (*dnnl_stream_create)(onednn_stream *, onednn_engine, unsigned) noexcept nogil
        unsigned (*dnnl_stream_wait)(onednn_stream) noexcept nogil
        unsigned (*dnnl_stream_destroy)(onednn_stream) noexcept nogil
        unsigned (*dnnl_memory_desc_create_with_strides)(
            onednn_desc *, int, const int64_t *, unsigned, const int64_t *) noexcept nogil
        unsigned (*dnnl_memory_desc_create_with_tag)(
            onednn_desc *, int, const int64_t *, unsigned, unsigned) noexcept nogil
        int (*dnnl_memory_desc_equal)(onednn_const_desc, onednn_const_desc) noexcept nogil
        size_t (*dnnl_memory_desc_get_size)(onednn_const_desc) noexcept nogil
        unsigned (*dnnl_memory_desc_destroy)(onednn_desc) noexcept nogil
        unsigned (*dnnl_memory_create)(onednn_memory *, onednn_const_desc, onednn_engine, void *) noexcept nogil
        unsigned (*dnnl_memory_set_data_handle)(onednn_memory, void *) noexcept nogil
        unsigned (*dnnl_memory_destroy)(onednn_memory) noexcept nogil
        unsigned (*dnnl_post_ops_create)(onednn_post_ops *) noexcept nogil
        unsigned (*dnnl_post_ops_append_eltwise)(onednn_post_ops, unsigned, float, float) noexcept nogil
        unsigned (*dnnl_post_ops_destroy)(onednn_post_ops) noexcept nogil
        unsigned (*dnnl_primitive_attr_create)(onednn_attr *) noexcept nogil
        unsigned (*dnnl_primitive_attr_set_scratchpad_mode)(onednn_attr, unsigned) noexcept nogil
        unsigned (*dnnl_primitive_attr_set_post_ops)(onednn_attr, onednn_post_ops) noexcept nogil
        unsigned (*dnnl_primitive_attr_destroy)(onednn_attr) noexcept nogil
        unsigned (*dnnl_deconvolution_forward_primitive_desc_create)(
            onednn_primitive_desc *, onednn_engine, unsigned, unsigned, onednn_const_desc, onednn_const_desc,
            onednn_const_desc, onednn_const_desc, const int64_t *, const int64_t *, const int64_t *, const int64_t *,
            onednn_attr) noexcept nogil
        unsigned (*dnnl_binary_primitive_desc_create)(
            onednn_primitive_desc *, onednn_engine, unsigned, onednn_const_desc, onednn_const_desc, onednn_const_desc,
            onednn_attr) noexcept nogil
        unsigned (*dnnl_reorder_primitive_desc_create)(
            onednn_primitive_desc *, onednn_const_desc, onednn_engine, onednn_const_desc, onednn_engine,
            onednn_attr) noexcept nogil
        unsigned (*dnnl_primitive_desc_query)(onednn_primitive_desc, unsigned, int, void *) noexcept nogil
        onednn_const_desc (*dnnl_primitive_desc_query_md)(onednn_primitive_desc, unsigned, int) noexcept nogil
        unsigned (*dnnl_primitive_desc_destroy)(onednn_primitive_desc) noexcept nogil
        unsigned (*dnnl_primitive_create)(onednn_primitive *, onednn_primitive_desc) noexcept nogil
        unsigned (*dnnl_primitive_execute)(onednn_primitive, onednn_stream, int, const onednn_exec_arg *) noexcept nogil
        unsigned (*dnnl_primitive_destroy)(onednn_primitive) noexcept nogil
    const int ONEDNN_ENTRY_POINT_COUNT
    const char *onednn_name(int)
    void onednn_set(onednn_api *, int, uintptr_t)

