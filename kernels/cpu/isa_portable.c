/*
 * Plain C for any processor. The compiler vectorises the counting loops; a block without a
 * candidate costs only its count.
 */
#include "cpu/isa.h"

#include <math.h>

#define STEP_SCORES                                                                                \
    16 /* choice: small enough that most steps of a sparse tail hold no candidate                  \
        */

static bool usable(void)
{
    return true;
}

static int32_t count_at_least(const float *values, int32_t count, float bound)
{
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++) {
        found += values[i] >= bound;
    }
    return found;
}

/* As count_at_least, for exactly STEP_SCORES: the fixed length lets it stay in registers. */
static int32_t count_step(const float *values, float bound)
{
    int32_t found = 0;
    for (int32_t i = 0; i < STEP_SCORES; i++) {
        found += values[i] >= bound;
    }
    return found;
}

/* Branch-free: every score is written, the count moves on only past an admitted one. */
static void append(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    float bound = list->boundary;
    int32_t count = list->count;
    for (int32_t i = begin; i < end; i++) {
        float value = row[i];
        list->values[count] = value;
        list->positions[count] = i;
        count += value >= bound;
    }
    list->count = count;
}

static int32_t admit(const float *row, int32_t begin, int32_t end, struct topk_list *list)
{
    int32_t i = begin;
    for (; end - i >= STEP_SCORES; i += STEP_SCORES) {
        if (count_step(row + i, list->boundary) == 0) {
            continue;
        }
        if (list->count >= list->capacity) {
            return i;
        }
        append(row, i, i + STEP_SCORES, list);
    }
    append(row, i, end, list);
    return end;
}

static void range(const float *values, int32_t count, float *min_p, float *max_p)
{
    float low = INFINITY, high = -INFINITY;
    for (int32_t i = 0; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *min_p = low;
    *max_p = high;
}

static void keep(struct topk_list *list, float bound, int32_t num_ties)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < list->count; i++) {
        float value = list->values[i];
        bool tie = value == bound && num_ties > 0;
        list->values[kept] = value;
        list->positions[kept] = list->positions[i];
        kept += value > bound || tie;
        num_ties -= tie;
    }
    list->count = kept;
}

const struct topk_isa topk_isa_portable = {
    .name = "portable",
    .usable = usable,
    .admit = admit,
    .count_at_least = count_at_least,
    .range = range,
    .keep = keep,
};
