/*
 * wire_layout.h - the structs of topkd_wire.h as tables of fields, for wire_sample.c only.
 */
#ifndef TOPKD_TESTS_WIRE_LAYOUT_H
#define TOPKD_TESTS_WIRE_LAYOUT_H

#include "topkd_wire.h"

enum field_type {
    FIELD_UNSIGNED,
    FIELD_SIGNED,
    FIELD_BOOL,
    FIELD_ENUM,    /* 0 to limit */
    FIELD_ACCESS,  /* enum wire_access, which has gaps */
    FIELD_TEXT,    /* char [size], terminated */
    FIELD_COUNT,   /* uint32_t up to limit, of the field after it */
    FIELD_BYTES,   /* uint8_t [size], as many used as the count before it says */
    FIELD_NUMBERS, /* uint64_t [], all used */
    FIELD_LENGTHS, /* const int32_t *, as many as the count before it says */
    FIELD_STRUCT,  /* one of `layout` */
    FIELD_ROWS     /* [limit] of `layout`, as many used as the count before it says */
};

struct layout;

struct field {
    const char *name;
    size_t offset, size;
    enum field_type type;
    uint32_t limit;
    const struct layout *layout;
};

struct layout {
    const char *name;
    size_t size, alignment;
    size_t num_fields;
    const struct field *fields; /* by ascending offset */
};

/* Header fields and bodies of messages; the body of a kind without one is NULL. The layout of a
 * header ends where the union begins. */
extern const struct layout layout_request_header, layout_reply_header;
const struct layout *layout_request_body(enum wire_kind kind);
const struct layout *layout_reply_body(enum wire_kind kind);

#endif
