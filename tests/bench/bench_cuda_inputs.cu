/* Score rows and checks on the device; see bench_cuda_inputs.cuh. */
#include "bench_cuda_inputs.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define FILL_THREADS 256
#define CHECK_THREADS 1024

static __device__ uint32_t hash(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)((x ^ (x >> 31)) >> 16);
}

static __device__ float uniform(uint64_t x)
{
    return (float)hash(x) * 2.3283064e-10f; /* 2^-32 */
}

static __device__ float normal(uint64_t x)
{
    float a = ((float)hash(2 * x + 1) + 1.0f) * 2.3283064e-10f;
    float b = uniform(2 * x + 0x9e3779b97f4a7c15ull);
    return sqrtf(-2.0f * __logf(a)) * __cosf(6.2831853f * b);
}

static __device__ float indexer_score(long row, uint64_t id, float place)
{
    float boost = place < 0.02f ? 1.2f : 0.0f;                      /* attention sink */
    boost += place > 0.93f ? 0.9f * (place - 0.93f) / 0.07f : 0.0f; /* recency */
    float score = 0.0f;
    for (int head = 0; head < 4; head++) {
        float weight = 0.25f + 0.5f * uniform((uint64_t)row * 131 + head);
        score += weight * fmaxf(0.0f, normal(id * 4 + head) * 0.9f + boost - 0.3f);
    }
    return score;
}

/* Teeth of `period` scores; rows take four phases in turn, so that the sampled middle of every
 * tooth is its top, its bottom, or in between. */
static __device__ float saw_score(long row, uint64_t id, float column, float period)
{
    const float shift[] = {0.49f, 0.5f, 0.25f, 0.0f};
    float phase = column / period + shift[row & 3];
    return phase - floorf(phase) + 1e-3f * uniform(id);
}

/* The k winners side by side, anywhere in the row. */
static __device__ float tile_score(long row, uint64_t id, long column, long length, long k)
{
    const long places = max(length - k, 0l) + 1;
    const long first = (long)(hash((uint64_t)row * 2654435761u + 7) % (uint64_t)places);
    return uniform(id) + (column >= first && column < first + k ? 2.0f : 0.0f);
}

static __device__ float score_of(const struct bench_rows &rows, enum bench_scores kind, long row,
                                 long column)
{
    const uint64_t id =
        ((uint64_t)(row + 1) << 24 ^ (uint64_t)column) * 0x2545f4914f6cdd1dull + 12345;
    const float length = (float)rows.lengths[row];
    switch (kind) {
    case BENCH_INDEXER:
        return indexer_score(row, id, (float)column / length);
    case BENCH_NORMAL:
        return normal(id);
    case BENCH_TIES:
        return floorf(normal(id) * 4.0f) * 0.25f;
    case BENCH_CLUSTERED:
        return 1.0f + 0.245f * uniform(id);
    case BENCH_ASCENDING:
        return (float)column;
    case BENCH_DESCENDING:
        return (float)(rows.width - column);
    case BENCH_SAW:
        return saw_score(row, id, (float)column, rows.period * length);
    case BENCH_TILE:
        return tile_score(row, id, column, rows.lengths[row], rows.k);
    default:
        return 3.14f;
    }
}

/* A number as each type of score has it: store() rounds to nearest even, load() is exact. */
static __device__ void store(float *score, float number)
{
    *score = number;
}

static __device__ void store(__half *score, float number)
{
    *score = __float2half_rn(number);
}

static __device__ void store(__nv_bfloat16 *score, float number)
{
    *score = __float2bfloat16_rn(number);
}

static __device__ float load(float score)
{
    return score;
}

static __device__ float load(__half score)
{
    return __half2float(score);
}

static __device__ float load(__nv_bfloat16 score)
{
    return __bfloat162float(score);
}

template <class Score>
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_kernel(Score *scores, const struct bench_rows rows, enum bench_scores kind)
{
    for (long row = blockIdx.y; row < rows.count; row += gridDim.y) {
        for (long column = blockIdx.x * (long)FILL_THREADS + threadIdx.x; column < rows.stride;
             column += (long)gridDim.x * FILL_THREADS) {
            const float nothing = column < rows.width ? -INFINITY : INFINITY;
            store(&scores[row * rows.stride + column],
                  column < rows.lengths[row] ? score_of(rows, kind, row, column) : nothing);
        }
    }
}

void bench_fill(void *scores, enum topk_dtype dtype, const struct bench_rows &rows,
                enum bench_scores kind)
{
    dim3 grid(64, (unsigned)std::min(rows.count, 4096l));
    if (dtype == TOPK_DTYPE_FLOAT16) {
        fill_kernel<<<grid, FILL_THREADS>>>(static_cast<__half *>(scores), rows, kind);
    } else if (dtype == TOPK_DTYPE_BFLOAT16) {
        fill_kernel<<<grid, FILL_THREADS>>>(static_cast<__nv_bfloat16 *>(scores), rows, kind);
    } else {
        fill_kernel<<<grid, FILL_THREADS>>>(static_cast<float *>(scores), rows, kind);
    }
}

static __global__ void __launch_bounds__(FILL_THREADS)
    pages_kernel(int *pages, long rows, int pages_a_row)
{
    const long count = rows * pages_a_row;
    for (long i = blockIdx.x * (long)FILL_THREADS + threadIdx.x; i < count;
         i += (long)gridDim.x * FILL_THREADS) {
        pages[i] = (int)(i % pages_a_row);
    }
}

void bench_fill_pages(int *pages, long rows, int pages_a_row)
{
    pages_kernel<<<1024, FILL_THREADS>>>(pages, rows, pages_a_row);
}

size_t bench_check_words(int width)
{
    return ((size_t)width + 31) / 32;
}

struct check_shared {
    float lowest[CHECK_THREADS];
    int wrong, missing, above, selected_above, last_equal, equal_below, selected_equal;
};

/* One block a row. A selection is exact when as many of the row as of it are above its lowest. */
template <class Score>
static __global__ void __launch_bounds__(CHECK_THREADS)
    check_kernel(const Score *scores, const struct bench_rows rows,
                 const struct bench_result result, unsigned *bits, size_t words, int *bad)
{
    __shared__ struct check_shared shared;
    const long row = blockIdx.x;
    const int k = result.k;
    const Score *line = scores + row * rows.stride;
    const int *selected = result.indices + row * k;
    const float *values = result.values != nullptr ? result.values + row * k : nullptr;
    const int length = rows.lengths[row], thread = (int)threadIdx.x;
    unsigned *seen = bits + row * words;
    if (thread == 0) {
        shared.wrong = shared.missing = shared.above = shared.selected_above = 0;
        shared.last_equal = -1;
        shared.equal_below = shared.selected_equal = 0;
    }
    __syncthreads();
    float lowest = INFINITY;
    for (int i = thread; i < k; i += CHECK_THREADS) {
        int at = selected[i];
        if (at == -1) {
            atomicAdd(&shared.missing, 1);
            continue;
        }
        if (at < 0 || at >= length ||
            (atomicOr(&seen[at >> 5], 1u << (at & 31)) >> (at & 31) & 1u) != 0) {
            atomicAdd(&shared.wrong, 1);
            continue;
        }
        const int before = i > 0 ? selected[i - 1] : -1;
        if (before >= 0 && before < length &&
            ((result.by_index && before >= at) ||
             (result.by_value && (load(line[before]) < load(line[at]) ||
                                  (load(line[before]) == load(line[at]) && before >= at))))) {
            atomicAdd(&shared.wrong, 1);
        }
        if (values != nullptr && __float_as_uint(values[i]) != __float_as_uint(load(line[at]))) {
            atomicAdd(&shared.wrong, 1);
        }
        lowest = fminf(lowest, load(line[at]));
    }
    shared.lowest[thread] = lowest;
    __syncthreads();
    for (int half = CHECK_THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            shared.lowest[thread] = fminf(shared.lowest[thread], shared.lowest[thread + half]);
        }
        __syncthreads();
    }
    lowest = shared.lowest[0];
    for (int i = thread; i < k; i += CHECK_THREADS) {
        int at = selected[i];
        if (at >= 0 && at < length) {
            atomicAdd(load(line[at]) > lowest ? &shared.selected_above : &shared.selected_equal, 1);
            if (load(line[at]) == lowest) {
                atomicMax(&shared.last_equal, at);
            }
        }
    }
    __syncthreads();
    const int last_equal = shared.last_equal;
    int above = 0, equal_below = 0;
    for (long i = thread; i < length; i += CHECK_THREADS) {
        float score = load(line[i]);
        above += score > lowest ? 1 : 0;
        equal_below += score == lowest && i <= last_equal ? 1 : 0;
    }
    atomicAdd(&shared.above, above);
    atomicAdd(&shared.equal_below, equal_below);
    __syncthreads();
    if (thread == 0) {
        bool lowest_ties = shared.equal_below == shared.selected_equal;
        bool good = shared.wrong == 0 && shared.missing == k - min(k, max(length, 0)) &&
                    shared.above == shared.selected_above &&
                    (lowest_ties || (!result.by_index && !result.by_value));
        if (!good) {
            atomicAdd(bad, 1);
        }
    }
}

static void launch_check(const void *scores, enum topk_dtype dtype, const struct bench_rows &rows,
                         const struct bench_result &result, unsigned *bits, size_t words, int *bad,
                         cudaStream_t stream)
{
    const unsigned blocks = (unsigned)rows.count;
    if (dtype == TOPK_DTYPE_FLOAT16) {
        check_kernel<<<blocks, CHECK_THREADS, 0, stream>>>(static_cast<const __half *>(scores),
                                                           rows, result, bits, words, bad);
    } else if (dtype == TOPK_DTYPE_BFLOAT16) {
        check_kernel<<<blocks, CHECK_THREADS, 0, stream>>>(
            static_cast<const __nv_bfloat16 *>(scores), rows, result, bits, words, bad);
    } else {
        check_kernel<<<blocks, CHECK_THREADS, 0, stream>>>(static_cast<const float *>(scores), rows,
                                                           result, bits, words, bad);
    }
}

int bench_check(const void *scores, enum topk_dtype dtype, const struct bench_rows &rows,
                const struct bench_result &result, unsigned *bits, int *bad, cudaStream_t stream)
{
    const size_t words = bench_check_words((int)rows.width);
    int wrong = 0;
    cudaError_t error =
        cudaMemsetAsync(bits, 0, (size_t)rows.count * words * sizeof(unsigned), stream);
    error = error == cudaSuccess ? cudaMemsetAsync(bad, 0, sizeof(int), stream) : error;
    if (error == cudaSuccess) {
        launch_check(scores, dtype, rows, result, bits, words, bad, stream);
        error = cudaGetLastError();
    }
    error = error == cudaSuccess
                ? cudaMemcpyAsync(&wrong, bad, sizeof(int), cudaMemcpyDeviceToHost, stream)
                : error;
    error = error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
    if (error != cudaSuccess) {
        fprintf(stderr, "check: %s\n", cudaGetErrorString(error));
        exit(2);
    }
    return wrong;
}
