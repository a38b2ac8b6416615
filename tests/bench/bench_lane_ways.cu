/*
 * bench_lane_ways - ways for the streams of two processes to hand over a step, with 1 to 8 clients
 * at once, and where the time of a step goes.
 *
 * usage: bench_lane_ways LABEL [STEPS [QUEUES [WAY...]]]
 *
 * No daemon: one process answers, with a stream for each client; clients replay a graph of kernel,
 * hand-over, kernel, 5 us each, of which the answer takes 5 as well. LABEL goes into the first
 * column; QUEUES is CUDA_DEVICE_MAX_CONNECTIONS of the answering process (32). WAY: a number of the
 * table below; all without one. One CSV row a way and number of clients: p50 and p99 from the first
 * kernel's start to the last one's end, then the medians of its parts, by %globaltimer, all kept in
 * device memory until the end. README.md has the method.
 */
#include "bench_args.h"
#include "bench_lane_ways.cuh"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

enum { CHUNK = 4, AHEAD = 3, BATCH = 16, CLIENTS_MAX = 8 };

/* How the answering side learns of a request. */
enum worker_wait {
    WORKER_DRIVER, /* its stream waits for the word */
    WORKER_POLL,   /* its first kernel, started by the end of the step before, looks at the word */
    WORKER_ANNOUNCE, /* its stream waits for an announcement, then its first kernel looks */
};

struct way {
    const char *name;
    bool in_process;
    bool on_host; /* the word lies in host memory, else in the answering process's device memory */
    bool client_kernel;       /* asks and looks for the answer itself, instead of the driver */
    bool client_programmatic; /* that kernel is launched programmatically */
    bool rings;               /* the client rings in host memory as well */
    enum worker_wait worker;
    bool early;         /* what follows the first kernel may start while that looks */
    bool last_overlaps; /* the client's last kernel is launched programmatically */
};

static const struct way ways[] = {
    {"in process", true, false, false, false, false, WORKER_DRIVER, false, false},
    {"host word + driver waits", false, true, false, false, false, WORKER_DRIVER, true, false},
    {"driver waits", false, false, false, false, false, WORKER_DRIVER, true, false},
    {"driver waits + rings", false, false, false, false, true, WORKER_DRIVER, true, false},
    {"client looks", false, false, true, false, true, WORKER_DRIVER, true, false},
    {"client looks + programmatic", false, false, true, true, true, WORKER_DRIVER, true, false},
    {"worker looks", false, false, false, false, true, WORKER_POLL, false, false},
    {"both look", false, false, true, false, true, WORKER_POLL, false, false},
    {"both look + programmatic", false, false, true, true, true, WORKER_POLL, false, false},
    {"both look + programmatic + no ring", false, false, true, true, false, WORKER_POLL, false,
     false},
    {"both look + programmatic + early", false, false, true, true, true, WORKER_POLL, true, false},
    {"both look + all programmatic", false, false, true, true, true, WORKER_POLL, false, true},
    {"both look + host word", false, true, true, true, false, WORKER_POLL, false, false},
    {"announced + client looks", false, false, true, true, true, WORKER_ANNOUNCE, false, false},
    {"announced + driver waits", false, false, false, false, true, WORKER_ANNOUNCE, false, false},
};
enum { NUM_WAYS = sizeof(ways) / sizeof(ways[0]) };
static const int counts[] = {1, 8};

/* What both sides of a lane map and register. */
struct alignas(4096) lane_page {
    alignas(128) uint32_t word; /* 1 asked, 2 answered */
    alignas(128) uint32_t doorbell;
    alignas(128) uint64_t passed; /* steps that the answering side has ended */
};

/* Of all processes together. */
struct board {
    struct lane_page lanes[CLIENTS_MAX];
    pthread_barrier_t turn;
    CUipcMemHandle words; /* [CLIENTS_MAX] of 256 bytes: word at 0, announcement at 128 */
    double elapsed_s[CLIENTS_MAX];
    unsigned num_lost;
    client_stamps of_clients[CLIENTS_MAX][STEPS_MAX];
    worker_stamps of_worker[CLIENTS_MAX][STEPS_MAX];
};

static struct board *board;
static int num_steps = 4000;
static std::vector<int> chosen;

/* ---- Every process --------------------------------------------------------------------------- */

static CUdeviceptr open_device()
{
    CUcontext context;
    CUdeviceptr pages;
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemHostRegister(board->lanes, sizeof(board->lanes),
                         CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&pages, board->lanes, 0));
    return pages;
}

static CUgraphExec capture(CUstream stream, const std::function<void()> &fill)
{
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    fill();
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphUpload(exec, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuGraphDestroy(graph));
    return exec;
}

static CUdeviceptr word_at(const struct way *way, CUdeviceptr pages, CUdeviceptr words, int lane)
{
    return way->on_host ? pages + lane * sizeof(struct lane_page) + offsetof(struct lane_page, word)
                        : words + lane * 256;
}

static CUdeviceptr page_at(CUdeviceptr pages, int lane, size_t offset)
{
    return pages + lane * sizeof(struct lane_page) + offset;
}

static CUstreamBatchMemOpParams write_op(CUdeviceptr address, uint32_t value)
{
    CUstreamBatchMemOpParams op = {};
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = address;
    op.writeValue.value = value;
    return op;
}

/* ---- The process that answers ---------------------------------------------------------------- */

struct answering {
    CUstream stream;
    struct worker_state *state;
    CUgraphExec exec;
    int launched;
};

static void make_steps(struct answering *lane, int number, const struct way *way, CUdeviceptr pages,
                       CUdeviceptr words)
{
    const CUdeviceptr word = word_at(way, pages, words, number);
    const CUdeviceptr announcement = words + number * 256 + 128;
    const bool announced = way->worker == WORKER_ANNOUNCE;
    lane->launched = 0;
    CU(cudaMemset(lane->state, 0, sizeof(*lane->state)));
    CU(cudaDeviceSynchronize());
    lane->exec = capture(lane->stream, [&] {
        for (int i = 0; i < CHUNK; i++) {
            if (way->worker != WORKER_POLL)
                CU(cuStreamWaitValue32(lane->stream, announced ? announcement : word, 1,
                                       CU_STREAM_WAIT_VALUE_AND));
            launch_block(begin_kernel, 1, lane->stream, false, lane->state, (uint32_t *)word,
                         announced ? (uint32_t *)announcement : nullptr,
                         (int)(way->worker != WORKER_DRIVER), (int)way->early);
            launch_block(work_kernel, 1, lane->stream, true, lane->state);
            launch_block(
                end_kernel, 1, lane->stream, true, lane->state, (uint32_t *)word,
                (volatile uint64_t *)page_at(pages, number, offsetof(struct lane_page, passed)));
        }
    });
}

static void answer_all(struct answering *lanes, int num_clients)
{
    int num_open = num_clients;
    while (num_open > 0) {
        num_open = 0;
        for (int i = 0; i < num_clients; i++) {
            struct answering *lane = &lanes[i];
            const uint64_t passed = __atomic_load_n(&board->lanes[i].passed, __ATOMIC_ACQUIRE);
            if (lane->launched < num_steps && lane->launched - (int)passed <= (AHEAD - 1) * CHUNK) {
                CU(cuGraphLaunch(lane->exec, lane->stream));
                lane->launched += CHUNK;
            }
            num_open += lane->launched < num_steps;
        }
    }
}

static int worker_main(int)
{
    static struct answering lanes[CLIENTS_MAX];
    CUdeviceptr words;
    const CUdeviceptr pages = open_device();
    CU(cuMemAlloc(&words, 2 << 20)); /* a block of its own, so that its handle is too */
    CU(cuIpcGetMemHandle(&board->words, words));
    for (struct answering &lane : lanes) {
        CU(cuStreamCreate(&lane.stream, CU_STREAM_NON_BLOCKING));
        CU(cudaMalloc((void **)&lane.state, sizeof(*lane.state)));
    }
    pthread_barrier_wait(&board->turn);
    for (int number : chosen) {
        const struct way *way = &ways[number];
        for (int num_clients : counts) {
            memset((void *)board->lanes, 0, sizeof(board->lanes));
            CU(cuMemsetD8(words, 0, 256 * CLIENTS_MAX));
            for (int i = 0; i < num_clients && !way->in_process; i++)
                make_steps(&lanes[i], i, way, pages, words);
            pthread_barrier_wait(&board->turn);
            if (!way->in_process) {
                answer_all(lanes, num_clients);
                CU(cuCtxSynchronize());
                for (int i = 0; i < num_clients; i++) {
                    CU(cuMemcpyDtoH(board->of_worker[i], (CUdeviceptr)&lanes[i].state->stamps,
                                    sizeof(board->of_worker[i])));
                    CU(cuGraphExecDestroy(lanes[i].exec));
                }
            }
            pthread_barrier_wait(&board->turn);
            pthread_barrier_wait(&board->turn); /* it has been printed */
        }
    }
    return 0;
}

/* ---- A client -------------------------------------------------------------------------------- */

static void hand_over(CUstream stream, const struct way *way, struct client_state *state,
                      CUdeviceptr word, CUdeviceptr doorbell)
{
    if (way->client_kernel) {
        launch_block(ask_kernel, 1, stream, way->client_programmatic, state, (uint32_t *)word,
                     (uint32_t *)(way->rings ? doorbell : 0));
        return;
    }
    CUstreamBatchMemOpParams ops[3] = {write_op(word, 1), write_op(doorbell, 1), {}};
    unsigned num = way->rings ? 2 : 1;
    ops[num].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[num].waitValue.address = word;
    ops[num].waitValue.value = 2;
    ops[num].waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
    CU(cuStreamBatchMemOp(stream, num + 1, ops, 0));
}

static CUgraphExec make_client_graph(CUstream stream, int number, const struct way *way,
                                     struct client_state *state, CUdeviceptr pages,
                                     CUdeviceptr words)
{
    return capture(stream, [&] {
        if (way->worker == WORKER_ANNOUNCE)
            CU(cuStreamWriteValue32(stream, words + number * 256 + 128, 1, 0));
        launch_block(first_kernel, 1, stream, false, state);
        if (way->in_process)
            launch_block(work_kernel, 1, stream, false, (struct worker_state *)nullptr);
        else
            hand_over(stream, way, state, word_at(way, pages, words, number),
                      page_at(pages, number, offsetof(struct lane_page, doorbell)));
        launch_block(last_kernel, 1, stream, way->last_overlaps, state);
    });
}

static int client_main(int number)
{
    CUdeviceptr words;
    CUstream stream;
    struct client_state *state;
    const CUdeviceptr pages = open_device();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cudaMalloc((void **)&state, sizeof(*state)));
    pthread_barrier_wait(&board->turn);
    CU(cuIpcOpenMemHandle(&words, board->words, 1));
    for (int way : chosen) {
        for (int num_clients : counts) {
            CUgraphExec exec = nullptr;
            CU(cudaMemset(state, 0, sizeof(*state)));
            CU(cudaDeviceSynchronize());
            if (number < num_clients)
                exec = make_client_graph(stream, number, &ways[way], state, pages, words);
            pthread_barrier_wait(&board->turn);
            const double from = now_s();
            for (int i = 0; i < num_steps && exec != nullptr; i++) {
                CU(cuGraphLaunch(exec, stream));
                if (i % BATCH == BATCH - 1)
                    CU(cuStreamSynchronize(stream));
            }
            CU(cuStreamSynchronize(stream));
            board->elapsed_s[number] = now_s() - from;
            if (exec != nullptr) {
                unsigned lost;
                CU(cudaMemcpy(board->of_clients[number], state->stamps, sizeof(state->stamps),
                              cudaMemcpyDeviceToHost));
                CU(cudaMemcpy(&lost, &state->lost, sizeof(lost), cudaMemcpyDeviceToHost));
                __atomic_fetch_add(&board->num_lost, lost, __ATOMIC_SEQ_CST);
                CU(cuGraphExecDestroy(exec));
            }
            pthread_barrier_wait(&board->turn);
            pthread_barrier_wait(&board->turn);
        }
    }
    return 0;
}

/* ---- The parent ------------------------------------------------------------------------------ */

static double percentile(std::vector<double> &values, double part)
{
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[(size_t)((double)(values.size() - 1) * part)];
}

/* The median of the time between two moments, over the steps of all clients; in microseconds. */
static double between(int num_clients, unsigned long long (*from)(int client, int step),
                      unsigned long long (*to)(int client, int step), double part)
{
    std::vector<double> us;
    for (int client = 0; client < num_clients; client++) {
        for (int step = num_steps / 10; step < num_steps; step++)
            us.push_back((double)(int64_t)(to(client, step) - from(client, step)) / 1e3);
    }
    return percentile(us, part);
}

template <int stamp>
static unsigned long long of_client(int client, int step)
{
    return board->of_clients[client][step][stamp];
}

template <int stamp>
static unsigned long long of_worker(int client, int step)
{
    return board->of_worker[client][step][stamp];
}

static void print_cell(const char *label, const char *queues, int way, int num)
{
    double steps_per_s = 0;
    for (int i = 0; i < num; i++)
        steps_per_s += num_steps / board->elapsed_s[i];
    printf("%s,%s,%d,%s,%d,%.1f,%.1f,%.0f,", label, queues, way, ways[way].name, num,
           between(num, of_client<FIRST_BEGIN>, of_client<LAST_END>, 0.5),
           between(num, of_client<FIRST_BEGIN>, of_client<LAST_END>, 0.99), steps_per_s);
    if (ways[way].in_process) {
        printf(",,,,,");
    } else {
        printf("%.1f,%.1f,%.1f,%.1f,%.1f,",
               ways[way].client_kernel
                   ? between(num, of_client<FIRST_END>, of_client<CLIENT_ASKED>, 0.5)
                   : 0,
               between(num, of_client<FIRST_END>, of_worker<WORKER_SAW>, 0.5),
               between(num, of_worker<WORKER_SAW>, of_worker<WORK_BEGIN>, 0.5),
               between(num, of_worker<WORK_END>, of_worker<WORKER_ANSWERED>, 0.5),
               between(num, of_worker<WORKER_ANSWERED>, of_client<LAST_BEGIN>, 0.5));
    }
    printf("%u\n", board->num_lost);
    board->num_lost = 0;
    fflush(stdout);
}

static pid_t start(int (*run)(int), int number, const char *queues)
{
    const pid_t pid = fork(); /* nobody has touched CUDA yet */
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CUDA_MODULE_LOADING", "EAGER", 1);
        if (queues != nullptr)
            setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues, 1);
        const int code = run(number);
        fflush(stdout);
        _exit(code);
    }
    return pid;
}

int main(int argc, char **argv)
{
    bench_args(
        argc, argv, 1, 3 + NUM_WAYS,
        "usage: bench_lane_ways LABEL [STEPS [QUEUES [WAY...]]]\n"
        "Times ways for streams of two processes to hand over a step, 1 to 8 clients at once.\n"
        "One CSV row a way and number of clients, LABEL in front; QUEUES (32) is the answering\n"
        "process's CUDA_DEVICE_MAX_CONNECTIONS, WAY a number of the table in the source.\n");
    num_steps = bench_integer(argc, argv, 2, "STEPS", BATCH, STEPS_MAX, num_steps) / BATCH * BATCH;
    (void)bench_integer(argc, argv, 3, "QUEUES", 1, 32, 32);
    const char *queues = argc > 3 ? argv[3] : "32";
    for (int i = 4; i < argc; i++)
        chosen.push_back(bench_integer(argc, argv, i, "WAY", 0, NUM_WAYS - 1, 0));
    for (int i = 0; i < NUM_WAYS && argc <= 4; i++)
        chosen.push_back(i);
    board = (struct board *)mmap(nullptr, sizeof(*board), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->turn, &attributes, CLIENTS_MAX + 2);
    pid_t pids[CLIENTS_MAX + 1];
    for (int i = 0; i < CLIENTS_MAX; i++)
        pids[i] = start(client_main, i, nullptr);
    pids[CLIENTS_MAX] = start(worker_main, 0, queues);
    printf("label,queues,number,way,clients,p50_us,p99_us,steps_per_s,asked_us,seen_us,begun_us,"
           "answered_us,woke_us,lost\n");
    pthread_barrier_wait(&board->turn);
    for (int way : chosen) {
        for (int num_clients : counts) {
            pthread_barrier_wait(&board->turn);
            pthread_barrier_wait(&board->turn);
            print_cell(argv[1], queues, way, num_clients);
            pthread_barrier_wait(&board->turn);
        }
    }
    int code = 0;
    for (const pid_t pid : pids) {
        int status = 0;
        waitpid(pid, &status, 0);
        code |= status != 0;
    }
    return code;
}
