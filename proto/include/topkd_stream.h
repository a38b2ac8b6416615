/*
 * topkd_stream.h - how messages follow each other on a connection.
 *
 * A connection is a Unix stream socket that speaks what NNG's REQ and REP speak over ipc://, so
 * that programs without libtopkd can use NNG; both sides of topkd have it themselves. Each side
 * first sends a greeting of 8 bytes: 0, "SP", 0, its protocol in 2 bytes, 0, 0. After it a message
 * is a byte 1, its length in 8 bytes, and its content, which begins with identifiers of 4 bytes, of
 * which the last alone has its highest bit set. A reply repeats those of its request; libtopkd
 * sends one. Numbers are big-endian.
 */
#ifndef TOPKD_STREAM_H
#define TOPKD_STREAM_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define STREAM_GREETING_SIZE 8u
#define STREAM_HEAD_SIZE 9u /* of a message: the byte 1 and the length */
#define STREAM_ID_SIZE 4u
#define STREAM_ID_LAST 0x80000000u /* bit of the last identifier */

enum stream_protocol { STREAM_REQ = 0x30, STREAM_REP = 0x31 };

static inline void stream_put_greeting(uint8_t bytes[STREAM_GREETING_SIZE],
                                       enum stream_protocol protocol)
{
    const uint8_t greeting[STREAM_GREETING_SIZE] = {0, 'S', 'P', 0, 0, (uint8_t)protocol, 0, 0};
    memcpy(bytes, greeting, sizeof(greeting));
}

static inline bool stream_is_greeting(const uint8_t bytes[STREAM_GREETING_SIZE],
                                      enum stream_protocol protocol)
{
    uint8_t greeting[STREAM_GREETING_SIZE];
    stream_put_greeting(greeting, protocol);
    return memcmp(bytes, greeting, sizeof(greeting)) == 0;
}

/* `length` is that of identifiers and content. */
static inline void stream_put_head(uint8_t bytes[STREAM_HEAD_SIZE], uint64_t length)
{
    const uint64_t wire_length = htobe64(length);
    bytes[0] = 1;
    memcpy(bytes + 1, &wire_length, sizeof(wire_length));
}

/* False: no message begins so. */
static inline bool stream_get_head(const uint8_t bytes[STREAM_HEAD_SIZE], uint64_t *length_p)
{
    uint64_t wire_length;
    memcpy(&wire_length, bytes + 1, sizeof(wire_length));
    *length_p = be64toh(wire_length);
    return bytes[0] == 1;
}

static inline void stream_put_id(uint8_t bytes[STREAM_ID_SIZE], uint32_t id)
{
    const uint32_t wire_id = htobe32(id);
    memcpy(bytes, &wire_id, sizeof(wire_id));
}

static inline uint32_t stream_get_id(const uint8_t bytes[STREAM_ID_SIZE])
{
    uint32_t wire_id;
    memcpy(&wire_id, bytes, sizeof(wire_id));
    return be32toh(wire_id);
}

#endif
