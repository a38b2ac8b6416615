/* Selections through the worker, every option and layout, judged by the oracle. */
#include "inputs.h"
#include "oracle.h"
#include "raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

/* Choice: a few seconds. The oracle takes most of them under the thread sanitizer. */
#ifdef __SANITIZE_THREAD__
#define RAW_ROUNDS 40
#else
#define RAW_ROUNDS 150
#endif
#define SCORES_BYTES ((size_t)16 << 20)
#define OTHER_BYTES ((size_t)24 << 20)
#define TABLE_OFFSET ((size_t)8 << 20)
#define LENGTHS_OFFSET ((size_t)4 << 20)
#define OFFSETS_OFFSET ((size_t)6 << 20)
#define VALUES_OFFSET ((size_t)16 << 20)

static struct wire_reply reply;

/* One client with memory for everything that a selection may name. */
struct bench {
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm scores; /* registered for reading */
    struct raw_shm other;  /* indices from 0, lengths, offsets, page table, values */
    struct inputs_rng rng;
};

static void bench_open(struct bench *bench, const char *yaml)
{
    raw_worker_start(&bench->worker, yaml, NULL);
    raw_open(&bench->client, &bench->worker);
    raw_shm_create(&bench->scores, SCORES_BYTES);
    raw_shm_create(&bench->other, OTHER_BYTES);
    raw_register(&bench->client, &bench->scores, WIRE_ACCESS_READ);
    raw_register(&bench->client, &bench->other, WIRE_ACCESS_READ_WRITE);
    bench->rng = inputs_rng_of(inputs_run_seed(), 7);
}

static void bench_close(struct bench *bench)
{
    raw_shm_destroy(&bench->scores);
    raw_shm_destroy(&bench->other);
    raw_disconnect(&bench->client);
    raw_worker_stop(&bench->worker);
}

/* What the oracle is to judge: the request with this process's pointers. */
struct job {
    struct wire_request request;
    struct topk_args args;
    struct topk_options options;
    int32_t lengths[WIRE_LENGTHS_MAX];
};

static uint32_t below(struct bench *bench, uint32_t end)
{
    return inputs_rng_below(&bench->rng, end);
}

/* Rows, width, k and a stride that fit the memory; scores of a random family. */
static void make_scores(struct bench *bench, struct job *job)
{
    struct wire_select_request *select = &job->request.u.select;
    static const uint32_t ks[] = {1, 7, 64, 300, 2048, 2049, 4096, 16384};
    select->k = ks[below(bench, 8)];
    select->rows = below(bench, 6) == 0 ? below(bench, 300) : below(bench, 20);
    if (select->k > 4096)
        select->rows %= 20;
    select->width = 1 + below(bench, below(bench, 3) == 0 ? 40000 : 4000);
    select->row_stride = (int64_t)select->width + below(bench, 5);
    uint64_t lead = 4 * (uint64_t)below(bench, 4); /* unaligned bases */
    while ((uint64_t)select->rows * (uint64_t)select->row_stride * 4 + lead > SCORES_BYTES)
        select->rows /= 2;
    select->scores = raw_ref(&bench->scores, lead);
    struct inputs_spec spec = {.family = INPUTS_MIXED,
                               .seed = inputs_rng_next(&bench->rng),
                               .num_rows = (int32_t)select->rows,
                               .width = (int32_t)select->width,
                               .row_stride = select->row_stride,
                               .k = (int32_t)select->k};
    if (below(bench, 3) == 0)
        spec.family = (enum inputs_family)(1 + below(bench, INPUTS_FAMILY_COUNT - 1));
    if (select->rows > 0)
        inputs_fill(&spec, (float *)(bench->scores.data + lead));
    job->args.scores = (const float *)(bench->scores.data + lead);
    job->args.row_stride = select->row_stride;
    job->args.num_rows = (int32_t)select->rows;
    job->args.width = (int32_t)select->width;
    job->args.k = (int32_t)select->k;
    inputs_fill_lengths(&spec, (enum inputs_lengths)below(bench, INPUTS_LENGTHS_COUNT),
                        job->lengths);
}

static void make_lengths(struct bench *bench, struct job *job)
{
    struct wire_select_request *select = &job->request.u.select;
    int32_t *shared = (int32_t *)(bench->other.data + LENGTHS_OFFSET);
    switch (below(bench, 3)) {
    case 0:
        select->lengths_mode = WIRE_LENGTHS_ALL;
        select->length_all = (int32_t)below(bench, 2 * select->width) - 3;
        job->args.length_all = select->length_all;
        break;
    case 1:
        select->lengths_mode = WIRE_LENGTHS_INLINE;
        select->num_lengths = select->rows;
        select->lengths_inline = job->lengths;
        job->args.lengths = job->lengths;
        break;
    default:
        select->lengths_mode = WIRE_LENGTHS_REGION;
        select->lengths = raw_ref(&bench->other, LENGTHS_OFFSET);
        memcpy(shared, job->lengths, select->rows * sizeof(*shared));
        job->args.lengths = shared;
        break;
    }
}

static void make_transforms(struct bench *bench, struct job *job)
{
    struct wire_select_request *select = &job->request.u.select;
    if (below(bench, 3) == 0) {
        select->page_size_log2 = 3 + below(bench, 7);
        uint32_t pages = ((select->width - 1) >> select->page_size_log2) + 1 + below(bench, 3);
        select->page_table_width = pages;
        select->page_table_stride = (int64_t)pages + below(bench, 3);
        if ((uint64_t)select->page_table_stride * 4 * select->rows > VALUES_OFFSET - TABLE_OFFSET)
            return; /* too many pages for the memory set aside */
        select->page_table = raw_ref(&bench->other, TABLE_OFFSET);
        int32_t *table = (int32_t *)(bench->other.data + TABLE_OFFSET);
        inputs_fill_pages(inputs_rng_next(&bench->rng), (int32_t)select->rows, (int32_t)pages,
                          select->page_table_stride, table);
        job->args.page_table = table;
        job->args.page_table_stride = select->page_table_stride;
        job->args.page_table_width = (int32_t)pages;
        job->args.page_size_log2 = select->page_size_log2;
    }
    if (below(bench, 3) == 0) {
        int32_t *offsets = (int32_t *)(bench->other.data + OFFSETS_OFFSET);
        for (uint32_t i = 0; i < select->rows; i++)
            offsets[i] = (int32_t)below(bench, 1000000);
        select->row_offsets = raw_ref(&bench->other, OFFSETS_OFFSET);
        job->args.row_offsets = offsets;
    }
}

static void make_output(struct bench *bench, struct job *job, bool to_arena)
{
    struct wire_select_request *select = &job->request.u.select;
    bool with_values = below(bench, 2) == 0;
    if (to_arena) {
        select->output_mode = WIRE_OUTPUT_ARENA;
        select->want_values = with_values;
        return;
    }
    select->output_mode = WIRE_OUTPUT_REGION;
    select->indices = raw_ref(&bench->other, 0);
    select->index_stride = (int64_t)select->k + below(bench, 3);
    while ((uint64_t)select->index_stride * 4 * select->rows > LENGTHS_OFFSET)
        select->rows /= 2;
    job->args.num_rows = (int32_t)select->rows;
    select->num_lengths = select->lengths_mode == WIRE_LENGTHS_INLINE ? select->rows : 0;
    job->args.indices = (int32_t *)bench->other.data;
    job->args.index_stride = select->index_stride;
    if (!with_values)
        return;
    select->values = raw_ref(&bench->other, VALUES_OFFSET);
    select->value_stride = (int64_t)select->k + below(bench, 3);
    job->args.values = (float *)(bench->other.data + VALUES_OFFSET);
    job->args.value_stride = select->value_stride;
}

static void make_job(struct bench *bench, struct job *job, bool to_arena)
{
    memset(job, 0, sizeof(*job));
    job->request = raw_request(&bench->client, WIRE_SELECT);
    make_scores(bench, job);
    make_lengths(bench, job);
    make_transforms(bench, job);
    make_output(bench, job, to_arena);
    job->options.order = (enum topk_order)below(bench, 3);
    job->options.ties = (enum topk_ties)below(bench, 2);
    job->request.u.select.order = (uint8_t)job->options.order;
    job->request.u.select.ties = (uint8_t)job->options.ties;
}

static void judge(const struct job *job)
{
    char detail[ORACLE_DETAIL_SIZE];
    if (!oracle_check(&job->args, &job->options, detail))
        fail_msg("%s", detail);
}

static void it_20_random_selections_into_regions(void **state)
{
    (void)state;
    static struct bench bench;
    static struct job job;
    bench_open(&bench, "");
    for (int round = 0; round < RAW_ROUNDS; round++) {
        make_job(&bench, &job, false);
        memset(bench.other.data, 0x55, LENGTHS_OFFSET); /* an old result does not pass */
        if (raw_call(&bench.client, &job.request, &reply) != TOPKD_OK)
            fail_msg("%s: %s", wire_status_name(reply.status), reply.detail);
        assert_true(reply.u.select.bucket != 0);
        assert_int_equal(reply.u.select.lease, 0);
        judge(&job);
    }
    bench_close(&bench);
}

static void it_21_random_selections_into_the_arena(void **state)
{
    (void)state;
    static struct bench bench;
    static struct job job;
    bench_open(&bench, "limits: {arena_slots: 3, arena_slot_bytes: 4MiB}");
    uint64_t leases[3] = {0};
    for (int round = 0; round < RAW_ROUNDS; round++) {
        make_job(&bench, &job, true);
        uint64_t *lease = &leases[round % 3];
        if (*lease != 0) {
            struct wire_request release = raw_request(&bench.client, WIRE_RELEASE);
            release.u.release.lease = *lease;
            assert_int_equal(raw_call(&bench.client, &release, &reply), TOPKD_OK);
            *lease = 0;
        }
        struct wire_select_request *select = &job.request.u.select;
        uint64_t bytes = (uint64_t)select->rows * select->k * (select->want_values ? 8 : 4);
        job.request.sequence = ++bench.client.sequence;
        enum topkd_status status = raw_call(&bench.client, &job.request, &reply);
        if (bytes > bench.client.hello.limits.arena_slot_bytes) {
            assert_int_equal(status, TOPKD_E_LIMIT);
            continue;
        }
        if (status != TOPKD_OK)
            fail_msg("%s: %s", wire_status_name(status), reply.detail);
        const struct wire_select_reply *result = &reply.u.select;
        assert_int_not_equal(result->lease, 0);
        *lease = result->lease;
        assert_true(result->indices_offset + bytes <= bench.client.hello.arena.allocation_bytes);
        job.args.indices = (int32_t *)(bench.client.arena + result->indices_offset);
        job.args.index_stride = select->k;
        if (select->want_values) {
            job.args.values = (float *)(bench.client.arena + result->values_offset);
            job.args.value_stride = select->k;
        }
        judge(&job);
    }
    bench_close(&bench);
}

/* Leases: all taken is busy, a release frees one, a stranger's or an old lease is refused. */
static void it_22_arena_slots_are_leased(void **state)
{
    (void)state;
    static struct bench bench;
    struct raw_client other;
    bench_open(&bench, "limits: {arena_slots: 2, arena_slot_bytes: 4096}");
    raw_open(&other, &bench.worker);
    uint64_t leases[2];
    struct wire_request request;
    for (int i = 0; i < 4; i++) {
        request = raw_select_request(&bench.client, &bench.scores, &bench.other, 2, 100, 5);
        request.u.select.output_mode = WIRE_OUTPUT_ARENA;
        request.u.select.indices.region = 0;
        enum topkd_status status = raw_call(&bench.client, &request, &reply);
        assert_int_equal(status, i < 2 ? TOPKD_OK : TOPKD_E_BUSY);
        if (i < 2)
            leases[i] = reply.u.select.lease;
    }
    struct wire_request release = raw_request(&other, WIRE_RELEASE);
    release.u.release.lease = leases[0];
    assert_int_equal(raw_call(&other, &release, &reply), TOPKD_E_INVALID);
    release = raw_request(&bench.client, WIRE_RELEASE);
    release.u.release.lease = leases[0];
    assert_int_equal(raw_call(&bench.client, &release, &reply), TOPKD_OK);
    release.sequence = ++bench.client.sequence;
    assert_int_equal(raw_call(&bench.client, &release, &reply), TOPKD_E_INVALID);
    /* The request that was BUSY may come again under its number. */
    assert_int_equal(raw_call(&bench.client, &request, &reply), TOPKD_OK);
    assert_int_not_equal(reply.u.select.lease, leases[0]);
    raw_disconnect(&other);
    bench_close(&bench);
}

/* Many in flight on one connection, answered as they end; order of a session is kept. */
static void it_23_pipelined_requests(void **state)
{
    (void)state;
    static struct bench bench;
    enum { N = 32, ROWS = 2, WIDTH = 3000, K = 50 };
    bench_open(&bench, "limits: {outstanding_max: 32}");
    float *scores = (float *)bench.scores.data;
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        scores[i] = (float)((i * 40503u) % 65521u);
    for (int round = 0; round < 20; round++) {
        struct raw_pending pending[N];
        memset(bench.other.data, 0x55, N * ROWS * K * 4);
        for (uint32_t i = 0; i < N; i++) {
            struct wire_request request =
                raw_select_request(&bench.client, &bench.scores, &bench.other, ROWS, WIDTH, K);
            request.u.select.indices.offset = i * ROWS * K * 4;
            raw_start(&bench.client, &request, &pending[i]);
        }
        for (uint32_t i = 0; i < N; i++) {
            assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
            assert_int_equal(reply.status, TOPKD_OK);
            struct topk_args args = {.scores = scores,
                                     .row_stride = WIDTH,
                                     .indices = (int32_t *)bench.other.data + i * ROWS * K,
                                     .index_stride = K,
                                     .num_rows = ROWS,
                                     .width = WIDTH,
                                     .length_all = WIDTH,
                                     .k = K};
            struct job job = {.args = args};
            judge(&job);
        }
    }
    bench_close(&bench);
}

/* Scores and lengths that change under the selection: any result, but no harm to the worker. */
static void it_26_scores_that_change_meanwhile(void **state)
{
    (void)state;
    static struct bench bench;
    enum { ROWS = 8, WIDTH = 100000 };
    bench_open(&bench, "");
    uint32_t *bits = (uint32_t *)bench.scores.data;
    int32_t *lengths = (int32_t *)(bench.other.data + LENGTHS_OFFSET);
    static const uint32_t ks[] = {1, 100, 2048, 5000};
    uint64_t guard = UINT64_C(0x1122334455667788);
    for (int round = 0; round < 40; round++) {
        uint32_t k = ks[round % 4];
        size_t end_bytes = (size_t)ROWS * k * 4;
        memcpy(bench.other.data + end_bytes, &guard, sizeof(guard));
        struct raw_pending pending;
        struct wire_request request =
            raw_select_request(&bench.client, &bench.scores, &bench.other, ROWS, WIDTH, k);
        request.u.select.lengths_mode = WIRE_LENGTHS_REGION;
        request.u.select.lengths = raw_ref(&bench.other, LENGTHS_OFFSET);
        request.u.select.order = (uint8_t)(round % 3);
        request.u.select.ties = (uint8_t)(round % 2);
        raw_start(&bench.client, &request, &pending);
        uint64_t end_ms = raw_now_ms() + 3;
        while (raw_now_ms() < end_ms) {
            for (int i = 0; i < 2000; i++) {
                uint32_t where = below(&bench, ROWS * WIDTH);
                bits[where] = (uint32_t)inputs_rng_next(&bench.rng);
                lengths[where % ROWS] = (int32_t)inputs_rng_next(&bench.rng);
            }
        }
        assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
        assert_int_equal(reply.status, TOPKD_OK);
        assert_memory_equal(bench.other.data + end_bytes, &guard, sizeof(guard));
    }
    raw_expect_selects(&bench.client);
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_20_random_selections_into_regions),
        cmocka_unit_test(it_21_random_selections_into_the_arena),
        cmocka_unit_test(it_22_arena_slots_are_leased),
        cmocka_unit_test(it_23_pipelined_requests),
        cmocka_unit_test(it_26_scores_that_change_meanwhile),
    };
    return cmocka_run_group_tests_name("selections", tests, NULL, NULL);
}
