/*
 * inputs.h - seeded generators of score rows and valid lengths for tests and benchmarks.
 *
 * Each family is a whole kind of input that a selector can get wrong or slow, not one point of it.
 * A row depends on (family, seed, row number, width, k) alone: the same row alone and inside any
 * batch. A test that fails prints `inputs_describe`, which is all that is needed to repeat it.
 */
#ifndef TOPKD_TESTS_INPUTS_H
#define TOPKD_TESTS_INPUTS_H

#include "topk_select.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Family, its name on command lines, what it is. */
#define INPUTS_FAMILY_TABLE(X)                                                                     \
    X(INPUTS_INDEXER, "indexer", "weighted ReLU of query times key over heads, sinks and recency") \
    X(INPUTS_NORMAL, "normal", "independent standard normal scores")                               \
    X(INPUTS_CLUSTERED, "clustered", "uniform in [1.0, 1.245): one half-precision bin holds many") \
    X(INPUTS_NEIGHBOURS, "neighbours", "bit patterns one apart, ascending, descending, shuffled")  \
    X(INPUTS_ASCENDING, "ascending", "rising, low contrast: each score beats all before it")       \
    X(INPUTS_DESCENDING, "descending", "falling, low contrast")                                    \
    X(INPUTS_PLATEAU, "plateau", "fewer winners than k above one large plateau")                   \
    X(INPUTS_ONE_BIT, "one-bit", "fewer than k scores one bit pattern above a large plateau")      \
    X(INPUTS_RELU_ZEROS, "relu", "non-negative, mostly exact zeros, fewer non-zero than k")        \
    X(INPUTS_CONSTANT, "constant", "one value a row: -1, 0, -0, 1, tiny, huge or an infinity")     \
    X(INPUTS_TIES, "ties", "groups of four equal scores, shuffled")                                \
    X(INPUTS_FEW_VALUES, "few-values", "two to nine distinct values")                              \
    X(INPUTS_NAN_MOST, "nan-most", "83% NaN of both signs among normal scores")                    \
    X(INPUTS_NAN_ALL, "nan-all", "every other row nothing but NaN, the rest normal")               \
    X(INPUTS_SPECIALS, "specials", "NaN, infinities, zeros of both signs, extremes, all mixed")    \
    X(INPUTS_MINUS_INF, "minus-inf", "fewer than k scores above -inf, a few NaN")                  \
    X(INPUTS_SIGNED_ZEROS, "signed-zeros", "+0 and -0 mixed at the boundary")                      \
    X(INPUTS_DENORMAL, "denormal", "subnormal numbers of both signs around zero")                  \
    X(INPUTS_HALF_RANGE, "half-range", "magnitudes beyond half precision, from 60000 to 1e9")      \
    X(INPUTS_EXTREMES, "extremes", "+FLT_MAX and -FLT_MAX among ordinary scores")                  \
    X(INPUTS_FEW_FINITE, "few-finite", "a quarter of k finite scores, the rest -inf")              \
    X(INPUTS_ONE_TILE, "one-tile", "all winners side by side in one place of the row")             \
    X(INPUTS_SAW_TOOTH, "saw-tooth", "period 16 to 1024: regular samples see one phase only")      \
    X(INPUTS_BITS, "bits", "random bit patterns")                                                  \
    X(INPUTS_MIXED, "mixed", "each row of another family")

enum inputs_family {
#define INPUTS_FAMILY_ENUM(name, short_name, text) name,
    INPUTS_FAMILY_TABLE(INPUTS_FAMILY_ENUM) INPUTS_FAMILY_COUNT
#undef INPUTS_FAMILY_ENUM
};

struct inputs_spec {
    enum inputs_family family;
    uint64_t seed;
    int32_t num_rows;
    int32_t width;
    int64_t row_stride; /* elements */
    int32_t k;          /* shapes the families that place something at the boundary */
};

const char *inputs_family_name(enum inputs_family family);
const char *inputs_family_text(enum inputs_family family);

/* False when no family has this name. */
bool inputs_family_parse(const char *name, enum inputs_family *family_p);

/*
 * Writes every row. The elements between width and row_stride are set to +inf, so that a selector
 * that reads past a row gives itself away; after the last row nothing is written: the matrix has
 * inputs_elements() elements.
 */
void inputs_fill(const struct inputs_spec *spec, float *scores);
size_t inputs_elements(const struct inputs_spec *spec);

/*
 * The same with scores of any type: float32 as inputs_fill, and for 16 bits its numbers rounded to
 * the nearest, ties to even, NaN with the upper bits of their payload. Rounding would lose what
 * some families are about, so the edges of float32 become those of the type: subnormal numbers, the
 * smallest and the largest normal one, the one after 1; INPUTS_NEIGHBOURS counts in patterns of the
 * type, through NaN and around; INPUTS_BITS is drawn anew, from all patterns. What lies beyond each
 * row's length (unless lengths is NULL) becomes +inf.
 */
void inputs_fill_typed(const struct inputs_spec *spec, enum topk_dtype dtype,
                       const int32_t *lengths, void *scores);

/* Rounds numbers to 16 bits as inputs_fill_typed does, and no more than that. */
void inputs_narrow(enum topk_dtype dtype, const float *numbers, size_t count, uint16_t *scores);

/* Writes row `row_idx` alone, [spec->width]. For INPUTS_INDEXER inputs_fill is much cheaper. */
void inputs_fill_row(const struct inputs_spec *spec, int32_t row_idx, float *row);

/* One line "family=... seed=... rows=... width=... stride=... k=..."; always terminated. */
void inputs_describe(const struct inputs_spec *spec, char *text, size_t text_size);

/* ---- valid lengths -------------------------------------------------------------------------- */

#define INPUTS_LENGTHS_TABLE(X)                                                                    \
    X(INPUTS_LENGTHS_FULL, "full", "width in every row")                                           \
    X(INPUTS_LENGTHS_CAUSAL, "causal", "one more in each row, the last row full")                  \
    X(INPUTS_LENGTHS_RAGGED, "ragged", "anything from 0 to width")                                 \
    X(INPUTS_LENGTHS_EDGES, "edges", "around 0, k, width and both ends of int32")                  \
    X(INPUTS_LENGTHS_NEAR_K, "near-k", "k + 1, k, k - 1 and so on down to 0, and again")

enum inputs_lengths {
#define INPUTS_LENGTHS_ENUM(name, short_name, text) name,
    INPUTS_LENGTHS_TABLE(INPUTS_LENGTHS_ENUM) INPUTS_LENGTHS_COUNT
#undef INPUTS_LENGTHS_ENUM
};

const char *inputs_lengths_name(enum inputs_lengths kind);

/* Writes spec->num_rows lengths. */
void inputs_fill_lengths(const struct inputs_spec *spec, enum inputs_lengths kind,
                         int32_t *lengths);

/*
 * Overwrites what lies beyond each row's valid length with +inf, which a selector that ignores the
 * lengths would take first.
 */
void inputs_poison_tails(const struct inputs_spec *spec, const int32_t *lengths, float *scores);

/*
 * Writes a page table [num_rows, page_table_width] whose rows are distinct pages in random order,
 * as a paged cache has them.
 */
void inputs_fill_pages(uint64_t seed, int32_t num_rows, int32_t page_table_width, int64_t stride,
                       int32_t *page_table);

/* ---- random numbers ------------------------------------------------------------------------- */

/* A small generator; the caller keeps the state. Same seed, same numbers, on every machine. */
struct inputs_rng {
    uint64_t state;
};

struct inputs_rng inputs_rng_of(uint64_t seed, uint64_t stream);
uint64_t inputs_rng_next(struct inputs_rng *rng);
uint32_t inputs_rng_below(struct inputs_rng *rng, uint32_t end); /* 0 ... end - 1 */
float inputs_rng_uniform(struct inputs_rng *rng);                /* [0, 1) */
float inputs_rng_normal(struct inputs_rng *rng);

/* The seed of a test run: TOPKD_TEST_SEED when set (decimal or 0x...), else a fixed number. */
uint64_t inputs_run_seed(void);

#ifdef __cplusplus
}
#endif

#endif
