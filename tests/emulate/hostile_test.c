/*
 * hostile_test - selections from memory that changes while it is read, on the model of a GPU: every
 * policy of every family in turn. Results are undefined then; but nothing may be read or written
 * out of range, what is written as a position is one, every launch ends, and a workspace that is
 * prepared anew selects exactly.
 *
 *   hostile_test [--cases N | --seconds N] [--first N] [--family NAME] [--help]
 *
 * --cases: so many from --first on (0), the same each time; --seconds: until so much time has
 * passed. TOPKD_TEST_SEED draws other cases. All memory of a request ends or begins at a page that
 * is not there; what the model or a sanitizer reports ends the program, and the report names the
 * case.
 *
 * Whether a selection is exact that finds the workspace as a hostile one left it is counted, not
 * judged: a caller prepares the workspace again before it serves another client.
 */
#include "cases.h"
#include "emulate.h"
#include "hostile.h"
#include "plan/policy.h"
#include "select_gpu.h"

#include <stdlib.h>

#define DRAWS_MAX 400 /* of a shape, until one is served */
#define CASE_MAX_S 60 /* computed; a case takes a tenth of a second to a few */
#define POLICY_STEP 5 /* a prime */

static const char usage[] =
    "hostile_test [--cases N | --seconds N] [--first N] [--family NAME] [--help]\n"
    "Selections from memory that changes while it is read, on the model of a GPU.\n" CASES_USAGE
    "TOPKD_TEST_SEED draws other cases; TOPKD_EMULATE_DEVICE chooses the device.\n";

/* Few rows and many, narrow and wide; where rows are to be shared by blocks mostly a few more than
 * there are blocks, or fewer. */
static struct gpu_spec draw_spec(struct inputs_rng *rng, enum topk_family family)
{
    static const int32_t ks[] = {1, 7, 64, 300, 1024, 2047, 2048, 2048};
    static const uint32_t ends[] = {40, 3000, 9000, 17000, 33000, 60000};
    struct gpu_spec spec = {0};
    spec.k = ks[inputs_rng_below(rng, 8)];
    if (family == TOPK_FAMILY_PLAIN && inputs_rng_below(rng, 4) == 0) {
        spec.k = 2049 + (int32_t)inputs_rng_below(rng, 2000);
    }
    spec.inputs.family = (enum inputs_family)inputs_rng_below(rng, INPUTS_FAMILY_COUNT);
    spec.inputs.seed = inputs_rng_next(rng);
    spec.inputs.width = 1 + (int32_t)inputs_rng_below(rng, ends[inputs_rng_below(rng, 6)]);
    spec.inputs.num_rows = 1 + (int32_t)inputs_rng_below(rng, spec.inputs.width > 9000 ? 6 : 24);
    if (family == TOPK_FAMILY_TILES && inputs_rng_below(rng, 3) != 0) {
        spec.inputs.num_rows = 5 + (int32_t)inputs_rng_below(rng, 6);
    } else if (family == TOPK_FAMILY_SPLIT && inputs_rng_below(rng, 3) != 0) {
        spec.inputs.num_rows = 1 + (int32_t)inputs_rng_below(rng, 2);
    }
    spec.lengths = (enum inputs_lengths)inputs_rng_below(rng, INPUTS_LENGTHS_COUNT - 1);
    spec.options.order = (enum topk_order)inputs_rng_below(rng, 3);
    spec.options.ties = (enum topk_ties)inputs_rng_below(rng, 2);
    spec.options.dtype = (enum topk_dtype)inputs_rng_below(rng, TOPK_DTYPE_COUNT);
    const int32_t group = 16 / (int32_t)topk_dtype_bytes(spec.options.dtype);
    spec.inputs.row_stride = spec.inputs.width + (int32_t)inputs_rng_below(rng, 6);
    if (inputs_rng_below(rng, 3) == 0) { /* the planner knows of aligned rows */
        spec.alignment_bytes = 16;
        spec.inputs.row_stride = (spec.inputs.width + group - 1) / group * group;
    }
    spec.values = inputs_rng_below(rng, 2) == 0;
    spec.row_offsets = inputs_rng_below(rng, 3) == 0;
    spec.pages = inputs_rng_below(rng, 3) == 0;
    spec.page_size_log2 = inputs_rng_below(rng, 8);
    return spec;
}

static void enqueue(const struct topk_plan *plan, const struct hostile *hostile, bool prepare)
{
    char detail[TOPK_DETAIL_SIZE];
    enum topk_status status = TOPK_OK;
    if (prepare) {
        status = topk_cuda_workspace_init(plan, hostile->workspace.at, NULL, detail);
    }
    if (status == TOPK_OK) {
        status = topk_cuda_enqueue(plan, hostile->d_args, hostile->workspace.at, NULL, detail);
    }
    if (status != TOPK_OK) {
        printf("%s\n", detail);
        exit(2);
    }
    CHECK_CUDA(cudaDeviceSynchronize());
}

/* As a server does it: prepared once, so many hostile selections, of the request as it was or as
 * the one before left it; then an honest one, and one after the workspace was prepared again. */
static bool run_case(const struct topk_plan *plan, struct hostile *hostile, int launches,
                     bool *inexact_p, char *what)
{
    for (int i = 0; i < launches; i++) {
        if (inputs_rng_below(&hostile->rng, 2) == 0) {
            hostile_restore(hostile);
        }
        emulate_on_switch(hostile_meddle, hostile);
        enqueue(plan, hostile, i == 0);
        emulate_on_switch(NULL, NULL);
        if (!hostile_is_within(hostile, what)) {
            return false;
        }
    }
    hostile_restore(hostile);
    enqueue(plan, hostile, false);
    *inexact_p = !oracle_check(&hostile->args, &hostile->spec.options, what);
    if (!hostile_is_within(hostile, what)) {
        return false;
    }
    hostile_restore(hostile);
    enqueue(plan, hostile, true);
    return oracle_check(&hostile->args, &hostile->spec.options, what) &&
           hostile_is_within(hostile, what);
}

/* Mostly rows are cut anywhere, however short: the planner moves cuts to the ends of such rows, and
 * makes larger parts. */
static void draw_cuts(struct inputs_rng *rng, struct topk_plan *plan)
{
    const bool stream = plan->family == TOPK_FAMILY_TILES || plan->family == TOPK_FAMILY_SPLIT;
    if (stream && inputs_rng_below(rng, 4) != 0) {
        plan->parameters[TOPK_PARAMETER_SNAP] = 1024 * (int32_t)inputs_rng_below(rng, 8);
        plan->parameters[TOPK_PARAMETER_PART_SCORES] =
            1024 * (1 + (int32_t)inputs_rng_below(rng, 4));
    }
}

/* What a selection leaves in the workspace of those whose rows lie in several blocks adds up. */
static int launches_of(enum topk_family family)
{
    return family == TOPK_FAMILY_TILES || family == TOPK_FAMILY_SPLIT ? 6 : 2;
}

static bool run_numbered(uint64_t number)
{
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed() + 1, number);
    /* A few cases meet most families: neighbours in the list are policies of one. */
    const uint64_t step = cases_policies.num % POLICY_STEP == 0 ? 1 : POLICY_STEP;
    struct cases_policy *policy = &cases_policies.list[number * step % cases_policies.num];
    if (cases_are_left_out(policy)) {
        return true;
    }
    struct gpu_spec spec;
    struct topk_plan plan;
    char what[ORACLE_DETAIL_SIZE] = "no shape that the policy serves was drawn", inputs[160];
    bool served = false, inexact = false;
    for (int draw = 0; draw < DRAWS_MAX && !served; draw++) {
        spec = draw_spec(&rng, policy->family);
        struct topk_shape shape = gpu_shape(&spec, inputs_rng_below(&rng, 2) == 0);
        served = topk_plan_make_family(&shape, gpu_device(), policy->family, policy->variant, &plan,
                                       what) == TOPK_OK;
    }
    inputs_describe(&spec.inputs, inputs, sizeof(inputs));
    bool good = false;
    if (served) {
        struct hostile hostile;
        if (topk_cuda_load(&plan, what) != TOPK_OK) {
            printf("%s\n", what);
            exit(2);
        }
        draw_cuts(&rng, &plan);
        emulate_seed(inputs_rng_next(&rng));
        hostile_init(&spec, &plan, inputs_rng_next(&rng), &hostile);
        good = run_case(&plan, &hostile, launches_of(policy->family), &inexact, what);
        hostile_fini(&hostile);
        policy->num_served++;
        policy->num_inexact += inexact ? 1 : 0;
    }
    if (!good) {
        printf("FAILED %s: %s:%d k=%d dtype=%s order=%d: %s: %s\n", cases_where(),
               topk_family_name(policy->family), policy->variant, spec.k,
               topk_dtype_name(spec.options.dtype), (int)spec.options.order, inputs, what);
    }
    return good;
}

static void print_policy(const struct cases_policy *policy)
{
    printf("%s:%d %u cases; the next selection without a new workspace inexact in %u\n",
           topk_family_name(policy->family), policy->variant, policy->num_served,
           policy->num_inexact);
}

int main(int argc, char **argv)
{
    static const struct cases_program program = {.usage = usage,
                                                 .run = run_numbered,
                                                 .print = print_policy,
                                                 .failures_max = UINT64_MAX,
                                                 .case_max_s = CASE_MAX_S};
    return cases_main(&program, argc, argv);
}
