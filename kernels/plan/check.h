/*
 * check.h - what the planner was asked, held against the limits of topk_select.h before it plans.
 */
#ifndef TOPKSEL_PLAN_CHECK_H
#define TOPKSEL_PLAN_CHECK_H

#include "topk_select.h"

/* TOPK_OK; or the status of a refusal, whose text in `detail` names value and limit. Any of the
 * arguments may be NULL: of the first three it is refused, without `detail` there is no text. */
enum topk_status topk_plan_check(const struct topk_shape *shape, const struct topk_device *device,
                                 const struct topk_plan *plan_p, char *detail);

#endif
