/*
 * Rows that know where the sample looks, and have their best scores just there, or their worst: the
 * boundary is far too high and the row must be read again, or far too low and more reach it than
 * there is room for. No family of inputs does that.
 */
#include "plan/policy.h"
#include "select_gpu.h"

#include <math.h>

#define UNIT ((uint32_t)TOPK_SAMPLE_UNIT)

/* The sampled units of a row, as kernels/cuda/boundary.cuh chooses them. */
struct units {
    uint32_t first, count, sampled_log2;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct units units_of(const struct topk_plan *plan, uint32_t skew, uint32_t length)
{
    const uint32_t sample_min = (uint32_t)plan->parameters[TOPK_PARAMETER_SAMPLE_MIN];
    const uint32_t sample_max = (uint32_t)plan->parameters[TOPK_PARAMETER_SAMPLE_MAX];
    struct units units = {.first = (skew + UNIT - 1) / UNIT};
    units.count = (skew + length) / UNIT - units.first;
    uint32_t wanted = length / (uint32_t)plan->sample_stride;
    wanted = least(wanted > sample_min ? wanted : sample_min, sample_max);
    wanted = least(wanted, length / 2) / UNIT;
    while (wanted >= 2u << units.sampled_log2) {
        units.sampled_log2++;
    }
    return units;
}

/* Virtual position of the i-th sampled unit. */
static uint32_t unit_at(const struct units *units, uint32_t i)
{
    const uint32_t stratum = (uint32_t)((uint64_t)i << (32 - units->sampled_log2));
    const uint32_t within = i * 0x9e3779b9u >> units->sampled_log2;
    const uint32_t place = (uint32_t)((uint64_t)(stratum + within) * units->count >> 32);
    return (units->first + place) * UNIT;
}

/* Puts a score at an element of the host's matrix. */
static void put(const struct gpu_request *request, int64_t at, float number)
{
    void *scores = request->h_memory[0];
    if (request->spec.options.dtype == TOPK_DTYPE_FLOAT32) {
        ((float *)scores)[at] = number;
    } else {
        inputs_narrow(request->spec.options.dtype, &number, 1, (uint16_t *)scores + at);
    }
}

/* Gives the scores of the first `count` sampled units another value, at random from `low` on. */
static void fill_units(const struct gpu_request *request, int32_t row, uint32_t skew,
                       const struct units *units, uint32_t count, float low)
{
    struct inputs_rng rng = inputs_rng_of(request->spec.inputs.seed, (uint64_t)row);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t first = row * request->host.row_stride + unit_at(units, i) - skew;
        for (int64_t e = 0; e < UNIT; e++) {
            put(request, first + e, low + inputs_rng_uniform(&rng));
        }
    }
}

int32_t gpu_mislead(struct gpu_request *request, const struct topk_plan *plan)
{
    const struct topk_args *host = &request->host;
    const size_t element = topk_dtype_bytes(request->spec.options.dtype);
    int32_t num_misled = 0;
    for (int32_t row = 0; row < host->num_rows; row++) {
        const int32_t length = host->lengths[row] < host->width ? host->lengths[row] : host->width;
        if (length <= 4 * (int32_t)TOPK_K_FAST_MAX) {
            continue; /* such rows may be taken without a sample */
        }
        const uint64_t first = (uint64_t)(uintptr_t)request->device.scores / element +
                               (uint64_t)row * (uint64_t)host->row_stride;
        const uint32_t skew = (uint32_t)(first % UNIT);
        const struct units units = units_of(plan, skew, (uint32_t)length);
        const uint32_t all = 1u << units.sampled_log2;
        /* In turns: the best scores are all of the sample, or a little more of it than a boundary
         * goes by; or the sample has none but the worst. */
        const double mean = (double)host->k * UNIT * all / length;
        const uint32_t some = (uint32_t)(mean + 4.0 * sqrt(mean) + 2.0) / UNIT + 1;
        fill_units(request, row, skew, &units, row % 3 == 1 ? least(some, all) : all,
                   row % 3 == 2 ? -3.0f : 2.0f);
        num_misled++;
    }
    CHECK_CUDA(cudaMemcpy((void *)(uintptr_t)request->device.scores, host->scores,
                          inputs_elements(&request->spec.inputs) * element,
                          cudaMemcpyHostToDevice));
    return num_misled;
}
