/* Runs the cells of the command line and reports them; see select_cells.hpp. */
#include "select_cells.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

struct summary {
    double log_floor = 0, log_anchor = 0;
    int cells = 0, anchored = 0, slower = 0, inexact = 0;
};

/* The best of the plans of a cell, and the planner's. */
struct contest {
    double best_us = INFINITY, default_us = INFINITY;
    std::string best;
    int plans = 0;
};

/* "topkd", with what was asked for beside the positions, how far rows lie apart, and what was
 * forced of the plan. */
static std::string selector_name(const cell_settings &settings, const std::string &variant)
{
    std::string name = "topkd";
    if (settings.options.dtype != TOPK_DTYPE_FLOAT32) {
        name += std::string("-") + topk_dtype_name(settings.options.dtype);
    }
    name += settings.options.order == TOPK_ORDER_INDEX ? "-deterministic" : "";
    name += settings.options.order == TOPK_ORDER_VALUE ? "-by-value" : "";
    name += settings.values ? "-values" : "";
    name += settings.pages ? "-pages" : "";
    name += settings.offsets ? "-offsets" : "";
    name += settings.pad > 0 ? "-pad" + std::to_string(settings.pad) : "";
    return variant.empty() ? name : name + "@" + variant;
}

static void print_cell(const cell_wanted &wanted, const cell_figures &figures, double anchor_us)
{
    printf("%-5d %-10s %5dx%-8d %-9s %9.2f us %6.2f floor", wanted.k,
           bench_scores_names[wanted.scores], wanted.shape.rows, wanted.shape.width,
           figures.policy.c_str(), figures.us, figures.us / figures.floor_us);
    if (anchor_us > 0) {
        const double ratio = anchor_us / figures.us;
        printf(" best %8.1f %5.2fx%s", anchor_us, ratio, ratio < 1.0 ? " SLOWER" : "");
    }
    printf(" reads %.2f", figures.reads);
    const struct topk_routes &r = figures.routes;
    if (r.band + r.recovery + r.spill > 0) {
        printf(" band %llu recovery %llu spill %llu", (unsigned long long)r.band,
               (unsigned long long)r.recovery, (unsigned long long)r.spill);
    }
    printf("%s%s%s\n", figures.variant.empty() ? "" : " with ", figures.variant.c_str(),
           figures.inexact != 0 ? " INEXACT" : "");
    fflush(stdout);
}

static void write_cell(const cell_settings &settings, const cell_wanted &wanted,
                       const cell_figures &figures)
{
    const std::string key = cell_key(wanted);
    if (settings.csv != nullptr) {
        fprintf(settings.csv, "%s,%.3f,%s,%.2f,%d\n", key.c_str(), figures.floor_us,
                selector_name(settings, figures.variant).c_str(), figures.us, figures.inexact);
        fflush(settings.csv);
    }
    if (settings.routes != nullptr) {
        const size_t colon = figures.policy.find(':');
        const struct topk_routes &r = figures.routes;
        fprintf(settings.routes, "%s,%s,%s,%llu,%llu,%llu,%llu,%llu,%llu,%.4f\n", key.c_str(),
                figures.policy.substr(0, colon).c_str(), figures.policy.substr(colon + 1).c_str(),
                (unsigned long long)r.copied, (unsigned long long)r.direct,
                (unsigned long long)r.certified, (unsigned long long)r.band,
                (unsigned long long)r.recovery, (unsigned long long)r.spill, figures.reads);
        fflush(settings.routes);
    }
}

static void report_cell(const cell_settings &settings, const cell_wanted &wanted,
                        const cell_figures &figures, summary &summary, contest &contest)
{
    const auto anchor = settings.anchors.find(cell_key(wanted));
    const double anchor_us = anchor == settings.anchors.end() ? 0 : anchor->second;
    summary.cells++;
    summary.log_floor += log(figures.us / figures.floor_us);
    summary.inexact += figures.inexact;
    if (anchor_us > 0) {
        summary.anchored++;
        summary.log_anchor += log(anchor_us / figures.us);
        summary.slower += anchor_us < figures.us ? 1 : 0;
    }
    print_cell(wanted, figures, anchor_us);
    write_cell(settings, wanted, figures);
    contest.plans++;
    if (figures.variant.empty()) {
        contest.default_us = figures.us;
    }
    if (figures.us < contest.best_us && figures.inexact == 0) {
        contest.best_us = figures.us;
        contest.best = figures.variant.empty() ? "the planner's" : figures.variant;
    }
}

/* One line after a cell with several plans: which was the fastest. */
static void print_contest(const cell_wanted &wanted, const contest &contest)
{
    if (contest.plans > 1 && contest.best_us < INFINITY) {
        printf("%-5d %-10s %5dx%-8d best of %d plans: %s, %.2f us, %.3f of the planner's\n",
               wanted.k, bench_scores_names[wanted.scores], wanted.shape.rows, wanted.shape.width,
               contest.plans, contest.best.c_str(), contest.best_us,
               contest.best_us / contest.default_us);
    }
}

/* ---- shapes, and the calls of traces --------------------------------------------------------- */

class clock_of_run
{
  public:
    explicit clock_of_run(double seconds) : seconds_(seconds)
    {
    }
    bool over() const
    {
        const auto spent = std::chrono::steady_clock::now() - start_;
        return std::chrono::duration<double>(spent).count() > seconds_;
    }

  private:
    const double seconds_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/* False when the time was up. */
static bool run_shapes(const cell_settings &settings, const clock_of_run &clock, summary &summary)
{
    for (const cell_shape &shape : settings.shapes) {
        for (int k : settings.ks) {
            for (enum bench_scores scores : settings.scores) {
                const cell_wanted wanted = {shape, k, scores};
                contest contest;
                if (clock.over()) {
                    printf("the time is up, before %s\n", cell_key(wanted).c_str());
                    return false;
                }
                cells_device_measure(settings, wanted, [&](const cell_figures &figures) {
                    report_cell(settings, wanted, figures, summary, contest);
                });
                print_contest(wanted, contest);
            }
        }
    }
    return true;
}

static void write_call(const cell_settings &settings, const std::string &trace,
                       const cell_wanted &wanted, const struct trace_call &call,
                       const cell_figures &figures)
{
    if (settings.trace_csv == nullptr) {
        return;
    }
    fprintf(settings.trace_csv, "%s,%d,%s,%d,%d,%d,%d,%lld,%.3f,%s,%.2f,%d\n", trace.c_str(),
            wanted.k, bench_scores_names[wanted.scores], call.step, call.rows, call.width,
            call.first_token, (long long)trace_call_scores(&call), figures.floor_us,
            selector_name(settings, figures.variant).c_str(), figures.us, figures.inexact);
    fflush(settings.trace_csv);
}

/* The calls of a request that cells_parse has read before. */
static std::vector<struct trace_call> calls_of(const std::string &trace)
{
    struct trace_request request = {};
    std::vector<struct trace_call> calls(TRACE_CALLS_MAX);
    trace_request_parse(trace.c_str(), &request);
    const int32_t count = trace_calls(&request, calls.data(), TRACE_CALLS_MAX);
    if (count > TRACE_CALLS_MAX) {
        fprintf(stderr, "trace %s has %d calls; pass one of at most %d\n", trace.c_str(), count,
                TRACE_CALLS_MAX);
        exit(2);
    }
    calls.resize((size_t)count);
    return calls;
}

/* The shapes of all cells. */
static std::vector<cell_shape> all_shapes(const cell_settings &settings)
{
    std::vector<cell_shape> shapes;
    if (settings.traces.empty()) {
        return settings.shapes;
    }
    for (const std::string &trace : settings.traces) {
        for (const struct trace_call &call : calls_of(trace)) {
            shapes.push_back({call.rows, call.width, call.first_token});
        }
    }
    return shapes;
}

static void list_calls(const cell_settings &settings)
{
    printf("trace,step,rows,width,first_token,valid_scores\n");
    for (const std::string &trace : settings.traces) {
        for (const struct trace_call &call : calls_of(trace)) {
            printf("%s,%d,%d,%d,%d,%lld\n", trace.c_str(), call.step, call.rows, call.width,
                   call.first_token, (long long)trace_call_scores(&call));
        }
    }
}

/* Every call of a request once, in their order; the sum of their medians is the request's time. */
static bool run_trace(const cell_settings &settings, const std::string &trace, int k,
                      enum bench_scores scores, const clock_of_run &clock, summary &summary)
{
    const std::vector<struct trace_call> calls = calls_of(trace);
    double us = 0, floor_us = 0;
    for (const struct trace_call &call : calls) {
        const cell_wanted wanted = {{call.rows, call.width, call.first_token}, k, scores};
        if (clock.over()) {
            printf("the time is up, before token %d of trace %s\n", call.first_token,
                   trace.c_str());
            return false;
        }
        contest contest;
        cells_device_measure(settings, wanted, [&](const cell_figures &figures) {
            report_cell(settings, wanted, figures, summary, contest);
            write_call(settings, trace, wanted, call, figures);
            us += contest.plans == 1 ? figures.us : 0;
            floor_us += contest.plans == 1 ? figures.floor_us : 0;
        });
    }
    printf("trace %s, K %d, %s: %zu calls in %d steps, %.2f ms, %.3f x floor\n", trace.c_str(), k,
           bench_scores_names[scores], calls.size(), calls.back().step + 1, us / 1e3,
           us / floor_us);
    return true;
}

static bool run_traces(const cell_settings &settings, const clock_of_run &clock, summary &summary)
{
    for (const std::string &trace : settings.traces) {
        for (int k : settings.ks) {
            for (enum bench_scores scores : settings.scores) {
                if (!run_trace(settings, trace, k, scores, clock, summary)) {
                    return false;
                }
            }
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    cell_settings settings;
    summary summary;
    if (!cells_parse(argc, argv, cells_program, settings)) {
        return 2;
    }
    if (settings.list) {
        list_calls(settings);
        return 0;
    }
    if (!cells_device_open(settings, all_shapes(settings))) {
        return 2;
    }
    const clock_of_run clock(settings.seconds);
    const bool finished = settings.traces.empty() ? run_shapes(settings, clock, summary)
                                                  : run_traces(settings, clock, summary);
    cells_device_close();
    for (FILE *file : {settings.csv, settings.routes, settings.trace_csv}) {
        if (file != nullptr && fclose(file) != 0) {
            perror(cells_program);
            return 2;
        }
    }
    if (summary.cells > 0) {
        printf("%d cells, geometric mean %.3f x floor", summary.cells,
               exp(summary.log_floor / summary.cells));
        if (summary.anchored > 0) {
            printf("; %d with anchors: %.3f x faster than the best, %d slower", summary.anchored,
                   exp(summary.log_anchor / summary.anchored), summary.slower);
        }
        printf("; %d inexact rows\n", summary.inexact);
    }
    return summary.inexact != 0 ? 1 : finished ? 0 : 3;
}
