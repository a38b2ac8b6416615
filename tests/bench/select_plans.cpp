/* The plans of a cell, and what of a plan may be changed; see select_cells.hpp. */
#include "select_cells.hpp"

#include "plan/policy.h"

#include <algorithm>

/* Parameters that may be changed; not the stages: shared memory depends on them. */
static const struct {
    const char *name;
    int parameter;
} open_parameters[] = {
    {"programmatic", TOPK_PARAMETER_PROGRAMMATIC}, {"margin", TOPK_PARAMETER_MARGIN},
    {"sample_min", TOPK_PARAMETER_SAMPLE_MIN},     {"sample_max", TOPK_PARAMETER_SAMPLE_MAX},
    {"part_scores", TOPK_PARAMETER_PART_SCORES},   {"snap", TOPK_PARAMETER_SNAP},
    {"prefetch", TOPK_PARAMETER_PREFETCH},
};

bool plan_override_known(const std::string &field)
{
    for (const auto &one : open_parameters) {
        if (field == one.name) {
            return true;
        }
    }
    return field == "sample_stride" || field == "blocks";
}

/* No more blocks than the workspace was made for, and whole clusters. */
static bool blocks_possible(const struct topk_plan &plan, long blocks)
{
    return blocks > 0 && blocks <= plan.num_blocks && blocks % plan.cluster_blocks == 0;
}

bool plan_override_apply(struct topk_plan &plan, const plan_override &change)
{
    for (const auto &one : open_parameters) {
        if (change.first == one.name) {
            plan.parameters[one.parameter] = change.second;
            return true;
        }
    }
    if (change.first == "sample_stride" && plan.sample_stride > 0 && change.second > 0) {
        plan.sample_stride = (int32_t)change.second;
        return true;
    }
    if (change.first == "blocks" && blocks_possible(plan, change.second)) {
        plan.num_blocks = (int32_t)change.second;
        return true;
    }
    return false;
}

static std::string override_name(const plan_override &change)
{
    return change.first + "=" + std::to_string(change.second);
}

/* Adds a plan with the overrides of all cells; none when the family does not serve the shape. */
static void add_plan(const cell_settings &settings, const struct topk_device &device,
                     const struct topk_shape &shape, plan_choice choice,
                     std::vector<named_plan> &plans)
{
    named_plan one;
    enum topk_status status =
        choice.family < 0 ? topk_plan_make(&shape, &device, &one.plan, nullptr)
                          : topk_plan_make_family(&shape, &device, (enum topk_family)choice.family,
                                                  choice.variant, &one.plan, nullptr);
    if (status != TOPK_OK) {
        return;
    }
    if (choice.family >= 0) {
        one.variant =
            std::string(topk_family_name(one.plan.family)) + ":" + std::to_string(one.plan.variant);
    }
    for (const plan_override &change : settings.overrides) {
        if (!plan_override_apply(one.plan, change)) {
            return;
        }
        one.variant += (one.variant.empty() ? "" : "+") + override_name(change);
    }
    plans.push_back(one);
}

std::vector<named_plan> cell_plans(const cell_settings &settings, const struct topk_device &device,
                                   const cell_wanted &wanted)
{
    const long stride = wanted.shape.width + (long)settings.pad;
    const long row_bytes = stride * topk_dtype_bytes(settings.options.dtype);
    const int alignment_bytes = (int)std::min(16l, row_bytes & -row_bytes); /* the base has 256 */
    const struct topk_shape shape = {wanted.k, wanted.shape.rows, wanted.shape.width,
                                     alignment_bytes, settings.options};
    std::vector<named_plan> plans;
    for (const plan_choice &choice : settings.plans) {
        add_plan(settings, device, shape, choice, plans);
    }
    if (settings.variants) {
        const int policies_max = 64; /* of a family; beyond the last the planner refuses */
        for (int family = TOPK_FAMILY_PLAIN + 1; family < TOPK_FAMILY_COUNT; family++) {
            for (int variant = 0; variant < policies_max; variant++) {
                add_plan(settings, device, shape, {family, variant}, plans);
            }
        }
    }
    const size_t given =
        settings.plans.size() < plans.size() ? settings.plans.size() : plans.size();
    for (size_t i = 0; i < given; i++) {
        for (const plan_override &change : settings.sweep) {
            named_plan changed = plans[i];
            if (plan_override_apply(changed.plan, change)) {
                changed.variant += (changed.variant.empty() ? "" : "+") + override_name(change);
                plans.push_back(changed);
            }
        }
    }
    return plans;
}
