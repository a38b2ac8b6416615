/*
 * bench_cuda_select - times the CUDA selectors shape by shape and checks every row on the device.
 *
 * The command line is that of select_cells.hpp (--help), the method in README.md beside this file.
 * One line a cell on standard output; the exit status is 1 when any row of any cell was inexact.
 */
#include "bench_cuda_inputs.cuh"
#include "select_cells.hpp"
#include "topk_select.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK_CUDA(call)                                                                           \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(error_));                                                   \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static const double floor_bytes_per_us = 4640e3; /* plain vectorised read, H200, measured */
static const size_t rotated_bytes = (size_t)512 << 20;
static const uint32_t page_size_log2 = 6; /* as paged caches have them: 64 positions */

static struct topk_device device;
static cudaStream_t stream;

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * All cells lie in one allocation, which the program keeps to its end: what is given back the
 * driver clears beside whatever runs next, and a selection measured then is slower (README.md).
 */
static struct {
    char *base;       /* null: only counts */
    size_t used, all; /* bytes */
} arena;

template <class Type>
static Type *take(size_t count)
{
    const size_t bytes = (count * sizeof(Type) + 255) / 256 * 256;
    char *place = arena.base != nullptr ? arena.base + arena.used : nullptr;
    arena.used += bytes;
    if (place != nullptr && arena.used > arena.all) {
        fprintf(stderr, "a cell needs %zu bytes, more than were counted\n", arena.used);
        exit(2);
    }
    return reinterpret_cast<Type *>(place);
}

/* ---- one cell -------------------------------------------------------------------------------- */

struct buffers {
    char *scores = nullptr; /* of the options' dtype */
    float *values = nullptr;
    int *lengths = nullptr, *indices = nullptr, *bad = nullptr;
    int *pages = nullptr, *offsets = nullptr;
    struct topk_args *args = nullptr; /* [groups], then one that counts routes */
    struct topk_routes *routes = nullptr;
    unsigned *bits = nullptr;
    int groups = 1;
    double bytes = 0; /* valid scores of one group */
};

/* Takes a cell's memory from the beginning of the arena, where the cell before had its own. */
static struct buffers take_buffers(const cell_wanted &wanted, const cell_settings &settings)
{
    struct buffers b;
    const size_t stride = (size_t)wanted.shape.width + (size_t)settings.pad;
    const size_t one =
        (size_t)wanted.shape.rows * stride * (size_t)topk_dtype_bytes(settings.options.dtype);
    b.groups = (int)std::max<size_t>(
        1, std::min<size_t>((size_t)settings.groups_max, rotated_bytes / one));
    const size_t rows = (size_t)wanted.shape.rows * (size_t)b.groups;
    const size_t results = rows * (size_t)wanted.k;
    arena.used = 0;
    b.scores = take<char>(one * (size_t)b.groups);
    b.lengths = take<int>(rows);
    b.indices = take<int>(results);
    b.bad = take<int>(1);
    b.args = reinterpret_cast<struct topk_args *>(take<char>(((size_t)b.groups + 1) * 256));
    b.routes = take<struct topk_routes>(1);
    b.bits =
        settings.check ? take<unsigned>(bench_check_words(wanted.shape.width) * rows) : nullptr;
    b.values = settings.values ? take<float>(results) : nullptr;
    b.pages = settings.pages
                  ? take<int>(rows * (((size_t)wanted.shape.width >> page_size_log2) + 1))
                  : nullptr;
    b.offsets = settings.offsets ? take<int>(rows) : nullptr;
    return b;
}

/* Asks for as much memory as the largest cell needs. */
static bool open_arena(const cell_settings &settings, const std::vector<cell_shape> &shapes)
{
    const int k = *std::max_element(settings.ks.begin(), settings.ks.end());
    for (const cell_shape &shape : shapes) {
        take_buffers({shape, k, settings.scores[0]}, settings);
        arena.all = std::max(arena.all, arena.used);
    }
    const cudaError_t error = cudaMalloc(&arena.base, arena.all);
    if (error != cudaSuccess) {
        fprintf(stderr, "%zu bytes for the largest shape: %s; leave it out\n", arena.all,
                cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

/* The descriptors: one a matrix, and one more of the first that counts routes. */
static void fill_args(const buffers &b, const cell_wanted &wanted, const cell_settings &settings)
{
    const cell_shape &shape = wanted.shape;
    const int pages = (shape.width >> page_size_log2) + 1;
    const size_t stride = (size_t)shape.width + (size_t)settings.pad;
    const size_t score_bytes = topk_dtype_bytes(settings.options.dtype);
    for (int group = 0; group <= b.groups; group++) {
        struct topk_args args = {};
        const size_t first = (size_t)(group % b.groups) * shape.rows;
        args.scores = b.scores + first * stride * score_bytes;
        args.row_stride = (int64_t)stride;
        args.lengths = b.lengths + first;
        args.indices = b.indices + first * wanted.k;
        args.index_stride = wanted.k;
        args.values = b.values != nullptr ? b.values + first * wanted.k : nullptr;
        args.value_stride = wanted.k;
        args.page_table = b.pages != nullptr ? b.pages + first * pages : nullptr;
        args.page_table_stride = args.page_table_width = pages;
        args.page_size_log2 = page_size_log2;
        args.row_offsets = b.offsets != nullptr ? b.offsets + first : nullptr;
        args.num_rows = shape.rows;
        args.width = shape.width;
        args.k = wanted.k;
        args.routes = group == b.groups ? b.routes : nullptr;
        CHECK_CUDA(cudaMemcpy(reinterpret_cast<char *>(b.args) + group * 256, &args, sizeof(args),
                              cudaMemcpyHostToDevice));
    }
}

/*
 * The outputs beside the positions. Pages lie where they would without a table and offsets are 0,
 * so that the same check holds; what is read and computed is the same with others.
 */
static void fill_outputs(const buffers &b, const cell_wanted &wanted)
{
    const size_t rows = (size_t)wanted.shape.rows * b.groups;
    if (b.pages != nullptr) {
        bench_fill_pages(b.pages, (long)rows, (wanted.shape.width >> page_size_log2) + 1);
    }
    if (b.offsets != nullptr) {
        CHECK_CUDA(cudaMemset(b.offsets, 0, rows * sizeof(int)));
    }
}

static void fill_buffers(buffers &b, const cell_wanted &wanted, const struct topk_plan &plan,
                         const cell_settings &settings)
{
    const cell_shape &shape = wanted.shape;
    const size_t score_bytes = topk_dtype_bytes(settings.options.dtype);
    const long stride = shape.width + (long)settings.pad;
    const size_t rows = (size_t)shape.rows * b.groups;
    std::vector<int> lengths(rows);
    double bytes = 0, length = 0;
    for (size_t row = 0; row < rows; row++) {
        lengths[row] = cell_length(shape, (int)(row % shape.rows), (long)row);
        bytes += (double)lengths[row] * (double)score_bytes;
        length += lengths[row] / (double)rows;
    }
    b.bytes = bytes / b.groups;
    CHECK_CUDA(cudaMemcpy(b.lengths, lengths.data(), rows * sizeof(int), cudaMemcpyHostToDevice));
    const struct bench_rows inputs = {
        b.lengths, (long)rows, shape.width,
        stride,    wanted.k,   (float)(bench_sample_period(plan, (int)length) / length)};
    bench_fill(b.scores, settings.options.dtype, inputs, wanted.scores);
    fill_outputs(b, wanted);
    fill_args(b, wanted, settings);
    CHECK_CUDA(cudaDeviceSynchronize());
}

static const struct topk_args *args_of(const buffers &b, int group)
{
    return reinterpret_cast<const struct topk_args *>(reinterpret_cast<const char *>(b.args) +
                                                      group * 256);
}

static void enqueue(const struct topk_plan &plan, const struct topk_args *args, void *workspace)
{
    char detail[TOPK_DETAIL_SIZE];
    if (topk_cuda_enqueue(&plan, args, workspace, stream, detail) != TOPK_OK) {
        fprintf(stderr, "enqueue: %s\n", detail);
        exit(2);
    }
}

/* Median of graph replays; a replay selects every group once. */
static double time_plan(const struct topk_plan &plan, const buffers &b, void *workspace)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int group = 0; group < b.groups; group++) {
        enqueue(plan, args_of(b, group), workspace);
    }
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    std::vector<float> times;
    float total = 0;
    for (int i = 0; i < 32 && (total < 60 || i < 5); i++) {
        float ms;
        CHECK_CUDA(cudaEventRecord(begin, stream));
        CHECK_CUDA(cudaGraphLaunch(exec, stream));
        CHECK_CUDA(cudaEventRecord(end, stream));
        CHECK_CUDA(cudaEventSynchronize(end));
        CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2) { /* two to warm up */
            times.push_back(ms);
            total += ms;
        }
    }
    std::sort(times.begin(), times.end());
    CHECK_CUDA(cudaEventDestroy(begin));
    CHECK_CUDA(cudaEventDestroy(end));
    CHECK_CUDA(cudaGraphExecDestroy(exec));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return times[times.size() / 2] * 1e3 / b.groups;
}

/* False, with a text on standard error, when the device cannot run the plan. */
static bool load_plan(const struct topk_plan &plan, void *workspace)
{
    char detail[TOPK_DETAIL_SIZE] = "";
    if (topk_cuda_load(&plan, detail) != TOPK_OK ||
        topk_cuda_workspace_init(&plan, workspace, stream, detail) != TOPK_OK) {
        fprintf(stderr, "load: %s\n", detail);
        return false;
    }
    return true;
}

static void measure(const struct topk_plan &plan, const buffers &b, const cell_wanted &wanted,
                    const cell_settings &settings, void *workspace, cell_figures &figures)
{
    const cell_shape &shape = wanted.shape;
    const size_t rows = (size_t)shape.rows * b.groups;
    CHECK_CUDA(cudaMemsetAsync(b.indices, 0x7f, rows * wanted.k * sizeof(int), stream));
    CHECK_CUDA(cudaMemsetAsync(b.routes, 0, sizeof(struct topk_routes), stream));
    figures.us = time_plan(plan, b, workspace);
    if (settings.check) {
        const struct bench_result result = {b.indices, b.values, wanted.k,
                                            settings.options.order == TOPK_ORDER_INDEX,
                                            settings.options.order == TOPK_ORDER_VALUE};
        const long stride = shape.width + (long)settings.pad;
        const struct bench_rows inputs = {b.lengths, (long)rows, shape.width, stride, wanted.k, 0};
        figures.inexact =
            bench_check(b.scores, settings.options.dtype, inputs, result, b.bits, b.bad, stream);
    }
    enqueue(plan, args_of(b, b.groups), workspace);
    CHECK_CUDA(cudaMemcpyAsync(&figures.routes, b.routes, sizeof(figures.routes),
                               cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    figures.floor_us = b.bytes / floor_bytes_per_us;
    /* The routes are those of the first matrix, the bytes the mean of all. */
    figures.reads =
        (double)figures.routes.scores_read * topk_dtype_bytes(settings.options.dtype) / b.bytes;
    figures.policy =
        std::string(topk_family_name(plan.family)) + ":" + std::to_string(plan.variant);
}

/* ---- the device of the cells ----------------------------------------------------------------- */

const char *const cells_program = "bench_cuda_select";

bool cells_device_open(const cell_settings &settings, const std::vector<cell_shape> &shapes)
{
    char detail[TOPK_DETAIL_SIZE];
    if (topk_cuda_device(0, &device, detail) != TOPK_OK) {
        fprintf(stderr, "%s\n", detail);
        return false;
    }
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return open_arena(settings, shapes);
}

void cells_device_close()
{
    CHECK_CUDA(cudaStreamDestroy(stream));
    CHECK_CUDA(cudaFree(arena.base));
}

void cells_device_measure(const cell_settings &settings, const cell_wanted &wanted,
                          const cell_report &report)
{
    const std::vector<named_plan> plans = cell_plans(settings, device, wanted);
    if (plans.empty()) {
        fprintf(stderr, "%s %s: no family that was asked for serves it\n", cell_key(wanted).c_str(),
                topk_dtype_name(settings.options.dtype));
        return;
    }
    buffers buffers = take_buffers(wanted, settings);
    fill_buffers(buffers, wanted, plans[0].plan, settings);
    for (const named_plan &one : plans) {
        void *workspace;
        cell_figures figures = {};
        figures.variant = one.variant;
        CHECK_CUDA(cudaMalloc(&workspace, (size_t)one.plan.workspace_bytes));
        if (load_plan(one.plan, workspace)) {
            measure(one.plan, buffers, wanted, settings, workspace, figures);
            report(figures);
        } else if (one.variant.empty()) {
            exit(2); /* the planner's own choice must run */
        }
        CHECK_CUDA(cudaFree(workspace));
    }
}
