/*
 * bin_edges_test - rows whose K-th best lies next to an edge of a histogram's bin (half_bins.cuh),
 * with many scores on the one side of it and some just on the other, or is a zero among the
 * smallest numbers, on every policy of the families row and wide. What is told from its neighbours
 * by one key less is counted once, and on the right side.
 *
 *   bin_edges [--full]
 *
 * --full: instead a row with more scores in one bin than fit the 16 bits in which the blocks of
 * `wide` tell each other a count, on a device that starts clusters of six.
 */
#include "emulate.h"
#include "select_gpu.h"

#include <math.h>
#include <string.h>

#define ROWS 3         /* one of positive numbers, one of negative, one around zero */
#define WIDTH 4096     /* every policy serves it */
#define NEXT_TO_EDGE 4 /* scores on each side whose key is next to the edge */
#define ROUNDS 3       /* of every policy; the last with 16 bits, and ties to the lowest */
#define FULL_BIN 65836 /* scores, all in one bin: 300 more than 16 bits count */

/* What a row has: `within` scores of a bin, up to its edge, and `beyond` that are higher. */
struct edge_row {
    int32_t within, beyond;
    uint32_t spread; /* of their keys */
    float edge;      /* the lowest number of the higher bin; or, negative, the lowest of the bin;
                      * 0: zeros of both signs are within */
    float tiny;      /* beside zeros: the smallest number */
};

static float number_at(float number, int32_t steps)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    bits += (uint32_t)steps;
    memcpy(&number, &bits, sizeof(bits));
    return number;
}

/* Score i of the row before it is shuffled; the other scores are lower than all of these. */
static float draw_score(struct inputs_rng *rng, const struct edge_row *row, int32_t i)
{
    const bool negative = row->edge < 0, higher = i >= row->within;
    const int32_t nth = higher ? i - row->within : i;
    const int32_t steps = nth < NEXT_TO_EDGE ? 0 : (int32_t)inputs_rng_below(rng, row->spread);
    if (row->edge == 0 && !higher) {
        return nth % 2 == 0 ? 0.0f : -0.0f;
    }
    if (row->edge == 0) {
        const float number = row->tiny * (float)(1 + steps);
        return i < row->within + row->beyond ? number : -number;
    }
    if (i >= row->within + row->beyond) {
        return negative ? 4 * row->edge : row->edge * 0.25f * inputs_rng_uniform(rng);
    }
    return number_at(row->edge, higher != negative ? steps : -1 - steps);
}

/* The row, shuffled. */
static void fill_row(struct inputs_rng *rng, const struct edge_row *row, float *scores)
{
    for (int32_t i = 0; i < WIDTH; i++) {
        const uint32_t at = inputs_rng_below(rng, (uint32_t)i + 1);
        scores[i] = scores[at];
        scores[at] = draw_score(rng, row, i);
    }
}

/* The scores of a request, on the host and on the device. */
static void fill_request(struct inputs_rng *rng, const struct edge_row *like,
                         struct gpu_request *request)
{
    static float scores[WIDTH];
    const enum topk_dtype dtype = request->spec.options.dtype;
    const size_t bytes = topk_dtype_bytes(dtype);
    for (int32_t i = 0; i < request->host.num_rows; i++) {
        const size_t first = (size_t)i * (size_t)request->host.row_stride;
        const float edge = 1.0f + (float)inputs_rng_below(rng, 32) / 32.0f;
        struct edge_row row = *like;
        row.edge = ldexpf(i % 2 == 0 ? edge : -edge, (int)inputs_rng_below(rng, 9) - 4);
        row.edge = i < 2 ? row.edge : 0;
        fill_row(rng, &row, scores);
        char *host = (char *)(uintptr_t)request->host.scores + first * bytes;
        if (dtype == TOPK_DTYPE_FLOAT32) {
            memcpy(host, scores, sizeof(scores));
        } else {
            inputs_narrow(dtype, scores, WIDTH, (uint16_t *)(void *)host);
        }
        CHECK_CUDA(cudaMemcpy((char *)(uintptr_t)request->device.scores + first * bytes, host,
                              WIDTH * bytes, cudaMemcpyHostToDevice));
    }
}

/* False where there is no such policy. `wide` leaves order by value to others. */
static bool test_policy(enum topk_family family, int32_t variant, int32_t round)
{
    const int32_t num_orders = family == TOPK_FAMILY_WIDE ? TOPK_ORDER_VALUE : 3;
    struct inputs_rng rng =
        inputs_rng_of(inputs_run_seed(), (uint64_t)variant * ROUNDS + (uint64_t)round);
    const bool halves = round == ROUNDS - 1;
    const struct edge_row like = {
        .within = 300 + (int32_t)inputs_rng_below(&rng, 700),
        .beyond = NEXT_TO_EDGE + (int32_t)inputs_rng_below(&rng, 300),
        .spread = 2100 + inputs_rng_below(&rng, 4000),
        .tiny = halves ? 0x1p-24f : 0x1p-149f, /* of float16, and of float32 */
    };
    const struct gpu_spec spec = {
        .inputs = {.num_rows = ROWS, .width = WIDTH, .seed = 1},
        .options = {.order = (enum topk_order)((variant + round) % num_orders),
                    .ties = halves ? TOPK_TIES_LOWEST : TOPK_TIES_ANY,
                    .dtype = halves ? (enum topk_dtype)(1 + variant % 2) : TOPK_DTYPE_FLOAT32},
        .k = like.beyond + 1 + (int32_t)inputs_rng_below(&rng, 2),
    };
    const struct topk_shape shape = gpu_shape(&spec, false);
    struct gpu_plan plan;
    struct gpu_request request;
    if (!gpu_plan_init(&shape, family, variant, &plan)) {
        return false;
    }
    gpu_request_init(&spec, &request);
    fill_request(&rng, &like, &request);
    gpu_request_send(&request);
    gpu_request_poison(&request);
    gpu_enqueue(&plan, &request, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    char name[96], detail[ORACLE_DETAIL_SIZE] = "";
    snprintf(name, sizeof(name), "it_17_%s:%d_next_to_an_edge_%d", topk_family_name(family),
             variant, round);
    gpu_report(name, gpu_request_judge(&request, detail), detail);
    gpu_request_fini(&request);
    gpu_plan_fini(&plan);
    return true;
}

/* Every round of a policy; false where there is no such policy. */
static bool test_rounds(enum topk_family family, int32_t variant)
{
    int32_t round = 0;
    while (round < ROUNDS && test_policy(family, variant, round)) {
        round++;
    }
    return round > 0;
}

/* By the first policy of `wide` that serves such a row. */
static void test_full_bin(void)
{
    const struct gpu_spec spec = {
        .inputs = {.family = INPUTS_CONSTANT, .num_rows = 1, .width = FULL_BIN},
        .options = {.ties = TOPK_TIES_LOWEST},
        .k = 200,
    };
    const struct topk_shape shape = gpu_shape(&spec, false);
    struct gpu_plan plan;
    int32_t variant = 0;
    while (variant < GPU_VARIANTS_MAX && !gpu_plan_init(&shape, TOPK_FAMILY_WIDE, variant, &plan)) {
        variant++;
    }
    char detail[ORACLE_DETAIL_SIZE] = "no policy of wide serves it on this device";
    if (variant == GPU_VARIANTS_MAX) {
        gpu_report("it_18_a_full_bin", false, detail);
        return;
    }
    struct gpu_request request;
    gpu_request_init(&spec, &request);
    gpu_request_poison(&request);
    gpu_enqueue(&plan, &request, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    gpu_report("it_18_a_full_bin", gpu_request_judge(&request, detail), detail);
    gpu_request_fini(&request);
    gpu_plan_fini(&plan);
}

static void test_edges(void)
{
    bool wide = false;
    for (int32_t variant = 0; test_rounds(TOPK_FAMILY_ROW, variant); variant++) {
    }
    for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
        wide = test_rounds(TOPK_FAMILY_WIDE, variant) || wide; /* clusters that a device starts */
    }
    gpu_report("it_17_has_policies_of_wide", wide, "no cluster is small enough for this device");
}

int main(int argc, char **argv)
{
    const bool full = argc == 2 && strcmp(argv[1], "--full") == 0;
    if (argc > 1 && !full) {
        printf("unknown argument '%s'; pass --full or nothing\n", argv[argc - 1]);
        return 2;
    }
    if (full) {
        test_full_bin();
    } else {
        test_edges();
    }
    return gpu_summary();
}
