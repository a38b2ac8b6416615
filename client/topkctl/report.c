/* Failures, told to a person on stderr and to a program on stdout. */
#include "ctl.h"
#include "json.h"
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_SIZE 1024u

static void report_json(const char *name, const char *message, const char *hint)
{
    struct json json = json_of(stdout);
    json_open_object(&json, NULL);
    json_open_object(&json, "error");
    json_string(&json, "status", name);
    json_string(&json, "message", message);
    json_string(&json, "hint", hint);
    json_close_object(&json);
    json_close_object(&json);
    json_end(&json);
}

enum ctl_exit report_status(const struct ctl_options *options, const char *what,
                            enum topkd_status status, const char *detail)
{
    char message[MESSAGE_SIZE];
    const bool is_named = strstr(detail, what) != NULL; /* once is enough */
    snprintf(message, sizeof(message), "%s%s%s%s%s", is_named ? "" : what, is_named ? "" : ": ",
             topkd_strerror(status), detail[0] != '\0' ? ": " : "", detail);
    progress_wipe();
    if (!options->is_quiet) {
        fprintf(stderr, "topkctl: %s (%s)\n", message, topkd_strhint(status));
    }
    if (options->json && !options->is_quiet) {
        report_json(topkd_status_name(status), message, topkd_strhint(status));
    }
    return status == TOPKD_E_UNREACHABLE ? CTL_EXIT_UNREACHABLE : CTL_EXIT_FAILED;
}

enum ctl_exit report_failure(const struct ctl_options *options, enum ctl_exit code,
                             const char *format, ...)
{
    char message[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    progress_wipe();
    if (!options->is_quiet) {
        fprintf(stderr, "topkctl: %s\n", message);
    }
    if (options->json && !options->is_quiet) {
        report_json(code == CTL_EXIT_NOT_EXACT ? "NOT_EXACT" : "FAILED", message, "");
    }
    return code;
}
