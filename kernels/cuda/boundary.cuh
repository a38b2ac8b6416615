/*
 * boundary.cuh - the proposal: a key that, by a sample of the row, has more than K scores at or
 * above it, but not many more. A wrong proposal costs time, never exactness.
 *
 * The sample is made of 64-byte units at the middles of equal strata of the row: single scores
 * would cost a 32-byte sector each. Their number is a power of two.
 */
#ifndef TOPKSEL_CUDA_BOUNDARY_CUH
#define TOPKSEL_CUDA_BOUNDARY_CUH

#include "rank.cuh"
#include "select.h"

#define SAMPLE_BATCH 4 /* choice: 16-byte loads in flight a thread */

template <int THREADS>
struct sample_source {
    const float *row; /* virtual position 0, 64-byte aligned; not all of the first unit is ours */
    uint32_t first_unit, num_units; /* whole units of the row */
    uint32_t sampled_log2;          /* units sampled */

    template <class Visit>
    __device__ __forceinline__ void each(const Visit &visit) const /* visit(key) */
    {
        const uint32_t quads = TOPK_SAMPLE_UNIT / 4 << sampled_log2;
        for (uint32_t first = threadIdx.x; first < quads; first += SAMPLE_BATCH * THREADS) {
            float4 four[SAMPLE_BATCH];
#pragma unroll
            for (int i = 0; i < SAMPLE_BATCH; i++) {
                uint32_t quad = first + i * THREADS;
                if (quad < quads) {
                    uint64_t middle = (uint64_t)(quad / (TOPK_SAMPLE_UNIT / 4)) * 2 + 1;
                    uint64_t unit = first_unit + (middle * num_units >> (sampled_log2 + 1));
                    const float *scores = row + unit * TOPK_SAMPLE_UNIT;
                    four[i] = __ldg(reinterpret_cast<const float4 *>(scores) +
                                    quad % (TOPK_SAMPLE_UNIT / 4));
                }
            }
#pragma unroll
            for (int i = 0; i < SAMPLE_BATCH; i++) {
                if (first + i * THREADS < quads) {
                    visit(key_of(four[i].x));
                    visit(key_of(four[i].y));
                    visit(key_of(four[i].z));
                    visit(key_of(four[i].w));
                }
            }
        }
    }
};

/*
 * The rank in a sample of `size` out of `length` scores below which, but for a miss beyond `margin`
 * standard deviations of a random sample, at least k scores of the row lie.
 */
static __device__ __forceinline__ uint32_t sample_rank(uint32_t size, uint32_t length, uint32_t k,
                                                       float margin)
{
    float share = __fdividef((float)size, (float)length);
    float mean = (float)k * share;
    /* Without replacement: the deviation shrinks as the sample covers the row. */
    float spread = mean * (1.0f - __fdividef((float)k, (float)length)) * (1.0f - share);
    float deviation = spread > 0.0f ? spread * rsqrtf(spread) : 0.0f;
    return (uint32_t)(mean + margin * deviation + 2.0f);
}

/*
 * The boundary key of a row of virtual positions [skew, skew + length); KEY_NAN (admit all) when
 * the row is too short for a sample. bins and coarse are zero at the call, and again after the
 * caller's next barrier. *scores_p receives the scores sampled.
 */
template <int THREADS>
static __device__ __forceinline__ uint32_t
sample_boundary(const float *row, uint32_t skew, uint32_t length, uint32_t k, float margin,
                const struct select_params &params, uint32_t *bins, uint32_t *coarse,
                struct rank_shared &shared, uint32_t *scores_p)
{
    struct sample_source<THREADS> source;
    source.row = row;
    source.first_unit = (skew + TOPK_SAMPLE_UNIT - 1) / TOPK_SAMPLE_UNIT;
    source.num_units = (skew + length) / TOPK_SAMPLE_UNIT - source.first_unit;
    uint32_t wanted = max(length / (uint32_t)params.sample_stride, (uint32_t)params.sample_min);
    wanted = min(min(wanted, (uint32_t)params.sample_max), length / 2) / TOPK_SAMPLE_UNIT;
    source.sampled_log2 = 31u - (uint32_t)__clz((int)max(wanted, 1u));
    const uint32_t size = TOPK_SAMPLE_UNIT << source.sampled_log2;
    const uint32_t rank = sample_rank(size, length, k, margin);
    *scores_p = 0;
    if (rank >= size) {
        return KEY_NAN;
    }
    *scores_p = size;
    source.each([&](uint32_t key) { atomicAdd(&coarse[coarse_bin(key)], 1u); });
    block_sync<THREADS>();
    struct rank_bin found = find_rank<THREADS>(coarse, shared, rank);
    clear_bins<THREADS>(coarse);
    const uint32_t surplus_max = rank / 4 + 2; /* choice: a quarter more candidates at most */
    uint32_t low = coarse_floor(found.bin), need = rank - found.above;
    uint32_t high = found.bin + 1 < TOPK_BINS ? coarse_floor(found.bin + 1) - 1 : KEY_MAX;
    /* Too many in one bin: look again within it, until they are few or one key. */
    while (found.count - need > surplus_max && low < high) {
        const uint32_t shift = range_shift(high - low);
        source.each([&](uint32_t key) {
            if (key >= low && key <= high) {
                atomicAdd(&bins[(key - low) >> shift], 1u);
            }
        });
        block_sync<THREADS>();
        found = find_rank<THREADS>(bins, shared, need);
        need -= found.above;
        low += found.bin << shift;
        high = low + min(high - low, (1u << shift) - 1u);
        clear_bins<THREADS>(bins);
        block_sync<THREADS>();
    }
    return low;
}

#endif
