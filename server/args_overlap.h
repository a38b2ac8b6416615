/*
 * args_overlap.h - whether two selections may run at the same time. Pure.
 */
#ifndef TOPKD_SERVER_ARGS_OVERLAP_H
#define TOPKD_SERVER_ARGS_OVERLAP_H

#include "topk_select.h"

#include <stdbool.h>

/*
 * Whether one of the two writes a byte that the other reads or writes. A tensor is taken as all
 * that lies between its first and its last byte, so two that share rows by turns count as meeting.
 * Arguments are checked ones (topk_args_check); addresses are compared, not followed.
 */
bool args_overlap(const struct topk_args *a, enum topk_dtype a_dtype, const struct topk_args *b,
                  enum topk_dtype b_dtype);

#endif
