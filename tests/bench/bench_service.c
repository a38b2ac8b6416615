/*
 * bench_service.c - what the way through the daemon costs over the selection itself, on a GPU.
 *
 * usage: bench_service URL LABEL [SECONDS [SHAPE [CLIENTS [WORKER_PID]]]]
 *
 * LABEL goes into the first column ("plain", "mps"). For each shape (SHAPE: only that one, 0 or 1)
 * and 1, 2, 4 and 8 client processes at once (CLIENTS: at most) it prints one CSV row a mode; what
 * the columns mean is in results/h200-service.md.
 *   ping       round trip to the worker without work
 *   blocking   topkd_select, scores ready, from the call to its return
 *   stream     topkd_select_stream, from the call until the stream has passed it; who waits for
 *              that gives its processor to others meanwhile
 *   spinning   the same, but who waits keeps its processor
 *   pipelined  eight requests of one client in flight, time a request
 * Every cell is measured twice, by clients of their own: the columns have the mean of both, the
 * last two how far they lie apart (the higher over the lower, less 1).
 * own_us is the time of the same selection alone: replays of its graph, back to back, in this
 * process, while the daemon is idle. With the worker's process the last columns say what its
 * threads and those of the clients did for a request.
 */
#include "bench_args.h"
#include "bench_own.h"
#include "bench_scores.h"
#include "bench_usage.h"
#include "topkd.h"

#include <cuda.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS_MAX 8
#define SAMPLES_MAX 200000
#define DEPTH 8
#define PASSES 2 /* choice: times a cell is measured, so that its spread is known */
#define TK(call) check_tk(#call, (call))

static const struct own_shape shapes[] = {{4, 16384, 512}, {64, 131072, 2048}};

enum mode { MODE_PING, MODE_BLOCKING, MODE_STREAM, MODE_SPINNING, MODE_PIPELINED, MODE_COUNT };
static const char *const mode_names[] = {"ping", "blocking", "stream", "spinning", "pipelined"};

/* Where the time of a request went, in us. */
struct sample {
    float whole_us;  /* what the mode measures */
    float queued_us; /* in the worker, from arrival until it was on the device: waits included */
    float run_us;    /* from there until its end was seen */
    float late_us;   /* stream: from the reply's arrival until the stream had passed, if after it */
};

/* Of the processes together. */
struct board {
    pthread_barrier_t start;
    float own_us;
    uint32_t num_samples[CLIENTS_MAX];
    double elapsed_s[CLIENTS_MAX];
    struct sample samples[CLIENTS_MAX][SAMPLES_MAX];
};

struct client {
    struct topkd_client *topkd;
    CUstream stream;
    CUdeviceptr d_scores, d_indices;
    struct topkd_select_request request;
    volatile uint64_t *h_mark; /* pinned */
};

static void check_tk(const char *call, enum topkd_status status)
{
    if (status == TOPKD_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, topkd_status_name(status), topkd_detail());
    _exit(1);
}

/* ---- A client -------------------------------------------------------------------------------- */

static void open_client(const char *url, const struct own_shape *shape, struct client *client)
{
    CUdevice device;
    struct topkd_client_options options = {
        .url = url, .name = "bench_service", .timeout_ms = 30000};
    struct topkd_region *scores, *indices;
    own_open_gpu(&device);
    TK(topkd_client_open(&options, &client->topkd));
    size_t count = (size_t)shape->rows * (size_t)shape->width;
    size_t indices_bytes = (size_t)shape->rows * (size_t)shape->k * sizeof(int32_t) * DEPTH;
    CU(cuStreamCreate(&client->stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&client->d_scores, count * sizeof(float)));
    CU(cuMemAlloc(&client->d_indices, indices_bytes));
    CU(cuMemHostAlloc((void **)&client->h_mark, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    *client->h_mark = 0;
    own_fill(client->d_scores, count);
    TK(topkd_region_register_cuda(client->topkd, (void *)(uintptr_t)client->d_scores,
                                  count * sizeof(float), TOPKD_ACCESS_READ, &scores));
    TK(topkd_region_register_cuda(client->topkd, (void *)(uintptr_t)client->d_indices,
                                  indices_bytes, TOPKD_ACCESS_READ_WRITE, &indices));
    client->request = (struct topkd_select_request){.scores = {.region = scores},
                                                    .indices = {.region = indices},
                                                    .rows = (uint32_t)shape->rows,
                                                    .width = (uint32_t)shape->width,
                                                    .k = (uint32_t)shape->k};
}

static void note_result(const struct topkd_result *result, struct sample *sample)
{
    sample->queued_us = (float)((double)result->queued_ns / 1e3);
    sample->run_us = (float)((double)result->run_ns / 1e3);
    sample->late_us = 0;
}

/* A selection in the order of the stream: over when the stream has passed it. The reply may come
 * before or after that; whoever asks is not kept by it. */
static void once_stream(struct client *client, bool yields, double start_us, struct sample *sample)
{
    struct topkd_result result;
    struct topkd_op *op;
    struct pollfd reply = {.fd = topkd_client_fd(client->topkd), .events = POLLIN};
    double passed_us = 0, replied_us = 0;
    uint64_t mark = *client->h_mark + 1;
    TK(topkd_select_stream(client->topkd, &client->request, client->stream, &op));
    CU(cuStreamWriteValue64(client->stream, (CUdeviceptr)(uintptr_t)client->h_mark, mark, 0));
    while (passed_us == 0 || replied_us == 0) {
        if (passed_us == 0 && *client->h_mark == mark)
            passed_us = now_us();
        if (replied_us == 0 && poll(&reply, 1, 0) > 0)
            replied_us = now_us();
        if (yields)
            sched_yield();
    }
    TK(topkd_op_finish(op, &result));
    note_result(&result, sample);
    sample->whole_us = (float)(passed_us - start_us);
    sample->late_us = (float)(passed_us > replied_us ? passed_us - replied_us : 0);
}

/* One call. */
static void once(struct client *client, enum mode mode, struct sample *sample)
{
    struct topkd_result result;
    double start_us = now_us();
    if (mode == MODE_STREAM || mode == MODE_SPINNING) {
        once_stream(client, mode == MODE_STREAM, start_us, sample);
        return;
    }
    if (mode == MODE_PING) {
        TK(topkd_ping(client->topkd, NULL));
    } else {
        TK(topkd_select(client->topkd, &client->request, &result));
        note_result(&result, sample);
    }
    sample->whole_us = (float)(now_us() - start_us);
}

static uint32_t run_single(struct client *client, enum mode mode, double seconds,
                           struct sample *samples)
{
    uint32_t num = 0;
    for (int i = 0; i < 50; i++)
        once(client, mode, &samples[0]);
    double end_us = now_us() + seconds * 1e6;
    while (num < SAMPLES_MAX && now_us() < end_us)
        once(client, mode, &samples[num++]);
    return num;
}

/* Time a request: from end to end, DEPTH in flight. */
static uint32_t run_pipelined(struct client *client, double seconds, struct sample *samples)
{
    struct topkd_op *ops[DEPTH] = {NULL};
    uint32_t num = 0, started = 0;
    double end_us = now_us() + seconds * 1e6, last_us = 0;
    uint64_t slot_bytes = (uint64_t)client->request.rows * client->request.k * sizeof(int32_t);
    for (;; started++) {
        struct topkd_op **op = &ops[started % DEPTH];
        if (*op) {
            struct topkd_result result;
            TK(topkd_op_wait(*op, 0));
            TK(topkd_op_finish(*op, &result));
            double ended_us = now_us();
            if (started > 4 * DEPTH && num < SAMPLES_MAX) {
                note_result(&result, &samples[num]);
                samples[num++].whole_us = (float)(ended_us - last_us);
            }
            last_us = ended_us;
            *op = NULL;
            if (ended_us >= end_us)
                break;
        }
        struct topkd_select_request request = client->request;
        request.indices.offset_bytes = started % DEPTH * slot_bytes;
        TK(topkd_select_start(client->topkd, &request, NULL, op));
    }
    for (int i = 0; i < DEPTH; i++) {
        if (ops[i]) {
            TK(topkd_op_wait(ops[i], 0));
            TK(topkd_op_finish(ops[i], NULL));
        }
    }
    return num;
}

static void client_main(struct board *board, const char *url, const struct own_shape *shape,
                        int index, double seconds)
{
    struct client client;
    open_client(url, shape, &client);
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        pthread_barrier_wait(&board->start);
        double start_us = now_us();
        board->num_samples[index] =
            mode == MODE_PIPELINED
                ? run_pipelined(&client, seconds, board->samples[index])
                : run_single(&client, (enum mode)mode, seconds, board->samples[index]);
        board->elapsed_s[index] = (now_us() - start_us) / 1e6;
        pthread_barrier_wait(&board->start); /* the parent reads */
        pthread_barrier_wait(&board->start);
    }
    topkd_client_close(client.topkd);
    _exit(0);
}

/* ---- The parent: has no context of its own ----------------------------------------------------
 */

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Of one column of all clients' samples. */
static double percentile(const struct board *board, int num, size_t column, size_t percent)
{
    static float all[CLIENTS_MAX * SAMPLES_MAX];
    size_t count = 0;
    for (int i = 0; i < num; i++) {
        for (uint32_t j = 0; j < board->num_samples[i]; j++)
            memcpy(&all[count++], (const char *)&board->samples[i][j] + column, sizeof(float));
    }
    qsort(all, count, sizeof(float), compare);
    return count > 0 ? (double)all[count * percent / 100] : 0;
}

/* What one pass measured in a mode; beside the first two each is a column of the table. */
enum figure {
    FIGURE_SAMPLES,
    FIGURE_LEAST_RATE, /* of a client */
    FIGURE_P50,
    FIGURE_P99,
    FIGURE_RATE,
    FIGURE_QUEUED_P50,
    FIGURE_QUEUED_P99,
    FIGURE_RUN_P50,
    FIGURE_RUN_P99,
    FIGURE_LATE_P50,
    FIGURE_LATE_P99,
    FIGURE_WORKER_CPU, /* of a request; in the order of struct usage */
    FIGURE_WORKER_WAIT,
    FIGURE_WORKER_TURNS,
    FIGURE_CLIENT_CPU,
    FIGURE_CLIENT_WAIT,
    FIGURE_CLIENT_TURNS,
    FIGURE_COUNT
};

/* The cells of one shape and number of clients. */
struct cells {
    const char *label;
    const struct own_shape *shape;
    int num; /* clients */
    float own_us;
    double figures[MODE_COUNT][PASSES][FIGURE_COUNT];
};

static void take_figures(const struct board *board, int num, const struct usage *before,
                         const struct usage *after, double *figures)
{
    double count = 0;
    memset(figures, 0, FIGURE_COUNT * sizeof(*figures));
    figures[FIGURE_LEAST_RATE] = 1e12;
    for (int i = 0; i < num; i++) {
        double own_rate = board->num_samples[i] / board->elapsed_s[i];
        count += board->num_samples[i];
        figures[FIGURE_RATE] += own_rate;
        if (own_rate < figures[FIGURE_LEAST_RATE]) {
            figures[FIGURE_LEAST_RATE] = own_rate;
        }
    }
    if (count == 0) {
        return;
    }
    figures[FIGURE_SAMPLES] = count;
    static const struct {
        enum figure figure;
        size_t column, percent;
    } percentiles[] = {
        {FIGURE_P50, offsetof(struct sample, whole_us), 50},
        {FIGURE_P99, offsetof(struct sample, whole_us), 99},
        {FIGURE_QUEUED_P50, offsetof(struct sample, queued_us), 50},
        {FIGURE_QUEUED_P99, offsetof(struct sample, queued_us), 99},
        {FIGURE_RUN_P50, offsetof(struct sample, run_us), 50},
        {FIGURE_RUN_P99, offsetof(struct sample, run_us), 99},
        {FIGURE_LATE_P50, offsetof(struct sample, late_us), 50},
        {FIGURE_LATE_P99, offsetof(struct sample, late_us), 99},
    };
    for (size_t i = 0; i < sizeof(percentiles) / sizeof(percentiles[0]); i++) {
        figures[percentiles[i].figure] =
            percentile(board, num, percentiles[i].column, percentiles[i].percent);
    }
    for (int i = 0; i < 2; i++) {
        double *of = &figures[FIGURE_WORKER_CPU + 3 * i];
        of[0] = (after[i].cpu_us - before[i].cpu_us) / count;
        of[1] = (after[i].wait_us - before[i].wait_us) / count;
        of[2] = (after[i].turns - before[i].turns) / count;
    }
}

/* The mean of the passes. */
static double mean(const double figures[PASSES][FIGURE_COUNT], enum figure which)
{
    double sum = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        sum += figures[pass][which];
    }
    return sum / PASSES;
}

/* How far the passes lie apart: the highest over the lowest, less 1. */
static double spread(const double figures[PASSES][FIGURE_COUNT], enum figure which)
{
    double low = figures[0][which], high = low;
    for (int pass = 1; pass < PASSES; pass++) {
        low = figures[pass][which] < low ? figures[pass][which] : low;
        high = figures[pass][which] > high ? figures[pass][which] : high;
    }
    return low > 0 ? high / low - 1 : 0;
}

/* One row a mode. */
static void report(const struct cells *cells)
{
    const struct own_shape *shape = cells->shape;
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        const double(*figures)[FIGURE_COUNT] = cells->figures[mode];
        const double own_us = (double)cells->own_us, base_us = mode == MODE_PING ? 0 : own_us;
        const double p50_us = mean(figures, FIGURE_P50), rate = mean(figures, FIGURE_RATE);
        if (mean(figures, FIGURE_SAMPLES) == 0) {
            continue;
        }
        printf("%s,%s,%d,%d,%d,%d,%.0f,%.1f,%.1f,%.1f,%.1f,%.0f,%.3f,%.3f", cells->label,
               mode_names[mode], cells->num, shape->rows, shape->width, shape->k,
               PASSES * mean(figures, FIGURE_SAMPLES), p50_us, mean(figures, FIGURE_P99), own_us,
               p50_us - base_us, rate, rate * base_us / 1e6,
               mean(figures, FIGURE_LEAST_RATE) * cells->num / rate);
        for (int figure = FIGURE_QUEUED_P50; figure < FIGURE_COUNT; figure++) {
            bool turns = figure == FIGURE_WORKER_TURNS || figure == FIGURE_CLIENT_TURNS;
            printf(turns ? ",%.2f" : ",%.1f", mean(figures, (enum figure)figure));
        }
        printf(",%.3f,%.3f\n", spread(figures, FIGURE_P50), spread(figures, FIGURE_RATE));
    }
    fflush(stdout);
}

/* What the command line says. */
struct options {
    const char *url, *label;
    double seconds;
    int only, clients_max;
    pid_t worker;
};

/* All modes once, by new clients. */
static void run_pass(struct board *board, const struct options *options, struct cells *cells,
                     int pass)
{
    pid_t clients[CLIENTS_MAX];
    pthread_barrierattr_t attribute;
    pthread_barrierattr_init(&attribute);
    pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->start, &attribute, (unsigned)cells->num + 1);
    for (int i = 0; i < cells->num; i++) {
        clients[i] = fork();
        if (clients[i] == 0) {
            client_main(board, options->url, cells->shape, i, options->seconds);
        }
    }
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        struct usage before[2], after[2];
        pthread_barrier_wait(&board->start);
        usage_read(options->worker, clients, cells->num, before);
        pthread_barrier_wait(&board->start);
        usage_read(options->worker, clients, cells->num, after);
        take_figures(board, cells->num, before, after, cells->figures[mode][pass]);
        pthread_barrier_wait(&board->start);
    }
    while (wait(NULL) > 0) {
    }
}

static void run_shape(struct board *board, const struct options *options,
                      const struct own_shape *shape)
{
    pid_t own = fork();
    if (own == 0) {
        CUdevice device;
        own_open_gpu(&device);
        board->own_us = own_time_us(shape);
        _exit(0);
    }
    waitpid(own, NULL, 0);
    for (int num = 1; num <= options->clients_max; num *= 2) {
        struct cells cells = {
            .label = options->label, .shape = shape, .num = num, .own_us = board->own_us};
        for (int pass = 0; pass < PASSES; pass++) {
            run_pass(board, options, &cells, pass);
        }
        report(&cells);
    }
}

int main(int argc, char **argv)
{
    bench_args(
        argc, argv, 2, 6,
        "usage: bench_service URL LABEL [SECONDS [SHAPE [CLIENTS [WORKER_PID]]]]\n"
        "Times round trips and selections through a daemon on a GPU, 1 to CLIENTS (8) clients.\n"
        "One CSV row a cell, LABEL in front; SHAPE 0 or 1 for one of the two shapes only.\n");
    struct options options = {
        .url = argv[1],
        .label = argv[2],
        .seconds = bench_number(argc, argv, 3, "SECONDS", 0.01, 600, 1.0),
        .only = bench_integer(argc, argv, 4, "SHAPE", 0, 1, -1),
        .clients_max = bench_integer(argc, argv, 5, "CLIENTS", 1, CLIENTS_MAX, CLIENTS_MAX),
        .worker = bench_integer(argc, argv, 6, "WORKER_PID", 0, INT_MAX, 0)};
    struct board *board =
        mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    printf("label,mode,clients,rows,width,k,samples,p50_us,p99_us,own_us,over_own_p50_us,"
           "requests_per_s,share_of_replays,least_share,queued_p50_us,queued_p99_us,run_p50_us,"
           "run_p99_us,late_p50_us,late_p99_us,worker_cpu_us,worker_wait_us,worker_turns,"
           "client_cpu_us,client_wait_us,client_turns,p50_spread,rate_spread\n");
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        if (options.only < 0 || options.only == i)
            run_shape(board, &options, &shapes[i]);
    }
    return 0;
}
