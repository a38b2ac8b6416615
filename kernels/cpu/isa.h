/*
 * The loops that touch many scores, once for each instruction set. Everything else of the selector
 * is common code above this table. The files isa_*.c are compiled with their own flags; nothing of
 * them runs before `usable` said yes.
 */
#ifndef TOPKSEL_CPU_ISA_H
#define TOPKSEL_CPU_ISA_H

#include "topk_select.h"

/* Scores a step of `admit` looks at: one bit each in a 64-bit mask. */
#define TOPK_BLOCK_SCORES 64

/* How far ahead of its loads a pass asks for memory. Measured, Zen 3: from 8 to 16 KiB ahead a pass
 * is faster than one that leaves it to the processor (38 against 42 us for 131072 scores). */
#define TOPK_FETCH_AHEAD_BYTES 12288u

/* Entries a list has beyond its capacity: one block that came in at the brim, and vector stores
 * that write past the last entry. */
#define TOPK_LIST_SLACK (2 * TOPK_BLOCK_SCORES)

/* A function that every type of score has for itself, its dtype being a constant there. */
#define TOPK_EACH_DTYPE static inline __attribute__((always_inline))

/*
 * The admitted tail of a row: candidates in ascending position, each with the score read in the
 * pass, so that nothing later goes back to the row.
 */
struct topk_list {
    float *values;      /* [capacity + TOPK_LIST_SLACK] */
    int32_t *positions; /* [capacity + TOPK_LIST_SLACK] */
    int32_t count;
    int32_t capacity;
    float boundary; /* scores >= boundary are admitted; NaN admits none */
};

/* The loops that look at scores where they are, whatever their type: once for each enum
 * topk_dtype. What leaves them is float32. */
struct topk_isa_reader {
    /*
     * Appends every score >= list->boundary (never a NaN) of row[begin, end). Stops after the block
     * that brings the count to the capacity or beyond. Returns where to go on, `end` when done.
     */
    int32_t (*admit)(const void *row, int32_t begin, int32_t end, struct topk_list *list);

    /* Writes the numbers of row[begin, end) to values[end - begin]. */
    void (*widen)(const void *row, int32_t begin, int32_t end, float *values);
};

struct topk_isa {
    const char *name;
    bool (*usable)(void); /* on this processor; plain code */
    struct topk_isa_reader read[TOPK_DTYPE_COUNT];

    /* How many of values[count] are >= bound. */
    int32_t (*count_at_least)(const float *values, int32_t count, float bound);

    /* The smallest and largest of values[count] within from ... upto (a NaN is in no range); +inf
     * and -inf when there is none. */
    void (*range)(const float *values, int32_t count, float from, float upto, float *min_p,
                  float *max_p);

    /* Keeps, in order, the entries above bound and the first num_ties of those equal to it. */
    void (*keep)(struct topk_list *list, float bound, int32_t num_ties);
};

extern const struct topk_isa topk_isa_portable;
#ifdef TOPKSEL_X86
extern const struct topk_isa topk_isa_avx2;
extern const struct topk_isa topk_isa_avx512;
#endif

#endif
