/* The part of XLA's foreign function interface (FFI) that convt uses, declared in convt's own words.
 *
 * XLA hands a handler one structure, the call frame, and a table of entry points whose order never changes: later versions append
 * to both. Each structure begins with its size, which says what the other side knows. XLA_ENTRIES names the entry points that
 * convt calls, by their place in the table. README.md has origin and licence.
 */
#ifndef CONVT_XLA_FFI_H
#define CONVT_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

/* The version of the interface that these declarations were written for: that of jaxlib 0.9. */
#define XLA_MAJOR 0
#define XLA_MINOR 3

enum { XLA_METADATA = 1 };                        /* type of an extension */
enum { XLA_INSTANTIATE = 0, XLA_EXECUTE = 3 };    /* stages */
enum { XLA_STRING = 4 };                          /* type of an attribute */
enum { XLA_INTERNAL = 13, XLA_EXHAUSTED = 8 };    /* error codes */
enum { XLA_F16 = 10, XLA_F32 = 11, XLA_F64 = 12, XLA_BF16 = 16 };

typedef struct XlaError XlaError; /* NULL: success */
typedef struct XlaContext XlaContext;
typedef void (*XlaEntry)(void);

typedef struct XlaExtension {
    size_t size;
    int type;
    struct XlaExtension *next;
} XlaExtension;

#define XLA_HEAD size_t size; XlaExtension *extension

typedef struct { XLA_HEAD; int major, minor; } XlaVersion;
typedef struct { XLA_HEAD; XlaVersion version; const void *internal; XlaEntry entries[]; } XlaApi;
typedef struct { int64_t id; } XlaTypeId;
typedef struct { XLA_HEAD; void (*destroy)(void *object); } XlaTypeInfo;
typedef struct { size_t size; XlaVersion version; uint32_t traits; XlaTypeId state_type; } XlaMetadata;
typedef struct { XlaExtension base; XlaMetadata *metadata; } XlaMetadataExtension;
/* What XLA gives as the size: version 0.3 has state_type, but does not count it. */
#define XLA_METADATA_BYTES (offsetof(XlaMetadata, traits) + sizeof(uint32_t))

typedef struct { const char *text; size_t length; } XlaSpan;
typedef struct { XLA_HEAD; int dtype; void *data; int64_t rank; int64_t *sizes; } XlaBuffer;
typedef struct { XLA_HEAD; int64_t count; int *types; void **values; } XlaBuffers; /* arguments or results */
typedef struct { XLA_HEAD; int64_t count; int *types; XlaSpan **names; void **values; } XlaAttributes;
typedef struct {
    XLA_HEAD;
    const XlaApi *api;
    XlaContext *context;
    int stage;
    XlaBuffers arguments, results;
    XlaAttributes attributes;
} XlaCall; /* the call frame; XLA appends a field that a handler may leave alone */

/* Arguments of the entry points. */
typedef struct { XLA_HEAD; const char *message; int code; } XlaErrorCreate;
typedef struct { XLA_HEAD; XlaError *error; } XlaErrorDestroy;
typedef struct { XLA_HEAD; XlaSpan name; XlaTypeId *id; const XlaTypeInfo *info; } XlaTypeRegister;
typedef struct { XLA_HEAD; XlaContext *context; int stage; XlaTypeId *id; void *state; } XlaState;
typedef struct { XLA_HEAD; XlaContext *context; void (*task)(void *); void *data; } XlaSchedule;
typedef struct { XLA_HEAD; XlaContext *context; int64_t *threads; } XlaThreads;

/* F(place, function, type of the result, type of the arguments) */
#define XLA_ENTRIES(F) \
    F(0, xla_error_create, XlaError *, XlaErrorCreate) \
    F(2, xla_error_destroy, void, XlaErrorDestroy) \
    F(5, xla_type_register, XlaError *, XlaTypeRegister) \
    F(7, xla_state_set, XlaError *, XlaState) \
    F(8, xla_state_get, XlaError *, XlaState) \
    F(11, xla_schedule, XlaError *, XlaSchedule) \
    F(12, xla_threads, XlaError *, XlaThreads)
#define XLA_ENTRY_COUNT 13 /* the last place, plus one */

#define F(place, function, result, type) \
    static inline result function(const XlaApi *api, type *arguments) \
    { \
        arguments->size = sizeof *arguments; \
        arguments->extension = NULL; \
        return ((result (*)(type *))api->entries[place])(arguments); \
    }
XLA_ENTRIES(F)
#undef F

/* Returns whether a table has all of these entry points, with the meaning that they have here. */
static inline int xla_supported(const XlaApi *api)
{
    return api->version.major == XLA_MAJOR && api->version.minor >= XLA_MINOR &&
           api->size >= offsetof(XlaApi, entries) + XLA_ENTRY_COUNT * sizeof(XlaEntry);
}

#endif
