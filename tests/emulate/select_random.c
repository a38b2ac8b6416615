/*
 * select_random - random selections on the model of a GPU: every policy of every family in turn,
 * each case with a schedule of its own, judged by the oracle.
 *
 *   select_random [--cases N | --seconds N] [--first N] [--family NAME] [--misled yes]
 *
 * --cases: so many from --first on (0), the same each time; --seconds: until so much time has
 * passed. --misled: all of them mislead the sample, where there is one. A failure prints what
 * repeats it alone; after a few it stops. TOPKD_TEST_SEED draws other cases.
 */
#include "cases.h"
#include "emulate.h"
#include "plan/policy.h"
#include "select_gpu.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DRAWS_MAX 200 /* of a shape, until one is served */
#define FAILURES_MAX 3
#define CASE_MAX_S 100 /* computed; a case takes a tenth of a second to a few */

static bool always_misled;

static const char usage[] =
    "select_random [--cases N | --seconds N] [--first N] [--family NAME] [--misled yes]\n"
    "Random selections on the model of a GPU, judged by the oracle.\n" CASES_USAGE
    "  --misled yes   all of them mislead the sample, where there is one\n"
    "TOPKD_TEST_SEED draws other cases; TOPKD_EMULATE_DEVICE chooses the device.\n";

static int32_t draw_width(struct inputs_rng *rng, enum topk_family family)
{
    static const uint32_t ends[] = {40, 3000, 9000, 17000, 33000};
    uint32_t kind = inputs_rng_below(rng, family == TOPK_FAMILY_ROW ? 6 : 7);
    if (kind < 5) {
        return 1 + (int32_t)inputs_rng_below(rng, ends[kind]);
    }
    if (family == TOPK_FAMILY_ROW) { /* as wide as a policy's rows, or a little less */
        return (4096 << inputs_rng_below(rng, 4)) - 7 * (int32_t)inputs_rng_below(rng, 2) -
               (int32_t)inputs_rng_below(rng, 2);
    }
    if (kind == 5) { /* where stages, chunks, units and batches end */
        return 1024 * (1 + (int32_t)inputs_rng_below(rng, 20)) + (int32_t)inputs_rng_below(rng, 5) -
               2;
    }
    return 30000 + (int32_t)inputs_rng_below(rng, 60000);
}

/* Where K and the row meet: K = width, a position or two more or less, a single score. */
static void draw_edge(struct inputs_rng *rng, struct gpu_spec *spec)
{
    static const int32_t ks[] = {1, 2, 7, 64, 300, 2047, 2048};
    spec->k = ks[inputs_rng_below(rng, COUNT(ks))];
    spec->inputs.width = spec->k + (int32_t)inputs_rng_below(rng, 5) - 2;
    spec->inputs.width = spec->inputs.width < 1 ? 1 : spec->inputs.width;
    spec->inputs.num_rows = 1 + (int32_t)inputs_rng_below(rng, 14);
}

/* Rows at any alignment that a score has; or all at 16 bytes, and the planner knows. */
static void draw_layout(struct inputs_rng *rng, struct gpu_spec *spec)
{
    const int32_t group = 16 / (int32_t)topk_dtype_bytes(spec->options.dtype);
    if (inputs_rng_below(rng, 4) == 0) {
        spec->alignment_bytes = 16;
        spec->offset = group * (int32_t)inputs_rng_below(rng, 3);
        spec->inputs.row_stride = (spec->inputs.width + group - 1) / group * group;
    } else {
        spec->offset = (int32_t)inputs_rng_below(rng, 17);
        spec->inputs.row_stride = spec->inputs.width + (int32_t)inputs_rng_below(rng, 6);
    }
}

static struct gpu_spec draw_spec(struct inputs_rng *rng, enum topk_family family)
{
    static const int32_t ks[] = {1, 7, 64, 300, 512, 1024, 2047, 2048, 2048, 2048};
    static const int32_t large_ks[] = {2049, 2051, 4096, 16384};
    struct gpu_spec spec = {0};
    spec.inputs.family = (enum inputs_family)inputs_rng_below(rng, INPUTS_FAMILY_COUNT);
    spec.inputs.seed = inputs_rng_next(rng);
    spec.inputs.width = draw_width(rng, family);
    /* Few scores a case; at times more rows than blocks. */
    uint32_t rows_max = spec.inputs.width > 20000 ? 4 : (spec.inputs.width > 2000 ? 14 : 40);
    spec.inputs.num_rows = 1 + (int32_t)inputs_rng_below(rng, rows_max);
    if (family == TOPK_FAMILY_TILES && inputs_rng_below(rng, 3) == 0) {
        /* More rows than blocks, and so long that blocks share some. */
        spec.inputs.width = 70000 + (int32_t)inputs_rng_below(rng, 80001);
        spec.inputs.num_rows = 5 + (int32_t)inputs_rng_below(rng, 5);
    }
    /* Seldom near K, the last kind: of most such rows there is nothing to select. */
    spec.lengths = (enum inputs_lengths)(inputs_rng_below(rng, 3 * INPUTS_LENGTHS_COUNT - 2) / 3);
    spec.k = ks[inputs_rng_below(rng, COUNT(ks))];
    if (family == TOPK_FAMILY_PLAIN && inputs_rng_below(rng, 3) == 0) {
        spec.k = large_ks[inputs_rng_below(rng, COUNT(large_ks))];
    }
    if (inputs_rng_below(rng, 10) == 0) {
        draw_edge(rng, &spec);
    }
    spec.options.order = (enum topk_order)inputs_rng_below(rng, 3);
    spec.options.ties = (enum topk_ties)inputs_rng_below(rng, 2);
    spec.options.dtype = (enum topk_dtype)inputs_rng_below(rng, TOPK_DTYPE_COUNT);
    draw_layout(rng, &spec);
    if (inputs_rng_below(rng, 2) == 0) {
        spec.values = inputs_rng_below(rng, 2) == 0;
        spec.row_offsets = inputs_rng_below(rng, 2) == 0;
        spec.pages = inputs_rng_below(rng, 2) == 0;
        spec.page_size_log2 = inputs_rng_below(rng, 8);
    }
    return spec;
}

/* Each row of the selections so far took exactly one route. */
static bool routes_add_up(const struct gpu_request *request, uint64_t rows, char *what,
                          struct topk_routes *routes)
{
    CHECK_CUDA(cudaMemcpy(routes, request->d_routes, sizeof(*routes), cudaMemcpyDeviceToHost));
    uint64_t all = routes->copied + routes->direct + routes->certified + routes->band +
                   routes->recovery + routes->spill;
    if (all != rows) {
        snprintf(what, ORACLE_DETAIL_SIZE, "%llu rows, but the routes count %llu",
                 (unsigned long long)rows, (unsigned long long)all);
    }
    return all == rows;
}

/* Selects with the rows of `request`, from `first` on, and judges them. */
static bool select_once(const struct gpu_plan *plan, struct gpu_request *request, char *what)
{
    gpu_request_poison(request);
    gpu_enqueue(plan, request, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    return gpu_request_judge(request, what);
}

/* Twice, for the first must leave the workspace ready; then fewer rows by the same plan. */
static bool run_case(const struct gpu_spec *spec, bool misled, const struct gpu_plan *plan,
                     struct inputs_rng *rng, char *what, struct topk_routes *routes)
{
    struct gpu_request request;
    gpu_request_init(spec, &request);
    if (misled) {
        gpu_mislead(&request, &plan->plan);
    }
    const int32_t rows = spec->inputs.num_rows;
    bool good = select_once(plan, &request, what) && select_once(plan, &request, what) &&
                routes_add_up(&request, 2 * (uint64_t)rows, what, routes);
    if (good) {
        const int32_t fewer = (int32_t)inputs_rng_below(rng, (uint32_t)rows + 1);
        request.device.num_rows = request.host.num_rows = fewer;
        gpu_request_send(&request);
        good = select_once(plan, &request, what) &&
               routes_add_up(&request, 2 * (uint64_t)rows + (uint64_t)fewer, what, routes);
        const int32_t *indices = request.host.indices;
        if (good && fewer < rows && indices[fewer * request.host.index_stride] != 0x7e7e7e7e) {
            snprintf(what, ORACLE_DETAIL_SIZE, "row %d of %d live ones was written", fewer, fewer);
            good = false;
        }
    }
    gpu_request_fini(&request);
    return good;
}

static void add_routes(struct topk_routes *sum, const struct topk_routes *more)
{
    sum->copied += more->copied;
    sum->direct += more->direct;
    sum->certified += more->certified;
    sum->band += more->band;
    sum->recovery += more->recovery;
    sum->spill += more->spill;
}

static void print_policy(const struct cases_policy *policy)
{
    const struct topk_routes *routes = &policy->routes;
    printf("%s:%d %u cases; rows copied %llu, direct %llu, certified %llu, band %llu, recovery "
           "%llu, spill %llu\n",
           topk_family_name(policy->family), policy->variant, policy->num_served,
           (unsigned long long)routes->copied, (unsigned long long)routes->direct,
           (unsigned long long)routes->certified, (unsigned long long)routes->band,
           (unsigned long long)routes->recovery, (unsigned long long)routes->spill);
}

static bool run_numbered(uint64_t number)
{
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), number);
    struct cases_policy *policy = &cases_policies.list[number % cases_policies.num];
    if (cases_are_left_out(policy)) {
        return true;
    }
    struct gpu_spec spec;
    struct gpu_plan plan;
    bool served = false;
    for (int draw = 0; draw < DRAWS_MAX && !served; draw++) {
        spec = draw_spec(&rng, policy->family);
        struct topk_shape shape = gpu_shape(&spec, inputs_rng_below(&rng, 2) == 0);
        emulate_seed(inputs_rng_next(&rng));
        served = gpu_plan_init(&shape, policy->family, policy->variant, &plan);
    }
    if (served && policy->family == TOPK_FAMILY_TILES && inputs_rng_below(&rng, 2) == 0) {
        /* The planner moves cuts to the ends of such rows; here they may lie anywhere. */
        plan.plan.parameters[TOPK_PARAMETER_SNAP] =
            1024 * (1 + (int32_t)inputs_rng_below(&rng, 16));
    }
    const bool misled =
        served && plan.plan.sample_stride > 0 && (always_misled || inputs_rng_below(&rng, 10) == 0);
    if (misled) {
        /* Below 2; of the second few are above a plateau, by which candidates are cut. */
        spec.inputs.family = inputs_rng_below(&rng, 2) == 0 ? INPUTS_CLUSTERED : INPUTS_ONE_BIT;
    }
    char what[ORACLE_DETAIL_SIZE] = "no shape that the policy serves was drawn";
    struct topk_routes routes = {0};
    bool good = served && run_case(&spec, misled, &plan, &rng, what, &routes);
    policy->num_served += served ? 1 : 0;
    add_routes(&policy->routes, &routes);
    if (served) {
        gpu_plan_fini(&plan);
    }
    if (!good) {
        char inputs[160];
        inputs_describe(&spec.inputs, inputs, sizeof(inputs));
        printf("FAILED case %llu, seed %llu: %s:%d dtype=%s order=%d ties=%d offset=%d lengths=%s"
               "%s: %s: %s\n",
               (unsigned long long)number, (unsigned long long)inputs_run_seed(),
               topk_family_name(policy->family), policy->variant,
               topk_dtype_name(spec.options.dtype), (int)spec.options.order, (int)spec.options.ties,
               spec.offset, inputs_lengths_name(spec.lengths), misled ? " misled" : "", inputs,
               what);
    }
    return good;
}

static bool take_option(const char *name, const char *value)
{
    const bool misled = strcmp(name, "--misled") == 0 && strcmp(value, "yes") == 0;
    always_misled = always_misled || misled;
    return misled;
}

int main(int argc, char **argv)
{
    static const struct cases_program program = {.usage = usage,
                                                 .option = take_option,
                                                 .run = run_numbered,
                                                 .print = print_policy,
                                                 .failures_max = FAILURES_MAX,
                                                 .case_max_s = CASE_MAX_S};
    return cases_main(&program, argc, argv);
}
