/* topkd: the supervisor, or with --worker (by the supervisor only) one worker. */
#include "assert.h"
#include "control.h"
#include "figures.h"
#include "log.h"
#include "options.h"
#include "settings.h"
#include "supervisor.h"
#include "supervisor_system.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

/* A JSON string, quotes included. */
static void print_json_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

static uint32_t num_lines(const struct settings_report *report)
{
    return report->num_errors < SETTINGS_REPORT_LINES ? report->num_errors : SETTINGS_REPORT_LINES;
}

static void print_report(const struct settings_report *report)
{
    for (uint32_t i = 0; i < num_lines(report); i++)
        fprintf(stderr, "topkd: %s\n", report->lines[i]);
    if (report->num_errors > SETTINGS_REPORT_LINES)
        fprintf(stderr, "topkd: and %u more errors\n", report->num_errors - SETTINGS_REPORT_LINES);
}

static int exit_code_of(enum topkd_status status)
{
    if (status == TOPKD_OK)
        return EX_OK;
    if (status == TOPKD_E_SYSTEM)
        return EX_NOINPUT;
    return status == TOPKD_E_INVALID ? EX_CONFIG : EX_OSERR;
}

static int check_config(const struct options *options)
{
    static struct settings settings;
    static struct settings_report report;
    enum topkd_status status = options_settings(options, &settings, &report);
    if (options->json) {
        printf("{\"file\": ");
        print_json_string(stdout, options->config);
        printf(", \"ok\": %s, \"num_errors\": %u, \"errors\": [",
               status == TOPKD_OK ? "true" : "false", report.num_errors);
        for (uint32_t i = 0; i < num_lines(&report); i++) {
            fputs(i == 0 ? "" : ", ", stdout);
            print_json_string(stdout, report.lines[i]);
        }
        printf("]}\n");
    } else if (status == TOPKD_OK) {
        printf("%s: ok\n", options->config);
    } else {
        print_report(&report);
    }
    return exit_code_of(status);
}

static int print_config(const struct options *options)
{
    static struct settings settings;
    static struct settings_report report;
    enum topkd_status status = options_settings(options, &settings, &report);
    if (status != TOPKD_OK)
        print_report(&report);
    else
        settings_print(&settings, true, stdout);
    return exit_code_of(status);
}

static int print_version(const struct options *options)
{
    if (options->json)
        printf("{\"name\": \"topkd\", \"version\": \"%s\", \"wire_version\": %u}\n",
               TOPKD_VERSION_TEXT, WIRE_VERSION);
    else
        printf("topkd %s (wire version %u)\n", TOPKD_VERSION_TEXT, WIRE_VERSION);
    return EX_OK;
}

static int run_supervisor(const struct options *options)
{
    static struct settings settings;
    static struct settings_report report;
    /* A change of the file from here on is answered when the supervisor looks for signals. */
    system_hold_reload(true);
    enum topkd_status status = options_settings(options, &settings, &report);
    if (status == TOPKD_OK)
        status = settings_resolve_directory(&settings, &report);
    if (status != TOPKD_OK) {
        print_report(&report);
        return exit_code_of(status);
    }
    umask(0077);
    signal(SIGPIPE, SIG_IGN);
    system_prepare_descriptors();
    log_init("supervisor", (enum log_level)settings.log.level, settings.log.rate_per_s);
    return supervisor_main(options, &settings);
}

/* ---- Worker: device threads epoch shm_prefix url --------------------------------------------- */

#define WORKER_ARGC 5

static bool copy_argument(char *to, size_t size, const char *from)
{
    return snprintf(to, size, "%s", from) < (int)size;
}

static bool read_number(const char *text, uint64_t max, uint64_t *number_p)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *number_p = number;
    return errno == 0 && end != text && *end == '\0' && number <= max;
}

static bool read_worker_args(const struct options *options, struct worker_args *args)
{
    char *const *argv = options->worker_argv;
    uint64_t threads = 0;
    if (options->worker_argc != WORKER_ARGC ||
        !copy_argument(args->device, sizeof args->device, argv[0]) ||
        !read_number(argv[1], SETTINGS_THREADS_MAX, &threads) ||
        !read_number(argv[2], UINT64_MAX, &args->epoch) ||
        !copy_argument(args->shm_prefix, sizeof args->shm_prefix, argv[3]) ||
        !copy_argument(args->url, sizeof args->url, argv[4]))
        return false;
    args->threads = (uint32_t)threads;
    args->control_fd = CONTROL_FD;
    return true;
}

static bool is_control_channel(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

static int run_worker(const struct options *options)
{
    static struct settings settings;
    static struct settings_report report;
    static struct worker_args args;
    static char role[16 + WIRE_UUID_SIZE];
    /* The kernel ends a worker whose supervisor dies; the end of the channel would do it too, but
     * only in a worker that still looks. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!is_control_channel(CONTROL_FD) || !read_worker_args(options, &args)) {
        fprintf(stderr, "topkd: --worker is how topkd starts its own workers; start topkd without "
                        "it\n");
        return EX_USAGE;
    }
    enum topkd_status status =
        settings_load_fd(CONTROL_CONFIG_FD, "settings of the supervisor", &settings, &report);
    if (status != TOPKD_OK) {
        print_report(&report);
        return exit_code_of(status);
    }
    close(CONTROL_CONFIG_FD);
    /* The page of figures is mapped by the worker, which has no more use for its descriptor. */
    args.figures_fd = fcntl(FIGURES_FD, F_GET_SEALS) >= 0 ? FIGURES_FD : -1;
    /* Whatever slipped through the start of the process. */
    close_range(args.figures_fd >= 0 ? FIGURES_FD + 1 : CONTROL_FD + 1, ~0u, 0);
    snprintf(role, sizeof role, "worker-%.*s", (int)sizeof args.device - 1, args.device);
    (void)prctl(PR_SET_NAME, role); /* the first 15 characters, in ps and top */
    unsetenv("NOTIFY_SOCKET");      /* the supervisor alone speaks to systemd */
    umask(0077);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, SIG_IGN); /* a terminal or systemd may send these to the whole group */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    log_init(role, (enum log_level)settings.log.level, settings.log.rate_per_s);
    return worker_main(&settings, &args);
}

int main(int argc, char **argv)
{
    struct options options;
    char error[OPTIONS_ERROR_SIZE];
    int code = EX_OK;
    if (!options_parse(argc, argv, &options, error)) {
        fprintf(stderr, "topkd: %s\n", error);
        return EX_USAGE;
    }
    switch (options.mode) {
    case OPTIONS_RUN:
        return run_supervisor(&options);
    case OPTIONS_WORKER:
        return run_worker(&options);
    case OPTIONS_CHECK_CONFIG:
        code = check_config(&options);
        break;
    case OPTIONS_PRINT_CONFIG:
        code = print_config(&options);
        break;
    case OPTIONS_VERSION:
        code = print_version(&options);
        break;
    case OPTIONS_HELP:
        fputs(options_help, stdout);
        break;
    }
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        fprintf(stderr, "topkd: cannot write the output: %s\n", strerror(errno));
        return EX_IOERR;
    }
    return code;
}
