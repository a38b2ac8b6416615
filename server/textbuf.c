#include "textbuf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 4096u
#define NS_PER_S UINT64_C(1000000000)

void textbuf_init(struct textbuf *text)
{
    *text = (struct textbuf){.data = NULL};
}

void textbuf_fini(struct textbuf *text)
{
    free(text->data);
    textbuf_init(text);
}

/* Room for `size` more bytes. */
static bool make_room(struct textbuf *text, size_t size)
{
    if (text->has_failed || size > TEXTBUF_SIZE_MAX - text->size) {
        text->has_failed = true;
        return false;
    }
    size_t room = text->room == 0 ? ROOM_FIRST : text->room;
    while (room < text->size + size)
        room *= 2;
    if (room == text->room)
        return true;
    char *data = realloc(text->data, room);
    if (data == NULL) {
        text->has_failed = true;
        return false;
    }
    text->data = data;
    text->room = room;
    return true;
}

void textbuf_bytes(struct textbuf *text, const void *bytes, size_t size)
{
    if (!make_room(text, size) || size == 0)
        return;
    memcpy(text->data + text->size, bytes, size);
    text->size += size;
}

void textbuf_add(struct textbuf *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || !make_room(text, (size_t)length + 1)) {
        text->has_failed = true;
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(text->data + text->size, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->size += (size_t)length;
}

void textbuf_quote(struct textbuf *text, const char *string)
{
    textbuf_bytes(text, "\"", 1);
    for (; *string != '\0'; string++) {
        unsigned char byte = (unsigned char)*string;
        if (byte == '"' || byte == '\\')
            textbuf_add(text, "\\%c", byte);
        else if (byte < 0x20 || byte > 0x7e)
            textbuf_bytes(text, "?", 1);
        else
            textbuf_bytes(text, string, 1);
    }
    textbuf_bytes(text, "\"", 1);
}

void textbuf_seconds(struct textbuf *text, uint64_t duration_ns)
{
    char digits[16];
    uint64_t fraction = duration_ns % NS_PER_S;
    textbuf_add(text, "%" PRIu64, duration_ns / NS_PER_S);
    if (fraction == 0)
        return;
    int length = snprintf(digits, sizeof digits, "%09" PRIu64, fraction);
    while (length > 0 && digits[length - 1] == '0')
        length--;
    textbuf_add(text, ".%.*s", length, digits);
}
