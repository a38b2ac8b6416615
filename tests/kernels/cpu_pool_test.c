/*
 * The pool: callers at once, fair turns, cancellation, rows shared by threads. Threads of a test
 * report through their own text; only the main thread asserts.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "trial.h"

/* ---- one caller thread ------------------------------------------------------------------------
 */

struct caller {
    pthread_t thread;
    struct topk_cpu *cpu;
    struct inputs_spec spec;
    struct topk_options options;
    int num_calls;
    char text[ORACLE_DETAIL_SIZE]; /* empty when every call was right */
};

static void *call_repeatedly(void *argument)
{
    struct caller *caller = argument;
    const struct inputs_spec *spec = &caller->spec;
    float *scores = malloc(sizeof(*scores) * inputs_elements(spec));
    int32_t *indices = malloc(sizeof(*indices) * (size_t)spec->num_rows * (size_t)spec->k);
    float *values = malloc(sizeof(*values) * (size_t)spec->num_rows * (size_t)spec->k);
    if (scores == NULL || indices == NULL || values == NULL) {
        snprintf(caller->text, sizeof(caller->text), "out of memory");
        goto out;
    }
    inputs_fill(spec, scores);
    struct topk_args args = {.scores = scores,
                             .row_stride = spec->row_stride,
                             .indices = indices,
                             .index_stride = spec->k,
                             .values = values,
                             .value_stride = spec->k,
                             .num_rows = spec->num_rows,
                             .width = spec->width,
                             .length_all = spec->width,
                             .k = spec->k};
    for (int i = 0; i < caller->num_calls && caller->text[0] == '\0'; i++) {
        memset(indices, 0xee, sizeof(*indices) * (size_t)spec->num_rows * (size_t)spec->k);
        char detail[TOPK_DETAIL_SIZE] = "";
        if (topk_cpu_select(caller->cpu, &args, &caller->options, NULL, detail) != TOPK_OK) {
            snprintf(caller->text, sizeof(caller->text), "%s", detail);
        } else {
            oracle_check(&args, &caller->options, caller->text);
        }
    }
out:
    free(scores);
    free(indices);
    free(values);
    return NULL;
}

static void start_and_join(struct caller *callers, int count)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_repeatedly, &callers[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(callers[i].thread, NULL);
    }
    for (int i = 0; i < count; i++) {
        if (callers[i].text[0] != '\0') {
            char spec[256];
            inputs_describe(&callers[i].spec, spec, sizeof(spec));
            fail_msg("caller %d (%s): %s", i, spec, callers[i].text);
        }
    }
}

static void many_callers_share_a_pool(void **state)
{
    (void)state;
    enum { CALLERS = 8 };
    const int32_t shapes[][3] = {{1, 50, 3},        {40, 300, 64},   {7, 9000, 300},
                                 {2, 140000, 2048}, {1, 300, 1000},  {3, 40000, 4096},
                                 {90, 64, 64},      {1, 270000, 100}};
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        struct topk_cpu *cpu = trial_cpu_create(threads);
        struct caller callers[CALLERS];
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (struct caller){
                .cpu = cpu,
                .spec = {INPUTS_MIXED, inputs_run_seed() + (uint64_t)i, shapes[i][0], shapes[i][1],
                         shapes[i][1], shapes[i][2]},
                .options = {.order = (enum topk_order)(i % 3), .ties = TOPK_TIES_LOWEST},
                .num_calls = trial_is_sanitized() ? 5 : 20,
            };
        }
        start_and_join(callers, CALLERS);
        topk_cpu_destroy(cpu);
    }
}

/* ---- a call that lasts for seconds -------------------------------------------------------------
 */

struct long_call {
    pthread_t thread;
    struct topk_cpu *cpu;
    float *scores;
    size_t size_bytes;
    struct topk_routes routes;
    bool cancel;   /* atomic */
    bool finished; /* atomic */
    enum topk_status status;
    char detail[TOPK_DETAIL_SIZE];
};

enum { LONG_ROWS = 1 << 19, LONG_WIDTH = 16384 };

static void *call_long(void *argument)
{
    struct long_call *call = argument;
    int32_t *indices = malloc(sizeof(*indices) * LONG_ROWS);
    if (indices != NULL) {
        struct topk_args args = {.scores = call->scores,
                                 .row_stride = LONG_WIDTH,
                                 .indices = indices,
                                 .index_stride = 1,
                                 .routes = &call->routes,
                                 .num_rows = LONG_ROWS,
                                 .width = LONG_WIDTH,
                                 .length_all = LONG_WIDTH,
                                 .k = 1};
        struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};
        call->status = topk_cpu_select(call->cpu, &args, &options, &call->cancel, call->detail);
        free(indices);
    }
    __atomic_store_n(&call->finished, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Half a million rows of zeros that take no memory. Returns once the first are done. */
static void start_long(struct long_call *call, struct topk_cpu *cpu)
{
    *call = (struct long_call){.cpu = cpu, .status = TOPK_E_NO_MEMORY};
    call->size_bytes = sizeof(float) * (size_t)LONG_ROWS * LONG_WIDTH;
    call->scores =
        mmap(NULL, call->size_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(call->scores, MAP_FAILED);
    assert_int_equal(pthread_create(&call->thread, NULL, call_long, call), 0);
    while (__atomic_load_n(&call->routes.scores_read, __ATOMIC_RELAXED) == 0 &&
           !__atomic_load_n(&call->finished, __ATOMIC_ACQUIRE)) {
        usleep(200);
    }
}

static void cancel_long(struct long_call *call)
{
    __atomic_store_n(&call->cancel, true, __ATOMIC_RELAXED);
    pthread_join(call->thread, NULL);
    munmap(call->scores, call->size_bytes);
    assert_int_equal(call->status, TOPK_E_CANCELLED);
    assert_non_null(strstr(call->detail, "cancelled"));
    uint64_t rows = call->routes.certified + call->routes.spill + call->routes.direct;
    assert_true(rows > 0 && rows < LONG_ROWS);
}

static void a_short_call_does_not_wait_for_a_long_one(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct topk_cpu *cpu = trial_cpu_create(threads);
        struct long_call long_call;
        start_long(&long_call, cpu);
        struct caller callers[3];
        for (int i = 0; i < 3; i++) {
            callers[i] = (struct caller){
                .cpu = cpu,
                .spec = {INPUTS_NORMAL, inputs_run_seed(), 1 + i * 4, 5000, 5000, 100},
                .num_calls = 3,
            };
        }
        start_and_join(callers, 3);
        assert_false(__atomic_load_n(&long_call.finished, __ATOMIC_ACQUIRE));
        cancel_long(&long_call);
        topk_cpu_destroy(cpu);
    }
}

static void two_long_calls_advance_together(void **state)
{
    (void)state;
    struct topk_cpu *cpu = trial_cpu_create(1);
    struct long_call first, second;
    start_long(&first, cpu);
    start_long(&second, cpu); /* returns when rows of the second are done */
    assert_false(__atomic_load_n(&first.finished, __ATOMIC_ACQUIRE));
    assert_false(__atomic_load_n(&second.finished, __ATOMIC_ACQUIRE));
    cancel_long(&first);
    cancel_long(&second);
    topk_cpu_destroy(cpu);
}

static void cancelled_before_it_starts(void **state)
{
    (void)state;
    struct topk_cpu *cpu = trial_cpu_create(2);
    float scores[4] = {1, 2, 3, 4};
    int32_t index = 77;
    bool cancel = true;
    struct topk_args args = {
        .scores = scores, .indices = &index, .num_rows = 1, .width = 4, .length_all = 4, .k = 1};
    struct topk_options options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_ANY};
    char detail[TOPK_DETAIL_SIZE] = "";
    assert_int_equal(topk_cpu_select(cpu, &args, &options, &cancel, detail), TOPK_E_CANCELLED);
    assert_int_equal(index, 77);
    cancel = false;
    assert_int_equal(topk_cpu_select(cpu, &args, &options, &cancel, detail), TOPK_OK);
    assert_int_equal(index, 3);
    topk_cpu_destroy(cpu);
}

/* ---- rows shared by threads ---------------------------------------------------------------------
 */

static void few_long_rows_are_split(void **state)
{
    (void)state;
    struct topk_cpu *cpu = trial_cpu_create(6);
    const int32_t widths[] = {131072, 200003, 700000};
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        bool is_thinned = trial_is_thread_sanitized(); /* one number of rows a family */
        int32_t rows_min = is_thinned ? 1 + f % 3 : 1;
        int32_t rows_max = is_thinned ? rows_min : 3;
        for (int32_t rows = rows_min; rows <= rows_max; rows++) {
            struct topk_routes routes = {0};
            struct trial trial =
                trial_of((enum inputs_family)f, rows, widths[(f + rows) % 3], 2048);
            trial.lengths = (enum inputs_lengths)((f + rows) % INPUTS_LENGTHS_COUNT);
            trial.options.ties = (enum topk_ties)(f % 2);
            trial.options.order = (enum topk_order)(f % 3);
            trial.with_values = true;
            trial_run(cpu, &trial, &routes);
        }
    }
    topk_cpu_destroy(cpu);
}

/* The split must not change the bytes, and counts each row and each clamp once. */
static void split_or_not_the_bytes_are_the_same(void **state)
{
    (void)state;
    enum { WIDTH = 300000, K = 1000, ROWS = 2 };
    struct inputs_spec spec = {INPUTS_INDEXER, inputs_run_seed(), ROWS, WIDTH, WIDTH, K};
    float *scores = malloc(sizeof(*scores) * inputs_elements(&spec));
    assert_non_null(scores);
    inputs_fill(&spec, scores);
    const int32_t lengths[ROWS] = {WIDTH + 1, WIDTH - 5};
    int32_t indices[2][ROWS * K];
    const uint32_t threads[2] = {1, 8};
    for (int i = 0; i < 2; i++) {
        struct topk_cpu *cpu = trial_cpu_create(threads[i]);
        struct topk_routes routes = {0};
        struct topk_args args = {.scores = scores,
                                 .row_stride = WIDTH,
                                 .lengths = lengths,
                                 .indices = indices[i],
                                 .index_stride = K,
                                 .routes = &routes,
                                 .num_rows = ROWS,
                                 .width = WIDTH,
                                 .k = K};
        struct topk_options options = {.order = TOPK_ORDER_INDEX, .ties = TOPK_TIES_LOWEST};
        assert_int_equal(topk_cpu_select(cpu, &args, &options, NULL, NULL), TOPK_OK);
        assert_int_equal(routes.clamped, 1);
        assert_int_equal(routes.certified + routes.band + routes.recovery + routes.spill, ROWS);
        topk_cpu_destroy(cpu);
    }
    assert_memory_equal(indices[0], indices[1], sizeof(indices[0]));
    free(scores);
}

static void split_calls_at_once(void **state)
{
    (void)state;
    struct topk_cpu *cpu = trial_cpu_create(4);
    struct caller callers[4];
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){
            .cpu = cpu,
            .spec = {INPUTS_MIXED, inputs_run_seed() + (uint64_t)i, 1 + i % 2, 262144, 262144, 512},
            .options = {.order = TOPK_ORDER_ANY, .ties = TOPK_TIES_LOWEST},
            .num_calls = trial_is_sanitized() ? 3 : 10,
        };
    }
    start_and_join(callers, 4);
    topk_cpu_destroy(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_callers_share_a_pool),
        cmocka_unit_test(a_short_call_does_not_wait_for_a_long_one),
        cmocka_unit_test(two_long_calls_advance_together),
        cmocka_unit_test(cancelled_before_it_starts),
        cmocka_unit_test(few_long_rows_are_split),
        cmocka_unit_test(split_or_not_the_bytes_are_the_same),
        cmocka_unit_test(split_calls_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
