/*
 * trial.h - one selection on the CPU with everything around it checked.
 *
 * A trial places the scores so that the last one ends right before (or a few elements before) a
 * page that cannot be touched, makes them read-only, surrounds every output row with canaries, runs
 * topk_cpu_select and asks the oracle about every row. A trial that fails prints what is needed to
 * repeat it and ends the test.
 */
#ifndef TOPKD_TESTS_TRIAL_H
#define TOPKD_TESTS_TRIAL_H

#include "inputs.h"
#include "oracle.h"

struct trial {
    struct inputs_spec spec;
    enum inputs_lengths lengths;
    struct topk_options options;
    bool with_values;
    bool with_offsets;
    bool with_pages;
    uint32_t page_size_log2;
    int32_t tail_elements; /* between the last score and the forbidden page: moves the alignment */
};

/* A pool of num_threads with the best instruction set; the test fails when there is none. */
struct topk_cpu *trial_cpu_create(uint32_t num_threads);

/* A bounded file of pools, one for each instruction set that this processor has. */
#define TRIAL_ISAS_MAX 3

struct trial_isas {
    struct topk_cpu *cpu[TRIAL_ISAS_MAX];
    int num;
};

/* Opens a pool of num_threads for each instruction set; prints which run and which cannot. */
void trial_isas_open(struct trial_isas *isas, uint32_t num_threads);
void trial_isas_close(struct trial_isas *isas);

/* Those of a test program, of two threads each: set-up and tear-down of its group of tests. */
extern struct trial_isas trial_pools;
int trial_pools_open(void **state);
int trial_pools_close(void **state);

/* Runs a trial on one pool. The routes taken are added to *routes unless it is NULL. */
void trial_run(struct topk_cpu *cpu, const struct trial *trial, struct topk_routes *routes);

/* The same on every pool; the routes of all are added. */
void trial_run_all(const struct trial_isas *isas, const struct trial *trial,
                   struct topk_routes *routes);

/* A plain trial: full lengths, default options, no optional output. */
struct trial trial_of(enum inputs_family family, int32_t num_rows, int32_t width, int32_t k);

/* True in builds with the address, memory or thread sanitizer, where sweeps are thinned out. */
bool trial_is_sanitized(void);
bool trial_is_thread_sanitized(void);

#endif
