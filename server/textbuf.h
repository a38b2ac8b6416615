/*
 * textbuf.h - a text that grows, up to a limit. Memory that runs out or a limit that is passed is
 * remembered, so that a writer checks once at its end. One thread.
 */
#ifndef TOPKD_SERVER_TEXTBUF_H
#define TOPKD_SERVER_TEXTBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXTBUF_SIZE_MAX (16u << 20) /* choice: 64 devices with full tables need some 4 MiB */

struct textbuf {
    char *data; /* NULL while empty; not terminated */
    size_t size, room;
    bool has_failed; /* something is missing in it */
};

void textbuf_init(struct textbuf *text);
void textbuf_fini(struct textbuf *text);

void textbuf_add(struct textbuf *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void textbuf_bytes(struct textbuf *text, const void *bytes, size_t size);

/* A JSON string with its quotes, also a valid label value of Prometheus: quote and
 * backslash are escaped, control characters and bytes beyond ASCII become '?'. */
void textbuf_quote(struct textbuf *text, const char *string);

/* Nanoseconds as a decimal number of seconds, exact and without an exponent. */
void textbuf_seconds(struct textbuf *text, uint64_t duration_ns);

#endif
