/*
 * stream_first.cuh - the first boundary of a block of the stream families, for which all its warps
 * wait: found by the finishers, who are more than the samplers and have nothing else to do yet.
 */
#ifndef TOPKSEL_CUDA_STREAM_FIRST_CUH
#define TOPKSEL_CUDA_STREAM_FIRST_CUH

#include "stream_sample.cuh"

namespace
{

#if __CUDA_ARCH__ >= 900
/*
 * The bins that hold some ranks of a sample counted into the finishers' bins, which are clear
 * afterwards: as ranks_in_bins, but by all finishers, since all of the block waits for it. Two
 * barriers; the first warp may read the result, the others need it not.
 */
template <class Roles>
__device__ __forceinline__ void first_ranks(const uint32_t (&need)[BOUNDARY_RANKS])
{
    constexpr int THREADS = Roles::THREADS, EACH = TOPK_BINS / THREADS;
    auto &shared = state<Roles>();
    const uint32_t first = TOPK_BINS - (threadIdx.x + 1) * EACH;
    uint32_t count[EACH];
    const uint32_t own = load_bins<EACH>(shared.finish.bins + first, count);
    clear_own<EACH>(shared.finish.bins + first);
    const uint32_t prefix = warp_prefix(own);
    if (lane_index() == 31) {
        shared.finish.rank.totals[warp_index()] = prefix;
    }
    block_sync<THREADS>();
    const uint32_t other =
        lane_index() < warp_index() ? shared.finish.rank.totals[lane_index()] : 0;
    const uint32_t above = __reduce_add_sync(WARP_ALL, other) + prefix - own;
    bool here[BOUNDARY_RANKS], any = false; /* in one thread each; of rank 0 in none */
#pragma unroll
    for (uint32_t r = 0; r < BOUNDARY_RANKS; r++) {
        here[r] = above < need[r] && need[r] <= above + own;
        any = any || here[r];
    }
    if (any) { /* ranks are near each other: all of them side by side */
        struct rank_bin found[BOUNDARY_RANKS];
#pragma unroll
        for (uint32_t r = 0; r < BOUNDARY_RANKS; r++) {
            found[r] = rank_within(count, first, above, need[r], 0);
        }
#pragma unroll
        for (uint32_t r = 0; r < BOUNDARY_RANKS; r++) {
            if (here[r]) {
                shared.first_found[r] = found[r];
            }
        }
    }
    block_sync<THREADS>();
}

/* A thread's part of a row's sample, on its way. */
template <int THREADS>
struct first_sample {
    struct sample_source<THREADS> source;
    score_quad four[SAMPLE_BATCH];
    int32_t row, length;
    bool exists;
};

template <class Roles>
__device__ __forceinline__ void first_ask(const struct select_params &params,
                                          const struct task &task, int32_t row, int32_t length,
                                          struct first_sample<Roles::THREADS> &sample)
{
    sample.row = row;
    sample.length = length;
    sample.exists = length > max(Roles::CANDIDATES, task.k); /* else the whole row fits */
    if (sample.exists) {
        sample.source.units = sample_units_of_row(params, task, row, length);
        sample.source.load(threadIdx.x, sample.four);
    }
}

/*
 * Asks for the sample of the row that the share probably begins with, as soon as there is a task.
 * Every thread reads the length: should it change meanwhile, those ask again who had another.
 */
template <class Roles>
__device__ __forceinline__ void first_guess(const struct select_params &params,
                                            struct first_sample<Roles::THREADS> &sample)
{
    const uint32_t step = share_step();
    launch_wait();
    const struct task task = task_read(params);
    const int32_t row = share_guess(task, step).row;
    sample.row = -1;
    sample.length = 0;
    sample.exists = false;
    if (row < task.num_rows && guess_is_likely(task, params.snap)) {
        first_ask<Roles>(params, task, row, clamp_length(task, task_length(task, row)), sample);
    }
}

/*
 * Proposes the boundary of a block's first job. The finishers guess which row it is, pass the
 * block's barrier, with which the share is known, and ask for another sample where it was another
 * row. The first warp does the rest when all have counted. (The parameters are a copy, for through
 * a reference the function would ask memory for them.)
 */
template <class Roles>
__device__ __noinline__ void propose_first(const struct select_params params)
{
    constexpr int THREADS = Roles::THREADS;
    auto &shared = state<Roles>();
    struct job &job = job_at<Roles>(0);
    struct first_sample<THREADS> sample;
    first_guess<Roles>(params, sample);
    block_meet();
    wait_for(shared.hand_over.posted, 0);
    score_t edge_score;
    const bool is_edge = edge_load<Roles>(job, threadIdx.x, edge_score);
    if (!job.exists) {
        sample.exists = false;
    } else if (sample.row != job.segment.row || sample.length != job.segment.length) {
        first_ask<Roles>(params, shared.task, job.segment.row, job.segment.length, sample);
    }
    uint32_t ranks[BOUNDARY_RANKS] = {};
    bool sampled = sample.exists; /* the same in all threads: it follows from the job */
    if (sampled) {
        const uint32_t size = SAMPLE_UNIT << sample.source.units.sampled_log2;
        boundary_ranks(size, (uint32_t)job.segment.length, (uint32_t)shared.task.k, params.margin,
                       ranks);
        sampled = ranks[RANK_LOW] < size;
    }
    if (sampled) {
        const auto count = [&](uint32_t key) {
            atomicAdd(&shared.finish.bins[coarse_bin(key)], 1u);
        };
        sample.source.visit_loaded(threadIdx.x, sample.four, count);
        sample.source.each_from(threadIdx.x + SAMPLE_BATCH * THREADS, count);
    }
    block_sync<THREADS>();
    mbarrier_hand_over(&shared.hand_over.sampled, threadIdx.x == 0);
    if (sampled) {
        first_ranks<Roles>(ranks);
    }
    if (threadIdx.x >= 32) {
        return;
    }
    if (is_edge) {
        job.edges[threadIdx.x] = edge_score;
    }
    struct boundary boundary = {KEY_NAN, 0xffffffffu, 0, first_shift(KEY_NAN), KEY_NAN};
    if (sampled) {
        boundary = boundary_of_bins(sample.source.units, job.segment.skew, ranks,
                                    shared.first_found, shared.finish.bins);
    }
    __syncwarp();
    post_boundary<Roles>(0, boundary);
}
#endif

} // namespace

#endif
