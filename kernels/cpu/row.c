#include "cpu/row.h"

#include <math.h>

#include "cpu/cut.h"
#include "cpu/key.h"
#include "cpu/propose.h"

/* After each segment of a pass, a share of the next row's sample is asked for. Choice: long enough
 * for its cost to vanish, and four or so lines of memory at once. */
#define SEGMENT_SCORES 4096

#define NAN_SCORES 256 /* choice: looked at together for NaN; a kilobyte of stack */

/* Rows up to here, and up to one and a half times K, are taken whole: a sample would not pay.
 * Measured, Zen 3, K 64 ... 2048. */
#define DIRECT_SCORES_MAX 1024

struct topk_row topk_row_of(const struct topk_request *request, int32_t row_idx)
{
    struct topk_row row = {request->args.scores, request->options.dtype};
    row.scores = topk_score_place(row, (int64_t)row_idx * request->args.row_stride);
    return row;
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
 * k-th best. Keeps what reaches it, or where one score alone fills the list, its first ties. From
 * now on only better scores are admitted: an equal one stands behind k that are as good.
 */
static void raise_boundary(const struct topk_isa *isa, struct topk_list *list, int32_t k)
{
    int32_t count_max = k + (list->capacity - k) / 4; /* choice: near enough to leave much room */
    struct topk_cut cut = topk_cut_find(isa, list->values, list->count, k, count_max);
    isa->keep(list, cut.bound, cut.num_ties);
    list->boundary = topk_next_above(cut.bound);
}

bool topk_admit(const struct topk_isa *isa, struct topk_row row, int32_t begin, int32_t end,
                int32_t k, struct topk_list *list)
{
    bool raised = false;
    while ((begin = isa->read[row.dtype].admit(row.scores, begin, end, list)) < end) {
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

/* The row in hand. */
struct row_work {
    const struct topk_request *request;
    struct topk_row row;
    int32_t row_idx, length;
    struct topk_scratch *scratch;
    struct topk_routes *routes;
    struct topk_ahead ahead; /* the row after it */
};

/* One whole pass with a boundary, starting from an empty list. True when it was raised. */
static bool pass(struct row_work *work, float boundary)
{
    struct topk_list *list = &work->scratch->list;
    bool raised = false;
    list->count = 0;
    list->boundary = boundary;
    work->routes->scores_read += (uint64_t)work->length;
    for (int32_t begin = 0; begin < work->length;) {
        int32_t left = work->length - begin;
        int32_t end = left > SEGMENT_SCORES ? begin + SEGMENT_SCORES : work->length;
        raised |=
            topk_admit(work->request->isa, work->row, begin, end, work->request->args.k, list);
        topk_ahead_fetch(&work->ahead, end - begin);
        begin = end;
    }
    return raised;
}

/* Every number of the row is in the list and they are fewer than k: the first NaN fill it. */
static void fill_with_nans(const struct row_work *work)
{
    struct topk_scratch *scratch = work->scratch;
    struct topk_list *list = &scratch->list;
    const int32_t wanted = work->request->args.k - list->count;
    int32_t num_nans = 0, i = 0;
    while (i < work->length && num_nans < wanted) {
        float values[NAN_SCORES];
        int32_t left = work->length - i, end = left > NAN_SCORES ? i + NAN_SCORES : work->length;
        work->request->isa->read[work->row.dtype].widen(work->row.scores, i, end, values);
        for (const float *value = values; i < end && num_nans < wanted; i++, value++) {
            if (isnan(*value)) {
                scratch->spare_values[num_nans] = *value;
                scratch->spare_positions[num_nans++] = i;
            }
        }
    }
    work->routes->scores_read += (uint64_t)i;
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
static void copy_row(const struct topk_isa *isa, struct topk_row row, int32_t length,
                     struct topk_list *list)
{
    isa->read[row.dtype].widen(row.scores, 0, length, list->values);
    for (int32_t i = 0; i < length; i++) {
        list->positions[i] = i;
    }
    list->count = length;
}

static bool takes_sample(int32_t length, int32_t k)
{
    return length > DIRECT_SCORES_MAX && length > k + k / 2;
}

/* Admits at least k candidates of a row with more than k scores, by the cheapest way that works. */
static void admit_row(struct row_work *work)
{
    const struct topk_list *list = &work->scratch->list;
    const struct topk_isa *isa = work->request->isa;
    struct topk_routes *routes = work->routes;
    int32_t k = work->request->args.k;
    if (!takes_sample(work->length, k)) {
        pass(work, -INFINITY);
        routes->direct++;
        return;
    }
    struct topk_proposal proposal =
        topk_propose(isa, work->row, work->length, work->row_idx, k, work->scratch->spare_values);
    float boundary = topk_proposal_boundary(isa, &proposal, TOPK_DEPTH_FIRST);
    routes->scores_read += (uint64_t)proposal.num_sampled;
    bool raised = pass(work, boundary);
    if (list->count >= k || boundary == -INFINITY) {
        routes->certified += raised ? 0 : 1;
        routes->spill += raised ? 1 : 0;
        return;
    }
    boundary = topk_proposal_boundary(isa, &proposal, TOPK_DEPTH_SECOND);
    pass(work, boundary);
    if (list->count >= k || boundary == -INFINITY) {
        routes->band++;
        return;
    }
    pass(work, -INFINITY);
    routes->recovery++;
}

/* What is needed to ask for the sample of the next row ahead, if there is one that takes one. */
static struct topk_ahead ahead_of(const struct topk_request *request, int32_t row_idx)
{
    struct topk_routes ignored = {0};
    if (row_idx < 0) {
        return (struct topk_ahead){0};
    }
    int32_t length = topk_row_length(request, row_idx, &ignored);
    if (!takes_sample(length, request->args.k)) {
        return (struct topk_ahead){0};
    }
    return topk_ahead_of(topk_row_of(request, row_idx), length, row_idx);
}

void topk_row_select(const struct topk_request *request, int32_t row_idx, int32_t next_idx,
                     struct topk_scratch *scratch, struct topk_routes *routes)
{
    struct row_work work = {
        .request = request,
        .row = topk_row_of(request, row_idx),
        .row_idx = row_idx,
        .length = topk_row_length(request, row_idx, routes),
        .scratch = scratch,
        .routes = routes,
        .ahead = ahead_of(request, next_idx),
    };
    struct topk_list *list = &scratch->list;
    int32_t k = request->args.k;
    list->capacity = topk_list_capacity(k);
    if (work.length <= k) {
        copy_row(request->isa, work.row, work.length, list);
        routes->copied++;
        routes->scores_read += (uint64_t)work.length;
    } else {
        admit_row(&work);
        if (list->count < k) {
            fill_with_nans(&work);
        }
        topk_refine(request->isa, list, k);
    }
    topk_row_write(request, row_idx, list, scratch);
}
