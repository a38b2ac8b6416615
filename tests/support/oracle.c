/* The judge of the selection contract: see oracle.h. Plain on purpose; speed is not a goal. */
#include "oracle.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where one page of the row lands: the first output position of the page. */
struct page_image {
    uint32_t first;
    int32_t page;
};

static void *must_alloc(size_t count, size_t size_bytes)
{
    void *memory = calloc(count > 0 ? count : 1, size_bytes);
    if (memory == NULL) {
        fprintf(stderr, "oracle: out of memory for %zu x %zu bytes\n", count, size_bytes);
        abort();
    }
    return memory;
}

static bool wrong(char *detail, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool wrong(char *detail, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, ORACLE_DETAIL_SIZE, format, arguments);
    va_end(arguments);
    return false;
}

/* By the definition of the format: sign, 5 bits of exponent, 10 of fraction. */
static float number_of_float16(uint16_t bits)
{
    int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float number = exponent == 0 ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(1024 + fraction), exponent - 25);
    if (exponent == 31) {
        uint32_t image = 0x7f800000u | (fraction != 0 ? 1u << 22 : 0u) | (uint32_t)fraction << 13;
        memcpy(&number, &image, sizeof(number));
    }
    return copysignf(number, bits >> 15 != 0 ? -1.0f : 1.0f);
}

float oracle_score(const void *scores, enum topk_dtype dtype, int64_t i)
{
    float number = 0.0f;
    uint16_t bits = 0;
    if (dtype == TOPK_DTYPE_FLOAT32) {
        memcpy(&number, (const char *)scores + 4 * i, sizeof(number));
        return number;
    }
    memcpy(&bits, (const char *)scores + 2 * i, sizeof(bits));
    if (dtype == TOPK_DTYPE_FLOAT16) {
        return number_of_float16(bits);
    }
    uint32_t image = (uint32_t)bits * 65536u;
    memcpy(&number, &image, sizeof(number));
    return number;
}

static float score_of(const struct oracle_row *row, int32_t p)
{
    return oracle_score(row->scores, row->options.dtype, p);
}

int oracle_compare(float a, float b)
{
    if (isnan(a) || isnan(b)) {
        return (isnan(b) ? 1 : 0) - (isnan(a) ? 1 : 0);
    }
    return (a > b ? 1 : 0) - (a < b ? 1 : 0);
}

static int32_t clamped_length(const struct oracle_row *row)
{
    if (row->length < 0) {
        return 0;
    }
    return row->length > row->width ? row->width : row->length;
}

/* What must be written for position p of the row. */
static int32_t image_of(const struct oracle_row *row, int32_t p)
{
    uint32_t image = (uint32_t)p;
    if (row->page_table != NULL) {
        uint32_t mask = (1u << row->page_size_log2) - 1u;
        uint32_t page = (uint32_t)row->page_table[p >> row->page_size_log2];
        image = (page << row->page_size_log2) | ((uint32_t)p & mask);
    }
    return (int32_t)(image + (uint32_t)row->row_offset);
}

/* ---- the unique answer ---------------------------------------------------------------------- */

static int by_score_then_position(const void *left, const void *right, void *context)
{
    const struct oracle_row *row = context;
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    int order = oracle_compare(score_of(row, b), score_of(row, a));
    return order != 0 ? order : (a > b) - (a < b);
}

static int by_position(const void *left, const void *right)
{
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

void oracle_select_row(const struct oracle_row *row, int32_t *indices, float *values)
{
    int32_t length = clamped_length(row);
    int32_t count = length < row->k ? length : row->k;
    int32_t *positions = must_alloc((size_t)length, sizeof(*positions));
    for (int32_t p = 0; p < length; p++) {
        positions[p] = p;
    }
    qsort_r(positions, (size_t)length, sizeof(*positions), by_score_then_position,
            (void *)(uintptr_t)row);
    if (row->options.order != TOPK_ORDER_VALUE) {
        qsort(positions, (size_t)count, sizeof(*positions), by_position);
    }
    for (int32_t j = 0; j < row->k; j++) {
        indices[j] = j < count ? image_of(row, positions[j]) : -1;
        if (values != NULL) {
            values[j] = j < count ? score_of(row, positions[j]) : -INFINITY;
        }
    }
    free(positions);
}

/* ---- the check ------------------------------------------------------------------------------ */

static int by_first(const void *left, const void *right)
{
    uint32_t a = ((const struct page_image *)left)->first;
    uint32_t b = ((const struct page_image *)right)->first;
    return (a > b) - (a < b);
}

/*
 * Finds the row position of each written index. With a page table the images of the row's pages
 * are sorted and searched, which needs every page of the row to have an image of its own.
 */
static bool invert_positions(const struct oracle_row *row, const int32_t *indices, int32_t count,
                             int32_t *positions, char *detail)
{
    int32_t length = clamped_length(row);
    uint32_t log2 = row->page_table != NULL ? row->page_size_log2 : 0;
    uint32_t mask = (1u << log2) - 1u;
    int32_t num_pages = row->page_table != NULL && length > 0 ? ((length - 1) >> log2) + 1 : 0;
    struct page_image *images = must_alloc((size_t)num_pages, sizeof(*images));
    bool right = true;
    for (int32_t page = 0; page < num_pages; page++) {
        images[page] = (struct page_image){(uint32_t)row->page_table[page] << log2, page};
    }
    qsort(images, (size_t)num_pages, sizeof(*images), by_first);
    for (int32_t i = 1; i < num_pages && right; i++) {
        if (images[i].first == images[i - 1].first) {
            right = wrong(detail, "the test's page table sends pages %d and %d to the same place",
                          images[i - 1].page, images[i].page);
        }
    }
    for (int32_t j = 0; j < count && right; j++) {
        uint32_t image = (uint32_t)indices[j] - (uint32_t)row->row_offset;
        int64_t p = (int32_t)image;
        if (row->page_table != NULL) {
            struct page_image wanted = {image & ~mask, 0};
            const struct page_image *found =
                bsearch(&wanted, images, (size_t)num_pages, sizeof(*images), by_first);
            p = found == NULL ? -1 : ((int64_t)found->page << log2) + (int64_t)(image & mask);
        }
        if (p < 0 || p >= length) {
            right = wrong(detail,
                          "slot %d of %d holds %d, which is no position of the row "
                          "(valid length %d)",
                          j, row->k, indices[j], length);
            break;
        }
        positions[j] = (int32_t)p;
    }
    free(images);
    return right;
}

static bool check_order(const struct oracle_row *row, const int32_t *positions, int32_t count,
                        char *detail)
{
    bool all_taken = count == clamped_length(row);
    for (int32_t j = 1; j < count; j++) {
        int32_t before = positions[j - 1], here = positions[j];
        float before_score = score_of(row, before), here_score = score_of(row, here);
        if (row->options.order == TOPK_ORDER_VALUE) {
            int rank = oracle_compare(before_score, here_score);
            if (rank < 0 || (rank == 0 && before > here)) {
                return wrong(detail,
                             "order by value: slot %d (position %d, %.9g) may not stand "
                             "before slot %d (position %d, %.9g)",
                             j - 1, before, (double)before_score, j, here, (double)here_score);
            }
        } else if ((row->options.order == TOPK_ORDER_INDEX || all_taken) && before > here) {
            return wrong(detail, "order by position: slot %d holds %d, slot %d holds %d", j - 1,
                         before, j, here);
        }
    }
    return true;
}

/* selected[p] is 1 for the positions taken. */
static bool check_set(const struct oracle_row *row, const unsigned char *selected, char *detail)
{
    int32_t length = clamped_length(row);
    int32_t worst_in = -1, best_out = -1;
    for (int32_t p = 0; p < length; p++) {
        if (selected[p]) { /* among equals the last one */
            if (worst_in < 0 || oracle_compare(score_of(row, p), score_of(row, worst_in)) <= 0) {
                worst_in = p;
            }
        } else if (best_out < 0 || oracle_compare(score_of(row, p), score_of(row, best_out)) > 0) {
            best_out = p; /* among equals the first one */
        }
    }
    if (worst_in < 0 || best_out < 0) {
        return true;
    }
    int rank = oracle_compare(score_of(row, worst_in), score_of(row, best_out));
    if (rank < 0) {
        return wrong(detail, "position %d (%.9g) is selected but position %d (%.9g) is not",
                     worst_in, (double)score_of(row, worst_in), best_out,
                     (double)score_of(row, best_out));
    }
    if (rank == 0 && row->options.ties == TOPK_TIES_LOWEST && best_out < worst_in) {
        return wrong(detail,
                     "ties to the lowest: position %d is selected but its equal at %d "
                     "(%.9g) is not",
                     worst_in, best_out, (double)score_of(row, best_out));
    }
    return true;
}

static bool check_values(const struct oracle_row *row, const int32_t *positions, int32_t count,
                         const float *values, char *detail)
{
    for (int32_t j = 0; j < row->k; j++) {
        float expected = j < count ? score_of(row, positions[j]) : -INFINITY;
        if (memcmp(&expected, &values[j], sizeof(expected)) != 0) {
            return wrong(detail, "value of slot %d is %.9g, its score is %.9g (bits differ)", j,
                         (double)values[j], (double)expected);
        }
    }
    return true;
}

bool oracle_check_row(const struct oracle_row *row, const int32_t *indices, const float *values,
                      char *detail)
{
    int32_t length = clamped_length(row);
    int32_t count = length < row->k ? length : row->k;
    int32_t *positions = must_alloc((size_t)count, sizeof(*positions));
    unsigned char *selected = must_alloc((size_t)length, 1);
    bool right = invert_positions(row, indices, count, positions, detail);
    for (int32_t j = 0; j < count && right; j++) {
        if (selected[positions[j]]) {
            right =
                wrong(detail, "position %d is selected twice (again in slot %d)", positions[j], j);
        }
        selected[positions[j]] = 1;
    }
    for (int32_t j = count; j < row->k && right; j++) {
        if (indices[j] != -1) {
            right = wrong(detail, "slot %d is beyond the %d positions and holds %d, not -1", j,
                          count, indices[j]);
        }
    }
    right = right && check_set(row, selected, detail) &&
            check_order(row, positions, count, detail) &&
            (values == NULL || check_values(row, positions, count, values, detail));
    free(selected);
    free(positions);
    return right;
}

/* ---- whole requests ------------------------------------------------------------------------- */

struct oracle_row oracle_row_of(const struct topk_args *args, const struct topk_options *options,
                                int32_t row_idx)
{
    int64_t r = row_idx, bytes = options->dtype == TOPK_DTYPE_FLOAT32 ? 4 : 2;
    return (struct oracle_row){
        .scores =
            args->scores != NULL ? (const char *)args->scores + r * args->row_stride * bytes : NULL,
        .width = args->width,
        .length = args->lengths != NULL ? args->lengths[r] : args->length_all,
        .k = args->k,
        .options = *options,
        .page_table =
            args->page_table != NULL ? args->page_table + r * args->page_table_stride : NULL,
        .page_table_width = args->page_table_width,
        .page_size_log2 = args->page_size_log2,
        .row_offset = args->row_offsets != NULL ? args->row_offsets[r] : 0,
    };
}

bool oracle_check(const struct topk_args *args, const struct topk_options *options, char *detail)
{
    char text[ORACLE_DETAIL_SIZE];
    for (int32_t r = 0; r < args->num_rows; r++) {
        struct oracle_row row = oracle_row_of(args, options, r);
        const int32_t *indices = args->indices + r * args->index_stride;
        const float *values = args->values != NULL ? args->values + r * args->value_stride : NULL;
        if (!oracle_check_row(&row, indices, values, text)) {
            return wrong(detail, "row %d of %d (length %d, width %d, k %d): %.200s", r,
                         args->num_rows, row.length, args->width, args->k, text);
        }
    }
    return true;
}
