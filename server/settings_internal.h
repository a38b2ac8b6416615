/*
 * settings_internal.h - what the files settings*.c share: the table as data, values as text.
 */
#ifndef TOPKD_SERVER_SETTINGS_INTERNAL_H
#define TOPKD_SERVER_SETTINGS_INTERNAL_H

#include "settings.h"

enum settings_type {
    SETTINGS_U32,
    SETTINGS_BYTES,
    SETTINGS_MODE,
    SETTINGS_LEVEL,
    SETTINGS_DIRECTORY,
    SETTINGS_GROUP,
    SETTINGS_USERS,
    SETTINGS_GROUPS
};

struct settings_entry {
    const char *section, *name, *path; /* "limits", "lanes", "limits.lanes" */
    enum settings_type type;
    uint64_t min, max, value; /* value: the default; a negative one wraps */
    const char *unit;
    bool live;
    const char *text;
    size_t offset, size_bytes; /* of the field in struct settings */
};

struct settings_section {
    const char *name, *text;
};

/* Entries of one section are neighbours, in the order of settings_sections. */
extern const struct settings_entry settings_entries[];
extern const uint32_t settings_num_entries;
extern const struct settings_section settings_sections[];
extern const uint32_t settings_num_sections;

#define SETTINGS_COUNT_ENTRY(type, name, min, max, value, unit, apply, text) +1
#define SETTINGS_COUNT_SECTION(section, table, text) table(SETTINGS_COUNT_ENTRY)
#define SETTINGS_NUM_ENTRIES (0 SETTINGS_SECTION_TABLE(SETTINGS_COUNT_SECTION))

/* Where a value stands in the text; line 0: it is a default or came from the command line. */
struct settings_mark {
    uint32_t line, column; /* from 1 */
};

/* The numbers of a device and of a bucket: name, range, field. */
struct settings_member {
    const char *name;
    uint64_t min, max;
    size_t offset; /* of a uint32_t */
};
extern const struct settings_member settings_device_threads;
#define SETTINGS_BUCKET_MEMBERS 3u
extern const struct settings_member settings_bucket_members[SETTINGS_BUCKET_MEMBERS];

/* Longest text of a value, and of the reason why one is refused. */
#define SETTINGS_VALUE_SIZE 1024u
#define SETTINGS_REASON_SIZE 256u

/* Adds a line: "name[:line:column]: path: " and the formatted text; without path when it is "". */
__attribute__((format(printf, 5, 6))) void
settings_report_add(struct settings_report *report, const char *name, struct settings_mark mark,
                    const char *path, const char *format, ...);

/* The entry of a section (or, with section NULL, of a whole path); NULL if there is none. */
const struct settings_entry *settings_find(const char *section, const char *name);

/* The present value's bytes of an entry. */
void *settings_field(struct settings *settings, const struct settings_entry *entry);
const void *settings_field_const(const struct settings *settings,
                                 const struct settings_entry *entry);

/*
 * Reads a scalar into its field. False with a reason ("0 is below 1; accepted is 1 to 65536,
 * default 256") when it is not acceptable; then the field is untouched. Lists take one element a
 * call; `value` has no NUL inside.
 */
bool settings_value_read(const struct settings_entry *entry, const char *value,
                         struct settings *settings, char reason[SETTINGS_REASON_SIZE]);

/* A number within a range, the same for a member of a list's element. */
bool settings_member_read(const struct settings_member *member, const char *value, void *object,
                          char reason[SETTINGS_REASON_SIZE]);

/* "auto", "cpu" or the UUID of a GPU. */
bool settings_device_read(const char *value, struct settings_device *device,
                          char reason[SETTINGS_REASON_SIZE]);

/* The type of a bucket's scores, by its name. */
bool settings_dtype_read(const char *value, struct settings_bucket *bucket,
                         char reason[SETTINGS_REASON_SIZE]);

/* The text that settings_value_read takes; a list in flow style, "[0, 1000]". */
void settings_value_write(const struct settings_entry *entry, const struct settings *settings,
                          char text[SETTINGS_VALUE_SIZE]);

/* What an entry accepts, for messages and comments: "1 to 65536"; "" for free texts. */
void settings_range_write(const struct settings_entry *entry, char text[SETTINGS_REASON_SIZE]);

/* settings_check with the places of the values: marks[entry], or NULL. */
enum topkd_status settings_check_marked(const struct settings *settings, const char *name,
                                        const struct settings_mark *marks,
                                        struct settings_report *report);

/* The known name nearest to a key, for "did you mean". Zero-initialise, set key, consider names. */
struct settings_guess {
    const char *key, *best;
    uint32_t distance;
};

void settings_guess_consider(struct settings_guess *guess, const char *name);

/* The best of the names considered, but a setting of just this name in any section comes first (it
 * is written in the wrong place); NULL when nothing is near. */
const char *settings_guess_best(const struct settings_guess *guess);

#endif
