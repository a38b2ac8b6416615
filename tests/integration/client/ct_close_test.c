/*
 * ct_close_test.c - closing connections while answers are on their way, at a peer that is NNG: the
 * caller comes back at once, and clients live on after it. Uses the library's own objects, for its
 * raw connections.
 */
#include "fake.h"
#include "rpc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 400, PINGS = 8 };

/* Sends some requests and closes at some moment of their answers. */
static void close_among_answers(const struct fake *fake, struct wire_reply *replies, int round)
{
    char detail[WIRE_DETAIL_SIZE];
    struct rpc_exchange exchanges[PINGS];
    struct rpc *rpc;
    if (rpc_open(fake->worker_url, clock_after_ms(10000), &rpc, detail) != TOPKD_OK) {
        fail_msg("%s", detail);
    }
    for (uint64_t i = 0; i < PINGS; i++) {
        const struct wire_request request = {.kind = WIRE_PING, .session = 1, .sequence = i + 1};
        assert_int_equal(
            rpc_send(rpc, &request, clock_after_ms(10000), &replies[i], &exchanges[i], detail),
            TOPKD_OK);
    }
    usleep((useconds_t)(round * 37) % 400);
    rpc_abort(rpc);
    for (int i = 0; i < PINGS; i++) { /* answered (the session is unknown) or lost */
        enum topkd_status status = rpc_receive(&exchanges[i], detail);
        assert_true(status == TOPKD_E_STALE_SESSION || status == TOPKD_E_UNREACHABLE);
    }
    rpc_close(rpc);
}

static void ct_100_closing_among_answers_comes_back(void **state)
{
    struct fake *fake = *state;
    struct wire_reply *replies = calloc(PINGS, sizeof(*replies));
    assert_non_null(replies);
    fake_start(fake, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t before_ms = now_ms();
        close_among_answers(fake, replies, round);
        assert_true(now_ms() - before_ms < LATE_MS);
    }
    free(replies);
}

static void ct_101_clients_live_on(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    for (int i = 0; i < 3; i++) {
        struct topkd_select_request request = matrix_request(&matrix, i % 2 == 0);
        expect_ok(topkd_select(client, &request, &result));
        matrix_check(&matrix, &request, &result);
        topkd_result_release(client, &result);
        expect_ok(topkd_ping(client, NULL));
        fake_kill(fake);
        fake_start(fake, NULL);
    }
    expect_ok(topkd_ping(client, NULL));
    uint64_t before_ms = now_ms();
    topkd_client_close(client);
    assert_true(now_ms() - before_ms < LATE_MS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(ct_100_closing_among_answers_comes_back),
        TEST(ct_101_clients_live_on),
    };
    return cmocka_run_group_tests_name("ct_close", tests, NULL, NULL);
}
