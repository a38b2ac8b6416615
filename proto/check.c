/*
 * check.c - the limits of the wire structs: enums, texts, counts.
 *
 * Plain C on plain structs, and the same for both directions: an encoder never sends what a decoder
 * would refuse.
 */
#include "wire_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wire_broken(const char *condition, const char *file, int line)
{
    fprintf(stderr, "topkd wire: broken invariant at %s:%d: %s\n", file, line, condition);
    abort();
}

bool wire_fail(char *detail, const char *format, ...)
{
    if (detail) {
        va_list args;
        va_start(args, format);
        vsnprintf(detail, WIRE_DETAIL_SIZE, format, args);
        va_end(args);
    }
    return false;
}

static bool check_enum(const char *field, unsigned value, unsigned value_max, char *detail)
{
    if (value <= value_max)
        return true;
    return wire_fail(detail, "%s: %u is not a value of wire version %u (0 to %u)", field, value,
                     WIRE_VERSION, value_max);
}

static bool check_count(const char *field, uint32_t count, uint32_t count_max, char *detail)
{
    if (count <= count_max)
        return true;
    return wire_fail(detail, "%s: %u entries, at most %u", field, count, count_max);
}

static bool check_terminated(const char *field, const char *text, size_t text_size, char *detail)
{
    if (memchr(text, '\0', text_size))
        return true;
    return wire_fail(detail, "%s: no terminator within its %zu bytes", field, text_size);
}

/* Names go into logs, metrics and terminals, so a line break or an escape in one is refused. */
static bool check_name(const char *field, const char *text, size_t text_size, char *detail)
{
    if (!check_terminated(field, text, text_size, detail))
        return false;
    for (size_t i = 0; text[i] != '\0'; i++) {
        const unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == 0x7f)
            return wire_fail(detail, "%s: control character 0x%02x at byte %zu; use printable text",
                             field, byte, i);
    }
    return true;
}

static bool check_memory(const char *field, const struct wire_memory *memory, char *detail)
{
    if (!check_enum(field, memory->kind, WIRE_MEMORY_CUDA_FD, detail))
        return false;
    if (memory->handle_bytes > WIRE_HANDLE_SIZE)
        return wire_fail(detail, "%s: a handle of %u bytes, at most %u", field,
                         memory->handle_bytes, WIRE_HANDLE_SIZE);
    return true;
}

static bool check_select(const struct wire_select_request *select, char *detail)
{
    if (!check_enum("lengths_mode", select->lengths_mode, WIRE_LENGTHS_REGION, detail) ||
        !check_enum("output_mode", select->output_mode, WIRE_OUTPUT_ARENA, detail) ||
        !check_enum("reply_when", select->reply_when, WIRE_REPLY_ENQUEUED, detail) ||
        !check_count("lengths_inline", select->num_lengths, WIRE_LENGTHS_MAX, detail))
        return false;
    if (select->lengths_mode != WIRE_LENGTHS_INLINE) {
        if (select->num_lengths != 0)
            return wire_fail(detail, "lengths_inline: %u entries, but lengths_mode is not INLINE",
                             select->num_lengths);
        return true;
    }
    if (select->num_lengths != select->rows)
        return wire_fail(detail,
                         "lengths_inline: %u entries for %u rows; give one a row (at most %u), or "
                         "put the lengths into a region",
                         select->num_lengths, select->rows, WIRE_LENGTHS_MAX);
    if (select->num_lengths > 0 && !select->lengths_inline)
        return wire_fail(detail, "lengths_inline: a null pointer for %u entries",
                         select->num_lengths);
    return true;
}

static bool check_select_batch(const struct wire_select_batch_request *batch, char *detail)
{
    uint64_t num_lengths = 0;
    if (!check_count("selects", batch->num_selects, WIRE_BATCH_MAX, detail))
        return false;
    for (uint32_t i = 0; i < batch->num_selects; i++) {
        if (!check_select(&batch->selects[i], detail))
            return false;
        num_lengths += batch->selects[i].num_lengths;
    }
    if (num_lengths > WIRE_LENGTHS_MAX)
        return wire_fail(detail, "lengths_inline: %llu entries in a batch, at most %u together",
                         (unsigned long long)num_lengths, WIRE_LENGTHS_MAX);
    return true;
}

static bool check_register(const struct wire_register_request *reg, char *detail)
{
    if (reg->access != WIRE_ACCESS_READ && reg->access != WIRE_ACCESS_READ_WRITE)
        return wire_fail(detail, "access: %u is neither %u (read) nor %u (read and write)",
                         (unsigned)reg->access, (unsigned)WIRE_ACCESS_READ,
                         (unsigned)WIRE_ACCESS_READ_WRITE);
    return check_memory("memory", &reg->memory, detail) &&
           check_name("device", reg->device, sizeof(reg->device), detail);
}

bool wire_request_check(const struct wire_request *request, char *detail)
{
    switch (request->kind) {
    case WIRE_HELLO:
        return check_name("client_name", request->u.hello.client_name, WIRE_NAME_SIZE, detail) &&
               check_name("device", request->u.hello.device, WIRE_UUID_SIZE, detail);
    case WIRE_REGISTER:
        return check_register(&request->u.reg, detail);
    case WIRE_SELECT:
        return check_select(&request->u.select, detail);
    case WIRE_SELECT_BATCH:
        return check_select_batch(&request->u.select_batch, detail);
    case WIRE_LANE_OPEN:
        return check_select(&request->u.lane_open.shape, detail) &&
               check_memory("mailbox", &request->u.lane_open.mailbox, detail);
    case WIRE_PING:
    case WIRE_DEVICES:
    case WIRE_UNREGISTER:
    case WIRE_RELEASE:
    case WIRE_LANE_CLOSE:
    case WIRE_STATS:
    case WIRE_SESSIONS:
    case WIRE_DRAIN:
        return true;
    }
    return wire_fail(detail, "kind: %u is not a request of wire version %u",
                     (unsigned)request->kind, WIRE_VERSION);
}

static bool check_hello_reply(const struct wire_hello_reply *hello, char *detail)
{
    return check_enum("device_kind", hello->device_kind, WIRE_DEVICE_CUDA, detail) &&
           check_name("device", hello->device, WIRE_UUID_SIZE, detail) &&
           check_name("server_version", hello->server_version, WIRE_NAME_SIZE, detail) &&
           check_memory("semaphores", &hello->semaphores, detail) &&
           check_memory("arena", &hello->arena, detail);
}

static bool check_devices_reply(const struct wire_devices_reply *reply, char *detail)
{
    if (!check_count("devices", reply->num_devices, WIRE_DEVICES_MAX, detail))
        return false;
    for (uint32_t i = 0; i < reply->num_devices; i++) {
        const struct wire_device *device = &reply->devices[i];
        if (!check_name("device", device->device, WIRE_UUID_SIZE, detail) ||
            !check_name("name", device->name, WIRE_NAME_SIZE, detail) ||
            !check_name("url", device->url, WIRE_URL_SIZE, detail) ||
            !check_enum("device kind", device->kind, WIRE_DEVICE_CUDA, detail) ||
            !check_enum("device state", device->state, WIRE_DEVICE_DOWN, detail))
            return false;
    }
    return true;
}

static bool check_sessions_reply(const struct wire_sessions_reply *reply, char *detail)
{
    if (!check_count("sessions", reply->num_sessions, WIRE_SESSIONS_MAX, detail))
        return false;
    for (uint32_t i = 0; i < reply->num_sessions; i++) {
        if (!check_name("client_name", reply->sessions[i].client_name, WIRE_NAME_SIZE, detail))
            return false;
    }
    return true;
}

static bool check_select_batch_reply(const struct wire_select_batch_reply *reply, char *detail)
{
    if (!check_count("answers", reply->num_answers, WIRE_BATCH_MAX, detail))
        return false;
    for (uint32_t i = 0; i < reply->num_answers; i++) {
        const struct wire_select_answer *answer = &reply->answers[i];
        if (!wire_status_known(answer->status))
            return wire_fail(detail, "status: %u is not a status of this version",
                             (unsigned)answer->status);
        if (!check_terminated("detail", answer->detail, WIRE_DETAIL_SIZE, detail))
            return false;
    }
    return true;
}

bool wire_reply_check(const struct wire_reply *reply, char *detail)
{
    if (!wire_status_known(reply->status))
        return wire_fail(detail, "status: %u is not a status of this version",
                         (unsigned)reply->status);
    if (!check_terminated("detail", reply->detail, WIRE_DETAIL_SIZE, detail))
        return false;
    if ((uint32_t)reply->kind != 0 && !wire_kind_known(reply->kind))
        return wire_fail(detail, "kind: %u is not a request of wire version %u",
                         (unsigned)reply->kind, WIRE_VERSION);
    if (reply->status != TOPKD_OK)
        return true;
    if ((uint32_t)reply->kind == 0)
        return wire_fail(detail, "kind: a reply without a kind cannot have the status ok");
    switch (reply->kind) {
    case WIRE_HELLO:
        return check_hello_reply(&reply->u.hello, detail);
    case WIRE_DEVICES:
        return check_devices_reply(&reply->u.devices, detail);
    case WIRE_LANE_OPEN:
        return check_memory("mailbox", &reply->u.lane_open.mailbox, detail);
    case WIRE_STATS:
        return check_count("buckets", reply->u.stats.num_buckets, WIRE_BUCKETS_MAX, detail);
    case WIRE_SESSIONS:
        return check_sessions_reply(&reply->u.sessions, detail);
    case WIRE_SELECT_BATCH:
        return check_select_batch_reply(&reply->u.select_batch, detail);
    case WIRE_PING:
    case WIRE_REGISTER:
    case WIRE_UNREGISTER:
    case WIRE_SELECT:
    case WIRE_RELEASE:
    case WIRE_LANE_CLOSE:
    case WIRE_DRAIN:
        break;
    }
    return true;
}
