/* Several Selects in one message: each is what a Select of its own would have been. */
#include "raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

enum { WIDTH = 64, K = 4, OUT_STRIDE = 64 };

static struct wire_reply reply;

static struct bench {
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm scores, out;
} at;

static void bench_open(const char *yaml)
{
    raw_worker_start(&at.worker, yaml, NULL);
    raw_open(&at.client, &at.worker);
    raw_shm_create(&at.scores, 4096);
    raw_shm_create(&at.out, 4096);
    raw_register(&at.client, &at.scores, WIRE_ACCESS_READ);
    raw_register(&at.client, &at.out, WIRE_ACCESS_READ_WRITE);
    float *scores = (float *)at.scores.data;
    for (int i = 0; i < WIDTH; i++)
        scores[i] = (float)(i * 37 % WIDTH);
}

static void bench_close(void)
{
    raw_shm_destroy(&at.scores);
    raw_shm_destroy(&at.out);
    raw_disconnect(&at.client);
    raw_worker_stop(&at.worker);
}

static int32_t *out_of(uint32_t i)
{
    return (int32_t *)(at.out.data + (size_t)i * OUT_STRIDE);
}

/* Each select has a row of its own, which begins as -7. */
static struct wire_request batch_request(uint32_t num_selects)
{
    struct wire_request request = raw_request(&at.client, WIRE_SELECT_BATCH);
    at.client.sequence += num_selects - 1;
    request.u.select_batch.num_selects = num_selects;
    for (uint32_t i = 0; i < num_selects; i++) {
        struct wire_select_request *select = &request.u.select_batch.selects[i];
        *select = (struct wire_select_request){.scores = raw_ref(&at.scores, 0),
                                               .row_stride = WIDTH,
                                               .rows = 1,
                                               .width = WIDTH,
                                               .k = K,
                                               .length_all = WIDTH,
                                               .indices = raw_ref(&at.out, i * OUT_STRIDE),
                                               .index_stride = K,
                                               .timeout_ms = RAW_TIMEOUT_MS / 2};
        for (int j = 0; j < K; j++)
            out_of(i)[j] = -7;
    }
    return request;
}

/* The K best of the first `length` scores are there. */
static void expect_selected(uint32_t i, int length)
{
    const float *scores = (const float *)at.scores.data;
    for (int j = 0; j < K; j++) {
        int position = out_of(i)[j], num_above = 0;
        assert_in_range(position, 0, length - 1);
        for (int p = 0; p < length; p++)
            num_above += scores[p] > scores[position];
        assert_true(num_above < K);
    }
}

static const struct wire_select_answer *answer_at(uint32_t i)
{
    assert_true(i < reply.u.select_batch.num_answers);
    return &reply.u.select_batch.answers[i];
}

static struct wire_stats_reply stats(void)
{
    struct wire_request request = raw_request(&at.client, WIRE_STATS);
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_OK);
    return reply.u.stats;
}

static void it_30_each_select_of_a_batch_has_its_own_answer(void **state)
{
    (void)state;
    static const int32_t lengths[1] = {9};
    bench_open("");
    assert_int_equal(at.client.hello.limits.batch_max, WIRE_BATCH_MAX);
    struct wire_request request = batch_request(WIRE_BATCH_MAX);
    struct wire_select_request *selects = request.u.select_batch.selects;
    selects[1].k = 0;
    selects[3].indices.region = 999;
    selects[4].lengths_mode = WIRE_LENGTHS_INLINE;
    selects[4].num_lengths = 1;
    selects[4].lengths_inline = lengths;
    selects[6].output_mode = WIRE_OUTPUT_ARENA;
    selects[6].indices = (struct wire_region_ref){0};
    selects[8].row_stride = INT64_MAX;
    selects[8].rows = 2;
    selects[15].timeout_ms = UINT32_MAX;
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_OK);
    assert_int_equal(reply.kind, WIRE_SELECT_BATCH);
    assert_int_equal(reply.sequence, request.sequence);
    assert_int_equal(reply.u.select_batch.num_answers, WIRE_BATCH_MAX);
    for (uint32_t i = 0; i < WIRE_BATCH_MAX; i++) {
        enum topkd_status expected = i == 1 || i == 15 ? TOPKD_E_INVALID
                                     : i == 3          ? TOPKD_E_NO_REGION
                                     : i == 8          ? TOPKD_E_OUT_OF_RANGE
                                                       : TOPKD_OK;
        if (answer_at(i)->status != expected)
            fail_msg("select %u: status %d: %s", i, (int)answer_at(i)->status,
                     answer_at(i)->detail);
        assert_int_equal(answer_at(i)->detail[0] != '\0', expected != TOPKD_OK);
        if (expected == TOPKD_OK && i != 6)
            expect_selected(i, i == 4 ? lengths[0] : WIDTH);
    }
    /* A result in the arena is leased as ever. */
    const int32_t *leased =
        (const int32_t *)(at.client.arena + answer_at(6)->select.indices_offset);
    memcpy(out_of(6), leased, K * sizeof(int32_t));
    expect_selected(6, WIDTH);
    struct wire_request release = raw_request(&at.client, WIRE_RELEASE);
    release.u.release.lease = answer_at(6)->select.lease;
    assert_int_equal(raw_call(&at.client, &release, &reply), TOPKD_OK);
    struct wire_stats_reply now = stats();
    assert_int_equal(now.select_batches, 1);
    assert_int_equal(now.selects_batched, WIRE_BATCH_MAX);
    assert_int_equal(now.requests, WIRE_BATCH_MAX);
    assert_int_equal(now.requests_failed, 4);
    bench_close();
}

static void it_31_what_is_repeated_of_a_batch_runs_once(void **state)
{
    (void)state;
    enum { N = 6 };
    bench_open("");
    struct wire_request request = batch_request(N);
    request.u.select_batch.selects[2].k = 0;
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_OK);
    uint64_t run_ns[N];
    for (uint32_t i = 0; i < N; i++) {
        run_ns[i] = answer_at(i)->select.run_ns;
        out_of(i)[0] = -77; /* a second run would write again */
    }
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_OK);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(answer_at(i)->status, i == 2 ? TOPKD_E_INVALID : TOPKD_OK);
        assert_int_equal(answer_at(i)->select.run_ns, run_ns[i]);
        assert_int_equal(out_of(i)[0], -77);
    }
    assert_int_equal(stats().requests, N);
    assert_int_equal(stats().replies_repeated, N);

    /* One of its numbers alone, and a batch that is half old, half new. */
    struct wire_request single = {.session = request.session,
                                  .epoch = request.epoch,
                                  .kind = WIRE_SELECT,
                                  .sequence = request.sequence + 4,
                                  .u.select = request.u.select_batch.selects[4]};
    assert_int_equal(raw_call(&at.client, &single, &reply), TOPKD_OK);
    assert_int_equal(reply.u.select.run_ns, run_ns[4]);
    assert_int_equal(out_of(4)[0], -77);
    struct wire_request half = request;
    half.sequence += N - 1; /* the number after the last was Stats', which is not remembered */
    half.u.select_batch.num_selects = 2;
    assert_int_equal(raw_call(&at.client, &half, &reply), TOPKD_OK);
    assert_int_equal(answer_at(0)->select.run_ns, run_ns[N - 1]);
    assert_int_equal(answer_at(1)->status, TOPKD_OK);
    assert_int_not_equal(out_of(1)[0], -77);
    assert_int_equal(stats().requests, N + 1);
    struct wire_request other = raw_request(&at.client, WIRE_RELEASE);
    other.sequence = request.sequence;
    assert_int_equal(raw_call(&at.client, &other, &reply), TOPKD_E_INVALID);
    assert_non_null(strstr(reply.detail, "was a select"));
    bench_close();
}

/* What does not fit beside the others is answered BUSY, and may come again under its number. */
static void it_32_a_batch_larger_than_the_room(void **state)
{
    (void)state;
    enum { N = 6, ROOM = 4 };
    struct raw_pending pending;
    bench_open("limits: {outstanding_max: 4, reply_cache: 4}");
    struct wire_request request = batch_request(N);
    request.u.select_batch.selects[0].wait = (struct wire_semaphore_ref){.index = 1, .value = 1};
    raw_start(&at.client, &request, &pending);
    /* The rest of it was answered at once, but the message waits for its first. */
    struct wire_request next = batch_request(1);
    assert_int_equal(raw_call(&at.client, &next, &reply), TOPKD_OK);
    assert_int_equal(answer_at(0)->status, TOPKD_E_BUSY);
    raw_signal(&at.client, 1, 1);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(answer_at(i)->status, i < ROOM ? TOPKD_OK : TOPKD_E_BUSY);
        if (i < ROOM)
            expect_selected(i, WIDTH);
    }
    struct wire_request again = request;
    again.sequence += ROOM;
    again.u.select_batch.num_selects = N - ROOM;
    memcpy(again.u.select_batch.selects, request.u.select_batch.selects + ROOM,
           (N - ROOM) * sizeof(struct wire_select_request));
    assert_int_equal(raw_call(&at.client, &again, &reply), TOPKD_OK);
    for (uint32_t i = 0; i < N - ROOM; i++)
        assert_int_equal(answer_at(i)->status, TOPKD_OK);
    expect_selected(N - 1, WIDTH);
    bench_close();
}

static void it_33_one_that_is_late_costs_the_others_only_time(void **state)
{
    (void)state;
    struct raw_pending pending;
    bench_open("");
    struct wire_request request = batch_request(3);
    request.u.select_batch.selects[2].wait = (struct wire_semaphore_ref){.index = 2, .value = 1};
    request.u.select_batch.selects[2].timeout_ms = 300;
    request.u.select_batch.selects[1].reply_when = WIRE_REPLY_ENQUEUED;
    uint64_t start_ms = raw_now_ms();
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_OK);
    assert_in_range(raw_now_ms() - start_ms, 290, RAW_TIMEOUT_MS);
    assert_int_equal(answer_at(0)->status, TOPKD_OK);
    assert_int_equal(answer_at(1)->status, TOPKD_OK);
    assert_int_equal(answer_at(2)->status, TOPKD_E_TIMEOUT);
    assert_non_null(strstr(answer_at(2)->detail, "semaphore 2"));
    expect_selected(0, WIDTH);

    /* The client goes with one in flight: the worker is as good as before. */
    struct raw_client other;
    raw_open(&other, &at.worker);
    request = batch_request(2);
    request.u.select_batch.selects[0].wait = (struct wire_semaphore_ref){.index = 2, .value = 9};
    raw_start(&at.client, &request, &pending);
    raw_sleep_ms(50);
    raw_shm_destroy(&at.scores);
    raw_shm_destroy(&at.out);
    raw_disconnect(&at.client);
    assert_false(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    raw_expect_selects(&other);
    raw_disconnect(&other);
    raw_worker_stop(&at.worker);
}

static void it_34_a_batch_as_a_message(void **state)
{
    (void)state;
    bench_open("");
    struct wire_request request = raw_request(&at.client, WIRE_SELECT_BATCH);
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_E_INVALID);
    assert_non_null(strstr(reply.detail, "1 to 16"));
    request = batch_request(2);
    request.epoch++;
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_E_STALE_SESSION);
    request.epoch--;
    request.sequence = 0; /* the second has number 1, which was the first registration's */
    assert_int_equal(raw_call(&at.client, &request, &reply), TOPKD_OK);
    assert_int_equal(answer_at(0)->status, TOPKD_E_INVALID);
    assert_int_equal(answer_at(1)->status, TOPKD_E_INVALID);
    assert_int_equal(out_of(0)[0], -7);
    assert_int_equal(out_of(1)[0], -7);
    /* Many at a time, from one client. */
    enum { MESSAGES = 8, EACH = 4 };
    struct raw_pending pending[MESSAGES];
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < MESSAGES; i++) {
            request = batch_request(EACH);
            raw_start(&at.client, &request, &pending[i]);
        }
        for (uint32_t i = 0; i < MESSAGES; i++) {
            assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
            for (uint32_t j = 0; j < EACH; j++)
                assert_int_equal(answer_at(j)->status, TOPKD_OK);
        }
    }
    bench_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_30_each_select_of_a_batch_has_its_own_answer),
        cmocka_unit_test(it_31_what_is_repeated_of_a_batch_runs_once),
        cmocka_unit_test(it_32_a_batch_larger_than_the_room),
        cmocka_unit_test(it_33_one_that_is_late_costs_the_others_only_time),
        cmocka_unit_test(it_34_a_batch_as_a_message),
    };
    return cmocka_run_group_tests_name("batches", tests, NULL, NULL);
}
