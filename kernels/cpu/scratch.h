/* The memory one thread works in. Its size depends on K alone, never on the rows. */
#ifndef TOPKSEL_CPU_SCRATCH_H
#define TOPKSEL_CPU_SCRATCH_H

#include "cpu/isa.h"

struct topk_scratch {
    struct topk_list list;    /* the admitted tail of the row in hand */
    float *spare_values;      /* [num_spare] the sample; the NaN of a row; the end of a sort */
    int32_t *spare_positions; /* [num_spare] num_spare: at least K and a sample */
    uint64_t *entries;        /* [2 * K] for sorting by value */
    int32_t k_max;            /* K this scratch serves; 0 before the first reserve */
    void *memory;
};

/* Entries of a candidate list for K, slack not included. */
int32_t topk_list_capacity(int32_t k);

/* Makes the scratch serve K; keeps it when it does already. False, with the scratch as it was, when
 * there is no memory. The owner calls; ends with topk_scratch_fini. */
bool topk_scratch_reserve(struct topk_scratch *scratch, int32_t k);
void topk_scratch_fini(struct topk_scratch *scratch);

#endif
