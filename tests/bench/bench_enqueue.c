/*
 * bench_enqueue.c - ways of putting one selection on a stream, in one process without a daemon.
 *
 * usage: bench_enqueue LABEL [ROWS WIDTH K]
 *
 * A job is: its arguments reach the device, the selection's graph runs, the host sees a mark. For
 * each way of doing that one CSV line: the time of a lone job from the first driver call until the
 * mark is seen, the host's time in the driver for it, and the time a job when eight are on the
 * device at once. `replay` is the graph alone, back to back.
 * Without a shape it also times streams that wait for a word: how long from its write until the
 * stream has gone on, while others wait as well.
 *   copy      how the arguments come: pinned (a copy from pinned memory), pageable (a copy that the
 *             driver may put into the command stream), mapped (the kernels read pinned memory)
 *   mark      how the end is seen: batch (one stream operation), pair (two in one call, as with a
 *             semaphore to signal), value (cuStreamWriteValue64)
 *   streams   jobs take turns on so many, each with arguments, workspace and graph of its own
 *   graph     copy and mark are nodes of the graph, one launch does all
 */
#include "bench_args.h"
#include "bench_own.h"
#include "bench_scores.h"
#include "topk_select.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 8
#define LONE 1500
#define PIPELINED 4000
#define REPLAYS 2000
#define STREAMS_MAX 2
/* Streams that wait at once. Under MPS a process has two hardware queues unless
 * CUDA_DEVICE_MAX_CONNECTIONS says otherwise, and a stream behind a waiting one in the same queue
 * never gets its turn: set it to 16 for this program. */
#define WAITS_MAX 8

enum copy { COPY_PINNED, COPY_PAGEABLE, COPY_MAPPED };
enum mark { MARK_BATCH, MARK_PAIR, MARK_VALUE };

static const struct way {
    const char *name;
    enum copy copy;
    enum mark mark;
    int streams;
    bool graph;
} ways[] = {
    {"pinned,batch", COPY_PINNED, MARK_BATCH, 1, false},
    {"pinned,pair", COPY_PINNED, MARK_PAIR, 1, false},
    {"pinned,value", COPY_PINNED, MARK_VALUE, 1, false},
    {"pageable,batch", COPY_PAGEABLE, MARK_BATCH, 1, false},
    {"mapped,batch", COPY_MAPPED, MARK_BATCH, 1, false},
    {"graph", COPY_PINNED, MARK_BATCH, 1, true},
    {"mapped,graph", COPY_MAPPED, MARK_BATCH, 1, true},
    {"pinned,batch,2 streams", COPY_PINNED, MARK_BATCH, 2, false},
    {"pageable,batch,2 streams", COPY_PAGEABLE, MARK_BATCH, 2, false},
    {"graph,2 streams", COPY_PINNED, MARK_BATCH, 2, true},
};

/* One of the streams that jobs take turns on. */
struct path {
    CUstream stream;
    CUdeviceptr d_args, workspace, d_indices;
    struct topk_args *h_args;   /* [DEPTH], pinned or not */
    CUgraphExec execs[DEPTH];   /* all the same but for slots of their own */
    volatile uint64_t *h_marks; /* [DEPTH] pinned; by slot */
    uint64_t *h_pair;
};

static struct topk_plan plan;
static CUdeviceptr d_scores;
static int32_t num_rows = 64, width = 131072, num_k = 2048;

/* ---- A path ---------------------------------------------------------------------------------- */

static CUresult write_mark(const struct path *path, enum mark mark, int slot)
{
    CUdeviceptr d_mark = (CUdeviceptr)(uintptr_t)&path->h_marks[slot];
    if (mark == MARK_VALUE)
        return cuStreamWriteValue64(path->stream, d_mark, 1, 0);
    CUstreamBatchMemOpParams writes[2];
    memset(writes, 0, sizeof(writes));
    unsigned num = 0;
    if (mark == MARK_PAIR) {
        writes[num].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        writes[num].writeValue.address = (CUdeviceptr)(uintptr_t)path->h_pair;
        writes[num++].writeValue.value64 = 7;
    }
    writes[num].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    writes[num].writeValue.address = d_mark;
    writes[num++].writeValue.value64 = 1;
    return cuStreamBatchMemOp(path->stream, num, writes, 0);
}

static CUdeviceptr args_of(const struct path *path, const struct way *way, int slot)
{
    return way->copy == COPY_MAPPED ? (CUdeviceptr)(uintptr_t)&path->h_args[slot] : path->d_args;
}

static CUresult put(const struct path *path, const struct way *way, int slot)
{
    return way->copy == COPY_MAPPED ? CUDA_SUCCESS
                                    : cuMemcpyHtoDAsync(path->d_args, &path->h_args[slot],
                                                        sizeof(struct topk_args), path->stream);
}

static bool capture(struct path *path, const struct way *way, int slot)
{
    CUgraph graph;
    char detail[TOPK_DETAIL_SIZE] = "";
    CUresult result = CUDA_SUCCESS;
    CU(cuStreamBeginCapture(path->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (way->graph)
        result = put(path, way, slot);
    if (topk_cuda_enqueue(&plan, (const struct topk_args *)(uintptr_t)args_of(path, way, slot),
                          (void *)(uintptr_t)path->workspace, path->stream, detail) != TOPK_OK) {
        fprintf(stderr, "%s\n", detail);
        exit(1);
    }
    if (way->graph && result == CUDA_SUCCESS)
        result = write_mark(path, way->mark, slot);
    CUresult ended = cuStreamEndCapture(path->stream, &graph);
    if (result != CUDA_SUCCESS || ended != CUDA_SUCCESS) {
        fprintf(stderr, "%s: cannot be captured: %d %d\n", way->name, result, ended);
        return false;
    }
    result = cuGraphInstantiate(&path->execs[slot], graph, 0);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "%s: cannot be instantiated: %d\n", way->name, result);
    else
        CU(cuGraphUpload(path->execs[slot], path->stream));
    CU(cuGraphDestroy(graph));
    return result == CUDA_SUCCESS;
}

static bool open_path(struct path *path, const struct way *way)
{
    size_t args_bytes = DEPTH * sizeof(struct topk_args);
    memset(path, 0, sizeof(*path));
    CU(cuStreamCreate(&path->stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&path->d_args, sizeof(struct topk_args)));
    CU(cuMemAlloc(&path->workspace, (size_t)plan.workspace_bytes + 256));
    CU(cuMemAlloc(&path->d_indices, (size_t)num_rows * (size_t)num_k * sizeof(int32_t)));
    CU(cuMemHostAlloc((void **)&path->h_marks, DEPTH * sizeof(uint64_t),
                      CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostAlloc((void **)&path->h_pair, sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP));
    if (way->copy == COPY_PAGEABLE)
        path->h_args = malloc(args_bytes);
    else
        CU(cuMemHostAlloc((void **)&path->h_args, args_bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int slot = 0; slot < DEPTH; slot++) {
        path->h_args[slot] = (struct topk_args){.scores = (const float *)(uintptr_t)d_scores,
                                                .row_stride = width,
                                                .indices = (int32_t *)(uintptr_t)path->d_indices,
                                                .index_stride = num_k,
                                                .num_rows = num_rows,
                                                .width = width,
                                                .length_all = width,
                                                .k = num_k};
        path->h_marks[slot] = 1;
    }
    CU(cuMemcpyHtoD(path->d_args, path->h_args, sizeof(struct topk_args)));
    if (topk_cuda_workspace_init(&plan, (void *)(uintptr_t)path->workspace, path->stream, NULL) !=
        TOPK_OK)
        exit(1);
    CU(cuStreamSynchronize(path->stream));
    for (int slot = 0; slot < DEPTH; slot++) {
        if (!capture(path, way, slot))
            return false;
    }
    CU(cuStreamSynchronize(path->stream));
    return true;
}

static void close_path(struct path *path, const struct way *way)
{
    for (int slot = 0; slot < DEPTH; slot++) {
        if (path->execs[slot])
            CU(cuGraphExecDestroy(path->execs[slot]));
    }
    CU(cuStreamDestroy(path->stream));
    CU(cuMemFree(path->d_args));
    CU(cuMemFree(path->workspace));
    CU(cuMemFree(path->d_indices));
    CU(cuMemFreeHost((void *)(uintptr_t)path->h_marks));
    CU(cuMemFreeHost(path->h_pair));
    if (way->copy == COPY_PAGEABLE)
        free(path->h_args);
    else
        CU(cuMemFreeHost(path->h_args));
}

static void enqueue(struct path *path, const struct way *way, int slot)
{
    path->h_marks[slot] = 0;
    if (!way->graph)
        CU(put(path, way, slot));
    CU(cuGraphLaunch(path->execs[slot], path->stream));
    if (!way->graph)
        CU(write_mark(path, way->mark, slot));
}

/* ---- Times ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double *samples, size_t count, size_t percent)
{
    qsort(samples, count, sizeof(*samples), compare);
    return samples[count * percent / 100];
}

static void run_way(const char *label, const struct way *way)
{
    static double lone[LONE], host[LONE];
    struct path paths[STREAMS_MAX];
    bool opened = true;
    for (int i = 0; i < way->streams; i++)
        opened = open_path(&paths[i], way) && opened;
    for (int i = 0; i < LONE && opened; i++) {
        struct path *path = &paths[i % way->streams];
        double start_us = now_us();
        enqueue(path, way, 0);
        host[i] = now_us() - start_us;
        while (!path->h_marks[0]) {
        }
        lone[i] = now_us() - start_us;
    }
    double start_us = now_us();
    for (int i = 0; i < PIPELINED && opened; i++) {
        struct path *path = &paths[i % way->streams];
        int slot = i / way->streams % (DEPTH / way->streams);
        while (!path->h_marks[slot]) {
        }
        enqueue(path, way, slot);
    }
    for (int i = 0; i < way->streams && opened; i++)
        CU(cuStreamSynchronize(paths[i].stream));
    double job_us = (now_us() - start_us) / PIPELINED;
    start_us = now_us();
    for (int i = 0; i < REPLAYS && opened; i++)
        CU(cuGraphLaunch(paths[0].execs[0], paths[0].stream));
    CU(cuStreamSynchronize(paths[0].stream));
    double replay_us = (now_us() - start_us) / REPLAYS;
    if (opened)
        printf("%s,\"%s\",%d,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f\n", label, way->name, num_rows, width,
               num_k, percentile(lone, LONE, 50), percentile(lone, LONE, 99),
               percentile(host, LONE, 50), job_us, replay_us);
    fflush(stdout);
    for (int i = 0; i < way->streams; i++)
        close_path(&paths[i], way);
}

/* ---- Streams that wait -----------------------------------------------------------------------
 */

enum release { RELEASE_STORE, RELEASE_STREAM, RELEASE_DEVICE, RELEASE_COUNT };
static const char *const release_names[] = {"host word, store", "host word, stream write",
                                            "device word, stream write"};

/* How long one of `num` streams that all wait for a word of their own takes from the word's write
 * until a mark behind the wait is seen. */
static void run_waits(const char *label, int num, enum release release)
{
    static double samples[LONE];
    CUstream streams[WAITS_MAX], writer;
    CUdeviceptr d_words = 0;
    volatile uint64_t *h_words, *h_marks;
    uint64_t counts[WAITS_MAX] = {0};
    uint32_t state = 12345;
    CU(cuMemHostAlloc((void **)&h_words, WAITS_MAX * sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostAlloc((void **)&h_marks, WAITS_MAX * sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP));
    if (release == RELEASE_DEVICE) {
        CU(cuMemAlloc(&d_words, WAITS_MAX * sizeof(uint64_t)));
        CU(cuMemsetD8(d_words, 0, WAITS_MAX * sizeof(uint64_t)));
    } else {
        d_words = (CUdeviceptr)(uintptr_t)h_words;
    }
    CU(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < num; i++) {
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        h_words[i] = h_marks[i] = 0;
    }
    for (int round = -num; round < LONE / 2; round++) {
        state = state * 1664525u + 1013904223u;
        int i = round < 0 ? round + num : (int)((state >> 8) % (uint32_t)num);
        CUdeviceptr d_word = d_words + (size_t)i * sizeof(uint64_t);
        if (round >= 0) {
            double start_us = now_us();
            if (release == RELEASE_STORE)
                __atomic_store_n(&h_words[i], counts[i], __ATOMIC_RELEASE);
            else
                CU(cuStreamWriteValue64(writer, d_word, counts[i], 0));
            while (h_marks[i] != counts[i]) {
            }
            samples[round] = now_us() - start_us;
        }
        counts[i]++;
        CU(cuStreamWaitValue64(streams[i], d_word, counts[i], CU_STREAM_WAIT_VALUE_GEQ));
        CU(cuStreamWriteValue64(streams[i], (CUdeviceptr)(uintptr_t)&h_marks[i], counts[i], 0));
    }
    for (int i = 0; i < num; i++) {
        CU(cuStreamWriteValue64(writer, d_words + (size_t)i * sizeof(uint64_t), counts[i], 0));
        CU(cuStreamSynchronize(streams[i]));
        CU(cuStreamDestroy(streams[i]));
    }
    CU(cuStreamDestroy(writer));
    printf("%s,\"%s, %d waiting\",0,0,0,%.1f,%.1f,0,0,0\n", label, release_names[release], num,
           percentile(samples, LONE / 2, 50), percentile(samples, LONE / 2, 99));
    fflush(stdout);
    if (release == RELEASE_DEVICE)
        CU(cuMemFree(d_words));
    CU(cuMemFreeHost((void *)(uintptr_t)h_words));
    CU(cuMemFreeHost((void *)(uintptr_t)h_marks));
}

int main(int argc, char **argv)
{
    CUdevice gpu;
    struct topk_device device;
    bench_args(
        argc, argv, 1, 4,
        "usage: bench_enqueue LABEL [ROWS WIDTH K]\n"
        "Times ways of putting one selection on a stream, without a daemon; without a shape\n"
        "also streams that wait for each other. One CSV row a way, LABEL in front.\n");
    num_rows = bench_integer(argc, argv, 2, "ROWS", 1, 1 << 20, num_rows);
    width = bench_integer(argc, argv, 3, "WIDTH", 1, 1 << 28, width);
    num_k = bench_integer(argc, argv, 4, "K", 1, TOPK_K_MAX, num_k);
    own_open_gpu(&gpu);
    struct topk_shape shape = {.k = num_k, .rows = num_rows, .width = width, .alignment_bytes = 16};
    if (topk_cuda_device(0, &device, NULL) != TOPK_OK ||
        topk_plan_make(&shape, &device, &plan, NULL) != TOPK_OK ||
        topk_cuda_load(&plan, NULL) != TOPK_OK) {
        fprintf(stderr, "no selection of %d x %d, k %d here\n", num_rows, width, num_k);
        return 1;
    }
    size_t count = (size_t)num_rows * (size_t)width;
    CU(cuMemAlloc(&d_scores, count * sizeof(float)));
    own_fill(d_scores, count);
    printf("label,way,rows,width,k,lone_p50_us,lone_p99_us,host_p50_us,job_us,replay_us\n");
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        run_way(argv[1], &ways[i]);
    for (int release = 0; release < RELEASE_COUNT && argc == 2; release++) {
        for (int num = 1; num <= WAITS_MAX; num *= 2)
            run_waits(argv[1], num, (enum release)release);
    }
    return 0;
}
