/*
 * wire_roundtrip_test.c - what is encoded is what is decoded, for every kind and every field.
 */
#include "wire_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define NUM_RANDOM_ROUNDS 300u

static const enum wire_kind kinds[] = {
#define KIND(name, number, text) name,
    WIRE_KIND_TABLE(KIND)
#undef KIND
};
static const enum topkd_status statuses[] = {
#define STATUS(name, number, text, hint) name,
    TOPKD_STATUS_TABLE(STATUS)
#undef STATUS
};
#define COUNTOF(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t run_seed; /* of this run; printed at its start */

/* Too large for a stack. */
static struct wire_request request_sent, request_got;
static struct wire_reply reply_sent, reply_got;
static struct wire_buffer buffer;
static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];

static size_t request_there_and_back(const struct wire_request *request)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    size_t size = 0;
    memset(&request_got, 0xa5, sizeof(request_got));
    if (wire_request_encode(request, bytes, sizeof(bytes), &size, detail) != TOPKD_OK)
        fail_msg("%s: not encoded: %s", wire_kind_name(request->kind), detail);
    if (wire_request_decode(bytes, size, &buffer, &request_got, detail) != TOPKD_OK)
        fail_msg("%s: not decoded: %s", wire_kind_name(request->kind), detail);
    if (!sample_requests_equal(request, &request_got, detail))
        fail_msg("%s: another value came back in %s", wire_kind_name(request->kind), detail);
    return size;
}

static size_t reply_there_and_back(const struct wire_reply *reply)
{
    char detail[WIRE_DETAIL_SIZE] = "";
    size_t size = 0;
    memset(&reply_got, 0xa5, sizeof(reply_got));
    if (wire_reply_encode(reply, bytes, sizeof(bytes), &size, detail) != TOPKD_OK)
        fail_msg("%s: not encoded: %s", wire_kind_name(reply->kind), detail);
    if (wire_reply_decode(bytes, size, &buffer, &reply_got, detail) != TOPKD_OK)
        fail_msg("%s: not decoded: %s", wire_kind_name(reply->kind), detail);
    if (!sample_replies_equal(reply, &reply_got, detail))
        fail_msg("%s: another value came back in %s", wire_kind_name(reply->kind), detail);
    return size;
}

static void it_knows_every_field_of_every_struct(void **state)
{
    (void)state;
    char where[WIRE_DETAIL_SIZE];
    if (!sample_layouts_complete(where))
        fail_msg("tests/support/wire_layout.c lacks a field: %s", where);
}

static void it_notices_any_field_that_differs(void **state)
{
    (void)state;
    char where[WIRE_DETAIL_SIZE];
    sample_request(WIRE_LANE_OPEN, SAMPLE_RANDOM, run_seed, &request_sent);
    request_got = request_sent;
    request_got.u.lane_open.shape.page_table.offset ^= 1;
    assert_false(sample_requests_equal(&request_sent, &request_got, where));
    assert_string_equal(where, "shape.page_table.offset");
    sample_reply(WIRE_SESSIONS, TOPKD_OK, SAMPLE_MAX, run_seed, &reply_sent);
    reply_got = reply_sent;
    reply_got.u.sessions.sessions[255].gid ^= 1;
    assert_false(sample_replies_equal(&reply_sent, &reply_got, where));
    assert_string_equal(where, "sessions[255].gid");
}

static void requests_come_back_at_their_smallest_and_largest(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNTOF(kinds); i++) {
        sample_request(kinds[i], SAMPLE_MIN, 0, &request_sent);
        const size_t size_min = request_there_and_back(&request_sent);
        sample_request(kinds[i], SAMPLE_MAX, 0, &request_sent);
        const size_t size_max = request_there_and_back(&request_sent);
        print_message("  %-10s request %5zu to %5zu bytes\n", wire_kind_name(kinds[i]), size_min,
                      size_max);
    }
}

static void replies_come_back_at_their_smallest_and_largest(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNTOF(kinds); i++) {
        sample_reply(kinds[i], TOPKD_OK, SAMPLE_MIN, 0, &reply_sent);
        const size_t size_min = reply_there_and_back(&reply_sent);
        sample_reply(kinds[i], TOPKD_OK, SAMPLE_MAX, 0, &reply_sent);
        const size_t size_max = reply_there_and_back(&reply_sent);
        print_message("  %-10s reply   %5zu to %5zu bytes\n", wire_kind_name(kinds[i]), size_min,
                      size_max);
    }
}

static void requests_come_back_with_random_fields(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < NUM_RANDOM_ROUNDS; round++) {
        for (size_t i = 0; i < COUNTOF(kinds); i++) {
            sample_request(kinds[i], SAMPLE_RANDOM, run_seed + round, &request_sent);
            request_there_and_back(&request_sent);
        }
    }
}

static void replies_come_back_with_random_fields(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < NUM_RANDOM_ROUNDS; round++) {
        for (size_t i = 0; i < COUNTOF(kinds); i++) {
            sample_reply(kinds[i], TOPKD_OK, SAMPLE_RANDOM, run_seed + round, &reply_sent);
            reply_there_and_back(&reply_sent);
        }
    }
}

static void every_status_comes_back_with_its_detail(void **state)
{
    (void)state;
    for (size_t i = 1; i < COUNTOF(statuses); i++) {
        for (size_t j = 0; j < COUNTOF(kinds); j++) {
            sample_reply(kinds[j], statuses[i], SAMPLE_RANDOM, run_seed + i, &reply_sent);
            reply_there_and_back(&reply_sent);
        }
        sample_reply((enum wire_kind)0, statuses[i], SAMPLE_MAX, run_seed + i, &reply_sent);
        reply_there_and_back(&reply_sent);
    }
}

static void inline_lengths_come_back_up_to_the_limit(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 2, 3, 4095, WIRE_LENGTHS_MAX - 1, WIRE_LENGTHS_MAX};
    for (size_t i = 0; i < COUNTOF(counts); i++) {
        sample_request(WIRE_SELECT, SAMPLE_RANDOM, run_seed, &request_sent);
        sample_inline_lengths(&request_sent.u.select, counts[i], run_seed);
        request_there_and_back(&request_sent);
        sample_request(WIRE_LANE_OPEN, SAMPLE_MAX, run_seed, &request_sent);
        sample_inline_lengths(&request_sent.u.lane_open.shape, counts[i], run_seed);
        const size_t size = request_there_and_back(&request_sent);
        assert_true(size >= counts[i] * sizeof(int32_t));
        const int32_t *lengths = request_got.u.lane_open.shape.lengths_inline;
        if (counts[i] > 0) /* read in place, so that nothing is copied twice */
            assert_in_range((uintptr_t)lengths, (uintptr_t)buffer.bytes,
                            (uintptr_t)buffer.bytes + size - counts[i] * sizeof(int32_t));
    }
}

static void no_byte_of_the_stack_travels(void **state)
{
    (void)state;
    static uint8_t again[WIRE_MESSAGE_SIZE_MAX];
    for (size_t i = 0; i < COUNTOF(kinds); i++) {
        uint8_t *outs[] = {bytes, again};
        size_t sizes[2];
        sample_request(kinds[i], SAMPLE_SMALL, run_seed, &request_sent);
        for (int pass = 0; pass < 2; pass++) {
            volatile uint8_t dirt[96 * 1024]; /* where the encoder's frame comes to lie */
            for (size_t at = 0; at < sizeof(dirt); at++)
                dirt[at] = pass ? 0xaa : 0x55;
            assert_int_equal(dirt[run_seed % sizeof(dirt)], pass ? 0xaa : 0x55);
            assert_int_equal(
                wire_request_encode(&request_sent, outs[pass], sizeof(bytes), &sizes[pass], NULL),
                TOPKD_OK);
        }
        assert_int_equal(sizes[0], sizes[1]);
        assert_memory_equal(bytes, again, sizes[0]);
    }
}

static void input_may_lie_anywhere(void **state)
{
    (void)state;
    static uint8_t shifted[WIRE_MESSAGE_SIZE_MAX + 16] __attribute__((aligned(16)));
    char where[WIRE_DETAIL_SIZE];
    size_t size;
    sample_request(WIRE_SELECT, SAMPLE_MAX, run_seed, &request_sent);
    sample_inline_lengths(&request_sent.u.select, 1000, run_seed);
    for (size_t shift = 0; shift < 16; shift++) {
        assert_int_equal(wire_request_encode(&request_sent, shifted + shift, WIRE_MESSAGE_SIZE_MAX,
                                             &size, where),
                         TOPKD_OK);
        assert_int_equal(wire_request_decode(shifted + shift, size, &buffer, &request_got, where),
                         TOPKD_OK);
        assert_true(sample_requests_equal(&request_sent, &request_got, where));
        assert_int_equal((uintptr_t)request_got.u.select.lengths_inline % sizeof(int32_t), 0);
    }
    memcpy(buffer.bytes, shifted + 15, size); /* received right into the buffer */
    assert_int_equal(wire_request_decode(buffer.bytes, size, &buffer, &request_got, where),
                     TOPKD_OK);
    assert_true(sample_requests_equal(&request_sent, &request_got, where));
}

static void names_and_texts_exist_for_every_number(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNTOF(statuses); i++) {
        assert_int_equal(
            strncmp(wire_status_name(statuses[i]), i == 0 ? "TOPKD_OK" : "TOPKD_E_", 8), 0);
        assert_true(strlen(wire_status_text(statuses[i])) > 0);
        assert_true(strlen(wire_status_hint(statuses[i])) > 0);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(wire_status_name(statuses[i]), wire_status_name(statuses[j]));
    }
    assert_string_equal(wire_status_name(TOPKD_E_BUSY), "TOPKD_E_BUSY");
    assert_string_equal(wire_status_text(TOPKD_E_BUSY), "a queue is full");
    assert_string_equal(wire_status_name((enum topkd_status)4000), "TOPKD_E_?");
    assert_non_null(wire_status_text((enum topkd_status)4000));
    assert_non_null(wire_status_hint((enum topkd_status)4000));
    assert_string_equal(wire_kind_name(WIRE_LANE_OPEN), "lane_open");
    assert_string_equal(wire_kind_name((enum wire_kind)0), "unknown");
    assert_string_equal(wire_kind_name((enum wire_kind)4000), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_knows_every_field_of_every_struct),
        cmocka_unit_test(it_notices_any_field_that_differs),
        cmocka_unit_test(requests_come_back_at_their_smallest_and_largest),
        cmocka_unit_test(replies_come_back_at_their_smallest_and_largest),
        cmocka_unit_test(requests_come_back_with_random_fields),
        cmocka_unit_test(replies_come_back_with_random_fields),
        cmocka_unit_test(every_status_comes_back_with_its_detail),
        cmocka_unit_test(inline_lengths_come_back_up_to_the_limit),
        cmocka_unit_test(no_byte_of_the_stack_travels),
        cmocka_unit_test(input_may_lie_anywhere),
        cmocka_unit_test(names_and_texts_exist_for_every_number),
    };
    const char *given = getenv("TOPKD_TEST_SEED");
    run_seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu (repeat with TOPKD_TEST_SEED)\n", (unsigned long long)run_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
