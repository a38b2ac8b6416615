/*
 * hostile_test - selections from memory that changes while it is read, on the model of a GPU: every
 * policy of every family in turn. Results are undefined then; but nothing may be read or written
 * out of range, every launch ends, and a workspace that is prepared anew selects exactly.
 *
 *   hostile_test [--cases N | --seconds N] [--first N] [--family NAME] [--help]
 *
 * --cases: so many from --first on (0), the same each time; --seconds: until so much time has
 * passed. TOPKD_TEST_SEED draws other cases. All memory of a request ends or begins at a page that
 * is not there; what the model or a sanitizer reports ends the program, and the report names the
 * case.
 *
 * Whether a selection is exact that finds the workspace as a hostile one left it is counted, not
 * judged: a caller prepares the workspace again before it serves another client.
 */
#include "emulate.h"
#include "hostile.h"
#include "select_gpu.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define DRAWS_MAX 400 /* of a shape, until one is served */
#define CASE_MAX_S 60 /* computed; a case takes a tenth of a second to a few */
#define HOSTILE_LAUNCHES 2
#define POLICY_STEP 5 /* a prime */

/* A policy, how often it was tried, and what the selection after a hostile one was. */
struct policy {
    enum topk_family family;
    int32_t variant;
    uint32_t num_served, num_inexact;
};

static struct policy policies[64];
static size_t num_policies;
static char where[96]; /* the case, for the handlers of signals */

static const char usage[] =
    "hostile_test [--cases N | --seconds N] [--first N] [--family NAME] [--help]\n"
    "Selections from memory that changes while it is read, on the model of a GPU.\n"
    "  --cases N      so many cases from --first on (100)\n"
    "  --seconds N    cases until so much time has passed\n"
    "  --first N      the number of the first case (0)\n"
    "  --family NAME  plain, row, tiles, split or cluster alone\n"
    "TOPKD_TEST_SEED draws other cases; TOPKD_EMULATE_DEVICE chooses the device.\n";

/* Every policy that this device can run at all. */
static void find_policies(const char *only)
{
    static const int32_t widths[] = {1024, 16384, 32768, 200000};
    for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
        if (only != NULL && strcmp(only, topk_family_name((enum topk_family)family)) != 0) {
            continue;
        }
        for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
            bool serves = false;
            for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]) && !serves; i++) {
                const struct gpu_spec spec = {.k = 64,
                                              .inputs = {.num_rows = 1, .width = widths[i]}};
                serves = gpu_serves(&spec, (enum topk_family)family, variant);
            }
            if (serves) {
                policies[num_policies++] =
                    (struct policy){.family = (enum topk_family)family, .variant = variant};
            }
        }
    }
}

/* Few rows and many, narrow and wide; of tiles more rows than blocks, so long that they are cut. */
static struct gpu_spec draw_spec(struct inputs_rng *rng, enum topk_family family)
{
    static const int32_t ks[] = {1, 7, 64, 300, 1024, 2047, 2048, 2048};
    static const uint32_t ends[] = {40, 3000, 9000, 17000, 33000, 60000};
    struct gpu_spec spec = {0};
    spec.k = ks[inputs_rng_below(rng, 8)];
    if (family == TOPK_FAMILY_PLAIN && inputs_rng_below(rng, 4) == 0) {
        spec.k = 2049 + (int32_t)inputs_rng_below(rng, 2000);
    }
    spec.inputs.family = (enum inputs_family)inputs_rng_below(rng, INPUTS_FAMILY_COUNT);
    spec.inputs.seed = inputs_rng_next(rng);
    spec.inputs.width = 1 + (int32_t)inputs_rng_below(rng, ends[inputs_rng_below(rng, 6)]);
    spec.inputs.num_rows = 1 + (int32_t)inputs_rng_below(rng, spec.inputs.width > 9000 ? 6 : 24);
    spec.lengths = (enum inputs_lengths)inputs_rng_below(rng, INPUTS_LENGTHS_COUNT - 1);
    spec.options.order = (enum topk_order)inputs_rng_below(rng, 3);
    spec.options.ties = (enum topk_ties)inputs_rng_below(rng, 2);
    spec.options.dtype = (enum topk_dtype)inputs_rng_below(rng, TOPK_DTYPE_COUNT);
    const int32_t group = 16 / (int32_t)topk_dtype_bytes(spec.options.dtype);
    spec.inputs.row_stride = spec.inputs.width + (int32_t)inputs_rng_below(rng, 6);
    if (inputs_rng_below(rng, 3) == 0) { /* the planner knows of aligned rows */
        spec.alignment_bytes = 16;
        spec.inputs.row_stride = (spec.inputs.width + group - 1) / group * group;
    }
    spec.values = inputs_rng_below(rng, 2) == 0;
    spec.row_offsets = inputs_rng_below(rng, 3) == 0;
    spec.pages = inputs_rng_below(rng, 3) == 0;
    spec.page_size_log2 = inputs_rng_below(rng, 8);
    return spec;
}

static void enqueue(const struct topk_plan *plan, const struct hostile *hostile, bool prepare)
{
    char detail[TOPK_DETAIL_SIZE];
    enum topk_status status = TOPK_OK;
    if (prepare) {
        status = topk_cuda_workspace_init(plan, hostile->workspace.at, NULL, detail);
    }
    if (status == TOPK_OK) {
        status = topk_cuda_enqueue(plan, hostile->d_args, hostile->workspace.at, NULL, detail);
    }
    if (status != TOPK_OK) {
        printf("%s\n", detail);
        exit(2);
    }
    CHECK_CUDA(cudaDeviceSynchronize());
}

/* As a server does it: prepared once, hostile selections; then an honest one, and one after the
 * workspace was prepared again. */
static bool run_case(const struct topk_plan *plan, struct hostile *hostile, bool *inexact_p,
                     char *what)
{
    for (int i = 0; i < HOSTILE_LAUNCHES; i++) {
        emulate_on_switch(hostile_meddle, hostile);
        enqueue(plan, hostile, i == 0);
        emulate_on_switch(NULL, NULL);
        if (!hostile_is_within(hostile, what)) {
            return false;
        }
    }
    hostile_restore(hostile);
    enqueue(plan, hostile, false);
    *inexact_p = !oracle_check(&hostile->args, &hostile->spec.options, what);
    if (!hostile_is_within(hostile, what)) {
        return false;
    }
    hostile_restore(hostile);
    enqueue(plan, hostile, true);
    return oracle_check(&hostile->args, &hostile->spec.options, what) &&
           hostile_is_within(hostile, what);
}

static bool run_numbered(uint64_t number)
{
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed() + 1, number);
    /* A few cases meet most families: neighbours in the list are policies of one. */
    const uint64_t step = num_policies % POLICY_STEP == 0 ? 1 : POLICY_STEP;
    struct policy *policy = &policies[number * step % num_policies];
    struct gpu_spec spec;
    struct topk_plan plan;
    char what[ORACLE_DETAIL_SIZE] = "no shape that the policy serves was drawn", inputs[160];
    bool served = false, inexact = false;
    for (int draw = 0; draw < DRAWS_MAX && !served; draw++) {
        spec = draw_spec(&rng, policy->family);
        struct topk_shape shape = gpu_shape(&spec, inputs_rng_below(&rng, 2) == 0);
        served = topk_plan_make_family(&shape, gpu_device(), policy->family, policy->variant, &plan,
                                       what) == TOPK_OK;
    }
    inputs_describe(&spec.inputs, inputs, sizeof(inputs));
    bool good = false;
    if (served) {
        struct hostile hostile;
        if (topk_cuda_load(&plan, what) != TOPK_OK) {
            printf("%s\n", what);
            exit(2);
        }
        emulate_seed(inputs_rng_next(&rng));
        hostile_init(&spec, &plan, inputs_rng_next(&rng), &hostile);
        good = run_case(&plan, &hostile, &inexact, what);
        hostile_fini(&hostile);
        policy->num_served++;
        policy->num_inexact += inexact ? 1 : 0;
    }
    if (!good) {
        printf("FAILED %s: %s:%d k=%d dtype=%s order=%d: %s: %s\n", where,
               topk_family_name(policy->family), policy->variant, spec.k,
               topk_dtype_name(spec.options.dtype), (int)spec.options.order, inputs, what);
    }
    return good;
}

static void die(const char *what)
{
    if (write(STDOUT_FILENO, where, strlen(where)) < 0 ||
        write(STDOUT_FILENO, what, strlen(what)) < 0) {
        _exit(2);
    }
    _exit(3);
}

static void on_signal(int signal)
{
    die(signal == SIGVTALRM ? ": the launch does not end\n"
                            : ": memory out of range is read or written\n");
}

/* The case, in every report, and the time that it may take. */
static void announce(uint64_t number)
{
    const struct itimerval limit = {.it_value = {.tv_sec = CASE_MAX_S}};
    snprintf(where, sizeof(where), "case %llu, seed %llu", (unsigned long long)number,
             (unsigned long long)inputs_run_seed());
    emulate_case(number);
    setitimer(ITIMER_VIRTUAL, &limit, NULL);
    signal(SIGVTALRM, on_signal);
#ifndef __SANITIZE_ADDRESS__ /* which says where */
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
#endif
}

static bool number_of(const char *text, uint64_t *number_p)
{
    char *end;
    *number_p = strtoull(text, &end, 10);
    return end != text && *end == '\0';
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    uint64_t cases = 100, seconds = 0, first = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = (strcmp(argv[i], "--cases") == 0 && number_of(value, &cases)) ||
                    (strcmp(argv[i], "--seconds") == 0 && number_of(value, &seconds)) ||
                    (strcmp(argv[i], "--first") == 0 && number_of(value, &first));
        if (!good && strcmp(argv[i], "--family") == 0) {
            only = value;
            good = true;
        }
        if (!good) {
            const bool help = strcmp(argv[i], "--help") == 0;
            printf("%s", usage);
            if (!help) {
                printf("'%s %s' is no option\n", argv[i], value);
            }
            return help ? 0 : 2;
        }
    }
    find_policies(only);
    if (num_policies == 0) {
        printf("no policy of family '%s' on this device\n", only != NULL ? only : "any");
        return 2;
    }
    printf("seed %llu\n", (unsigned long long)inputs_run_seed());
    fflush(stdout);
    uint64_t number = first, num_failed = 0;
    const time_t start = time(NULL);
    while (seconds > 0 ? time(NULL) - start < (time_t)seconds : number - first < cases) {
        announce(number);
        num_failed += run_numbered(number++) ? 0 : 1;
    }
    for (size_t i = 0; i < num_policies; i++) {
        printf("%s:%d %u cases; the next selection without a new workspace inexact in %u\n",
               topk_family_name(policies[i].family), policies[i].variant, policies[i].num_served,
               policies[i].num_inexact);
    }
    printf("%llu cases, %llu failed\n", (unsigned long long)(number - first),
           (unsigned long long)num_failed);
    return num_failed == 0 && number > first ? 0 : 1;
}
