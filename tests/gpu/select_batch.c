/* Selections of many tests by several threads; see select_batch.h. */
#include "select_batch.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the planner says of plans that keep nothing there. */
#define WORKSPACE_UNUSED_BYTES 256

struct batch_case {
    struct gpu_spec spec;
    enum topk_family family;
    enum batch_kind kind;
    uint32_t variants; /* a bit for each policy */
    size_t test;
};

struct batch_test {
    char name[96];
    size_t num_cases, num_left;
    bool failed;
    char detail[BATCH_DETAIL_SIZE]; /* of the first failure */
};

static struct {
    struct batch_case *cases;
    struct batch_test *tests;
    size_t num_cases, num_tests;
    bool once;
    /* While it runs, under the mutex. */
    size_t next;
    bool has_run[GPU_VARIANTS_MAX][TOPK_DTYPE_COUNT];
} batch;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t case_done = PTHREAD_COND_INITIALIZER;

/* An array with room for one more; sizes double. */
static void *grown(void *array, size_t count, size_t size_bytes)
{
    if ((count & (count - 1)) != 0) {
        return array;
    }
    array = realloc(array, (count == 0 ? 1 : 2 * count) * size_bytes);
    if (array == NULL) {
        printf("out of memory: %zu x %zu bytes\n", 2 * count, size_bytes);
        gpu_give_up();
    }
    return array;
}

void batch_begin(const char *format, ...)
{
    batch.tests = grown(batch.tests, batch.num_tests, sizeof(*batch.tests));
    struct batch_test *test = &batch.tests[batch.num_tests++];
    memset(test, 0, sizeof(*test));
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(test->name, sizeof(test->name), format, arguments);
    va_end(arguments);
}

static struct topk_shape shape_of(const struct gpu_spec *spec, enum batch_kind kind)
{
    return gpu_shape(spec, kind == BATCH_SPARE);
}

void batch_add(const struct gpu_spec *spec, enum topk_family family, int32_t variant,
               enum batch_kind kind)
{
    const struct topk_shape shape = shape_of(spec, kind);
    uint32_t variants = 0;
    for (int32_t v = 0; v < GPU_VARIANTS_MAX; v++) {
        struct topk_plan plan;
        if ((variant == BATCH_ALL || variant == v) &&
            topk_plan_make_family(&shape, gpu_device(), family, v, &plan, NULL) == TOPK_OK) {
            variants |= 1u << v;
        }
    }
    if (variants == 0) {
        return;
    }
    batch.cases = grown(batch.cases, batch.num_cases, sizeof(*batch.cases));
    batch.cases[batch.num_cases++] = (struct batch_case){.spec = *spec,
                                                         .family = family,
                                                         .kind = kind,
                                                         .variants = variants,
                                                         .test = batch.num_tests - 1};
    batch.tests[batch.num_tests - 1].num_cases++;
    batch.tests[batch.num_tests - 1].num_left++;
}

bool batch_has_run(int32_t variant, enum topk_dtype dtype)
{
    return batch.has_run[variant][dtype];
}

/* How to repeat a failure. */
static void describe(const struct batch_case *one, const struct gpu_request *request,
                     int32_t variant, int turn, const char *what, char *detail)
{
    const struct gpu_spec *spec = &one->spec;
    char inputs[160];
    inputs_describe(&request->spec.inputs, inputs, sizeof(inputs));
    snprintf(detail, BATCH_DETAIL_SIZE,
             "%s:%d dtype=%s order=%d ties=%d offset=%d lengths=%s%s%s%s run %d: %s: %s",
             topk_family_name(one->family), variant, topk_dtype_name(spec->options.dtype),
             spec->options.order, spec->options.ties, spec->offset,
             inputs_lengths_name(spec->lengths), spec->values ? " values" : "",
             spec->pages ? " pages" : "", spec->row_offsets ? " offsets" : "", turn, inputs, what);
}

/* Rows that mislead the sample are read again, which no other test knows of its rows; and what was
 * too much the second time is counted as well. */
static bool were_misled(const struct gpu_request *request, uint64_t misled, char *what)
{
    struct topk_routes routes;
    CHECK_CUDA(cudaMemcpy(&routes, request->d_routes, sizeof(routes), cudaMemcpyDeviceToHost));
    const uint64_t again = routes.band + routes.recovery;
    if (again + routes.spill == misled && again != 0 && routes.spill != 0) {
        return true;
    }
    snprintf(what, ORACLE_DETAIL_SIZE,
             "%llu rows mislead the sample, but %llu were read again and %llu overflowed",
             (unsigned long long)misled, (unsigned long long)again,
             (unsigned long long)routes.spill);
    return false;
}

/* Selects with one policy: once, and once more where the first has left a workspace. */
static bool run_policy(const struct batch_case *one, struct gpu_request *request, int32_t variant,
                       char *detail)
{
    const struct topk_shape shape = shape_of(&one->spec, one->kind);
    struct gpu_plan plan;
    if (!gpu_plan_init(&shape, one->family, variant, &plan)) {
        describe(one, request, variant, 0, "there is no plan, though there was one", detail);
        return false;
    }
    gpu_request_poison(request);
    const bool misleads = one->kind == BATCH_MISLED;
    const uint64_t misled = misleads ? (uint64_t)gpu_mislead(request, &plan.plan) : 0;
    const bool leaves_nothing = plan.plan.workspace_bytes <= WORKSPACE_UNUSED_BYTES;
    const int turns = batch.once || misleads || leaves_nothing ? 1 : 2;
    bool good = true;
    for (int turn = 0; turn < turns && good; turn++) {
        gpu_enqueue(&plan, request, NULL);
        CHECK_CUDA(cudaDeviceSynchronize());
        char what[ORACLE_DETAIL_SIZE];
        good =
            gpu_request_judge(request, what) && (!misleads || were_misled(request, misled, what));
        if (!good) {
            describe(one, request, variant, turn, what, detail);
        }
    }
    gpu_plan_fini(&plan);
    pthread_mutex_lock(&mutex);
    batch.has_run[variant][one->spec.options.dtype] = true;
    pthread_mutex_unlock(&mutex);
    return good;
}

static bool run_case(const struct batch_case *one, char *detail)
{
    struct gpu_request request;
    gpu_request_init(&one->spec, &request);
    bool good = true;
    for (int32_t variant = 0; variant < GPU_VARIANTS_MAX && good; variant++) {
        if ((one->variants >> variant & 1u) != 0) {
            good = run_policy(one, &request, variant, detail);
        }
    }
    gpu_request_fini(&request);
    return good;
}

/* Takes the next case and runs it, unless its test has failed already; false: there is none. */
static bool run_next(void)
{
    pthread_mutex_lock(&mutex);
    if (batch.next == batch.num_cases) {
        pthread_mutex_unlock(&mutex);
        return false;
    }
    const struct batch_case *one = &batch.cases[batch.next++];
    struct batch_test *test = &batch.tests[one->test];
    const bool skipped = test->failed;
    pthread_mutex_unlock(&mutex);
    char detail[BATCH_DETAIL_SIZE] = "";
    const bool good = skipped || run_case(one, detail);
    pthread_mutex_lock(&mutex);
    if (!good && !test->failed) {
        test->failed = true;
        memcpy(test->detail, detail, sizeof(detail));
    }
    test->num_left--;
    pthread_cond_signal(&case_done);
    pthread_mutex_unlock(&mutex);
    return true;
}

static void *run_cases(void *argument)
{
    while (run_next()) {
    }
    return argument;
}

static bool is_done(const struct batch_test *test)
{
    pthread_mutex_lock(&mutex);
    const bool done = test->num_left == 0;
    pthread_mutex_unlock(&mutex);
    return done;
}

/* This thread works as well, as long as there is work. */
static void finish_test(const struct batch_test *test)
{
    while (!is_done(test) && run_next()) {
    }
    pthread_mutex_lock(&mutex);
    while (test->num_left > 0) {
        pthread_cond_wait(&case_done, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static void report(const struct batch_test *test, bool quiet)
{
    if (test->num_cases > 0) {
        gpu_report(test->name, !test->failed, test->detail);
    } else if (!quiet) {
        printf("none   %s: no policy serves it\n", test->name);
    }
}

static void run_batch(int num_others, bool quiet)
{
    pthread_t others[BATCH_THREADS_MAX];
    memset(batch.has_run, 0, sizeof(batch.has_run));
    batch.next = 0;
    for (int i = 0; i < num_others; i++) {
        if (pthread_create(&others[i], NULL, run_cases, NULL) != 0) {
            printf("cannot start a thread\n");
            gpu_give_up();
        }
    }
    for (size_t i = 0; i < batch.num_tests; i++) {
        finish_test(&batch.tests[i]);
        report(&batch.tests[i], quiet);
    }
    for (int i = 0; i < num_others; i++) {
        pthread_join(others[i], NULL);
    }
    free(batch.cases);
    free(batch.tests);
    batch.cases = NULL;
    batch.tests = NULL;
    batch.num_cases = batch.num_tests = 0;
}

void batch_run(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    batch.once = false;
    run_batch((int)(online < BATCH_THREADS_MAX ? online : BATCH_THREADS_MAX) - 1, false);
}

void batch_run_alone(bool once)
{
    batch.once = once;
    run_batch(0, true);
}
