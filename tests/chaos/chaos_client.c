/*
 * chaos_client - one client of the chaos test: chaos_client MODE URL SEED LIFE_MS
 *
 *   steady   small blocking requests, one after the other, until SIGTERM: the witness. It says what
 *            it saw, and every error that it met with the time
 *   random   everything a client may do, blocking and not, and after LIFE_MS one of the ends: in
 *            order, by _exit, abort or SIGKILL in the middle, or standing still with all it holds
 *   flood    as many requests at a time as it may, as fast as they go, and more
 *
 * Every result is judged. Lines on stdout, for chaos.py:
 *
 *   ERROR <monotonic ms> <status> <detail>    an error of a call, not of the answers
 *   WRONG <what>                              an answer that is not right; exit code 3
 *   STATS key=value ...                       at the end (steady: also each second)
 */
#include "chaos_request.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXIT_WRONG 3
#define MATRICES 4u
#define OPS 40u          /* some more than limits.outstanding_max allows by default */
#define STEADY_MS 60000u /* choice: on a busy machine a restart of everything takes seconds */
#define RANDOM_MS 5000u
#define LATENCIES 65536u

struct chaos {
    struct topkd_client *client;
    struct inputs_rng rng;
    bool is_cuda;
    uint64_t end_ms;
    struct chaos_matrix matrices[MATRICES];
    uint64_t num_calls, num_right, num_errors;
    uint64_t longest_ns;
    uint32_t num_latencies; /* of all calls; the last LATENCIES are kept */
    uint32_t latencies_us[LATENCIES];
};

static volatile sig_atomic_t is_asked_to_end;

static void on_term(int number)
{
    (void)number;
    is_asked_to_end = 1;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now_ms(void)
{
    return now_ns() / 1000000u;
}

static void sleep_ms(uint32_t ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static void note_error(struct chaos *chaos, enum topkd_status status)
{
    chaos->num_errors++;
    printf("ERROR %" PRIu64 " %s %s\n", now_ms(), topkd_status_name(status), topkd_detail());
    fflush(stdout);
}

static void judge(struct chaos *chaos, const struct chaos_matrix *matrix,
                  const struct topkd_result *result)
{
    if (!chaos_matrix_judge(matrix, result)) {
        fflush(stdout);
        _exit(EXIT_WRONG);
    }
    chaos->num_right++;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void print_stats(struct chaos *chaos)
{
    static uint32_t sorted[LATENCIES];
    uint32_t num = chaos->num_latencies < LATENCIES ? chaos->num_latencies : LATENCIES;
    struct topkd_client_info info = {.num_renewals = 0};
    if (chaos->client != NULL)
        (void)topkd_client_info(chaos->client, &info);
    memcpy(sorted, chaos->latencies_us, num * sizeof(sorted[0]));
    qsort(sorted, num, sizeof(sorted[0]), compare_u32);
    printf("STATS calls=%" PRIu64 " right=%" PRIu64 " errors=%" PRIu64 " renewals=%" PRIu64
           " p50_us=%u p99_us=%u longest_ms=%" PRIu64 " device_free_bytes=%" PRIu64 "\n",
           chaos->num_calls, chaos->num_right, chaos->num_errors, info.num_renewals,
           num > 0 ? sorted[num / 2] : 0, num > 0 ? sorted[num - 1 - num / 100] : 0,
           chaos->longest_ns / 1000000, chaos_cuda_free_bytes());
    fflush(stdout);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Opens the session, as often as it takes. */
static bool open_client(struct chaos *chaos, const char *url, uint32_t timeout_ms)
{
    struct topkd_client_options options = {.url = url, .name = "chaos", .timeout_ms = timeout_ms};
    enum topkd_status status;
    while ((status = topkd_client_open(&options, &chaos->client)) != TOPKD_OK) {
        note_error(chaos, status);
        if (now_ms() >= chaos->end_ms || is_asked_to_end)
            return false;
        sleep_ms(100);
    }
    struct topkd_client_info info;
    if (topkd_client_info(chaos->client, &info) != TOPKD_OK)
        return false;
    chaos->is_cuda = info.device_kind == TOPKD_DEVICE_CUDA;
    return !chaos->is_cuda || chaos_cuda_open(info.device);
}

static bool has_matrix(const struct chaos *chaos, uint32_t i)
{
    return chaos->matrices[i].buffer != NULL;
}

/* A new matrix in this place. */
static bool renew_matrix(struct chaos *chaos, uint32_t i)
{
    if (has_matrix(chaos, i))
        chaos_matrix_close(&chaos->matrices[i]);
    enum topkd_status status =
        chaos_matrix_open(chaos->client, &chaos->rng, chaos->is_cuda, &chaos->matrices[i]);
    if (status != TOPKD_OK)
        note_error(chaos, status);
    return status == TOPKD_OK;
}

static void blocking_call(struct chaos *chaos, uint32_t i)
{
    struct chaos_matrix *matrix = &chaos->matrices[i];
    struct topkd_result result;
    chaos_matrix_ask(matrix, &chaos->rng);
    uint64_t begin_ns = now_ns();
    enum topkd_status status = topkd_select(chaos->client, &matrix->request, &result);
    uint64_t took_ns = now_ns() - begin_ns;
    chaos->num_calls++;
    if (took_ns > chaos->longest_ns)
        chaos->longest_ns = took_ns;
    chaos->latencies_us[chaos->num_latencies++ % LATENCIES] = (uint32_t)(took_ns / 1000);
    if (status != TOPKD_OK) {
        note_error(chaos, status);
        return;
    }
    judge(chaos, matrix, &result);
    topkd_result_release(chaos->client, &result);
}

/* A request that waits for a semaphore, signalled in time or never (`leave`). */
static void semaphore_call(struct chaos *chaos, uint32_t i, bool leave)
{
    struct chaos_matrix *matrix = &chaos->matrices[i];
    struct topkd_semaphore *ready = NULL;
    struct topkd_op *op = NULL;
    struct topkd_result result;
    enum topkd_status status = topkd_semaphore_create(chaos->client, &ready);
    if (status != TOPKD_OK) {
        note_error(chaos, status);
        return;
    }
    chaos_matrix_ask(matrix, &chaos->rng);
    matrix->request.wait = (struct topkd_semaphore_point){ready, 1};
    status = topkd_select_start(chaos->client, &matrix->request, NULL, &op);
    chaos->num_calls++;
    if (status != TOPKD_OK) {
        note_error(chaos, status);
    } else if (!leave) {
        sleep_ms(inputs_rng_below(&chaos->rng, 20));
        (void)topkd_semaphore_signal(ready, 1);
        (void)topkd_op_wait(op, RANDOM_MS);
        status = topkd_op_finish(op, &result);
        if (status != TOPKD_OK) {
            note_error(chaos, status);
        } else {
            judge(chaos, matrix, &result);
            topkd_result_release(chaos->client, &result);
        }
    }
    topkd_semaphore_destroy(ready);
}

/* Many at once, as fast as they go: BUSY is part of it. */
static void burst(struct chaos *chaos, uint32_t i, bool leave)
{
    struct chaos_matrix *matrix = &chaos->matrices[i];
    struct topkd_op *ops[OPS];
    uint32_t num_ops = 0;
    chaos_matrix_ask(matrix, &chaos->rng);
    for (uint32_t n = 0; n < OPS; n++) {
        enum topkd_status status =
            topkd_select_start(chaos->client, &matrix->request, NULL, &ops[num_ops]);
        chaos->num_calls++;
        if (status == TOPKD_OK)
            num_ops++;
        else if (status != TOPKD_E_BUSY)
            note_error(chaos, status);
    }
    for (uint32_t n = 0; n < num_ops && !leave; n++) {
        struct topkd_result result;
        if (inputs_rng_below(&chaos->rng, 4) != 0)
            (void)topkd_op_wait(ops[n], RANDOM_MS);
        enum topkd_status status = topkd_op_finish(ops[n], &result); /* or cancels it */
        if (status == TOPKD_OK) {
            if (n + 1 == num_ops) /* those before have the same output, or it is a slot each */
                judge(chaos, matrix, &result);
            topkd_result_release(chaos->client, &result);
        } else if (status != TOPKD_E_CANCELLED && status != TOPKD_E_BUSY) {
            note_error(chaos, status);
        }
    }
}

/* ---- Modes ----------------------------------------------------------------------------------- */

static int steady(struct chaos *chaos, const char *url)
{
    uint64_t said_ms = now_ms();
    if (!open_client(chaos, url, STEADY_MS))
        return 1;
    while (!has_matrix(chaos, 0) && !is_asked_to_end)
        (void)renew_matrix(chaos, 0);
    while (!is_asked_to_end) {
        blocking_call(chaos, 0);
        sleep_ms(2);
        if (now_ms() - said_ms >= 1000) {
            said_ms = now_ms();
            print_stats(chaos);
        }
    }
    chaos_matrix_close(&chaos->matrices[0]);
    topkd_client_close(chaos->client);
    chaos->client = NULL;
    return 0;
}

static void end_randomly(struct chaos *chaos)
{
    struct topkd_client *client = chaos->client;
    print_stats(chaos);
    switch (inputs_rng_below(&chaos->rng, 6)) {
    case 0:
        _exit(0);
    case 1:
        (void)raise(SIGKILL);
        break;
    case 2:
        abort();
    case 3: /* with requests that nobody will ever take */
        if (has_matrix(chaos, 0)) {
            semaphore_call(chaos, 0, true);
            burst(chaos, 0, true);
        }
        _exit(0);
    case 4: /* silent, with all it holds, until somebody ends it */
        if (has_matrix(chaos, 0))
            burst(chaos, 0, true);
        (void)raise(SIGSTOP);
        break;
    default:
        for (uint32_t i = 0; i < MATRICES; i++)
            if (has_matrix(chaos, i))
                chaos_matrix_forget(&chaos->matrices[i]);
        chaos->client = NULL;
        topkd_client_close(client); /* buffers and all */
        break;
    }
}

static int random_life(struct chaos *chaos, const char *url)
{
    if (!open_client(chaos, url, RANDOM_MS))
        return 0;
    while (now_ms() < chaos->end_ms && !is_asked_to_end) {
        uint32_t i = inputs_rng_below(&chaos->rng, MATRICES);
        if ((!has_matrix(chaos, i) || inputs_rng_below(&chaos->rng, 8) == 0) &&
            !renew_matrix(chaos, i)) {
            sleep_ms(20);
            continue;
        }
        switch (inputs_rng_below(&chaos->rng, 8)) {
        case 0:
            semaphore_call(chaos, i, false);
            break;
        case 1:
            burst(chaos, i, false);
            break;
        case 2:
            sleep_ms(inputs_rng_below(&chaos->rng, 50));
            break;
        default:
            blocking_call(chaos, i);
            break;
        }
    }
    end_randomly(chaos);
    return 0;
}

static int flood(struct chaos *chaos, const char *url)
{
    if (!open_client(chaos, url, RANDOM_MS))
        return 0;
    while (now_ms() < chaos->end_ms && !is_asked_to_end) {
        if (!has_matrix(chaos, 0) && !renew_matrix(chaos, 0))
            sleep_ms(20);
        else
            burst(chaos, 0, false);
    }
    print_stats(chaos);
    _exit(0);
}

int main(int argc, char **argv)
{
    static struct chaos chaos;
    if (argc != 5) {
        fprintf(stderr, "usage: %s steady|random|flood URL SEED LIFE_MS\n", argv[0]);
        return 2;
    }
    signal(SIGTERM, on_term);
    chaos.rng = inputs_rng_of(strtoull(argv[3], NULL, 10), 1);
    chaos.end_ms = now_ms() + strtoull(argv[4], NULL, 10);
    int code = 2;
    if (strcmp(argv[1], "steady") == 0)
        code = steady(&chaos, argv[2]);
    else if (strcmp(argv[1], "random") == 0)
        code = random_life(&chaos, argv[2]);
    else if (strcmp(argv[1], "flood") == 0)
        code = flood(&chaos, argv[2]);
    print_stats(&chaos);
    return code;
}
