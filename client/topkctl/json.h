/*
 * json.h - writes one JSON value to a stream as it comes, with nothing kept but where it stands.
 *
 * Each function takes a key, which is NULL inside an array and for the outermost value. Text is
 * escaped; bytes that are not UTF-8 become U+FFFD, so the output is valid whatever is given.
 * 64-bit integers are written in full.
 */
#ifndef TOPKCTL_JSON_H
#define TOPKCTL_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 16u /* choice: deeper than any output here; asserted */

struct json {
    FILE *out;
    unsigned depth;
    bool has_members[JSON_DEPTH_MAX + 1];
};

struct json json_of(FILE *out);

void json_open_object(struct json *json, const char *key);
void json_close_object(struct json *json);
void json_open_array(struct json *json, const char *key);
void json_close_array(struct json *json);

void json_string(struct json *json, const char *key, const char *value);
void json_u64(struct json *json, const char *key, uint64_t value);
void json_i64(struct json *json, const char *key, int64_t value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

/* Ends the line. Every object and array must be closed. */
void json_end(struct json *json);

#endif
