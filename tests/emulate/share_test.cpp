/*
 * How rows are shared between blocks, on the model of a GPU: whatever the lengths, the parts of a
 * row cover it once, and no block has more than its share and a row. With thousands of rows, so
 * that a thread has several of them; selections on the model have fewer.
 */
#include "cuda/ptx.cuh"
#include "cuda/share.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

constexpr int THREADS = 256, RUNS = 200, K = 2048, SNAP_UNITS = 128;
constexpr uint32_t BLOCKS_MAX = 12, ROWS_MAX = 3000;

struct part {
    int32_t row;
    uint32_t begin, end; /* positions of the row */
    uint32_t block, units;
};

/* Device memory of a run. */
struct shared_rows {
    struct task task;
    int32_t snap, lengths[ROWS_MAX];
    struct part parts[ROWS_MAX + BLOCKS_MAX]; /* every cut makes one more */
    uint32_t num_parts;
};

void share_rows_out(struct shared_rows *rows)
{
    struct totals {
        int64_t of_warps[64];
    };
    SHARED_OBJECT(struct share, share);
    SHARED_OBJECT(struct totals, totals);
    share_init<1, THREADS>(rows->task, threadIdx.x, share_step(), rows->snap, share,
                           totals.of_warps);
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    struct walk walk = walk_begin(share);
    struct segment segment;
    while (walk_next(rows->task, share, TOPK_UNIT_SCORES, walk, segment)) {
        const uint32_t at = atomicAdd(&rows->num_parts, 1u);
        if (at < ROWS_MAX + BLOCKS_MAX) {
            const uint32_t read = (segment.end + TOPK_UNIT_SCORES - 1) / TOPK_UNIT_SCORES -
                                  segment.begin / TOPK_UNIT_SCORES;
            const uint32_t least = segment.length <= K
                                       ? WHOLE_ROW_UNITS
                                       : std::min(LEAST_ROW_UNITS, 2 * (uint32_t)rows->snap);
            const uint32_t units = std::max(read, least);
            rows->parts[at] = {segment.row, segment.begin - segment.skew,
                               segment.end - segment.skew, blockIdx.x, units};
        }
    }
}

uint32_t draw(uint32_t count)
{
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % count;
}

enum class kind { EQUAL, MORE_THAN_K, ANY }; /* lengths */

/* More rows than blocks. */
void draw_rows(struct shared_rows &rows, enum kind kind)
{
    const int32_t width = 2 * K + (int32_t)draw(60000);
    rows.task = {};
    rows.task.scores = reinterpret_cast<const float *>((uintptr_t)4096 + 4 * draw(16));
    rows.task.row_stride = width + (int32_t)draw(5);
    rows.task.lengths = rows.lengths;
    rows.task.num_rows = (int32_t)(BLOCKS_MAX + 1 + draw(ROWS_MAX - BLOCKS_MAX));
    rows.task.width = width;
    rows.task.k = K;
    rows.snap = draw(4) == 0 ? 0 : SNAP_UNITS;
    rows.num_parts = 0;
    const int32_t span = kind == kind::EQUAL         ? width / 100
                         : kind == kind::MORE_THAN_K ? width - K
                                                     : width + 1;
    for (int32_t row = 0; row < rows.task.num_rows; row++) {
        const bool whole = kind == kind::ANY && draw(2) == 0;
        rows.lengths[row] = whole ? (int32_t)draw(K + 1) : width - (int32_t)draw((uint32_t)span);
    }
}

/* Whether the parts cover each row once. */
bool rows_are_covered(const struct shared_rows &rows)
{
    std::vector<std::vector<struct part>> of((size_t)rows.task.num_rows);
    for (uint32_t i = 0; i < std::min(rows.num_parts, ROWS_MAX + BLOCKS_MAX); i++) {
        of[(size_t)rows.parts[i].row].push_back(rows.parts[i]);
    }
    for (int32_t row = 0; row < rows.task.num_rows; row++) {
        auto &parts = of[(size_t)row];
        std::sort(parts.begin(), parts.end(),
                  [](const struct part &a, const struct part &b) { return a.begin < b.begin; });
        uint32_t end = 0;
        for (const struct part &part : parts) {
            if (part.begin != end) {
                break;
            }
            end = part.end;
        }
        if (parts.empty() || end != (uint32_t)rows.lengths[row] || parts.back().end != end) {
            printf("row %d of %d, length %d: %zu parts, covered up to %u\n", row,
                   rows.task.num_rows, rows.lengths[row], parts.size(), end);
            return false;
        }
    }
    return true;
}

/* Whether no block has more units than its share and the longest row. */
bool rows_are_shared(const struct shared_rows &rows, uint32_t num_blocks)
{
    std::vector<uint32_t> units(num_blocks);
    uint32_t all = 0;
    for (uint32_t i = 0; i < rows.num_parts; i++) {
        units[rows.parts[i].block] += rows.parts[i].units;
        all += rows.parts[i].units;
    }
    const uint32_t longest = std::max(
        {(uint32_t)rows.task.width / TOPK_UNIT_SCORES + 2, WHOLE_ROW_UNITS, LEAST_ROW_UNITS});
    const uint32_t most = *std::max_element(units.begin(), units.end());
    if (most > all / num_blocks + longest) {
        printf("%u of %u units in one of %u blocks, rows of up to %u\n", most, all, num_blocks,
               longest);
        return false;
    }
    return true;
}

} // namespace

int main()
{
    struct shared_rows *rows = nullptr;
    if (cudaMalloc(reinterpret_cast<void **>(&rows), sizeof(*rows)) != cudaSuccess) {
        return 1;
    }
    int failed = 0;
    for (int run = 0; run < RUNS; run++) {
        const uint32_t num_blocks = 1 + draw(BLOCKS_MAX);
        draw_rows(*rows, (enum kind)(run % 3));
        cudaLaunchConfig_t config = {};
        config.gridDim = {num_blocks, 1, 1};
        config.blockDim = {THREADS, 1, 1};
        if (cudaLaunchKernelEx(&config, share_rows_out, rows) != cudaSuccess ||
            cudaDeviceSynchronize() != cudaSuccess) {
            printf("run %d: the launch failed\n", run);
            return 1;
        }
        if (!rows_are_covered(*rows) || !rows_are_shared(*rows, num_blocks)) {
            printf("run %d failed\n", run);
            failed++;
        }
    }
    cudaFree(rows);
    printf("%d runs, %d failed\n", RUNS, failed);
    return failed == 0 ? 0 : 1;
}
