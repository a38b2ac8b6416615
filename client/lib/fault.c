/* fault.c - error texts, and the public functions that read them. */
#include "fault.h"

#include "topkd.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static __thread char thread_detail[WIRE_DETAIL_SIZE];

char *fault_detail(void)
{
    return thread_detail;
}

enum topkd_status fault(char *detail, enum topkd_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(detail, WIRE_DETAIL_SIZE, format, arguments);
    va_end(arguments);
    return status;
}

enum topkd_status fault_system(char *detail, const char *what, int error)
{
    char buffer[128];
    const char *text = strerror_r(error, buffer, sizeof(buffer)); /* the GNU one */
    return fault(detail, error == ENOMEM ? TOPKD_E_NO_MEMORY : TOPKD_E_SYSTEM, "%s: %s", what,
                 text);
}

const char *topkd_strerror(enum topkd_status status)
{
    return wire_status_text(status);
}

const char *topkd_strhint(enum topkd_status status)
{
    return wire_status_hint(status);
}

const char *topkd_status_name(enum topkd_status status)
{
    return wire_status_name(status);
}

const char *topkd_detail(void)
{
    return thread_detail;
}

#define TEXT(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *topkd_version(void)
{
    return VERSION_TEXT(TOPKD_VERSION_MAJOR, TOPKD_VERSION_MINOR, TOPKD_VERSION_PATCH);
}
