/*
 * plan_of.h - plans for devices that are not there, in a test that expects one.
 */
#ifndef TOPKD_TESTS_PLAN_OF_H
#define TOPKD_TESTS_PLAN_OF_H

#include "plan/policy.h"
#include "topk_select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Multiprocessors, capability, shared memory a block and a multiprocessor, L2. */
static const struct topk_device h200 = {132, 9, 0, 232448, 233472, 60 << 20};
static const struct topk_device a100 = {108, 8, 0, 166912, 167936, 40 << 20};
static const struct topk_device b200 = {148, 10, 0, 232448, 233472, 126 << 20};
static const struct topk_device rtx = {170, 12, 0, 101376, 102400, 96 << 20};
static const struct topk_device *const devices[] = {&h200, &a100, &b200, &rtx};

#define CLUSTER_ROWS 66 /* of the last policy of clusters, on the h200 */

static inline struct topk_shape shape_of(int32_t rows, int32_t width, int32_t k)
{
    struct topk_shape shape = {.k = k, .rows = rows, .width = width, .alignment_bytes = 16};
    return shape;
}

static inline struct topk_plan plan_in(enum topk_order order, const struct topk_device *device,
                                       int32_t rows, int32_t width, int32_t k)
{
    struct topk_shape shape = shape_of(rows, width, k);
    struct topk_plan plan;
    shape.options.order = order;
    char detail[TOPK_DETAIL_SIZE] = "";
    assert_int_equal(topk_plan_make(&shape, device, &plan, detail), TOPK_OK);
    return plan;
}

static inline struct topk_plan plan_of(const struct topk_device *device, int32_t rows,
                                       int32_t width, int32_t k)
{
    return plan_in(TOPK_ORDER_ANY, device, rows, width, k);
}

/* For what `wide` would have in any other order. */
static inline struct topk_plan plan_by_value(const struct topk_device *device, int32_t rows,
                                             int32_t width, int32_t k)
{
    return plan_in(TOPK_ORDER_VALUE, device, rows, width, k);
}

static inline void assert_family(const struct topk_plan *plan, enum topk_family family)
{
    assert_string_equal(topk_family_name(plan->family), topk_family_name(family));
}

#endif
