/*
 * The planner: which kernel family, with which policy, serves a shape on a device. Pure: nothing
 * but its arguments is read, so that a captured graph's plan can be made again anywhere.
 */
#include "plan/check.h"
#include "plan/family.h"
#include "plan/policy.h"

#include "cpu/detail.h"

#include <stdio.h>
#include <string.h>

struct row_policy {
    int32_t threads, scores, blocks, quarter_rows, k_max;
};

static const struct row_policy row_policies[] = {
#define ROW_POLICY(threads, scores, blocks, early, quick, rows, k)                                 \
    {threads, scores, blocks, rows, k},
    TOPK_ROW_POLICIES(ROW_POLICY)};

static const struct row_policy half_short_policies[] = {TOPK_HALF_SHORT_POLICIES(ROW_POLICY)
#undef ROW_POLICY
};

static const struct row_policy half_policies[] = {
#define HALF_POLICY(threads, scores, blocks, rows) {threads, scores, blocks, rows, 0},
    TOPK_HALF_POLICIES(HALF_POLICY)
#undef HALF_POLICY
};

/* Policies of the row family, numbered from `first_variant` on. */
struct row_table {
    const struct row_policy *policies;
    int32_t count, first_variant;
};

static const struct row_table row_table = {row_policies, COUNT(row_policies), 0};
static const struct row_table half_table = {half_policies, COUNT(half_policies), 0};
static const struct row_table half_short_table = {half_short_policies, COUNT(half_short_policies),
                                                  COUNT(half_policies)};

struct stream_policy {
    int32_t finish_warps, scan_warps, candidates, buffers;
};

static const struct stream_policy stream_policies[] = {
#define STREAM_POLICY(finish, scan, candidates, buffers) {finish, scan, candidates, buffers},
    TOPK_STREAM_POLICIES(STREAM_POLICY)
#undef STREAM_POLICY
};

const char *topk_family_name(enum topk_family family)
{
    static const char *const names[] = {
#define FAMILY_NAME(name, short_name, text) short_name,
        TOPK_FAMILY_TABLE(FAMILY_NAME)
#undef FAMILY_NAME
    };
    return (unsigned)family < (unsigned)TOPK_FAMILY_COUNT ? names[family] : "unknown";
}

void topk_plan_begin(const struct topk_shape *shape, const struct topk_device *device,
                     enum topk_family family, struct topk_plan *plan)
{
    memset(plan, 0, sizeof(*plan)); /* padding too: plans are compared with memcmp */
    plan->shape.k = shape->k;
    plan->shape.rows = shape->rows;
    plan->shape.width = shape->width;
    plan->shape.alignment_bytes = shape->alignment_bytes;
    plan->shape.options.order = shape->options.order;
    plan->shape.options.ties = shape->options.ties;
    plan->shape.options.dtype = shape->options.dtype;
    plan->family = family;
    plan->cluster_blocks = 1;
    plan->workspace_bytes = 256; /* never 0: a caller may treat 0 as a failed question */
    plan->parameters[TOPK_PARAMETER_PROGRAMMATIC] = has_bulk_copies(device) ? 1 : 0;
}

/* ---- one function a family: see plan/family.h --------------------------------------------------
 */

static bool plan_plain(const struct topk_shape *shape, const struct topk_device *device,
                       struct topk_plan *plan)
{
    topk_plan_begin(shape, device, TOPK_FAMILY_PLAIN, plan);
    int64_t blocks = (int64_t)device->num_multiprocessors * TOPK_PLAIN_BLOCKS;
    int64_t sort = sort_bytes(shape);
    if (sort > 0) {
        blocks = min_i64(blocks, max_i64(1, WORKSPACE_MAX_BYTES / sort));
    }
    plan->num_blocks = (int32_t)min_i64(blocks, shape->rows);
    plan->threads = TOPK_PLAIN_THREADS;
    plan->workspace_bytes = max_i64(256, sort * plan->num_blocks);
    return true;
}

/* Whether a policy is meant for so many rows and so large a K. */
static bool row_policy_meant(const struct row_policy *policy, const struct topk_shape *shape,
                             const struct topk_device *device)
{
    int64_t rows_max = (int64_t)policy->quarter_rows * device->num_multiprocessors / 4;
    return (policy->quarter_rows == 0 || shape->rows <= rows_max) &&
           (policy->k_max == 0 || shape->k <= policy->k_max);
}

/* The policy of a table that is asked for, or (variant of -1) meant for a shape and device; NULL
 * where it does not hold `width` scores. */
static const struct row_policy *row_policy_of(const struct row_table *table, int64_t width,
                                              const struct topk_shape *shape,
                                              const struct topk_device *device, int32_t variant)
{
    for (int32_t i = 0; shape->k <= (int32_t)TOPK_K_FAST_MAX && i < table->count; i++) {
        const struct row_policy *policy = &table->policies[i];
        bool right = variant < 0 ? row_policy_meant(policy, shape, device)
                                 : variant == table->first_variant + i;
        if (right && policy->threads * policy->scores >= width) {
            return policy;
        }
    }
    return NULL;
}

/* A row in shared memory. If it is not aligned to 16 bytes it begins within such a group. */
static bool plan_row_half(const struct topk_shape *shape, const struct topk_device *device,
                          int32_t variant, struct topk_plan *plan)
{
    int64_t before_max = shape->alignment_bytes >= 16 ? 0 : 16 / 2 - 1;
    const struct row_policy *policy =
        row_policy_of(&half_table, shape->width + before_max, shape, device, variant);
    if (policy == NULL) {
        return false;
    }
    int64_t shared =
        TOPK_HALF_STATE_BYTES + policy->threads * policy->scores * 2 + sort_bytes(shape);
    if (shared > device->shared_bytes_per_block) {
        return false;
    }
    int64_t blocks = min_i64(policy->blocks, max_i64(1, device->shared_bytes_per_multiprocessor /
                                                            (shared + SHARED_RESERVED_BYTES)));
    topk_plan_begin(shape, device, TOPK_FAMILY_ROW, plan);
    plan->variant = (int32_t)(policy - half_table.policies);
    plan->threads = policy->threads;
    plan->num_blocks = (int32_t)min_i64(shape->rows, device->num_multiprocessors * blocks);
    plan->shared_bytes = shared;
    plan->parameters[TOPK_PARAMETER_MARGIN] = 4 * 16;
    return true;
}

static bool plan_row_registers(const struct row_table *table, const struct topk_shape *shape,
                               const struct topk_device *device, int32_t variant,
                               struct topk_plan *plan)
{
    const struct row_policy *policy = row_policy_of(table, shape->width, shape, device, variant);
    if (policy == NULL) {
        return false;
    }
    topk_plan_begin(shape, device, TOPK_FAMILY_ROW, plan);
    plan->variant = table->first_variant + (int32_t)(policy - table->policies);
    plan->threads = policy->threads;
    plan->num_blocks =
        (int32_t)min_i64(shape->rows, (int64_t)device->num_multiprocessors * policy->blocks);
    plan->shared_bytes = sort_bytes(shape);
    plan->parameters[TOPK_PARAMETER_MARGIN] = 6 * 16; /* a miss costs three more histograms */
    plan->parameters[TOPK_PARAMETER_PREFETCH] = has_bulk_copies(device) ? 1 : 0;
    return true;
}

/* Scores of 16 bits: the short way where it is meant for a shape, else a row in shared memory. */
static bool plan_row(const struct topk_shape *shape, const struct topk_device *device,
                     int32_t variant, struct topk_plan *plan)
{
    if (is_float32(shape)) {
        return plan_row_registers(&row_table, shape, device, variant, plan);
    }
    return plan_row_registers(&half_short_table, shape, device, variant, plan) ||
           plan_row_half(shape, device, variant, plan);
}

static int64_t stream_fixed_bytes(const struct stream_policy *policy)
{
    int64_t histograms = 3ll * TOPK_BINS * (int64_t)sizeof(uint32_t);
    return policy->buffers * policy->candidates * 8ll + histograms + TOPK_STREAM_MISC_BYTES;
}

/*
 * Stages of the ring; 0 when too few fit. Each group of warps keeps to its own stages: their number
 * is a multiple of the groups.
 */
static int64_t stream_stages(const struct stream_policy *policy, const struct topk_device *device,
                             int64_t score_bytes)
{
    const int64_t stage_warps = TOPK_STAGE_BYTES / score_bytes / TOPK_CHUNK_SCORES;
    int64_t groups = policy->scan_warps / stage_warps;
    int64_t free_bytes = device->shared_bytes_per_block - stream_fixed_bytes(policy);
    int64_t stages = min_i64(free_bytes / TOPK_STAGE_BYTES, TOPK_STAGES_MAX);
    return stages < groups ? 0 : stages - stages % groups;
}

static int64_t stream_workspace_bytes(const struct stream_policy *policy, int64_t blocks)
{
    int64_t header = round_up(blocks * 4, 256) + round_up(2 * blocks * 8, 256);
    return header + 2 * blocks * policy->candidates * 8;
}

static bool plan_stream(const struct topk_shape *shape, const struct topk_device *device,
                        enum topk_family family, int32_t variant, struct topk_plan *plan)
{
    if (!has_bulk_copies(device) || shape->k > (int32_t)TOPK_K_FAST_MAX) {
        return false;
    }
    const int64_t score_bytes = topk_dtype_bytes(shape->options.dtype);
    bool choosing = variant < 0;
    variant = choosing ? 0 : variant;
    while (choosing && variant < COUNT(stream_policies) &&
           stream_stages(&stream_policies[variant], device, score_bytes) == 0) {
        variant++; /* a smaller device */
    }
    if (variant >= COUNT(stream_policies)) {
        return false;
    }
    const struct stream_policy *policy = &stream_policies[variant];
    int64_t stages = stream_stages(policy, device, score_bytes);
    if (stages == 0) {
        return false;
    }
    int64_t blocks = min_i64(device->num_multiprocessors, TOPK_STREAM_BLOCKS_MAX);
    while (stream_workspace_bytes(policy, blocks) > WORKSPACE_MAX_BYTES) {
        blocks--;
    }
    topk_plan_begin(shape, device, family, plan);
    plan->variant = variant;
    plan->num_blocks = (int32_t)blocks;
    plan->threads = 32 * (policy->finish_warps + policy->scan_warps + TOPK_STREAM_SAMPLE_WARPS + 1);
    plan->tile_scores = (int32_t)(TOPK_STAGE_BYTES / score_bytes);
    plan->sample_stride = 32;
    plan->shared_bytes = stream_fixed_bytes(policy) + stages * TOPK_STAGE_BYTES;
    plan->workspace_bytes = stream_workspace_bytes(policy, blocks);
    plan->parameters[TOPK_PARAMETER_STAGES] = stages;
    plan->parameters[TOPK_PARAMETER_MARGIN] =
        4 * 16 + 4; /* H200: at 4 * 16 one of 512 rows is read twice */
    plan->parameters[TOPK_PARAMETER_SAMPLE_MIN] = 2048;
    int64_t sample_max = TOPK_STREAM_SAMPLE_MAX;
    plan->parameters[TOPK_PARAMETER_SAMPLE_MAX] =
        shape->width <= TOPK_CLUSTER_WIDTH_MAX ? sample_max : 2 * sample_max;
    plan->parameters[TOPK_PARAMETER_PART_SCORES] = (32 << 10) / score_bytes;
    plan->parameters[TOPK_PARAMETER_SNAP] = (512 << 10) / score_bytes;
    return true;
}

/* ---- the choice -------------------------------------------------------------------------------
 */

enum topk_status topk_plan_make(const struct topk_shape *shape, const struct topk_device *device,
                                struct topk_plan *plan_p, char *detail)
{
    enum topk_status status = topk_plan_check(shape, device, plan_p, detail);
    if (status != TOPK_OK) {
        return status;
    }
    struct topk_plan plan;
    bool split = shape->rows <= device->num_multiprocessors;
    bool clustered =
        shape->width > TOPK_CLUSTER_WIDTH_ABOVE && shape->width <= TOPK_CLUSTER_WIDTH_MAX;
    bool planned =
        topk_plan_wide(shape, device, -1, &plan) ||
        (clustered && topk_plan_cluster(shape, device, -1, &plan)) ||
        plan_row(shape, device, -1, &plan) ||
        plan_stream(shape, device, split ? TOPK_FAMILY_SPLIT : TOPK_FAMILY_TILES, -1, &plan) ||
        plan_plain(shape, device, &plan);
    if (!planned) {
        return topk_detail(detail, TOPK_E_UNSUPPORTED, "no family serves k %d, width %d", shape->k,
                           shape->width);
    }
    *plan_p = plan;
    return TOPK_OK;
}

enum topk_status topk_plan_make_family(const struct topk_shape *shape,
                                       const struct topk_device *device, enum topk_family family,
                                       int32_t variant, struct topk_plan *plan_p, char *detail)
{
    enum topk_status status = topk_plan_check(shape, device, plan_p, detail);
    if (status != TOPK_OK) {
        return status;
    }
    struct topk_plan plan;
    bool planned = false;
    switch (family) {
    case TOPK_FAMILY_PLAIN:
        planned = variant < 1 && plan_plain(shape, device, &plan);
        break;
    case TOPK_FAMILY_ROW:
        planned = plan_row(shape, device, variant, &plan);
        break;
    case TOPK_FAMILY_TILES:
    case TOPK_FAMILY_SPLIT:
        planned = plan_stream(shape, device, family, variant, &plan);
        break;
    case TOPK_FAMILY_CLUSTER:
        planned = topk_plan_cluster(shape, device, variant, &plan);
        break;
    case TOPK_FAMILY_WIDE:
        planned = topk_plan_wide(shape, device, variant, &plan);
        break;
    default:
        break;
    }
    if (!planned) {
        return topk_detail(detail, TOPK_E_UNSUPPORTED,
                           "family %s (variant %d) does not serve k %d, width %d of %s on compute "
                           "capability %d.%d; let topk_plan_make choose",
                           topk_family_name(family), variant, shape->k, shape->width,
                           topk_dtype_name(shape->options.dtype), device->compute_major,
                           device->compute_minor);
    }
    *plan_p = plan;
    return TOPK_OK;
}

void topk_plan_describe(const struct topk_plan *plan, char *text, size_t text_size)
{
    if (text_size == 0) {
        return;
    }
    snprintf(text, text_size,
             "family=%s variant=%d blocks=%d cluster=%d threads=%d shared_bytes=%lld "
             "workspace_bytes=%lld stages=%lld sample=1/%d rows=%d width=%d k=%d dtype=%s",
             topk_family_name(plan->family), plan->variant, plan->num_blocks, plan->cluster_blocks,
             plan->threads, (long long)plan->shared_bytes, (long long)plan->workspace_bytes,
             (long long)plan->parameters[TOPK_PARAMETER_STAGES], plan->sample_stride,
             plan->shape.rows, plan->shape.width, plan->shape.k,
             topk_dtype_name(plan->shape.options.dtype));
}
