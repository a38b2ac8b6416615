#include "cpu/scratch.h"

#include <stdlib.h>

#include "cpu/propose.h"

/* Choices. Four times K holds the admitted tail of nearly every row at once (about 1.5 K, see
 * propose.h) and keeps a raise, which costs a few passes over the list, rare on any other. Lists
 * for K up to 2048 stay within 64 KiB of a core's cache. */
#define LIST_SCORES_PER_K 4
#define LIST_SCORES_MIN 4096
#define LINE_BYTES 64u

int32_t topk_list_capacity(int32_t k)
{
    int32_t capacity = LIST_SCORES_PER_K * k;
    return capacity > LIST_SCORES_MIN ? capacity : LIST_SCORES_MIN;
}

bool topk_scratch_reserve(struct topk_scratch *scratch, int32_t k)
{
    if (k <= scratch->k_max) {
        return true;
    }
    size_t num_list = (size_t)topk_list_capacity(k) + TOPK_LIST_SLACK;
    size_t num_spare = (size_t)(k > TOPK_SAMPLE_SCORES_MAX ? k : TOPK_SAMPLE_SCORES_MAX);
    size_t num_words = 2 * num_list + 2 * num_spare + TOPK_SORT_BINS;
    size_t size_bytes = (num_words * 4 + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    char *memory = aligned_alloc(LINE_BYTES, size_bytes);
    if (memory == NULL) {
        return false;
    }
    topk_scratch_fini(scratch);
    scratch->memory = memory;
    scratch->k_max = k;
    scratch->list.values = (float *)(void *)memory;
    scratch->list.positions = (int32_t *)(void *)(memory + 4 * num_list);
    scratch->spare_values = (float *)(void *)(memory + 8 * num_list);
    scratch->spare_positions = (int32_t *)(void *)(memory + 8 * num_list + 4 * num_spare);
    scratch->bins = (uint32_t *)(void *)(memory + 8 * num_list + 8 * num_spare);
    return true;
}

void topk_scratch_fini(struct topk_scratch *scratch)
{
    free(scratch->memory);
    *scratch = (struct topk_scratch){0};
}
