/*
 * bench_lanes - what a selection through a lane costs over the same selection in the process's own
 * graph.
 *
 * usage: bench_lanes URL LABEL WORKER_PID [SECONDS_A_CELL [usual|flood|full
 *                    [ROWSxWIDTH...]]]
 *
 * LABEL goes into the first column ("plain", "mps"). 1, 2, 4 and 8 client processes at once replay
 * a graph of a kernel of 5 us, the selection, a kernel of 5 us; a step is the time from the first
 * one's start to the last one's end, from %globaltimer. Modes: `process`, the selection captured in
 * the client itself; `host` and `driver`, a lane with its mailbox in host or in device memory, for
 * whose answer the driver waits; `device`, in device memory, and the library chooses who waits;
 * `poll`, and a kernel of the worker's looks for the next request.
 * With `flood` one more process keeps the GPU busy with kernels of 200 us over all multiprocessors;
 * with `full` a kernel that takes all their shared memory stands before the selection.
 * One CSV row a cell; README.md has the method.
 */
#include "bench_args.h"
#include "bench_parts.cuh"

#include "topk_select.h"
#include "topkd.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

enum { K = 2048, KERNEL_NS = 5000, SAMPLES_MAX = 8192, CLIENTS_MAX = 8 };
enum mode { MODE_PROCESS, MODE_HOST, MODE_DRIVER, MODE_DEVICE, MODE_POLL, NUM_MODES };
static const char *const mode_names[] = {"process", "host", "driver", "device", "poll"};
struct shape {
    int rows, width;
};
static std::vector<struct shape> shapes = {
    {1, 131072}, {16, 131072}, {64, 131072}, {512, 131072}, {512, 16384}};
enum { SHAPES_MAX = 64 }; /* of a command line */
static const int counts[] = {1, 2, 4, 8};
static bool has_full;

/* Of the processes together. */
struct board {
    pthread_barrier_t turn;
    uint32_t num_samples[CLIENTS_MAX];
    double elapsed_s[CLIENTS_MAX];
    float us[CLIENTS_MAX][SAMPLES_MAX];
};

#define RT(call) check_rt(#call, (call))
#define TK(call) check_tk(#call, (call))

static void check_rt(const char *call, cudaError_t error)
{
    if (error != cudaSuccess) {
        printf("FAIL %s: %s\n", call, cudaGetErrorString(error));
        fflush(stdout);
        _exit(1);
    }
}

static void check_tk(const char *call, enum topkd_status status)
{
    if (status != TOPKD_OK) {
        printf("FAIL %s: %s: %s\n", call, topkd_status_name(status), topkd_detail());
        fflush(stdout);
        _exit(1);
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

__global__ void first_kernel(unsigned long long *stamps, unsigned *count)
{
    const unsigned long long from = device_now();
    stamps[2 * (*count % SAMPLES_MAX)] = from;
    while (device_now() - from < KERNEL_NS) {
    }
}

__global__ void last_kernel(unsigned long long *stamps, unsigned *count)
{
    const unsigned long long from = device_now();
    while (device_now() - from < KERNEL_NS) {
    }
    stamps[2 * (*count % SAMPLES_MAX) + 1] = device_now();
    *count = *count + 1;
}

/* A block a multiprocessor, and each takes all the shared memory that a block may have. */
__global__ void full_kernel()
{
    const unsigned long long from = device_now();
    while (device_now() - from < KERNEL_NS) {
    }
}

__global__ void flood_kernel()
{
    const unsigned long long from = device_now();
    while (device_now() - from < 200000) {
    }
}

/* Scores as an indexer gives them: most are zero, the others exponential. */
__global__ void fill_kernel(float *scores, size_t num, uint32_t seed)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < num; i += stride) {
        uint64_t x = (i + ((uint64_t)seed << 40)) * 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        const float uniform = (float)((x >> 40) + 1) / 16777217.0f;
        scores[i] = (x & 1) ? -logf(uniform) : 0.0f;
    }
}

/* ---- One client ------------------------------------------------------------------------------ */

struct client {
    struct topkd_client *topkd;
    cudaStream_t stream;
    float *scores;
    int32_t *indices;
    struct topkd_region *in, *out;
    unsigned long long *stamps; /* [2 * SAMPLES_MAX], on the device, as all that kernels write */
    unsigned *count;
    struct topk_args *d_args;
    void *workspace;
    int num_multiprocessors, shared_bytes;
};

static void open_client(struct client *client, const char *url, uint32_t number)
{
    struct topkd_client_options options = {};
    size_t num = 0, rows_max = 0;
    for (const struct shape &shape : shapes) {
        num = std::max(num, (size_t)shape.rows * (size_t)shape.width);
        rows_max = std::max(rows_max, (size_t)shape.rows);
    }
    options.url = url;
    TK(topkd_client_open(&options, &client->topkd));
    RT(cudaStreamCreateWithFlags(&client->stream, cudaStreamNonBlocking));
    RT(cudaMalloc((void **)&client->scores, num * sizeof(float)));
    RT(cudaMalloc((void **)&client->indices, rows_max * K * sizeof(int32_t)));
    RT(cudaMalloc((void **)&client->count, 64));
    RT(cudaMalloc((void **)&client->d_args, sizeof(struct topk_args)));
    RT(cudaMalloc(&client->workspace, (size_t)64 << 20));
    RT(cudaMalloc((void **)&client->stamps, sizeof(*client->stamps) * 2 * SAMPLES_MAX));
    RT(cudaDeviceGetAttribute(&client->num_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    RT(cudaDeviceGetAttribute(&client->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    RT(cudaFuncSetAttribute(full_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            client->shared_bytes));
    fill_kernel<<<1024, 256, 0, client->stream>>>(client->scores, num, number);
    RT(cudaStreamSynchronize(client->stream));
    TK(topkd_region_register_cuda(client->topkd, client->scores, num * sizeof(float),
                                  TOPKD_ACCESS_READ, &client->in));
    TK(topkd_region_register_cuda(client->topkd, client->indices, rows_max * K * sizeof(int32_t),
                                  TOPKD_ACCESS_READ_WRITE, &client->out));
}

static struct topkd_lane *open_lane(struct client *client, const struct shape *shape, int mode)
{
    struct topkd_select_request request = {};
    struct topkd_lane_options options = {};
    struct topkd_lane *lane;
    request.scores.region = client->in;
    request.indices.region = client->out;
    request.rows = (uint32_t)shape->rows;
    request.width = (uint32_t)shape->width;
    request.k = K;
    options.device_mailbox = mode != MODE_HOST;
    options.wait = mode == MODE_DRIVER ? TOPKD_LANE_WAIT_DRIVER : TOPKD_LANE_WAIT_AUTO;
    options.poll_us = mode == MODE_POLL ? 1000 : 0;
    TK(topkd_lane_open(client->topkd, &request, &options, &lane));
    return lane;
}

/* What stands before the selection. */
static void enqueue_scores(struct client *client)
{
    first_kernel<<<1, 32, 0, client->stream>>>(client->stamps, client->count);
    if (has_full)
        full_kernel<<<client->num_multiprocessors, 32, (size_t)client->shared_bytes,
                      client->stream>>>();
}

static void enqueue_own(struct client *client, const struct shape *want)
{
    struct topk_device device;
    struct topk_plan plan;
    struct topk_shape shape = {};
    struct topk_args args = {};
    char detail[TOPK_DETAIL_SIZE] = "";
    shape.k = K;
    shape.rows = want->rows;
    shape.width = want->width;
    shape.alignment_bytes = 16;
    args.scores = client->scores;
    args.row_stride = want->width;
    args.indices = client->indices;
    args.index_stride = K;
    args.num_rows = want->rows;
    args.width = want->width;
    args.length_all = want->width;
    args.k = K;
    RT(cudaMemcpy(client->d_args, &args, sizeof(args), cudaMemcpyHostToDevice));
    if (topk_cuda_device(0, &device, detail) != TOPK_OK ||
        topk_plan_make(&shape, &device, &plan, detail) != TOPK_OK ||
        topk_cuda_load(&plan, detail) != TOPK_OK ||
        topk_cuda_workspace_init(&plan, client->workspace, client->stream, detail) != TOPK_OK) {
        printf("FAIL plan: %s\n", detail);
        _exit(1);
    }
    RT(cudaStreamSynchronize(client->stream));
    RT(cudaStreamBeginCapture(client->stream, cudaStreamCaptureModeThreadLocal));
    enqueue_scores(client);
    if (topk_cuda_enqueue(&plan, client->d_args, client->workspace, client->stream, detail) !=
        TOPK_OK) {
        printf("FAIL enqueue: %s\n", detail);
        _exit(1);
    }
}

static cudaGraphExec_t make_graph(struct client *client, const struct shape *shape,
                                  struct topkd_lane *lane)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    if (lane == nullptr) {
        enqueue_own(client, shape);
    } else {
        RT(cudaStreamBeginCapture(client->stream, cudaStreamCaptureModeThreadLocal));
        enqueue_scores(client);
        TK(topkd_lane_enqueue(lane, client->stream));
    }
    last_kernel<<<1, 32, 0, client->stream>>>(client->stamps, client->count);
    RT(cudaStreamEndCapture(client->stream, &graph));
    RT(cudaGraphInstantiate(&exec, graph, 0));
    RT(cudaGraphDestroy(graph));
    return exec;
}

/* Replays until the time is over; the samples go to the board. */
static void run_cell(struct client *client, struct board *board, int number, cudaGraphExec_t exec,
                     double seconds)
{
    enum { BATCH = 16, WARM = 32 };
    RT(cudaMemset(client->count, 0, 4));
    RT(cudaDeviceSynchronize());
    unsigned num = 0;
    const double from = now_s();
    while (num + BATCH <= SAMPLES_MAX && (num < 2 * WARM || now_s() - from < seconds)) {
        for (int i = 0; i < BATCH; i++)
            RT(cudaGraphLaunch(exec, client->stream));
        RT(cudaStreamSynchronize(client->stream));
        num += BATCH;
    }
    board->elapsed_s[number] = now_s() - from;
    board->num_samples[number] = num - WARM;
    std::vector<unsigned long long> stamps(2 * num);
    RT(cudaMemcpy(stamps.data(), client->stamps, stamps.size() * sizeof(stamps[0]),
                  cudaMemcpyDeviceToHost));
    for (unsigned i = WARM; i < num; i++)
        board->us[number][i - WARM] = (float)((double)(stamps[2 * i + 1] - stamps[2 * i]) / 1e3);
}

static int client_main(struct board *board, int number, const char *url, double seconds)
{
    struct client client = {};
    open_client(&client, url, (uint32_t)number);
    for (const struct shape &shape : shapes) {
        for (int num_clients : counts) {
            for (int mode = 0; mode < NUM_MODES; mode++) {
                cudaGraphExec_t exec = nullptr;
                struct topkd_lane *lane = nullptr;
                if (number < num_clients) {
                    if (mode != MODE_PROCESS)
                        lane = open_lane(&client, &shape, mode);
                    exec = make_graph(&client, &shape, lane);
                }
                pthread_barrier_wait(&board->turn);
                if (number < num_clients)
                    run_cell(&client, board, number, exec, seconds);
                pthread_barrier_wait(&board->turn);
                pthread_barrier_wait(&board->turn); /* it has been printed */
                if (exec != nullptr)
                    RT(cudaGraphExecDestroy(exec));
                if (lane != nullptr)
                    TK(topkd_lane_check(lane));
                topkd_lane_close(lane);
            }
        }
    }
    topkd_client_close(client.topkd);
    return 0;
}

static int flood_main()
{
    cudaStream_t stream;
    RT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (;;) {
        for (int i = 0; i < 8; i++)
            flood_kernel<<<132, 256, 0, stream>>>();
        RT(cudaStreamSynchronize(stream));
    }
}

/* ---- The parent ------------------------------------------------------------------------------ */

/* Processor time of a process in seconds. */
static double used_s(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    const size_t size = file != nullptr ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file != nullptr)
        fclose(file);
    text[size] = '\0';
    const char *field = strrchr(text, ')');
    unsigned long user = 0, kernel = 0;
    if (field == nullptr || sscanf(field + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                                   &user, &kernel) != 2)
        return 0;
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static void print_cell(const struct board *board, const char *label, const struct shape *shape,
                       int num_clients, int mode, double worker_percent, float *own_us)
{
    std::vector<float> us;
    double steps_per_s = 0;
    for (int i = 0; i < num_clients; i++) {
        us.insert(us.end(), board->us[i], board->us[i] + board->num_samples[i]);
        steps_per_s += board->num_samples[i] / board->elapsed_s[i];
    }
    std::sort(us.begin(), us.end());
    const float p50 = us[us.size() / 2], p99 = us[us.size() * 99 / 100];
    if (mode == MODE_PROCESS)
        *own_us = p50;
    printf("%s,%d,%d,%d,%s,%zu,%.1f,%.1f,%.1f,%.0f,%.0f\n", label, shape->rows, shape->width,
           num_clients, mode_names[mode], us.size(), p50, p99, p50 - *own_us, steps_per_s,
           worker_percent);
    fflush(stdout);
}

static void parent_main(struct board *board, const char *label, int worker_pid)
{
    for (const struct shape &shape : shapes) {
        for (int num_clients : counts) {
            float own_us = 0;
            for (int mode = 0; mode < NUM_MODES; mode++) {
                pthread_barrier_wait(&board->turn);
                const double from = now_s(), used = used_s(worker_pid);
                pthread_barrier_wait(&board->turn);
                const double percent = 100 * (used_s(worker_pid) - used) / (now_s() - from);
                print_cell(board, label, &shape, num_clients, mode, percent, &own_us);
                pthread_barrier_wait(&board->turn);
            }
        }
    }
}

static pid_t start(int (*run)(struct board *, int, const char *, double), struct board *board,
                   int number, const char *url, double seconds)
{
    const pid_t pid = fork(); /* nobody has touched CUDA yet */
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CUDA_MODULE_LOADING", "EAGER", 1);
        const int code = run(board, number, url, seconds);
        fflush(stdout);
        _exit(code);
    }
    return pid;
}

/* A client that fails would have the others wait for it for ever: it has said why, and they end
 * with their parent. */
static void on_child(int, siginfo_t *info, void *)
{
    if (info->si_code != CLD_EXITED || info->si_status != 0)
        _exit(1);
}

static void watch_children()
{
    struct sigaction action = {};
    action.sa_sigaction = on_child;
    action.sa_flags = SA_SIGINFO | SA_NOCLDSTOP | SA_RESTART;
    sigaction(SIGCHLD, &action, nullptr);
}

static int flood_start(struct board *, int, const char *, double)
{
    return flood_main();
}

int main(int argc, char **argv)
{
    bench_args(
        argc, argv, 3, 5 + SHAPES_MAX,
        "usage: bench_lanes URL LABEL WORKER_PID [SECONDS_A_CELL [usual|flood|full "
        "[ROWSxWIDTH...]]]\n"
        "Times a selection through a lane beside the same one in the client's own graph, 1, 2,\n"
        "4 and 8 clients. One CSV row a cell, LABEL in front.\n");
    const int worker = bench_integer(argc, argv, 3, "WORKER_PID", 1, INT_MAX, 1);
    const double seconds = bench_number(argc, argv, 4, "SECONDS_A_CELL", 0.01, 600, 0.3);
    if (argc > 5 && strcmp(argv[5], "usual") != 0 && strcmp(argv[5], "flood") != 0 &&
        strcmp(argv[5], "full") != 0) {
        fprintf(stderr, "\"%s\" is unknown: usual, flood or full\n", argv[5]);
        return BENCH_USAGE;
    }
    const bool has_flood = argc > 5 && strcmp(argv[5], "flood") == 0;
    has_full = argc > 5 && strcmp(argv[5], "full") == 0;
    if (argc > 6)
        shapes.clear();
    for (int i = 6; i < argc; i++) {
        struct shape shape = {};
        if (sscanf(argv[i], "%dx%d", &shape.rows, &shape.width) != 2 || shape.rows < 1 ||
            shape.width < 1) {
            fprintf(stderr, "%s is no ROWSxWIDTH\n", argv[i]);
            return BENCH_USAGE;
        }
        shapes.push_back(shape);
    }
    struct board *board = (struct board *)mmap(nullptr, sizeof(*board), PROT_READ | PROT_WRITE,
                                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->turn, &attributes, CLIENTS_MAX + 1);
    watch_children();
    pid_t flood = has_flood ? start(flood_start, board, 0, argv[1], 0) : 0;
    pid_t pids[CLIENTS_MAX];
    for (int i = 0; i < CLIENTS_MAX; i++)
        pids[i] = start(client_main, board, i, argv[1], seconds);
    parent_main(board, argv[2], worker);
    int code = 0;
    for (const pid_t pid : pids) {
        int status = 0;
        waitpid(pid, &status, 0);
        code |= status != 0;
    }
    if (flood > 0) {
        signal(SIGCHLD, SIG_DFL);
        kill(flood, SIGKILL);
        waitpid(flood, nullptr, 0);
    }
    return code;
}
