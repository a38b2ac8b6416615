/*
 * plain.cu - the plain exact family: any K, any width, any device.
 *
 * One block a row, rows dealt in turn. The cut is found by three histograms over the whole row (11,
 * 11 and 10 bits of the keys; fewer when a range happens to hold just what is needed), then one
 * more read writes the selected positions in order. Nothing is kept between the reads, so that
 * nothing can overflow.
 */
#include "emit.cuh"
#include "order.cuh"

#define THREADS TOPK_PLAIN_THREADS
#define BATCH 4 /* choice: loads in flight a thread */

namespace
{

/* A row in global memory as a source of keys. */
struct row_source {
    const score_t *scores;
    int32_t length;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
        for (int64_t first = threadIdx.x; first < length; first += (int64_t)BATCH * THREADS) {
            float score[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int64_t position = first + i * THREADS;
                score[i] = position < length ? score_number(scores[position]) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                uint32_t key = first + i * THREADS < length ? key_of(score[i]) : 0;
                if (key >= low && key <= high) {
                    visit(key - low);
                }
            }
        }
    }
};

struct plain_shared {
    alignas(16) uint32_t bins[TOPK_BINS];
    struct rank_shared rank;
    struct emit_shared emit;
    struct route_counts counts;
    int32_t given[2]; /* lengths of rows, in turn, as one thread reads them: they may change */
};

__global__ void __launch_bounds__(THREADS, TOPK_PLAIN_BLOCKS)
    plain_kernel(const __grid_constant__ struct select_params params)
{
    SHARED_OBJECT(struct plain_shared, shared);
    if (params.args == nullptr) {
        return;
    }
    for (int i = (int)threadIdx.x; i < TOPK_BINS; i += THREADS) {
        shared.bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        shared.rank.list_count = 0;
        shared.counts = {};
    }
    launch_release();
    launch_wait();
    const struct task task = task_read(params);
    uint64_t *entries = nullptr;
    if (params.by_value) {
        uint32_t room = 1;
        while (room < (uint32_t)params.k_max) {
            room *= 2;
        }
        entries = reinterpret_cast<uint64_t *>(params.workspace) + (size_t)blockIdx.x * room;
    }
    block_sync<THREADS>();
    uint32_t turn = 0;
    for (int32_t row = (int32_t)blockIdx.x; row < task.num_rows; row += (int32_t)gridDim.x) {
        if (threadIdx.x == 0) {
            shared.given[turn] = task_length(task, row);
        }
        block_sync<THREADS>();
        const int32_t given = shared.given[turn], length = clamp_length(task, given);
        turn ^= 1;
        if (threadIdx.x == 0) {
            shared.counts.clamped += length != given ? 1u : 0u;
            shared.counts.copied += length <= task.k ? 1u : 0u;
            shared.counts.direct += length > task.k ? 1u : 0u;
        }
        const score_t *scores = task_row(task, row);
        const struct sink sink =
            sink_open(*params.args, scores, row, row_offset(*params.args, row));
        if (length <= task.k) {
            select_whole<THREADS>(sink, length, task.k, params.by_value != 0, entries);
            continue;
        }
        const uint32_t k = (uint32_t)task.k;
        const struct row_source source = {scores, length};
        uint32_t below = 0;
        struct rank_cut cut =
            find_cut<THREADS, false>(source, KEY_NAN, KEY_MAX, range_shift(KEY_MAX - KEY_NAN), k,
                                     shared.bins, shared.rank, &below);
        const uint32_t take = cut.all ? 0xffffffffu : cut.take;
        const struct emit_totals totals = for_each_ranked<THREADS, BATCH>(
            length,
            [&](int64_t i, uint32_t *key, uint32_t *position) {
                *key = key_of(score_number(scores[i]));
                *position = (uint32_t)i;
            },
            [&](uint32_t key, uint32_t) {
                return key > cut.key ? EMIT_FIRST : (key == cut.key ? EMIT_SECOND : EMIT_NONE);
            },
            shared.emit,
            [&](uint32_t key, uint32_t position, enum emit_class kind, uint32_t above,
                uint32_t equal) {
                if (kind == EMIT_SECOND && equal >= take) {
                    return;
                }
                uint32_t slot = above + min(equal, take);
                if (slot >= k) { /* scores changed since the cut was found */
                    return;
                }
                if (entries != nullptr) {
                    entries[slot] = sort_entry(key, position);
                } else {
                    sink_put(sink, slot, position);
                }
            });
        block_sync<THREADS>();
        if (entries != nullptr) {
            const uint32_t written = min(k, totals.first + min(totals.second, take));
            sort_descending<THREADS>(entries, written);
            sink_put_sorted<THREADS>(sink, entries, written);
            block_sync<THREADS>();
        }
        if (threadIdx.x == 0) { /* three histograms at most, and the write */
            shared.counts.scores_read += 4 * (uint64_t)length;
        }
    }
    if (threadIdx.x == 0) {
        shared.counts.clamped += blockIdx.x == 0 ? task.clamped : 0;
        routes_add(params.args->routes, shared.counts);
    }
}

} // namespace

cudaError_t SCORE_LAUNCH(select_launch_plain)(const struct select_launch *launch,
                                              const struct select_params *params, bool load)
{
    return select_launch_kernel(plain_kernel, launch, params, load);
}
