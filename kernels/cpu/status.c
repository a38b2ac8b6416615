/* Status texts, the table of score types, and the writer of error details. */
#include "cpu/detail.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const status_texts[] = {
#define STATUS_TEXT(name, text) text,
    TOPK_STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
};

const char *topk_strerror(enum topk_status status)
{
    size_t code = (size_t)status; /* a negative code becomes a large one */
    size_t count = sizeof(status_texts) / sizeof(status_texts[0]);
    return code < count ? status_texts[code] : "unknown status";
}

uint32_t topk_dtype_bytes(enum topk_dtype dtype)
{
    static const uint32_t sizes[] = {
#define DTYPE_BYTES(name, short_name, bytes) bytes,
        TOPK_DTYPE_TABLE(DTYPE_BYTES)
#undef DTYPE_BYTES
    };
    return (unsigned)dtype < (unsigned)TOPK_DTYPE_COUNT ? sizes[dtype] : 0;
}

const char *topk_dtype_name(enum topk_dtype dtype)
{
    static const char *const names[] = {
#define DTYPE_NAME(name, short_name, bytes) short_name,
        TOPK_DTYPE_TABLE(DTYPE_NAME)
#undef DTYPE_NAME
    };
    return (unsigned)dtype < (unsigned)TOPK_DTYPE_COUNT ? names[dtype] : "unknown";
}

enum topk_status topk_detail(char *detail, enum topk_status status, const char *format, ...)
{
    if (detail != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(detail, TOPK_DETAIL_SIZE, format, arguments);
        va_end(arguments);
    }
    return status;
}
