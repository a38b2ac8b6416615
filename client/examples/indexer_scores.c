#include "indexer_scores.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* Choices: a real indexer has 64 heads of 128; these keep the shape of the scores and let a million
 * of them be made in some ten milliseconds. */
#define DIM 16u
#define NUM_SINKS 4u
#define SINK_STRENGTH 6.0f    /* length of a sink key along the direction all queries share */
#define KEY_MEMORY 0.95f      /* how much of a key is the key before it */
#define QUERY_RECENCY 0.6f    /* how much of a query is the key where it stands */
#define QUERY_SINK 0.7f       /* how much it looks at the sinks */
#define BEYOND_LENGTH FLT_MAX /* would be selected by whoever ignores the lengths */

/* The SplitMix64 generator. */
static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Mean 0, variance 1, nearly normal: the sum of four uniform numbers. */
static float noise(uint64_t *state)
{
    uint64_t bits = next_random(state);
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        sum += (float)(bits >> (16 * i) & 0xffffu) / 65536.0f;
    }
    return (sum - 2.0f) * sqrtf(3.0f);
}

/* keys [width, DIM]: a slow random walk; the sinks point along axis 0. */
static void make_keys(uint64_t seed, uint32_t width, float *keys)
{
    uint64_t state = seed;
    float fresh = sqrtf(1.0f - KEY_MEMORY * KEY_MEMORY);
    for (uint32_t s = 0; s < width; s++) {
        float *key = keys + (uint64_t)s * DIM;
        for (uint32_t d = 0; d < DIM; d++) {
            float before = s == 0 ? 0.0f : key[(int)d - (int)DIM];
            key[d] = KEY_MEMORY * before + (s == 0 ? 1.0f : fresh) * noise(&state);
        }
    }
    for (uint32_t s = 0; s < width && s < NUM_SINKS; s++) {
        keys[(uint64_t)s * DIM] += SINK_STRENGTH;
    }
}

/* Row t's causal past: evenly spread over the width, with a random step, the last row full. */
static int32_t length_of(const struct indexer *indexer, uint32_t t)
{
    uint64_t state = indexer->seed ^ ((uint64_t)t + 1) << 32;
    uint64_t end = (uint64_t)indexer->width * (t + 1) / indexer->rows;
    uint64_t step = indexer->width / indexer->rows;
    uint64_t back = t + 1 == indexer->rows || step == 0 ? 0 : next_random(&state) % step;
    return (int32_t)(end - back);
}

static float score_of(const float *queries, const float *weights, uint32_t heads, const float *key)
{
    float score = 0.0f;
    for (uint32_t h = 0; h < heads; h++) {
        const float *query = queries + (size_t)h * DIM;
        float dot = 0.0f;
        for (uint32_t d = 0; d < DIM; d++) {
            dot += query[d] * key[d];
        }
        score += weights[h] * fmaxf(dot, 0.0f);
    }
    return score;
}

static void make_row(const struct indexer *indexer, uint32_t t, int32_t length, const float *keys,
                     float *queries, float *weights, float *row)
{
    uint64_t state = indexer->seed + UINT64_C(0x100000001) * (t + 1);
    const float *here = keys + (uint64_t)(length > 0 ? length - 1 : 0) * DIM;
    for (uint32_t h = 0; h < indexer->heads; h++) {
        weights[h] = 0.5f + 0.5f * noise(&state); /* some heads count against a key */
        float *query = queries + (size_t)h * DIM;
        for (uint32_t d = 0; d < DIM; d++) {
            query[d] = noise(&state) + QUERY_RECENCY * here[d];
        }
        query[0] += QUERY_SINK;
    }
    for (uint32_t s = 0; s < (uint32_t)length; s++) {
        row[s] = score_of(queries, weights, indexer->heads, keys + (uint64_t)s * DIM);
    }
    for (uint32_t s = (uint32_t)length; s < indexer->width; s++) {
        row[s] = BEYOND_LENGTH;
    }
}

bool indexer_fill(const struct indexer *indexer, float *scores, int32_t *lengths)
{
    float *keys = calloc((size_t)indexer->width * DIM, sizeof(*keys));
    float *queries = calloc((size_t)indexer->heads * DIM, sizeof(*queries));
    float *weights = calloc(indexer->heads, sizeof(*weights));
    bool good = keys != NULL && queries != NULL && weights != NULL;
    if (good) {
        make_keys(indexer->seed, indexer->width, keys);
    }
    for (uint32_t t = 0; good && t < indexer->rows; t++) {
        lengths[t] = length_of(indexer, t);
        make_row(indexer, t, lengths[t], keys, queries, weights,
                 scores + (uint64_t)t * indexer->width);
    }
    free(keys);
    free(queries);
    free(weights);
    return good;
}
