#include "cpu/split.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/propose.h"

/* Choice: the least that makes waking a thread (some 10 us) worth while for half of a row twice
 * this long (13 us a part at 20 GB/s). */
#define PART_SCORES_MIN 65536

/* A row of the request in hand. */
struct split_row {
    int32_t length; /* read once: every part cuts at the same places */
    int32_t num_parts;
    int32_t num_left; /* parts not finished; atomic */
    uint64_t clamped; /* 1 when the length had to be clamped */
};

/* What a finished part leaves in its slot beside the candidates. */
struct split_part {
    int32_t count;
    bool raised;
};

struct topk_split {
    bool taken; /* atomic */
    uint32_t num_slots;
    int32_t capacity; /* entries of a slot's list */
    const struct topk_request *request;
    int32_t num_parts;        /* slots a row */
    struct split_row *rows;   /* [num_slots], one for each row */
    struct split_part *parts; /* [num_slots] */
    float *values;            /* [num_slots][capacity + TOPK_LIST_SLACK] */
    int32_t *positions;       /* [num_slots][capacity + TOPK_LIST_SLACK] */
};

static size_t slot_entries(const struct topk_split *split)
{
    return (size_t)split->capacity + TOPK_LIST_SLACK;
}

struct topk_split *topk_split_create(uint32_t num_threads)
{
    struct topk_split *split = calloc(1, sizeof(*split));
    if (split == NULL) {
        return NULL;
    }
    split->num_slots = num_threads;
    split->capacity = topk_list_capacity((int32_t)TOPK_K_FAST_MAX);
    size_t num_entries = num_threads * slot_entries(split) + TOPK_LIST_SLACK; /* joined lists too */
    split->rows = calloc(num_threads, sizeof(*split->rows));
    split->parts = calloc(num_threads, sizeof(*split->parts));
    split->values = malloc(num_entries * sizeof(*split->values));
    split->positions = malloc(num_entries * sizeof(*split->positions));
    if (split->rows == NULL || split->parts == NULL || split->values == NULL ||
        split->positions == NULL) {
        topk_split_destroy(split);
        return NULL;
    }
    return split;
}

void topk_split_destroy(struct topk_split *split)
{
    if (split != NULL) {
        free(split->rows);
        free(split->parts);
        free(split->values);
        free(split->positions);
        free(split);
    }
}

static struct topk_list slot_list(const struct topk_split *split, int64_t slot)
{
    size_t first = (size_t)slot * slot_entries(split);
    return (struct topk_list){
        .values = split->values + first,
        .positions = split->positions + first,
        .count = 0,
        .capacity = split->capacity,
    };
}

static void work_on_part(const struct topk_split *split, int32_t row_idx, int32_t part,
                         struct topk_scratch *scratch, struct topk_routes *routes)
{
    const struct topk_request *request = split->request;
    const struct split_row *split_row = &split->rows[row_idx];
    struct topk_row row = topk_row_of(request, row_idx);
    int32_t k = request->args.k;
    int64_t length = split_row->length;
    int32_t begin = (int32_t)(length * part / split_row->num_parts);
    int32_t end = (int32_t)(length * (part + 1) / split_row->num_parts);
    int64_t slot = (int64_t)row_idx * split->num_parts + part;
    struct topk_list list = slot_list(split, slot);
    /* Each part takes the same sample: cheaper than waiting for one to take it. */
    struct topk_proposal proposal =
        topk_propose(request->isa, row, split_row->length, row_idx, k, scratch->spare_values);
    list.boundary = topk_proposal_boundary(request->isa, &proposal, TOPK_DEPTH_FIRST);
    bool raised = topk_admit(request->isa, row, begin, end, k, &list);
    split->parts[slot] = (struct split_part){list.count, raised};
    routes->scores_read += (uint64_t)(end - begin) + (uint64_t)proposal.num_sampled;
}

/* Moves the parts' candidates together, in the order of the row. */
static struct topk_list join_parts(const struct topk_split *split, int32_t row_idx, bool *raised_p)
{
    int64_t first_slot = (int64_t)row_idx * split->num_parts;
    struct topk_list joined = slot_list(split, first_slot);
    bool raised = false;
    for (int32_t p = 0; p < split->rows[row_idx].num_parts; p++) {
        struct topk_list list = slot_list(split, first_slot + p);
        struct split_part part = split->parts[first_slot + p];
        size_t size_bytes = (size_t)part.count * sizeof(float);
        memmove(joined.values + joined.count, list.values, size_bytes);
        memmove(joined.positions + joined.count, list.positions, size_bytes);
        joined.count += part.count;
        raised = raised || part.raised;
    }
    *raised_p = raised;
    return joined;
}

static void finish_row(const struct topk_split *split, int32_t row_idx,
                       struct topk_scratch *scratch, struct topk_routes *routes)
{
    const struct topk_request *request = split->request;
    struct topk_list list = {0};
    bool raised = false;
    if (split->rows[row_idx].num_parts > 1) {
        list = join_parts(split, row_idx, &raised);
    }
    if (list.count < request->args.k) { /* too short to be cut, or an underfill, which is rare */
        topk_row_select(request, row_idx, -1, scratch, routes);
        return;
    }
    routes->certified += raised ? 0 : 1;
    routes->spill += raised ? 1 : 0;
    routes->clamped += split->rows[row_idx].clamped;
    topk_refine(request->isa, &list, request->args.k);
    topk_row_write(request, row_idx, &list, scratch);
}

static void run_part(void *context, int64_t item, int64_t next_item, struct topk_scratch *scratch,
                     struct topk_routes *routes)
{
    (void)next_item;
    struct topk_split *split = context;
    int32_t row_idx = (int32_t)(item / split->num_parts);
    int32_t part = (int32_t)(item % split->num_parts);
    struct split_row *split_row = &split->rows[row_idx];
    if (split_row->num_parts > 1 && part < split_row->num_parts) {
        work_on_part(split, row_idx, part, scratch, routes);
    }
    if (__atomic_sub_fetch(&split_row->num_left, 1, __ATOMIC_ACQ_REL) == 0) {
        finish_row(split, row_idx, scratch, routes);
    }
}

/* How many parts each row of the request should have; below 2: not worth it. */
static int32_t parts_for(const struct topk_split *split, const struct topk_request *request)
{
    const struct topk_args *args = &request->args;
    int32_t num_slots = (int32_t)split->num_slots;
    if (args->k > (int32_t)TOPK_K_FAST_MAX || args->num_rows < 1 ||
        args->num_rows > num_slots / 2) {
        return 0;
    }
    int32_t by_threads = num_slots / args->num_rows, by_width = args->width / PART_SCORES_MIN;
    return by_threads < by_width ? by_threads : by_width;
}

bool topk_split_acquire(struct topk_split *split, const struct topk_request *request)
{
    return parts_for(split, request) >= 2 &&
           !__atomic_exchange_n(&split->taken, true, __ATOMIC_ACQUIRE);
}

enum topk_status topk_split_run(struct topk_split *split, const struct topk_request *request,
                                struct topk_pool *pool, const bool *cancel)
{
    const struct topk_args *args = &request->args;
    split->request = request;
    split->num_parts = parts_for(split, request);
    for (int32_t r = 0; r < args->num_rows; r++) {
        struct topk_routes clamps = {0}; /* counted where the row is finished */
        int32_t length = topk_row_length(request, r, &clamps);
        int32_t num_parts = length / PART_SCORES_MIN;
        num_parts = num_parts > split->num_parts ? split->num_parts : num_parts;
        split->rows[r] = (struct split_row){length, num_parts, split->num_parts, clamps.clamped};
    }
    struct topk_job job = {
        .run = run_part,
        .context = split,
        .num_items = (int64_t)args->num_rows * split->num_parts,
        .item_scores = args->width / split->num_parts,
        .k = args->k,
        .routes = args->routes,
        .cancel = cancel,
    };
    enum topk_status status = topk_pool_run(pool, &job);
    __atomic_store_n(&split->taken, false, __ATOMIC_RELEASE);
    return status;
}
