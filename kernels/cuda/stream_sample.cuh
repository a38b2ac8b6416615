/*
 * stream_sample.cuh - the samplers of a block: they find the parts of its share, one after the
 * other, and propose a boundary for each while earlier ones are scanned.
 *
 * All samplers count the sample into coarse bins; the first warp does the rest. The first part of a
 * block is proposed by the finishers (stream_first.cuh).
 */
#ifndef TOPKSEL_CUDA_STREAM_SAMPLE_CUH
#define TOPKSEL_CUDA_STREAM_SAMPLE_CUH

#include "stream_state.cuh"

namespace
{

#define SAMPLE_THREADS (32 * TOPK_STREAM_SAMPLE_WARPS)
#define SAMPLERS_BATCH                                                                             \
    6 /* choice: loads of four scores in flight a thread; 2048 scores are one batch */
static_assert(TOPK_STREAM_SAMPLE_WARPS > 1, "one warp finds the boundary, another the next part");
static_assert(2 * SCORE_GROUP <= 32, "one warp has the scores at a part's ends");
#define WITHIN_BATCH 8 /* choice: the same of the one warp that looks again */
#define BIN_BLOCKS 16  /* a warp looks at a rank's block of bins, then within */
#define BLOCK_BINS (TOPK_BINS / BIN_BLOCKS)
static_assert(BLOCK_BINS == 4 * 32 && BIN_BLOCKS <= 32, "16 bytes a lane, a block a lane");

/*
 * The bins that hold some ranks, from 1, from the top, and their counts; as find_rank, for a few at
 * once. One warp.
 */
template <uint32_t RANKS>
__device__ __forceinline__ void ranks_in_bins(const uint32_t *bins, const uint32_t (&need)[RANKS],
                                              struct rank_bin (&found)[RANKS])
{
    uint32_t block = 0; /* counts of a block of bins: lane i has the i-th from the top */
#pragma unroll
    for (uint32_t i = 0; i < BIN_BLOCKS; i++) {
        const uint4 four =
            reinterpret_cast<const uint4 *>(bins)[(BIN_BLOCKS - 1 - i) * 32 + lane_index()];
        const uint32_t sum = __reduce_add_sync(WARP_ALL, four.x + four.y + four.z + four.w);
        block = lane_index() == i ? sum : block;
    }
    const uint32_t blocks = warp_prefix(block), total = __shfl_sync(WARP_ALL, blocks, 31);
#pragma unroll
    for (uint32_t r = 0; r < RANKS; r++) {
        const uint32_t reached = __ballot_sync(WARP_ALL, blocks >= need[r]);
        const int owner = max(__ffs((int)reached), 1) - 1; /* none: void, but within the bins */
        const uint32_t first = (BIN_BLOCKS - (uint32_t)owner) * BLOCK_BINS - 4 * (lane_index() + 1);
        const uint4 four = *reinterpret_cast<const uint4 *>(bins + first);
        const uint32_t count[4] = {four.w, four.z, four.y, four.x}; /* from the top */
        const uint32_t own = four.x + four.y + four.z + four.w;
        const uint32_t prefix = __shfl_sync(WARP_ALL, blocks - block, owner) + warp_prefix(own);
        const int holder = max(__ffs((int)__ballot_sync(WARP_ALL, prefix >= need[r])), 1) - 1;
        uint32_t above = prefix - own, bin = first + 3, in_bin = count[0];
#pragma unroll
        for (uint32_t i = 1; i < 4; i++) {
            const bool next = bin == first + 4 - i && above + in_bin < need[r];
            above += next ? in_bin : 0;
            bin -= next ? 1u : 0u;
            in_bin = next ? count[i] : in_bin;
        }
        found[r].bin = __shfl_sync(WARP_ALL, bin, holder);
        found[r].above = __shfl_sync(WARP_ALL, above, holder);
        found[r].count = __shfl_sync(WARP_ALL, in_bin, holder);
        found[r].total = total;
    }
}

/* One warp, after its lanes have met; they meet again before the bins are used. */
__device__ __forceinline__ void clear_sample_bins(uint32_t *bins)
{
#pragma unroll
    for (uint32_t i = 0; i < BIN_BLOCKS; i++) {
        reinterpret_cast<uint4 *>(bins)[i * 32 + lane_index()] = make_uint4(0, 0, 0, 0);
    }
}

/*
 * The position behind the stratum that holds the need-th sample with this key: of a very long row,
 * where one unit stands for many thousand scores, its own end would be far too early. One warp.
 */
__device__ __forceinline__ uint32_t sample_position(const struct sample_units &units, uint32_t skew,
                                                    uint32_t key, uint32_t need)
{
    const uint32_t count = 1u << units.sampled_log2;
    uint32_t seen = 0;
    for (uint32_t first = 0; first < count; first += 32) {
        const score_t *unit = sample_unit_at(units, min(first + lane_index(), count - 1));
        uint32_t equal = 0;
#pragma unroll
        for (uint32_t i = 0; i < SAMPLE_UNIT; i++) {
            const float number = quad_number(quad_load(unit, i / 4), i % 4);
            equal += key_of(number) == key ? 1u : 0u;
        }
        const uint32_t prefix = seen + warp_prefix(first + lane_index() < count ? equal : 0);
        const uint32_t reached = __ballot_sync(WARP_ALL, prefix >= need);
        if (reached != 0) {
            const uint32_t i = first + (uint32_t)__ffs((int)reached) - 1;
            return sample_stratum_end(units, i) - skew;
        }
        seen = __shfl_sync(WARP_ALL, prefix, 31);
    }
    return 0xffffffffu;
}

/*
 * Too many of the sample are in [low, high], of which `need` are wanted: looks again within, until
 * they are few or one key. Of such a plateau only the first positions are proposed. One warp, whose
 * loads wait behind all that the ring has asked for: so the sample is passed over once a look.
 */
__device__ __noinline__ struct boundary look_within(const struct sample_units units, uint32_t skew,
                                                    uint32_t low, uint32_t high, uint32_t need,
                                                    uint32_t surplus_max, uint32_t *bins)
{
    const struct sample_source<32, WITHIN_BATCH> source = {
        units
    };
    struct boundary boundary = {KEY_NAN, 0xffffffffu, 0, 0, 0};
    for (;;) {
        const uint32_t shift = range_shift(high - low);
        uint32_t least = KEY_MAX, most = 0; /* of the sampled keys in [low, high] */
        source.each_of_thread(lane_index(), [&](uint32_t key) {
            if (key >= low && key <= high) {
                least = min(least, key);
                most = max(most, key);
                atomicAdd(&bins[(key - low) >> shift], 1u);
            }
        });
        least = __reduce_min_sync(WARP_ALL, least);
        most = __reduce_max_sync(WARP_ALL, most);
        if (least >= most) { /* or there are none any more: the row changed */
            clear_sample_bins(bins);
            boundary.key = least;
            boundary.until = sample_position(units, skew, least, need);
            return boundary;
        }
        const uint32_t rank[1] = {need};
        struct rank_bin bin[1];
        ranks_in_bins(bins, rank, bin);
        const struct rank_bin &found = bin[0];
        __syncwarp();
        clear_sample_bins(bins);
        __syncwarp();
        if (found.total < need) {
            return boundary; /* the row changed while it was read: everything is admitted */
        }
        need -= found.above;
        low += found.bin << shift;
        high = min(low + min(high - low, (1u << shift) - 1u), most);
        low = max(low, least);
        if (found.count - need <= surplus_max) {
            boundary.key = low;
            return boundary;
        }
    }
}

/*
 * As sample_ranks_of(), but deeper than one unit: where a row rises or falls, neighbours tell of
 * one place only, which may be the wrong one of its stratum.
 */
__device__ __forceinline__ struct sample_ranks unit_ranks_of(uint32_t size, uint32_t length,
                                                             uint32_t k, float margin)
{
    struct sample_ranks ranks = sample_ranks_of(size, length, k, margin);
    ranks.low = max(ranks.low, SAMPLE_UNIT + 1);
    return ranks;
}

/* The ranks in a sample that a boundary takes; the lowest is that of the fallback. */
#define BOUNDARY_RANKS 3
enum boundary_rank { RANK_LOW, RANK_HIGH, RANK_FALLBACK };

__device__ __forceinline__ void boundary_ranks(uint32_t size, uint32_t length, uint32_t k,
                                               float margin, uint32_t (&ranks)[BOUNDARY_RANKS])
{
    const struct sample_ranks near = unit_ranks_of(size, length, k, margin);
    ranks[RANK_LOW] = near.low;
    ranks[RANK_HIGH] = near.high;
    const uint32_t last = sample_ranks_of(size, length, k, 3.0f * margin).low;
    ranks[RANK_FALLBACK] = min(max(last, 4 * SAMPLE_UNIT), size);
}

/* The boundary by the bins that hold these ranks of a sample of `size` scores. `bins` are zero, and
 * again when the warp's lanes have met. One warp. */
__device__ __forceinline__ struct boundary
boundary_of_bins(const struct sample_units &units, uint32_t skew,
                 const uint32_t (&ranks)[BOUNDARY_RANKS],
                 const struct rank_bin (&found)[BOUNDARY_RANKS], uint32_t *bins)
{
    const uint32_t size = SAMPLE_UNIT << units.sampled_log2;
    const uint32_t fallback =
        ranks[RANK_FALLBACK] < size ? coarse_floor(found[RANK_FALLBACK].bin) : KEY_NAN;
    const struct rank_bin &low = found[RANK_LOW];
    /* Choice: about a quarter more candidates cost less than another look. */
    const uint32_t surplus_max = ranks[RANK_LOW] / 4 + 16;
    const uint32_t need = ranks[RANK_LOW] - low.above;
    struct boundary boundary = {coarse_floor(low.bin), 0xffffffffu, 0, 0, 0};
    if (low.count - need > surplus_max) {
        const uint32_t high = low.bin + 1 < TOPK_BINS ? coarse_floor(low.bin + 1) - 1 : KEY_MAX;
        boundary = look_within(units, skew, boundary.key, high, need, surplus_max, bins);
    }
    boundary.sampled = size;
    boundary.shift = ranks[RANK_HIGH] > 0 ? bracket_shift(boundary.key, found[RANK_HIGH].bin)
                                          : first_shift(boundary.key);
    boundary.fallback = min(fallback, boundary.key);
    return boundary;
}

/* The boundary by the sample of `size` scores that was counted into bins, which are clear again
 * when the warp's lanes have met. One warp. */
__device__ __forceinline__ struct boundary
boundary_of_sample(const struct sample_units &units, const struct segment &segment, uint32_t k,
                   const struct select_params &params, uint32_t *bins)
{
    uint32_t ranks[BOUNDARY_RANKS];
    boundary_ranks(SAMPLE_UNIT << units.sampled_log2, (uint32_t)segment.length, k, params.margin,
                   ranks);
    struct rank_bin found[BOUNDARY_RANKS];
    ranks_in_bins(bins, ranks, found);
    __syncwarp();
    clear_sample_bins(bins);
    __syncwarp();
    return boundary_of_bins(units, segment.skew, ranks, found, bins);
}

__device__ __forceinline__ struct sample_units
sample_units_of_row(const struct select_params &params, const struct task &task, int32_t row,
                    int32_t length)
{
    const uint32_t skew = row_skew(task, row);
    return sample_units_of(task_row(task, row) - skew, skew, (uint32_t)length, params);
}

/* What is sampled of a part's row; nothing where no boundary is needed or none would help. */
template <class Roles>
__device__ __forceinline__ bool sample_wanted(const struct select_params &params,
                                              const struct segment &segment,
                                              struct sample_units &units)
{
    const struct task &task = state<Roles>().task;
    if (segment.length <= max(Roles::CANDIDATES, task.k)) {
        return false; /* the whole row fits */
    }
    units = sample_units_of_row(params, task, segment.row, segment.length);
    const uint32_t size = SAMPLE_UNIT << units.sampled_log2, length = (uint32_t)segment.length;
    return unit_ranks_of(size, length, (uint32_t)task.k, params.margin).low < size;
}

#if __CUDA_ARCH__ >= 900
/* The segment of the n-th job, or that there is none. One thread. */
template <class Roles>
__device__ __forceinline__ void post_segment(const struct select_params &params, uint32_t n,
                                             struct walk &walk)
{
    auto &shared = state<Roles>();
    struct job &job = job_at<Roles>(n);
    if (n >= JOBS) {
        ring_wait(&shared.hand_over.freed[n % JOBS], (n / JOBS - 1) & 1);
    }
    job.exists = walk_next(shared.task, shared.share, params.part_scores, walk, job.segment);
    mbarrier_arrive(&shared.hand_over.posted[n % JOBS]);
}

/* The score at an end of a job's part that this thread has, if it has one (edge_position). */
template <class Roles>
__device__ __forceinline__ bool edge_load(const struct job &job, uint32_t thread, score_t &score)
{
    if (!job.exists || thread >= 2 * SCORE_GROUP) {
        return false;
    }
    const uint32_t edge = edge_position(job.segment, thread);
    if (edge < job.segment.begin || edge >= job.segment.end) {
        return false;
    }
    score = row_of<Roles>(job.segment)[edge];
    return true;
}

/* The boundary of the n-th job is known, to the first lane of the warp that calls. */
template <class Roles>
__device__ __forceinline__ void post_boundary(uint32_t n, const struct boundary &boundary)
{
    const bool first = lane_index() == 0;
    if (first) {
        struct job &job = job_at<Roles>(n);
        job.boundary = boundary;
        job.admission = admission_of(boundary.key, boundary.until);
    }
    mbarrier_hand_over(&state<Roles>().hand_over.ready[n % JOBS], first);
}

/*
 * Proposes the boundary of the n-th job, and fetches the scores at its ends; done by the samplers,
 * who have met since the job is known. The first warp does the rest when all have counted; the bins
 * are zero before, and again when the samplers have met once more.
 */
template <class Roles>
__device__ __noinline__ void propose(const struct select_params &params, uint32_t n)
{
    auto &shared = state<Roles>();
    struct job &job = job_at<Roles>(n);
    uint32_t *bins = shared.sample_bins;
    const uint32_t thread = threadIdx.x - 32 * Roles::FIRST_SAMPLER;
    score_t edge_score;
    const bool is_edge = edge_load<Roles>(job, thread, edge_score);
    struct sample_source<SAMPLE_THREADS, SAMPLERS_BATCH> source;
    const bool sampled = job.exists && sample_wanted<Roles>(params, job.segment, source.units);
    if (sampled) {
        source.each_of_thread(thread, [&](uint32_t key) { atomicAdd(&bins[coarse_bin(key)], 1u); });
    }
    team_sync<TEAM_SAMPLERS, SAMPLE_THREADS>();
    if (thread >= 32) {
        return;
    }
    struct boundary boundary = {KEY_NAN, 0xffffffffu, 0, first_shift(KEY_NAN), KEY_NAN};
    if (is_edge) {
        job.edges[thread] = edge_score;
    }
    if (sampled) {
        boundary =
            boundary_of_sample(source.units, job.segment, (uint32_t)shared.task.k, params, bins);
    }
    __syncwarp();
    post_boundary<Roles>(n, boundary);
}

/*
 * The samplers' work, part after part, but for the first; one more job says that there are none
 * left. The last warp looks for the next part while the first finds this one's boundary; for the
 * first part while the share is not yet known, as it probably is. They pass the block's barrier.
 */
template <class Roles>
__device__ __noinline__ void sample(const struct select_params params)
{
    const uint32_t step = share_step();
    launch_wait();
    const struct task task = task_read(params);
    auto &shared = state<Roles>();
    struct job &first = job_at<Roles>(0);
    const bool walks = threadIdx.x == 32 * (Roles::PRODUCER - 1);
    const struct share guess = share_guess(task, step);
    struct walk walk = walk_begin(guess);
    if (walks) {
        first.exists = walk_next(task, guess, params.part_scores, walk, first.segment);
    }
    __syncwarp();
    block_meet();
    if (walks) {
        if (!shared.share.as_guessed) {
            walk = walk_begin(shared.share);
            first.exists =
                walk_next(shared.task, shared.share, params.part_scores, walk, first.segment);
        }
        mbarrier_arrive(&shared.hand_over.posted[0]);
    }
    __syncwarp();
    team_sync<TEAM_SAMPLERS, SAMPLE_THREADS>();
    for (uint32_t n = 0; job_at<Roles>(n).exists; n++) {
        if (walks) {
            post_segment<Roles>(params, n + 1, walk);
        }
        __syncwarp();
        team_sync<TEAM_SAMPLERS, SAMPLE_THREADS>();
        propose<Roles>(params, n + 1);
    }
}
#endif

} // namespace

#endif
