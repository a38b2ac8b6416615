#include "detail.h"

#include <stdarg.h>
#include <stdio.h>

enum topkd_status detail_set(char *detail, enum topkd_status status, const char *format, ...)
{
    if (detail != NULL) {
        va_list list;
        va_start(list, format);
        (void)vsnprintf(detail, WIRE_DETAIL_SIZE, format, list);
        va_end(list);
    }
    return status;
}
