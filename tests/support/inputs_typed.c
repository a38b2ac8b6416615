/* Scores of 16 bits: the numbers of inputs.c, rounded. Written from the formats' definitions. */
#include "inputs_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HALF_INF 0x7c00u

static uint32_t bits_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

/* The nearest float16: a multiple of the step between its neighbours, found with rint. */
static uint16_t float16_of(float number)
{
    uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000u;
    double magnitude = fabs((double)number);
    if (isnan(number)) {
        uint32_t payload = bits >> 13 & 0x3ffu;
        return (uint16_t)(sign | HALF_INF | (payload != 0 ? payload : 1u));
    }
    if (magnitude >= 65520.0) { /* halfway between the largest number and the next power of two */
        return (uint16_t)(sign | HALF_INF);
    }
    int exponent = magnitude < 0x1p-14 ? -14 : ilogb(magnitude);
    uint32_t steps = (uint32_t)rint(ldexp(magnitude, 10 - exponent)); /* up to 2048 */
    uint32_t base = magnitude < 0x1p-14 ? 0u : ((uint32_t)(exponent + 15) << 10) - 1024u;
    return (uint16_t)(sign | (base + steps));
}

static uint16_t bfloat16_of(float number)
{
    uint32_t bits = bits_of(number), upper = bits >> 16, lower = bits & 0xffffu;
    if (isnan(number)) {
        return (uint16_t)((upper & 0x7fu) != 0 ? upper : upper | 1u);
    }
    bool up = lower > 0x8000u || (lower == 0x8000u && (upper & 1u) != 0);
    return (uint16_t)(upper + (up ? 1u : 0u));
}

void inputs_narrow(enum topk_dtype dtype, const float *numbers, size_t count, uint16_t *scores)
{
    for (size_t i = 0; i < count; i++) {
        scores[i] = dtype == TOPK_DTYPE_FLOAT16 ? float16_of(numbers[i]) : bfloat16_of(numbers[i]);
    }
}

static void draw_patterns(const struct inputs_spec *spec, const int32_t *lengths, uint16_t *scores)
{
    for (int32_t r = 0; r < spec->num_rows; r++) {
        struct inputs_rng rng = inputs_rng_of(spec->seed, (uint64_t)r);
        int32_t end = lengths != NULL && lengths[r] < spec->width ? lengths[r] : spec->width;
        for (int32_t i = 0; i < end; i++) {
            scores[(int64_t)r * spec->row_stride + i] = (uint16_t)(inputs_rng_next(&rng) >> 48);
        }
    }
}

void inputs_fill_typed(const struct inputs_spec *spec, enum topk_dtype dtype,
                       const int32_t *lengths, void *scores)
{
    size_t count = inputs_elements(spec);
    float *numbers = scores;
    if (dtype != TOPK_DTYPE_FLOAT32) {
        numbers = inputs_must_alloc(count, sizeof(*numbers));
    }
    inputs_fill(spec, numbers);
    if (lengths != NULL) {
        inputs_poison_tails(spec, lengths, numbers);
    }
    if (dtype != TOPK_DTYPE_FLOAT32) {
        inputs_narrow(dtype, numbers, count, scores);
        free(numbers);
        if (spec->family == INPUTS_BITS) {
            draw_patterns(spec, lengths, scores);
        }
    }
}
