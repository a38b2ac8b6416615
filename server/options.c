#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

const char options_help[] =
    "Usage: topkd [OPTION]...\n"
    "Serves exact top-K selection to every process of this machine. Stays in the foreground.\n"
    "\n"
    "  --config FILE         read settings from FILE (YAML); the defaults without\n"
    "  --socket-dir DIR      runtime folder of sockets and lock, over socket.directory\n"
    "  --device DEVICE       serve this device alone: cpu, GPU-... or auto, over devices\n"
    "  --log-level LEVEL     error, warn, info or debug, over log.level\n"
    "  --allow-shared-pid1   run although other processes depend on this PID 1\n"
    "\n"
    "  --check-config        check --config FILE and exit; --json for programs\n"
    "  --print-config        print the settings in force, commented, and exit\n"
    "  --version             print the version and exit; --json for programs\n"
    "  --help                print this and exit\n"
    "\n"
    "Signals: SIGTERM, SIGINT drain and end (twice: at once); SIGHUP reads FILE again.\n"
    "Exit codes: 0 ended as asked, 64 wrong command line, 66 FILE cannot be read, 69 no such\n"
    "device in this build, 70 internal error, 71 system error, 73 the runtime folder cannot be\n"
    "made, 75 another topkd runs there, 77 no permission for the folder, 78 wrong settings or\n"
    "refused as PID 1.\n";

enum option_id {
    ID_CONFIG = 1,
    ID_SOCKET_DIR,
    ID_DEVICE,
    ID_LOG_LEVEL,
    ID_ALLOW_SHARED_PID1,
    ID_JSON,
    ID_CHECK_CONFIG,
    ID_PRINT_CONFIG,
    ID_VERSION,
    ID_HELP
};

static const struct option long_options[] = {
    {"config", required_argument, NULL, ID_CONFIG},
    {"socket-dir", required_argument, NULL, ID_SOCKET_DIR},
    {"device", required_argument, NULL, ID_DEVICE},
    {"log-level", required_argument, NULL, ID_LOG_LEVEL},
    {"allow-shared-pid1", no_argument, NULL, ID_ALLOW_SHARED_PID1},
    {"json", no_argument, NULL, ID_JSON},
    {"check-config", no_argument, NULL, ID_CHECK_CONFIG},
    {"print-config", no_argument, NULL, ID_PRINT_CONFIG},
    {"version", no_argument, NULL, ID_VERSION},
    {"help", no_argument, NULL, ID_HELP},
    {NULL, 0, NULL, 0},
};

static bool set_mode(struct options *options, enum options_mode mode, char *error)
{
    if (options->mode != OPTIONS_RUN && options->mode != mode) {
        snprintf(error, OPTIONS_ERROR_SIZE,
                 "--check-config, --print-config, --version and --help exclude each other; give "
                 "one");
        return false;
    }
    options->mode = mode;
    return true;
}

static bool take_option(struct options *options, int id, const char *value, char *error)
{
    switch ((enum option_id)id) {
    case ID_CONFIG:
        options->config = value;
        return true;
    case ID_SOCKET_DIR:
        options->socket_dir = value;
        return true;
    case ID_DEVICE:
        options->device = value;
        return true;
    case ID_LOG_LEVEL:
        options->log_level = value;
        return true;
    case ID_ALLOW_SHARED_PID1:
        options->allow_shared_pid1 = true;
        return true;
    case ID_JSON:
        options->json = true;
        return true;
    case ID_CHECK_CONFIG:
        return set_mode(options, OPTIONS_CHECK_CONFIG, error);
    case ID_PRINT_CONFIG:
        return set_mode(options, OPTIONS_PRINT_CONFIG, error);
    case ID_VERSION:
        return set_mode(options, OPTIONS_VERSION, error);
    case ID_HELP:
        return set_mode(options, OPTIONS_HELP, error);
    }
    return false;
}

static bool check_combination(const struct options *options, char *error)
{
    if (options->mode == OPTIONS_CHECK_CONFIG && options->config == NULL) {
        snprintf(error, OPTIONS_ERROR_SIZE, "--check-config needs --config FILE");
        return false;
    }
    if (options->json && options->mode != OPTIONS_CHECK_CONFIG &&
        options->mode != OPTIONS_VERSION) {
        snprintf(error, OPTIONS_ERROR_SIZE, "--json goes with --check-config or --version");
        return false;
    }
    return true;
}

bool options_parse(int argc, char *const *argv, struct options *options_p,
                   char error[OPTIONS_ERROR_SIZE])
{
    struct options options = {.mode = OPTIONS_RUN};
    if (argc > 1 && strcmp(argv[1], "--worker") == 0) {
        options.mode = OPTIONS_WORKER;
        options.worker_argv = argv + 2;
        options.worker_argc = argc - 2;
        *options_p = options;
        return true;
    }
    optind = 0; /* glibc: start anew, also when it has parsed before */
    opterr = 0;
    for (;;) {
        int idx = 0;
        int id = getopt_long(argc, argv, "", long_options, &idx);
        if (id == -1)
            break;
        if (id == '?') {
            if (optopt > ID_HELP)
                snprintf(error, OPTIONS_ERROR_SIZE, "-%c: unknown option; see --help", optopt);
            else
                snprintf(error, OPTIONS_ERROR_SIZE, "%.100s: %s; see --help", argv[optind - 1],
                         optopt == 0 ? "unknown option"
                                     : "an argument is missing, or one is too many");
            return false;
        }
        if (!take_option(&options, id, optarg, error))
            return false;
    }
    if (optind < argc) {
        snprintf(error, OPTIONS_ERROR_SIZE,
                 "%.100s: unexpected argument; every option begins with --, see --help",
                 argv[optind]);
        return false;
    }
    if (!check_combination(&options, error))
        return false;
    *options_p = options;
    return true;
}

enum topkd_status options_settings(const struct options *options, struct settings *settings_p,
                                   struct settings_report *report)
{
    struct settings settings;
    enum topkd_status status = TOPKD_OK;
    settings_init(&settings);
    if (options->config != NULL)
        status = settings_load_file(options->config, &settings, report);
    if (status == TOPKD_OK && options->socket_dir != NULL)
        status = settings_set(&settings, "socket.directory", options->socket_dir, "--socket-dir",
                              report);
    if (status == TOPKD_OK && options->log_level != NULL)
        status = settings_set(&settings, "log.level", options->log_level, "--log-level", report);
    if (status == TOPKD_OK && options->device != NULL)
        status = settings_set_device(&settings, options->device, "--device", report);
    if (status == TOPKD_OK)
        *settings_p = settings;
    return status;
}
