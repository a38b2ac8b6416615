/*
 * select_sparse - rows so long, or samples so small, that a unit of the sample stands for more
 * scores than K: no order and no ties of the scores may have the row read a second time.
 *
 *   select_sparse [--small]
 *
 * --small: rows of 128K with samples of 256 scores, in the stream families alone, as on the model
 * of a GPU; without, also rows of up to 32M scores as the planner has them.
 */
#include "plan/policy.h"
#include "select_gpu.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SAMPLE 256 /* scores; 16 units */

/* Runs one request. TOPK_FAMILY_COUNT: the planner's family, and its sample. */
static bool run(const struct gpu_spec *spec, enum topk_family family, char *detail)
{
    const bool chosen = family == TOPK_FAMILY_COUNT;
    const struct topk_shape shape = gpu_shape(spec, false);
    struct gpu_plan plan;
    if (!gpu_plan_init(&shape, family, -1, &plan)) {
        snprintf(detail, 640, "no plan for %d columns", shape.width);
        return false;
    }
    if (!chosen) {
        plan.plan.parameters[TOPK_PARAMETER_SAMPLE_MIN] = SAMPLE;
        plan.plan.parameters[TOPK_PARAMETER_SAMPLE_MAX] = SAMPLE;
    }
    struct gpu_request request;
    gpu_request_init(spec, &request);
    gpu_request_poison(&request);
    gpu_enqueue(&plan, &request, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    struct topk_routes routes;
    CHECK_CUDA(cudaMemcpy(&routes, request.d_routes, sizeof(routes), cudaMemcpyDeviceToHost));
    char what[ORACLE_DETAIL_SIZE];
    bool good = gpu_request_judge(&request, what);
    /* Each part of a row has its sample. */
    const uint64_t scores = (uint64_t)spec->inputs.num_rows * (uint64_t)spec->inputs.width;
    const uint64_t parts = (uint64_t)plan.plan.num_blocks + (uint64_t)spec->inputs.num_rows;
    const uint64_t most =
        scores + parts * (uint64_t)plan.plan.parameters[TOPK_PARAMETER_SAMPLE_MAX];
    if (good && routes.scores_read > most) {
        snprintf(what, sizeof(what), "%llu scores were read of %llu; %llu with samples at most",
                 (unsigned long long)routes.scores_read, (unsigned long long)scores,
                 (unsigned long long)most);
        good = false;
    }
    if (!good) {
        char inputs[160];
        inputs_describe(&request.spec.inputs, inputs, sizeof(inputs));
        snprintf(detail, 640, "%s %s: %s: %s", topk_family_name(plan.plan.family),
                 topk_dtype_name(spec->options.dtype), inputs, what);
    }
    gpu_request_fini(&request);
    gpu_plan_fini(&plan);
    return good;
}

/* Every order of scores that a sample of units sees badly; K 300 and 2048 by turns. */
static void test_rows(enum topk_family family, enum topk_dtype dtype, int32_t rows, int32_t width)
{
    static const enum inputs_family inputs[] = {INPUTS_CONSTANT, INPUTS_ASCENDING,
                                                INPUTS_DESCENDING, INPUTS_PLATEAU, INPUTS_NORMAL};
    const bool chosen = family == TOPK_FAMILY_COUNT;
    const char *const family_name = chosen ? "planned" : topk_family_name(family);
    for (size_t i = 0; i < COUNT(inputs); i++) {
        char name[96], detail[640] = "";
        struct gpu_spec spec = {
            .inputs = {.family = inputs[i],
                       .seed = inputs_run_seed() + (uint64_t)width,
                       .num_rows = rows,
                       .width = width},
            .options = {.order = i % 2 == 0 ? TOPK_ORDER_INDEX : TOPK_ORDER_ANY, .dtype = dtype},
            .k = i % 2 == 0 ? 2048 : 300,
        };
        const bool good = run(&spec, family, detail);
        snprintf(name, sizeof(name), "it_01_%s_%s_%dx%d_%s_rows_are_read_once", family_name,
                 topk_dtype_name(dtype), rows, width, inputs_family_name(inputs[i]));
        gpu_report(name, good, detail);
    }
}

int main(int argc, char **argv)
{
    const bool small = argc == 2 && strcmp(argv[1], "--small") == 0;
    if (argc > 2 || (argc == 2 && !small)) {
        printf("unknown argument '%s'; pass --small or nothing\n", argv[argc - 1]);
        return 2;
    }
    test_rows(TOPK_FAMILY_SPLIT, TOPK_DTYPE_FLOAT32, 2, 131075);
    test_rows(TOPK_FAMILY_TILES, TOPK_DTYPE_FLOAT16, 3, 131072);
    for (int32_t width = 1 << 20; !small && width <= 32 << 20; width *= 2) {
        test_rows(TOPK_FAMILY_COUNT, TOPK_DTYPE_FLOAT32, 1, width + 3);
        test_rows(TOPK_FAMILY_COUNT, TOPK_DTYPE_BFLOAT16, 2, width);
    }
    return gpu_summary();
}
