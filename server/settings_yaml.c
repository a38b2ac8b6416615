/*
 * YAML to settings, event by event.
 *
 * Convention of the functions read_* and skip_node: at entry reader->event is the first event of a
 * node, at return the last one of the same node. A text that is not YAML, or that uses anchors,
 * aliases, tags or more nesting than settings ever need, ends the reading at once (next returns
 * false); everything else is reported and reading goes on, so that one check shows all errors.
 */
#include "assert.h"
#include "settings_internal.h"

#include <string.h>
#include <yaml.h>

#define NESTING_MAX 16u /* choice: settings need four */
#define KEY_SIZE 64u    /* choice: longer keys are unknown anyway */
#define PATH_SIZE 128u

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    bool stopped; /* reported; nothing more is read */
    const char *name;
    struct settings *settings;
    struct settings_report *report;
    struct settings_mark entry_marks[SETTINGS_NUM_ENTRIES];
};

/* ---- Events ---------------------------------------------------------------------------------- */

static struct settings_mark mark_of(yaml_mark_t mark)
{
    return (struct settings_mark){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1};
}

static struct settings_mark event_mark(const struct reader *reader)
{
    return mark_of(reader->event.start_mark);
}

static bool stop(struct reader *reader, const char *text)
{
    reader->stopped = true;
    settings_report_add(reader->report, reader->name, event_mark(reader), "", "%s", text);
    return false;
}

static bool stop_not_yaml(struct reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    const char *problem = parser->problem != NULL ? parser->problem : "out of memory";
    reader->stopped = true;
    if (parser->error == YAML_READER_ERROR) /* has an offset, not a line */
        settings_report_add(reader->report, reader->name, (struct settings_mark){0, 0}, "",
                            "not YAML: %s at byte %zu", problem, parser->problem_offset);
    else
        settings_report_add(reader->report, reader->name, mark_of(parser->problem_mark), "",
                            "not YAML: %s%s%s", problem, parser->context != NULL ? ", " : "",
                            parser->context != NULL ? parser->context : "");
    return false;
}

static bool next(struct reader *reader)
{
    if (reader->stopped)
        return false;
    if (reader->has_event)
        yaml_event_delete(&reader->event);
    reader->has_event = yaml_parser_parse(&reader->parser, &reader->event) != 0;
    if (!reader->has_event)
        return stop_not_yaml(reader);
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (reader->event.type) {
    case YAML_ALIAS_EVENT:
        return stop(reader, "aliases (*name) are not accepted; write the value out");
    case YAML_SCALAR_EVENT:
        anchor = reader->event.data.scalar.anchor;
        tag = reader->event.data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = reader->event.data.sequence_start.anchor;
        tag = reader->event.data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = reader->event.data.mapping_start.anchor;
        tag = reader->event.data.mapping_start.tag;
        break;
    default:
        break;
    }
    if (anchor != NULL)
        return stop(reader, "anchors (&name) are not accepted; remove it");
    if (tag != NULL)
        return stop(reader, "tags (!name) are not accepted; remove it");
    return true;
}

/* Passes over a node whatever it holds. */
static void skip_node(struct reader *reader)
{
    uint32_t depth = 0;
    for (;;) {
        yaml_event_type_t type = reader->event.type;
        if (type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT)
            depth++;
        else if (type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT)
            depth--;
        if (depth > NESTING_MAX)
            stop(reader, "nested too deeply; settings need at most four levels");
        if (depth == 0 || !next(reader))
            return;
    }
}

static const char *scalar_text(const struct reader *reader)
{
    return (const char *)reader->event.data.scalar.value;
}

/* Nothing, ~ or null: a section whose settings are all commented out. */
static bool is_null(const struct reader *reader)
{
    if (reader->event.type != YAML_SCALAR_EVENT ||
        reader->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    const char *text = scalar_text(reader);
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

static void refuse_kind(struct reader *reader, const char *path, const char *wanted)
{
    const char *found = reader->event.type == YAML_MAPPING_START_EVENT    ? "a mapping"
                        : reader->event.type == YAML_SEQUENCE_START_EVENT ? "a list"
                        : is_null(reader)                                 ? "empty"
                                                                          : "a single value";
    settings_report_add(reader->report, reader->name, event_mark(reader), path,
                        "this is %s; wanted is %s", found, wanted);
    skip_node(reader);
}

/* The text of a scalar, or NULL after a report (and after the node). */
static const char *read_scalar(struct reader *reader, const char *path, const char *wanted)
{
    if (reader->event.type != YAML_SCALAR_EVENT || is_null(reader)) {
        refuse_kind(reader, path, wanted);
        return NULL;
    }
    if (strlen(scalar_text(reader)) != reader->event.data.scalar.length) {
        settings_report_add(reader->report, reader->name, event_mark(reader), path,
                            "the value holds a NUL character; remove it");
        return NULL;
    }
    return scalar_text(reader);
}

/* Calls on_value for each key with reader->event at the value; it reads or skips the value. */
static void read_mapping(struct reader *reader, const char *path,
                         void (*on_value)(struct reader *reader, void *context, const char *key,
                                          struct settings_mark key_mark),
                         void *context)
{
    if (is_null(reader))
        return;
    if (reader->event.type != YAML_MAPPING_START_EVENT) {
        refuse_kind(reader, path, "a mapping, lines of \"name: value\"");
        return;
    }
    while (next(reader) && reader->event.type != YAML_MAPPING_END_EVENT) {
        struct settings_mark key_mark = event_mark(reader);
        char key[KEY_SIZE] = "";
        if (reader->event.type == YAML_SCALAR_EVENT)
            snprintf(key, sizeof key, "%.*s", (int)sizeof key - 1, scalar_text(reader));
        else
            refuse_kind(reader, path, "a name before the colon");
        bool usable = reader->event.type == YAML_SCALAR_EVENT;
        if (!next(reader))
            return;
        if (usable)
            on_value(reader, context, key, key_mark);
        else
            skip_node(reader);
    }
}

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
        refuse_kind(reader, entry->path, "a list, for example [1000, 1001] or []");
        return;
    }
    while (next(reader) && reader->event.type != YAML_SEQUENCE_END_EVENT) {
        const char *value = read_scalar(reader, entry->path, "a name or a number");
        if (value != NULL && !settings_value_read(entry, value, reader->settings, reason))
            settings_report_add(reader->report, reader->name, event_mark(reader), entry->path, "%s",
                                reason);
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
    const char *value = read_scalar(reader, entry->path, wanted);
    if (value != NULL && !settings_value_read(entry, value, reader->settings, reason))
        settings_report_add(reader->report, reader->name, event_mark(reader), entry->path, "%s",
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
        skip_node(reader);
        return;
    }
    struct settings_mark *seen = &reader->entry_marks[entry - settings_entries];
    if (seen->line != 0) {
        report_repeated(reader, key_mark, entry->path, *seen);
        skip_node(reader);
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
        skip_node(reader);
        return false;
    }
    element->seen[member] = key_mark;
    return true;
}

static void read_member(struct reader *reader, const char *path,
                        const struct settings_member *member, void *object)
{
    char reason[SETTINGS_REASON_SIZE];
    const char *value = read_scalar(reader, path, "a whole number");
    if (value != NULL && !settings_member_read(member, value, object, reason))
        settings_report_add(reader->report, reader->name, event_mark(reader), path, "%s", reason);
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
        const char *value = read_scalar(reader, path, "auto, cpu or the UUID of a GPU");
        if (value != NULL && !settings_device_read(value, &element->device, reason))
            settings_report_add(reader->report, reader->name, event_mark(reader), path, "%s",
                                reason);
    } else if (strcmp(key, settings_device_threads.name) == 0) {
        if (element_once(reader, element, 1, path, key_mark))
            read_member(reader, path, &settings_device_threads, &element->device);
    } else {
        struct settings_guess guess = {.key = key};
        settings_guess_consider(&guess, "device");
        settings_guess_consider(&guess, settings_device_threads.name);
        report_unknown(reader, key_mark, path, &guess);
        skip_node(reader);
    }
}

static void read_dtype(struct reader *reader, const char *path, struct settings_bucket *bucket)
{
    char reason[SETTINGS_REASON_SIZE];
    const char *value = read_scalar(reader, path, "float32, float16 or bfloat16");
    if (value != NULL && !settings_dtype_read(value, bucket, reason))
        settings_report_add(reader->report, reader->name, event_mark(reader), path, "%s", reason);
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
    skip_node(reader);
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
    struct settings_mark mark = event_mark(reader);
    char path[PATH_SIZE];
    element_path(&element, "", path);
    read_mapping(reader, path, on_device_value, &element);
    require_member(reader, &element, 0, "device", mark);
    if (idx < SETTINGS_DEVICES_MAX) {
        reader->settings->devices[idx] = element.device;
        reader->settings->num_devices = idx + 1;
    }
}

static void read_bucket(struct reader *reader, uint32_t idx)
{
    struct element element = {.list = "buckets", .idx = idx};
    struct settings_mark mark = event_mark(reader);
    char path[PATH_SIZE];
    element_path(&element, "", path);
    read_mapping(reader, path, on_bucket_value, &element);
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
    struct settings_mark mark = event_mark(reader);
    uint32_t num = 0;
    if (reader->event.type != YAML_SEQUENCE_START_EVENT) {
        refuse_kind(reader, path, "a list of mappings, or []");
        return;
    }
    while (next(reader) && reader->event.type != YAML_SEQUENCE_END_EVENT)
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
        skip_node(reader);
    } else if (root->seen[idx].line != 0) {
        report_repeated(reader, key_mark, key, root->seen[idx]);
        skip_node(reader);
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
            read_mapping(reader, key, on_section_value,
                         (void *)(uintptr_t)&settings_sections[idx - SEEN_SECTIONS]);
        }
    }
}

static void read_stream(struct reader *reader)
{
    struct root root = {.seen = {{0, 0}}};
    topkd_assert(settings_num_sections <= NUM_SECTIONS_MAX);
    if (!next(reader) || !next(reader) || reader->event.type == YAML_STREAM_END_EVENT)
        return; /* the first event is the stream's start; a text of comments has no document */
    if (!next(reader))
        return;
    read_mapping(reader, "", on_root_value, &root);
    if (!next(reader) || !next(reader)) /* the document's end, then the stream's */
        return;
    if (reader->event.type != YAML_STREAM_END_EVENT)
        stop(reader, "a second document begins here; settings are one");
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
