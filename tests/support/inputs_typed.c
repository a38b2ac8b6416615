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

/* What rounding would lose, by type. */
struct edges {
    uint32_t starts[4];     /* of INPUTS_NEIGHBOURS: 1, 0, -1, just below where float16 ends */
    uint32_t one, inf;      /* patterns */
    uint32_t fraction_bits; /* whose ones are the subnormal numbers */
};

static const struct edges *edges_of(enum topk_dtype dtype)
{
    static const struct edges float16 = {{0x3c00, 0x0000, 0xbc00, 0x7bff}, 0x3c00, HALF_INF, 10};
    static const struct edges bfloat16 = {{0x3f80, 0x0000, 0xbf80, 0x477f}, 0x3f80, 0x7f80, 7};
    return dtype == TOPK_DTYPE_FLOAT16 ? &float16 : &bfloat16;
}

/* The pattern as many steps after the type's start as a number of INPUTS_NEIGHBOURS is after its.
 */
static bool neighbour_of(const struct edges *edges, uint32_t bits, uint16_t *pattern_p)
{
    static const uint32_t starts[] = {0x3f800000u, 0x00000000u, 0xbf800000u, 0x477fe000u};
    for (int i = 0; i < 4; i++) {
        if (bits - starts[i] < 0x00800000u) {
            *pattern_p = (uint16_t)(edges->starts[i] + (bits - starts[i]));
            return true;
        }
    }
    return false;
}

/* The type's number that lies where this one lies in float32; false where rounding serves. */
static bool edge_of(const struct edges *edges, uint32_t bits, uint16_t *pattern_p)
{
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t pattern = magnitude >> (23 - edges->fraction_bits);
    if (magnitude == 0x3f800001u) {
        pattern = edges->one + 1;
    } else if (magnitude == 0x7f7fffffu) { /* FLT_MAX */
        pattern = edges->inf - 1;
    } else if (magnitude == 0 || magnitude > 0x00800000u) { /* FLT_MIN, and below it */
        return false;
    }
    *pattern_p = (uint16_t)((bits >> 16 & 0x8000u) | (pattern > 0 ? pattern : 1u));
    return true;
}

/* Gives the rounded scores of a row back what its family is about. */
static void sharpen_row(const struct inputs_spec *spec, int32_t row_idx, enum topk_dtype dtype,
                        int32_t end, const float *numbers, uint16_t *scores)
{
    const enum inputs_family family = inputs_spec_of_row(spec, row_idx).family;
    const struct edges *edges = edges_of(dtype);
    struct inputs_rng rng = inputs_rng_of(spec->seed, (uint64_t)row_idx);
    for (int32_t i = 0; i < end; i++) {
        if (family == INPUTS_BITS) {
            scores[i] = (uint16_t)(inputs_rng_next(&rng) >> 48);
        } else if (family == INPUTS_NEIGHBOURS) {
            neighbour_of(edges, bits_of(numbers[i]), &scores[i]);
        } else {
            edge_of(edges, bits_of(numbers[i]), &scores[i]);
        }
    }
}

void inputs_fill_typed(const struct inputs_spec *spec, enum topk_dtype dtype,
                       const int32_t *lengths, void *scores)
{
    if (dtype == TOPK_DTYPE_FLOAT32) {
        inputs_fill(spec, scores);
        if (lengths != NULL) {
            inputs_poison_tails(spec, lengths, scores);
        }
        return;
    }
    size_t count = inputs_elements(spec);
    float *numbers = inputs_must_alloc(count, sizeof(*numbers));
    inputs_fill(spec, numbers);
    if (lengths != NULL) {
        inputs_poison_tails(spec, lengths, numbers);
    }
    inputs_narrow(dtype, numbers, count, scores);
    for (int32_t r = 0; r < spec->num_rows; r++) {
        const int64_t first = (int64_t)r * spec->row_stride;
        const int32_t end = lengths != NULL && lengths[r] < spec->width ? lengths[r] : spec->width;
        sharpen_row(spec, r, dtype, end, numbers + first, (uint16_t *)scores + first);
    }
    free(numbers);
}
