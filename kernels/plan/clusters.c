/*
 * clusters.c - the planner's families whose rows lie in clusters of blocks: `cluster` and `wide`.
 */
#include "plan/family.h"
#include "plan/policy.h"

struct cluster_policy {
    int32_t threads, blocks, cluster_blocks, clusters, rows; /* clusters a row */
};

static const struct cluster_policy cluster_policies[] = {
#define CLUSTER_POLICY(threads, blocks, cluster, rows) {threads, blocks, cluster, 1, rows},
#define SEVERAL_POLICY(threads, blocks, cluster, clusters, rows)                                   \
    {threads, blocks, cluster, clusters, rows},
    TOPK_CLUSTER_POLICIES(CLUSTER_POLICY) TOPK_CLUSTER_SEVERAL_POLICIES(SEVERAL_POLICY)
#undef CLUSTER_POLICY
#undef SEVERAL_POLICY
};

#define CLUSTER_POLICY(threads, blocks, cluster, rows) +1
static const int32_t num_one_cluster = TOPK_CLUSTER_POLICIES(CLUSTER_POLICY);
#undef CLUSTER_POLICY

struct wide_policy {
    int32_t threads, scores, cluster_blocks, rows, above, use;
};

static const struct wide_policy wide_policies[] = {
#define WIDE_POLICY(threads, scores, cluster, rows, above, use)                                    \
    {threads, scores, cluster, rows, above, use},
    TOPK_WIDE_POLICIES(WIDE_POLICY)
#undef WIDE_POLICY
};

/* The most blocks that the hardware starts as one cluster; 1: it has no clusters. */
static int32_t cluster_blocks_max(const struct topk_device *device)
{
    if (device->compute_major < 9) {
        return 1;
    }
    return device->compute_major < 12 ? TOPK_CLUSTER_BLOCKS_MAX : 8; /* 8: the portable size */
}

/* Where several clusters share a row they meet in the workspace, which has room for all rows: none
 * of a cluster's blocks goes on to another. */
static int64_t cluster_workspace_bytes(const struct cluster_policy *policy, int64_t rows)
{
    int64_t words = round_up(rows * 8, TOPK_CLUSTER_PART_ALIGN);
    return policy->clusters == 1 ? 256 : words + rows * policy->clusters * TOPK_CLUSTER_PART_BYTES;
}

/* Whether several clusters can share a row of this shape. */
static bool cluster_may_share(const struct topk_shape *shape)
{
    return is_float32(shape) && shape->width <= TOPK_CLUSTER_WIDTH_MAX;
}

/* Whether the device can start a policy's clusters, and (when `choosing`) enough for all rows,
 * whose slices are worth a block. */
static bool cluster_policy_serves(const struct cluster_policy *policy,
                                  const struct topk_shape *shape, const struct topk_device *device,
                                  bool choosing)
{
    int64_t rows_max = (int64_t)policy->rows * device->num_multiprocessors / TOPK_CLUSTER_ROWS_OF;
    int64_t slice_min =
        policy->clusters == 1 ? TOPK_CLUSTER_SLICE_MIN : TOPK_CLUSTER_PART_SLICE_MIN;
    int64_t width_min = (int64_t)policy->clusters * policy->cluster_blocks * slice_min;
    return policy->cluster_blocks <= cluster_blocks_max(device) &&
           policy->cluster_blocks <= device->num_multiprocessors &&
           (policy->clusters == 1 || cluster_may_share(shape)) &&
           cluster_workspace_bytes(policy, shape->rows) <= WORKSPACE_MAX_BYTES &&
           (!choosing || (shape->rows <= rows_max && shape->width >= width_min));
}

/* The policy for a shape, one of several clusters a row if it has one; past the last: none. */
static int32_t choose_cluster(const struct topk_shape *shape, const struct topk_device *device)
{
    for (int32_t n = 0; n < COUNT(cluster_policies); n++) {
        int32_t variant = (num_one_cluster + n) % COUNT(cluster_policies);
        if (cluster_policy_serves(&cluster_policies[variant], shape, device, true)) {
            return variant;
        }
    }
    return COUNT(cluster_policies);
}

/* A cluster a row; more rows than clusters are taken in turn. Or several, each taking a part. */
bool topk_plan_cluster(const struct topk_shape *shape, const struct topk_device *device,
                       int32_t variant, struct topk_plan *plan)
{
    variant = variant < 0 ? choose_cluster(shape, device) : variant;
    if (shape->k > (int32_t)TOPK_K_FAST_MAX || variant >= COUNT(cluster_policies) ||
        !cluster_policy_serves(&cluster_policies[variant], shape, device, false)) {
        return false;
    }
    const struct cluster_policy *policy = &cluster_policies[variant];
    int64_t clusters = max_i64(1, (int64_t)device->num_multiprocessors / policy->cluster_blocks);
    clusters = policy->clusters == 1 ? min_i64(shape->rows, clusters)
                                     : (int64_t)shape->rows * policy->clusters;
    const int64_t blocks = clusters * policy->cluster_blocks;
    /* No more stages than a slice has batches, but two: one is filled while one is read. And no
     * more than memory serves evenly, for a row waits for the block that is served last. */
    const int64_t batch_bytes = TOPK_CLUSTER_BATCH_BYTES;
    const int64_t batch = batch_bytes / (int64_t)topk_dtype_bytes(shape->options.dtype);
    int64_t shared = TOPK_CLUSTER_STATE_BYTES + sort_bytes(shape);
    int64_t stages = (device->shared_bytes_per_block - shared) / batch_bytes;
    int64_t slice = shape->width / (policy->cluster_blocks * policy->clusters);
    stages = min_i64(min_i64(stages, TOPK_CLUSTER_STAGES_MAX), max_i64(2, slice / batch + 1));
    if (stages < 2) {
        return false;
    }
    stages = min_i64(stages, max_i64(2, TOPK_CLUSTER_BATCHES_MAX / blocks));
    stages = min_i64(stages, policy->cluster_blocks > 4 ? TOPK_CLUSTER_STAGES_LARGE : stages);
    topk_plan_begin(shape, device, TOPK_FAMILY_CLUSTER, plan);
    plan->variant = variant;
    plan->cluster_blocks = policy->cluster_blocks;
    plan->num_blocks = (int32_t)blocks;
    plan->workspace_bytes = cluster_workspace_bytes(policy, shape->rows);
    plan->threads = policy->threads;
    plan->tile_scores = (int32_t)batch;
    plan->sample_stride = 64;
    plan->shared_bytes = shared + stages * batch_bytes;
    plan->parameters[TOPK_PARAMETER_STAGES] = stages;
    /* At 4 * 16, 9 of 1024 saw-tooth rows of 128K are read again; none here. */
    plan->parameters[TOPK_PARAMETER_MARGIN] = 4 * 16 + 4;
    plan->parameters[TOPK_PARAMETER_SAMPLE_MIN] = 2048;
    plan->parameters[TOPK_PARAMETER_SAMPLE_MAX] = TOPK_CLUSTER_SAMPLE_MAX;
    return true;
}

/* Whether a policy is for such results and holds the row, and (when `choosing`) is worth it and the
 * device starts clusters for all rows. */
static bool wide_policy_serves(const struct wide_policy *policy, const struct topk_shape *shape,
                               const struct topk_device *device, bool choosing)
{
    int64_t rows_max = (int64_t)policy->rows * device->num_multiprocessors / TOPK_CLUSTER_ROWS_OF;
    bool any_order = shape->options.order == TOPK_ORDER_ANY;
    bool meant = policy->use == TOPK_WIDE_ALL ||
                 (any_order && (policy->use == TOPK_WIDE_ANY_ORDER || is_float32(shape)));
    return meant && policy->cluster_blocks <= cluster_blocks_max(device) &&
           policy->cluster_blocks <= device->num_multiprocessors &&
           policy->threads * policy->scores * policy->cluster_blocks >= shape->width &&
           (!choosing || (shape->rows <= rows_max && shape->width > policy->above));
}

/* A cluster a row; results by value are for `cluster`, where one block has them all. */
bool topk_plan_wide(const struct topk_shape *shape, const struct topk_device *device,
                    int32_t variant, struct topk_plan *plan)
{
    bool choosing = variant < 0;
    variant = choosing ? 0 : variant;
    while (choosing && variant < COUNT(wide_policies) &&
           !wide_policy_serves(&wide_policies[variant], shape, device, true)) {
        variant++;
    }
    if (shape->k > (int32_t)TOPK_K_FAST_MAX || shape->options.order == TOPK_ORDER_VALUE ||
        variant >= COUNT(wide_policies) ||
        !wide_policy_serves(&wide_policies[variant], shape, device, false)) {
        return false;
    }
    const struct wide_policy *policy = &wide_policies[variant];
    int64_t clusters = max_i64(1, device->num_multiprocessors / policy->cluster_blocks);
    topk_plan_begin(shape, device, TOPK_FAMILY_WIDE, plan);
    plan->variant = variant;
    plan->threads = policy->threads;
    plan->cluster_blocks = policy->cluster_blocks;
    plan->num_blocks = (int32_t)min_i64(shape->rows, clusters) * policy->cluster_blocks;
    return true;
}
