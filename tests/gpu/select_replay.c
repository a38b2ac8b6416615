/*
 * select_replay - captured graphs: other rows, lengths and pointers on replay, several at once,
 * beside a neighbour that holds most of the device; and rows beyond 2^32 scores.
 *
 *   select_replay [--lanes | --lanes-without-clusters]
 *
 * --lanes: only lanes at once, beside whatever else uses the device: run.sh starts a process that
 * holds all multiprocessors but one. Without clusters: only families that go on with one.
 */
#include "select_gpu.h"
#include "select_hog.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NUM_LANES 4

/* Shapes that the planner gives to every family that it uses, for both kinds of kernels: families
 * read 16 bits otherwise. Clusters start only where several multiprocessors of a group are free. */
static const struct {
    const char *name;
    int32_t rows, width, k;
    enum topk_family family;
    enum topk_dtype dtype;
} shapes[] = {
    {"row_short", 300, 4000, 512, TOPK_FAMILY_ROW, TOPK_DTYPE_FLOAT32},
    {"row_few", 3, 8000, 2048, TOPK_FAMILY_ROW, TOPK_DTYPE_FLOAT32},
    {"row_many", 400, 16000, 2048, TOPK_FAMILY_ROW, TOPK_DTYPE_FLOAT32},
    {"row_half", 400, 16000, 2048, TOPK_FAMILY_ROW, TOPK_DTYPE_FLOAT16},
    {"split", 90, 70001, 2048, TOPK_FAMILY_SPLIT, TOPK_DTYPE_FLOAT32},
    {"tiles", 150, 70000, 2048, TOPK_FAMILY_TILES, TOPK_DTYPE_FLOAT32},
    {"tiles_half", 150, 70000, 2048, TOPK_FAMILY_TILES, TOPK_DTYPE_BFLOAT16},
    {"plain", 6, 50000, 3000, TOPK_FAMILY_PLAIN, TOPK_DTYPE_FLOAT32},
    {"cluster_few", 5, 300001, 2048, TOPK_FAMILY_CLUSTER, TOPK_DTYPE_FLOAT32},
    {"cluster_many", 50, 40000, 300, TOPK_FAMILY_CLUSTER, TOPK_DTYPE_FLOAT32},
    {"cluster_half", 50, 40000, 300, TOPK_FAMILY_CLUSTER, TOPK_DTYPE_FLOAT16},
    {"wide", 3, 100001, 2048, TOPK_FAMILY_WIDE, TOPK_DTYPE_FLOAT32},
};
#define NUM_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static bool has_clusters(size_t shape)
{
    return shapes[shape].family == TOPK_FAMILY_CLUSTER || shapes[shape].family == TOPK_FAMILY_WIDE;
}

static struct gpu_spec spec_of(size_t shape, uint64_t seed)
{
    struct gpu_spec spec = {
        .inputs = {.family = INPUTS_MIXED,
                   .seed = inputs_run_seed() + seed,
                   .num_rows = shapes[shape].rows,
                   .width = shapes[shape].width},
        .lengths = INPUTS_LENGTHS_RAGGED,
        .options = {.order = TOPK_ORDER_INDEX,
                    .ties = TOPK_TIES_LOWEST,
                    .dtype = shapes[shape].dtype},
        .k = shapes[shape].k,
    };
    return spec;
}

static void plan_of(const struct gpu_spec *spec, struct gpu_plan *plan)
{
    struct topk_shape shape = gpu_shape(spec, true);
    if (!gpu_plan_init(&shape, TOPK_FAMILY_COUNT, -1, plan)) {
        printf("no plan for %d x %d\n", shape.rows, shape.width);
        exit(2);
    }
}

static cudaGraphExec_t capture(const struct gpu_plan *plan, const struct gpu_request *request,
                               cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    gpu_enqueue(plan, request, stream);
    gpu_enqueue(plan, request, stream); /* one behind the other, on one workspace */
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void replay(cudaGraphExec_t exec, cudaStream_t stream)
{
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
}

/* The first `rows` rows of a request through the descriptor of another, captured one. */
static bool replay_other(struct gpu_request *captured, struct gpu_request *other, int32_t rows,
                         cudaGraphExec_t exec, cudaStream_t stream, char *detail)
{
    struct topk_args kept = captured->device;
    captured->device = other->device;
    captured->device.num_rows = rows;
    gpu_request_send(captured);
    gpu_request_poison(other);
    replay(exec, stream);
    int32_t all = other->host.num_rows;
    other->host.num_rows = rows;
    bool good = gpu_request_judge(other, detail);
    other->host.num_rows = all;
    const int32_t *indices = other->host.indices;
    if (good && rows < all && indices[(int64_t)rows * other->host.index_stride] != 0x7e7e7e7e) {
        snprintf(detail, ORACLE_DETAIL_SIZE, "row %d is beyond the live rows but was written",
                 rows);
        good = false;
    }
    captured->device = kept;
    return good;
}

static void it_19_replays_with_other_rows_lengths_and_pointers(cudaStream_t stream)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        struct gpu_spec spec = spec_of(i, 1), other_spec = spec_of(i, 2);
        other_spec.offset = 3;
        other_spec.lengths = INPUTS_LENGTHS_EDGES;
        struct gpu_request request, other;
        struct gpu_plan plan;
        gpu_request_init(&spec, &request);
        gpu_request_init(&other_spec, &other);
        plan_of(&spec, &plan);
        cudaGraphExec_t exec = capture(&plan, &request, stream);
        char name[96], detail[ORACLE_DETAIL_SIZE] = "";
        const int32_t rows[] = {spec.inputs.num_rows, 1, 0, spec.inputs.num_rows / 2};
        bool good = true;
        for (int step = 0; step < 4 && good; step++) {
            good = replay_other(&request, &request, rows[step], exec, stream, detail) &&
                   replay_other(&request, &other, rows[3 - step], exec, stream, detail);
        }
        snprintf(name, sizeof(name), "it_19_%s_replays_with_other_rows_lengths_and_pointers",
                 shapes[i].name);
        gpu_report(name, good, detail);
        CHECK_CUDA(cudaGraphExecDestroy(exec));
        gpu_plan_fini(&plan);
        gpu_request_fini(&request);
        gpu_request_fini(&other);
    }
}

/* A deterministic row gives the same bytes alone and in its batch, a thousand times. */
static void it_16_21_one_row_one_answer(cudaStream_t stream)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        struct gpu_spec spec = spec_of(i, 3);
        spec.lengths = INPUTS_LENGTHS_FULL;
        struct gpu_request request;
        struct gpu_plan plan;
        gpu_request_init(&spec, &request);
        plan_of(&spec, &plan);
        cudaGraphExec_t exec = capture(&plan, &request, stream);
        size_t row_bytes = (size_t)spec.k * sizeof(int32_t);
        size_t bytes = row_bytes * (size_t)spec.inputs.num_rows;
        char *first = malloc(bytes), *again = malloc(bytes);
        char name[96], detail[ORACLE_DETAIL_SIZE] = "";
        replay(exec, stream);
        CHECK_CUDA(cudaMemcpy(first, request.device.indices, bytes, cudaMemcpyDeviceToHost));
        bool good = true;
        for (int run = 0; run < 1000 && good; run += 50) {
            gpu_request_poison(&request);
            for (int n = 0; n < 25; n++) { /* each replay selects twice */
                CHECK_CUDA(cudaGraphLaunch(exec, stream));
            }
            CHECK_CUDA(cudaStreamSynchronize(stream));
            CHECK_CUDA(cudaMemcpy(again, request.device.indices, bytes, cudaMemcpyDeviceToHost));
            good = memcmp(first, again, bytes) == 0;
            snprintf(detail, sizeof(detail), "run %d gave other bytes", run);
        }
        for (int32_t row = 0; row < 3 && good; row++) {
            struct topk_args batch = request.device;
            request.device.scores =
                (const char *)batch.scores +
                row * batch.row_stride * (int64_t)topk_dtype_bytes(spec.options.dtype);
            request.device.lengths += row;
            request.device.num_rows = 1;
            gpu_request_send(&request);
            replay(exec, stream);
            CHECK_CUDA(
                cudaMemcpy(again, request.device.indices, row_bytes, cudaMemcpyDeviceToHost));
            good = memcmp(first + (size_t)row * row_bytes, again, row_bytes) == 0;
            snprintf(detail, sizeof(detail), "row %d alone differs from row %d of the batch", row,
                     row);
            request.device = batch;
        }
        snprintf(name, sizeof(name), "it_16_21_%s_row_has_one_answer_alone_in_batch_and_in_time",
                 shapes[i].name);
        gpu_report(name, good, detail);
        free(first);
        free(again);
        CHECK_CUDA(cudaGraphExecDestroy(exec));
        gpu_plan_fini(&plan);
        gpu_request_fini(&request);
    }
}

/*
 * Four lanes replay at once, with `hog_blocks` multiprocessors taken by a neighbour. It stays until
 * the lanes are done; or, when they need what it holds, leaves after `hog_ms`.
 */
static void run_lanes(size_t shape, int hog_blocks, int hog_ms, const char *name)
{
    struct gpu_request requests[NUM_LANES];
    struct gpu_plan plans[NUM_LANES];
    cudaStream_t streams[NUM_LANES], hog;
    cudaGraphExec_t execs[NUM_LANES];
    int *stop;
    CHECK_CUDA(cudaHostAlloc((void **)&stop, sizeof(int), cudaHostAllocMapped));
    CHECK_CUDA(cudaStreamCreateWithFlags(&hog, cudaStreamNonBlocking));
    for (int lane = 0; lane < NUM_LANES; lane++) {
        struct gpu_spec spec = spec_of(shape, 10 + (uint64_t)lane);
        gpu_request_init(&spec, &requests[lane]);
        plan_of(&spec, &plans[lane]);
        CHECK_CUDA(cudaStreamCreateWithFlags(&streams[lane], cudaStreamNonBlocking));
        execs[lane] = capture(&plans[lane], &requests[lane], streams[lane]);
        gpu_request_poison(&requests[lane]);
    }
    *stop = 0;
    if (hog_blocks > 0) {
        CHECK_CUDA(
            hog_start(hog_blocks, gpu_device()->shared_bytes_per_block, stop, 40000000000ll, hog));
    }
    for (int run = 0; run < 5; run++) {
        for (int lane = 0; lane < NUM_LANES; lane++) {
            CHECK_CUDA(cudaGraphLaunch(execs[lane], streams[lane]));
        }
    }
    if (hog_ms > 0) {
        usleep((useconds_t)hog_ms * 1000);
        *(volatile int *)stop = 1;
    }
    for (int lane = 0; lane < NUM_LANES; lane++) {
        CHECK_CUDA(cudaStreamSynchronize(streams[lane]));
    }
    char detail[ORACLE_DETAIL_SIZE] = "";
    bool good = true;
    if (hog_blocks > 0 && hog_ms == 0 && cudaStreamQuery(hog) != cudaErrorNotReady) {
        good = false;
        snprintf(detail, sizeof(detail), "the neighbour had gone before the lanes were done");
    }
    *(volatile int *)stop = 1;
    CHECK_CUDA(cudaStreamSynchronize(hog));
    for (int lane = 0; lane < NUM_LANES; lane++) {
        good = good && gpu_request_judge(&requests[lane], detail);
        CHECK_CUDA(cudaGraphExecDestroy(execs[lane]));
        CHECK_CUDA(cudaStreamDestroy(streams[lane]));
        gpu_plan_fini(&plans[lane]);
        gpu_request_fini(&requests[lane]);
    }
    CHECK_CUDA(cudaStreamDestroy(hog));
    CHECK_CUDA(cudaFreeHost(stop));
    gpu_report(name, good, detail);
}

static void it_20_lanes_at_once(void)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        const int multiprocessors = gpu_device()->num_multiprocessors;
        char name[96];
        snprintf(name, sizeof(name), "it_20_%s_four_lanes_at_once", shapes[i].name);
        run_lanes(i, 0, 0, name);
        if (!has_clusters(i)) {
            snprintf(name, sizeof(name), "it_20_%s_four_lanes_on_one_multiprocessor",
                     shapes[i].name);
            run_lanes(i, multiprocessors - 1, 0, name);
            continue;
        }
        snprintf(name, sizeof(name), "it_20_%s_four_lanes_beside_a_neighbour", shapes[i].name);
        run_lanes(i, multiprocessors / 8, 0, name);
        snprintf(name, sizeof(name), "it_20_%s_four_lanes_once_a_neighbour_leaves", shapes[i].name);
        run_lanes(i, multiprocessors - 1, 200, name);
    }
}

/*
 * Lanes beside another process, which holds nearly all of the device. Where the two take turns
 * everything runs; where they share it, clusters wait for the other's end.
 */
static void it_20_lanes_beside_a_process(bool with_clusters)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        char name[96];
        if (has_clusters(i) && !with_clusters) {
            continue;
        }
        snprintf(name, sizeof(name), "it_20_%s_four_lanes_beside_a_process", shapes[i].name);
        run_lanes(i, 0, 0, name);
    }
}

/* Devices differ in what the planner gives a shape to: says so where this one does. */
static void tell_families(void)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        const struct gpu_spec spec = spec_of(i, 1);
        const struct topk_shape shape = gpu_shape(&spec, true);
        struct topk_plan plan;
        char detail[TOPK_DETAIL_SIZE];
        if (topk_plan_make(&shape, gpu_device(), &plan, detail) == TOPK_OK &&
            plan.family != shapes[i].family) {
            printf("note   %s is of family %s on this device\n", shapes[i].name,
                   topk_family_name(plan.family));
        }
    }
}

/* Rows far beyond 2^32 scores from the first: all zero but the last, which must be read right. */
static void it_15_more_than_four_billion_scores(cudaStream_t stream)
{
    const int32_t rows = 32769, width = 131072, k = 2048;
    struct gpu_spec last_spec = spec_of(0, 20);
    last_spec.inputs.num_rows = 1;
    last_spec.inputs.width = width;
    last_spec.k = k;
    last_spec.lengths = INPUTS_LENGTHS_FULL;
    struct gpu_request last;
    gpu_request_init(&last_spec, &last);
    float *scores;
    int32_t *indices;
    size_t elements = (size_t)rows * (size_t)width;
    CHECK_CUDA(cudaMalloc((void **)&scores, elements * sizeof(float)));
    CHECK_CUDA(cudaMalloc((void **)&indices, (size_t)rows * (size_t)k * sizeof(int32_t)));
    CHECK_CUDA(cudaMemset(scores, 0, elements * sizeof(float)));
    CHECK_CUDA(cudaMemcpy(scores + elements - (size_t)width, last.host.scores,
                          (size_t)width * sizeof(float), cudaMemcpyHostToDevice));
    struct topk_args kept = last.device;
    last.device.scores = scores;
    last.device.row_stride = width;
    last.device.lengths = NULL;
    last.device.length_all = width;
    last.device.indices = indices;
    last.device.num_rows = rows;
    gpu_request_send(&last);
    struct topk_shape shape = {k, rows, width, 16, last_spec.options};
    struct gpu_plan plan;
    char detail[ORACLE_DETAIL_SIZE] = "no plan";
    bool good = gpu_plan_init(&shape, TOPK_FAMILY_COUNT, -1, &plan);
    if (good) {
        gpu_enqueue(&plan, &last, stream);
        CHECK_CUDA(cudaStreamSynchronize(stream));
        CHECK_CUDA(cudaMemcpy(kept.indices, indices + (size_t)(rows - 1) * (size_t)k,
                              (size_t)k * sizeof(int32_t), cudaMemcpyDeviceToDevice));
        last.device = kept;
        good = gpu_request_judge(&last, detail);
        int32_t zero_row[16];
        CHECK_CUDA(cudaMemcpy(zero_row, indices + (size_t)(rows - 2) * (size_t)k, sizeof(zero_row),
                              cudaMemcpyDeviceToHost));
        for (int32_t i = 0; i < 16 && good; i++) {
            good = zero_row[i] == i;
            snprintf(detail, sizeof(detail), "slot %d of a row of zeros holds %d", i, zero_row[i]);
        }
        gpu_plan_fini(&plan);
    }
    gpu_report("it_15_more_than_four_billion_scores", good, detail);
    CHECK_CUDA(cudaFree(scores));
    CHECK_CUDA(cudaFree(indices));
    gpu_request_fini(&last);
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    tell_families();
    if (argc > 1) {
        bool with_clusters = strcmp(argv[1], "--lanes") == 0;
        if (!with_clusters && strcmp(argv[1], "--lanes-without-clusters") != 0) {
            printf("unknown argument '%s'; pass --lanes or --lanes-without-clusters\n", argv[1]);
            return 2;
        }
        it_20_lanes_beside_a_process(with_clusters);
        return gpu_summary();
    }
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    it_19_replays_with_other_rows_lengths_and_pointers(stream);
    it_16_21_one_row_one_answer(stream);
    it_20_lanes_at_once();
    it_15_more_than_four_billion_scores(stream);
    CHECK_CUDA(cudaStreamDestroy(stream));
    return gpu_summary();
}
