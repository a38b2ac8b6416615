/*
 * boundary.cuh - the proposal: a key that, by a sample of the row, has more than K scores at or
 * above it, but not many more. A wrong proposal costs time, never exactness.
 *
 * The sample is made of units of 16 scores, one of each of equal strata of the row: single scores
 * would cost a 32-byte sector each. Their number is a power of two.
 */
#ifndef TOPKSEL_CUDA_BOUNDARY_CUH
#define TOPKSEL_CUDA_BOUNDARY_CUH

#include "rank.cuh"
#include "score.cuh"
#include "select.h"

#define SAMPLE_BATCH 4 /* choice: loads of four scores in flight a thread */
#define SAMPLE_UNIT ((uint32_t)TOPK_SAMPLE_UNIT)
#define UNIT_QUADS (SAMPLE_UNIT / 4)

/* Which units of a row are sampled. */
struct sample_units {
    const score_t *row;    /* virtual position 0; not all of the first unit is ours */
    uint32_t first, count; /* whole units of the row */
    uint32_t sampled_log2; /* units sampled */
};

/* Logarithms, rounded down; -1 of 0, below 0 where a quotient is below 1. */
static __device__ __forceinline__ int32_t number_log2(uint32_t number)
{
    return 31 - __clz((int)number);
}

static __device__ __forceinline__ int32_t quotient_log2(uint32_t number, uint32_t divisor)
{
    const int32_t log2 = number_log2(number) - number_log2(divisor);
    return log2 >= 0 && divisor << log2 > number ? log2 - 1 : log2;
}

static __device__ __forceinline__ struct sample_units
sample_units_of(const score_t *row, uint32_t skew, uint32_t length,
                const struct select_params &params)
{
    struct sample_units units;
    units.row = row;
    units.first = (skew + SAMPLE_UNIT - 1) / SAMPLE_UNIT;
    units.count = (skew + length) / SAMPLE_UNIT - units.first;
    /* By logarithms, so that nothing waits for a division. */
    const int32_t wanted = max(quotient_log2(length, (uint32_t)params.sample_stride),
                               number_log2((uint32_t)params.sample_min));
    const int32_t most = min(number_log2((uint32_t)params.sample_max), number_log2(length / 2));
    units.sampled_log2 = (uint32_t)max(min(wanted, most) - number_log2(SAMPLE_UNIT), 0);
    return units;
}

/*
 * Where the i-th of 2^sampled_log2 sampled units lies in a row, as a fraction of 2^32: somewhere in
 * its stratum, not at the same place in each, so that no period of the scores can hide.
 */
static __device__ __forceinline__ uint32_t sample_place(uint32_t i, uint32_t sampled_log2)
{
    return (i << (31 - sampled_log2) << 1) + (i * 0x9e3779b9u >> sampled_log2); /* golden ratio */
}

/* The i-th sampled unit. */
static __device__ __forceinline__ const score_t *sample_unit_at(const struct sample_units &units,
                                                                uint32_t i)
{
    const uint32_t unit = units.first + __umulhi(sample_place(i, units.sampled_log2), units.count);
    return units.row + (uint64_t)unit * SAMPLE_UNIT;
}

/* The virtual position behind the i-th stratum, and behind its sampled unit. */
static __device__ __forceinline__ uint32_t sample_stratum_end(const struct sample_units &units,
                                                              uint32_t i)
{
    const bool last = i + 1 == 1u << units.sampled_log2;
    const uint32_t end = last ? 0 : (i + 1) << (31 - units.sampled_log2) << 1;
    const uint32_t unit = __umulhi(sample_place(i, units.sampled_log2), units.count);
    const uint32_t behind = last ? units.count : __umulhi(end, units.count);
    return (units.first + max(behind, unit + 1)) * SAMPLE_UNIT;
}

template <int THREADS, int BATCH = SAMPLE_BATCH>
struct sample_source {
    struct sample_units units;

    template <class Visit>
    __device__ __forceinline__ void each_in(uint32_t low, uint32_t high, const Visit &visit) const
    {
        each([&](uint32_t key) {
            if (key >= low && key <= high) {
                visit(key - low);
            }
        });
    }

    template <class Visit>
    __device__ __forceinline__ void each(const Visit &visit) const /* visit(key) */
    {
        each_of_thread(threadIdx.x, visit);
    }

    /* As above, by any THREADS threads: what the one of this number visits. */
    template <class Visit>
    __device__ __forceinline__ void each_of_thread(uint32_t thread, const Visit &visit) const
    {
        each_from(thread, visit);
    }

    /* What is visited from this quad on, one of a thread's own. */
    template <class Visit>
    __device__ __forceinline__ void each_from(uint32_t quad, const Visit &visit) const
    {
        for (uint32_t first = quad; first < UNIT_QUADS << units.sampled_log2;
             first += BATCH * THREADS) {
            score_quad four[BATCH];
            load(first, four);
            visit_loaded(first, four, visit);
        }
    }

    /* Asks for a batch, from one of a thread's own quads on, and visits it. */
    __device__ __forceinline__ void load(uint32_t first, score_quad (&four)[BATCH]) const
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const uint32_t quad = first + i * THREADS;
            if (quad < UNIT_QUADS << units.sampled_log2) {
                four[i] = quad_load(sample_unit_at(units, quad / UNIT_QUADS), quad % UNIT_QUADS);
            }
        }
    }

    template <class Visit>
    __device__ __forceinline__ void visit_loaded(uint32_t first, const score_quad (&four)[BATCH],
                                                 const Visit &visit) const
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (first + i * THREADS < UNIT_QUADS << units.sampled_log2) {
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    visit(key_of(quad_number(four[i], e)));
                }
            }
        }
    }
};

/*
 * Ranks in a sample of `size` out of `length` scores: but for a miss beyond `margin` standard
 * deviations of a random sample, the k-th score of the row lies at or above `low`, the deeper, and
 * below `high`, which is 0 when nothing can be said.
 */
struct sample_ranks {
    uint32_t low, high;
};

static __device__ __forceinline__ struct sample_ranks
sample_ranks_of(uint32_t size, uint32_t length, uint32_t k, float margin)
{
    float share = __fdividef((float)size, (float)length);
    float mean = (float)k * share;
    /* Without replacement: the deviation shrinks as the sample covers the row. */
    float spread = mean * (1.0f - __fdividef((float)k, (float)length)) * (1.0f - share);
    float distance = margin * (spread > 0.0f ? spread * rsqrtf(spread) : 0.0f) + 2.0f;
    struct sample_ranks ranks = {(uint32_t)(mean + distance),
                                 (uint32_t)fmaxf(mean - distance, 0.0f)};
    return ranks;
}

/* The deeper of the two alone. */
static __device__ __forceinline__ uint32_t sample_rank(uint32_t size, uint32_t length, uint32_t k,
                                                       float margin)
{
    return sample_ranks_of(size, length, k, margin).low;
}

/* A bin width for a search from `low` up, where the answer probably lies up to `high`: what lies
 * between spreads over all bins but the highest, which takes what is above. */
static __device__ __forceinline__ uint32_t span_shift(uint32_t low, uint32_t high)
{
    const uint32_t span = max(high, low) - low;
    return range_shift(span + (span >> 9) + 1); /* so that span >> shift is at most 2044 */
}

/* The same up to the end of a coarse bin. */
static __device__ __forceinline__ uint32_t bracket_shift(uint32_t low, uint32_t high_bin)
{
    const uint32_t high = high_bin + 1 < TOPK_BINS ? coarse_floor(high_bin + 1) - 1 : KEY_PLUS_INF;
    return span_shift(low, high);
}

/* A proposal: the lowest key to admit, and where the answer then probably lies. */
struct boundary {
    uint32_t key;      /* KEY_NAN: admit all */
    uint32_t until;    /* of scores equal to it only at positions below; all ones: everywhere */
    uint32_t sampled;  /* scores sampled for it */
    uint32_t shift;    /* width of bins for a search among the admitted */
    uint32_t fallback; /* a lower key, should fewer than K be admitted */
};

#endif
