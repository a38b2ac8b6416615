/*
 * order.cuh - results in order of value, and rows that need no selection.
 *
 * An entry of a sort is 64 bits: the key above, the complement of the position below, so that a
 * descending sort gives scores descending and equal scores by position ascending. 0 is padding.
 */
#ifndef TOPKSEL_CUDA_ORDER_CUH
#define TOPKSEL_CUDA_ORDER_CUH

#include "rank.cuh"
#include "task.cuh"

static __device__ __forceinline__ uint64_t sort_entry(uint32_t key, uint32_t position)
{
    return (uint64_t)key << 32 | (uint32_t)~position;
}

/*
 * Sorts entries[count] descending in place, in shared or global memory, by a bitonic network.
 * entries has room for the next power of two, which is padded here. All THREADS threads call, after
 * a barrier; ends with a barrier.
 */
template <int THREADS>
static __device__ __noinline__ void sort_descending(uint64_t *entries, uint32_t count)
{
    uint32_t size = 1;
    while (size < count) {
        size *= 2;
    }
    for (uint32_t i = count + threadIdx.x; i < size; i += THREADS) {
        entries[i] = 0;
    }
    block_sync<THREADS>();
    for (uint32_t run = 2; run <= size; run *= 2) {
        for (uint32_t step = run / 2; step > 0; step /= 2) {
            for (uint32_t i = threadIdx.x; i < size / 2; i += THREADS) {
                uint32_t low = 2 * i - (i & (step - 1)); /* the pair (low, low + step) */
                uint64_t a = entries[low], b = entries[low + step];
                bool descending = (low & run) == 0;
                if ((a < b) == descending) {
                    entries[low] = b;
                    entries[low + step] = a;
                }
            }
            block_sync<THREADS>();
        }
    }
}

/* Writes sorted entries as the result. All THREADS threads call, after a barrier. */
template <int THREADS>
static __device__ __forceinline__ void sink_put_sorted(const struct sink &sink,
                                                       const uint64_t *entries, uint32_t count)
{
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        sink_put(sink, i, ~(uint32_t)entries[i]);
    }
}

/*
 * Writes staged positions (in shared memory, aligned to 16 bytes) as the result, in whole sectors.
 * All THREADS threads call, after a barrier.
 */
template <int THREADS>
static __device__ __forceinline__ void sink_put_staged(const struct sink &sink,
                                                       const uint32_t *stage, uint32_t k)
{
    if (sink.plain && reinterpret_cast<uintptr_t>(sink.indices) % 16 == 0) {
        for (uint32_t i = threadIdx.x; i < k / 4; i += THREADS) {
            __stcg(reinterpret_cast<int4 *>(sink.indices) + i,
                   reinterpret_cast<const int4 *>(stage)[i]);
        }
        if (threadIdx.x < k % 4) {
            const uint32_t last = k - k % 4 + threadIdx.x;
            __stcg(&sink.indices[last], (int32_t)stage[last]);
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
        sink_put(sink, i, stage[i]);
    }
}

/*
 * A row of at most K valid scores: every position, then -1. `entries` (room for k, rounded up to a
 * power of two) is used only to order by value. All THREADS threads call; ends with a barrier when
 * entries were used.
 */
template <int THREADS>
static __device__ __noinline__ void select_whole(const struct sink &sink, int32_t length, int32_t k,
                                                 bool by_value, uint64_t *entries)
{
    for (int32_t i = length + (int32_t)threadIdx.x; i < k; i += THREADS) {
        sink_put_none(sink, (uint32_t)i);
    }
    if (!by_value) {
        for (int32_t i = (int32_t)threadIdx.x; i < length; i += THREADS) {
            sink_put(sink, (uint32_t)i, (uint32_t)i);
        }
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < length; i += THREADS) {
        entries[i] = sort_entry(key_of(score_number(sink.scores[i])), (uint32_t)i);
    }
    sort_descending<THREADS>(entries, (uint32_t)length);
    sink_put_sorted<THREADS>(sink, entries, (uint32_t)length);
    block_sync<THREADS>();
}

#endif
