#include "text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool is_continuation(unsigned char byte)
{
    return (byte & 0xc0u) == 0x80u;
}

size_t text_utf8_length(const char *text)
{
    const unsigned char *b = (const unsigned char *)text;
    if (b[0] < 0x80) {
        return b[0] != 0 ? 1 : 0;
    }
    /* Each test stops at a terminator before reading past it. */
    if (b[0] >= 0xc2 && b[0] <= 0xdf) {
        return is_continuation(b[1]) ? 2 : 0;
    }
    if (b[0] >= 0xe0 && b[0] <= 0xef) {
        bool overlong = b[0] == 0xe0 && b[1] < 0xa0;
        bool surrogate = b[0] == 0xed && b[1] > 0x9f;
        return !overlong && !surrogate && is_continuation(b[1]) && is_continuation(b[2]) ? 3 : 0;
    }
    if (b[0] >= 0xf0 && b[0] <= 0xf4) {
        bool overlong = b[0] == 0xf0 && b[1] < 0x90;
        bool beyond = b[0] == 0xf4 && b[1] > 0x8f;
        return !overlong && !beyond && is_continuation(b[1]) && is_continuation(b[2]) &&
                       is_continuation(b[3])
                   ? 4
                   : 0;
    }
    return 0;
}

/* C0, DEL and the C1 controls (U+0080 to U+009F, which some terminals obey). */
static bool is_control(const char *text, size_t length)
{
    const unsigned char *b = (const unsigned char *)text;
    return length == 1 ? b[0] < 0x20 || b[0] == 0x7f : length == 2 && b[0] == 0xc2 && b[1] < 0xa0;
}

size_t text_printable(const char *text, char *out, size_t out_size)
{
    size_t used = 0;
    size_t columns = 0;
    while (*text != '\0') {
        size_t length = text_utf8_length(text);
        bool good = length > 0 && !is_control(text, length);
        size_t wanted = good ? length : 1;
        if (used + wanted >= out_size) {
            break;
        }
        memcpy(out + used, good ? text : "?", wanted);
        used += wanted;
        columns++;
        text += length > 0 ? length : 1;
    }
    out[used] = '\0';
    return columns;
}

/* Three significant digits of `value` in the largest unit that leaves at least 1. */
static const char *scaled(uint64_t value, const char *const *units, size_t num_units, double step,
                          char out[TEXT_SIZE])
{
    double number = (double)value;
    size_t unit = 0;
    while (unit + 1 < num_units && number >= step) {
        number /= step;
        unit++;
    }
    int decimals = unit == 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
    snprintf(out, TEXT_SIZE, "%.*f %s", decimals, number, units[unit]);
    return out;
}

const char *text_duration(uint64_t duration_ns, char out[TEXT_SIZE])
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    return scaled(duration_ns, units, 4, 1000.0, out);
}

const char *text_bytes(uint64_t bytes, char out[TEXT_SIZE])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, units, 6, 1024.0, out);
}

const char *text_age(uint64_t age_ms, char out[TEXT_SIZE])
{
    uint64_t seconds = age_ms / 1000;
    uint64_t minutes = seconds / 60;
    uint64_t hours = minutes / 60;
    if (hours >= 24) {
        snprintf(out, TEXT_SIZE, "%" PRIu64 "d %" PRIu64 "h", hours / 24, hours % 24);
    } else if (hours > 0) {
        snprintf(out, TEXT_SIZE, "%" PRIu64 "h %" PRIu64 "m", hours, minutes % 60);
    } else if (minutes > 0) {
        snprintf(out, TEXT_SIZE, "%" PRIu64 "m %" PRIu64 "s", minutes, seconds % 60);
    } else {
        snprintf(out, TEXT_SIZE, "%" PRIu64 "s", seconds);
    }
    return out;
}
