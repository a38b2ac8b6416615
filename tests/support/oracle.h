/*
 * oracle.h - an independent judge of the selection contract in topk_select.h.
 *
 * Written from the contract alone, as plainly as possible: one comparison function, sorting, and
 * linear scans. It shares no code with any selector. All pointers are host pointers; a test of a
 * device copies its result first. Any thread may call; nothing is kept between calls.
 *
 * Three points that the contract leaves to the reader and that the oracle decides:
 *   - Written values carry the very bits of the score in the row (sign of zero, NaN payload), as
 *     float32: a NaN of 16 bits has its payload in the upper bits, one of float16 is quiet.
 *   - A row offset is added after the page-table transform, and both wrap modulo 2^32.
 *   - "Position ascending" means the position in the row, before transform and offset.
 */
#ifndef TOPKD_TESTS_ORACLE_H
#define TOPKD_TESTS_ORACLE_H

#include "topk_select.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ORACLE_DETAIL_SIZE 320u

/* One row of a request. */
struct oracle_row {
    const void *scores; /* [width] of options.dtype */
    int32_t width;      /* scores that may be read, >= 0 */
    int32_t length;     /* valid length as the client gave it, clamped here */
    int32_t k;          /* >= 1 */
    struct topk_options options;
    const int32_t *page_table; /* [page_table_width], or NULL */
    int32_t page_table_width;
    uint32_t page_size_log2;
    int32_t row_offset; /* 0 for none */
};

/*
 * True when indices[k] (and values[k] unless NULL) are a right answer for the row: any valid choice
 * among equal scores passes where the options leave it free. Otherwise false, with what is wrong
 * and where in detail[ORACLE_DETAIL_SIZE].
 */
bool oracle_check_row(const struct oracle_row *row, const int32_t *indices, const float *values,
                      char *detail);

/*
 * The one answer that the options allow with ties going to the lowest positions: indices[k], and
 * values[k] unless NULL. TOPK_ORDER_ANY is answered in index order.
 */
void oracle_select_row(const struct oracle_row *row, int32_t *indices, float *values);

/* The row `row_idx` of a request, as the two functions above take it. */
struct oracle_row oracle_row_of(const struct topk_args *args, const struct topk_options *options,
                                int32_t row_idx);

/* Checks every row of a finished request, outputs included in `args`; the text names the row. */
bool oracle_check(const struct topk_args *args, const struct topk_options *options, char *detail);

/* The float32 number of score i of an array of this type. */
float oracle_score(const void *scores, enum topk_dtype dtype, int64_t i);

/* -1, 0 or 1: score a ranks below, equal to or above score b (NaN last, -0 equal to +0). */
int oracle_compare(float a, float b);

#ifdef __cplusplus
}
#endif

#endif
