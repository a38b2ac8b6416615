/* The public face of the CPU selector: topk_cpu_* of topk_select.h. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/detail.h"
#include "cpu/pool.h"
#include "cpu/row.h"
#include "cpu/split.h"

/* Best first. */
static const struct topk_isa *const isas[] = {
#ifdef TOPKSEL_X86
    &topk_isa_avx512,
    &topk_isa_avx2,
#endif
    &topk_isa_portable,
};
#define NUM_ISAS (sizeof(isas) / sizeof(isas[0]))

struct topk_cpu {
    const struct topk_isa *isa;
    struct topk_pool *pool;
    struct topk_split *split;
};

static enum topk_status choose_isa(const char *name, const struct topk_isa **isa_p, char *detail)
{
    for (size_t i = 0; i < NUM_ISAS; i++) {
        if (name != NULL && strcmp(name, isas[i]->name) != 0) {
            continue;
        }
        if (isas[i]->usable()) {
            *isa_p = isas[i];
            return TOPK_OK;
        }
        if (name != NULL) {
            return topk_detail(
                detail, TOPK_E_UNSUPPORTED,
                "this processor does not have %s; leave isa NULL for the best it has", name);
        }
    }
    return topk_detail(detail, TOPK_E_INVALID,
                       "isa \"%.32s\" is unknown; pass NULL, portable, avx2 or avx512", name);
}

/* The processors this process may run on, at least 1. The kernel refuses a set that is too small
 * for its own, so the set grows until it fits. */
static uint32_t count_processors(void)
{
    for (int num_bits = 1024; num_bits <= 1 << 20; num_bits *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)num_bits);
        size_t size_bytes = CPU_ALLOC_SIZE((size_t)num_bits);
        if (set == NULL) {
            break;
        }
        int error = sched_getaffinity(0, size_bytes, set);
        int count = error == 0 ? CPU_COUNT_S(size_bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) {
            return (uint32_t)count;
        }
    }
    return 1;
}

static enum topk_status choose_threads(uint32_t wanted, uint32_t *num_threads_p, char *detail)
{
    if (wanted > TOPK_THREADS_MAX) {
        return topk_detail(detail, TOPK_E_INVALID,
                           "num_threads is %u; pass 1 ... %u, or 0 for one a processor", wanted,
                           TOPK_THREADS_MAX);
    }
    uint32_t available = wanted != 0 ? wanted : count_processors();
    *num_threads_p = available < TOPK_THREADS_MAX ? available : TOPK_THREADS_MAX;
    return TOPK_OK;
}

enum topk_status topk_cpu_create(const struct topk_cpu_config *config, struct topk_cpu **cpu_p,
                                 char *detail)
{
    if (config == NULL || cpu_p == NULL) {
        return topk_detail(detail, TOPK_E_INVALID, "%s is NULL; pass the address of one",
                           config == NULL ? "config" : "cpu_p");
    }
    uint32_t num_threads = 0;
    const struct topk_isa *isa = NULL;
    enum topk_status status = choose_isa(config->isa, &isa, detail);
    if (status == TOPK_OK) {
        status = choose_threads(config->num_threads, &num_threads, detail);
    }
    if (status != TOPK_OK) {
        return status;
    }
    struct topk_cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL) {
        return topk_detail(detail, TOPK_E_NO_MEMORY, "no memory for a selector");
    }
    cpu->isa = isa;
    cpu->split = topk_split_create(num_threads);
    if (cpu->split == NULL) {
        status = topk_detail(detail, TOPK_E_NO_MEMORY,
                             "no memory for the lists of %u threads; ask for fewer", num_threads);
        goto err_free;
    }
    status = topk_pool_create(num_threads, &cpu->pool, detail);
    if (status != TOPK_OK) {
        goto err_split;
    }
    *cpu_p = cpu;
    return TOPK_OK;

err_split:
    topk_split_destroy(cpu->split);
err_free:
    free(cpu);
    return status;
}

void topk_cpu_destroy(struct topk_cpu *cpu)
{
    if (cpu != NULL) {
        topk_pool_destroy(cpu->pool);
        topk_split_destroy(cpu->split);
        free(cpu);
    }
}

const char *topk_cpu_isa(const struct topk_cpu *cpu)
{
    return cpu->isa->name;
}

uint32_t topk_cpu_num_threads(const struct topk_cpu *cpu)
{
    return topk_pool_num_threads(cpu->pool);
}

static void run_row(void *context, int64_t item, int64_t next_item, struct topk_scratch *scratch,
                    struct topk_routes *routes)
{
    topk_row_select(context, (int32_t)item, (int32_t)next_item, scratch, routes);
}

enum topk_status topk_cpu_select(struct topk_cpu *cpu, const struct topk_args *args,
                                 const struct topk_options *options, const bool *cancel,
                                 char *detail)
{
    if (cpu == NULL || args == NULL || options == NULL) {
        return topk_detail(detail, TOPK_E_INVALID, "%s is NULL; pass the address of one",
                           cpu == NULL    ? "cpu"
                           : args == NULL ? "args"
                                          : "options");
    }
    struct topk_request request = {.isa = cpu->isa, .args = *args, .options = *options};
    enum topk_status status = topk_args_check(&request.args, &request.options, detail);
    if (status != TOPK_OK) {
        return status;
    }
    if (topk_split_acquire(cpu->split, &request)) {
        status = topk_split_run(cpu->split, &request, cpu->pool, cancel);
    } else {
        struct topk_job job = {
            .run = run_row,
            .context = &request,
            .num_items = request.args.num_rows,
            .item_scores = request.args.width,
            .k = request.args.k,
            .routes = request.args.routes,
            .cancel = cancel,
        };
        status = topk_pool_run(cpu->pool, &job);
    }
    if (status == TOPK_E_CANCELLED) {
        return topk_detail(detail, status, "cancelled; the output is undefined");
    }
    if (status == TOPK_E_NO_MEMORY) {
        return topk_detail(detail, status, "no memory for the scratch of k %d; ask for a smaller k",
                           request.args.k);
    }
    return status;
}
