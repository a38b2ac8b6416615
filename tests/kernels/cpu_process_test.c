/*
 * The pool in a process that does other things too: its floating-point flags, its signals, its
 * memory, and scores that change while they are read.
 */
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "trial.h"

/* An application may treat denormals as zero (PyTorch offers it): they must still be told apart,
 * and its setting must survive. */
static void flush_to_zero_of_the_caller_does_not_matter(void **state)
{
    (void)state;
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr(), flush = before | 0x8040u; /* FTZ and DAZ */
    struct trial trial = trial_of(INPUTS_DENORMAL, 40, 3000, 100);
    struct inputs_spec *spec = &trial.spec;
    float *scores = malloc(sizeof(*scores) * inputs_elements(spec));
    int32_t *indices = malloc(sizeof(*indices) * 40 * 100);
    assert_true(scores != NULL && indices != NULL);
    inputs_fill(spec, scores);
    struct topk_args args = {.scores = scores,
                             .row_stride = 3000,
                             .indices = indices,
                             .index_stride = 100,
                             .num_rows = 40,
                             .width = 3000,
                             .length_all = 3000,
                             .k = 100};
    struct topk_options options = {.order = TOPK_ORDER_VALUE, .ties = TOPK_TIES_LOWEST};
    _mm_setcsr(flush);
    struct topk_cpu *cpu = trial_cpu_create(3); /* its threads inherit the setting */
    enum topk_status status = topk_cpu_select(cpu, &args, &options, NULL, NULL);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    topk_cpu_destroy(cpu);
    char detail[ORACLE_DETAIL_SIZE] = "";
    assert_int_equal(status, TOPK_OK);
    assert_int_equal(after & 0x8040u, 0x8040u);
    if (!oracle_check(&args, &options, detail)) {
        fail_msg("%s", detail);
    }
    free(scores);
    free(indices);
#else
    skip(); /* the flags are set through an x86 register */
#endif
}

/* A pending signal must wait for the application's own threads: its default action would end the
 * process. */
static void the_threads_take_no_signal_of_the_application(void **state)
{
    (void)state;
    struct topk_cpu *cpu = trial_cpu_create(3);
    sigset_t usr1, before, pending;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, &before);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    usleep(20000);
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGUSR1), 1);
    int signal_number = 0;
    assert_int_equal(sigwait(&usr1, &signal_number), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    topk_cpu_destroy(cpu);
}

static void nothing_is_allocated_once_running(void **state)
{
    (void)state;
    if (trial_is_sanitized()) {
        skip(); /* the sanitizers' own allocator does not count */
    }
    enum { WIDTH = 150000, K = 2048, ROWS = 3 };
    struct inputs_spec spec = {INPUTS_MIXED, inputs_run_seed(), ROWS, WIDTH, WIDTH, K};
    float *scores = malloc(sizeof(*scores) * inputs_elements(&spec));
    int32_t *indices = malloc(sizeof(*indices) * ROWS * K);
    assert_true(scores != NULL && indices != NULL);
    inputs_fill(&spec, scores);
    struct topk_cpu *cpu = trial_cpu_create(6);
    size_t before = mallinfo2().uordblks;
    for (int32_t rows = 1; rows <= ROWS; rows++) { /* with and without a split */
        struct topk_args args = {.scores = scores,
                                 .row_stride = WIDTH,
                                 .indices = indices,
                                 .index_stride = K,
                                 .num_rows = rows,
                                 .width = WIDTH,
                                 .length_all = WIDTH,
                                 .k = K};
        for (int order = 0; order < 3; order++) {
            struct topk_options options = {.order = (enum topk_order)order,
                                           .ties = TOPK_TIES_LOWEST};
            assert_int_equal(topk_cpu_select(cpu, &args, &options, NULL, NULL), TOPK_OK);
            assert_int_equal(mallinfo2().uordblks, before);
        }
    }
    topk_cpu_destroy(cpu);
    free(scores);
    free(indices);
}

static void create_and_destroy_many_times(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct topk_cpu *cpu = trial_cpu_create((uint32_t)(i % 9)); /* 0: one for each processor */
        assert_true(topk_cpu_num_threads(cpu) >= 1);
        if (i % 9 != 0) {
            assert_int_equal(topk_cpu_num_threads(cpu), i % 9);
        }
        topk_cpu_destroy(cpu);
    }
}

struct changer {
    uint32_t *words;
    size_t count;
    bool stop; /* atomic */
};

static void *change_scores(void *argument)
{
    struct changer *changer = argument;
    struct inputs_rng rng = inputs_rng_of(1, 2);
    while (!__atomic_load_n(&changer->stop, __ATOMIC_RELAXED)) {
        for (size_t i = 0; i < changer->count; i += 1 + inputs_rng_below(&rng, 64)) {
            __atomic_store_n(&changer->words[i], (uint32_t)inputs_rng_next(&rng), __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

/* A client can write to its shared memory at any time: the result is then undefined, but every
 * written index is a position or -1, and nothing outside the arrays is touched. */
static void scores_that_change_do_no_harm(void **state)
{
    (void)state;
    if (trial_is_thread_sanitized()) {
        skip(); /* this test is a data race on purpose */
    }
    enum { WIDTH = 140000, ROWS = 2, K = 700, RUNS = 60 };
    uint32_t *words = calloc((size_t)WIDTH * ROWS, sizeof(*words));
    int32_t *indices = calloc((size_t)ROWS * K, sizeof(*indices));
    assert_true(words != NULL && indices != NULL);
    struct trial_isas isas;
    trial_isas_open(&isas, 4);
    struct changer changer = {words, (size_t)WIDTH * ROWS, false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change_scores, &changer), 0);
    int64_t outside = 0;
    for (int run = 0; run < RUNS * isas.num; run++) {
        struct topk_args args = {.scores = (const float *)(const void *)words,
                                 .row_stride = WIDTH,
                                 .indices = indices,
                                 .index_stride = K,
                                 .num_rows = 1 + run % 2, /* one row is split */
                                 .width = WIDTH,
                                 .length_all = run % 5 == 0 ? 3000 : WIDTH,
                                 .k = K};
        struct topk_options options = {.order = (enum topk_order)(run % 3),
                                       .ties = (enum topk_ties)(run % 2)};
        struct topk_cpu *cpu = isas.cpu[run % isas.num];
        outside += topk_cpu_select(cpu, &args, &options, NULL, NULL) != TOPK_OK;
        for (int i = 0; i < args.num_rows * K; i++) {
            outside += indices[i] < -1 || indices[i] >= args.length_all;
        }
    }
    __atomic_store_n(&changer.stop, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    trial_isas_close(&isas);
    free(words);
    free(indices);
    assert_int_equal(outside, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flush_to_zero_of_the_caller_does_not_matter),
        cmocka_unit_test(the_threads_take_no_signal_of_the_application),
        cmocka_unit_test(nothing_is_allocated_once_running),
        cmocka_unit_test(create_and_destroy_many_times),
        cmocka_unit_test(scores_that_change_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
