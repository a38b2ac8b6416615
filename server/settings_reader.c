/* settings_reader.c - see settings_reader.h. */
#include "settings_reader.h"

#include <stdio.h>
#include <string.h>

#define NESTING_MAX 16u /* choice: settings need four */
#define KEY_SIZE 64u    /* choice: longer keys are unknown anyway */

static struct settings_mark mark_of(yaml_mark_t mark)
{
    return (struct settings_mark){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1};
}

struct settings_mark reader_mark(const struct reader *reader)
{
    return mark_of(reader->event.start_mark);
}

bool reader_stop(struct reader *reader, const char *text)
{
    reader->stopped = true;
    settings_report_add(reader->report, reader->name, reader_mark(reader), "", "%s", text);
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

bool reader_next(struct reader *reader)
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
        return reader_stop(reader, "aliases (*name) are not accepted; write the value out");
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
        return reader_stop(reader, "anchors (&name) are not accepted; remove it");
    if (tag != NULL)
        return reader_stop(reader, "tags (!name) are not accepted; remove it");
    return true;
}

void reader_skip(struct reader *reader)
{
    uint32_t depth = 0;
    for (;;) {
        yaml_event_type_t type = reader->event.type;
        if (type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT)
            depth++;
        else if (type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT)
            depth--;
        if (depth > NESTING_MAX)
            reader_stop(reader, "nested too deeply; settings need at most four levels");
        if (depth == 0 || !reader_next(reader))
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

void reader_refuse(struct reader *reader, const char *path, const char *wanted)
{
    const char *found = reader->event.type == YAML_MAPPING_START_EVENT    ? "a mapping"
                        : reader->event.type == YAML_SEQUENCE_START_EVENT ? "a list"
                        : is_null(reader)                                 ? "empty"
                                                                          : "a single value";
    settings_report_add(reader->report, reader->name, reader_mark(reader), path,
                        "this is %s; wanted is %s", found, wanted);
    reader_skip(reader);
}

const char *reader_scalar(struct reader *reader, const char *path, const char *wanted)
{
    if (reader->event.type != YAML_SCALAR_EVENT || is_null(reader)) {
        reader_refuse(reader, path, wanted);
        return NULL;
    }
    if (strlen(scalar_text(reader)) != reader->event.data.scalar.length) {
        settings_report_add(reader->report, reader->name, reader_mark(reader), path,
                            "the value holds a NUL character; remove it");
        return NULL;
    }
    return scalar_text(reader);
}

void reader_mapping(struct reader *reader, const char *path,
                    void (*on_value)(struct reader *reader, void *context, const char *key,
                                     struct settings_mark key_mark),
                    void *context)
{
    if (is_null(reader))
        return;
    if (reader->event.type != YAML_MAPPING_START_EVENT) {
        reader_refuse(reader, path, "a mapping, lines of \"name: value\"");
        return;
    }
    while (reader_next(reader) && reader->event.type != YAML_MAPPING_END_EVENT) {
        struct settings_mark key_mark = reader_mark(reader);
        char key[KEY_SIZE] = "";
        if (reader->event.type == YAML_SCALAR_EVENT)
            snprintf(key, sizeof key, "%.*s", (int)sizeof key - 1, scalar_text(reader));
        else
            reader_refuse(reader, path, "a name before the colon");
        bool usable = reader->event.type == YAML_SCALAR_EVENT;
        if (!reader_next(reader))
            return;
        if (usable)
            on_value(reader, context, key, key_mark);
        else
            reader_skip(reader);
    }
}
