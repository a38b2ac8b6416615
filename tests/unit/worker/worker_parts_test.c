/* The worker's small pure parts: reply cache, arena leases, admission, rate, histogram, canary. */
#include "inputs.h"
#include "server/admission.h"
#include "server/arena.h"
#include "server/args_overlap.h"
#include "server/canary.h"
#include "server/reply_cache.h"
#include "server/stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static char detail[WIRE_DETAIL_SIZE];

/* ---- Reply cache ----------------------------------------------------------------------------- */

static enum reply_cache_verdict begin(struct reply_cache *cache, uint64_t sequence,
                                      struct reply_cache_entry **entry_p)
{
    return reply_cache_begin(cache, sequence, WIRE_RELEASE, entry_p, detail);
}

static void finish(struct reply_cache *cache, struct reply_cache_entry *entry,
                   enum topkd_status status)
{
    static struct wire_reply reply;
    reply.kind = entry->kind;
    reply.status = status;
    reply_cache_finish(cache, entry, &reply);
}

static void reply_cache_runs_each_sequence_once(void **state)
{
    (void)state;
    struct reply_cache_entry entries[4];
    struct reply_cache cache;
    struct reply_cache_entry *entry, *again;
    reply_cache_init(&cache, entries, 4);
    assert_int_equal(begin(&cache, 0, &entry), REPLY_CACHE_INVALID);
    assert_int_equal(begin(&cache, 1, &entry), REPLY_CACHE_NEW);
    assert_int_equal(begin(&cache, 1, &again), REPLY_CACHE_BUSY);
    finish(&cache, entry, TOPKD_E_LIMIT);
    assert_int_equal(begin(&cache, 1, &again), REPLY_CACHE_REPEAT);
    assert_ptr_equal(again, entry);
    static struct wire_reply reply;
    reply_cache_answer(again, &reply);
    assert_int_equal(reply.status, TOPKD_E_LIMIT);
    assert_int_equal(reply_cache_begin(&cache, 1, WIRE_SELECT, &again, detail),
                     REPLY_CACHE_INVALID);
    /* Out of order, then one that pushes 1 out. */
    const uint64_t numbers[] = {4, 3, 5, 6};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(begin(&cache, numbers[i], &entry), REPLY_CACHE_NEW);
        finish(&cache, entry, TOPKD_OK);
    }
    assert_int_equal(begin(&cache, 1, &again), REPLY_CACHE_INVALID);
    assert_int_equal(begin(&cache, 2, &again), REPLY_CACHE_NEW); /* 4 goes: 2 was never seen */
    assert_int_equal(begin(&cache, 4, &again), REPLY_CACHE_INVALID);
    assert_int_equal(begin(&cache, 3, &again), REPLY_CACHE_REPEAT); /* still kept */
    /* Forgotten (answered BUSY): the same number may be tried again. */
    assert_int_equal(begin(&cache, 9, &entry), REPLY_CACHE_NEW);
    reply_cache_forget(&cache, entry);
    assert_int_equal(begin(&cache, 9, &again), REPLY_CACHE_NEW);
}

/* One that runs for long stands in nobody's way, whatever the numbers are. */
static void reply_cache_keeps_places_free_beside_a_long_run(void **state)
{
    (void)state;
    enum { N = 8 };
    struct reply_cache_entry entries[N];
    struct reply_cache cache;
    struct reply_cache_entry *longest, *entry;
    reply_cache_init(&cache, entries, N);
    assert_int_equal(begin(&cache, 1, &longest), REPLY_CACHE_NEW);
    for (uint64_t sequence = 2; sequence < 10 * N; sequence++) {
        assert_int_equal(begin(&cache, sequence, &entry), REPLY_CACHE_NEW);
        finish(&cache, entry, TOPKD_OK);
        assert_int_equal(begin(&cache, sequence, &entry), REPLY_CACHE_REPEAT);
        assert_int_equal(begin(&cache, 1, &entry), REPLY_CACHE_BUSY);
    }
    finish(&cache, longest, TOPKD_OK);
    assert_int_equal(begin(&cache, 1, &entry), REPLY_CACHE_REPEAT);
    assert_ptr_equal(entry, longest);
}

static void reply_cache_random_never_runs_twice(void **state)
{
    (void)state;
    enum { N = 16, LAST = 4000, RUNNING = N / 2 };
    struct reply_cache_entry entries[N];
    struct reply_cache cache;
    static uint8_t runs[LAST + 1];
    struct reply_cache_entry *running[RUNNING] = {NULL};
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 3);
    uint64_t newest = 1;
    reply_cache_init(&cache, entries, N);
    while (newest < LAST - N) {
        uint64_t sequence = newest + inputs_rng_below(&rng, N) - inputs_rng_below(&rng, 2 * N);
        uint32_t idx = inputs_rng_below(&rng, RUNNING);
        if (sequence > LAST) /* wrapped below 0 */
            continue;
        struct reply_cache_entry *entry;
        if (running[idx] == NULL && begin(&cache, sequence, &entry) == REPLY_CACHE_NEW) {
            assert_int_equal(runs[sequence], 0);
            runs[sequence] = 1;
            newest = sequence > newest ? sequence : newest;
            running[idx] = entry;
        }
        idx = inputs_rng_below(&rng, RUNNING);
        if (running[idx] != NULL && inputs_rng_below(&rng, 2) == 0) {
            finish(&cache, running[idx], TOPKD_OK);
            running[idx] = NULL;
        }
    }
}

/* ---- Overlap --------------------------------------------------------------------------------- */

static struct topk_args args_at(uintptr_t scores, uintptr_t indices)
{
    return (struct topk_args){.scores = (const float *)scores,
                              .row_stride = 100,
                              .indices = (int32_t *)indices,
                              .index_stride = 10,
                              .num_rows = 4,
                              .width = 90,
                              .length_all = 90,
                              .k = 10};
}

static bool overlap(const struct topk_args *a, const struct topk_args *b)
{
    return args_overlap(a, TOPK_DTYPE_FLOAT32, b, TOPK_DTYPE_FLOAT32);
}

static void selections_that_meet_are_told(void **state)
{
    (void)state;
    const uintptr_t scores = 0x10000, indices = 0x20000;
    const uintptr_t scores_end = scores + (3 * 100 + 90) * 4, indices_end = indices + 4 * 10 * 4;
    struct topk_args a = args_at(scores, indices), b = args_at(scores, indices_end);
    assert_false(overlap(&a, &b)); /* the same scores, results side by side */
    b = args_at(scores, indices_end - 4);
    assert_true(overlap(&a, &b)); /* the last position of one is the first of the other */
    assert_true(overlap(&b, &a));
    b = args_at(indices, 0x30000);
    assert_true(overlap(&a, &b)); /* reads what the other writes */
    assert_true(overlap(&b, &a));
    b = args_at(0x40000, scores_end);
    assert_false(overlap(&a, &b));
    b = args_at(0x40000, scores_end - 4);
    assert_true(overlap(&a, &b));
    /* Scores of 16 bits end after half as many bytes. */
    const uintptr_t halves_end = scores + (3 * 100 + 90) * 2;
    b = args_at(0x40000, halves_end);
    assert_true(overlap(&a, &b));
    assert_false(args_overlap(&a, TOPK_DTYPE_FLOAT16, &b, TOPK_DTYPE_FLOAT32));
    b = args_at(0x40000, halves_end - 4);
    assert_true(args_overlap(&a, TOPK_DTYPE_FLOAT16, &b, TOPK_DTYPE_FLOAT32));
    assert_true(args_overlap(&b, TOPK_DTYPE_FLOAT32, &a, TOPK_DTYPE_BFLOAT16));
    b = args_at(0x40000, 0x50000);
    b.values = (float *)indices;
    b.value_stride = 10;
    assert_true(overlap(&a, &b));
    b.values = NULL;
    b.lengths = (const int32_t *)(indices_end - 4);
    assert_true(overlap(&a, &b));
    b.lengths = (const int32_t *)indices_end;
    assert_false(overlap(&a, &b));
    b.page_table = (const int32_t *)(indices - 4);
    b.page_table_width = 1;
    b.page_table_stride = 1;
    assert_true(overlap(&a, &b)); /* its second row */
    b.num_rows = 1;
    assert_false(overlap(&a, &b)); /* a single row has no stride */
    b.row_offsets = (const int32_t *)indices;
    assert_true(overlap(&a, &b));
    b.num_rows = 0;
    assert_false(overlap(&a, &b)); /* touches nothing */
}

/* ---- Arena ----------------------------------------------------------------------------------- */

static void arena_leases_are_used_once(void **state)
{
    (void)state;
    struct arena_slot slots[2] = {{.lease = 0}};
    struct arena arena;
    uint32_t a, b, c;
    arena_init(&arena, 2, 4096, slots);
    assert_int_equal(arena_lease(&arena, &a, detail), TOPKD_OK);
    assert_int_equal(arena_lease(&arena, &b, detail), TOPKD_OK);
    assert_int_not_equal(a, b);
    assert_int_equal(arena_lease(&arena, &c, detail), TOPKD_E_BUSY);
    uint64_t lease = slots[a].lease;
    assert_int_equal(arena_release(&arena, 0, detail), TOPKD_E_INVALID);
    assert_int_equal(arena_release(&arena, 99, detail), TOPKD_E_INVALID);
    /* Released while it runs: it stays taken until the work has ended. */
    assert_int_equal(arena_release(&arena, lease, detail), TOPKD_OK);
    assert_int_equal(arena_release(&arena, lease, detail), TOPKD_E_INVALID);
    assert_int_equal(arena_lease(&arena, &c, detail), TOPKD_E_BUSY);
    arena_finish(&arena, a, false, 100);
    assert_int_equal(arena.num_leased, 1);
    assert_int_equal(arena_lease(&arena, &c, detail), TOPKD_OK);
    assert_int_equal(c, a);
    assert_int_not_equal(slots[c].lease, lease);
    assert_int_equal(arena_release(&arena, lease, detail), TOPKD_E_INVALID); /* a late release */
    assert_int_equal(slots[c].reserved_bytes, 100);
    arena_finish(&arena, c, false, 50);
    assert_int_equal(slots[c].reserved_bytes, 100);
    arena_finish(&arena, b, true, 100); /* failed work gives its slot back */
    assert_int_equal(arena.num_leased, 1);
    assert_int_equal(arena_release(&arena, slots[c].lease, detail), TOPKD_OK);
    assert_int_equal(arena.num_leased, 0);
    /* The slot that has memory already is taken first. */
    slots[1].reserved_bytes = 4096;
    assert_int_equal(arena_lease(&arena, &c, detail), TOPKD_OK);
    assert_int_equal(c, 1);
}

/* ---- Admission ------------------------------------------------------------------------------- */

static void the_last_places_are_for_sessions_without_any(void **state)
{
    (void)state;
    struct admission flood = {.places_max = 10,
                              .num_admitted = 7,
                              .num_idle = 2,
                              .outstanding_max = 100,
                              .num_outstanding = 7};
    assert_int_equal(admission_check(&flood, detail), TOPKD_OK);
    flood.num_admitted = flood.num_outstanding = 8;
    assert_int_equal(admission_check(&flood, detail), TOPKD_E_BUSY);
    struct admission quiet = flood;
    quiet.num_outstanding = 0;
    assert_int_equal(admission_check(&quiet, detail), TOPKD_OK);
    quiet.num_admitted = 10;
    assert_int_equal(admission_check(&quiet, detail), TOPKD_E_BUSY);
    struct admission own = {.places_max = 10, .outstanding_max = 3, .num_outstanding = 3};
    assert_int_equal(admission_check(&own, detail), TOPKD_E_BUSY);
    assert_non_null(strstr(detail, "3"));
    struct admission crowd = {.places_max = 2,
                              .num_idle = 9, /* more sessions than places */
                              .num_admitted = 1,
                              .outstanding_max = 5,
                              .num_outstanding = 1};
    assert_int_equal(admission_check(&crowd, detail), TOPKD_E_BUSY);
}

static void a_rate_holds_over_any_second(void **state)
{
    (void)state;
    const uint32_t rates[] = {1, 3, 1000};
    for (size_t i = 0; i < 3; i++) {
        struct admission_rate rate = {.due_ns = 0};
        uint64_t now_ns = UINT64_C(5000000000);
        uint32_t num = 0;
        while (admission_rate_take(&rate, rates[i], now_ns))
            num++;
        assert_int_equal(num, rates[i]);           /* the burst */
        for (int step = 0; step < 10000; step++) { /* then the even rate, however often asked */
            now_ns += 1000000;
            num += admission_rate_take(&rate, rates[i], now_ns);
        }
        assert_in_range(num, 11 * rates[i] - 1, 11 * rates[i] + 1);
    }
}

/* ---- Histogram ------------------------------------------------------------------------------- */

static void histogram_bins_are_powers_of_two(void **state)
{
    (void)state;
    assert_int_equal(stats_bin(0), 0);
    assert_int_equal(stats_bin(1), 0);
    for (uint32_t i = 1; i < 64; i++) {
        uint32_t expected = i < WIRE_HISTOGRAM_BINS ? i : WIRE_HISTOGRAM_BINS - 1;
        assert_int_equal(stats_bin(UINT64_C(1) << i), expected);
        uint64_t last = i == 63 ? UINT64_MAX : (UINT64_C(2) << i) - 1;
        assert_int_equal(stats_bin(last), expected);
    }
}

/* ---- Canary ---------------------------------------------------------------------------------- */

static void canary_knows_right_from_wrong(void **state)
{
    (void)state;
    float *scores = calloc(CANARY_ROWS * CANARY_WIDTH, sizeof(*scores));
    int32_t *indices = calloc(CANARY_ROWS * CANARY_K, sizeof(*indices));
    struct topk_args args;
    struct topk_options options;
    struct topk_cpu *cpu;
    struct topk_cpu_config config = {.num_threads = 1};
    assert_int_equal(topk_cpu_create(&config, &cpu, NULL), TOPK_OK);
    const uint64_t seeds[] = {0, 1, 77, UINT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        canary_fill(seeds[i], scores, indices);
        assert_false(canary_check(seeds[i], indices, detail)); /* nothing written yet */
        canary_args(scores, indices, &args, &options);
        assert_int_equal(topk_cpu_select(cpu, &args, &options, NULL, NULL), TOPK_OK);
        assert_true(canary_check(seeds[i], indices, detail));
        assert_false(canary_check(seeds[i] + 1, indices, detail)); /* a stale answer */
        int32_t good = indices[CANARY_K * 2 + 100];
        indices[CANARY_K * 2 + 100] = good + 1;
        assert_false(canary_check(seeds[i], indices, detail));
        indices[CANARY_K * 2 + 100] = indices[CANARY_K * 2 + 99];
        assert_false(canary_check(seeds[i], indices, detail)); /* twice the same */
        indices[CANARY_K * 2 + 100] = -1;
        assert_false(canary_check(seeds[i], indices, detail));
    }
    topk_cpu_destroy(cpu);
    free(indices);
    free(scores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reply_cache_runs_each_sequence_once),
        cmocka_unit_test(reply_cache_keeps_places_free_beside_a_long_run),
        cmocka_unit_test(reply_cache_random_never_runs_twice),
        cmocka_unit_test(selections_that_meet_are_told),
        cmocka_unit_test(arena_leases_are_used_once),
        cmocka_unit_test(the_last_places_are_for_sessions_without_any),
        cmocka_unit_test(a_rate_holds_over_any_second),
        cmocka_unit_test(histogram_bins_are_powers_of_two),
        cmocka_unit_test(canary_knows_right_from_wrong),
    };
    return cmocka_run_group_tests_name("worker parts", tests, NULL, NULL);
}
