/*
 * bench_lane_ways.cuh - the kernels of bench_lane_ways: those of a client's graph and those that
 * answer, with the moments that they take down.
 */
#ifndef TOPKD_BENCH_LANE_WAYS_CUH
#define TOPKD_BENCH_LANE_WAYS_CUH

#include "bench_parts.cuh"

#include <cstdint>

/* What the client's kernels and the answer take; the most steps of a cell; and the longest that a
 * kernel looks for a word, after which the step counts as lost. */
enum { KERNEL_NS = 5000, STEPS_MAX = 8192, BOUND_NS = 500000000 };

/* When what happened in a step. */
enum stamp {
    FIRST_BEGIN,
    FIRST_END,
    CLIENT_ASKED,
    CLIENT_SAW,
    LAST_BEGIN,
    LAST_END,
    NUM_CLIENT,
    WORKER_SAW = 0,
    WORK_BEGIN,
    WORK_END,
    WORKER_ANSWERED,
    NUM_WORKER
};
typedef unsigned long long client_stamps[NUM_CLIENT];
typedef unsigned long long worker_stamps[NUM_WORKER];

__device__ static void spin()
{
    const unsigned long long from = device_now();
    while (device_now() - from < KERNEL_NS) {
    }
}

/* Both sides run on one device, so its own scope will do; a processor may read the doorbell. */
__device__ static void store(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* False: the bound has passed. */
__device__ static bool look_for(const uint32_t *word, uint32_t value)
{
    const unsigned long long from = device_now();
    while (*(const volatile uint32_t *)word != value) {
        if (device_now() - from > BOUND_NS)
            return false;
    }
    __threadfence();
    return true;
}

struct client_state {
    unsigned count, lost;
    client_stamps stamps[STEPS_MAX];
};

struct worker_state {
    unsigned count, is_real, lost;
    worker_stamps stamps[STEPS_MAX];
};

/* The count is read ahead of every wait: the steps of a lane run one after the other. */
__global__ void first_kernel(struct client_state *state)
{
    const unsigned at = state->count;
    state->stamps[at][FIRST_BEGIN] = device_now();
    spin();
    state->stamps[at][FIRST_END] = device_now();
}

__global__ void ask_kernel(struct client_state *state, uint32_t *word, uint32_t *doorbell)
{
    const unsigned at = state->count;
    launch_wait();
    launch_release();
    store(word, 1);
    state->stamps[at][CLIENT_ASKED] = device_now();
    if (doorbell != nullptr) {
        __threadfence_system();
        *(volatile uint32_t *)doorbell = 1;
    }
    if (!look_for(word, 2))
        state->lost++;
    state->stamps[at][CLIENT_SAW] = device_now();
}

__global__ void last_kernel(struct client_state *state)
{
    const unsigned at = state->count;
    launch_wait();
    state->stamps[at][LAST_BEGIN] = device_now();
    spin();
    state->stamps[at][LAST_END] = device_now();
    state->count = at + 1;
}

__global__ void begin_kernel(struct worker_state *state, uint32_t *word, uint32_t *announcement,
                             int looks, int early)
{
    const unsigned at = state->count;
    if (early)
        launch_release();
    state->is_real = !looks || look_for(word, 1);
    if (!early)
        launch_release();
    state->stamps[at][WORKER_SAW] = device_now();
    if (announcement != nullptr)
        *(volatile uint32_t *)announcement = 0;
}

__global__ void work_kernel(struct worker_state *state)
{
    launch_release();
    const unsigned at = state != nullptr ? *(volatile unsigned *)&state->count : 0;
    launch_wait();
    if (state != nullptr)
        state->stamps[at][WORK_BEGIN] = device_now();
    spin();
    if (state != nullptr)
        state->stamps[at][WORK_END] = device_now();
}

__global__ void end_kernel(struct worker_state *state, uint32_t *word, volatile uint64_t *h_passed)
{
    const unsigned at = *(volatile unsigned *)&state->count;
    launch_wait();
    if (*(volatile unsigned *)&state->is_real)
        *(volatile uint32_t *)word = 2;
    else
        state->lost++;
    state->stamps[at][WORKER_ANSWERED] = device_now();
    state->count = at + 1;
    *h_passed = at + 1;
}

#endif
