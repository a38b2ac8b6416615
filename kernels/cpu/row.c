#include "cpu/row.h"

#include <math.h>
#include <string.h>

#include "cpu/cut.h"
#include "cpu/key.h"
#include "cpu/propose.h"

const float *topk_row_scores(const struct topk_request *request, int32_t row_idx)
{
    return request->args.scores + (int64_t)row_idx * request->args.row_stride;
}

int32_t topk_row_length(const struct topk_request *request, int32_t row_idx,
                        struct topk_routes *routes)
{
    const struct topk_args *args = &request->args;
    int32_t length = args->length_all;
    if (args->lengths != NULL) {
        length = __atomic_load_n(&args->lengths[row_idx], __ATOMIC_RELAXED);
    }
    if (length < 0 || length > args->width) {
        routes->clamped++;
        length = length < 0 ? 0 : args->width;
    }
    return length;
}

/*
 * The list is full: the score that k stored ones reach is proven to be a lower bound of the row's
 * k-th best. Keeps what reaches it and admits only such from now on. Where one score alone fills
 * the list, its first ties are enough, and from now on only better ones are.
 */
static void raise_boundary(const struct topk_isa *isa, struct topk_list *list, int32_t k)
{
    int32_t count_max = k + (list->capacity - k) / 4; /* choice: near enough to leave much room */
    struct topk_cut cut = topk_cut_find(isa, list->values, list->count, k, count_max);
    isa->keep(list, cut.bound, cut.num_ties);
    list->boundary = cut.num_ties == INT32_MAX ? cut.bound : topk_next_above(cut.bound);
}

bool topk_admit(const struct topk_isa *isa, const float *row, int32_t begin, int32_t end, int32_t k,
                struct topk_list *list)
{
    bool raised = false;
    while ((begin = isa->admit(row, begin, end, list)) < end) {
        raise_boundary(isa, list, k);
        raised = true;
    }
    return raised;
}

void topk_refine(const struct topk_isa *isa, struct topk_list *list, int32_t k)
{
    if (list->count > k) {
        struct topk_cut cut = topk_cut_find(isa, list->values, list->count, k, k);
        isa->keep(list, cut.bound, cut.num_ties);
    }
}

/* One whole pass with a boundary, starting from an empty list. */
static bool pass(const struct topk_request *request, const float *row, int32_t length,
                 float boundary, struct topk_list *list, struct topk_routes *routes)
{
    list->count = 0;
    list->boundary = boundary;
    routes->scores_read += (uint64_t)length;
    return topk_admit(request->isa, row, 0, length, request->args.k, list);
}

/* Every number of the row is in the list and they are fewer than k: the first NaN fill it. */
static void fill_with_nans(const float *row, int32_t length, int32_t k,
                           struct topk_scratch *scratch, struct topk_routes *routes)
{
    struct topk_list *list = &scratch->list;
    int32_t num_nans = 0, i = 0;
    for (; i < length && num_nans < k - list->count; i++) {
        float value = row[i];
        if (isnan(value)) {
            scratch->spare_values[num_nans] = value;
            scratch->spare_positions[num_nans++] = i;
        }
    }
    routes->scores_read += (uint64_t)i;
    /* Both lists ascend: merge them from the end, into the room behind the first. */
    int32_t from = list->count, nan = num_nans;
    list->count += num_nans;
    for (int32_t to = list->count; nan > 0;) {
        if (from > 0 && list->positions[from - 1] > scratch->spare_positions[nan - 1]) {
            from--;
            list->values[--to] = list->values[from];
            list->positions[to] = list->positions[from];
        } else {
            nan--;
            list->values[--to] = scratch->spare_values[nan];
            list->positions[to] = scratch->spare_positions[nan];
        }
    }
}

/* Length <= k: every position is selected. */
static void copy_row(const float *row, int32_t length, struct topk_list *list)
{
    for (int32_t i = 0; i < length; i++) {
        list->values[i] = row[i];
        list->positions[i] = i;
    }
    list->count = length;
}

/* Admits at least k candidates of a row with more than k scores, by the cheapest way that works. */
static void admit_row(const struct topk_request *request, const float *row, int32_t row_idx,
                      int32_t length, struct topk_scratch *scratch, struct topk_routes *routes)
{
    struct topk_list *list = &scratch->list;
    int32_t k = request->args.k;
    if (length <= list->capacity) {
        pass(request, row, length, -INFINITY, list, routes);
        routes->direct++;
        return;
    }
    struct topk_proposal proposal = topk_propose(row, length, row_idx, k, scratch->spare_values);
    float boundary = topk_proposal_boundary(request->isa, &proposal, TOPK_DEPTH_FIRST);
    routes->scores_read += (uint64_t)proposal.num_sampled;
    bool raised = pass(request, row, length, boundary, list, routes);
    if (list->count >= k || boundary == -INFINITY) {
        routes->certified += raised ? 0 : 1;
        routes->spill += raised ? 1 : 0;
        return;
    }
    boundary = topk_proposal_boundary(request->isa, &proposal, TOPK_DEPTH_SECOND);
    pass(request, row, length, boundary, list, routes);
    if (list->count >= k || boundary == -INFINITY) {
        routes->band++;
        return;
    }
    pass(request, row, length, -INFINITY, list, routes);
    routes->recovery++;
}

void topk_row_select(const struct topk_request *request, int32_t row_idx,
                     struct topk_scratch *scratch, struct topk_routes *routes)
{
    struct topk_list *list = &scratch->list;
    int32_t k = request->args.k;
    int32_t length = topk_row_length(request, row_idx, routes);
    const float *row = topk_row_scores(request, row_idx);
    list->capacity = topk_list_capacity(k);
    if (length <= k) {
        copy_row(row, length, list);
        routes->copied++;
        routes->scores_read += (uint64_t)length;
    } else {
        admit_row(request, row, row_idx, length, scratch, routes);
        if (list->count < k) {
            fill_with_nans(row, length, k, scratch, routes);
        }
        topk_refine(request->isa, list, k);
    }
    topk_row_write(request, row_idx, list, scratch);
}
