/*
 * A bounded pool of threads that several callers share. A job is a number of items of about equal
 * cost. Whoever works takes a few items of one job, then a few of the next (round robin), so that
 * a short job never waits for a long one to end.
 *
 * At most num_threads threads work at a time, each in a seat with a scratch. A caller takes a free
 * seat and works too, so a small job costs no wake-up; num_threads persistent threads take the
 * seats that no caller holds.
 */
#ifndef TOPKSEL_CPU_POOL_H
#define TOPKSEL_CPU_POOL_H

#include <pthread.h>

#include "cpu/scratch.h"
#include "topk_select.h"

#define TOPK_THREADS_MAX 256u

struct topk_pool;

/* One job; lives on the caller's stack until topk_pool_run returns. The first group is filled by
 * the caller, the second belongs to the pool. */
struct topk_job {
    /* Works on one item; next_item is the one the same thread works on next, or -1. Called by any
     * thread of the pool and by callers of topk_pool_run. */
    void (*run)(void *context, int64_t item, int64_t next_item, struct topk_scratch *scratch,
                struct topk_routes *routes);
    void *context;
    int64_t num_items;
    int64_t item_scores;        /* about how many scores an item reads */
    int32_t k;                  /* what the scratch must serve */
    struct topk_routes *routes; /* added to atomically, or NULL */
    const bool *cancel;         /* polled before each item, or NULL */

    struct topk_job *next, *previous; /* among the jobs with items to take; NULL when not there */
    int64_t next_item;
    int32_t num_working; /* threads that hold items of it */
    enum topk_status status;
    pthread_cond_t done;
};

enum topk_status topk_pool_create(uint32_t num_threads, struct topk_pool **pool_p, char *detail);
void topk_pool_destroy(struct topk_pool *pool);
uint32_t topk_pool_num_threads(const struct topk_pool *pool);

/* Runs every item of the job; blocks. Any thread. TOPK_E_CANCELLED and TOPK_E_NO_MEMORY end it
 * early, with no thread still working on it. Allocates nothing when k <= TOPK_K_FAST_MAX. */
enum topk_status topk_pool_run(struct topk_pool *pool, struct topk_job *job);

#endif
