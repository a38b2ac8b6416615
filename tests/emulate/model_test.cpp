/*
 * The model of a GPU itself: kernels that do what they must not, each in a process of its own, and
 * what the model says of them; and kernels that are right, under many schedules.
 */
#include "cuda/ptx.cuh"
#include "emulate.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

constexpr unsigned WARP = 0xffffffffu;
constexpr uint32_t DYNAMIC_BYTES = 4096;

/* What kernels read and write; device memory. */
struct cells {
    uint32_t value[1024];
};

SHARED_DYNAMIC(uint64_t, memory);

/* ---- right ----------------------------------------------------------------------------------- */

/* Sums threads over warps, then over the block, then over all blocks. */
void sums(struct cells *cells)
{
    SHARED_OBJECT(uint32_t, total);
    if (threadIdx.x == 0) {
        total = 0;
    }
    __syncthreads();
    const uint32_t sum = __reduce_add_sync(WARP, threadIdx.x);
    if ((threadIdx.x & 31u) == 0) {
        atomicAdd(&total, sum);
    }
    block_sync<96>();
    if (threadIdx.x == 0) {
        atomicAdd(&cells->value[0], total);
    }
    const uint32_t up = __shfl_up_sync(WARP, threadIdx.x, 3);
    const uint32_t expected = (threadIdx.x & 31u) < 3 ? threadIdx.x : threadIdx.x - 3;
    if (up != expected || __ballot_sync(WARP, threadIdx.x % 2 == 0) != 0x55555555u) {
        atomicAdd(&cells->value[1], 1u);
    }
}

/* Copies cells through shared memory by one thread, which the others wait for. */
void copies(struct cells *cells)
{
    uint64_t *barrier = &memory[0];
    uint32_t *stage = reinterpret_cast<uint32_t *>(&memory[2]);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
    }
    __syncthreads();
    for (uint32_t round = 0; round < 4; round++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect(barrier, 96 * 4);
            copy_bulk(stage, &cells->value[round * 96], 96 * 4, barrier);
        }
        while (!mbarrier_try_wait(barrier, round & 1u)) {
        }
        atomicAdd(&cells->value[512], stage[threadIdx.x]);
        __syncthreads();
    }
}

/* Every block of a cluster adds to the next one's shared memory. */
void neighbours(struct cells *cells)
{
    uint32_t *own = reinterpret_cast<uint32_t *>(&memory[0]);
    if (threadIdx.x == 0) {
        *own = 0;
    }
    __syncwarp();
    cluster_arrive_aligned();
    cluster_wait();
    remote_add(remote_address(own, (cluster_rank() + 1) % cluster_size()), 1);
    __syncwarp();
    cluster_arrive_aligned();
    cluster_wait();
    if (threadIdx.x == 0) {
        atomicAdd(&cells->value[0], *own);
    }
}

/* ---- wrong ----------------------------------------------------------------------------------- */

void mask_without_caller(struct cells *)
{
    __syncwarp(0x7fffffffu);
}

void lane_that_ended(struct cells *)
{
    if (threadIdx.x % 32 != 7) {
        __syncwarp();
    }
}

void lanes_of_two_minds(struct cells *)
{
    if (threadIdx.x % 32 < 16) {
        __any_sync(WARP, 1);
    } else {
        __syncwarp();
    }
}

void barrier_not_by_all(struct cells *)
{
    if (threadIdx.x != 40) {
        __syncthreads();
    }
}

void counts_that_differ(struct cells *)
{
    if (threadIdx.x < 32) {
        block_sync<64>();
    } else {
        block_sync<96>();
    }
}

void no_initialisation(struct cells *)
{
    mbarrier_try_wait(&memory[0], 0);
}

void arrival_too_many(struct cells *)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&memory[0], 2);
        mbarrier_arrive(&memory[0]);
        mbarrier_arrive_expect(&memory[0], 16);
        mbarrier_arrive(&memory[0]);
    }
}

void copy_unaligned(struct cells *cells)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&memory[0], 1);
        mbarrier_arrive_expect(&memory[0], 16);
        copy_bulk(&memory[2], &cells->value[1], 16, &memory[0]);
    }
}

void copy_beyond_the_end(struct cells *cells)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&memory[0], 1);
        mbarrier_arrive_expect(&memory[0], 32);
        copy_bulk(&memory[2], &cells->value[1020], 32, &memory[0]);
    }
}

void copy_nobody_waits_for(struct cells *cells)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&memory[0], 1);
        mbarrier_arrive_expect(&memory[0], 16);
        copy_bulk(&memory[2], &cells->value[0], 16, &memory[0]);
    }
}

void copy_without_fence(struct cells *cells)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&memory[0], 1);
        for (uint32_t round = 0; round < 2; round++) {
            mbarrier_arrive_expect(&memory[0], 16);
            copy_bulk(&memory[2], &cells->value[0], 16, &memory[0]);
            while (!mbarrier_try_wait(&memory[0], round & 1u)) {
            }
            memory[2] += 1;
        }
    }
}

void parity_nobody_completes(struct cells *)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&memory[0], 1);
        while (!mbarrier_try_wait(&memory[0], 0)) {
        }
    }
}

void neighbour_that_ended(struct cells *)
{
    cluster_arrive_aligned();
    cluster_wait();
    if (cluster_rank() == 0) {
        for (;;) {
            remote_load(remote_address(&memory[0], 1));
        }
    }
}

void wait_without_arrival(struct cells *)
{
    cluster_wait();
}

void object_not_shared(struct cells *cells)
{
    shared_address(cells);
}

/* ---- running them ---------------------------------------------------------------------------- */

using kernel_of_cells = void (*)(struct cells *);

cudaError_t launch(kernel_of_cells kernel, unsigned blocks, unsigned cluster, struct cells *cells)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(96);
    config.dynamicSmemBytes = DYNAMIC_BYTES;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, cells);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

struct cells *new_cells()
{
    struct cells *cells;
    if (cudaMalloc(reinterpret_cast<void **>(&cells), sizeof(*cells)) != cudaSuccess) {
        exit(2);
    }
    cudaMemset(cells, 0, sizeof(*cells));
    return cells;
}

int num_failed;

void report(bool good, const char *name, const std::string &detail)
{
    printf("%s %s%s%s\n", good ? "ok    " : "FAILED", name, good ? "" : ": ",
           good ? "" : detail.c_str());
    num_failed += good ? 0 : 1;
}

void expect_value(const char *name, kernel_of_cells kernel, unsigned cluster, uint32_t cell,
                  uint32_t value)
{
    struct cells *cells = new_cells();
    std::string detail;
    for (uint64_t seed = 1; seed <= 40 && detail.empty(); seed++) {
        for (uint32_t i = 0; i < 512; i++) {
            cells->value[i] = kernel == copies ? i : 0;
            cells->value[512 + i] = 0;
        }
        emulate_seed(seed);
        const cudaError_t error = launch(kernel, 4, cluster, cells);
        if (error != cudaSuccess || cells->value[cell] != value || cells->value[1] > 1) {
            detail = "seed " + std::to_string(seed) + ": " + cudaGetErrorName(error) + ", " +
                     std::to_string(cells->value[cell]) + " instead of " + std::to_string(value);
        }
    }
    cudaFree(cells);
    report(detail.empty(), name, detail);
}

/* Under one of these schedules the process that runs it must end with the model's exit code, and
 * say `words`. */
void expect_report(const char *name, kernel_of_cells kernel, unsigned cluster, const char *words)
{
    int ends[2];
    fflush(stdout);
    const pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child < 0) {
        report(false, name, "no process");
        return;
    }
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        struct cells *cells = new_cells();
        for (uint64_t seed = 1; seed <= 40; seed++) { /* what one schedule may hide */
            emulate_seed(seed);
            launch(kernel, 2, cluster, cells);
        }
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char part[512];
    for (ssize_t size; (size = read(ends[0], part, sizeof(part))) > 0;) {
        said.append(part, (size_t)size);
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const bool good =
        WIFEXITED(status) && WEXITSTATUS(status) == 3 && said.find(words) != std::string::npos;
    report(good, name, "status " + std::to_string(status) + ", said: " + said.substr(0, 300));
}

} // namespace

int main()
{
    const uint32_t threads = 95 * 96 / 2, copied = 383 * 384 / 2;
    expect_value("warps_blocks_and_grids_sum", sums, 1, 0, 4 * threads);
    expect_value("bulk_copies_arrive", copies, 1, 512, 4 * copied);
    expect_value("blocks_of_a_cluster_reach_each_other", neighbours, 2, 0, 4 * 96);
    expect_report("mask_without_caller", mask_without_caller, 1, "lacks lane 31");
    expect_report("lane_that_ended", lane_that_ended, 1, "ended");
    expect_report("lanes_of_two_minds", lanes_of_two_minds, 1, "wait for this one");
    expect_report("barrier_not_by_all", barrier_not_by_all, 1, "waits in a barrier of the block");
    expect_report("counts_that_differ", counts_that_differ, 1, "wait there for");
    expect_report("no_initialisation", no_initialisation, 1, "not initialised");
    expect_report("arrival_too_many", arrival_too_many, 1, "more arrivals");
    expect_report("copy_unaligned", copy_unaligned, 1, "multiples of 16");
    expect_report("copy_beyond_the_end", copy_beyond_the_end, 1, "not all of one allocation");
    expect_report("copy_nobody_waits_for", copy_nobody_waits_for, 1, "still writes");
    expect_report("copy_without_fence", copy_without_fence, 1, "without a fence");
    expect_report("parity_nobody_completes", parity_nobody_completes, 1, "deadlock");
    expect_report("neighbour_that_ended", neighbour_that_ended, 2, "which has ended");
    expect_report("wait_without_arrival", wait_without_arrival, 2,
                  "without barrier.cluster.arrive");
    expect_report("object_not_shared", object_not_shared, 1, "no address in the block's shared");
    printf("%s\n", num_failed == 0 ? "ok" : "FAILED");
    return num_failed == 0 ? 0 : 1;
}
