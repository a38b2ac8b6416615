/* Text for people: units, and names that came from somebody else made safe to print. */
#ifndef TOPKCTL_TEXT_H
#define TOPKCTL_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define TEXT_SIZE 32u /* bytes of a formatted quantity, terminator included */

/*
 * The length in bytes (1 to 4) of the UTF-8 sequence at `text`, 0 when the bytes there are not one:
 * a stray byte, an overlong form, a surrogate, beyond U+10FFFF, or cut off by the terminator.
 */
size_t text_utf8_length(const char *text);

/*
 * Copies with every control character (which could steer a terminal) and every invalid byte
 * replaced by '?'. Cut at a whole character to fit. Returns the width in columns, one a character.
 */
size_t text_printable(const char *text, char *out, size_t out_size);

/* "980 ns", "12.3 us", "4.56 ms", "7.89 s"; three significant digits. */
const char *text_duration(uint64_t duration_ns, char out[TEXT_SIZE]);

/* "512 B", "1.50 KiB", "64.0 MiB". */
const char *text_bytes(uint64_t bytes, char out[TEXT_SIZE]);

/* "3d 4h", "5h 12m", "7m 3s", "12s". */
const char *text_age(uint64_t age_ms, char out[TEXT_SIZE]);

#endif
