/* --verify: each row back to plain positions, then judged by row_check. */
#include "float16.h"
#include "row_check.h"
#include "select.h"

#include <stdlib.h>
#include <string.h>

/* An entry of a page table and where it stands. */
struct page {
    uint32_t entry; /* the bits of it that a result still shows */
    uint32_t page_idx;
};

struct select_verifier {
    const struct select_job *job;
    uint64_t *marks;    /* [ROW_CHECK_MARKS(width)] */
    int32_t *positions; /* [k] */
    struct page *pages; /* [page_table_width] */
    float *widened;     /* [width], of scores of 16 bits */
};

struct select_verifier *select_verifier_create(const struct select_job *job)
{
    struct select_verifier *verifier = calloc(1, sizeof(*verifier));
    if (verifier == NULL) {
        return NULL;
    }
    verifier->job = job;
    verifier->marks = malloc(ROW_CHECK_MARKS(job->width) * sizeof(*verifier->marks));
    verifier->positions = malloc((size_t)job->k * sizeof(*verifier->positions));
    verifier->pages = calloc((size_t)job->page_table_width + 1, sizeof(*verifier->pages));
    verifier->widened = malloc((size_t)job->width * sizeof(*verifier->widened));
    if (verifier->marks == NULL || verifier->positions == NULL || verifier->pages == NULL ||
        verifier->widened == NULL) {
        select_verifier_destroy(verifier);
        return NULL;
    }
    return verifier;
}

void select_verifier_destroy(struct select_verifier *verifier)
{
    if (verifier != NULL) {
        free(verifier->marks);
        free(verifier->positions);
        free(verifier->pages);
        free(verifier->widened);
        free(verifier);
    }
}

static int compare_pages(const void *a, const void *b)
{
    uint32_t x = ((const struct page *)a)->entry;
    uint32_t y = ((const struct page *)b)->entry;
    return (x > y) - (x < y);
}

/* Sorts the pages of a row by entry. A page that stands twice makes positions ambiguous. */
static bool sort_pages(struct select_verifier *verifier, uint32_t row, uint32_t num_pages,
                       uint32_t *twice_p)
{
    const struct select_job *job = verifier->job;
    uint32_t log2 = job->options->page_size_log2;
    const int32_t *table =
        (const int32_t *)job->page_table.view.data + (size_t)row * job->page_table_width;
    for (uint32_t i = 0; i < num_pages; i++) {
        verifier->pages[i] =
            (struct page){.entry = (uint32_t)table[i] << log2 >> log2, .page_idx = i};
    }
    qsort(verifier->pages, num_pages, sizeof(*verifier->pages), compare_pages);
    for (uint32_t i = 1; i < num_pages; i++) {
        if (verifier->pages[i - 1].entry == verifier->pages[i].entry) {
            *twice_p = verifier->pages[i].entry;
            return false;
        }
    }
    return true;
}

/* The position that became `id`, or -2 when none did. */
static int32_t untransform(const struct select_verifier *verifier, uint32_t num_pages, int32_t id,
                           int32_t row_offset)
{
    uint32_t raw = (uint32_t)id - (uint32_t)row_offset;
    if (num_pages == 0) {
        return (int32_t)raw;
    }
    uint32_t log2 = verifier->job->options->page_size_log2;
    const struct page key = {.entry = raw >> log2};
    const struct page *page = bsearch(&key, verifier->pages, num_pages, sizeof(key), compare_pages);
    return page == NULL ? -2 : (int32_t)(page->page_idx << log2 | (raw & ((1u << log2) - 1)));
}

static int32_t length_of(const struct select_job *job, uint32_t row)
{
    if (job->lengths.map == NULL) {
        return (int32_t)job->width;
    }
    int32_t length = ((const int32_t *)job->lengths.view.data)[row];
    return length < 0 ? 0 : length > (int32_t)job->width ? (int32_t)job->width : length;
}

/* The row's result as positions in the row. */
static enum ctl_exit to_positions(struct select_verifier *verifier, uint32_t row, int32_t length,
                                  const int32_t *indices)
{
    const struct select_job *job = verifier->job;
    uint32_t num_pages = 0;
    if (job->page_table.map != NULL) {
        uint32_t twice = 0;
        uint32_t page_size = 1u << job->options->page_size_log2;
        num_pages = ((uint32_t)length + page_size - 1) / page_size;
        if (!sort_pages(verifier, row, num_pages, &twice)) {
            return report_failure(
                job->options, CTL_EXIT_FAILED,
                "row %u: page %u stands twice in its page table, so its positions "
                "cannot be told apart; --verify needs distinct pages",
                row, twice);
        }
    }
    int32_t offset =
        job->row_offsets.map == NULL ? 0 : ((const int32_t *)job->row_offsets.view.data)[row];
    for (uint32_t j = 0; j < job->k; j++) {
        verifier->positions[j] = (int32_t)j < length
                                     ? untransform(verifier, num_pages, indices[j], offset)
                                     : indices[j]; /* must be -1, untransformed */
    }
    return CTL_EXIT_OK;
}

/* The scores of a row as float32: in the file, or widened. */
static const float *scores_of(struct select_verifier *verifier, uint32_t row)
{
    const struct select_job *job = verifier->job;
    if (job->dtype == TOPK_DTYPE_FLOAT32) {
        return (const float *)job->scores.view.data + (size_t)row * job->width;
    }
    const uint16_t *halves = (const uint16_t *)job->scores.view.data + (size_t)row * job->width;
    if (job->dtype == TOPK_DTYPE_FLOAT16) {
        float16_widen(halves, job->width, verifier->widened);
        return verifier->widened;
    }
    for (uint32_t i = 0; i < job->width; i++) {
        uint32_t image = (uint32_t)halves[i] << 16; /* what a bfloat16 is */
        memcpy(&verifier->widened[i], &image, sizeof(image));
    }
    return verifier->widened;
}

enum ctl_exit select_verify(struct select_verifier *verifier, const struct select_block *block)
{
    const struct select_job *job = verifier->job;
    for (uint32_t i = 0; i < block->num_rows; i++) {
        uint32_t row = block->first_row + i;
        const int32_t *indices = block->indices + (size_t)i * job->k;
        const struct row_check check = {
            .scores = scores_of(verifier, row),
            .width = (int32_t)job->width,
            .length = length_of(job, row),
            .k = (int32_t)job->k,
            .index_ascending = job->options->order == TOPK_ORDER_INDEX,
            .value_descending = job->options->order == TOPK_ORDER_VALUE,
            .ties_lowest = job->options->ties == TOPK_TIES_LOWEST,
        };
        enum ctl_exit code = to_positions(verifier, row, check.length, indices);
        if (code != CTL_EXIT_OK) {
            return code;
        }
        char detail[ROW_CHECK_DETAIL_SIZE];
        const float *values = block->values == NULL ? NULL : block->values + (size_t)i * job->k;
        if (!row_check(&check, verifier->positions, values, verifier->marks, detail)) {
            return report_failure(job->options, CTL_EXIT_NOT_EXACT, "row %u is wrong: %s", row,
                                  detail);
        }
    }
    return CTL_EXIT_OK;
}
