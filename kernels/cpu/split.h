/*
 * Few long rows: each row is cut into parts that threads work on at the same time, every part with
 * the boundary of the whole row; who finishes a row's last part refines all of its candidates.
 */
#ifndef TOPKSEL_CPU_SPLIT_H
#define TOPKSEL_CPU_SPLIT_H

#include "cpu/pool.h"
#include "cpu/row.h"

struct topk_split;

/* The arena of one split request at a time, for a pool of that many threads and K up to
 * TOPK_K_FAST_MAX. NULL without memory. */
struct topk_split *topk_split_create(uint32_t num_threads);
void topk_split_destroy(struct topk_split *split);

/*
 * True when the request gains from being split and the arena was free; it is then the caller's
 * until topk_split_run returns. Any thread.
 */
bool topk_split_acquire(struct topk_split *split, const struct topk_request *request);

/* Runs the request as parts of rows and releases the arena. */
enum topk_status topk_split_run(struct topk_split *split, const struct topk_request *request,
                                struct topk_pool *pool, const bool *cancel);

#endif
