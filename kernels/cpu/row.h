/* One row of a request from its scores to its result: the phases in their order. */
#ifndef TOPKSEL_CPU_ROW_H
#define TOPKSEL_CPU_ROW_H

#include "cpu/score.h"
#include "cpu/scratch.h"
#include "topk_select.h"

/* A checked request, copied from the caller so that it cannot change while threads work on it. */
struct topk_request {
    const struct topk_isa *isa;
    struct topk_args args;
    struct topk_options options;
};

/*
 * Selects for row_idx. `next_idx` is the row the same thread will be given next, or -1: its sample
 * is fetched ahead.
 *
 * The scores may change while they are read (a client's shared memory): the row's result is then
 * undefined, but nothing is read or written out of range.
 */
void topk_row_select(const struct topk_request *request, int32_t row_idx, int32_t next_idx,
                     struct topk_scratch *scratch, struct topk_routes *routes);

/* ---- the steps, for rows that several threads share (split.h) ----------------------------------
 */

struct topk_row topk_row_of(const struct topk_request *request, int32_t row_idx);

/* The valid length, clamped to 0 ... width; counts a clamp. Reads the caller's array once. */
int32_t topk_row_length(const struct topk_request *request, int32_t row_idx,
                        struct topk_routes *routes);

/* Phase 2: one pass over row[begin, end). True when the boundary had to be raised on the way. */
bool topk_admit(const struct topk_isa *isa, struct topk_row row, int32_t begin, int32_t end,
                int32_t k, struct topk_list *list);

/* Phase 3: leaves the k best, lowest positions first among equals, of a list of at least k. */
void topk_refine(const struct topk_isa *isa, struct topk_list *list, int32_t k);

/* Writes a refined list, in ascending position, as the row's result. The list is used up. */
void topk_row_write(const struct topk_request *request, int32_t row_idx, struct topk_list *list,
                    struct topk_scratch *scratch);

#endif
