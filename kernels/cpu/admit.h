/*
 * The certified pass (phase 2), common to the instruction sets. A file isa_*.c defines, before it
 * includes this one:
 *   bound_vector            a vector type, and bound_vector bound_of(float)
 *   mask64(scores, bounds)  bit j: scores[j] >= bound, for a block of 64
 *   count_bits(mask)        set bits
 *   append_dense(scores, first, mask, list, count)
 *                           appends the marked scores of a block, whose first position is `first`,
 *                           behind `count` entries; returns the new count
 *   DENSE_MIN               from so many marks on it is quicker than append_sparse
 */
#ifndef TOPKSEL_CPU_ADMIT_H
#define TOPKSEL_CPU_ADMIT_H

#include "cpu/isa.h"

/* Entries a block writes without a branch. Choice: of a long row with K 2048 admitted twice over, a
 * block holds two on average, and one in twenty more than four. */
#define SPARSE_MAX 4

/* The processor's own prefetcher stops at the end of a page; a prefetch never faults. */
static inline void fetch_ahead(const float *scores)
{
    uintptr_t ahead = (uintptr_t)scores + TOPK_FETCH_AHEAD_BYTES;
    for (uintptr_t line = 0; line < TOPK_BLOCK_SCORES * sizeof(float); line += 64) {
        __builtin_prefetch((const void *)(ahead + line));
    }
}

/* The lowest set bit; the last bit when none is set. */
static inline int32_t lowest_bit(uint64_t mask)
{
    return __builtin_ctzll(mask | ((uint64_t)1 << (TOPK_BLOCK_SCORES - 1)));
}

/* Few marked: SPARSE_MAX entries are written whatever the mask holds, so that the usual block has
 * no branch that depends on the number. */
static inline int32_t append_sparse(const float *scores, int32_t first, uint64_t mask,
                                    struct topk_list *list, int32_t count)
{
    int32_t total = count_bits(mask);
    for (int32_t i = 0; i < SPARSE_MAX || i < total; i++, mask &= mask - 1) {
        int32_t j = lowest_bit(mask);
        list->values[count + i] = scores[j];
        list->positions[count + i] = first + j;
    }
    return count + total;
}

/* The last scores of a row, fewer than a block. */
static inline void append_tail(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    for (int32_t i = begin; i < end; i++) {
        float value = row[i];
        list->values[list->count] = value;
        list->positions[list->count] = i;
        list->count += value >= list->boundary;
    }
}

static int32_t admit(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    const bound_vector bounds = bound_of(list->boundary);
    int32_t count = list->count, i = begin;
    for (; end - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        const float *scores = row + i;
        fetch_ahead(scores);
        uint64_t mask = mask64(scores, bounds);
        if (mask == 0) {
            continue;
        }
        if (count >= list->capacity) {
            break;
        }
        count = count_bits(mask) < DENSE_MIN ? append_sparse(scores, i, mask, list, count)
                                             : append_dense(scores, i, mask, list, count);
    }
    list->count = count;
    if (end - i >= TOPK_BLOCK_SCORES) {
        return i;
    }
    append_tail(row, i, end, list);
    return end;
}

#endif
