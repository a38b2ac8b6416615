/*
 * family.h - what the planner's files share. One function a family fills a plan: with the policy
 * `variant`, or the one that is best for the shape where that is negative; false when the family,
 * or that policy, cannot serve the shape on the device.
 */
#ifndef TOPKSEL_PLAN_FAMILY_H
#define TOPKSEL_PLAN_FAMILY_H

#include "topk_select.h"

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))
#define WORKSPACE_MAX_BYTES (64ll << 20) /* the promise of topk_select.h */
#define SHARED_RESERVED_BYTES 1024       /* hardware: kept back in every block */

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* The buffer that sorts one row's result by value: 8 bytes each, a power of two of them. */
static inline int64_t sort_bytes(const struct topk_shape *shape)
{
    int64_t entries = 1;
    while (entries < shape->k) {
        entries *= 2;
    }
    return shape->options.order == TOPK_ORDER_VALUE ? 8 * entries : 0;
}

static inline bool is_float32(const struct topk_shape *shape)
{
    return shape->options.dtype == TOPK_DTYPE_FLOAT32;
}

/* Bulk copies to shared memory with a barrier, and programmatic launch: sm_90 and later. */
static inline bool has_bulk_copies(const struct topk_device *device)
{
    return device->compute_major >= 9;
}

/* What all families' plans have in common. */
void topk_plan_begin(const struct topk_shape *shape, const struct topk_device *device,
                     enum topk_family family, struct topk_plan *plan);

bool topk_plan_cluster(const struct topk_shape *shape, const struct topk_device *device,
                       int32_t variant, struct topk_plan *plan);
bool topk_plan_wide(const struct topk_shape *shape, const struct topk_device *device,
                    int32_t variant, struct topk_plan *plan);

#endif
