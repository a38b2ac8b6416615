/*
 * select_batch.h - the selections of many tests, made by several threads and reported test by test.
 * Nearly all of the time goes to the scores and to the oracle, which are the host's; a device does
 * one selection after the other.
 *
 * One thread declares and runs: batch_begin() and batch_add() for every test, then batch_run().
 */
#ifndef TOPKD_TESTS_SELECT_BATCH_H
#define TOPKD_TESTS_SELECT_BATCH_H

#include "select_gpu.h"

#ifndef BATCH_THREADS_MAX
#define BATCH_THREADS_MAX 32
#endif

#define BATCH_DETAIL_SIZE 640u
#define BATCH_ALL (-1) /* every policy of the family, on one request */

/* How cases are selected: twice and judged, unless there is more to it. */
enum batch_kind {
    BATCH_USUAL,
    BATCH_SPARE, /* by a plan with room to spare */
    BATCH_MISLED /* rows mislead the sample of the plan, and are to be read again for it */
};

/* Begins a test: what is added from now on belongs to it. */
void batch_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds a request for one policy of a family, or for all. Policies that do not serve it are passed
 * over. */
void batch_add(const struct gpu_spec *spec, enum topk_family family, int32_t variant,
               enum batch_kind kind);

/* Selects everything that was added, with as many threads as there are processors, and reports each
 * test as soon as it and those before it are done. One without a selection has shown nothing, which
 * a line says. Afterwards the batch is empty. */
void batch_run(void);

/* The same by this thread alone, without a line for tests that have no selection; `once`: each
 * policy selects once, whatever that leaves in its workspace. */
void batch_run_alone(bool once);

/* Whether the batch that ran last has selected from this type of scores with this policy. */
bool batch_has_run(int32_t variant, enum topk_dtype dtype);

#endif
