#include "json.h"

#include "text.h"

#include <inttypes.h>
#include <stdlib.h>

/* A wrong nesting is a mistake in this program. */
static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "topkctl: internal error: json: %s\n", what);
        abort();
    }
}

struct json json_of(FILE *out)
{
    return (struct json){.out = out};
}

static void write_string(FILE *out, const char *text)
{
    putc('"', out);
    while (*text != '\0') {
        size_t length = text_utf8_length(text);
        unsigned char byte = (unsigned char)*text;
        if (length == 0) {
            fputs("\\ufffd", out);
        } else if (byte == '"' || byte == '\\') {
            fprintf(out, "\\%c", byte);
        } else if (byte < 0x20 || byte == 0x7f) {
            fprintf(out, "\\u%04x", byte);
        } else {
            fwrite(text, 1, length, out);
        }
        text += length > 0 ? length : 1;
    }
    putc('"', out);
}

/* Everything that stands before a value. */
static void begin_value(struct json *json, const char *key)
{
    if (json->has_members[json->depth]) {
        must(json->depth > 0, "two outermost values");
        putc(',', json->out);
    }
    json->has_members[json->depth] = true;
    if (key != NULL) {
        write_string(json->out, key);
        putc(':', json->out);
    }
}

static void open_group(struct json *json, const char *key, char bracket)
{
    begin_value(json, key);
    putc(bracket, json->out);
    must(json->depth < JSON_DEPTH_MAX, "nested too deep");
    json->depth++;
    json->has_members[json->depth] = false;
}

static void close_group(struct json *json, char bracket)
{
    must(json->depth > 0, "closed more than was opened");
    json->depth--;
    putc(bracket, json->out);
}

void json_open_object(struct json *json, const char *key)
{
    open_group(json, key, '{');
}

void json_close_object(struct json *json)
{
    close_group(json, '}');
}

void json_open_array(struct json *json, const char *key)
{
    open_group(json, key, '[');
}

void json_close_array(struct json *json)
{
    close_group(json, ']');
}

void json_string(struct json *json, const char *key, const char *value)
{
    begin_value(json, key);
    write_string(json->out, value);
}

void json_u64(struct json *json, const char *key, uint64_t value)
{
    begin_value(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void json_i64(struct json *json, const char *key, int64_t value)
{
    begin_value(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void json_bool(struct json *json, const char *key, bool value)
{
    begin_value(json, key);
    fputs(value ? "true" : "false", json->out);
}

void json_null(struct json *json, const char *key)
{
    begin_value(json, key);
    fputs("null", json->out);
}

void json_end(struct json *json)
{
    must(json->depth == 0, "not everything is closed");
    putc('\n', json->out);
}
