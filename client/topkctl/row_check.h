/*
 * row_check.h - is this selection right? A small judge of the contract in topk_select.h, written
 * from the contract alone and sharing nothing with any selector: it looks at every score of the row
 * once and at every returned position. Used by `topkctl select --verify` and by the examples.
 */
#ifndef TOPKCTL_ROW_CHECK_H
#define TOPKCTL_ROW_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROW_CHECK_DETAIL_SIZE 200u

/* A row and what was asked of it. */
struct row_check {
    const float *scores;   /* [width] */
    int32_t width, length; /* a length below 0 counts as 0, one above width as width */
    int32_t k;
    bool index_ascending;  /* order by index was asked */
    bool value_descending; /* order by value was asked */
    bool ties_lowest;      /* the lowest positions among equal scores were asked */
};

/* Memory for rows up to `width`, one bit a position: ROW_CHECK_MARKS(width) words. */
#define ROW_CHECK_MARKS(width) (((size_t)(width) + 63) / 64)

/*
 * True when indices[k] (and values[k], unless NULL) are a right answer. Otherwise false, with what
 * is wrong and where in detail[ROW_CHECK_DETAIL_SIZE]. `marks` is scratch; its content does not
 * matter. Blocks for one read of the row; any thread.
 */
bool row_check(const struct row_check *row, const int32_t *indices, const float *values,
               uint64_t *marks, char *detail);

#endif
