/*
 * Scores as a sparse-attention indexer makes them: for query t and key s, the sum over heads h of
 * w[t,h] * ReLU(q[t,h] . k[s]). The queries and keys are generated with the structure such scores
 * are known for: a few sink keys at the start that every query likes, keys that drift slowly (near
 * positions have similar scores), and queries that resemble the keys at their own end of the row.
 */
#include "inputs_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Choices: enough heads for a smooth sum, small enough that 64 x 131072 takes under a second. */
#define INDEXER_HEADS 4
#define INDEXER_DIM 16
#define INDEXER_SINKS 8          /* keys at the start of the row that all queries attend to */
#define INDEXER_DRIFT 0.9f       /* how much of a key is the key before it */
#define INDEXER_RECENCY 0.5f     /* how much of a query is the key at the end of its row */
#define INDEXER_SINK_WEIGHT 0.8f /* how much of a query points to the sinks */
#define INDEXER_ENDS 64          /* places near the end of the row where queries stand */

enum { STREAM_KEYS = 1 << 20, STREAM_QUERIES = 1 << 21 };

/* Nearly normal, and much cheaper than Box-Muller: the sum of four uniform 16-bit numbers. */
static float nearly_normal(struct inputs_rng *rng)
{
    uint64_t bits = inputs_rng_next(rng);
    uint32_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (uint32_t)(bits >> (16 * i)) & 0xffffu;
    }
    return ((float)sum - 131070.0f) *
           (1.0f / 37837.0f); /* mean 2 * 65535, deviation 65536/sqrt 3 */
}

float *inputs_indexer_keys_create(uint64_t seed, int32_t width)
{
    struct inputs_rng rng = inputs_rng_of(seed, STREAM_KEYS);
    float *keys = inputs_must_alloc((size_t)width * INDEXER_DIM, sizeof(*keys));
    float fresh = sqrtf(1.0f - INDEXER_DRIFT * INDEXER_DRIFT);
    for (int32_t s = 0; s < width; s++) {
        float *key = keys + (size_t)s * INDEXER_DIM;
        for (int d = 0; d < INDEXER_DIM; d++) {
            float noise = nearly_normal(&rng);
            key[d] = s == 0 ? noise : INDEXER_DRIFT * key[d - INDEXER_DIM] + fresh * noise;
        }
    }
    /* The sinks share the first axis, to which every query leans. */
    for (int32_t s = 0; s < width && s < INDEXER_SINKS; s++) {
        keys[(size_t)s * INDEXER_DIM] += 12.0f / (1.0f + (float)s);
    }
    return keys;
}

static void make_query(const struct inputs_spec *spec, int32_t row_idx, const float *keys,
                       float queries[INDEXER_HEADS][INDEXER_DIM], float weights[INDEXER_HEADS])
{
    struct inputs_rng rng = inputs_rng_of(spec->seed, STREAM_QUERIES + (uint64_t)row_idx);
    /* The rows of a chunk end close to each other; which one ends where depends on the row alone.
     */
    int32_t end = spec->width - 1 - (row_idx % INDEXER_ENDS) % spec->width;
    const float *recent = keys + (size_t)end * INDEXER_DIM;
    for (int h = 0; h < INDEXER_HEADS; h++) {
        weights[h] = 0.35f + 0.5f * nearly_normal(&rng); /* some heads count against a key */
        for (int d = 0; d < INDEXER_DIM; d++) {
            queries[h][d] = nearly_normal(&rng) + INDEXER_RECENCY * recent[d];
        }
        queries[h][0] += INDEXER_SINK_WEIGHT;
    }
    weights[0] = fabsf(weights[0]) + 0.25f; /* so that no row is all zeros or negative */
}

void inputs_indexer_row(const struct inputs_spec *spec, int32_t row_idx, const float *keys,
                        float *row)
{
    float queries[INDEXER_HEADS][INDEXER_DIM], weights[INDEXER_HEADS];
    make_query(spec, row_idx, keys, queries, weights);
    for (int32_t s = 0; s < spec->width; s++) {
        const float *key = keys + (size_t)s * INDEXER_DIM;
        float score = 0.0f;
        for (int h = 0; h < INDEXER_HEADS; h++) {
            float dot = 0.0f;
            for (int d = 0; d < INDEXER_DIM; d++) {
                dot += queries[h][d] * key[d];
            }
            score += weights[h] * (dot > 0.0f ? dot : 0.0f);
        }
        row[s] = score;
    }
}
