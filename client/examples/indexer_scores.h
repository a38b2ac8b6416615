/*
 * indexer_scores.h - score rows as the indexer of a sparse-attention layer makes them.
 *
 * For a query t and every key s before it: the sum over heads h of w[t,h] * ReLU(q[t,h] . k[s]).
 * Queries and keys are generated, with the structure that real ones show: a few sink keys at the
 * start that all queries like, keys that resemble their neighbours, and queries that resemble the
 * keys where they stand. Same seed, same scores.
 */
#ifndef TOPKD_EXAMPLES_INDEXER_SCORES_H
#define TOPKD_EXAMPLES_INDEXER_SCORES_H

#include <stdbool.h>
#include <stdint.h>

struct indexer {
    uint64_t seed;
    uint32_t rows;  /* queries */
    uint32_t width; /* keys */
    uint32_t heads;
};

/*
 * Writes scores [rows, width] and lengths [rows]: row t attends to the first lengths[t] keys (its
 * causal past, ragged from row to row; the last row sees all). What lies beyond is set to a score
 * that would win if it counted. False when memory is out.
 */
bool indexer_fill(const struct indexer *indexer, float *scores, int32_t *lengths);

#endif
