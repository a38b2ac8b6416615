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

#define SORT_CHUNK 128u /* entries that a warp sorts in registers: four a lane */

/* Sets a pair to its higher and lower, or the other way round. */
static __device__ __forceinline__ void sort_pair(uint64_t &a, uint64_t &b, bool descending)
{
    const uint64_t high = a > b ? a : b, low = a > b ? b : a;
    a = descending ? high : low;
    b = descending ? low : high;
}

/* The steps of a bitonic merge within a chunk, of which a lane has four neighbouring entries; they
 * begin at distance `step`, at least 2. */
static __device__ __forceinline__ void sort_merge(uint64_t (&entry)[4], uint32_t step,
                                                  bool descending)
{
#pragma unroll 1
    for (; step >= 4; step /= 2) {
        const bool keeps_high = ((lane_index() & step / 4) == 0) == descending;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint64_t other = __shfl_xor_sync(WARP_ALL, entry[n], (int)(step / 4));
            entry[n] = (entry[n] > other) == keeps_high ? entry[n] : other;
        }
    }
    sort_pair(entry[0], entry[2], descending);
    sort_pair(entry[1], entry[3], descending);
    sort_pair(entry[0], entry[1], descending);
    sort_pair(entry[2], entry[3], descending);
}

/* A chunk from registers to memory and back: those of 4 * lane and on. */
static __device__ __forceinline__ void sort_load(const uint64_t *chunk, uint32_t count,
                                                 uint64_t (&entry)[4])
{
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
        entry[n] = 4 * lane_index() + n < count ? chunk[4 * lane_index() + n] : 0;
    }
}

static __device__ __forceinline__ void sort_store(uint64_t *chunk, uint32_t count,
                                                  const uint64_t (&entry)[4])
{
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
        if (4 * lane_index() + n < count) {
            chunk[4 * lane_index() + n] = entry[n];
        }
    }
}

/*
 * Sorts entries[count] descending in place, in shared or global memory, by a bitonic network: what
 * lies within a chunk in the registers of one warp, the rest in memory. entries has room for the
 * next power of two, which is padded here. All THREADS threads call, after a barrier; ends with
 * one.
 */
template <int THREADS>
static __device__ __noinline__ void sort_descending(uint64_t *entries, uint32_t count)
{
    uint32_t size = 1;
    while (size < count) {
        size *= 2;
    }
    const uint32_t first = warp_index() * SORT_CHUNK, stride = THREADS / 32 * SORT_CHUNK;
    for (uint32_t i = first; i < size; i += stride) {
        uint64_t entry[4];
        sort_load(entries + i, count > i ? count - i : 0, entry);
        sort_pair(entry[0], entry[1], true);
        sort_pair(entry[2], entry[3], false);
#pragma unroll 1
        for (uint32_t run = 4; run <= SORT_CHUNK; run *= 2) {
            sort_merge(entry, run / 2, ((i + 4 * lane_index()) & run) == 0);
        }
        sort_store(entries + i, size - i, entry);
    }
    block_sync<THREADS>();
    for (uint32_t run = 2 * SORT_CHUNK; run <= size; run *= 2) {
        for (uint32_t step = run / 2; step >= SORT_CHUNK; step /= 2) {
            for (uint32_t i = threadIdx.x; i < size / 2; i += THREADS) {
                const uint32_t low = 2 * i - (i & (step - 1)); /* the pair (low, low + step) */
                sort_pair(entries[low], entries[low + step], (low & run) == 0);
            }
            block_sync<THREADS>();
        }
        for (uint32_t i = first; i < size; i += stride) {
            uint64_t entry[4];
            sort_load(entries + i, SORT_CHUNK, entry);
            sort_merge(entry, SORT_CHUNK / 2, (i & run) == 0);
            sort_store(entries + i, SORT_CHUNK, entry);
        }
        block_sync<THREADS>();
    }
}

/*
 * Several entries of a result at a time: what sink_put does for one, in two halves. A position, and
 * what is looked up for it; void where the sink does not ask for it.
 */
struct sink_entry {
    uint32_t position;
    int32_t page;
    score_t score;
};

/* Whether a position lies outside of the page table; topk_args_check refuses such a table. */
static __device__ __forceinline__ bool sink_lacks_page(const struct sink &sink, uint32_t position)
{
    return sink.pages != nullptr && position >> sink.page_size_log2 >= (uint32_t)sink.num_pages;
}

/* Looks up what is written of a position, of a sink that is not plain; its value too, where
 * `value` and the sink ask for it. Nothing waits for it yet. */
static __device__ __forceinline__ struct sink_entry
sink_look_up(const struct sink &sink, uint32_t position, bool value = true)
{
    struct sink_entry entry = {position, 0, {}};
    if (sink.pages != nullptr && !sink_lacks_page(sink, position)) {
        entry.page = sink.pages[position >> sink.page_size_log2];
    }
    if (value && sink.values != nullptr) {
        /* No position is beyond, unless the row changed while it was read. */
        entry.score = sink.scores[min(position, sink.last)];
    }
    return entry;
}

/* The position as it is written: its place in the page, and the row's offset; -1 without a page. */
static __device__ __forceinline__ int32_t sink_index(const struct sink &sink,
                                                     const struct sink_entry &entry)
{
    if (sink_lacks_page(sink, entry.position)) {
        return -1;
    }
    uint32_t result = entry.position;
    if (sink.pages != nullptr) {
        const uint32_t within = result & ((1u << sink.page_size_log2) - 1);
        result = ((uint32_t)entry.page << sink.page_size_log2) + within;
    }
    return (int32_t)(result + (uint32_t)sink.offset);
}

/* Writes what was looked up as entry `slot` of the row's result. */
static __device__ __forceinline__ void sink_put_entry(const struct sink &sink, uint32_t slot,
                                                      const struct sink_entry &entry)
{
    if (sink_lacks_page(sink, entry.position)) {
        sink.indices[slot] = -1;
        return;
    }
    __stcg(&sink.indices[slot], sink_index(sink, entry));
    if (sink.values != nullptr) {
        sink.values[slot] = score_value(entry.score);
    }
}

/*
 * Writes position_of(i) as entry i < count of the result, where the sink is not plain; what is
 * looked up for BATCH entries of a thread is asked for before any of it is waited for. All THREADS
 * threads call.
 */
template <int THREADS, int BATCH, class Position>
static __device__ __forceinline__ void sink_put_batches(const struct sink &sink, uint32_t count,
                                                        const Position &position_of)
{
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < count; first += BATCH * THREADS) {
        struct sink_entry entry[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            entry[b] = sink_look_up(sink, position_of(min(first + b * THREADS, count - 1)));
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (first + b * THREADS < count) {
                sink_put_entry(sink, first + b * THREADS, entry[b]);
            }
        }
    }
}

/* Writes sorted entries as the result; BATCH as above. All THREADS threads call, after a barrier.
 */
template <int THREADS, int BATCH = 1>
static __device__ __forceinline__ void sink_put_sorted(const struct sink &sink,
                                                       const uint64_t *entries, uint32_t count)
{
    if (BATCH > 1 && !sink.plain) {
        sink_put_batches<THREADS, BATCH>(sink, count,
                                         [&](uint32_t i) { return ~(uint32_t)entries[i]; });
        return;
    }
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        sink_put(sink, i, ~(uint32_t)entries[i]);
    }
}

/* Whether a result is positions with an offset, which is 0 of a plain one. */
static __device__ __forceinline__ bool sink_adds(const struct sink &sink)
{
    return sink.pages == nullptr && sink.values == nullptr;
}

/*
 * Writes score_of(i), the number of what stands at position_of(i), as value i < count of the
 * result: the very bits of the row's score, but for the zeros and NaN, which are looked up. All
 * THREADS threads call.
 */
template <int THREADS, class Position, class Score>
static __device__ __forceinline__ void sink_put_scores(const struct sink &sink, uint32_t count,
                                                       const Position &position_of,
                                                       const Score &score_of)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        float value = score_of(i);
        if (!(fabsf(value) > 0.0f)) {
            value = score_value(sink.scores[min(position_of(i), sink.last)]);
        }
        __stcg(&sink.values[i], value);
    }
}

/*
 * Writes staged positions (in shared memory, aligned to 16 bytes) as the result, in whole sectors;
 * BATCH as above. `scores`, or NULL: what is known of theirs. All THREADS threads call, after a
 * barrier.
 */
template <int THREADS, int BATCH = 1>
static __device__ __forceinline__ void sink_put_staged(struct sink sink, const uint32_t *stage,
                                                       uint32_t k, const float *scores = nullptr)
{
    if (scores != nullptr && sink.values != nullptr) {
        sink_put_scores<THREADS>(
            sink, k, [&](uint32_t i) { return stage[i]; }, [&](uint32_t i) { return scores[i]; });
        sink.values = nullptr;
    }
    if (sink_adds(sink) && reinterpret_cast<uintptr_t>(sink.indices) % 16 == 0) {
        const uint32_t offset = (uint32_t)sink.offset;
        for (uint32_t i = threadIdx.x; i < k / 4; i += THREADS) {
            const uint4 four = reinterpret_cast<const uint4 *>(stage)[i];
            __stcg(reinterpret_cast<uint4 *>(sink.indices) + i,
                   make_uint4(four.x + offset, four.y + offset, four.z + offset, four.w + offset));
        }
        if (threadIdx.x < k % 4) {
            const uint32_t last = k - k % 4 + threadIdx.x;
            __stcg(&sink.indices[last], (int32_t)(stage[last] + offset));
        }
        return;
    }
    if (BATCH > 1 && !sink_adds(sink)) {
        sink_put_batches<THREADS, BATCH>(sink, k, [&](uint32_t i) { return stage[i]; });
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
    block_sync<THREADS>();
    sort_descending<THREADS>(entries, (uint32_t)length);
    sink_put_sorted<THREADS>(sink, entries, (uint32_t)length);
    block_sync<THREADS>();
}

#endif
