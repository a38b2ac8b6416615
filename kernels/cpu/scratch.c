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
    size_t entry_bytes = 2 * (size_t)k * sizeof(uint64_t);
    size_t list_bytes = num_list * sizeof(float), spare_bytes = num_spare * sizeof(float);
    size_t size_bytes = entry_bytes + 2 * list_bytes + 2 * spare_bytes;
    size_bytes = (size_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    char *memory = aligned_alloc(LINE_BYTES, size_bytes);
    if (memory == NULL) {
        return false;
    }
    topk_scratch_fini(scratch);
    scratch->memory = memory;
    scratch->k_max = k;
    scratch->entries = (uint64_t *)(void *)memory;
    memory += entry_bytes;
    scratch->list.values = (float *)(void *)memory;
    memory += list_bytes;
    scratch->list.positions = (int32_t *)(void *)memory;
    memory += list_bytes;
    scratch->spare_values = (float *)(void *)memory;
    memory += spare_bytes;
    scratch->spare_positions = (int32_t *)(void *)memory;
    return true;
}

void topk_scratch_fini(struct topk_scratch *scratch)
{
    free(scratch->memory);
    *scratch = (struct topk_scratch){0};
}
