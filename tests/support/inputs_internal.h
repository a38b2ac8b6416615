/* Shared by the generators only. */
#ifndef TOPKD_TESTS_INPUTS_INTERNAL_H
#define TOPKD_TESTS_INPUTS_INTERNAL_H

#include "inputs.h"

/* What a row is made of: INPUTS_MIXED takes another family in each row. */
struct inputs_spec inputs_spec_of_row(const struct inputs_spec *spec, int32_t row_idx);

/* The keys of the indexer family, which all rows of a matrix share: [width, INDEXER_DIM]. */
float *inputs_indexer_keys_create(uint64_t seed, int32_t width);

/* One row of weighted ReLU scores from those keys. */
void inputs_indexer_row(const struct inputs_spec *spec, int32_t row_idx, const float *keys,
                        float *row);

/* calloc that ends the test run when there is no memory. */
void *inputs_must_alloc(size_t count, size_t size_bytes);

#endif
