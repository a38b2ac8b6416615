/*
 * share.cuh - which part of which rows a block works on.
 *
 * Every block gets an equal share of all valid scores, in one piece: the rows are laid end to end
 * in units of TOPK_UNIT_SCORES and cut into as many equal pieces as there are blocks. A row may
 * then lie in several blocks; whichever finishes its part last completes the row. Nobody waits, so
 * blocks may run in any order, one at a time if need be.
 *
 * With at most as many rows as blocks each row gets its own group of blocks instead, perhaps of
 * one, so that a block meets one row only: half of the multiprocessors can use all of the memory's
 * speed, and a row in one block needs no gathering.
 *
 * Lengths are read when the share is made and again when a row's turn comes. Where they changed in
 * between (memory of a client), blocks disagree about who has which part: then rows are missing or
 * wrong, but every row, part and block that comes out of here exists.
 *
 * Within a row, virtual positions count from the boundary of a sample's unit at or before its first
 * score: virtual position v is position v - skew, and 16-byte groups start at multiples of
 * SCORE_GROUP.
 */
#ifndef TOPKSEL_CUDA_SHARE_CUH
#define TOPKSEL_CUDA_SHARE_CUH

#include "rank.cuh"
#include "task.cuh"

/* A block's share; in shared memory, the same for all threads. */
struct share {
    int64_t unit, unit_end; /* of all units, this block's; of whole rows: from 0, no end */
    int64_t units;          /* of all rows, where rows may be cut */
    int64_t row_unit;       /* units before `row` */
    int32_t row, row_end;   /* the first row of the share, and where rows are no longer in it */
    int32_t group_blocks;   /* blocks a row when each row has its own, else 0 */
    int32_t snap;           /* units: see snap_cut; 0 where there are no cuts */
    bool as_guessed;        /* it is what share_guess said */
};

/* A part of one row. */
struct segment {
    int32_t row, length;
    uint32_t skew;
    uint32_t begin, end;  /* virtual positions of the part; void for length <= k */
    uint32_t first_block; /* the block that holds the row's start ... */
    uint32_t num_parts;   /* ... and how many blocks from there on share the row */
    bool starts;          /* this part holds the row's start */
    bool clamped;         /* the row's length had to be clamped */
};

static __device__ __forceinline__ uint32_t row_skew(const struct task &task, int32_t row)
{
    /* Of the address only the lowest bits matter, which those of its parts give. */
    const uint32_t base = (uint32_t)(reinterpret_cast<uintptr_t>(task.scores) / sizeof(score_t));
    return (base + (uint32_t)row * (uint32_t)task.row_stride) % TOPK_SAMPLE_UNIT;
}

/* What a row costs beside its reading, as the time of reading so many units: selected whole, 3 us;
 * otherwise no row is through sooner than its finishers, 6.8 us. */
#define WHOLE_ROW_UNITS 24u
#define LEAST_ROW_UNITS 58u

/* Units in which a row's scores lie. */
static __device__ __forceinline__ uint32_t units_read(int32_t length, uint32_t skew)
{
    return (skew + (uint32_t)length + TOPK_UNIT_SCORES - 1) / TOPK_UNIT_SCORES;
}

/* Units of a row: at least one, so that every row is in exactly one piece or more. A row may count
 * for more than it has where snap_cut keeps all cuts out of it. */
static __device__ __forceinline__ uint32_t row_units(const struct task &task, int32_t length,
                                                     uint32_t skew, int32_t snap)
{
    return length <= task.k
               ? WHOLE_ROW_UNITS
               : max(units_read(length, skew), min(LEAST_ROW_UNITS, 2 * (uint32_t)snap));
}

/* A block's part of all rows as a fraction of 2^32, a little too large: to be worked out before
 * there is a task, so that nothing waits for the division. */
static __device__ __forceinline__ uint32_t share_step()
{
    return (uint32_t)opaque((int32_t)(0xffffffffu / gridDim.x + 1));
}

/*
 * The share as it is where the blocks get equal numbers of whole rows, or a row has a group of
 * blocks: known before any length is.
 */
static __device__ __forceinline__ struct share share_guess(const struct task &task, uint32_t step)
{
    const uint32_t rows = (uint32_t)task.num_rows, blocks = gridDim.x, block = blockIdx.x;
    struct share share = {};
    share.as_guessed = true;
    if (rows <= blocks) {
        share.group_blocks = 1;
        share.row = (int32_t)block;
        if (2 * rows <= blocks) {
            const uint32_t group = rows > 0 ? blocks / rows : blocks;
            share.group_blocks = (int32_t)group;
            share.row = (int32_t)(block / group);
        }
        share.unit_end = share.row < task.num_rows ? 1 : 0;
        share.row_end = task.num_rows;
        return share;
    }
    share.row = (int32_t)__umulhi(block * step, rows);
    share.row_end =
        block + 1 < blocks ? (int32_t)__umulhi((block + 1) * step, rows) : (int32_t)rows;
    share.unit_end = INT64_MAX;
    return share;
}

/* Whether the share is as share_guess says, or may well be: see rows_are_equal. */
static __device__ __forceinline__ bool guess_is_likely(const struct task &task, int32_t snap)
{
    return task.num_rows <= (int32_t)gridDim.x ||
           row_units(task, task.width, TOPK_SAMPLE_UNIT - 1, snap) / 2 <= (uint32_t)snap;
}

/* The sum over a warp, of numbers below 2^53; in every lane. */
static __device__ __forceinline__ int64_t warp_sum_wide(int64_t value)
{
    const uint32_t low = __reduce_add_sync(WARP_ALL, (uint32_t)value & 0x3ffffffu);
    return ((int64_t)__reduce_add_sync(WARP_ALL, (uint32_t)(value >> 26)) << 26) + low;
}

/* The inclusive prefix sum. */
static __device__ __forceinline__ int64_t warp_prefix_wide(int64_t value)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int64_t below = __shfl_up_sync(WARP_ALL, value, step);
        value += lane_index() >= (uint32_t)step ? below : 0;
    }
    return value;
}

/*
 * Where a cut through a row of units [first, end) is really made: at the row's nearer end if that
 * is at most `snap` units away, since a row in two blocks costs more than a little inequality.
 */
static __device__ __forceinline__ int64_t snap_cut(int64_t cut, int64_t first, int64_t end,
                                                   int64_t snap)
{
    const int64_t before = cut - first, after = end - cut;
    if (min(before, after) > snap) {
        return cut;
    }
    return before <= after ? first : end;
}

/* The block whose piece begins last at or before `unit`, but for snapping. */
static __device__ __forceinline__ uint32_t block_of_unit(const struct share &share, int64_t unit)
{
    return (uint32_t)(((unit + 1) * (int64_t)gridDim.x - 1) / share.units);
}

/* The blocks that share a row of units [first, end): the first of them, and how many there are. */
static __device__ __forceinline__ void blocks_of_row(const struct share &share, int64_t first,
                                                     int64_t end, struct segment &segment)
{
    /* Cuts up to `begin` are made at the row's start, those beyond `last` at its end. */
    const int64_t begin = min(first + min((int64_t)share.snap, (end - first) / 2), share.units - 1);
    const int64_t last = min(max(begin, end - share.snap - 1), share.units - 1);
    segment.first_block = block_of_unit(share, begin);
    segment.num_parts = block_of_unit(share, last) - segment.first_block + 1;
}

/* The place of a cut, and the first row from there on. */
struct share_cut {
    int64_t unit, row_unit;
    int32_t row;
};

/* Rows of one thread, of those that share_init has. */
struct share_rows {
    int64_t row_unit, units; /* before them, and theirs */
    int32_t first, count;
};

/*
 * The cut after `part` of all blocks' shares, made by the thread in whose rows it lies; false in
 * others.
 */
static __device__ __forceinline__ bool find_share_cut(const struct task &task,
                                                      const struct share_rows &rows, int64_t units,
                                                      int32_t part, int32_t snap,
                                                      struct share_cut &cut)
{
    /* Compared times the number of blocks: only the thread that makes the cut divides. */
    const int64_t blocks = (int64_t)gridDim.x, at_blocks = units * part;
    if (at_blocks < rows.row_unit * blocks || at_blocks >= (rows.row_unit + rows.units) * blocks) {
        return false;
    }
    const int64_t at = at_blocks / blocks;
    const int32_t last = rows.first + rows.count - 1; /* lengths may change meanwhile */
    int64_t start = rows.row_unit, end;
    int32_t row = rows.first, length;
    for (;; row++) {
        length = clamp_length(task, task_length(task, row));
        end = start + row_units(task, length, row_skew(task, row), snap);
        if (row == last || at < end) {
            break;
        }
        start = end;
    }
    /* A row that is selected whole is never cut. */
    cut.unit = snap_cut(at, start, end, length <= task.k ? end - start : snap);
    cut.row_unit = cut.unit == end ? end : start;
    cut.row = cut.unit == end ? row + 1 : row;
    return true;
}

/*
 * Whether equal numbers of rows keep the blocks busy for a shorter time than equal numbers of
 * units, whose cuts are moved to the ends of rows: a block may then have half a row too much. With
 * few rows a block, rounding would give some blocks a row more than they need have.
 */
static __device__ __forceinline__ bool rows_are_equal(const struct task &task, int64_t units,
                                                      uint32_t longest, int32_t snap)
{
    const int64_t blocks = (int64_t)gridDim.x;
    const int64_t rows = ((uint32_t)task.num_rows + gridDim.x - 1) / gridDim.x;
    return longest / 2 <= (uint32_t)snap &&
           2 * rows * longest * blocks <= 2 * units + longest * blocks;
}

/* Units of a thread's rows, and of the longest of them. */
static __device__ __forceinline__ void count_units(const struct task &task, struct share_rows &rows,
                                                   int32_t snap, uint32_t &longest)
{
    constexpr int32_t BATCH = 4; /* choice: lengths asked for at a time */
    const int32_t end = rows.first + rows.count;
    for (int32_t base = rows.first; base < end; base += BATCH) {
        int32_t given[BATCH];
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            given[i] = task_length(task, min(base + i, end - 1));
        }
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            const int32_t row = base + i, length = clamp_length(task, given[i]);
            const uint32_t units =
                row < end ? row_units(task, length, row_skew(task, row), snap) : 0;
            rows.units += units;
            longest = max(longest, units);
        }
    }
}

/*
 * Fills the share of this block. A team of THREADS threads with a barrier of its own calls, each
 * with its number; totals has room for 64. The block passes another barrier before it reads the
 * share.
 */
template <int TEAM, int THREADS>
static __device__ __forceinline__ void share_init(const struct task &task, uint32_t thread,
                                                  uint32_t step, int32_t snap, struct share &share,
                                                  int64_t *totals)
{
    static_assert(THREADS <= 1024, "a warp adds up the sums of all");
    const struct share guess = share_guess(task, step);
    if (guess.group_blocks > 0) {
        if (thread == 0) {
            share = guess;
        }
        return;
    }
    const int32_t each = (task.num_rows + THREADS - 1) / THREADS;
    struct share_rows rows = {};
    rows.first = (int32_t)min((int64_t)thread * each, (int64_t)task.num_rows);
    rows.count = min(each, task.num_rows - rows.first);
    uint32_t longest = 0;
    count_units(task, rows, snap, longest);
    const int64_t warp_units = warp_sum_wide(rows.units);
    longest = __reduce_max_sync(WARP_ALL, longest);
    if (lane_index() == 0) {
        totals[thread / 32] = warp_units;
        totals[32 + thread / 32] = longest;
    }
    team_sync<TEAM, THREADS>();
    const bool exists = lane_index() < THREADS / 32;
    const int64_t sum = exists ? totals[lane_index()] : 0;
    longest = __reduce_max_sync(WARP_ALL, exists ? (uint32_t)totals[32 + lane_index()] : 0);
    const int64_t units = warp_sum_wide(sum);
    if (rows_are_equal(task, units, longest, snap)) {
        if (thread == 0) {
            share = guess;
        }
        return;
    }
    rows.row_unit = warp_sum_wide(lane_index() < thread / 32 ? sum : 0);
    rows.row_unit += warp_prefix_wide(rows.units) - rows.units;
    const int32_t block = (int32_t)blockIdx.x;
    struct share_cut cut;
    if (thread == 0) {
        share.group_blocks = 0;
        share.as_guessed = false;
        share.units = units;
        share.snap = snap;
        share.row_end = task.num_rows;
    }
    if (thread == 0 && block == (int32_t)gridDim.x - 1) {
        share.unit_end = units; /* no cut */
    }
    if (find_share_cut(task, rows, units, block, snap, cut)) {
        share.unit = cut.unit;
        share.row_unit = cut.row_unit;
        share.row = cut.row;
    }
    if (find_share_cut(task, rows, units, block + 1, snap, cut)) {
        share.unit_end = cut.unit;
    }
}

/* Walks through a share. The producer and the consumers each have one; both see the same parts. */
struct walk {
    int64_t unit, row_unit;
    int32_t row;
};

static __device__ __forceinline__ struct walk walk_begin(const struct share &share)
{
    struct walk walk = {share.unit, share.row_unit, share.row};
    return walk;
}

/* The next part; false at the end. One thread of each side calls. */
static __device__ __forceinline__ bool walk_next(const struct task &task, const struct share &share,
                                                 int32_t part_scores, struct walk &walk,
                                                 struct segment &segment)
{
    if (walk.unit >= share.unit_end || walk.row >= min(share.row_end, task.num_rows)) {
        return false;
    }
    const int32_t given = task_length(task, walk.row);
    segment.row = walk.row;
    segment.length = clamp_length(task, given);
    segment.clamped = given != segment.length;
    segment.skew = row_skew(task, walk.row);
    segment.num_parts = 1;
    segment.first_block = blockIdx.x;
    const uint32_t units = row_units(task, segment.length, segment.skew, share.snap);
    uint32_t first = 0, end = units;
    if (share.group_blocks > 0) {
        const uint32_t group = (uint32_t)share.group_blocks;
        const uint32_t part_units = max((uint32_t)part_scores / TOPK_UNIT_SCORES, 1u);
        const uint32_t parts = segment.length <= task.k ? 1u : units / part_units;
        segment.num_parts = min(max(parts, 1u), group);
        segment.first_block = (uint32_t)walk.row * group;
        walk.unit = share.unit_end;
        const uint32_t part = blockIdx.x - segment.first_block;
        if (part >= segment.num_parts) {
            return false;
        }
        /* Parts differ by at most one unit; no product that could overflow, no wide division. */
        const uint32_t least = units / segment.num_parts, more = units % segment.num_parts;
        first = part * least + min(part, more);
        end = first + least + (part < more ? 1u : 0u);
    } else {
        first = (uint32_t)(walk.unit - walk.row_unit);
        if (first > 0 && first >= units_read(segment.length, segment.skew)) {
            /* the row was longer when the share was made */
            walk.unit = share.unit_end;
            return false;
        }
        end = (uint32_t)min((int64_t)units, share.unit_end - walk.row_unit);
        if (first > 0 || end < units) {
            blocks_of_row(share, walk.row_unit, walk.row_unit + units, segment);
        }
        walk.unit = walk.row_unit + end;
        if (end == units) {
            walk.row_unit += units;
            walk.row++;
        }
    }
    segment.starts = first == 0;
    segment.begin = max(first * TOPK_UNIT_SCORES, segment.skew);
    segment.end = min(end * TOPK_UNIT_SCORES, segment.skew + (uint32_t)segment.length);
    return true;
}

#endif
