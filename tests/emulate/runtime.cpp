/* CUDA's runtime on the host: memory, streams, captured graphs, launches. */
#include "emulate.h"
#include "machine.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

using emulate::grid;
using emulate::launch;
using emulate::machine;

namespace
{

/* Work in a stream: a launch, or what the host does in its place. */
struct work {
    bool is_launch;
    struct launch launch;
    std::function<void()> host;
};

/* Bytes behind an allocation that must stay as they are; AddressSanitizer has its own. */
#ifdef __SANITIZE_ADDRESS__
constexpr size_t GUARD_BYTES = 0;
#else
constexpr size_t GUARD_BYTES = 256;
#endif
constexpr unsigned char GUARD = 0x6b;

struct allocation {
    size_t size_bytes;
};

std::map<uintptr_t, allocation> allocations;
std::unordered_map<const void *, emulate::function> functions;

} // namespace

struct emulate_graph {
    std::vector<work> nodes;
};

struct emulate_stream {
    std::deque<work> queue;
    std::unique_ptr<grid> running;
    struct emulate_graph *capturing;
};

namespace
{

std::vector<emulate_stream *> streams;

emulate_stream *stream_of(cudaStream_t stream)
{
    static emulate_stream own;
    static bool known;
    if (!known) {
        streams.push_back(&own);
        known = true;
    }
    return stream != nullptr ? stream : &own;
}

/* What the head of a stream is: host work is done at once, a grid is begun. */
grid *head_of(emulate_stream &stream)
{
    while (stream.running == nullptr && !stream.queue.empty()) {
        struct work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        if (work.is_launch) {
            stream.running = std::make_unique<grid>();
            grid_begin(*stream.running, work.launch);
        } else {
            work.host();
        }
    }
    return stream.running.get();
}

/* Runs all streams, side by side, until nothing is left. */
void drain()
{
    for (;;) {
        std::vector<grid *> heads;
        for (emulate_stream *stream : streams) {
            if (grid *head = head_of(*stream)) {
                heads.push_back(head);
            }
        }
        if (heads.empty()) {
            return;
        }
        emulate::run(heads);
        for (emulate_stream *stream : streams) {
            if (stream->running != nullptr && stream->running->ended()) {
                stream->running.reset();
            }
        }
    }
}

cudaError_t add_work(cudaStream_t stream, struct work work)
{
    emulate_stream *its = stream_of(stream);
    if (its->capturing != nullptr) {
        its->capturing->nodes.push_back(std::move(work));
    } else {
        its->queue.push_back(std::move(work));
    }
    return cudaSuccess;
}

cudaError_t allocate(void **memory, size_t size_bytes)
{
    if (memory == nullptr) {
        return cudaErrorInvalidValue;
    }
    *memory = nullptr;
    if (size_bytes == 0) {
        return cudaSuccess;
    }
    if (posix_memalign(memory, 256, size_bytes + GUARD_BYTES) != 0) {
        return cudaErrorMemoryAllocation;
    }
    memset(*memory, 0xc3, size_bytes); /* void */
    memset(static_cast<char *>(*memory) + size_bytes, GUARD, GUARD_BYTES);
    allocations[reinterpret_cast<uintptr_t>(*memory)] = {size_bytes};
    return cudaSuccess;
}

cudaError_t release(void *memory)
{
    drain();
    if (memory == nullptr) {
        return cudaSuccess;
    }
    auto found = allocations.find(reinterpret_cast<uintptr_t>(memory));
    if (found == allocations.end()) {
        return cudaErrorInvalidValue;
    }
    const unsigned char *guard =
        static_cast<const unsigned char *>(memory) + found->second.size_bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (guard[i] != GUARD) {
            emulate::fail({}, "byte %zu behind an allocation of %zu bytes was written", i,
                          found->second.size_bytes);
        }
    }
    allocations.erase(found);
    free(memory);
    return cudaSuccess;
}

} // namespace

namespace emulate
{

void check_global(const void *global, size_t size_bytes, struct site here)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(global);
    auto found = allocations.upper_bound(begin);
    if (found != allocations.begin()) {
        --found;
        if (begin + size_bytes <= found->first + found->second.size_bytes) {
            return;
        }
    }
    fail(here, "%zu bytes at %p are not all of one allocation of device memory", size_bytes,
         global);
}

struct function &function_of(const void *kernel)
{
    return functions.emplace(kernel, function{48 << 10, false}).first->second;
}

cudaError_t enqueue(const void *kernel, const struct launch &launch, cudaStream_t stream)
{
    device_begin();
    const struct function &function = function_of(kernel);
    const uint32_t cluster = launch.cluster_blocks;
    const bool fits = launch.dynamic_bytes <= (uint32_t)function.dynamic_bytes_max &&
                      launch.dynamic_bytes <= (uint32_t)machine.device.shared_per_block &&
                      launch.block.x >= 1 && launch.block.x <= BLOCK_THREADS_MAX &&
                      launch.block.y * launch.block.z * launch.grid.y * launch.grid.z == 1 &&
                      launch.grid.x >= 1 && launch.grid.x % cluster == 0;
    const bool starts = cluster == 1 || (machine.device.major >= 9 &&
                                         cluster <= (function.large_clusters ? 16u : 8u) &&
                                         cluster <= (uint32_t)machine.device.multiprocessors);
    if (!fits || !starts) {
        return cudaErrorInvalidConfiguration;
    }
    return add_work(stream, {true, launch, {}});
}

} // namespace emulate

extern "C" {

void emulate_lend(void *memory, size_t size_bytes)
{
    allocations[reinterpret_cast<uintptr_t>(memory)] = {size_bytes};
}

void emulate_take_back(void *memory)
{
    drain();
    allocations.erase(reinterpret_cast<uintptr_t>(memory));
}

void emulate_on_switch(void (*meddle)(void *context), void *context)
{
    drain();
    machine.meddle = meddle;
    machine.meddle_context = context;
}

cudaError_t cudaDeviceSynchronize(void)
{
    drain();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t size_bytes)
{
    return allocate(memory, size_bytes);
}

cudaError_t cudaFree(void *memory)
{
    return release(memory);
}

cudaError_t cudaHostAlloc(void **memory, size_t size_bytes, unsigned flags)
{
    (void)flags;
    return allocate(memory, size_bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(memory);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size_bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    drain();
    if (size_bytes > 0) {
        memcpy(to, from, size_bytes);
    }
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int byte, size_t size_bytes)
{
    drain();
    if (size_bytes > 0) {
        memset(memory, byte, size_bytes);
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int byte, size_t size_bytes, cudaStream_t stream)
{
    return add_work(stream, {false, {}, [=]() {
                                 if (size_bytes > 0) {
                                     memset(memory, byte, size_bytes);
                                 }
                             }});
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = new emulate_stream();
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    drain();
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) {
            streams.erase(streams.begin() + (std::ptrdiff_t)i);
            delete stream;
            return cudaSuccess;
        }
    }
    return cudaErrorInvalidResourceHandle;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    drain();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    (void)stream;
    drain();
    return cudaSuccess;
}

/* ---- graphs: what a stream was given, in its order ------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    if (stream == nullptr || stream->capturing != nullptr) {
        return cudaErrorInvalidValue;
    }
    stream->capturing = new emulate_graph();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (stream == nullptr || stream->capturing == nullptr) {
        return cudaErrorInvalidValue;
    }
    *graph = stream->capturing;
    stream->capturing = nullptr;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = new emulate_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    for (const struct work &node : exec->nodes) {
        add_work(stream, node);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    drain();
    delete exec;
    return cudaSuccess;
}
}
