/*
 * settings_reader.h - a YAML text event by event: scalars, mappings, what is refused.
 *
 * Convention of the functions that read or skip a node: at entry reader->event is the first event
 * of a node, at return the last one of the same node. A text that is not YAML, or that uses
 * anchors, aliases, tags or more nesting than settings ever need, ends the reading at once
 * (reader_next returns false); everything else is reported and reading goes on, so that one check
 * shows all errors.
 */
#ifndef TOPKD_SERVER_SETTINGS_READER_H
#define TOPKD_SERVER_SETTINGS_READER_H

#include "settings_internal.h"

#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    bool stopped; /* reported; nothing more is read */
    const char *name;
    struct settings_report *report;
    /* Of settings_yaml.c alone: what is read, and where it stood. */
    struct settings *settings;
    struct settings_mark entry_marks[SETTINGS_NUM_ENTRIES];
};

/* Where the present event begins. */
struct settings_mark reader_mark(const struct reader *reader);

/* The next event; false when nothing more is to be read. */
bool reader_next(struct reader *reader);

/* Reports the text and ends the reading. Returns false. */
bool reader_stop(struct reader *reader, const char *text);

/* Passes over a node whatever it holds. */
void reader_skip(struct reader *reader);

/* Reports that the node is of another kind than wanted, and passes over it. */
void reader_refuse(struct reader *reader, const char *path, const char *wanted);

/* The text of a scalar, until the next event, or NULL after a report (and after the node). */
const char *reader_scalar(struct reader *reader, const char *path, const char *wanted);

/* Calls on_value for each key with reader->event at the value; it reads or skips the value. */
void reader_mapping(struct reader *reader, const char *path,
                    void (*on_value)(struct reader *reader, void *context, const char *key,
                                     struct settings_mark key_mark),
                    void *context);

#endif
