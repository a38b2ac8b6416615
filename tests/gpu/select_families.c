/*
 * select_families - every family and policy, forced on shapes it accepts, judged by the oracle.
 *
 *   select_families [--small | --sanitize | --once] [--family NAME]
 *
 * --small: a little of each, every policy on rows that fill it; --sanitize: less still, for runs
 * under compute-sanitizer; --once: the least, for that one of its tools under which a selection
 * takes seconds
 */
#include "select_batch.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define NARROW 2049 /* rows that every policy serves: a little more than the largest fast K */

static bool small, sanitize, once;

static struct gpu_spec spec_of(enum inputs_family family, enum topk_dtype dtype, int32_t rows,
                               int32_t width, int32_t k)
{
    struct gpu_spec spec = {
        .inputs = {.family = family,
                   .seed = inputs_run_seed() + (uint64_t)width,
                   .num_rows = rows,
                   .width = width},
        .options = {.dtype = dtype},
        .k = k,
    };
    return spec;
}

/* The widths at which a family is tried: around what its policies hold. */
static const int32_t *widths_of(enum topk_family family, size_t *count_p)
{
    static const int32_t any[] = {1, 33, NARROW, 5000, 20011};
    static const int32_t row[] = {1, 100, NARROW, 4096, 8192, 16384, 30001, 32768};
    static const int32_t stream[] = {100, NARROW, 6144, 8193, 16384, 70001};
    static const int32_t wide[] = {100, NARROW, 8193, 16384, 30001, 65536, 131072, 200001};
    switch (family) {
    case TOPK_FAMILY_ROW:
        *count_p = COUNT(row);
        return row;
    case TOPK_FAMILY_TILES:
    case TOPK_FAMILY_SPLIT:
    case TOPK_FAMILY_CLUSTER:
        *count_p = COUNT(stream);
        return stream;
    case TOPK_FAMILY_WIDE:
        *count_p = COUNT(wide);
        return wide;
    default:
        *count_p = COUNT(any);
        return any;
    }
}

/* In registers or shared memory a row of 16 bits at any alignment may begin with 14 bytes of
 * others: so much narrower is the widest. */
static int32_t widest_at_any_alignment(enum topk_family family, enum topk_dtype dtype,
                                       int32_t width)
{
    const bool begins_within = family == TOPK_FAMILY_ROW && dtype != TOPK_DTYPE_FLOAT32;
    return begins_within && width > NARROW ? width - 7 : width;
}

/* One row more than there are multiprocessors, so that blocks share rows, where `tiles` has not too
 * much to do; else a few. */
static int32_t rows_of(enum topk_family family, int32_t width)
{
    const bool many = family == TOPK_FAMILY_TILES && width >= NARROW && (small || width < 10000);
    return many ? gpu_device()->num_multiprocessors + 1 : (once ? 1 : (small ? 2 : 7));
}

/* A request in which everything but these is drawn: lengths, options, layout, extras. */
static struct gpu_spec draw_spec(enum inputs_family inputs, enum topk_family family,
                                 enum topk_dtype dtype, int32_t width, int32_t variant)
{
    const uint64_t number = ((uint64_t)family * 64 + (uint64_t)inputs) * 64 + (uint64_t)variant;
    struct inputs_rng rng =
        inputs_rng_of(inputs_run_seed(), ((uint64_t)width * 4 + (uint64_t)dtype) << 32 | number);
    static const int32_t ks[] = {2048, 2048, 2047, 300, 1};
    const int32_t k = width < 600 ? 64 : ks[inputs_rng_below(&rng, COUNT(ks))];
    struct gpu_spec spec = spec_of(inputs, dtype, rows_of(family, width), width, k);
    const int32_t group = 16 / (int32_t)topk_dtype_bytes(dtype);
    if (inputs_rng_below(&rng, 2) == 0) {
        spec.alignment_bytes = 16;
        spec.offset = group * (int32_t)inputs_rng_below(&rng, 3);
        spec.inputs.row_stride = (width + group - 1) / group * group;
    } else {
        spec.inputs.width = widest_at_any_alignment(family, dtype, width);
        spec.offset = (int32_t)inputs_rng_below(&rng, 17);
        spec.inputs.row_stride = spec.inputs.width + (int32_t)inputs_rng_below(&rng, 6);
    }
    if (inputs_rng_below(&rng, 2) == 0) {
        spec.lengths = (enum inputs_lengths)inputs_rng_below(&rng, INPUTS_LENGTHS_COUNT);
    }
    spec.options.order = (enum topk_order)inputs_rng_below(&rng, 3);
    spec.options.ties = (enum topk_ties)inputs_rng_below(&rng, 2);
    if (inputs_rng_below(&rng, 2) == 0) {
        spec.values = inputs_rng_below(&rng, 2) == 0;
        spec.pages = inputs_rng_below(&rng, 2) == 0;
        spec.row_offsets = inputs_rng_below(&rng, 2) == 0;
        spec.page_size_log2 = inputs_rng_below(&rng, 8);
    }
    return spec;
}

/* Of the widths of a family those at which a small run tries a policy: a narrow row, and the widest
 * that it serves, which fills it. */
static bool is_tried(enum inputs_family inputs, enum topk_family family, enum topk_dtype dtype,
                     int32_t variant, size_t w)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    if (!small) {
        return true;
    }
    /* Once: a policy selects one time from each type of scores at a width, and from no long rows:
     * for the registers of a cluster of 16 racecheck needs up to 20 seconds. */
    const int which = (int)inputs + variant + (int)dtype + (int)w;
    const bool is_long = widths[w] > 33000;
    const int share = once ? INPUTS_FAMILY_COUNT : (is_long ? 16 : 8); /* of the families */
    if (sanitize && (which % share != 0 || (once && is_long))) {
        return false;
    }
    for (size_t wider = w + 1; wider < num_widths && widths[w] != NARROW; wider++) {
        struct gpu_spec spec =
            spec_of(inputs, dtype, 1, widest_at_any_alignment(family, dtype, widths[wider]), 2048);
        if (gpu_serves(&spec, family, variant)) {
            return false;
        }
    }
    return true;
}

/* Every family of inputs, on every policy, at every width. */
static void test_inputs(enum topk_family family, enum topk_dtype dtype)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    for (int i = 0; i < INPUTS_FAMILY_COUNT; i++) {
        const enum inputs_family inputs = (enum inputs_family)i;
        batch_begin("it_01_%s_selects_%s_%s_rows", topk_family_name(family), topk_dtype_name(dtype),
                    inputs_family_name(inputs));
        for (size_t w = 0; w < num_widths; w++) {
            for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
                if (is_tried(inputs, family, dtype, variant, w)) {
                    struct gpu_spec spec = draw_spec(inputs, family, dtype, widths[w], variant);
                    batch_add(&spec, family, variant, BATCH_USUAL);
                }
            }
        }
    }
}

static void test_options(enum topk_family family, enum topk_dtype dtype)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    for (int order = 0; order < 3; order++) {
        for (int ties = 0; ties < 2; ties++) {
            batch_begin("it_02_%s_%s_order_%d_ties_%d", topk_family_name(family),
                        topk_dtype_name(dtype), order, ties);
            for (size_t w = 2; w < num_widths; w += small ? 3 : 1) {
                struct gpu_spec spec =
                    spec_of(ties ? INPUTS_FEW_VALUES : INPUTS_MIXED, dtype, small ? 3 : 20,
                            widest_at_any_alignment(family, dtype, widths[w]), 777);
                spec.lengths = INPUTS_LENGTHS_EDGES;
                spec.options.order = (enum topk_order)order;
                spec.options.ties = (enum topk_ties)ties;
                spec.values = spec.pages = spec.row_offsets = true;
                spec.page_size_log2 = 6;
                batch_add(&spec, family, BATCH_ALL, BATCH_SPARE);
            }
        }
    }
}

/* Any alignment that a score has, odd strides, all kinds of lengths. */
static void test_layouts(enum topk_family family, enum topk_dtype dtype)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    batch_begin("it_03_%s_%s_any_alignment_stride_and_length", topk_family_name(family),
                topk_dtype_name(dtype));
    for (int lengths = 0; lengths < INPUTS_LENGTHS_COUNT; lengths++) {
        for (int32_t offset = small ? 7 : 0; offset < (small ? 9 : 16); offset++) {
            const int32_t width = widest_at_any_alignment(
                family, dtype, widths[num_widths - 1 - (size_t)(offset % 3)]);
            struct gpu_spec spec =
                spec_of(INPUTS_NORMAL, dtype, small ? 3 : 5,
                        small ? 9001 : width - 3 * (offset & 1), offset % 4 == 3 ? 64 : 2048);
            spec.inputs.row_stride = spec.inputs.width + offset % 5;
            spec.offset = offset;
            spec.lengths = (enum inputs_lengths)lengths;
            batch_add(&spec, family, BATCH_ALL, BATCH_USUAL);
        }
    }
}

/* Every type of scores with every K, with other inputs. */
static void test_ks(enum topk_family family)
{
    static const struct {
        int32_t k, width; /* width 0: wide */
    } shapes[] = {{1, 0},    {7, 0},     {64, 0},      {300, 0},    {1024, 0},
                  {2048, 0}, {2049, 0},  {2051, 0},    {4096, 0},   {16384, 0},
                  {1, 1},    {300, 299}, {2048, 2048}, {2047, 2048}};
    static const enum inputs_family families[] = {INPUTS_INDEXER, INPUTS_TIES, INPUTS_CONSTANT};
    batch_begin("it_04_%s_any_k", topk_family_name(family));
    for (size_t i = 0; i < COUNT(shapes); i++) {
        for (size_t inputs = 0; inputs < COUNT(families); inputs++) {
            const int32_t wide = small ? 8200 : 20000;
            struct gpu_spec spec =
                spec_of(families[inputs], (enum topk_dtype)((i + inputs) % TOPK_DTYPE_COUNT), 4,
                        shapes[i].width != 0 ? shapes[i].width : wide, shapes[i].k);
            spec.lengths = inputs == 1 ? INPUTS_LENGTHS_RAGGED : INPUTS_LENGTHS_FULL;
            spec.options.order = inputs == 2 ? TOPK_ORDER_VALUE : TOPK_ORDER_INDEX;
            spec.values = true;
            batch_add(&spec, family, BATCH_ALL, BATCH_USUAL);
        }
    }
}

/* Few rows over all blocks, as many rows as blocks, several rows a block. */
static void test_row_counts(enum topk_family family)
{
    static const int32_t counts[] = {1, 2, 31, 66, 67, 131, 132, 133, 264, 265, 700};
    for (size_t i = 0; i < (small ? 2 : COUNT(counts)); i++) {
        batch_begin("it_05_%s_%d_rows", topk_family_name(family), counts[i]);
        for (int kind = 0; kind < 3 * TOPK_DTYPE_COUNT; kind++) {
            struct gpu_spec spec =
                spec_of(kind % 3 == 1 ? INPUTS_MIXED : INPUTS_INDEXER, (enum topk_dtype)(kind / 3),
                        counts[i], small ? 9000 : 13001, 512);
            spec.lengths = (enum inputs_lengths)(kind % 3);
            spec.options.ties = TOPK_TIES_LOWEST;
            batch_add(&spec, family, BATCH_ALL, BATCH_SPARE);
        }
    }
}

/* Long rows, where parts are many, candidates overflow and plateaus cross parts. */
static void test_long_rows(enum topk_family family, enum topk_dtype dtype)
{
    static const enum inputs_family families[] = {
        INPUTS_INDEXER,   INPUTS_CLUSTERED,  INPUTS_CONSTANT,   INPUTS_ASCENDING, INPUTS_RELU_ZEROS,
        INPUTS_ONE_TILE,  INPUTS_SAW_TOOTH,  INPUTS_FEW_FINITE, INPUTS_NAN_MOST,  INPUTS_PLATEAU,
        INPUTS_MINUS_INF, INPUTS_NEIGHBOURS, INPUTS_ONE_BIT};
    for (size_t i = 0; i < COUNT(families); i++) {
        batch_begin("it_06_%s_long_%s_%s_rows", topk_family_name(family), topk_dtype_name(dtype),
                    inputs_family_name(families[i]));
        for (int32_t rows = 1; rows <= 5; rows += 4) {
            struct gpu_spec spec =
                spec_of(families[i], dtype, rows, rows == 1 ? 1048576 : 262209, 2048);
            spec.lengths = rows == 1 ? INPUTS_LENGTHS_FULL : INPUTS_LENGTHS_CAUSAL;
            spec.options.ties = TOPK_TIES_LOWEST;
            batch_add(&spec, family, BATCH_ALL, BATCH_USUAL);
        }
    }
}

/* Every valid length from 0 to K + 1, at every alignment, in any order and by value. */
static void test_short_rows(enum topk_family family, enum topk_dtype dtype)
{
    static const int32_t ks[] = {7, 1, 64};
    batch_begin("it_07_%s_%s_every_length_up_to_k", topk_family_name(family),
                topk_dtype_name(dtype));
    for (size_t i = 0; i < (small ? 1 : COUNT(ks)); i++) {
        const int32_t group = 16 / (int32_t)topk_dtype_bytes(dtype);
        for (int32_t offset = 0; offset < group; offset += once ? group : (small ? 3 : 1)) {
            struct gpu_spec spec = spec_of(INPUTS_SPECIALS, dtype, ks[i] + 2, 200, ks[i]);
            spec.inputs.row_stride = 201; /* rows differ in alignment */
            spec.offset = offset;
            spec.lengths = INPUTS_LENGTHS_NEAR_K;
            spec.options.order = offset % 2 == 0 ? TOPK_ORDER_ANY : TOPK_ORDER_VALUE;
            spec.values = offset % 3 != 0;
            batch_add(&spec, family, BATCH_ALL, BATCH_USUAL);
        }
    }
}

/* Families that select from rows of 20011 scores by a sample that gpu_mislead() knows. */
static bool takes_a_sample(enum topk_family family)
{
    return family == TOPK_FAMILY_TILES || family == TOPK_FAMILY_SPLIT ||
           family == TOPK_FAMILY_CLUSTER;
}

static void test_misled(enum topk_family family, enum topk_dtype dtype)
{
    batch_begin("it_09_%s_%s_rows_that_mislead_the_sample", topk_family_name(family),
                topk_dtype_name(dtype));
    const int32_t rows = rows_of(family, 8193) + 1;
    for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
        /* They mislead in three ways, one row after the other. */
        struct gpu_spec spec = spec_of(INPUTS_CLUSTERED, dtype, rows < 3 ? 3 : rows, 20011, 300);
        spec.options.order = TOPK_ORDER_INDEX;
        batch_add(&spec, family, variant, BATCH_MISLED);
    }
}

/* No policy that this device can run was left out, for any type of scores. */
static void check_policies(enum topk_family family)
{
    char name[96], detail[640] = "";
    for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
        for (int dtype = 0; dtype < TOPK_DTYPE_COUNT; dtype++) {
            struct gpu_spec spec = spec_of(INPUTS_NORMAL, (enum topk_dtype)dtype, 1, NARROW, 64);
            if (gpu_serves(&spec, family, variant) &&
                !batch_has_run(variant, (enum topk_dtype)dtype)) {
                snprintf(detail, sizeof(detail), "%s:%d has not selected from %s rows",
                         topk_family_name(family), variant,
                         topk_dtype_name((enum topk_dtype)dtype));
            }
        }
    }
    snprintf(name, sizeof(name), "it_08_%s_every_policy_has_run", topk_family_name(family));
    gpu_report(name, detail[0] == '\0', detail);
}

static void test_family(enum topk_family family)
{
    for (int d = 0; d < TOPK_DTYPE_COUNT; d++) {
        const enum topk_dtype dtype = (enum topk_dtype)d;
        test_inputs(family, dtype);
        test_short_rows(family, dtype);
        if (takes_a_sample(family)) {
            test_misled(family, dtype);
        }
        if (!sanitize) {
            test_options(family, dtype);
            test_layouts(family, dtype);
        }
        if (!small && family != TOPK_FAMILY_ROW) {
            test_long_rows(family, dtype);
        }
    }
    if (!sanitize) {
        test_ks(family);
        test_row_counts(family);
    }
    if (sanitize) { /* which loses track of kernels that several threads start; fewer tests */
        batch_run_alone(once);
    } else {
        batch_run();
    }
    check_policies(family);
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--family") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--sanitize") == 0) {
            small = sanitize = true;
        } else if (strcmp(argv[i], "--once") == 0) {
            small = sanitize = once = true;
        } else if (strcmp(argv[i], "--small") == 0) {
            small = true;
        } else {
            printf("unknown argument '%s'; pass --small, --sanitize, --once or --family NAME\n",
                   argv[i]);
            return 2;
        }
    }
    for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
        if (only == NULL || strcmp(only, topk_family_name((enum topk_family)family)) == 0) {
            test_family((enum topk_family)family);
        }
    }
    return gpu_summary();
}
