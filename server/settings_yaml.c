/* YAML to settings: sections, lists and their members; settings_reader.h has the convention. */
#include "assert.h"
#include "settings_reader.h"

#include <stdio.h>
#include <string.h>

#define PATH_SIZE 128u

/* ---- Unknown and repeated keys --------------------------------------------------------------- */

static void report_unknown(struct reader *reader, struct settings_mark mark, const char *path,
                           const struct settings_guess *guess)
{
    const char *best = settings_guess_best(guess);
    settings_report_add(reader->report, reader->name, mark, path,
                        "unknown key%s%s%s; topkd --print-config lists all",
                        best != NULL ? " (did you mean " : "", best != NULL ? best : "",
                        best != NULL ? "?)" : "");
}

static void report_repeated(struct reader *reader, struct settings_mark mark, const char *path,
                            struct settings_mark first)
{
    settings_report_add(reader->report, reader->name, mark, path,
                        "already set at line %u, column %u; keep one of the two", first.line,
                        first.column);
}

/* ---- Scalar settings ------------------------------------------------------------------------- */

static void read_ids(struct reader *reader, const struct settings_entry *entry)
{
    char reason[SETTINGS_REASON_SIZE];
    if (reader->event.type != YAML_SEQUENCE_START_EVENT) {
        reader_refuse(reader, entry->path, "a list, for example [1000, 1001] or []");
        return;
    }
    while (reader_next(reader) && reader->event.type != YAML_SEQUENCE_END_EVENT) {
        const char *value = reader_scalar(reader, entry->path, "a name or a number");
        if (value != NULL && !settings_value_read(entry, value, reader->settings, reason))
            settings_report_add(reader->report, reader->name, reader_mark(reader), entry->path,
                                "%s", reason);
    }
}

static void read_entry(struct reader *reader, const struct settings_entry *entry)
{
    char reason[SETTINGS_REASON_SIZE], range[SETTINGS_REASON_SIZE], wanted[SETTINGS_REASON_SIZE];
    if (entry->type == SETTINGS_USERS || entry->type == SETTINGS_GROUPS) {
        read_ids(reader, entry);
        return;
    }
    settings_range_write(entry, range);
    snprintf(wanted, sizeof wanted, "one value%s%.200s", range[0] != '\0' ? " from " : "", range);
    const char *value = reader_scalar(reader, entry->path, wanted);
    if (value != NULL && !settings_value_read(entry, value, reader->settings, reason))
        settings_report_add(reader->report, reader->name, reader_mark(reader), entry->path, "%s",
                            reason);
}

static void on_section_value(struct reader *reader, void *context, const char *key,
                             struct settings_mark key_mark)
{
    const struct settings_section *section = context;
    const struct settings_entry *entry = settings_find(section->name, key);
    if (entry == NULL) {
        char path[PATH_SIZE];
        struct settings_guess guess = {.key = key};
        for (uint32_t i = 0; i < settings_num_entries; i++)
            if (strcmp(settings_entries[i].section, section->name) == 0)
                settings_guess_consider(&guess, settings_entries[i].name);
        snprintf(path, sizeof path, "%s.%s", section->name, key);
        report_unknown(reader, key_mark, path, &guess);
        reader_skip(reader);
        return;
    }
    struct settings_mark *seen = &reader->entry_marks[entry - settings_entries];
    if (seen->line != 0) {
        report_repeated(reader, key_mark, entry->path, *seen);
        reader_skip(reader);
        return;
    }
    *seen = key_mark;
    read_entry(reader, entry);
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* One element of devices or buckets while it is read. */
struct element {
    const char *list;                                       /* "devices" */
    uint32_t idx;                                           /* in the list */
    struct settings_mark seen[SETTINGS_BUCKET_MEMBERS + 1]; /* the last: dtype */
    struct settings_device device;
    struct settings_bucket bucket;
};

static void element_path(const struct element *element, const char *key, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%s[%u]%s%s", element->list, element->idx, key[0] != '\0' ? "." : "",
             key);
}

/* False, with the value skipped, when the key was there before. */
static bool element_once(struct reader *reader, struct element *element, uint32_t member,
                         const char *path, struct settings_mark key_mark)
{
    if (element->seen[member].line != 0) {
        report_repeated(reader, key_mark, path, element->seen[member]);
        reader_skip(reader);
        return false;
    }
    element->seen[member] = key_mark;
    return true;
}

static void read_member(struct reader *reader, const char *path,
                        const struct settings_member *member, void *object)
{
    char reason[SETTINGS_REASON_SIZE];
    const char *value = reader_scalar(reader, path, "a whole number");
    if (value != NULL && !settings_member_read(member, value, object, reason))
        settings_report_add(reader->report, reader->name, reader_mark(reader), path, "%s", reason);
}

static void on_device_value(struct reader *reader, void *context, const char *key,
                            struct settings_mark key_mark)
{
    struct element *element = context;
    char path[PATH_SIZE], reason[SETTINGS_REASON_SIZE];
    element_path(element, key, path);
    if (strcmp(key, "device") == 0) {
        if (!element_once(reader, element, 0, path, key_mark))
            return;
        const char *value = reader_scalar(reader, path, "auto, cpu or the UUID of a GPU");
        if (value != NULL && !settings_device_read(value, &element->device, reason))
            settings_report_add(reader->report, reader->name, reader_mark(reader), path, "%s",
                                reason);
    } else if (strcmp(key, settings_device_threads.name) == 0) {
        if (element_once(reader, element, 1, path, key_mark))
            read_member(reader, path, &settings_device_threads, &element->device);
    } else {
        struct settings_guess guess = {.key = key};
        settings_guess_consider(&guess, "device");
        settings_guess_consider(&guess, settings_device_threads.name);
        report_unknown(reader, key_mark, path, &guess);
        reader_skip(reader);
    }
}

static void read_dtype(struct reader *reader, const char *path, struct settings_bucket *bucket)
{
    char reason[SETTINGS_REASON_SIZE];
    const char *value = reader_scalar(reader, path, "float32, float16 or bfloat16");
    if (value != NULL && !settings_dtype_read(value, bucket, reason))
        settings_report_add(reader->report, reader->name, reader_mark(reader), path, "%s", reason);
}

static void on_bucket_value(struct reader *reader, void *context, const char *key,
                            struct settings_mark key_mark)
{
    struct element *element = context;
    struct settings_guess guess = {.key = key};
    char path[PATH_SIZE];
    element_path(element, key, path);
    for (uint32_t i = 0; i < SETTINGS_BUCKET_MEMBERS; i++) {
        if (strcmp(key, settings_bucket_members[i].name) == 0) {
            if (element_once(reader, element, i, path, key_mark))
                read_member(reader, path, &settings_bucket_members[i], &element->bucket);
            return;
        }
        settings_guess_consider(&guess, settings_bucket_members[i].name);
    }
    if (strcmp(key, "dtype") == 0) {
        if (element_once(reader, element, SETTINGS_BUCKET_MEMBERS, path, key_mark))
            read_dtype(reader, path, &element->bucket);
        return;
    }
    settings_guess_consider(&guess, "dtype");
    report_unknown(reader, key_mark, path, &guess);
    reader_skip(reader);
}

static void require_member(struct reader *reader, const struct element *element, uint32_t member,
                           const char *name, struct settings_mark mark)
{
    char path[PATH_SIZE];
    if (element->seen[member].line != 0 || reader->stopped)
        return;
    element_path(element, "", path);
    settings_report_add(reader->report, reader->name, mark, path, "%s is missing", name);
}

static void read_device(struct reader *reader, uint32_t idx)
{
    struct element element = {.list = "devices", .idx = idx};
    struct settings_mark mark = reader_mark(reader);
    char path[PATH_SIZE];
    element_path(&element, "", path);
    reader_mapping(reader, path, on_device_value, &element);
    require_member(reader, &element, 0, "device", mark);
    if (idx < SETTINGS_DEVICES_MAX) {
        reader->settings->devices[idx] = element.device;
        reader->settings->num_devices = idx + 1;
    }
}

static void read_bucket(struct reader *reader, uint32_t idx)
{
    struct element element = {.list = "buckets", .idx = idx};
    struct settings_mark mark = reader_mark(reader);
    char path[PATH_SIZE];
    element_path(&element, "", path);
    reader_mapping(reader, path, on_bucket_value, &element);
    for (uint32_t i = 0; i < SETTINGS_BUCKET_MEMBERS; i++)
        require_member(reader, &element, i, settings_bucket_members[i].name, mark);
    if (idx < SETTINGS_BUCKETS_MAX) {
        reader->settings->buckets[idx] = element.bucket;
        reader->settings->num_buckets = idx + 1;
    }
}

static void read_list(struct reader *reader, const char *path, uint32_t num_max,
                      void (*read_element)(struct reader *reader, uint32_t idx))
{
    struct settings_mark mark = reader_mark(reader);
    uint32_t num = 0;
    if (reader->event.type != YAML_SEQUENCE_START_EVENT) {
        reader_refuse(reader, path, "a list of mappings, or []");
        return;
    }
    while (reader_next(reader) && reader->event.type != YAML_SEQUENCE_END_EVENT)
        read_element(reader, num++);
    if (num > num_max)
        settings_report_add(reader->report, reader->name, mark, path,
                            "%u entries; at most %u are accepted", num, num_max);
}

/* ---- The whole ------------------------------------------------------------------------------- */

#define SEEN_DEVICES 0u
#define SEEN_BUCKETS 1u
#define SEEN_SECTIONS 2u
#define NUM_SECTIONS_MAX 16u

struct root {
    struct settings_mark seen[SEEN_SECTIONS + NUM_SECTIONS_MAX];
};

static void on_root_value(struct reader *reader, void *context, const char *key,
                          struct settings_mark key_mark)
{
    struct root *root = context;
    struct settings_guess guess = {.key = key};
    uint32_t idx = UINT32_MAX;
    if (strcmp(key, "devices") == 0)
        idx = SEEN_DEVICES;
    else if (strcmp(key, "buckets") == 0)
        idx = SEEN_BUCKETS;
    settings_guess_consider(&guess, "devices");
    settings_guess_consider(&guess, "buckets");
    for (uint32_t i = 0; i < settings_num_sections; i++) {
        if (strcmp(key, settings_sections[i].name) == 0)
            idx = SEEN_SECTIONS + i;
        settings_guess_consider(&guess, settings_sections[i].name);
    }
    if (idx == UINT32_MAX) {
        report_unknown(reader, key_mark, key, &guess);
        reader_skip(reader);
    } else if (root->seen[idx].line != 0) {
        report_repeated(reader, key_mark, key, root->seen[idx]);
        reader_skip(reader);
    } else {
        root->seen[idx] = key_mark;
        if (idx == SEEN_DEVICES) { /* a list replaces the default one */
            memset(reader->settings->devices, 0, sizeof reader->settings->devices);
            reader->settings->num_devices = 0;
            read_list(reader, key, SETTINGS_DEVICES_MAX, read_device);
        } else if (idx == SEEN_BUCKETS) {
            memset(reader->settings->buckets, 0, sizeof reader->settings->buckets);
            reader->settings->num_buckets = 0;
            read_list(reader, key, SETTINGS_BUCKETS_MAX, read_bucket);
        } else {
            reader_mapping(reader, key, on_section_value,
                           (void *)(uintptr_t)&settings_sections[idx - SEEN_SECTIONS]);
        }
    }
}

static void read_stream(struct reader *reader)
{
    struct root root = {.seen = {{0, 0}}};
    topkd_assert(settings_num_sections <= NUM_SECTIONS_MAX);
    if (!reader_next(reader) || !reader_next(reader) || reader->event.type == YAML_STREAM_END_EVENT)
        return; /* the first event is the stream's start; a text of comments has no document */
    if (!reader_next(reader))
        return;
    reader_mapping(reader, "", on_root_value, &root);
    if (!reader_next(reader) || !reader_next(reader)) /* the document's end, then the stream's */
        return;
    if (reader->event.type != YAML_STREAM_END_EVENT)
        reader_stop(reader, "a second document begins here; settings are one");
}

enum topkd_status settings_parse(const char *text, size_t size, const char *name,
                                 struct settings *settings_p, struct settings_report *report)
{
    struct settings settings;
    struct reader reader = {.name = name, .settings = &settings, .report = report};
    struct settings_mark nowhere = {0, 0};
    uint32_t before = report->num_errors;
    if (size > SETTINGS_TEXT_SIZE_MAX) {
        settings_report_add(
            report, name, nowhere, "",
            "the text is longer than %u bytes, the limit; remove comments or entries",
            SETTINGS_TEXT_SIZE_MAX);
        return TOPKD_E_INVALID;
    }
    settings_init(&settings);
    if (yaml_parser_initialize(&reader.parser) == 0) {
        settings_report_add(report, name, nowhere, "", "out of memory");
        return TOPKD_E_NO_MEMORY;
    }
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, size);
    read_stream(&reader);
    if (reader.has_event)
        yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    if (report->num_errors == before) /* relations of wrong values would only confuse */
        settings_check_marked(&settings, name, reader.entry_marks, report);
    if (report->num_errors != before)
        return TOPKD_E_INVALID;
    *settings_p = settings;
    return TOPKD_OK;
}
