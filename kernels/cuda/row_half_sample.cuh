/*
 * row_half_sample.cuh - what a sample of a row of 16-bit scores in shared memory says: a boundary,
 * and bins for what reaches it. Part of row_half.cuh.
 */
#ifndef TOPKSEL_CUDA_ROW_HALF_SAMPLE_CUH
#define TOPKSEL_CUDA_ROW_HALF_SAMPLE_CUH

#include "row_half_state.cuh"

namespace
{

/* What a sample proposes: 16-bit keys from `key` on; that of a NaN admits all. */
struct proposal {
    uint32_t key, shift; /* and bins for a search among entries */
};

/* The sample has four scores of every STRETCH, however runs are cut. */
#define STRETCH 32u

/* Counts a sample into bins: four scores of each whole run, at places that differ, so that lanes
 * meet in no bank. bin(score) is at least TOPK_BINS for one that does not count. */
template <int THREADS, int SCORES, class Bin>
__device__ __forceinline__ void count_sample(const struct row_view &row, const Bin &bin)
{
    constexpr uint32_t RUN = RUN_OF(SCORES);
    const uint32_t within = SAMPLED * (lane_index() / (64 / RUN) % (RUN / SAMPLED));
#pragma unroll
    for (uint32_t w = 0; w < WORDS_OF(SCORES); w++) {
        const uint32_t at = run_at<THREADS, SCORES>(w);
        if (at % STRETCH == 0 && at >= row.skew && at + STRETCH <= row.end) {
            const uint2 four = *reinterpret_cast<const uint2 *>(half_row() + at + within);
            const uint32_t pair[2] = {four.x, four.y};
#pragma unroll
            for (uint32_t i = 0; i < SAMPLED; i++) {
                const uint32_t where = bin((score_t)(pair[i / 2] >> i % 2 * 16));
                if (where < TOPK_BINS) {
                    atomicAdd(&half_state().bins[where], 1u);
                }
            }
        }
    }
}

/*
 * A coarse bin has too many of the sample: looks again, value by value, for the rank `need` in it.
 * The low end of what is proposed. Three barriers and one before, behind which the bins are clear.
 */
template <int THREADS, int SCORES>
__device__ __noinline__ uint32_t look_within(const struct row_view row, uint32_t coarse,
                                             uint32_t need)
{
    auto &shared = half_state();
    const uint32_t low = half_entry_from(coarse_floor(coarse)) >> 16;
    const uint32_t end =
        coarse + 1 < TOPK_BINS ? half_entry_from(coarse_floor(coarse + 1)) >> 16 : 0x10000u;
    const uint32_t span = end - low, shift = span > 0 ? range_shift(span - 1) : 0;
    block_sync<THREADS>(); /* the bins are clear */
    count_sample<THREADS, SCORES>(row, [&](score_t score) {
        const uint32_t offset = half_key(score) - low;
        return offset < span ? offset >> shift : TOPK_BINS;
    });
    block_sync<THREADS>();
    const struct rank_bin found = find_rank<THREADS>(shared.bins, shared.rank, need);
    clear_bins<THREADS>(shared.bins);
    return found.total < need ? low : low + (found.bin << shift);
}

template <int THREADS, int SCORES>
__device__ __forceinline__ struct proposal propose(const struct row_view &row, uint32_t k,
                                                   float margin)
{
    auto &shared = half_state();
    const uint32_t first = (row.skew + STRETCH - 1) / STRETCH, end = row.end / STRETCH;
    const uint32_t size = end > first ? (end - first) * SAMPLED : 0;
    const struct sample_ranks ranks = sample_ranks_of(size, (uint32_t)row.length, k, margin);
    struct proposal proposal = {HALF_KEY_NAN, range_shift(KEY_MAX - (HALF_KEY_NAN << 16))};
    if (ranks.low >= size) {
        return proposal;
    }
    count_sample<THREADS, SCORES>(
        row, [&](score_t score) { return coarse_bin(key_of(score_number(score))); });
    block_sync<THREADS>();
    uint32_t high_bin;
    const struct rank_bin found =
        find_ranks<THREADS, true>(shared.bins, shared.rank, ranks.low, ranks.high, &high_bin);
    clear_bins<THREADS>(shared.bins);
    const uint32_t need = ranks.low - min(found.above, ranks.low);
    uint32_t high = KEY_MAX;
    if (ranks.high > 0 && high_bin + 1 < TOPK_BINS) {
        high = half_entry_from(coarse_floor(high_bin + 1)) | 0xffffu;
    }
    proposal.key = half_entry_from(coarse_floor(found.bin)) >> 16;
    if (found.count - need > ranks.low / 8 + 16) { /* choice: an eighth more at most */
        proposal.key = look_within<THREADS, SCORES>(row, found.bin, need);
    }
    const uint32_t low = proposal.key << 16;
    high = max(high, low | 0xffffu);
    proposal.shift = range_shift(high - low + (high - low) / 512); /* the highest bin: above */
    return proposal;
}

} // namespace

#endif
