/*
 * select_families - every family and policy, forced on shapes it accepts, judged by the oracle.
 *
 *   select_families [--small | --sanitize] [--family NAME]
 *
 * --small: a little of each; --sanitize: less still, for runs under compute-sanitizer
 */
#include "select_gpu.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool small, sanitize;
static uint32_t num_runs; /* selections since the last report */

/* Runs one request on one plan; the name of a failure says how to repeat it. */
static bool run(const struct gpu_spec *spec, enum topk_family family, int32_t variant, bool spare,
                char *detail)
{
    struct topk_shape shape = gpu_shape(spec, spare);
    struct gpu_plan plan;
    if (!gpu_plan_init(&shape, family, variant, &plan)) {
        return true; /* this policy does not serve the shape: nothing to judge */
    }
    struct gpu_request request;
    gpu_request_init(spec, &request);
    gpu_request_poison(&request);
    bool good = true;
    for (int i = 0; i < 2 && good; i++) { /* twice: the first leaves the workspace ready */
        gpu_enqueue(&plan, &request, NULL);
        CHECK_CUDA(cudaDeviceSynchronize());
        num_runs++;
        char what[ORACLE_DETAIL_SIZE];
        good = gpu_request_judge(&request, what);
        if (!good) {
            char inputs[160];
            inputs_describe(&request.spec.inputs, inputs, sizeof(inputs));
            snprintf(detail, 640,
                     "%s:%d dtype=%s order=%d ties=%d offset=%d lengths=%s run %d: %s: %s",
                     topk_family_name(plan.plan.family), plan.plan.variant,
                     topk_dtype_name(spec->options.dtype), spec->options.order, spec->options.ties,
                     spec->offset, inputs_lengths_name(spec->lengths), i, inputs, what);
        }
    }
    gpu_request_fini(&request);
    gpu_plan_fini(&plan);
    return good;
}

/* A test that no policy of this device serves has shown nothing, and says so. */
static void report(const char *name, bool good, const char *detail)
{
    if (good && num_runs == 0) {
        printf("none   %s: no policy serves it\n", name);
    } else {
        gpu_report(name, good, detail);
    }
    num_runs = 0;
}

static struct gpu_spec spec_of(enum inputs_family family, int32_t rows, int32_t width, int32_t k)
{
    struct gpu_spec spec = {
        .inputs = {.family = family,
                   .seed = inputs_run_seed() + (uint64_t)width,
                   .num_rows = rows,
                   .width = width},
        .k = k,
    };
    return spec;
}

/* Calls `run` for every policy of a family, and the planner's own choice once. */
static bool run_policies(const struct gpu_spec *spec, enum topk_family family, bool spare,
                         char *detail)
{
    for (int32_t variant = 0; variant < 12; variant++) {
        if (!run(spec, family, variant, spare, detail)) {
            return false;
        }
    }
    return true;
}

/* The widths at which a family is tried: around what its policies hold. */
static const int32_t *widths_of(enum topk_family family, size_t *count_p)
{
    static const int32_t any[] = {1, 33, 2049, 5000, 20011};
    static const int32_t row[] = {1, 100, 2049, 4096, 8192, 16384, 30001, 32768};
    static const int32_t stream[] = {100, 2049, 6144, 8193, 16384, 70001};
    switch (family) {
    case TOPK_FAMILY_ROW:
        *count_p = COUNT(row);
        return row;
    case TOPK_FAMILY_TILES:
    case TOPK_FAMILY_SPLIT:
    case TOPK_FAMILY_CLUSTER:
        *count_p = COUNT(stream);
        return stream;
    default:
        *count_p = COUNT(any);
        return any;
    }
}

/* Every family of inputs, on every policy, at every width; small: at the two widest that take
 * little time. */
static void test_inputs(enum topk_family family)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    while (small && widths[num_widths - 1] > 20000) {
        num_widths--;
    }
    for (int inputs = 0; inputs < INPUTS_FAMILY_COUNT; inputs++) {
        char name[96], detail[640] = "";
        bool good = true;
        if (sanitize && inputs % 4 != 0) {
            continue;
        }
        for (size_t w = small ? num_widths - 2 : 0; w < num_widths && good; w++) {
            int32_t k = widths[w] < 600 ? 64 : (inputs % 2 == 0 ? 2048 : 300);
            struct gpu_spec spec = spec_of((enum inputs_family)inputs, small ? 2 : 7, widths[w], k);
            spec.lengths = inputs % 3 == 0 ? INPUTS_LENGTHS_FULL : INPUTS_LENGTHS_RAGGED;
            spec.options.ties = inputs % 2 == 0 ? TOPK_TIES_LOWEST : TOPK_TIES_ANY;
            good = run_policies(&spec, family, false, detail);
        }
        snprintf(name, sizeof(name), "it_01_%s_selects_%s_rows", topk_family_name(family),
                 inputs_family_name((enum inputs_family)inputs));
        report(name, good, detail);
    }
}

static void test_options(enum topk_family family)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    for (int order = 0; order < 3; order++) {
        for (int ties = 0; ties < 2; ties++) {
            char name[96], detail[640] = "";
            bool good = true;
            for (size_t w = 2; w < num_widths && good; w += small ? 2 : 1) {
                struct gpu_spec spec = spec_of(ties ? INPUTS_FEW_VALUES : INPUTS_MIXED,
                                               small ? 3 : 20, widths[w], 777);
                spec.lengths = INPUTS_LENGTHS_EDGES;
                spec.options = (struct topk_options){.order = (enum topk_order)order,
                                                     .ties = (enum topk_ties)ties};
                spec.values = spec.pages = spec.row_offsets = true;
                spec.page_size_log2 = 6;
                good = run_policies(&spec, family, true, detail);
            }
            snprintf(name, sizeof(name), "it_02_%s_order_%d_ties_%d", topk_family_name(family),
                     order, ties);
            report(name, good, detail);
        }
    }
}

/* Any 4-byte alignment, odd strides, all kinds of lengths. */
static void test_layouts(enum topk_family family)
{
    char name[96], detail[640] = "";
    bool good = true;
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    for (int lengths = 0; lengths < INPUTS_LENGTHS_COUNT; lengths++) {
        for (int32_t offset = 0; offset < (small ? 2 : 16) && good; offset++) {
            int32_t width = widths[num_widths - 1 - (size_t)(offset % 3)];
            struct gpu_spec spec =
                spec_of(INPUTS_NORMAL, 5, small ? 9001 : width - 3 * (offset & 1),
                        offset % 4 == 3 ? 64 : 2048);
            spec.inputs.row_stride = spec.inputs.width + offset % 5;
            spec.offset = offset;
            spec.lengths = (enum inputs_lengths)lengths;
            good = good && run_policies(&spec, family, false, detail);
        }
    }
    snprintf(name, sizeof(name), "it_03_%s_any_alignment_stride_and_length",
             topk_family_name(family));
    report(name, good, detail);
}

static void test_ks(enum topk_family family)
{
    static const int32_t ks[] = {1, 7, 64, 300, 1024, 2048, 2049, 2051, 4096, 16384};
    char name[96], detail[640] = "";
    bool good = true;
    for (size_t i = 0; i < COUNT(ks) && good; i++) {
        for (int inputs = 0; inputs < 3 && good; inputs++) {
            static const enum inputs_family families[] = {INPUTS_INDEXER, INPUTS_TIES,
                                                          INPUTS_CONSTANT};
            struct gpu_spec spec = spec_of(families[inputs], 4, small ? 8200 : 20000, ks[i]);
            spec.lengths = inputs == 1 ? INPUTS_LENGTHS_RAGGED : INPUTS_LENGTHS_FULL;
            spec.options.order = inputs == 2 ? TOPK_ORDER_VALUE : TOPK_ORDER_INDEX;
            spec.values = true;
            good = run_policies(&spec, family, false, detail);
        }
    }
    snprintf(name, sizeof(name), "it_04_%s_any_k", topk_family_name(family));
    report(name, good, detail);
}

/* Few rows over all blocks, as many rows as blocks, several rows a block. */
static void test_row_counts(enum topk_family family)
{
    static const int32_t counts[] = {1, 2, 31, 66, 67, 131, 132, 133, 264, 265, 700};
    for (size_t i = 0; i < (small ? 2 : COUNT(counts)); i++) {
        char name[96], detail[640] = "";
        bool good = true;
        for (int lengths = 0; lengths < 3 && good; lengths++) {
            struct gpu_spec spec = spec_of(lengths == 1 ? INPUTS_MIXED : INPUTS_INDEXER, counts[i],
                                           small ? 9000 : 13001, 512);
            spec.lengths = (enum inputs_lengths)lengths;
            spec.options.ties = TOPK_TIES_LOWEST;
            good = run_policies(&spec, family, true, detail);
        }
        snprintf(name, sizeof(name), "it_05_%s_%d_rows", topk_family_name(family), counts[i]);
        report(name, good, detail);
    }
}

/* Scores of 16 bits, at any 2-byte alignment, by the policies that read them. */
static void test_dtypes(enum topk_family family)
{
    size_t num_widths;
    const int32_t *widths = widths_of(family, &num_widths);
    for (int dtype = TOPK_DTYPE_FLOAT16; dtype < TOPK_DTYPE_COUNT; dtype++) {
        char name[96], detail[640] = "";
        bool good = true;
        for (int inputs = 0; inputs < INPUTS_FAMILY_COUNT && good; inputs++) {
            for (size_t w = 1; w < num_widths && good; w++) {
                if (small && (widths[w] > 9000 || (inputs + (int)w) % 3 != 0)) {
                    continue;
                }
                int32_t k = widths[w] < 600 ? 64 : (inputs % 2 == 0 ? 2048 : 300);
                struct gpu_spec spec =
                    spec_of((enum inputs_family)inputs, small ? 3 : 7, widths[w], k);
                spec.inputs.row_stride = widths[w] + inputs % 3;
                spec.offset = inputs % 17;
                spec.lengths = (enum inputs_lengths)((inputs + (int)w) % INPUTS_LENGTHS_COUNT);
                spec.options.dtype = (enum topk_dtype)dtype;
                spec.options.order = (enum topk_order)((inputs + (int)w) % 3);
                spec.options.ties = (enum topk_ties)(inputs / 3 % 2);
                spec.values = true;
                good = run_policies(&spec, family, false, detail);
            }
        }
        snprintf(name, sizeof(name), "it_07_%s_selects_%s", topk_family_name(family),
                 topk_dtype_name((enum topk_dtype)dtype));
        report(name, good, detail);
    }
}

/* Long rows, where parts are many, candidates overflow and plateaus cross parts. */
static void test_long_rows(enum topk_family family)
{
    static const enum inputs_family families[] = {
        INPUTS_INDEXER,   INPUTS_CLUSTERED,  INPUTS_CONSTANT,   INPUTS_ASCENDING, INPUTS_RELU_ZEROS,
        INPUTS_ONE_TILE,  INPUTS_SAW_TOOTH,  INPUTS_FEW_FINITE, INPUTS_NAN_MOST,  INPUTS_PLATEAU,
        INPUTS_MINUS_INF, INPUTS_NEIGHBOURS, INPUTS_ONE_BIT};
    for (size_t i = 0; i < COUNT(families); i++) {
        char name[96], detail[640] = "";
        bool good = true;
        for (int32_t rows = 1; rows <= 5 && good; rows += 4) {
            struct gpu_spec spec = spec_of(families[i], rows, rows == 1 ? 1048576 : 262209, 2048);
            spec.lengths = rows == 1 ? INPUTS_LENGTHS_FULL : INPUTS_LENGTHS_CAUSAL;
            spec.options.ties = TOPK_TIES_LOWEST;
            good = run_policies(&spec, family, false, detail);
        }
        snprintf(name, sizeof(name), "it_06_%s_long_%s_rows", topk_family_name(family),
                 inputs_family_name(families[i]));
        report(name, good, detail);
    }
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--family") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--sanitize") == 0) {
            small = sanitize = true;
        } else if (strcmp(argv[i], "--small") == 0) {
            small = true;
        } else {
            printf("unknown argument '%s'\n", argv[i]);
            return 2;
        }
    }
    for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
        if (only != NULL && strcmp(only, topk_family_name((enum topk_family)family)) != 0) {
            continue;
        }
        test_inputs((enum topk_family)family);
        if (sanitize) {
            continue;
        }
        test_options((enum topk_family)family);
        test_layouts((enum topk_family)family);
        test_ks((enum topk_family)family);
        test_row_counts((enum topk_family)family);
        test_dtypes((enum topk_family)family);
        if (!small && family != TOPK_FAMILY_ROW) {
            test_long_rows((enum topk_family)family);
        }
    }
    return gpu_summary();
}
