/*
 * hostile.h - a request whose client changes its memory while a selection reads it, on the model of
 * a GPU; every array of it lies at the edge of what may be touched.
 */
#ifndef TOPKD_TESTS_EMULATE_HOSTILE_H
#define TOPKD_TESTS_EMULATE_HOSTILE_H

#include "select_gpu.h"

/* Memory between two pages that cannot be touched: at the end of its pages, or at the beginning.
 * What is left of the pages is filled, and must stay so. */
struct edge {
    char *pages, *at;
    size_t pages_bytes, size_bytes;
};

struct hostile {
    struct gpu_spec spec;
    struct topk_args args; /* what the model calls device memory is the host's as well */
    struct edge scores, lengths, indices, values, page_table, row_offsets, routes, descriptor,
        workspace;
    const struct topk_args *d_args; /* in `descriptor` */
    char *scores_before;            /* what hostile_restore writes back */
    int32_t *lengths_before;
    struct inputs_rng rng;
    uint32_t mean, left;      /* calls between two changes, and until the next */
    uint32_t lengths_percent; /* of the changes are of lengths, the others of scores */
};

void hostile_init(const struct gpu_spec *spec, const struct topk_plan *plan, uint64_t seed,
                  struct hostile *hostile);
void hostile_fini(struct hostile *hostile);

/* Changes something now and then; for emulate_on_switch. */
void hostile_meddle(void *hostile);

/* Scores and lengths as they were at first. */
void hostile_restore(struct hostile *hostile);

/* Whether nothing was written beside what a selection may write, and no position that is none.
 * what[ORACLE_DETAIL_SIZE]. */
bool hostile_is_within(const struct hostile *hostile, char *what);

#endif
