/*
 * wire_refusal_test.c - what is not a message of the contract is refused, on both sides, by name.
 */
#include "wire_forge.h"
#include "wire_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED UINT64_C(20)

static struct wire_request request;
static struct wire_reply reply;
static struct wire_buffer buffer;
static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX + 8];
static char detail[WIRE_DETAIL_SIZE];

/* ---- Decoding -------------------------------------------------------------------------------- */

/* Through a block of exactly `size` bytes, so that a sanitizer sees one byte too far. */
static enum topkd_status decode(bool is_reply, const uint8_t *from, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    assert_non_null(exact);
    memcpy(exact, from, size);
    strcpy(detail, "no text");
    const enum topkd_status status =
        is_reply ? wire_reply_decode(exact, size, &buffer, &reply, detail)
                 : wire_request_decode(exact, size, &buffer, &request, detail);
    free(exact);
    return status;
}

static void expect_refused(bool is_reply, const uint8_t *from, size_t size, const char *text)
{
    assert_int_equal(decode(is_reply, from, size), TOPKD_E_PROTOCOL);
    if (!strstr(detail, text))
        fail_msg("%zu bytes: detail \"%s\" lacks \"%s\"", size, detail, text);
    if (is_reply)
        assert_int_equal(reply.status, TOPKD_E_PROTOCOL);
}

static size_t small_sample(bool is_reply, enum wire_kind kind)
{
    size_t size;
    if (is_reply) {
        sample_reply(kind, TOPKD_OK, SAMPLE_SMALL, SEED, &reply);
        assert_int_equal(wire_reply_encode(&reply, bytes, sizeof(bytes), &size, detail), TOPKD_OK);
        return size;
    }
    sample_request(kind, SAMPLE_SMALL, SEED, &request);
    if (kind == WIRE_SELECT) /* the longest way through a message */
        sample_inline_lengths(&request.u.select, 5, SEED);
    assert_int_equal(wire_request_encode(&request, bytes, sizeof(bytes), &size, detail), TOPKD_OK);
    return size;
}

static void it_29_bytes_that_are_no_message(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\0";
    for (int is_reply = 0; is_reply < 2; is_reply++) {
        expect_refused(is_reply, bytes, 0, "a message of 0 bytes");
        expect_refused(is_reply, bytes, 4, "a message of 4 bytes; it must be a multiple of 4");
        expect_refused(is_reply, (const uint8_t *)http, 36, "identifier 2f 20 48 54");
        for (int value = 0; value < 256; value += 51) {
            memset(bytes, value, sizeof(bytes));
            expect_refused(is_reply, bytes, 8, "not a topkd message");
            expect_refused(is_reply, bytes, WIRE_MESSAGE_SIZE_MAX, "not a topkd message");
        }
    }
}

static void it_29_a_message_of_64_kib_and_one_byte(void **state)
{
    (void)state;
    for (int is_reply = 0; is_reply < 2; is_reply++) {
        small_sample(is_reply, WIRE_HELLO);
        expect_refused(is_reply, bytes, WIRE_MESSAGE_SIZE_MAX + 1, "a message of 65537 bytes");
        expect_refused(is_reply, bytes, WIRE_MESSAGE_SIZE_MAX + 4, "from 8 to 65536");
        /* what follows a message inside the limit is not looked at */
        assert_int_equal(decode(is_reply, bytes, WIRE_MESSAGE_SIZE_MAX), TOPKD_OK);
    }
}

static void it_29_a_message_cut_at_every_byte(void **state)
{
    (void)state;
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        for (int is_reply = 0; is_reply < 2; is_reply++) {
            const size_t size = small_sample(is_reply, (enum wire_kind)kind);
            for (size_t cut = 0; cut < size; cut++)
                expect_refused(is_reply, bytes, cut, " bytes");
            assert_int_equal(decode(is_reply, bytes, size), TOPKD_OK);
        }
    }
}

static void it_29_another_identifier(void **state)
{
    (void)state;
    for (int is_reply = 0; is_reply < 2; is_reply++) {
        const size_t size = small_sample(is_reply, WIRE_PING);
        bytes[7] ^= 0x20; /* "TPKd" */
        expect_refused(is_reply, bytes, size, "identifier 54 50 4b 64 is not \"TPKD\"");
    }
}

/* A decoder that accepts must have understood: the message goes through once more unchanged. */
static void expect_sound(bool is_reply, const uint8_t *from, size_t size)
{
    static struct wire_request first_request;
    static struct wire_reply first_reply;
    static struct wire_buffer first_buffer;
    static uint8_t second[WIRE_MESSAGE_SIZE_MAX];
    const enum topkd_status status = decode(is_reply, from, size);
    if (status != TOPKD_OK) {
        assert_true(status == TOPKD_E_PROTOCOL || status == TOPKD_E_UNSUPPORTED);
        assert_string_not_equal(detail, "no text");
        return;
    }
    size_t second_size;
    memcpy(first_buffer.bytes, from, size);
    if (is_reply) {
        wire_reply_decode(from, size, &first_buffer, &first_reply, NULL);
        assert_int_equal(
            wire_reply_encode(&first_reply, second, sizeof(second), &second_size, detail),
            TOPKD_OK);
        assert_int_equal(decode(true, second, second_size), TOPKD_OK);
        assert_true(sample_replies_equal(&first_reply, &reply, detail));
    } else {
        wire_request_decode(from, size, &first_buffer, &first_request, NULL);
        assert_int_equal(
            wire_request_encode(&first_request, second, sizeof(second), &second_size, detail),
            TOPKD_OK);
        assert_int_equal(decode(false, second, second_size), TOPKD_OK);
        assert_true(sample_requests_equal(&first_request, &request, detail));
    }
}

static void it_29_the_right_identifier_with_bad_offsets(void **state)
{
    (void)state;
    static const uint32_t words[] = {0, 1, 4, 0x7ffffffc, 0x80000000, 0xfffffff8, 0xffffffff};
    uint8_t damaged[4096];
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        for (int is_reply = 0; is_reply < 2; is_reply++) {
            const size_t size = small_sample(is_reply, (enum wire_kind)kind);
            assert_true(size <= sizeof(damaged));
            for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
                memcpy(damaged, bytes, size);
                memcpy(damaged, &words[i], sizeof(words[i])); /* the offset of the root */
                if (words[i] != 4)
                    expect_refused(is_reply, damaged, size, "corrupt message");
                for (size_t at = 8; at + sizeof(words[i]) <= size; at += 2) {
                    memcpy(damaged, bytes, size);
                    memcpy(damaged + at, &words[i], sizeof(words[i]));
                    expect_sound(is_reply, damaged, size);
                }
            }
        }
    }
}

static void it_29_any_bit_of_a_message_flipped(void **state)
{
    (void)state;
    for (unsigned kind = WIRE_HELLO; kind <= WIRE_DRAIN; kind++) {
        for (int is_reply = 0; is_reply < 2; is_reply++) {
            const size_t size = small_sample(is_reply, (enum wire_kind)kind);
            for (size_t bit = 0; bit < 8 * size; bit++) {
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                expect_sound(is_reply, bytes, size);
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
        }
    }
}

/* Refused requests keep what an answer needs, and nothing else. */
static void expect_only_the_header(void)
{
    struct wire_request header;
    memset(&header, 0, sizeof(header));
    header.session = FORGE_SESSION;
    header.sequence = FORGE_SEQUENCE;
    header.epoch = FORGE_EPOCH;
    assert_memory_equal(&request, &header, sizeof(header));
}

static void forged_messages_are_refused_by_name(void **state)
{
    (void)state;
    size_t num_accepted = 0;
    for (size_t i = 0; i < forge_count(); i++) {
        const struct forgery *told = forge_case(i);
        const size_t size = forge_message(i, bytes, sizeof(bytes));
        memset(&request, 0xa5, sizeof(request));
        memset(&reply, 0xa5, sizeof(reply));
        const enum topkd_status status = decode(told->is_reply, bytes, size);
        if (status != told->expected)
            fail_msg("%s: %s, expected %s (%s)", told->name, wire_status_name(status),
                     wire_status_name(told->expected), detail);
        if (told->detail && !strstr(detail, told->detail))
            fail_msg("%s: detail \"%s\" lacks \"%s\"", told->name, detail, told->detail);
        if (!told->detail) {
            assert_string_equal(detail, "no text");
            expect_sound(told->is_reply, bytes, size);
            num_accepted++;
        } else if (!told->is_reply) {
            expect_only_the_header();
        }
    }
    assert_true(num_accepted >= 8 && num_accepted < forge_count() / 4);
}

/* ---- Statuses of a newer daemon -------------------------------------------------------------- */

static void a_status_of_the_future_keeps_its_number_and_text(void **state)
{
    (void)state;
    size_t size;
    sample_reply(WIRE_SELECT, TOPKD_E_CLOSED, SAMPLE_MIN, 0, &reply);
    strcpy(reply.detail, "the moon is full");
    assert_int_equal(wire_reply_encode(&reply, bytes, sizeof(bytes), &size, detail), TOPKD_OK);
    size_t num_places = 0;
    for (size_t at = 0; at + 4 <= size; at += 4) {
        uint32_t word;
        memcpy(&word, bytes + at, sizeof(word));
        if (word != TOPKD_E_CLOSED)
            continue;
        word = 4321;
        memcpy(bytes + at, &word, sizeof(word));
        num_places++;
    }
    assert_int_equal(num_places, 1);
    assert_int_equal(decode(true, bytes, size), TOPKD_OK);
    assert_int_equal(reply.status, TOPKD_E_VERSION);
    assert_string_equal(reply.detail, "status 4321 of a newer topkd: the moon is full");
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static void expect_unsent(bool is_reply, const char *text)
{
    size_t size = 12345;
    strcpy(detail, "no text");
    assert_int_equal(is_reply ? wire_reply_encode(&reply, bytes, sizeof(bytes), &size, detail)
                              : wire_request_encode(&request, bytes, sizeof(bytes), &size, detail),
                     TOPKD_E_INVALID);
    assert_int_equal(size, 12345);
    if (!strstr(detail, text))
        fail_msg("detail \"%s\" lacks \"%s\"", detail, text);
    assert_int_equal(is_reply ? wire_reply_encode(&reply, bytes, sizeof(bytes), &size, NULL)
                              : wire_request_encode(&request, bytes, sizeof(bytes), &size, NULL),
                     TOPKD_E_INVALID);
}

static void a_request_outside_the_limits_is_not_encoded(void **state)
{
    (void)state;
    static const int32_t lengths[4] = {1, 2, 3, 4};
    sample_request(WIRE_PING, SAMPLE_MIN, 0, &request);
    request.kind = (enum wire_kind)14;
    expect_unsent(false, "kind: 14 is not a request");
    sample_request(WIRE_HELLO, SAMPLE_MAX, SEED, &request);
    memset(request.u.hello.client_name, 'x', sizeof(request.u.hello.client_name));
    expect_unsent(false, "client_name: no terminator within its 64 bytes");
    sample_request(WIRE_HELLO, SAMPLE_MIN, SEED, &request);
    strcpy(request.u.hello.device, "cpu\t");
    expect_unsent(false, "device: control character 0x09 at byte 3");
    sample_request(WIRE_REGISTER, SAMPLE_MAX, SEED, &request);
    request.u.reg.memory.handle_bytes = WIRE_HANDLE_SIZE + 1;
    expect_unsent(false, "memory: a handle of 129 bytes, at most 128");
    sample_request(WIRE_REGISTER, SAMPLE_MAX, SEED, &request);
    request.u.reg.access = (enum wire_access)2;
    expect_unsent(false, "access: 2 is neither");
    sample_request(WIRE_SELECT, SAMPLE_MIN, SEED, &request);
    request.u.select.output_mode = (enum wire_output_mode)7;
    expect_unsent(false, "output_mode: 7 is not a value");
    sample_request(WIRE_SELECT, SAMPLE_MIN, SEED, &request);
    request.u.select.num_lengths = request.u.select.rows = WIRE_LENGTHS_MAX + 1;
    request.u.select.lengths_mode = WIRE_LENGTHS_INLINE;
    request.u.select.lengths_inline = lengths;
    expect_unsent(false, "lengths_inline: 8193 entries, at most 8192");
    request.u.select.num_lengths = 4;
    request.u.select.rows = 5;
    expect_unsent(false, "lengths_inline: 4 entries for 5 rows");
    request.u.select.rows = 4;
    request.u.select.lengths_inline = NULL;
    expect_unsent(false, "lengths_inline: a null pointer for 4 entries");
    sample_request(WIRE_SELECT_BATCH, SAMPLE_MIN, SEED, &request);
    request.u.select_batch.num_selects = WIRE_BATCH_MAX + 1;
    expect_unsent(false, "selects: 17 entries, at most 16");
    sample_request(WIRE_SELECT_BATCH, SAMPLE_MIN, SEED, &request);
    request.u.select_batch.num_selects = 1;
    request.u.select_batch.selects[0].output_mode = (enum wire_output_mode)7;
    expect_unsent(false, "output_mode: 7 is not a value");
}

static void a_reply_outside_the_limits_is_not_encoded(void **state)
{
    (void)state;
    sample_reply(WIRE_PING, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.status = (enum topkd_status)4321;
    expect_unsent(true, "status: 4321 is not a status");
    sample_reply(WIRE_PING, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.kind = (enum wire_kind)0;
    expect_unsent(true, "a reply without a kind");
    reply.kind = (enum wire_kind)99;
    expect_unsent(true, "kind: 99 is not a request");
    sample_reply(WIRE_PING, TOPKD_E_BUSY, SAMPLE_MIN, 0, &reply);
    memset(reply.detail, 'x', sizeof(reply.detail));
    expect_unsent(true, "detail: no terminator within its 256 bytes");
    sample_reply(WIRE_DEVICES, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.u.devices.num_devices = WIRE_DEVICES_MAX + 1;
    expect_unsent(true, "devices: 65 entries, at most 64");
    sample_reply(WIRE_SESSIONS, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.u.sessions.num_sessions = UINT32_MAX;
    expect_unsent(true, "sessions: 4294967295 entries, at most 256");
    sample_reply(WIRE_STATS, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.u.stats.num_buckets = WIRE_BUCKETS_MAX + 1;
    expect_unsent(true, "buckets: 65 entries, at most 64");
    sample_reply(WIRE_HELLO, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.u.hello.arena.kind = (enum wire_memory_kind)4;
    expect_unsent(true, "arena: 4 is not a value");
    sample_reply(WIRE_SELECT_BATCH, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.u.select_batch.num_answers = WIRE_BATCH_MAX + 1;
    expect_unsent(true, "answers: 17 entries, at most 16");
    sample_reply(WIRE_SELECT_BATCH, TOPKD_OK, SAMPLE_MIN, 0, &reply);
    reply.u.select_batch.num_answers = 2;
    reply.u.select_batch.answers[1].status = (enum topkd_status)4321;
    expect_unsent(true, "status: 4321 is not a status");
}

static void the_room_for_a_message_is_kept_to_the_byte(void **state)
{
    (void)state;
    size_t size, unchanged = 777;
    sample_request(WIRE_SELECT, SAMPLE_MAX, SEED, &request);
    assert_int_equal(wire_request_encode(&request, bytes, sizeof(bytes), &size, detail), TOPKD_OK);
    memset(bytes, 0xee, sizeof(bytes));
    assert_int_equal(wire_request_encode(&request, bytes, size - 1, &unchanged, detail),
                     TOPKD_E_INVALID);
    assert_int_equal(unchanged, 777);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(bytes[i], 0xee);
    assert_int_equal(wire_request_encode(&request, bytes, size, &unchanged, detail), TOPKD_OK);
    assert_int_equal(unchanged, size);
    assert_int_equal(bytes[size], 0xee);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_29_bytes_that_are_no_message),
        cmocka_unit_test(it_29_a_message_of_64_kib_and_one_byte),
        cmocka_unit_test(it_29_a_message_cut_at_every_byte),
        cmocka_unit_test(it_29_another_identifier),
        cmocka_unit_test(it_29_the_right_identifier_with_bad_offsets),
        cmocka_unit_test(it_29_any_bit_of_a_message_flipped),
        cmocka_unit_test(forged_messages_are_refused_by_name),
        cmocka_unit_test(a_status_of_the_future_keeps_its_number_and_text),
        cmocka_unit_test(a_request_outside_the_limits_is_not_encoded),
        cmocka_unit_test(a_reply_outside_the_limits_is_not_encoded),
        cmocka_unit_test(the_room_for_a_message_is_kept_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
