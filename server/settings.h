/*
 * settings.h - the daemon's settings as plain data, read from YAML.
 *
 * settings_table.h is the one source of names, types, ranges, defaults and texts. All functions
 * are pure but for what they say about files, users and groups; none keeps a pointer. Any thread.
 */
#ifndef TOPKD_SERVER_SETTINGS_H
#define TOPKD_SERVER_SETTINGS_H

#include "peer.h"
#include "settings_table.h"
#include "topkd_status.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define SETTINGS_DEVICES_MAX WIRE_DEVICES_MAX
#define SETTINGS_BUCKETS_MAX 64u    /* choice: configured buckets; each is captured before ready */
#define SETTINGS_IDS_MAX 64u        /* choice: entries of an access list */
#define SETTINGS_THREADS_MAX 256u   /* limit of topk_cpu_create */
#define SETTINGS_DIRECTORY_SIZE 61u /* 107 of sun_path less "/GPU-<36 characters>.sock"; NUL */
#define SETTINGS_TEXT_SIZE_MAX 65536u /* choice: bytes of a configuration */
#define SETTINGS_REPORT_LINES 16u /* choice: errors reported at once; further ones are counted */
#define SETTINGS_LINE_SIZE 384u
#define SETTINGS_GROUP_NONE (-1)
#define SETTINGS_SOCKET_NAME "topkd.sock" /* in socket.directory: where clients begin */

/* A list of uids or gids, in the order of the file, without repetitions. */
struct settings_ids {
    uint32_t num_ids;
    uint32_t ids[SETTINGS_IDS_MAX];
};

/* One worker. */
struct settings_device {
    char device[WIRE_UUID_SIZE]; /* "auto", "cpu" or "GPU-..."; never "auto" in a worker */
    uint32_t threads;            /* of the CPU device; 0: one a processor the process may use */
};

/* A shape captured before the worker is ready; requests round up to one. */
struct settings_bucket {
    uint32_t rows, width, k;
    uint32_t dtype; /* enum topk_dtype */
};

/* C types of the table's types. */
#define SETTINGS_FIELD_U32(name) uint32_t name;
#define SETTINGS_FIELD_BYTES(name) uint64_t name;
#define SETTINGS_FIELD_MODE(name) uint32_t name;
#define SETTINGS_FIELD_LEVEL(name) uint32_t name;                          /* enum log_level */
#define SETTINGS_FIELD_DIRECTORY(name) char name[SETTINGS_DIRECTORY_SIZE]; /* "": auto */
#define SETTINGS_FIELD_GROUP(name) int64_t name; /* gid, or SETTINGS_GROUP_NONE */
#define SETTINGS_FIELD_USERS(name) struct settings_ids name;
#define SETTINGS_FIELD_GROUPS(name) struct settings_ids name;

#define SETTINGS_FIELD(type, name, min, max, value, unit, apply, text) SETTINGS_FIELD_##type(name)
#define SETTINGS_STRUCT(section, table, text)                                                      \
    struct settings_##section {                                                                    \
        table(SETTINGS_FIELD)                                                                      \
    } section;

/* settings.limits.sessions_max and so on. */
struct settings {
    SETTINGS_SECTION_TABLE(SETTINGS_STRUCT)
    uint32_t num_devices;
    struct settings_device devices[SETTINGS_DEVICES_MAX];
    uint32_t num_buckets;
    struct settings_bucket buckets[SETTINGS_BUCKETS_MAX];
};

/* What is wrong, one line an error: "file:12:9: limits.sessions_max: 0 is below 1; ...". */
struct settings_report {
    uint32_t num_errors; /* all of them; the first SETTINGS_REPORT_LINES have a line */
    char lines[SETTINGS_REPORT_LINES][SETTINGS_LINE_SIZE];
};

/* Every setting at its default. */
void settings_init(struct settings *settings);

/*
 * Parses YAML over the defaults and checks it, cross-checks included. TOPKD_E_INVALID with a
 * filled report when anything is wrong; then *settings_p is untouched. `name` stands before the
 * line numbers. Reads the user and group databases for names.
 */
enum topkd_status settings_parse(const char *text, size_t size, const char *name,
                                 struct settings *settings_p, struct settings_report *report);

/* The same from a file, or from a descriptor (read from its start with pread, left open).
 * TOPKD_E_SYSTEM when it cannot be read. */
enum topkd_status settings_load_file(const char *path, struct settings *settings_p,
                                     struct settings_report *report);
enum topkd_status settings_load_fd(int fd, const char *name, struct settings *settings_p,
                                   struct settings_report *report);

/* Relations between settings, for settings that did not come from a text (command line). */
enum topkd_status settings_check(const struct settings *settings, const char *name,
                                 struct settings_report *report);

/*
 * Sets one scalar setting from a text, as the command line does: path "log.level". `name` stands
 * in front of the error ("--log-level").
 */
enum topkd_status settings_set(struct settings *settings, const char *path, const char *value,
                               const char *name, struct settings_report *report);

/* Leaves this device ("cpu", "auto", "GPU-...") alone in the list, with the threads it had there.
 */
enum topkd_status settings_set_device(struct settings *settings, const char *value,
                                      const char *name, struct settings_report *report);

/* Replaces an automatic socket directory by the real one. TOPKD_E_INVALID when there is none (no
 * XDG_RUNTIME_DIR) or it is too long. Reads the environment. */
enum topkd_status settings_resolve_directory(struct settings *settings,
                                             struct settings_report *report);

/* Writes YAML that settings_parse reads back to the same settings; with `comments`, the form of
 * config/topkd.yaml. The caller checks ferror. */
void settings_print(const struct settings *settings, bool comments, FILE *file);

/* Which settings differ: paths ("limits.sessions_max"), of those that apply live and the others. */
#define SETTINGS_CHANGES_MAX 64u /* entries of the table and the two lists; checked */
struct settings_changes {
    uint32_t num_live, num_restart;
    const char *live[SETTINGS_CHANGES_MAX];
    const char *restart[SETTINGS_CHANGES_MAX];
};

/*
 * Takes the live settings of `fresh` over into `current`, leaves the others, and reports both
 * kinds of difference (changes_p may be NULL). Cannot fail: `fresh` has been checked, and no check
 * relates a live setting to one that needs a restart.
 */
void settings_merge_live(struct settings *current, const struct settings *fresh,
                         struct settings_changes *changes_p);

/* May this peer, a member of its primary group and the others (NULL: none), open a connection; may
 * it operate the daemon (uid_self: the daemon's own)? */
bool settings_allow(const struct settings_access *access, uid_t uid_self, uid_t uid, gid_t gid,
                    const struct peer_groups *groups);
bool settings_allow_operator(const struct settings *settings, uid_t uid_self, uid_t uid);

#endif
