#include "settings.h"

#include "assert.h"
#include "log.h"
#include "settings_internal.h"
#include "topk_select.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTINGS_LIVE_LIVE true
#define SETTINGS_LIVE_RESTART false
#define SETTINGS_ENTRY(section_, type_, name_, min_, max_, value_, unit_, apply_, text_)           \
    {.section = #section_,                                                                         \
     .name = #name_,                                                                               \
     .path = #section_ "." #name_,                                                                 \
     .type = SETTINGS_##type_,                                                                     \
     .min = (min_),                                                                                \
     .max = (max_),                                                                                \
     .value = (uint64_t)(value_),                                                                  \
     .unit = unit_,                                                                                \
     .live = SETTINGS_LIVE_##apply_,                                                               \
     .text = text_,                                                                                \
     .offset = offsetof(struct settings, section_.name_),                                          \
     .size_bytes = sizeof((struct settings *)0)->section_.name_},

/* One expander a section, since a table's macro takes no further argument. */
#define ENTRY_SOCKET(...) SETTINGS_ENTRY(socket, __VA_ARGS__)
#define ENTRY_ACCESS(...) SETTINGS_ENTRY(access, __VA_ARGS__)
#define ENTRY_LIMITS(...) SETTINGS_ENTRY(limits, __VA_ARGS__)
#define ENTRY_WORKER(...) SETTINGS_ENTRY(worker, __VA_ARGS__)
#define ENTRY_DRAIN(...) SETTINGS_ENTRY(drain, __VA_ARGS__)
#define ENTRY_HTTP(...) SETTINGS_ENTRY(http, __VA_ARGS__)
#define ENTRY_LOG(...) SETTINGS_ENTRY(log, __VA_ARGS__)

const struct settings_entry settings_entries[] = {
    SETTINGS_SOCKET_TABLE(ENTRY_SOCKET) SETTINGS_ACCESS_TABLE(ENTRY_ACCESS)
        SETTINGS_LIMITS_TABLE(ENTRY_LIMITS) SETTINGS_WORKER_TABLE(ENTRY_WORKER)
            SETTINGS_DRAIN_TABLE(ENTRY_DRAIN) SETTINGS_HTTP_TABLE(ENTRY_HTTP)
                SETTINGS_LOG_TABLE(ENTRY_LOG)};
const uint32_t settings_num_entries = sizeof settings_entries / sizeof settings_entries[0];
_Static_assert(sizeof settings_entries / sizeof settings_entries[0] == SETTINGS_NUM_ENTRIES,
               "a section of SETTINGS_SECTION_TABLE has no expander above");
_Static_assert(SETTINGS_NUM_ENTRIES + 2 <= SETTINGS_CHANGES_MAX,
               "struct settings_changes must hold every entry and the two lists");

#define SETTINGS_SECTION(section, table, text) {#section, text},
const struct settings_section settings_sections[] = {SETTINGS_SECTION_TABLE(SETTINGS_SECTION)};
const uint32_t settings_num_sections = sizeof settings_sections / sizeof settings_sections[0];

const struct settings_member settings_device_threads = {"threads", 0, SETTINGS_THREADS_MAX,
                                                        offsetof(struct settings_device, threads)};
const struct settings_member settings_bucket_members[SETTINGS_BUCKET_MEMBERS] = {
    {"rows", 1, TOPK_ROWS_MAX, offsetof(struct settings_bucket, rows)},
    {"width", 1, TOPK_WIDTH_MAX, offsetof(struct settings_bucket, width)},
    {"k", 1, TOPK_K_MAX, offsetof(struct settings_bucket, k)}};

/* Choice: decode and small prefill of sparse attention with K 2048, at 32K and 128K positions. */
static const struct settings_bucket default_buckets[] = {
    {1, 131072, 2048, TOPK_DTYPE_FLOAT32},  {16, 32768, 2048, TOPK_DTYPE_FLOAT32},
    {16, 131072, 2048, TOPK_DTYPE_FLOAT32}, {64, 32768, 2048, TOPK_DTYPE_FLOAT32},
    {64, 131072, 2048, TOPK_DTYPE_FLOAT32},
};

const void *settings_field_const(const struct settings *settings,
                                 const struct settings_entry *entry)
{
    return (const char *)settings + entry->offset;
}

void *settings_field(struct settings *settings, const struct settings_entry *entry)
{
    return (char *)settings + entry->offset;
}

void settings_init(struct settings *settings)
{
    memset(settings, 0, sizeof *settings);
    for (uint32_t i = 0; i < settings_num_entries; i++) {
        const struct settings_entry *entry = &settings_entries[i];
        void *field = settings_field(settings, entry);
        switch (entry->type) {
        case SETTINGS_U32:
        case SETTINGS_MODE:
        case SETTINGS_LEVEL:
            *(uint32_t *)field = (uint32_t)entry->value;
            break;
        case SETTINGS_BYTES:
            *(uint64_t *)field = entry->value;
            break;
        case SETTINGS_GROUP:
            *(int64_t *)field = (int64_t)entry->value;
            break;
        case SETTINGS_DIRECTORY: /* "": auto */
        case SETTINGS_USERS:     /* empty */
        case SETTINGS_GROUPS:
            break;
        }
    }
    settings->num_devices = 1;
    strcpy(settings->devices[0].device, "auto");
    settings->num_buckets = sizeof default_buckets / sizeof default_buckets[0];
    memcpy(settings->buckets, default_buckets, sizeof default_buckets);
}

const struct settings_entry *settings_find(const char *section, const char *name)
{
    for (uint32_t i = 0; i < settings_num_entries; i++) {
        const struct settings_entry *entry = &settings_entries[i];
        if (section == NULL
                ? strcmp(entry->path, name) == 0
                : strcmp(entry->section, section) == 0 && strcmp(entry->name, name) == 0)
            return entry;
    }
    return NULL;
}

void settings_report_add(struct settings_report *report, const char *name,
                         struct settings_mark mark, const char *path, const char *format, ...)
{
    uint32_t idx = report->num_errors++;
    if (idx >= SETTINGS_REPORT_LINES)
        return;
    char *line = report->lines[idx];
    int used = mark.line != 0
                   ? snprintf(line, SETTINGS_LINE_SIZE, "%s:%u:%u: ", name, mark.line, mark.column)
                   : snprintf(line, SETTINGS_LINE_SIZE, "%s: ", name);
    if (used >= 0 && used < (int)SETTINGS_LINE_SIZE && path[0] != '\0')
        used += snprintf(line + used, SETTINGS_LINE_SIZE - (size_t)used, "%s: ", path);
    if (used >= 0 && used < (int)SETTINGS_LINE_SIZE) {
        va_list args;
        va_start(args, format);
        vsnprintf(line + used, SETTINGS_LINE_SIZE - (size_t)used, format, args);
        va_end(args);
    }
    /* A key of the file may hold an escape sequence ("\e[2J"); the line goes to a terminal. */
    for (char *at = line; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    }
}

/* One relation "left must be at least factor * right" between two numbers of the table. */
struct relation {
    const char *left, *right;
    uint64_t factor;
};

/* Both sides of a relation apply at the same time (LIVE or RESTART), so that a reload that passed
 * the check never leaves a mixture that would not; settings_test checks that. */
static const struct relation relations[] = {
    {"limits.timeout_ms_max", "limits.timeout_ms_default", 1},
    {"limits.region_bytes_total", "limits.region_bytes_max", 1},
    {"limits.reply_cache", "limits.outstanding_max", 1},
    {"worker.hang_ms", "worker.heartbeat_ms", 3},
    {"worker.restart_max_ms", "worker.restart_min_ms", 1},
};

static uint64_t number_of(const struct settings *settings, const struct settings_entry *entry)
{
    const void *field = settings_field_const(settings, entry);
    return entry->type == SETTINGS_BYTES ? *(const uint64_t *)field : *(const uint32_t *)field;
}

static void check_relation(const struct settings *settings, const char *name,
                           const struct relation *relation, const struct settings_mark *marks,
                           struct settings_report *report)
{
    const struct settings_entry *left = settings_find(NULL, relation->left);
    const struct settings_entry *right = settings_find(NULL, relation->right);
    topkd_assert(left != NULL && right != NULL && left->live == right->live);
    uint64_t wanted = number_of(settings, right) * relation->factor;
    if (number_of(settings, left) >= wanted)
        return;
    struct settings_mark mark = {0, 0};
    if (marks != NULL) /* the one that the text has; the left when it has both */
        mark = marks[left - settings_entries].line != 0 ? marks[left - settings_entries]
                                                        : marks[right - settings_entries];
    char left_text[SETTINGS_VALUE_SIZE], right_text[SETTINGS_VALUE_SIZE], times[32] = "";
    settings_value_write(left, settings, left_text);
    settings_value_write(right, settings, right_text);
    if (relation->factor > 1)
        snprintf(times, sizeof times, "%llu times ", (unsigned long long)relation->factor);
    settings_report_add(report, name, mark, left->path,
                        "%s is below %s%s, which is %s; raise the first or lower the second",
                        left_text, times, right->path, right_text);
}

/* The range alone would take 0720. */
static void check_folder_mode(const struct settings *settings, const char *name,
                              const struct settings_mark *marks, struct settings_report *report)
{
    const struct settings_entry *entry = settings_find(NULL, "socket.directory_mode");
    topkd_assert(entry != NULL);
    if ((settings->socket.directory_mode & 0022) == 0)
        return;
    settings_report_add(
        report, name,
        marks != NULL ? marks[entry - settings_entries] : (struct settings_mark){0, 0}, entry->path,
        "%04o lets others write to the folder and replace the sockets; take 0022 "
        "out of it, for example %04o",
        settings->socket.directory_mode, settings->socket.directory_mode & ~0022u);
}

static void check_devices(const struct settings *settings, const char *name,
                          struct settings_report *report)
{
    struct settings_mark nowhere = {0, 0};
    if (settings->num_devices == 0)
        settings_report_add(report, name, nowhere, "devices",
                            "the list is empty; name at least one of auto, cpu or a GPU-... UUID");
    for (uint32_t i = 0; i < settings->num_devices; i++) {
        const char *device = settings->devices[i].device;
        if (strcmp(device, "auto") == 0 && settings->num_devices > 1)
            settings_report_add(report, name, nowhere, "devices",
                                "auto stands for all devices; remove it or the %u others",
                                settings->num_devices - 1);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(device, settings->devices[j].device) == 0)
                settings_report_add(report, name, nowhere, "devices",
                                    "%s is listed twice; one worker owns a device", device);
    }
}

static void check_buckets(const struct settings *settings, const char *name,
                          const struct settings_mark *marks, struct settings_report *report)
{
    struct settings_mark mark = {0, 0};
    const struct settings_entry *most = settings_find(NULL, "limits.buckets_max");
    topkd_assert(most != NULL);
    if (marks != NULL)
        mark = marks[most - settings_entries];
    if (settings->num_buckets > settings->limits.buckets_max)
        settings_report_add(report, name, mark, most->path,
                            "%u is below the number of configured buckets, %u; raise it or remove "
                            "buckets",
                            settings->limits.buckets_max, settings->num_buckets);
    for (uint32_t i = 0; i < settings->num_buckets; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct settings_bucket *a = &settings->buckets[i], *b = &settings->buckets[j];
            if (a->rows == b->rows && a->width == b->width && a->k == b->k && a->dtype == b->dtype)
                settings_report_add(report, name, (struct settings_mark){0, 0}, "buckets",
                                    "rows %u, width %u, k %u of %s is listed twice", a->rows,
                                    a->width, a->k, topk_dtype_name((enum topk_dtype)a->dtype));
        }
}

enum topkd_status settings_check_marked(const struct settings *settings, const char *name,
                                        const struct settings_mark *marks,
                                        struct settings_report *report)
{
    uint32_t before = report->num_errors;
    for (size_t i = 0; i < sizeof relations / sizeof relations[0]; i++)
        check_relation(settings, name, &relations[i], marks, report);
    check_folder_mode(settings, name, marks, report);
    check_devices(settings, name, report);
    check_buckets(settings, name, marks, report);
    return report->num_errors == before ? TOPKD_OK : TOPKD_E_INVALID;
}

enum topkd_status settings_check(const struct settings *settings, const char *name,
                                 struct settings_report *report)
{
    return settings_check_marked(settings, name, NULL, report);
}

enum topkd_status settings_set(struct settings *settings, const char *path, const char *value,
                               const char *name, struct settings_report *report)
{
    char reason[SETTINGS_REASON_SIZE];
    const struct settings_entry *entry = settings_find(NULL, path);
    topkd_assert(entry != NULL); /* the command line's own table names it */
    if (settings_value_read(entry, value, settings, reason))
        return TOPKD_OK;
    settings_report_add(report, name, (struct settings_mark){0, 0}, "", "%s", reason);
    return TOPKD_E_INVALID;
}

enum topkd_status settings_set_device(struct settings *settings, const char *value,
                                      const char *name, struct settings_report *report)
{
    char reason[SETTINGS_REASON_SIZE];
    struct settings_device device = {.threads = 0};
    if (!settings_device_read(value, &device, reason)) {
        settings_report_add(report, name, (struct settings_mark){0, 0}, "", "%s", reason);
        return TOPKD_E_INVALID;
    }
    for (uint32_t i = 0; i < settings->num_devices; i++)
        if (strcmp(settings->devices[i].device, device.device) == 0)
            device.threads = settings->devices[i].threads;
    memset(settings->devices, 0, sizeof settings->devices);
    settings->devices[0] = device;
    settings->num_devices = 1;
    return TOPKD_OK;
}

enum topkd_status settings_resolve_directory(struct settings *settings,
                                             struct settings_report *report)
{
    if (settings->socket.directory[0] != '\0')
        return TOPKD_OK;
    char path[SETTINGS_VALUE_SIZE] = "/run/topkd";
    if (geteuid() != 0) {
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        if (runtime == NULL || runtime[0] != '/') {
            settings_report_add(report, "socket.directory", (struct settings_mark){0, 0}, "",
                                "auto needs XDG_RUNTIME_DIR for user %u, and it is not set; set it "
                                "or name a folder (--socket-dir)",
                                (unsigned)geteuid());
            return TOPKD_E_INVALID;
        }
        snprintf(path, sizeof path, "%s/topkd", runtime);
    }
    return settings_set(settings, "socket.directory", path, "socket.directory", report);
}

static bool same_devices(const struct settings *a, const struct settings *b)
{
    if (a->num_devices != b->num_devices)
        return false;
    for (uint32_t i = 0; i < a->num_devices; i++)
        if (strcmp(a->devices[i].device, b->devices[i].device) != 0 ||
            a->devices[i].threads != b->devices[i].threads)
            return false;
    return true;
}

void settings_merge_live(struct settings *current, const struct settings *fresh,
                         struct settings_changes *changes_p)
{
    struct settings_changes changes = {.num_live = 0};
    for (uint32_t i = 0; i < settings_num_entries; i++) {
        const struct settings_entry *entry = &settings_entries[i];
        void *to = settings_field(current, entry);
        const void *from = settings_field_const(fresh, entry);
        if (memcmp(to, from, entry->size_bytes) == 0)
            continue;
        if (entry->live) {
            memcpy(to, from, entry->size_bytes);
            changes.live[changes.num_live++] = entry->path;
        } else {
            changes.restart[changes.num_restart++] = entry->path;
        }
    }
    if (!same_devices(current, fresh))
        changes.restart[changes.num_restart++] = "devices";
    if (current->num_buckets != fresh->num_buckets ||
        memcmp(current->buckets, fresh->buckets,
               current->num_buckets * sizeof current->buckets[0]) != 0)
        changes.restart[changes.num_restart++] = "buckets";
    if (changes_p != NULL)
        *changes_p = changes;
}

static bool has_id(const struct settings_ids *ids, uint32_t id)
{
    for (uint32_t i = 0; i < ids->num_ids; i++)
        if (ids->ids[i] == id)
            return true;
    return false;
}

bool settings_allow(const struct settings_access *access, uid_t uid_self, uid_t uid, gid_t gid,
                    const struct peer_groups *groups)
{
    const struct settings_ids *uids = &access->uids, *gids = &access->gids;
    if (uid == 0 || uid == uid_self)
        return true;
    if (uids->num_ids == 0 && gids->num_ids == 0)
        return true; /* the kernel has judged by owner, group and mode of folder and socket */
    bool is_allowed = has_id(uids, uid) || has_id(gids, gid);
    for (uint32_t i = 0; groups != NULL && i < groups->num_ids && !is_allowed; i++)
        is_allowed = has_id(gids, groups->ids[i]);
    return is_allowed;
}

bool settings_allow_operator(const struct settings *settings, uid_t uid_self, uid_t uid)
{
    return uid == 0 || uid == uid_self || has_id(&settings->access.operator_uids, uid);
}
