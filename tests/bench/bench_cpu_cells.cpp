/*
 * bench_cpu_cells - bench_cuda_select's cells on the CPU selector.
 *
 * It stands in for the GPU where what surrounds the measuring is tested, and times the traces of
 * long requests at a part of their size ("--trace 245K/32"). A cell is one matrix, so that small
 * ones come from a cache; bench_cpu_select is the benchmark of the CPU selector. There are no
 * plans: what forces one is refused.
 */
#include "bench_cpu_floor.h"
#include "inputs.h"
#include "oracle.h"
#include "select_cells.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>

const char *const cells_program = "bench_cpu_cells";

static const int rounds = 3;
static struct topk_cpu *cpu;
static struct bench_floor *floor_threads;

/* The family of tests/support that is a family of the GPU's scores. */
static enum inputs_family family_of(enum bench_scores scores)
{
    switch (scores) {
    case BENCH_INDEXER:
        return INPUTS_INDEXER;
    case BENCH_NORMAL:
        return INPUTS_NORMAL;
    case BENCH_TIES:
        return INPUTS_TIES;
    case BENCH_CLUSTERED:
        return INPUTS_CLUSTERED;
    case BENCH_ASCENDING:
        return INPUTS_ASCENDING;
    case BENCH_DESCENDING:
        return INPUTS_DESCENDING;
    case BENCH_SAW:
        return INPUTS_SAW_TOOTH;
    case BENCH_TILE:
        return INPUTS_ONE_TILE;
    default:
        return INPUTS_CONSTANT;
    }
}

/* A matrix, its lengths and all outputs that a selection may have. */
struct matrix {
    std::vector<float> scores, values; /* the scores' memory, whatever their type */
    std::vector<int32_t> lengths, indices, pages, offsets;
    std::vector<int32_t> floor_lengths; /* floats that a row's valid scores take */
    struct topk_args args = {};
    int64_t valid = 0; /* scores */
};

static const uint32_t page_size_log2 = 6;

static void fill(matrix &m, const cell_settings &settings, const cell_wanted &wanted)
{
    const cell_shape &shape = wanted.shape;
    const size_t rows = (size_t)shape.rows, results = rows * (size_t)wanted.k;
    struct inputs_spec spec = {};
    spec.family = family_of(wanted.scores);
    spec.seed = 7;
    spec.num_rows = shape.rows;
    spec.width = shape.width;
    spec.row_stride = (int64_t)shape.width + settings.pad;
    spec.k = wanted.k;
    const size_t score_bytes = topk_dtype_bytes(settings.options.dtype);
    m.scores.resize((inputs_elements(&spec) * score_bytes + 3) / sizeof(float));
    inputs_fill_typed(&spec, settings.options.dtype, nullptr, m.scores.data());
    for (size_t row = 0; row < rows; row++) {
        m.lengths.push_back(cell_length(shape, (int)row, (long)row));
        m.floor_lengths.push_back(
            (int32_t)((size_t)m.lengths.back() * score_bytes / sizeof(float)));
        m.valid += m.lengths.back();
    }
    m.indices.resize(results);
    m.args.scores = m.scores.data();
    m.args.row_stride = spec.row_stride;
    m.args.lengths = m.lengths.data();
    m.args.indices = m.indices.data();
    m.args.index_stride = m.args.value_stride = wanted.k;
    m.args.num_rows = shape.rows;
    m.args.width = shape.width;
    m.args.k = wanted.k;
    if (settings.values) {
        m.values.resize(results);
        m.args.values = m.values.data();
    }
    if (settings.pages) {
        const int32_t pages = (shape.width >> page_size_log2) + 1;
        m.pages.resize(rows * (size_t)pages);
        inputs_fill_pages(7, shape.rows, pages, pages, m.pages.data());
        m.args.page_table = m.pages.data();
        m.args.page_table_stride = m.args.page_table_width = pages;
        m.args.page_size_log2 = page_size_log2;
    }
    if (settings.offsets) {
        m.offsets.resize(rows, 1000);
        m.args.row_offsets = m.offsets.data();
    }
}

static double now_us()
{
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(now).count();
}

static void select_once(const matrix &m, const cell_settings &settings, struct topk_routes *routes)
{
    char detail[TOPK_DETAIL_SIZE];
    struct topk_args args = m.args;
    args.routes = routes;
    if (topk_cpu_select(cpu, &args, &settings.options, nullptr, detail) != TOPK_OK) {
        fprintf(stderr, "bench_cpu_cells: %s\n", detail);
        exit(2);
    }
}

bool cells_device_open(const cell_settings &, const std::vector<cell_shape> &)
{
    char detail[TOPK_DETAIL_SIZE];
    struct topk_cpu_config config = {};
    if (topk_cpu_create(&config, &cpu, detail) != TOPK_OK) {
        fprintf(stderr, "bench_cpu_cells: %s\n", detail);
        return false;
    }
    floor_threads = bench_floor_start(topk_cpu_num_threads(cpu));
    return true;
}

void cells_device_close()
{
    bench_floor_stop(floor_threads);
    topk_cpu_destroy(cpu);
}

void cells_device_measure(const cell_settings &settings, const cell_wanted &wanted,
                          const cell_report &report)
{
    if (settings.variants || !settings.overrides.empty() || !settings.sweep.empty() ||
        settings.plans.size() != 1 || settings.plans[0].family >= 0) {
        fprintf(stderr, "bench_cpu_cells: the CPU selector has no plans; leave --plan, --variants, "
                        "--set and --sweep to bench_cuda_select\n");
        exit(2);
    }
    matrix m;
    fill(m, settings, wanted);
    cell_figures figures = {};
    select_once(m, settings, &figures.routes);
    char detail[ORACLE_DETAIL_SIZE];
    if (settings.check && !oracle_check(&m.args, &settings.options, detail)) {
        fprintf(stderr, "bench_cpu_cells: WRONG: %s\n", detail);
        figures.inexact = wanted.shape.rows; /* the oracle stops at the first */
    }
    double times[rounds], floors[rounds];
    int64_t found = 0;
    const int32_t floor_width = (int32_t)((size_t)wanted.shape.width *
                                          topk_dtype_bytes(settings.options.dtype) / sizeof(float));
    const int64_t floor_stride =
        m.args.row_stride * (int64_t)topk_dtype_bytes(settings.options.dtype) / 4;
    for (int i = 0; i < rounds; i++) {
        const double begin = now_us();
        select_once(m, settings, nullptr);
        const double middle = now_us();
        found += bench_floor_run(floor_threads, m.scores.data(), floor_stride,
                                 m.floor_lengths.data(), wanted.shape.rows, floor_width, 0.5f);
        times[i] = middle - begin;
        floors[i] = now_us() - middle;
    }
    std::sort(times, times + rounds);
    std::sort(floors, floors + rounds);
    figures.us = times[rounds / 2];
    figures.floor_us = found >= 0 ? floors[rounds / 2] : 0;
    figures.reads = (double)figures.routes.scores_read / (double)std::max<int64_t>(m.valid, 1);
    figures.policy = std::string("cpu:") + topk_cpu_isa(cpu);
    report(figures);
}
