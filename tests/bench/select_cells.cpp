/* The command line and the plans of a cell; see select_cells.hpp. */
#include "select_cells.hpp"

#include "bench_args.h"

#include "plan/policy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

const char *const bench_scores_names[] = {
#define BENCH_SCORES_NAME(name, short_name) short_name,
    BENCH_SCORES_TABLE(BENCH_SCORES_NAME)
#undef BENCH_SCORES_NAME
};

/* ---- command line ---------------------------------------------------------------------------- */

static std::vector<std::string> split(const std::string &text, char separator = ',')
{
    std::vector<std::string> parts;
    size_t begin = 0;
    while (begin <= text.size()) {
        size_t end = std::min(text.find(separator, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

static void add_grid(std::vector<cell_shape> &shapes, std::vector<int> rows,
                     std::vector<int> widths)
{
    for (int width : widths) {
        for (int row : rows) {
            shapes.push_back({row, width, -1});
        }
    }
}

static bool parse_shapes(const std::string &text, std::vector<cell_shape> &shapes)
{
    for (const std::string &part : split(text)) {
        cell_shape one = {0, 0, -1};
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
        char rest;
        if (!known && sscanf(part.c_str(), "%dx%d%c", &one.rows, &one.width, &rest) == 2 &&
            one.rows > 0 && one.width > 0) {
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

static bool parse_traces(const std::string &text, std::vector<std::string> &traces)
{
    struct trace_request request;
    traces = split(text);
    for (const std::string &one : traces) {
        if (!trace_request_parse(one.c_str(), &request)) {
            fprintf(stderr, "unknown trace '%s'; pass 245K, 430K or TOKENS[/SCALE]\n", one.c_str());
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
            choice.variant =
                bench_integer_of("the variant of a plan", part.c_str() + name.size() + 1, 0, 99);
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

static bool parse_ks(const std::string &text, std::vector<int> &ks)
{
    ks.clear();
    for (const std::string &part : split(text)) {
        ks.push_back(bench_integer_of("--k", part.c_str(), 1, TOPK_K_MAX));
    }
    return true;
}

static bool parse_dtype(const std::string &text, enum topk_dtype *dtype_p)
{
    for (int dtype = 0; dtype < TOPK_DTYPE_COUNT; dtype++) {
        if (text == topk_dtype_name((enum topk_dtype)dtype)) {
            *dtype_p = (enum topk_dtype)dtype;
            return true;
        }
    }
    fprintf(stderr, "unknown type of scores '%s'; pass float32, float16 or bfloat16\n",
            text.c_str());
    return false;
}

static bool parse_outputs(const std::string &text, cell_settings &settings)
{
    for (const std::string &part : split(text)) {
        bool *wanted = part == "values"    ? &settings.values
                       : part == "pages"   ? &settings.pages
                       : part == "offsets" ? &settings.offsets
                                           : nullptr;
        if (wanted == nullptr) {
            fprintf(stderr, "unknown output '%s'; pass values, pages or offsets\n", part.c_str());
            return false;
        }
        *wanted = true;
    }
    return true;
}

/* "margin=48" or, in a sweep, "margin=32:48:64". */
static bool parse_overrides(const std::string &text, std::vector<plan_override> &overrides)
{
    const size_t at = text.find('=');
    if (at == std::string::npos || !plan_override_known(text.substr(0, at))) {
        fprintf(stderr, "cannot set '%s'; pass FIELD=NUMBER of a field in README.md\n",
                text.c_str());
        return false;
    }
    for (const std::string &value : split(text.substr(at + 1), ':')) {
        overrides.push_back({text.substr(0, at), atol(value.c_str())});
    }
    return true;
}

static const char usage[] =
    "usage: %s [OPTION...]\n"
    "Times the selector shape by shape and checks every row.\n\n"
    "  --shapes LIST     matrix (default), decode, mid, more, all, or ROWSxWIDTH; by commas\n"
    "  --trace LIST      instead: the calls of requests of 245K, 430K or TOKENS[/SCALE] tokens\n"
    "  --list            prints the calls of --trace, and measures nothing\n"
    "  --k LIST          default 2048\n"
    "  --scores LIST     indexer (default), normal, ties, clustered, const, ascending,\n"
    "                    descending, saw, tile\n"
    "  --dtype TYPE      of the scores: float32 (default), float16, bfloat16\n"
    "  --deterministic   lowest positions in index order\n"
    "  --by-value        in the order of values\n"
    "  --outputs LIST    values, pages, offsets: beside the positions\n"
    "  --plan LIST       FAMILY:POLICY, instead of the planner's choice\n"
    "  --variants        the planner's choice, then every policy of every family\n"
    "  --set FIELD=N     changes one field of the plan\n"
    "  --sweep FIELD=N:M...   the planner's choice, then with the field changed to each\n"
    "  --groups N        at most so many matrices in turn\n"
    "  --pad N           so many scores between a row and the next: a stride of width + N\n"
    "  --seconds S       begins no cell after so long\n"
    "  --no-check        does not check the rows\n"
    "  --anchors FILE    compares with the best time of each shape there\n"
    "  --csv FILE, --routes FILE, --trace-csv FILE   append the times, the routes of the rows,\n"
    "                    and the calls of traces\n\n"
    "Exit code: 0 every row exact, 1 not, 2 wrong command line or no device, 3 the time was up.\n"
    "tests/bench/README.md has the method.\n";

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

/* Opens a file to append to; a new one gets its head. */
static bool open_csv(const char *path, const char *head, FILE **file_p)
{
    FILE *file = fopen(path, "a");
    if (file == nullptr) {
        fprintf(stderr, "cannot write %s\n", path);
        return false;
    }
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) == 0) {
        fprintf(file, "%s\n", head);
    }
    *file_p = file;
    return true;
}

/* An option without a value; false: it is another one. */
static bool parse_flag(const std::string &name, cell_settings &settings)
{
    if (name == "--deterministic") {
        settings.options.order = TOPK_ORDER_INDEX;
        settings.options.ties = TOPK_TIES_LOWEST;
    } else if (name == "--by-value") {
        settings.options.order = TOPK_ORDER_VALUE;
        settings.options.ties = TOPK_TIES_LOWEST;
    } else if (name == "--no-check") {
        settings.check = false;
    } else if (name == "--list") {
        settings.list = true;
    } else if (name == "--variants") {
        settings.variants = true;
    } else {
        return false;
    }
    return true;
}

static bool parse_option(const std::string &name, const char *value, cell_settings &settings)
{
    if (name == "--shapes") {
        settings.shapes.clear();
        return parse_shapes(value, settings.shapes);
    } else if (name == "--trace") {
        return parse_traces(value, settings.traces);
    } else if (name == "--k") {
        return parse_ks(value, settings.ks);
    } else if (name == "--scores") {
        return parse_scores(value, settings.scores);
    } else if (name == "--dtype") {
        return parse_dtype(value, &settings.options.dtype);
    } else if (name == "--outputs") {
        return parse_outputs(value, settings);
    } else if (name == "--plan") {
        return parse_plans(value, settings.plans);
    } else if (name == "--set") {
        return parse_overrides(value, settings.overrides);
    } else if (name == "--sweep") {
        return parse_overrides(value, settings.sweep);
    } else if (name == "--groups") {
        settings.groups_max = bench_integer_of(name.c_str(), value, 1, 1 << 20);
        return true;
    } else if (name == "--pad") {
        settings.pad = bench_integer_of(name.c_str(), value, 0, 1 << 20);
        return true;
    } else if (name == "--seconds") {
        settings.seconds = bench_number_of(name.c_str(), value, 0.001, 600);
        return true;
    } else if (name == "--anchors") {
        return read_anchors(value, settings.anchors);
    } else if (name == "--csv") {
        return open_csv(value,
                        "k,scores,rows,width,read_floor_us,selector,us_per_call,inexact_rows",
                        &settings.csv);
    } else if (name == "--routes") {
        return open_csv(value,
                        "k,scores,rows,width,family,variant,copied,direct,certified,band,recovery,"
                        "spill,reads_of_row",
                        &settings.routes);
    } else if (name == "--trace-csv") {
        return open_csv(value,
                        "trace,k,scores,step,rows,width,first_token,valid_scores,read_floor_us,"
                        "selector,us_per_call,inexact_rows",
                        &settings.trace_csv);
    }
    fprintf(stderr, "unknown argument '%s'\n", name.c_str());
    return false;
}

bool cells_parse(int argc, char **argv, const char *program, cell_settings &settings)
{
    parse_shapes("matrix", settings.shapes);
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        if (name == "--help" || name == "-h") {
            printf(usage, program);
            exit(0);
        }
        if (parse_flag(name, settings)) {
            continue;
        }
        if (i + 1 == argc) {
            fprintf(stderr, "'%s' is unknown or lacks its value; see --help\n", name.c_str());
            return false;
        }
        if (!parse_option(name, argv[++i], settings)) {
            return false;
        }
    }
    return true;
}

/* ---- shapes and plans ------------------------------------------------------------------------ */

std::string cell_key(const cell_wanted &wanted)
{
    return std::to_string(wanted.k) + "," + bench_scores_names[wanted.scores] + "," +
           std::to_string(wanted.shape.rows) + "," + std::to_string(wanted.shape.width);
}

int cell_length(const cell_shape &shape, int row, long run)
{
    if (shape.first_token >= 0) {
        return std::min(shape.first_token + row + 1, shape.width);
    }
    const int span = std::min(8192, std::max(1, shape.width / 2));
    if (shape.rows == 1) {
        return shape.width - (int)(run * 37 % span);
    }
    return shape.width - (span - 1) + (int)((long)row * (span - 1) / (shape.rows - 1));
}

double bench_sample_period(const struct topk_plan &plan, int length)
{
    static const int row_scores[] = {
#define ROW_SCORES(threads, scores, blocks, early, quick, rows, k) scores,
        TOPK_ROW_POLICIES(ROW_SCORES)
#undef ROW_SCORES
    };
    const int variants = (int)(sizeof(row_scores) / sizeof(row_scores[0]));
    if (plan.family == TOPK_FAMILY_ROW && plan.variant >= 0 && plan.variant < variants) {
        return row_scores[plan.variant] >= 16 ? 256 : 128; /* every 8th or 4th 32 of row.cu */
    }
    if (plan.sample_stride < 1) {
        return 512;
    }
    long wanted = std::max<long>(length / plan.sample_stride,
                                 (long)plan.parameters[TOPK_PARAMETER_SAMPLE_MIN]);
    wanted = std::min({wanted, (long)plan.parameters[TOPK_PARAMETER_SAMPLE_MAX], (long)length / 2});
    long units = 1; /* a power of two of them, as boundary.cuh has it */
    while (units * 2 * TOPK_SAMPLE_UNIT <= wanted) {
        units *= 2;
    }
    return (double)length / (double)units;
}
