/*
 * What reads scores where they are, common to the instruction sets: the certified pass (phase 2)
 * and the widening to float32. A file isa_*.c defines, before it includes this one:
 *   LANES                   of a vector of floats
 *   load_scores(row, i, dtype)
 *                           the numbers of LANES scores from position i on
 *   store_floats(to, vector)
 *   float16_value(bits)     the number of one float16
 *   struct bound, bound_of(float, dtype)
 *                           what a pass compares with
 *   mask64(row, i, bound, dtype)
 *                           bit j: score i + j >= bound, for a block of 64
 *   count_bits(mask)        set bits
 *   append_dense(row, i, mask, list, count, dtype)
 *                           appends the marked scores of the block at position i behind `count`
 *                           entries; returns the new count
 *   DENSE_MIN               from so many marks on it is quicker than append_sparse
 * Every function that takes a dtype is made for each by topk_readers below, where it is a constant:
 * nothing asks for it in a loop.
 */
#ifndef TOPKSEL_CPU_ADMIT_H
#define TOPKSEL_CPU_ADMIT_H

#include "cpu/isa.h"
#include "cpu/score.h"

/* Entries a block writes without a branch. Choice: of a long row with K 2048 admitted twice over, a
 * block holds two on average, and one in twenty more than four. */
#define SPARSE_MAX 4

/* The processor's own prefetcher stops at the end of a page; a prefetch never faults. */
TOPK_EACH_DTYPE void fetch_ahead(const void *row, int32_t i, enum topk_dtype dtype)
{
    uintptr_t ahead = (uintptr_t)topk_score_place((struct topk_row){row, dtype}, i);
    ahead += TOPK_FETCH_AHEAD_BYTES;
    for (uintptr_t line = 0; line < TOPK_BLOCK_SCORES * topk_score_bytes(dtype); line += 64) {
        __builtin_prefetch((const void *)(ahead + line));
    }
}

/* One score. */
TOPK_EACH_DTYPE float score_at(const void *row, int32_t i, enum topk_dtype dtype)
{
    switch (dtype) {
    case TOPK_DTYPE_FLOAT16:
        return float16_value(((const uint16_t *)row)[i]);
    case TOPK_DTYPE_BFLOAT16:
        return topk_bfloat16_value(((const uint16_t *)row)[i]);
    default:
        return ((const float *)row)[i];
    }
}

/* The lowest set bit; the last bit when none is set. */
static inline int32_t lowest_bit(uint64_t mask)
{
    return __builtin_ctzll(mask | ((uint64_t)1 << (TOPK_BLOCK_SCORES - 1)));
}

/* Few marked: SPARSE_MAX entries are written whatever the mask holds, so that the usual block has
 * no branch that depends on the number. */
TOPK_EACH_DTYPE int32_t append_sparse(const void *row, int32_t first, uint64_t mask,
                                      struct topk_list *list, int32_t count, enum topk_dtype dtype)
{
    int32_t total = count_bits(mask);
    for (int32_t i = 0; i < SPARSE_MAX || i < total; i++, mask &= mask - 1) {
        int32_t j = first + lowest_bit(mask);
        list->values[count + i] = score_at(row, j, dtype);
        list->positions[count + i] = j;
    }
    return count + total;
}

/* The last scores of a row, fewer than a block. */
TOPK_EACH_DTYPE void append_tail(const void *row, int32_t begin, int32_t end,
                                 struct topk_list *list, enum topk_dtype dtype)
{
    for (int32_t i = begin; i < end; i++) {
        float value = score_at(row, i, dtype);
        list->values[list->count] = value;
        list->positions[list->count] = i;
        list->count += value >= list->boundary;
    }
}

TOPK_EACH_DTYPE int32_t admit(const void *row, int32_t begin, int32_t end, struct topk_list *list,
                              enum topk_dtype dtype)
{
    const struct bound bound = bound_of(list->boundary, dtype);
    int32_t count = list->count, i = begin;
    for (; end - i >= TOPK_BLOCK_SCORES; i += TOPK_BLOCK_SCORES) {
        fetch_ahead(row, i, dtype);
        uint64_t mask = mask64(row, i, &bound, dtype);
        if (mask == 0) {
            continue;
        }
        if (count >= list->capacity) {
            break;
        }
        count = count_bits(mask) < DENSE_MIN ? append_sparse(row, i, mask, list, count, dtype)
                                             : append_dense(row, i, mask, list, count, dtype);
    }
    list->count = count;
    if (end - i >= TOPK_BLOCK_SCORES) {
        return i;
    }
    append_tail(row, i, end, list, dtype);
    return end;
}

TOPK_EACH_DTYPE void widen(const void *row, int32_t begin, int32_t end, float *values,
                           enum topk_dtype dtype)
{
    int32_t i = begin;
    for (; end - i >= LANES; i += LANES) {
        store_floats(values + (i - begin), load_scores(row, i, dtype));
    }
    for (; i < end; i++) {
        values[i - begin] = score_at(row, i, dtype);
    }
}

/* The two loops of each type of score. */
#define READER(name, short_name, bytes)                                                            \
    static int32_t admit_##name(const void *row, int32_t begin, int32_t end,                       \
                                struct topk_list *list)                                            \
    {                                                                                              \
        return admit(row, begin, end, list, name);                                                 \
    }                                                                                              \
    static void widen_##name(const void *row, int32_t begin, int32_t end, float *values)           \
    {                                                                                              \
        widen(row, begin, end, values, name);                                                      \
    }
TOPK_DTYPE_TABLE(READER)
#undef READER

/* For `read` of a struct topk_isa. */
#define READER_ENTRY(name, short_name, bytes) [name] = {admit_##name, widen_##name},

#endif
