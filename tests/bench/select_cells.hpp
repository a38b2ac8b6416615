/*
 * select_cells.hpp - the cells of a selection benchmark: what to measure, and how it is reported.
 *
 * A cell is a shape with K, a family of scores and options. This part knows no device: a program
 * defines the functions of `cells_device` below and links select_{cells,cells_main,plans}.cpp. So
 * the GPU's benchmark (bench_cuda_select) and its stand-in on the CPU selector (bench_cpu_cells)
 * take the same command line and write the same files.
 */
#ifndef TOPKD_BENCH_SELECT_CELLS_HPP
#define TOPKD_BENCH_SELECT_CELLS_HPP

#include "score_kinds.hpp"
#include "topk_select.h"
#include "trace_calls.h"

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

struct cell_shape {
    int rows, width;
    int first_token; /* of a call of a trace: row r has so many + r + 1 valid scores; else -1 */
};

struct plan_choice {
    int family; /* -1: the planner's */
    int variant;
};

/* Changes of one field of a plan, "margin=48". */
typedef std::pair<std::string, long> plan_override;

struct cell_settings {
    std::vector<cell_shape> shapes;
    std::vector<std::string> traces; /* texts of trace_request_parse; then no shapes */
    std::vector<int> ks = {2048};
    std::vector<enum bench_scores> scores = {BENCH_INDEXER};
    std::vector<plan_choice> plans = {{-1, -1}};
    std::vector<plan_override> overrides; /* all of them in every cell */
    std::vector<plan_override> sweep;     /* each alone, in further cells */
    struct topk_options options = {};
    bool values = false, pages = false, offsets = false; /* outputs beside the positions */
    bool variants = false;                               /* every policy of every family */
    int groups_max = 64;                                 /* as the anchors were measured */
    int pad = 0;                                         /* scores between one row and the next */
    bool check = true;
    bool list = false; /* the calls of the traces, and no more */
    double seconds = 1e9;
    FILE *csv = nullptr, *routes = nullptr, *trace_csv = nullptr;
    std::map<std::string, double> anchors; /* best exact selector, by cell_key */
};

/* A cell without its options, which are those of the settings. */
struct cell_wanted {
    cell_shape shape;
    int k;
    enum bench_scores scores;
};

struct cell_figures {
    std::string policy;  /* which plan, "tiles:0" */
    std::string variant; /* what was forced of it, "row:3" or "margin=48"; empty: nothing */
    double us, floor_us;
    double reads; /* of a row, samples included */
    int inexact;  /* rows */
    struct topk_routes routes;
};

typedef std::function<void(const cell_figures &)> cell_report;

/* "k,scores,rows,width", as in the first columns of the files. */
std::string cell_key(const cell_wanted &wanted);

/* The valid length of a row; `run` counts rows over all matrices of a rotation. */
int cell_length(const cell_shape &shape, int row, long run);

/* False, with a text on standard error, when an argument is wrong. --help ends the program. */
bool cells_parse(int argc, char **argv, const char *program, cell_settings &settings);

/* Whether a plan has a field of this name that may be changed. */
bool plan_override_known(const std::string &field);

/* Changes a field of a plan; false when the plan has no such field, or cannot run so. */
bool plan_override_apply(struct topk_plan &plan, const plan_override &change);

/*
 * The plans of a cell that serve its shape, with the name of what was forced; the planner's own
 * has none.
 */
struct named_plan {
    struct topk_plan plan;
    std::string variant;
};
std::vector<named_plan> cell_plans(const cell_settings &settings, const struct topk_device &device,
                                   const cell_wanted &wanted);

/* ---- what a device's program defines --------------------------------------------------------- */

/* Its name, for messages. */
extern const char *const cells_program;

/* Prepares the device for cells of these shapes; false, with a text on standard error, when there
 * is none, or not enough memory of it. */
bool cells_device_open(const cell_settings &settings, const std::vector<cell_shape> &shapes);
void cells_device_close();

/* Measures a cell with each of its plans, and reports each. */
void cells_device_measure(const cell_settings &settings, const cell_wanted &wanted,
                          const cell_report &report);

#endif
