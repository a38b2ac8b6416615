/* Score rows and checks on the device; see bench_cuda_inputs.cuh. */
#include "bench_cuda_inputs.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define FILL_THREADS 256
#define CHECK_THREADS 1024

const char *const bench_scores_names[] = {
#define BENCH_SCORES_NAME(name, short_name) short_name,
    BENCH_SCORES_TABLE(BENCH_SCORES_NAME)
#undef BENCH_SCORES_NAME
};

int bench_length(int row, long run, int rows, int width)
{
    int span = std::min(8192, width / 2);
    if (rows == 1) {
        return width - (int)(run * 37 % span);
    }
    return width - (span - 1) + (int)((long)row * (span - 1) / (rows - 1));
}

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

static __global__ void __launch_bounds__(FILL_THREADS)
    fill_kernel(float *scores, const int *lengths, long rows, long width, enum bench_scores kind)
{
    for (long row = blockIdx.y; row < rows; row += gridDim.y) {
        for (long column = blockIdx.x * (long)FILL_THREADS + threadIdx.x; column < width;
             column += (long)gridDim.x * FILL_THREADS) {
            uint64_t id =
                ((uint64_t)(row + 1) << 24 ^ (uint64_t)column) * 0x2545f4914f6cdd1dull + 12345;
            float score = -INFINITY;
            if (column < lengths[row]) {
                switch (kind) {
                case BENCH_INDEXER:
                    score = indexer_score(row, id, (float)column / (float)lengths[row]);
                    break;
                case BENCH_NORMAL:
                    score = normal(id);
                    break;
                case BENCH_TIES:
                    score = floorf(normal(id) * 4.0f) * 0.25f;
                    break;
                case BENCH_CLUSTERED:
                    score = 1.0f + 0.245f * uniform(id);
                    break;
                default:
                    score = 3.14f;
                    break;
                }
            }
            scores[row * width + column] = score;
        }
    }
}

void bench_fill(float *scores, const int *lengths, long rows, int width, enum bench_scores kind)
{
    dim3 grid(64, (unsigned)std::min(rows, 4096l));
    fill_kernel<<<grid, FILL_THREADS>>>(scores, lengths, rows, width, kind);
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
static __global__ void __launch_bounds__(CHECK_THREADS)
    check_kernel(const float *scores, const int *lengths, const int *indices, long width, int k,
                 bool ordered, unsigned *bits, size_t words, int *bad)
{
    __shared__ struct check_shared shared;
    const long row = blockIdx.x;
    const float *line = scores + row * width;
    const int *selected = indices + row * k;
    const int length = lengths[row], thread = (int)threadIdx.x;
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
        if (ordered && i > 0 && selected[i - 1] >= at) {
            atomicAdd(&shared.wrong, 1);
        }
        lowest = fminf(lowest, line[at]);
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
            atomicAdd(line[at] > lowest ? &shared.selected_above : &shared.selected_equal, 1);
            if (line[at] == lowest) {
                atomicMax(&shared.last_equal, at);
            }
        }
    }
    __syncthreads();
    const int last_equal = shared.last_equal;
    int above = 0, equal_below = 0;
    for (long i = thread; i < length; i += CHECK_THREADS) {
        float score = line[i];
        above += score > lowest ? 1 : 0;
        equal_below += score == lowest && i <= last_equal ? 1 : 0;
    }
    atomicAdd(&shared.above, above);
    atomicAdd(&shared.equal_below, equal_below);
    __syncthreads();
    if (thread == 0) {
        bool lowest_ties = shared.equal_below == shared.selected_equal;
        bool good = shared.wrong == 0 && shared.missing == k - min(k, max(length, 0)) &&
                    shared.above == shared.selected_above && (!ordered || lowest_ties);
        if (!good) {
            atomicAdd(bad, 1);
        }
    }
}

int bench_check(const float *scores, const int *lengths, const int *indices, long rows, int width,
                int k, bool ordered, unsigned *bits, int *bad, cudaStream_t stream)
{
    const size_t words = bench_check_words(width);
    int result = 0;
    cudaError_t error = cudaMemsetAsync(bits, 0, (size_t)rows * words * sizeof(unsigned), stream);
    error = error == cudaSuccess ? cudaMemsetAsync(bad, 0, sizeof(int), stream) : error;
    if (error == cudaSuccess) {
        check_kernel<<<(unsigned)rows, CHECK_THREADS, 0, stream>>>(scores, lengths, indices, width,
                                                                   k, ordered, bits, words, bad);
        error = cudaGetLastError();
    }
    error = error == cudaSuccess
                ? cudaMemcpyAsync(&result, bad, sizeof(int), cudaMemcpyDeviceToHost, stream)
                : error;
    error = error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
    if (error != cudaSuccess) {
        fprintf(stderr, "check: %s\n", cudaGetErrorString(error));
        exit(2);
    }
    return result;
}
