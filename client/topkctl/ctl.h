/*
 * ctl.h - what all commands of topkctl share: exit codes, parsed options, error reports.
 */
#ifndef TOPKCTL_CTL_H
#define TOPKCTL_CTL_H

#include "topk_select.h"
#include "topkd.h"

#include <stdbool.h>
#include <stdint.h>

/* Exit codes: name, number, meaning. Scripts rely on the numbers. */
#define CTL_EXIT_TABLE(X)                                                                          \
    X(CTL_EXIT_OK, 0, "done")                                                                      \
    X(CTL_EXIT_FAILED, 1, "the operation failed, or a file is not acceptable")                     \
    X(CTL_EXIT_USAGE, 2, "the command line is wrong; nothing was done")                            \
    X(CTL_EXIT_UNREACHABLE, 3, "the daemon cannot be reached")                                     \
    X(CTL_EXIT_NOT_EXACT, 4, "select --verify found a wrong row")

enum ctl_exit {
#define CTL_EXIT_ENUM(name, number, text) name = number,
    CTL_EXIT_TABLE(CTL_EXIT_ENUM)
#undef CTL_EXIT_ENUM
};

/* Commands: identifier, word, operand, function, one line of help. */
#define CTL_COMMAND_TABLE(X)                                                                       \
    X(CTL_PING, "ping", "", command_ping, "time round trips to a device's worker")                 \
    X(CTL_DEVICES, "devices", "", command_devices, "list the daemon's devices")                    \
    X(CTL_SESSIONS, "sessions", "", command_sessions, "list the clients of each device")           \
    X(CTL_STATS, "stats", "", command_stats, "show counters and latencies of each device")         \
    X(CTL_TOP, "top", "", command_top, "show live what devices and clients do")                    \
    X(CTL_BENCH, "bench", "", command_bench, "load the daemon with clients, and measure")          \
    X(CTL_DRAIN, "drain", "", command_drain, "have the daemon finish its work and end")            \
    X(CTL_CHECK_CONFIG, "check-config", "FILE", command_check_config,                              \
      "check a configuration file, without a daemon")                                              \
    X(CTL_SELECT, "select", "FILE.npy", command_select,                                            \
      "select from a matrix of scores in a file")                                                  \
    X(CTL_DOCTOR, "doctor", "", command_doctor,                                                    \
      "look for what stands in the way, with a fix for each")                                      \
    X(CTL_VERSION, "version", "", command_version, "print versions")

enum ctl_command {
#define CTL_COMMAND_ENUM(name, word, operand, function, text) name,
    CTL_COMMAND_TABLE(CTL_COMMAND_ENUM) CTL_COMMAND_COUNT
#undef CTL_COMMAND_ENUM
};

#define CTL_CLIENTS_MAX 256u /* choice: processes of one bench */
#define CTL_SHAPES_MAX 16u   /* choice: shapes of one bench */

/* What a bench selects from: name, word. */
#define CTL_SCORES_TABLE(X)                                                                        \
    X(CTL_SCORES_RANDOM, "random")                                                                 \
    X(CTL_SCORES_TIES, "ties")                                                                     \
    X(CTL_SCORES_EQUAL, "equal")

enum ctl_scores {
#define CTL_SCORES_ENUM(name, word) name,
    CTL_SCORES_TABLE(CTL_SCORES_ENUM)
#undef CTL_SCORES_ENUM
};

struct ctl_shape {
    uint32_t rows, width, k;
};

/* The command line. Strings belong to argv. */
struct ctl_options {
    enum ctl_command command;
    const char *operand; /* NULL for commands without one */
    const char *url;     /* NULL: the library's default */
    const char *device;  /* NULL: the first ready one, or all */
    uint32_t timeout_ms; /* 0: the library's default */
    bool timeout_given;
    bool json;
    /* drain */
    uint32_t deadline_ms;
    /* select */
    const char *lengths, *page_table, *row_offsets, *out, *values; /* paths or NULL */
    uint32_t k;
    enum topk_order order;
    enum topk_ties ties;
    enum topk_dtype dtype;
    bool dtype_given;
    bool order_given, deterministic, verify, local;
    uint32_t page_size_log2;
    bool page_size_given;
    uint32_t num_threads; /* 0: not given; of a bench: a client process, then 1 */
    /* bench */
    uint32_t num_clients, outstanding, duration_ms, seed;
    enum ctl_scores scores_kind;
    uint32_t num_shapes;
    struct ctl_shape shapes[CTL_SHAPES_MAX];
    /* top */
    uint32_t interval_ms, num_rounds; /* rounds 0: until it is ended */
    bool is_quiet;                    /* failures are the caller's to show */
};

/*
 * Parses. CTL_EXIT_USAGE after saying on stderr what is wrong; otherwise CTL_EXIT_OK, with *done_p
 * when help was asked and printed, and the program should end.
 */
enum ctl_exit options_parse(int argc, char **argv, struct ctl_options *options_p, bool *done_p);

const char *options_order_name(enum topk_order order); /* "any", "index", "value" */
const char *options_ties_name(enum topk_ties ties);    /* "any", "lowest" */
const char *options_scores_name(enum ctl_scores scores);

#define CTL_COMMAND_FUNCTION(name, word, operand, function, text)                                  \
    enum ctl_exit function(const struct ctl_options *options);
CTL_COMMAND_TABLE(CTL_COMMAND_FUNCTION)
#undef CTL_COMMAND_FUNCTION

/*
 * Reports a failure on stderr ("topkctl: <what>: <text>: <detail> (<hint>)") and, with --json, as
 * {"error":{...}} on stdout. Returns the exit code for the status. `detail` may be "".
 */
enum ctl_exit report_status(const struct ctl_options *options, const char *what,
                            enum topkd_status status, const char *detail);

/* The same for a failure that has no status of the daemon; returns `code`. */
enum ctl_exit report_failure(const struct ctl_options *options, enum ctl_exit code,
                             const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
