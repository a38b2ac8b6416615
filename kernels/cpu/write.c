/* The end of a row: order, transforms, and the fill behind fewer than k positions. */
#include <math.h>
#include <string.h>

#include "cpu/check.h"
#include "cpu/key.h"
#include "cpu/row.h"

#define DIGIT_BITS 11
#define NUM_DIGITS 3
#define INSERTION_MAX 48 /* choice: below it, clearing and summing the bins costs more */

/* Both sorts are stable: equal scores stay in ascending position. */
static void sort_few(struct topk_list *list)
{
    for (int32_t i = 1; i < list->count; i++) {
        float value = list->values[i];
        int32_t position = list->positions[i], j = i;
        uint32_t key = topk_descending_key(value);
        for (; j > 0 && topk_descending_key(list->values[j - 1]) > key; j--) {
            list->values[j] = list->values[j - 1];
            list->positions[j] = list->positions[j - 1];
        }
        list->values[j] = value;
        list->positions[j] = position;
    }
}

static uint32_t digit_of(float value, int digit)
{
    return (topk_descending_key(value) >> (digit * DIGIT_BITS)) & (TOPK_SORT_BINS - 1);
}

/* Turns counts into first places; false when one bin holds everything. */
static bool sum_bins(uint32_t *bins, uint32_t total)
{
    uint32_t first = 0;
    for (uint32_t b = 0; b < TOPK_SORT_BINS; b++) {
        uint32_t count = bins[b];
        if (count == total) {
            return false;
        }
        bins[b] = first;
        first += count;
    }
    return true;
}

/* Sorts by score, best first, one digit of the key after the other from the least. */
static void sort_many(struct topk_list *list, struct topk_scratch *scratch)
{
    struct topk_list from = *list;
    struct topk_list to = {.values = scratch->spare_values, .positions = scratch->spare_positions};
    uint32_t total = (uint32_t)list->count;
    for (int digit = 0; digit < NUM_DIGITS; digit++) {
        memset(scratch->bins, 0, TOPK_SORT_BINS * sizeof(*scratch->bins));
        for (uint32_t i = 0; i < total; i++) {
            scratch->bins[digit_of(from.values[i], digit)]++;
        }
        if (!sum_bins(scratch->bins, total)) {
            continue;
        }
        for (uint32_t i = 0; i < total; i++) {
            uint32_t place = scratch->bins[digit_of(from.values[i], digit)]++;
            to.values[place] = from.values[i];
            to.positions[place] = from.positions[i];
        }
        struct topk_list other = from;
        from = to;
        to = other;
    }
    list->values = from.values;
    list->positions = from.positions;
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
    struct topk_list result = *list; /* the sort may end in the scratch's other half */
    TOPK_CHECK(result.count <= args->k);
    if (request->options.order == TOPK_ORDER_VALUE) {
        if (result.count <= INSERTION_MAX) {
            sort_few(&result);
        } else {
            sort_many(&result, scratch);
        }
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
