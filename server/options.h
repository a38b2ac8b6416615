/*
 * options.h - the command line of topkd, and the settings that come of it.
 */
#ifndef TOPKD_SERVER_OPTIONS_H
#define TOPKD_SERVER_OPTIONS_H

#include "settings.h"

#include <stdbool.h>

#define OPTIONS_ERROR_SIZE 256u

enum options_mode {
    OPTIONS_RUN,
    OPTIONS_CHECK_CONFIG,
    OPTIONS_PRINT_CONFIG,
    OPTIONS_VERSION,
    OPTIONS_HELP,
    OPTIONS_WORKER /* started by a supervisor, see options_worker_argv */
};

/* Strings point into argv; NULL: not given. */
struct options {
    enum options_mode mode;
    bool json;
    bool allow_shared_pid1;
    const char *config, *socket_dir, *device, *log_level;
    char *const *worker_argv; /* OPTIONS_WORKER: what follows --worker */
    int worker_argc;
};

/* False with a text for the user when the command line is wrong. Not thread-safe (getopt). */
bool options_parse(int argc, char *const *argv, struct options *options_p,
                   char error[OPTIONS_ERROR_SIZE]);

/*
 * The settings in force: the file (or the defaults), and the command line over it. An automatic
 * runtime folder and the device list stay as configured. Errors as of settings_load_file.
 */
enum topkd_status options_settings(const struct options *options, struct settings *settings_p,
                                   struct settings_report *report);

/* The text of --help. */
extern const char options_help[];

#endif
