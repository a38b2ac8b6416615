/*
 * bench_cuda_select - times the CUDA selectors shape by shape and checks every row on the device.
 *
 *   bench_cuda_select [--shapes matrix|decode|mid|more|all|RxW,...] [--k K,...] [--scores NAME,...]
 *                     [--plan auto|FAMILY[:VARIANT],...] [--set FIELD=VALUE]... [--deterministic]
 *                     [--by-value] [--groups N] [--csv FILE] [--routes FILE] [--anchors FILE]
 *                     [--no-check] [--seconds S]
 *
 * Method: README.md beside this file. One line a cell on standard output; the exit status is 1 when
 * any row of any cell was inexact.
 */
#include "bench_cuda_inputs.cuh"
#include "topk_select.h"

#include "plan/policy.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
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

struct shape {
    int rows, width;
};

struct plan_choice {
    int family; /* -1: the planner's */
    int variant;
};

struct settings {
    std::vector<shape> shapes;
    std::vector<int> ks = {2048};
    std::vector<enum bench_scores> scores = {BENCH_INDEXER};
    std::vector<plan_choice> plans = {{-1, -1}};
    std::vector<std::pair<std::string, long>> overrides;
    struct topk_options options = {TOPK_ORDER_ANY, TOPK_TIES_ANY};
    int groups_max = 64; /* as the anchors were measured */
    bool check = true;
    double seconds = 1e9;
    FILE *csv = nullptr, *routes = nullptr;
    std::map<std::string, double> anchors; /* best exact selector, by "k,scores,rows,width" */
};

struct cell {
    double us, floor_us, reads;
    int inexact;
    struct topk_routes routes;
};

/* ---- arguments ------------------------------------------------------------------------------- */

static std::vector<std::string> split(const std::string &text)
{
    std::vector<std::string> parts;
    size_t begin = 0;
    while (begin <= text.size()) {
        size_t end = std::min(text.find(',', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

static void add_grid(std::vector<shape> &shapes, std::vector<int> rows, std::vector<int> widths)
{
    for (int width : widths) {
        for (int row : rows) {
            shapes.push_back({row, width});
        }
    }
}

static bool parse_shapes(const std::string &text, std::vector<shape> &shapes)
{
    for (const std::string &part : split(text)) {
        shape one;
        bool all = part == "all", known = all;
        if (all || part == "decode") {
            add_grid(shapes, {1, 4, 16, 64}, {8192, 32768, 131072, 524288, 1048576});
            known = true;
        }
        if (all || part == "mid") {
            add_grid(shapes, {128, 512, 2048, 8192}, {4096, 16384, 65536});
            known = true;
        }
        if (all || part == "more") {
            add_grid(shapes, {32, 100, 192, 264, 396, 400, 792, 800}, {131072});
            add_grid(shapes, {64}, {65536});
            add_grid(shapes, {100, 192}, {262144});
            add_grid(shapes, {264}, {524288});
            known = true;
        }
        if (all || part == "matrix") {
            add_grid(shapes, {512, 1024, 2048, 4096, 8192}, {131072, 262144, 524288, 1048576});
            known = true;
        }
        if (!known && sscanf(part.c_str(), "%dx%d", &one.rows, &one.width) == 2) {
            shapes.push_back(one);
            known = true;
        }
        if (!known) {
            fprintf(stderr, "unknown shape '%s'\n", part.c_str());
            return false;
        }
    }
    return true;
}

static bool parse_plans(const std::string &text, std::vector<plan_choice> &plans)
{
    plans.clear();
    for (const std::string &part : split(text)) {
        std::string name = part.substr(0, part.find(':'));
        plan_choice choice = {-1, -1};
        for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
            if (name == topk_family_name((enum topk_family)family)) {
                choice.family = family;
            }
        }
        if (choice.family < 0 && name != "auto") {
            fprintf(stderr, "unknown family '%s'\n", name.c_str());
            return false;
        }
        if (name.size() < part.size()) {
            choice.variant = atoi(part.c_str() + name.size() + 1);
        }
        plans.push_back(choice);
    }
    return true;
}

static bool parse_scores(const std::string &text, std::vector<enum bench_scores> &scores)
{
    scores.clear();
    for (const std::string &part : split(text)) {
        int found = -1;
        for (int i = 0; i < BENCH_SCORES_COUNT; i++) {
            found = part == bench_scores_names[i] ? i : found;
        }
        if (found < 0) {
            fprintf(stderr, "unknown scores '%s'\n", part.c_str());
            return false;
        }
        scores.push_back((enum bench_scores)found);
    }
    return true;
}

/* The anchors file: the best time of each cell among selectors that got every row right. */
static bool read_anchors(const char *path, std::map<std::string, double> &anchors)
{
    FILE *file = fopen(path, "r");
    if (file == nullptr) {
        fprintf(stderr, "cannot open %s\n", path);
        return false;
    }
    char line[256], scores[32], selector[64], time[32];
    int k, rows, width, inexact;
    double floor_us;
    while (fgets(line, sizeof(line), file) != nullptr) {
        if (sscanf(line, "%d,%31[^,],%d,%d,%lf,%63[^,],%31[^,],%d", &k, scores, &rows, &width,
                   &floor_us, selector, time, &inexact) != 8 ||
            inexact != 0 || atof(time) <= 0) {
            continue;
        }
        std::string key = std::to_string(k) + "," + scores + "," + std::to_string(rows) + "," +
                          std::to_string(width);
        auto found = anchors.find(key);
        if (found == anchors.end() || atof(time) < found->second) {
            anchors[key] = atof(time);
        }
    }
    fclose(file);
    return true;
}

static const char usage[] =
    "usage: bench_cuda_select [OPTION...]\n"
    "Times the CUDA selector shape by shape and checks every row on the device.\n\n"
    "  --shapes LIST     matrix (default), decode, mid, all, or ROWSxWIDTH, separated by commas\n"
    "  --k LIST          default 2048\n"
    "  --scores LIST     indexer (default), normal, ties, clustered, const\n"
    "  --deterministic   lowest positions in index order\n"
    "  --by-value        in the order of values\n"
    "  --plan LIST       FAMILY:POLICY, instead of the planner's choice\n"
    "  --set FIELD=N     changes one field of the plan\n"
    "  --groups N        at most so many matrices in turn\n"
    "  --seconds S       begins no cell after so long\n"
    "  --no-check        does not check the rows\n"
    "  --anchors FILE    compares with the best time of each shape there\n"
    "  --csv FILE, --routes FILE   write the times, and the routes of the rows\n\n"
    "Exit code: 0 every row exact, 1 not, 2 wrong command line or no device.\n"
    "tests/bench/README.md has the method.\n";

static bool parse(int argc, char **argv, settings &settings)
{
    std::string shapes = "matrix";
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool flag = true;
        if (name == "--help" || name == "-h") {
            fputs(usage, stdout);
            exit(0);
        }
        if (name == "--deterministic") {
            settings.options = {TOPK_ORDER_INDEX, TOPK_TIES_LOWEST};
        } else if (name == "--by-value") {
            settings.options = {TOPK_ORDER_VALUE, TOPK_TIES_LOWEST};
        } else if (name == "--no-check") {
            settings.check = false;
        } else {
            flag = false;
        }
        if (flag) {
            continue;
        }
        i++;
        if (name == "--shapes") {
            shapes = value;
        } else if (name == "--k") {
            settings.ks.clear();
            for (const std::string &k : split(value)) {
                settings.ks.push_back(atoi(k.c_str()));
            }
        } else if (name == "--scores") {
            if (!parse_scores(value, settings.scores)) {
                return false;
            }
        } else if (name == "--plan") {
            if (!parse_plans(value, settings.plans)) {
                return false;
            }
        } else if (name == "--set" && strchr(value, '=') != nullptr) {
            std::string text = value;
            size_t at = text.find('=');
            settings.overrides.push_back({text.substr(0, at), atol(text.c_str() + at + 1)});
        } else if (name == "--groups") {
            settings.groups_max = std::max(1, atoi(value));
        } else if (name == "--seconds") {
            settings.seconds = atof(value);
        } else if (name == "--csv" || name == "--routes") {
            FILE *file = fopen(value, "w");
            if (file == nullptr) {
                fprintf(stderr, "cannot write %s\n", value);
                return false;
            }
            (name == "--csv" ? settings.csv : settings.routes) = file;
        } else if (name == "--anchors") {
            if (!read_anchors(value, settings.anchors)) {
                return false;
            }
        } else {
            fprintf(stderr, "unknown argument '%s'\n", name.c_str());
            return false;
        }
    }
    return parse_shapes(shapes, settings.shapes);
}

/* Changes one field of a plan, to measure a policy that is not in the tables. */
static bool override_plan(struct topk_plan &plan, const std::string &field, long value)
{
    static const char *const parameters[] = {"programmatic", "stages",      "margin", "sample_min",
                                             "sample_max",   "part_scores", "snap",   "prefetch"};
    for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++) {
        if (field == parameters[i]) {
            plan.parameters[i] = value;
            if (i == TOPK_PARAMETER_STAGES) {
                return false; /* shared memory depends on it */
            }
            return true;
        }
    }
    if (field == "sample_stride") {
        plan.sample_stride = (int32_t)value;
        return true;
    }
    if (field == "blocks") {
        plan.num_blocks = (int32_t)value;
        return true;
    }
    return false;
}

/* ---- one cell -------------------------------------------------------------------------------- */

struct buffers {
    float *scores = nullptr;
    int *lengths = nullptr, *indices = nullptr, *bad = nullptr;
    struct topk_args *args = nullptr; /* [groups], then one that counts routes */
    struct topk_routes *routes = nullptr;
    unsigned *bits = nullptr;
    int groups = 1;
    double bytes = 0; /* valid scores of one group */
};

static void fill_buffers(buffers &b, const shape &shape, int k, enum bench_scores scores,
                         const settings &settings)
{
    const size_t one = (size_t)shape.rows * shape.width * sizeof(float);
    b.groups = (int)std::max<size_t>(
        1, std::min<size_t>((size_t)settings.groups_max, rotated_bytes / one));
    const size_t rows = (size_t)shape.rows * b.groups;
    CHECK_CUDA(cudaMalloc(&b.scores, one * b.groups));
    CHECK_CUDA(cudaMalloc(&b.lengths, rows * sizeof(int)));
    CHECK_CUDA(cudaMalloc(&b.indices, rows * k * sizeof(int)));
    CHECK_CUDA(cudaMalloc(&b.bad, sizeof(int)));
    CHECK_CUDA(cudaMalloc(&b.args, (b.groups + 1) * 256));
    CHECK_CUDA(cudaMalloc(&b.routes, sizeof(struct topk_routes)));
    CHECK_CUDA(cudaMemset(b.routes, 0, sizeof(struct topk_routes)));
    if (settings.check) {
        CHECK_CUDA(cudaMalloc(&b.bits, bench_check_words(shape.width) * rows * sizeof(unsigned)));
    }
    std::vector<int> lengths(rows);
    double bytes = 0;
    for (size_t row = 0; row < rows; row++) {
        lengths[row] = bench_length((int)(row % shape.rows), (long)row, shape.rows, shape.width);
        bytes += lengths[row] * 4.0;
    }
    b.bytes = bytes / b.groups;
    CHECK_CUDA(cudaMemcpy(b.lengths, lengths.data(), rows * sizeof(int), cudaMemcpyHostToDevice));
    bench_fill(b.scores, b.lengths, (long)rows, shape.width, scores);
    for (int group = 0; group <= b.groups; group++) {
        struct topk_args args = {};
        const size_t first = (size_t)(group % b.groups) * shape.rows;
        args.scores = b.scores + first * shape.width;
        args.row_stride = shape.width;
        args.lengths = b.lengths + first;
        args.indices = b.indices + first * k;
        args.index_stride = k;
        args.num_rows = shape.rows;
        args.width = shape.width;
        args.k = k;
        args.routes = group == b.groups ? b.routes : nullptr;
        CHECK_CUDA(cudaMemcpy(reinterpret_cast<char *>(b.args) + group * 256, &args, sizeof(args),
                              cudaMemcpyHostToDevice));
    }
    CHECK_CUDA(cudaDeviceSynchronize());
}

static void free_buffers(buffers &b)
{
    void *all[] = {b.scores, b.lengths, b.indices, b.bad, b.args, b.routes, b.bits};
    for (void *one : all) {
        CHECK_CUDA(cudaFree(one));
    }
}

static const struct topk_args *args_of(const buffers &b, int group)
{
    return reinterpret_cast<const struct topk_args *>(reinterpret_cast<const char *>(b.args) +
                                                      group * 256);
}

static void enqueue(const struct topk_plan &plan, const struct topk_args *args, void *workspace,
                    cudaStream_t stream)
{
    char detail[TOPK_DETAIL_SIZE];
    if (topk_cuda_enqueue(&plan, args, workspace, stream, detail) != TOPK_OK) {
        fprintf(stderr, "enqueue: %s\n", detail);
        exit(2);
    }
}

/* Median of graph replays; a replay selects every group once. */
static double time_plan(const struct topk_plan &plan, const buffers &b, void *workspace,
                        cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int group = 0; group < b.groups; group++) {
        enqueue(plan, args_of(b, group), workspace, stream);
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

static cell measure(const struct topk_plan &plan, const buffers &b, const shape &shape, int k,
                    const settings &settings, cudaStream_t stream)
{
    char detail[TOPK_DETAIL_SIZE] = "";
    void *workspace;
    cell cell = {};
    CHECK_CUDA(cudaMalloc(&workspace, (size_t)plan.workspace_bytes));
    if (topk_cuda_load(&plan, detail) != TOPK_OK ||
        topk_cuda_workspace_init(&plan, workspace, stream, detail) != TOPK_OK) {
        fprintf(stderr, "load: %s\n", detail);
        exit(2);
    }
    const size_t rows = (size_t)shape.rows * b.groups;
    CHECK_CUDA(cudaMemsetAsync(b.indices, 0x7f, rows * k * sizeof(int), stream));
    CHECK_CUDA(cudaMemsetAsync(b.routes, 0, sizeof(struct topk_routes), stream));
    cell.us = time_plan(plan, b, workspace, stream);
    if (settings.check) {
        bool ordered = settings.options.order == TOPK_ORDER_INDEX;
        cell.inexact = bench_check(b.scores, b.lengths, b.indices, (long)rows, shape.width, k,
                                   ordered, b.bits, b.bad, stream);
    }
    enqueue(plan, args_of(b, b.groups), workspace, stream);
    CHECK_CUDA(cudaMemcpyAsync(&cell.routes, b.routes, sizeof(cell.routes), cudaMemcpyDeviceToHost,
                               stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaFree(workspace));
    cell.floor_us = b.bytes / floor_bytes_per_us;
    cell.reads = (double)cell.routes.scores_read * 4.0 / b.bytes;
    return cell;
}

/* ---- output ---------------------------------------------------------------------------------- */

struct summary {
    double log_floor = 0, log_anchor = 0;
    int cells = 0, anchored = 0, slower = 0, inexact = 0;
};

static void report(const settings &settings, const shape &shape, int k, enum bench_scores scores,
                   const struct topk_plan &plan, const cell &cell, summary &summary)
{
    const char *name = bench_scores_names[scores];
    std::string key = std::to_string(k) + "," + name + "," + std::to_string(shape.rows) + "," +
                      std::to_string(shape.width);
    auto anchor = settings.anchors.find(key);
    char versus[48] = "";
    summary.cells++;
    summary.log_floor += log(cell.us / cell.floor_us);
    summary.inexact += cell.inexact;
    if (anchor != settings.anchors.end()) {
        double ratio = anchor->second / cell.us;
        summary.anchored++;
        summary.log_anchor += log(ratio);
        summary.slower += ratio < 1.0 ? 1 : 0;
        snprintf(versus, sizeof(versus), " best %8.1f %5.2fx%s", anchor->second, ratio,
                 ratio < 1.0 ? " SLOWER" : "");
    }
    printf("%-5d %-9s %5dx%-8d %-5s:%d %9.2f us %6.2f floor%s reads %.2f", k, name, shape.rows,
           shape.width, topk_family_name(plan.family), plan.variant, cell.us,
           cell.us / cell.floor_us, versus, cell.reads);
    const struct topk_routes &r = cell.routes;
    if (r.band + r.recovery + r.spill > 0) {
        printf(" band %llu recovery %llu spill %llu", (unsigned long long)r.band,
               (unsigned long long)r.recovery, (unsigned long long)r.spill);
    }
    printf("%s\n", cell.inexact != 0 ? " INEXACT" : "");
    fflush(stdout);
    if (settings.csv != nullptr) {
        fprintf(settings.csv, "%d,%s,%d,%d,%.3f,topkd,%.2f,%d\n", k, name, shape.rows, shape.width,
                cell.floor_us, cell.us, cell.inexact);
        fflush(settings.csv);
    }
    if (settings.routes != nullptr) {
        fprintf(settings.routes, "%d,%s,%d,%d,%s,%d,%llu,%llu,%llu,%llu,%llu,%llu,%.4f\n", k, name,
                shape.rows, shape.width, topk_family_name(plan.family), plan.variant,
                (unsigned long long)r.copied, (unsigned long long)r.direct,
                (unsigned long long)r.certified, (unsigned long long)r.band,
                (unsigned long long)r.recovery, (unsigned long long)r.spill, cell.reads);
        fflush(settings.routes);
    }
}

static void run_cells(const settings &settings, const struct topk_device &device, summary &summary)
{
    const auto start = std::chrono::steady_clock::now();
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (const shape &shape : settings.shapes) {
        for (int k : settings.ks) {
            for (enum bench_scores scores : settings.scores) {
                double spent =
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                if (spent > settings.seconds) {
                    printf("stopped after %.0f seconds, before %dx%d\n", spent, shape.rows,
                           shape.width);
                    return;
                }
                buffers buffers;
                fill_buffers(buffers, shape, k, scores, settings);
                for (const plan_choice &choice : settings.plans) {
                    struct topk_shape wanted = {k, shape.rows, shape.width,
                                                shape.width % 4 == 0 ? 16 : 4, settings.options};
                    struct topk_plan plan;
                    enum topk_status status =
                        choice.family < 0 ? topk_plan_make(&wanted, &device, &plan, nullptr)
                                          : topk_plan_make_family(&wanted, &device,
                                                                  (enum topk_family)choice.family,
                                                                  choice.variant, &plan, nullptr);
                    if (status != TOPK_OK) {
                        continue; /* this family does not serve the shape */
                    }
                    for (const auto &one : settings.overrides) {
                        if (!override_plan(plan, one.first, one.second)) {
                            fprintf(stderr, "cannot set '%s'\n", one.first.c_str());
                            exit(2);
                        }
                    }
                    cell cell = measure(plan, buffers, shape, k, settings, stream);
                    report(settings, shape, k, scores, plan, cell, summary);
                }
                free_buffers(buffers);
            }
        }
    }
    CHECK_CUDA(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    settings settings;
    struct topk_device device;
    char detail[TOPK_DETAIL_SIZE];
    if (!parse(argc, argv, settings)) {
        return 2;
    }
    if (topk_cuda_device(0, &device, detail) != TOPK_OK) {
        fprintf(stderr, "%s\n", detail);
        return 2;
    }
    if (settings.csv != nullptr) {
        fprintf(settings.csv,
                "k,scores,rows,width,read_floor_us,selector,us_per_call,inexact_rows\n");
    }
    if (settings.routes != nullptr) {
        fprintf(settings.routes, "k,scores,rows,width,family,variant,copied,direct,certified,band,"
                                 "recovery,spill,reads_of_row\n");
    }
    summary summary;
    run_cells(settings, device, summary);
    if (summary.cells > 0) {
        printf("%d cells, geometric mean %.3f x floor", summary.cells,
               exp(summary.log_floor / summary.cells));
        if (summary.anchored > 0) {
            printf("; %d with anchors: %.3f x faster than the best, %d slower", summary.anchored,
                   exp(summary.log_anchor / summary.anchored), summary.slower);
        }
        printf("; %d inexact rows\n", summary.inexact);
    }
    return summary.inexact != 0 ? 1 : 0;
}
