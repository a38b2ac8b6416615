#include "row_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool wrong(char *detail, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool wrong(char *detail, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, ROW_CHECK_DETAIL_SIZE, format, arguments);
    va_end(arguments);
    return false;
}

/* Whether score a ranks above score b: every number above NaN, -0 equal to +0. */
static bool ranks_above(float a, float b)
{
    return isnan(b) ? !isnan(a) : a > b;
}

static bool is_marked(const uint64_t *marks, int32_t position)
{
    return (marks[position / 64] >> (position % 64) & 1u) != 0;
}

/* A row with no more than K valid scores: all of them, then -1. */
static bool check_short(const struct row_check *row, int32_t length, const int32_t *indices,
                        uint64_t *marks, char *detail)
{
    memset(marks, 0, ROW_CHECK_MARKS(length) * sizeof(*marks));
    for (int32_t j = 0; j < row->k; j++) {
        int32_t position = indices[j];
        if (j >= length) {
            if (position != -1) {
                return wrong(detail, "entry %d is %d; -1 is due after %d valid scores", j, position,
                             length);
            }
        } else if (row->value_descending) {
            if (position < 0 || position >= length || is_marked(marks, position)) {
                return wrong(detail, "entry %d is %d: outside 0 ... %d, or there before", j,
                             position, length - 1);
            }
            marks[position / 64] |= (uint64_t)1 << (position % 64);
        } else if (position != j) {
            return wrong(detail, "entry %d is %d; a row of %d valid scores has them in order", j,
                         position, length);
        }
    }
    return true;
}

/* Every position once, within the row; *lowest_p gets the position whose score ranks lowest. */
static bool mark_selected(const struct row_check *row, int32_t length, const int32_t *indices,
                          uint64_t *marks, int32_t *lowest_p, char *detail)
{
    memset(marks, 0, ROW_CHECK_MARKS(length) * sizeof(*marks));
    int32_t lowest = -1;
    for (int32_t j = 0; j < row->k; j++) {
        int32_t position = indices[j];
        if (position < 0 || position >= length) {
            return wrong(detail, "entry %d is %d, outside 0 ... %d", j, position, length - 1);
        }
        if (is_marked(marks, position)) {
            return wrong(detail, "entry %d repeats position %d", j, position);
        }
        marks[position / 64] |= (uint64_t)1 << (position % 64);
        if (lowest < 0 || ranks_above(row->scores[lowest], row->scores[position])) {
            lowest = position;
        }
    }
    *lowest_p = lowest;
    return true;
}

/* No position left out ranks above the lowest one taken; with ties_lowest no equal one comes
 * earlier than an equal one taken. */
static bool check_left_out(const struct row_check *row, int32_t length, const uint64_t *marks,
                           int32_t lowest, char *detail)
{
    float boundary = row->scores[lowest];
    int32_t first_equal_left_out = -1;
    for (int32_t position = 0; position < length; position++) {
        float score = row->scores[position];
        if (is_marked(marks, position)) {
            if (row->ties_lowest && first_equal_left_out >= 0 && !ranks_above(score, boundary)) {
                return wrong(detail, "position %d is taken and %d, of equal score and lower, not",
                             position, first_equal_left_out);
            }
            continue;
        }
        if (ranks_above(score, boundary)) {
            return wrong(detail, "position %d (%.9g) is left out, %d (%.9g) is taken", position,
                         (double)score, lowest, (double)boundary);
        }
        if (first_equal_left_out < 0 && !ranks_above(boundary, score)) {
            first_equal_left_out = position;
        }
    }
    return true;
}

static bool check_order(const struct row_check *row, int32_t count, const int32_t *indices,
                        char *detail)
{
    for (int32_t j = 1; j < count; j++) {
        int32_t before = indices[j - 1];
        int32_t after = indices[j];
        if (row->index_ascending && before > after) {
            return wrong(detail, "entries %d and %d are %d and %d, not ascending", j - 1, j, before,
                         after);
        }
        if (!row->value_descending) {
            continue;
        }
        float high = row->scores[before];
        float low = row->scores[after];
        if (ranks_above(low, high) || (!ranks_above(high, low) && before > after)) {
            return wrong(detail,
                         "entries %d and %d, positions %d (%.9g) and %d (%.9g), are swapped", j - 1,
                         j, before, (double)high, after, (double)low);
        }
    }
    return true;
}

static uint32_t bits_of(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof(bits));
    return bits;
}

/* The very bits of each score (sign of zero, payload of NaN); -inf beside -1. */
static bool check_values(const struct row_check *row, const int32_t *indices, const float *values,
                         char *detail)
{
    for (int32_t j = 0; j < row->k; j++) {
        float due = indices[j] < 0 ? -INFINITY : row->scores[indices[j]];
        if (bits_of(due) != bits_of(values[j])) {
            return wrong(detail, "value %d is %.9g, position %d has %.9g", j, (double)values[j],
                         indices[j], (double)due);
        }
    }
    return true;
}

bool row_check(const struct row_check *row, const int32_t *indices, const float *values,
               uint64_t *marks, char *detail)
{
    int32_t length = row->length < 0 ? 0 : row->length > row->width ? row->width : row->length;
    if (length <= row->k) {
        if (!check_short(row, length, indices, marks, detail)) {
            return false;
        }
    } else {
        int32_t lowest = 0;
        if (!mark_selected(row, length, indices, marks, &lowest, detail) ||
            !check_left_out(row, length, marks, lowest, detail)) {
            return false;
        }
    }
    int32_t count = length < row->k ? length : row->k;
    return check_order(row, count, indices, detail) &&
           (values == NULL || check_values(row, indices, values, detail));
}
