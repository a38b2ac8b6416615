/*
 * bench_lane_probe - what a hand-over between the streams of two processes costs, way by way, and
 * which calls of the driver block while a stream waits. usage: bench_lane_probe [STEPS]
 *
 * Two processes, no daemon: the parent replays a graph of kernel, hand-over, kernel; the child
 * answers with a kernel of its own. One line a way: time from the first kernel's start to the last
 * one's end, from %globaltimer. README.md has the method.
 */
#include "bench_args.h"
#include "bench_parts.cuh"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

enum { KERNEL_NS = 5000, CHUNK = 8, AHEAD = 3 };

/* One page that both processes map and register. */
struct shared {
    alignas(128) uint64_t mailbox; /* low half: 1 asked, 2 answered; high half: released */
    alignas(128) std::atomic<int> way_wanted, way_ready, way_done, is_over;
    alignas(128) CUipcMemHandle device_mailbox;
};

struct way {
    const char *name;
    bool device_mailbox; /* in the child's device memory */
    bool memops;         /* the child: wait, kernel, write, nothing that could tell an empty step */
    bool programmatic;   /* the child's kernels overlap their launches */
    bool fence;          /* a system fence before the answer */
    bool reads_host;     /* the first kernel reads the mailbox over the bus each time */
    bool three_nodes;    /* the client's hand-over as separate operations */
    bool in_process;     /* no hand-over: the baseline */
};

static const struct way ways[] = {
    {"in process", false, false, false, false, false, false, true},
    {"memory operations only", false, true, false, false, false, false, false},
    {"memory operations only, device mailbox", true, true, false, false, false, false, false},
    {"begin and end kernels", false, false, false, false, false, false, false},
    {"begin and end, programmatic", false, false, true, false, false, false, false},
    {"begin and end, programmatic, fence", false, false, true, true, false, false, false},
    {"begin reads the mailbox, programmatic", false, false, true, false, true, false, false},
    {"programmatic, client in separate nodes", false, false, true, false, false, true, false},
    {"programmatic, device mailbox", true, false, true, false, false, false, false},
};
enum { NUM_WAYS = sizeof(ways) / sizeof(ways[0]) };

/* ---- Kernels --------------------------------------------------------------------------------- */

struct step {
    unsigned paused, is_real;
    unsigned long long passed;
};

__device__ static void spin(unsigned long long from)
{
    while (device_now() - from < KERNEL_NS) {
    }
}

__global__ void first_kernel(unsigned long long *stamps, unsigned *count)
{
    const unsigned long long from = device_now();
    stamps[2 * *count] = from;
    spin(from);
}

__global__ void last_kernel(unsigned long long *stamps, unsigned *count)
{
    spin(device_now());
    stamps[2 * *count + 1] = device_now();
    *count = *count + 1;
}

__global__ void begin_kernel(struct step *step, volatile uint64_t *mailbox, int reads)
{
    launch_release();
    unsigned real = 1;
    if (reads || *(volatile unsigned *)&step->paused)
        real = (uint32_t)*mailbox == 1;
    step->is_real = real;
}

__global__ void middle_kernel(struct step *step)
{
    launch_release();
    launch_wait();
    if (step->is_real)
        spin(device_now());
}

__global__ void end_kernel(struct step *step, volatile uint32_t *mailbox,
                           volatile uint64_t *h_passed, int fence)
{
    launch_wait();
    if (fence)
        __threadfence_system();
    if (step->is_real)
        *mailbox = 2;
    *h_passed = ++step->passed;
}

/* ---- Both processes -------------------------------------------------------------------------- */

static void open_device(struct shared *shared, CUdeviceptr *mailbox)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CUcontext context;
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemHostRegister(shared, sizeof(*shared),
                         CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(mailbox, shared, 0));
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

static void await(const std::atomic<int> &word, int value)
{
    while (word.load() < value)
        usleep(50);
}

/* ---- The child: answers ---------------------------------------------------------------------- */

static void capture_step(CUstream stream, const struct way *way, CUdeviceptr mailbox,
                         struct step *d_step, uint64_t *d_passed)
{
    const bool programmatic = way->programmatic;
    CU(cuStreamWaitValue64(stream, mailbox, (UINT64_C(1) << 32) | 1, CU_STREAM_WAIT_VALUE_AND));
    if (!way->memops)
        launch_block(begin_kernel, 32, stream, false, d_step, (volatile uint64_t *)mailbox,
                     (int)way->reads_host);
    launch_block(middle_kernel, 32, stream, programmatic, d_step);
    if (way->memops) {
        CUstreamBatchMemOpParams writes[2] = {};
        writes[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        writes[0].writeValue.address = mailbox;
        writes[0].writeValue.value = 2;
        CU(cuStreamBatchMemOp(stream, 1, writes, 0));
        launch_block(end_kernel, 32, stream, false, d_step, (volatile uint32_t *)mailbox + 2,
                     (volatile uint64_t *)d_passed, 0);
    } else {
        launch_block(end_kernel, 32, stream, programmatic, d_step, (volatile uint32_t *)mailbox,
                     (volatile uint64_t *)d_passed, (int)way->fence);
    }
}

static void answer_way(struct shared *shared, int number, CUstream stream, CUdeviceptr mailbox,
                       int steps)
{
    const struct way *way = &ways[number];
    struct step *d_step;
    volatile uint64_t *h_passed;
    CU(cudaMalloc((void **)&d_step, sizeof(*d_step)));
    const struct step zero = {0, 1, 0};
    CU(cudaMemcpy(d_step, &zero, sizeof(zero), cudaMemcpyHostToDevice));
    CU(cudaHostAlloc((void **)&h_passed, 64, cudaHostAllocMapped));
    *h_passed = 0;
    const CUgraphExec exec = capture(stream, [&] {
        for (int i = 0; i < CHUNK; i++)
            capture_step(stream, way, mailbox, d_step, (uint64_t *)h_passed);
    });
    shared->way_ready.store(number + 1);
    int launched = 0;
    double spent_us = 0, worst_us = 0;
    while (launched < steps) {
        if (launched - (int)*h_passed > (AHEAD - 1) * CHUNK)
            continue;
        const double from_s = now_s();
        CU(cuGraphLaunch(exec, stream));
        const double took = (now_s() - from_s) * 1e6;
        spent_us += took;
        worst_us = std::max(worst_us, took);
        launched += CHUNK;
    }
    CU(cuStreamSynchronize(stream));
    printf(
        "  arming: %.2f us of a processor for each step, %d steps a launch, worst launch %.0f us\n",
        spent_us / launched, CHUNK, worst_us);
    fflush(stdout);
    CU(cuGraphExecDestroy(exec));
    CU(cudaFree(d_step));
    CU(cudaFreeHost((void *)h_passed));
    shared->way_done.store(number + 1);
}

static int child(struct shared *shared, int steps)
{
    CUdeviceptr host_mailbox, device_mailbox;
    CUstream stream;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    open_device(shared, &host_mailbox);
    CU(cuMemAlloc(&device_mailbox, 4096));
    CU(cuMemsetD8(device_mailbox, 0, 4096));
    CU(cuCtxSynchronize());
    CU(cuIpcGetMemHandle(&shared->device_mailbox, device_mailbox));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    shared->way_ready.store(0);
    for (int i = 1; i < NUM_WAYS; i++) {
        await(shared->way_wanted, i);
        answer_way(shared, i, stream, ways[i].device_mailbox ? device_mailbox : host_mailbox,
                   steps);
    }
    return 0;
}

/* ---- The parent: asks ------------------------------------------------------------------------ */

static void hand_over(CUstream stream, const struct way *way, CUdeviceptr mailbox)
{
    if (way->three_nodes) {
        CU(cuStreamWriteValue32(stream, mailbox, 1, 0));
        CU(cuStreamWaitValue32(stream, mailbox, 2, CU_STREAM_WAIT_VALUE_AND));
        return;
    }
    CUstreamBatchMemOpParams ops[2] = {};
    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = mailbox;
    ops[0].writeValue.value = 1;
    ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = mailbox;
    ops[1].waitValue.value = 2;
    ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
    CU(cuStreamBatchMemOp(stream, 2, ops, 0));
}

static void ask_way(struct shared *shared, int number, CUstream stream, CUdeviceptr mailbox,
                    int steps)
{
    const struct way *way = &ways[number];
    unsigned long long *stamps;
    unsigned *count;
    struct step *d_step;
    CU(cudaHostAlloc((void **)&stamps, sizeof(*stamps) * 2 * (size_t)steps, cudaHostAllocMapped));
    CU(cudaMalloc((void **)&count, sizeof(*count)));
    CU(cudaMemset(count, 0, sizeof(*count)));
    CU(cudaMalloc((void **)&d_step, sizeof(*d_step)));
    const struct step one = {0, 1, 0};
    CU(cudaMemcpy(d_step, &one, sizeof(one), cudaMemcpyHostToDevice));
    CU(cudaDeviceSynchronize());
    const CUgraphExec exec = capture(stream, [&] {
        launch_block(first_kernel, 32, stream, false, stamps, count);
        if (way->in_process)
            launch_block(middle_kernel, 32, stream, false, d_step);
        else
            hand_over(stream, way, mailbox);
        launch_block(last_kernel, 32, stream, false, stamps, count);
    });
    if (!way->in_process) {
        shared->way_wanted.store(number);
        await(shared->way_ready, number + 1);
    }
    for (int i = 0; i < steps; i++) {
        CU(cuGraphLaunch(exec, stream));
        if (i % 16 == 15)
            CU(cuStreamSynchronize(stream));
    }
    CU(cuStreamSynchronize(stream));
    if (!way->in_process)
        await(shared->way_done, number + 1);
    std::vector<double> us;
    for (int i = steps / 10; i < steps; i++)
        us.push_back((double)(stamps[2 * i + 1] - stamps[2 * i]) / 1e3);
    std::sort(us.begin(), us.end());
    printf("%-42s p50 %6.1f us  p99 %6.1f us\n", way->name, us[us.size() / 2],
           us[us.size() * 99 / 100]);
    fflush(stdout);
    CU(cuGraphExecDestroy(exec));
    CU(cudaFree(d_step));
    CU(cudaFree(count));
    CU(cudaFreeHost(stamps));
}

/* ---- Which calls block while a stream waits -------------------------------------------------- */

static void try_call(struct shared *shared, CUstream stream, CUdeviceptr mailbox, const char *name,
                     const std::function<CUresult()> &call)
{
    CUcontext context;
    CU(cuCtxGetCurrent(&context));
    __atomic_store_n(&shared->mailbox, 0, __ATOMIC_SEQ_CST);
    CU(cuStreamWaitValue64(stream, mailbox, (UINT64_C(1) << 32) | 1, CU_STREAM_WAIT_VALUE_AND));
    std::atomic<int> done{0};
    CUresult result = CUDA_SUCCESS;
    const double from_s = now_s();
    std::thread caller([&] {
        cuCtxSetCurrent(context);
        result = call();
        done.store(1);
    });
    while (!done.load() && now_s() - from_s < 0.2)
        usleep(10);
    const bool blocked = !done.load();
    const double took = (now_s() - from_s) * 1e6;
    __atomic_store_n(&shared->mailbox, UINT64_C(1) << 32, __ATOMIC_SEQ_CST); /* the release */
    caller.join();
    CU(cuStreamSynchronize(stream));
    printf("while a stream waits: %-34s %s (%.0f us, result %d)\n", name,
           blocked ? "BLOCKS" : "goes on", took, (int)result);
    fflush(stdout);
}

static void try_calls(struct shared *shared, CUdeviceptr mailbox)
{
    CUstream armed, other, made = NULL;
    CUdeviceptr memory = 0, large = 0, reserved = 0;
    void *host = NULL,
         *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned *count;
    CU(cuStreamCreate(&armed, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cudaMalloc((void **)&count, 64));
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    struct step *d_step = (struct step *)count;
    const auto tried = [&](const char *name, const std::function<CUresult()> &call) {
        try_call(shared, armed, mailbox, name, call);
    };
    tried("cuMemHostRegister", [&] { return cuMemHostRegister(page, 4096, 2); });
    tried("cuMemHostUnregister", [&] { return cuMemHostUnregister(page); });
    tried("cuMemHostAlloc", [&] { return cuMemHostAlloc(&host, 65536, 0); });
    tried("cuMemFreeHost", [&] { return cuMemFreeHost(host); });
    tried("cuMemAlloc 64 KiB", [&] { return cuMemAlloc(&memory, 65536); });
    tried("cuMemFree 64 KiB", [&] { return cuMemFree(memory); });
    tried("cuMemAlloc 512 MiB", [&] { return cuMemAlloc(&large, (size_t)512 << 20); });
    CU(cuMemFree(large));
    tried("cuStreamCreate", [&] { return cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); });
    tried("a kernel in it, synchronised", [&] {
        launch_block(middle_kernel, 32, made, false, d_step);
        return cuStreamSynchronize(made);
    });
    tried("cuStreamDestroy", [&] { return cuStreamDestroy(made); });
    tried("capture", [&] {
        CUresult result = cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        launch_block(middle_kernel, 32, other, true, d_step);
        return result == CUDA_SUCCESS ? cuStreamEndCapture(other, &graph) : result;
    });
    tried("cuGraphInstantiate", [&] { return cuGraphInstantiateWithFlags(&exec, graph, 0); });
    tried("cuGraphUpload", [&] { return cuGraphUpload(exec, other); });
    tried("cuGraphLaunch, synchronised", [&] {
        CUresult result = cuGraphLaunch(exec, other);
        return result == CUDA_SUCCESS ? cuStreamSynchronize(other) : result;
    });
    tried("cuGraphExecDestroy", [&] { return cuGraphExecDestroy(exec); });
    tried("cudaFuncSetAttribute", [&] {
        return (CUresult)cudaFuncSetAttribute(middle_kernel,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);
    });
    tried("cuMemAddressReserve", [&] { return cuMemAddressReserve(&reserved, 2 << 20, 0, 0, 0); });
    tried("cuMemAddressFree", [&] { return cuMemAddressFree(reserved, 2 << 20); });
    CUgraphNode node;
    CUgraph explicit_graph;
    CUcontext context;
    CU(cuCtxGetCurrent(&context));
    CU(cuGraphCreate(&explicit_graph, 0));
    CUstreamBatchMemOpParams op = {};
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = mailbox + 8;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {context, 1, &op, 0};
    printf("explicit node of memory operations: result %d\n",
           (int)cuGraphAddBatchMemOpNode(&node, explicit_graph, NULL, 0, &params));
    fflush(stdout);
}

static int parent(struct shared *shared, int steps)
{
    CUdeviceptr host_mailbox, device_mailbox = 0;
    CUstream stream;
    open_device(shared, &host_mailbox);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    await(shared->way_ready, 0);
    CU(cuIpcOpenMemHandle(&device_mailbox, shared->device_mailbox, 1));
    for (int i = 0; i < NUM_WAYS; i++)
        ask_way(shared, i, stream, ways[i].device_mailbox ? device_mailbox : host_mailbox, steps);
    try_calls(shared, host_mailbox);
    return 0;
}

int main(int argc, char **argv)
{
    bench_args(argc, argv, 0, 1,
               "usage: bench_lane_probe [STEPS]     (4000)\n"
               "Times ways of handing over between the streams of two processes, a line each, and\n"
               "says which calls of the driver block while a stream waits.\n");
    const int steps = bench_integer(argc, argv, 1, "STEPS", CHUNK, 10000000, 4000) / CHUNK * CHUNK;
    struct shared *shared = (struct shared *)mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared->way_ready.store(-1);
    const pid_t pid = fork(); /* before any of the two has touched CUDA */
    if (pid == 0) {
        const int code = child(shared, steps);
        fflush(stdout);
        _exit(code);
    }
    int code = parent(shared, steps), status = 0;
    waitpid(pid, &status, 0);
    return code != 0 || status != 0;
}
