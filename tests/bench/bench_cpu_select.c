/*
 * bench_cpu_select - times topk_cpu_select against the floor of one read-and-compare pass.
 *
 * Method (README.md): copies of the matrix are used in turn, some by the selection, the others by
 * the floor, so that no cache serves the scores; selection and floor alternate within each repeat;
 * a repeat's figure is the median of its rounds and the reported one the least of the repeats'
 * medians. Every row of every copy is checked by the oracle.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_cpu_floor.h"
#include "inputs.h"
#include "oracle.h"

enum { COPIES_MAX = 1024 };

enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_CSV };

struct bench {
    int32_t rows, width, k;
    uint32_t threads;
    const char *isa;
    bool all_families;
    enum inputs_family family;
    enum inputs_lengths lengths_kind;
    struct topk_options options;
    int32_t rounds, repeats;
    int64_t rotate_mb;
    uint64_t seed;
    enum format format;
    const char *save;

    struct topk_cpu *cpu;
    struct bench_floor *floor;
    int32_t num_copies;
    void *scores;         /* [num_copies][rows][width] */
    int32_t *lengths;     /* [rows] */
    int32_t *floor_reads; /* [rows] lengths in float32: the floor reads as many bytes */
    int32_t *indices;
};

struct figures {
    double select_us, floor_us;
    struct topk_routes routes; /* of one selection, on average */
    double reads;              /* scores read over valid scores */
    bool exact;
};

static void usage(FILE *out)
{
    fprintf(out,
            "usage: bench_cpu_select [options]\n"
            "Times the exact top-K selection of this machine's CPU against the floor of reading\n"
            "and comparing every score once.\n"
            "  --rows N        score rows (64)\n"
            "  --width N       scores a row (131072)\n"
            "  --k N           positions a row (2048)\n"
            "  --family NAME   kind of scores, or \"all\" (indexer); see below\n"
            "  --lengths KIND  full, causal, ragged (full)\n"
            "  --order ORDER   any, index, value (any)\n"
            "  --ties TIES     any, lowest (any)\n"
            "  --dtype TYPE    float32, float16, bfloat16 (float32)\n"
            "  --threads N     threads (0: one for each processor)\n"
            "  --isa NAME      portable, avx2, avx512 (the best this processor has)\n"
            "  --rounds N      timed selections a repeat (31)\n"
            "  --repeats N     repeats, of which the best counts (3)\n"
            "  --rotate-mb N   use copies of the matrix in turn, this much together (256)\n"
            "  --seed N        seed of the scores (7)\n"
            "  --save FILE     write the scores as .npy, for another program to be timed on\n"
            "  --json, --csv   one line for machines instead of text\n"
            "  --help\n"
            "families:\n");
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        fprintf(out, "  %-14s  %s\n", inputs_family_name((enum inputs_family)f),
                inputs_family_text((enum inputs_family)f));
    }
}

static void die(const char *what, const char *value)
{
    fprintf(stderr, "bench_cpu_select: %s%s%s; see --help\n", what, value != NULL ? " " : "",
            value != NULL ? value : "");
    exit(2);
}

static int64_t number(const char *name, const char *text, int64_t least, int64_t most)
{
    char *end;
    long long value = strtoll(text, &end, 0);
    if (*text == '\0' || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "bench_cpu_select: --%s is \"%s\"; pass %lld ... %lld\n", name, text,
                (long long)least, (long long)most);
        exit(2);
    }
    return value;
}

/* The place of `text` in a list of names that ends with NULL. */
static int choice(const char *name, const char *text, const char *const names[])
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    fprintf(stderr, "bench_cpu_select: --%s is \"%s\", which is unknown; see --help\n", name, text);
    exit(2);
}

static void set_option(struct bench *bench, const char *name, const char *text)
{
    static const char *const orders[] = {"any", "index", "value", NULL};
    static const char *const ties[] = {"any", "lowest", NULL};
    static const char *const dtypes[] = {"float32", "float16", "bfloat16", NULL};
    static const char *const lengths[] = {"full", "causal", "ragged", NULL};
    if (strcmp(name, "rows") == 0) {
        bench->rows = (int32_t)number(name, text, 1, 1 << 20);
    } else if (strcmp(name, "width") == 0) {
        bench->width = (int32_t)number(name, text, 1, 1 << 28);
    } else if (strcmp(name, "k") == 0) {
        bench->k = (int32_t)number(name, text, 1, TOPK_K_MAX);
    } else if (strcmp(name, "threads") == 0) {
        bench->threads = (uint32_t)number(name, text, 0, 256);
    } else if (strcmp(name, "rounds") == 0) {
        bench->rounds = (int32_t)number(name, text, 1, 10000);
    } else if (strcmp(name, "repeats") == 0) {
        bench->repeats = (int32_t)number(name, text, 1, 1000);
    } else if (strcmp(name, "rotate-mb") == 0) {
        bench->rotate_mb = number(name, text, 0, 1 << 20);
    } else if (strcmp(name, "seed") == 0) {
        bench->seed = (uint64_t)number(name, text, 0, INT64_MAX);
    } else if (strcmp(name, "isa") == 0) {
        bench->isa = text;
    } else if (strcmp(name, "save") == 0) {
        bench->save = text;
    } else if (strcmp(name, "order") == 0) {
        bench->options.order = (enum topk_order)choice(name, text, orders);
    } else if (strcmp(name, "ties") == 0) {
        bench->options.ties = (enum topk_ties)choice(name, text, ties);
    } else if (strcmp(name, "dtype") == 0) {
        bench->options.dtype = (enum topk_dtype)choice(name, text, dtypes);
    } else if (strcmp(name, "lengths") == 0) {
        bench->lengths_kind = (enum inputs_lengths)choice(name, text, lengths);
    } else if (strcmp(name, "json") == 0) {
        bench->format = FORMAT_JSON;
    } else if (strcmp(name, "csv") == 0) {
        bench->format = FORMAT_CSV;
    } else if (strcmp(name, "help") == 0) {
        usage(stdout);
        exit(0);
    } else if (strcmp(text, "all") == 0) { /* --family */
        bench->all_families = true;
    } else if (!inputs_family_parse(text, &bench->family)) {
        die("no such family:", text);
    }
}

static void parse(struct bench *bench, int argc, char **argv)
{
    static const struct option options[] = {
        {"rows", required_argument, NULL, 0},
        {"width", required_argument, NULL, 0},
        {"k", required_argument, NULL, 0},
        {"family", required_argument, NULL, 0},
        {"lengths", required_argument, NULL, 0},
        {"order", required_argument, NULL, 0},
        {"ties", required_argument, NULL, 0},
        {"threads", required_argument, NULL, 0},
        {"isa", required_argument, NULL, 0},
        {"rounds", required_argument, NULL, 0},
        {"repeats", required_argument, NULL, 0},
        {"rotate-mb", required_argument, NULL, 0},
        {"seed", required_argument, NULL, 0},
        {"save", required_argument, NULL, 0},
        {"dtype", required_argument, NULL, 0},
        {"json", no_argument, NULL, 0},
        {"csv", no_argument, NULL, 0},
        {"help", no_argument, NULL, 0},
        {NULL, 0, NULL, 0},
    };
    for (int index = 0, code; (code = getopt_long(argc, argv, "", options, &index)) != -1;) {
        if (code != 0) {
            exit(2); /* getopt has said why */
        }
        set_option(bench, options[index].name, optarg);
    }
    if (optind < argc) {
        die("unexpected argument:", argv[optind]);
    }
    if (bench->save != NULL && bench->all_families) {
        die("--save needs one family", NULL);
    }
    if (bench->save != NULL && bench->options.dtype == TOPK_DTYPE_BFLOAT16) {
        die("--save: an .npy file cannot hold bfloat16", NULL);
    }
}

/* ---- the data ---------------------------------------------------------------------------------
 */

static size_t matrix_elements(const struct bench *bench)
{
    return (size_t)bench->rows * (size_t)bench->width;
}

static size_t matrix_bytes(const struct bench *bench)
{
    return matrix_elements(bench) * topk_dtype_bytes(bench->options.dtype);
}

static const void *copy_of(const struct bench *bench, int32_t copy)
{
    return (const char *)bench->scores + (size_t)copy * matrix_bytes(bench);
}

static void *must_alloc(size_t size_bytes)
{
    void *memory = aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "bench_cpu_select: no memory for %zu bytes\n", size_bytes);
        exit(1);
    }
    return memory;
}

static void prepare(struct bench *bench)
{
    char detail[TOPK_DETAIL_SIZE];
    struct topk_cpu_config config = {.num_threads = bench->threads, .isa = bench->isa};
    if (topk_cpu_create(&config, &bench->cpu, detail) != TOPK_OK) {
        die(detail, NULL);
    }
    bench->threads = topk_cpu_num_threads(bench->cpu);
    bench->floor = bench_floor_start(bench->threads);
    int64_t copies = (bench->rotate_mb << 20) / (int64_t)matrix_bytes(bench) + 2;
    copies = copies < COPIES_MAX ? copies : COPIES_MAX;
    bench->num_copies = (int32_t)copies / 2 * 2; /* the selection's and the floor's */
    bench->scores = must_alloc((size_t)bench->num_copies * matrix_bytes(bench));
    bench->lengths = must_alloc((size_t)bench->rows * sizeof(int32_t));
    bench->floor_reads = must_alloc((size_t)bench->rows * sizeof(int32_t));
    bench->indices = must_alloc((size_t)bench->rows * (size_t)bench->k * sizeof(int32_t));
}

static void fill(struct bench *bench, enum inputs_family family)
{
    struct inputs_spec spec = {.family = family,
                               .seed = bench->seed,
                               .num_rows = bench->rows,
                               .width = bench->width,
                               .row_stride = bench->width,
                               .k = bench->k};
    inputs_fill_typed(&spec, bench->options.dtype, NULL, bench->scores);
    inputs_fill_lengths(&spec, bench->lengths_kind, bench->lengths);
    for (int32_t r = 0; r < bench->rows; r++) {
        int64_t bytes = bench->lengths[r] * (int64_t)topk_dtype_bytes(bench->options.dtype);
        bench->floor_reads[r] = (int32_t)(bytes / (int64_t)sizeof(float));
    }
    for (int32_t c = 1; c < bench->num_copies; c++) {
        memcpy((char *)bench->scores + (size_t)c * matrix_bytes(bench), bench->scores,
               matrix_bytes(bench));
    }
}

/* A version 1.0 .npy file of the first copy. */
static void save(const struct bench *bench)
{
    char header[128];
    int length = snprintf(header, sizeof(header),
                          "{'descr': '<f%u', 'fortran_order': False, 'shape': (%d, %d), }",
                          topk_dtype_bytes(bench->options.dtype), bench->rows, bench->width);
    FILE *file = fopen(bench->save, "wb");
    if (file == NULL) {
        die("cannot write", bench->save);
    }
    /* Magic, version and the header's 118 bytes make 128: the data starts aligned. */
    fprintf(file, "%cNUMPY%c%c%c%c%-117.*s\n", 0x93, 1, 0, 118, 0, length, header);
    size_t written = fwrite(bench->scores, 1, matrix_bytes(bench), file);
    if (fclose(file) != 0 || written != matrix_bytes(bench)) {
        die("cannot write all of", bench->save);
    }
}

/* ---- measuring --------------------------------------------------------------------------------
 */

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *times, int32_t count)
{
    qsort(times, (size_t)count, sizeof(*times), by_value);
    return count % 2 != 0 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2;
}

static struct topk_args args_of(const struct bench *bench, int32_t copy, struct topk_routes *routes)
{
    return (struct topk_args){
        .scores = copy_of(bench, copy),
        .row_stride = bench->width,
        .lengths = bench->lengths,
        .indices = bench->indices,
        .index_stride = bench->k,
        .routes = routes,
        .num_rows = bench->rows,
        .width = bench->width,
        .k = bench->k,
    };
}

static void select_once(const struct bench *bench, int32_t copy, struct topk_routes *routes)
{
    struct topk_args args = args_of(bench, copy, routes);
    char detail[TOPK_DETAIL_SIZE];
    if (topk_cpu_select(bench->cpu, &args, &bench->options, NULL, detail) != TOPK_OK) {
        fprintf(stderr, "bench_cpu_select: %s\n", detail);
        exit(1);
    }
}

static bool check(const struct bench *bench)
{
    for (int32_t copy = 0; copy < bench->num_copies; copy++) {
        struct topk_args args = args_of(bench, copy, NULL);
        char detail[ORACLE_DETAIL_SIZE];
        memset(bench->indices, 0xee, (size_t)bench->rows * (size_t)bench->k * sizeof(int32_t));
        select_once(bench, copy, NULL);
        if (!oracle_check(&args, &bench->options, detail)) {
            fprintf(stderr, "bench_cpu_select: WRONG: %s\n", detail);
            return false;
        }
    }
    return true;
}

static struct figures measure(const struct bench *bench)
{
    struct figures figures = {.select_us = INFINITY, .floor_us = INFINITY};
    double *select = must_alloc((size_t)bench->rounds * sizeof(double));
    double *floor = must_alloc((size_t)bench->rounds * sizeof(double));
    int64_t found = 0;
    int32_t turn = 0;
    const int32_t floor_width =
        bench->width / (int32_t)(sizeof(float) / topk_dtype_bytes(bench->options.dtype));
    figures.exact = check(bench); /* the warm-up too */
    for (int32_t repeat = 0; repeat < bench->repeats; repeat++) {
        for (int32_t i = 0; i < bench->rounds; i++) {
            int32_t copy = turn, other = turn + 1;
            turn = (turn + 2) % bench->num_copies;
            double begin = now_us();
            select_once(bench, copy, repeat == 0 ? &figures.routes : NULL);
            double middle = now_us();
            found += bench_floor_run(bench->floor, copy_of(bench, other), floor_width,
                                     bench->floor_reads, bench->rows, floor_width, 0.5f);
            select[i] = middle - begin;
            floor[i] = now_us() - middle;
        }
        figures.select_us = fmin(figures.select_us, median(select, bench->rounds));
        figures.floor_us = fmin(figures.floor_us, median(floor, bench->rounds));
    }
    double valid = 0;
    for (int32_t r = 0; r < bench->rows; r++) {
        valid += bench->lengths[r];
    }
    figures.reads = (double)figures.routes.scores_read / bench->rounds / fmax(valid, 1.0);
    figures.exact = figures.exact && found >= 0;
    free(select);
    free(floor);
    return figures;
}

static void report(const struct bench *bench, enum inputs_family family, const struct figures *f)
{
    static const char *const orders[] = {"any", "index", "value"};
    const char *ties = bench->options.ties == TOPK_TIES_LOWEST ? "lowest" : "any";
    const char *order = orders[bench->options.order], *isa = topk_cpu_isa(bench->cpu);
    const char *lengths = inputs_lengths_name(bench->lengths_kind);
    unsigned long long certified = f->routes.certified / (uint64_t)bench->rounds;
    unsigned long long direct = f->routes.direct / (uint64_t)bench->rounds;
    unsigned long long band = f->routes.band / (uint64_t)bench->rounds;
    unsigned long long recovery = f->routes.recovery / (uint64_t)bench->rounds;
    unsigned long long spill = f->routes.spill / (uint64_t)bench->rounds;
    static const char text[] =
        "%s: isa=%s threads=%u rows=%d width=%d k=%d lengths=%s order=%s ties=%s select_us=%.1f "
        "floor_us=%.1f x_floor=%.2f reads=%.3f certified=%llu direct=%llu band=%llu recovery=%llu "
        "spill=%llu exact=%s dtype=%s\n";
    static const char json[] =
        "{\"family\":\"%s\",\"isa\":\"%s\",\"threads\":%u,\"rows\":%d,\"width\":%d,\"k\":%d,"
        "\"lengths\":\"%s\",\"order\":\"%s\",\"ties\":\"%s\",\"select_us\":%.1f,"
        "\"floor_us\":%.1f,\"x_floor\":%.3f,\"reads\":%.4f,\"certified\":%llu,\"direct\":%llu,"
        "\"band\":%llu,\"recovery\":%llu,\"spill\":%llu,\"exact\":\"%s\",\"dtype\":\"%s\"}\n";
    static const char csv[] =
        "%s,%s,%u,%d,%d,%d,%s,%s,%s,%.1f,%.1f,%.3f,%.4f,%llu,%llu,%llu,%llu,%llu,%s,%s\n";
    static const char *const formats[] = {
        [FORMAT_TEXT] = text, [FORMAT_JSON] = json, [FORMAT_CSV] = csv};
    printf(formats[bench->format], inputs_family_name(family), isa, bench->threads, bench->rows,
           bench->width, bench->k, lengths, order, ties, f->select_us, f->floor_us,
           f->select_us / f->floor_us, f->reads, certified, direct, band, recovery, spill,
           f->exact ? "yes" : "NO", topk_dtype_name(bench->options.dtype));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench bench = {.rows = 64,
                          .width = 131072,
                          .k = 2048,
                          .family = INPUTS_INDEXER,
                          .rounds = 31,
                          .repeats = 3,
                          .rotate_mb = 256,
                          .seed = 7};
    parse(&bench, argc, argv);
    prepare(&bench);
    bool exact = true;
    for (int f = 0; f < INPUTS_FAMILY_COUNT; f++) {
        enum inputs_family family = (enum inputs_family)f;
        if (!bench.all_families && family != bench.family) {
            continue;
        }
        fill(&bench, family);
        struct figures figures = measure(&bench);
        report(&bench, family, &figures);
        exact = exact && figures.exact;
    }
    if (bench.save != NULL) {
        save(&bench);
    }
    bench_floor_stop(bench.floor);
    topk_cpu_destroy(bench.cpu);
    free(bench.scores);
    free(bench.lengths);
    free(bench.floor_reads);
    free(bench.indices);
    return exact ? 0 : 1;
}
