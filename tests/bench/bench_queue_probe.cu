/*
 * bench_queue_probe - how many streams can wait, in how many processes, until work that has nothing
 * to do with them stops; and what the driver's calls of opening a lane take meanwhile.
 *
 * usage: bench_queue_probe LABEL [WAITING_MAX [PROCESSES...]]     (28; 1 2 3 6)
 *
 * No daemon. LABEL ("plain", "mps") goes into the first column. In each of so many processes one
 * stream after the other is armed as a worker arms a lane: three launches of a graph of four waits
 * with a kernel behind each. All processes take the step together. Then each of them makes what a
 * lane needs (a registered page, memory, a stream, a graph), and runs a kernel on a stream that is
 * older than the waiting ones and on one that is younger. One line a step: the longest time of any
 * process in microseconds. What has not come to an end within a second is STUCK, with the name of
 * the call; a plain store in shared memory then lets every wait pass, and the next series begins.
 */
#include "bench_args.h"
#include "bench_parts.cuh"

#include <algorithm>
#include <atomic>
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

enum { WAITING_MAX = 64, PROCESSES_MAX = 16, STEPS = 4, LAUNCHES = 3, STUCK_US = 1000000 };

/* What a process does in a step, in this order. */
#define PHASES(X)                                                                                  \
    X(PHASE_REGISTER, "register")                                                                  \
    X(PHASE_ALLOC, "alloc")                                                                        \
    X(PHASE_STREAM, "stream")                                                                      \
    X(PHASE_CAPTURE, "capture")                                                                    \
    X(PHASE_INSTANTIATE, "instantiate")                                                            \
    X(PHASE_UPLOAD, "upload")                                                                      \
    X(PHASE_ARM, "arm")                                                                            \
    X(PHASE_OLD, "old_stream")                                                                     \
    X(PHASE_YOUNG, "young_stream")                                                                 \
    X(PHASE_OTHERS, "others")

enum phase {
#define PHASE_ENUM(name, text) name,
    PHASES(PHASE_ENUM) NUM_PHASES
#undef PHASE_ENUM
};

static const char *const phase_names[] = {
#define PHASE_NAME(name, text) text,
    PHASES(PHASE_NAME)
#undef PHASE_NAME
};

/* One page of each process, which all map: words that streams wait for and write. */
struct alignas(4096) page {
    alignas(128) uint64_t release;
    alignas(128) uint64_t old_done, young_done;
    std::atomic<int> phase, step; /* begun; steps done */
    std::atomic<int64_t> phase_from_us;
    double us[NUM_PHASES];
};

struct board {
    std::atomic<int> step; /* that may be begun */
    std::atomic<int> is_over;
    struct page pages[PROCESSES_MAX];
};

static struct board *board;

static int64_t now_us()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- One process ----------------------------------------------------------------------------- */

__global__ void count_kernel(unsigned *count)
{
    if (threadIdx.x == 0)
        *count += 1;
}

struct process {
    struct page *page;
    CUdeviceptr d_page;
    unsigned *d_count;
    CUstream old_stream, young_stream, capture_stream;
    CUstream waiting[WAITING_MAX];
    CUgraphExec execs[WAITING_MAX];
};

static void begin(struct process *process, enum phase phase)
{
    process->page->phase_from_us.store(now_us());
    process->page->phase.store(phase);
}

static void end(struct process *process, enum phase phase)
{
    process->page->us[phase] = (double)(now_us() - process->page->phase_from_us.load());
}

static CUgraphExec make_graph(struct process *process)
{
    CUgraph graph;
    CUgraphExec exec;
    begin(process, PHASE_CAPTURE);
    CU(cuStreamBeginCapture(process->capture_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < STEPS; i++) {
        CU(cuStreamWaitValue64(process->capture_stream, process->d_page, 1,
                               CU_STREAM_WAIT_VALUE_AND));
        count_kernel<<<1, 32, 0, process->capture_stream>>>(process->d_count);
    }
    CU(cuStreamEndCapture(process->capture_stream, &graph));
    end(process, PHASE_CAPTURE);
    begin(process, PHASE_INSTANTIATE);
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    end(process, PHASE_INSTANTIATE);
    begin(process, PHASE_UPLOAD);
    CU(cuGraphUpload(exec, process->capture_stream));
    end(process, PHASE_UPLOAD);
    CU(cuGraphDestroy(graph));
    return exec;
}

static void process_open(struct process *process, int number, const char *connections)
{
    CUcontext context;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    process->page = &board->pages[number];
    CU(cuMemHostRegister(process->page, sizeof(*process->page),
                         CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&process->d_page, process->page, 0));
    CU(cudaMalloc((void **)&process->d_count, 64));
    CU(cuStreamCreate(&process->old_stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&process->capture_stream, CU_STREAM_NON_BLOCKING));
    count_kernel<<<1, 32, 0, process->old_stream>>>(process->d_count); /* loads it */
    CU(cuStreamSynchronize(process->old_stream));
}

/* A kernel, then a write that the processor sees. */
static void run_through(struct process *process, CUstream stream, size_t offset, uint64_t value)
{
    uint64_t *word = (uint64_t *)((char *)process->page + offset);
    count_kernel<<<1, 32, 0, stream>>>(process->d_count);
    CU(cuStreamWriteValue64(stream, process->d_page + offset, value, 0));
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value && board->is_over.load() == 0)
        usleep(20);
}

static void take_step(struct process *process, int step)
{
    CUdeviceptr memory;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    begin(process, PHASE_REGISTER);
    CU(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    end(process, PHASE_REGISTER);
    begin(process, PHASE_ALLOC);
    CU(cuMemAlloc(&memory, 2 << 20));
    end(process, PHASE_ALLOC);
    begin(process, PHASE_STREAM);
    CU(cuStreamCreate(&process->waiting[step], CU_STREAM_NON_BLOCKING));
    end(process, PHASE_STREAM);
    process->execs[step] = make_graph(process);
    begin(process, PHASE_ARM);
    for (int i = 0; i < LAUNCHES; i++)
        CU(cuGraphLaunch(process->execs[step], process->waiting[step]));
    end(process, PHASE_ARM);
    begin(process, PHASE_OLD);
    run_through(process, process->old_stream, offsetof(struct page, old_done), (uint64_t)step + 1);
    end(process, PHASE_OLD);
    begin(process, PHASE_YOUNG);
    CU(cuStreamCreate(&process->young_stream, CU_STREAM_NON_BLOCKING));
    run_through(process, process->young_stream, offsetof(struct page, young_done),
                (uint64_t)step + 1);
    CU(cuStreamDestroy(process->young_stream));
    end(process, PHASE_YOUNG);
    begin(process, PHASE_OTHERS);
}

static int process_main(int number, int waiting_max, const char *connections)
{
    static struct process process;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    process_open(&process, number, connections);
    begin(&process, PHASE_OTHERS);
    process.page->step.store(0);
    for (int step = 0; step < waiting_max && board->is_over.load() == 0; step++) {
        while (board->step.load() <= step && board->is_over.load() == 0)
            usleep(50);
        if (board->is_over.load() == 0)
            take_step(&process, step);
        process.page->step.store(step + 1);
    }
    while (board->is_over.load() == 0)
        usleep(50);
    CU(cuCtxSynchronize());
    return 0;
}

/* ---- All together ---------------------------------------------------------------------------- */

/* Waits until all have done the step. False: one is stuck, or has ended; *phase_p is where. */
static bool await_step(int num_processes, int step, int *phase_p)
{
    for (int i = 0; i < num_processes; i++) {
        struct page *page = &board->pages[i];
        while (page->step.load() < step) {
            int status;
            if (waitpid(-1, &status, WNOHANG) > 0)
                return false; /* it has said why */
            *phase_p = page->phase.load();
            if (step > 0 && *phase_p != PHASE_OTHERS &&
                now_us() - page->phase_from_us.load() > STUCK_US)
                return false;
            usleep(200);
        }
    }
    return true;
}

static void print_step(const char *label, int num_processes, const char *connections, int waiting)
{
    printf("%s,%d,%s,%d", label, num_processes, connections, waiting);
    for (int phase = 0; phase < PHASE_OTHERS; phase++) {
        double worst = 0;
        for (int i = 0; i < num_processes; i++)
            worst = std::max(worst, board->pages[i].us[phase]);
        printf(",%.0f", worst);
    }
    printf(",\n");
    fflush(stdout);
}

static void run_series(const char *label, int num_processes, const char *connections, int max)
{
    pid_t pids[PROCESSES_MAX];
    memset((void *)board, 0, sizeof(*board));
    for (int i = 0; i < num_processes; i++)
        board->pages[i].step.store(-1);
    for (int i = 0; i < num_processes; i++) {
        pids[i] = fork(); /* this process never touches CUDA */
        if (pids[i] == 0)
            _exit(process_main(i, max, connections));
    }
    int phase = PHASE_OTHERS, step = 0;
    bool goes_on = await_step(num_processes, 0, &phase);
    while (goes_on && step < max) {
        board->step.store(++step);
        goes_on = await_step(num_processes, step, &phase);
        if (goes_on)
            print_step(label, num_processes, connections, step);
        else
            printf("%s,%d,%s,%d,,,,,,,,,,STUCK in %s\n", label, num_processes, connections, step,
                   phase_names[phase]);
        fflush(stdout);
    }
    for (int i = 0; i < num_processes; i++)
        __atomic_store_n(&board->pages[i].release, 1, __ATOMIC_SEQ_CST);
    board->is_over.store(1);
    const int64_t until_us = now_us() + 10 * STUCK_US;
    for (int i = 0; i < num_processes; i++) {
        int status;
        while (waitpid(pids[i], &status, WNOHANG) == 0) {
            if (now_us() > until_us)
                kill(pids[i], SIGKILL); /* its waits have passed, and still it does not end */
            usleep(1000);
        }
    }
}

int main(int argc, char **argv)
{
    static const int usual[] = {1, 2, 3, 6};
    bench_args(
        argc, argv, 1, 2 + PROCESSES_MAX,
        "usage: bench_queue_probe LABEL [WAITING_MAX [PROCESSES...]]     (28; 1 2 3 6)\n"
        "Finds out how many streams can wait, in how many processes, until other work stops.\n"
        "One CSV row a step, LABEL in front; what took more than a second is STUCK.\n");
    const int max = bench_integer(argc, argv, 2, "WAITING_MAX", 1, WAITING_MAX, 28);
    board = (struct board *)mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    printf("label,processes,connections,waiting_each");
    for (int phase = 0; phase < PHASE_OTHERS; phase++)
        printf(",%s_us", phase_names[phase]);
    printf(",note\n");
    const int num_series = argc > 3 ? argc - 3 : (int)(sizeof(usual) / sizeof(usual[0]));
    for (const char *connections : {"32", "8"}) {
        for (int i = 0; i < num_series; i++) {
            const int num =
                bench_integer(argc, argv, 3 + i, "PROCESSES", 1, PROCESSES_MAX, usual[i]);
            run_series(argv[1], num, connections, max);
        }
    }
    return 0;
}
