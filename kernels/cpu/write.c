/* The end of a row: order, transforms, and the fill behind fewer than k positions. */
#include <math.h>
#include <string.h>

#include "cpu/check.h"
#include "cpu/key.h"
#include "cpu/row.h"

#define DIGIT_BITS 8

/*
 * One step of a radix sort: from[count] to to[count], stably by one digit of entry - base.
 */
static void sort_by_digit(const uint64_t *from, uint64_t *to, uint32_t count, uint64_t base,
                          int shift)
{
    uint32_t bins[1u << DIGIT_BITS] = {0}, first = 0;
    for (uint32_t i = 0; i < count; i++) {
        bins[((from[i] - base) >> shift) & ((1u << DIGIT_BITS) - 1)]++;
    }
    for (uint32_t b = 0; b < 1u << DIGIT_BITS; b++) {
        uint32_t held = bins[b];
        bins[b] = first;
        first += held;
    }
    for (uint32_t i = 0; i < count; i++) {
        to[bins[((from[i] - base) >> shift) & ((1u << DIGIT_BITS) - 1)]++] = from[i];
    }
}

/*
 * Leaves in `sorted` the entries of the list by score, best first, equal scores by position. An
 * entry is sorted as its key above its place in the list, and only by the digits in which the keys
 * differ: the best K scores of a row are seldom far apart.
 */
static void sort_by_value(const struct topk_list *list, struct topk_scratch *scratch,
                          struct topk_list *sorted)
{
    uint32_t count = (uint32_t)list->count, least = UINT32_MAX, most = 0;
    uint64_t *from = scratch->entries, *to = scratch->entries + count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = topk_descending_key(list->values[i]);
        least = key < least ? key : least;
        most = key > most ? key : most;
        from[i] = ((uint64_t)key << 32) | i;
    }
    for (int bit = 0; count > 0 && bit < 32 && (most - least) >> bit != 0; bit += DIGIT_BITS) {
        sort_by_digit(from, to, count, (uint64_t)least << 32, 32 + bit);
        uint64_t *other = from;
        from = to;
        to = other;
    }
    sorted->values = scratch->spare_values;
    sorted->positions = scratch->spare_positions;
    sorted->count = list->count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place = (uint32_t)from[i];
        sorted->values[i] = list->values[place];
        sorted->positions[i] = list->positions[place];
    }
}

/* Position in the row to what the caller wants written. Sums wrap modulo 2^32. */
static void transform(const struct topk_args *args, int32_t row_idx, int32_t count,
                      int32_t *positions)
{
    if (args->page_table != NULL) {
        const int32_t *pages = args->page_table + row_idx * args->page_table_stride;
        uint32_t log2 = args->page_size_log2, mask = (1u << log2) - 1u;
        for (int32_t i = 0; i < count; i++) {
            uint32_t p = (uint32_t)positions[i];
            positions[i] = (int32_t)(((uint32_t)pages[p >> log2] << log2) | (p & mask));
        }
    }
    if (args->row_offsets != NULL) {
        uint32_t offset = (uint32_t)args->row_offsets[row_idx];
        for (int32_t i = 0; i < count; i++) {
            positions[i] = (int32_t)((uint32_t)positions[i] + offset);
        }
    }
}

void topk_row_write(const struct topk_request *request, int32_t row_idx, struct topk_list *list,
                    struct topk_scratch *scratch)
{
    const struct topk_args *args = &request->args;
    struct topk_list result = *list;
    TOPK_CHECK(result.count <= args->k);
    if (request->options.order == TOPK_ORDER_VALUE) {
        sort_by_value(list, scratch, &result);
    }
    transform(args, row_idx, result.count, result.positions);
    int32_t *indices = args->indices + row_idx * args->index_stride;
    memcpy(indices, result.positions, (size_t)result.count * sizeof(*indices));
    for (int32_t i = result.count; i < args->k; i++) {
        indices[i] = -1;
    }
    if (args->values != NULL) {
        float *values = args->values + row_idx * args->value_stride;
        memcpy(values, result.values, (size_t)result.count * sizeof(*values));
        for (int32_t i = result.count; i < args->k; i++) {
            values[i] = -INFINITY;
        }
    }
}
