/* Status texts and the writer of error details. */
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
