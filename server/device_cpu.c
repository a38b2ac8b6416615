#include "device_cpu.h"

#include "assert.h"
#include "canary.h"
#include "detail.h"
#include "region_guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t device_cpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static enum topkd_status cpu_open(const struct device_config *config, struct device **device_p,
                                  char *detail)
{
    struct device_cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for the CPU device");
    cpu->base.ops = &device_cpu_ops;
    cpu->shm_prefix = config->shm_prefix;
    cpu->run_max = config->lanes;
    cpu->last_turn = &cpu->first_turn;
    cpu->canary_scores = calloc(CANARY_ROWS * CANARY_WIDTH, sizeof(*cpu->canary_scores));
    cpu->canary_indices = calloc(CANARY_ROWS * CANARY_K, sizeof(*cpu->canary_indices));
    enum topkd_status result = TOPKD_E_SYSTEM;
    if (cpu->canary_scores == NULL || cpu->canary_indices == NULL) {
        result = detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for the canary");
        goto err_free;
    }
    char reason[TOPK_DETAIL_SIZE] = "";
    struct topk_cpu_config selector = {.num_threads = config->threads};
    enum topk_status status = topk_cpu_create(&selector, &cpu->selector, reason);
    if (status != TOPK_OK) {
        result = detail_set(detail, TOPKD_E_SYSTEM, "cannot start the CPU selector: %s: %s",
                            topk_strerror(status), reason);
        goto err_free;
    }
    pthread_mutex_init(&cpu->mutex, NULL);
    region_guard_install();
    *device_p = &cpu->base;
    return TOPKD_OK;

err_free:
    free(cpu->canary_indices);
    free(cpu->canary_scores);
    free(cpu);
    return result;
}

static void cpu_close(struct device *device)
{
    struct device_cpu *cpu = device_cpu_of(device);

    topkd_assert(cpu->first_turn == NULL && cpu->num_running == 0);
    topk_cpu_destroy(cpu->selector);
    pthread_mutex_destroy(&cpu->mutex);
    free(cpu->canary_indices);
    free(cpu->canary_scores);
    free(cpu);
}

static void cpu_info(const struct device *device, struct device_info *info_p)
{
    const struct device_cpu *cpu = (const struct device_cpu *)device;

    *info_p = (struct device_info){.kind = WIRE_DEVICE_CPU,
                                   .k_max = TOPK_K_MAX,
                                   .rows_max = TOPK_ROWS_MAX,
                                   .width_max = TOPK_WIDTH_MAX,
                                   .dtypes = (1u << TOPK_DTYPE_COUNT) - 1,
                                   .client_lanes_max = 0};
    uint32_t num_threads = topk_cpu_num_threads(cpu->selector);
    (void)snprintf(info_p->name, sizeof(info_p->name), "CPU, %" PRIu32 " %s, %s", num_threads,
                   num_threads == 1 ? "thread" : "threads", topk_cpu_isa(cpu->selector));
}

static void cpu_routes(const struct device *device, struct topk_routes *routes_p)
{
    const struct topk_routes *from = &((const struct device_cpu *)device)->routes;

    *routes_p = (struct topk_routes){
        .copied = __atomic_load_n(&from->copied, __ATOMIC_RELAXED),
        .direct = __atomic_load_n(&from->direct, __ATOMIC_RELAXED),
        .certified = __atomic_load_n(&from->certified, __ATOMIC_RELAXED),
        .band = __atomic_load_n(&from->band, __ATOMIC_RELAXED),
        .recovery = __atomic_load_n(&from->recovery, __ATOMIC_RELAXED),
        .spill = __atomic_load_n(&from->spill, __ATOMIC_RELAXED),
        .clamped = __atomic_load_n(&from->clamped, __ATOMIC_RELAXED),
        .scores_read = __atomic_load_n(&from->scores_read, __ATOMIC_RELAXED),
    };
}

/* The CPU prepares nothing for a bucket: buckets only count here. */
static enum topkd_status cpu_bucket_open(struct device *device, struct bucket *bucket, char *detail)
{
    (void)device;
    (void)bucket;
    (void)detail;
    return TOPKD_OK;
}

static void cpu_bucket_close(struct device *device, struct bucket *bucket)
{
    (void)device;
    (void)bucket;
}

static enum topkd_status cpu_self_test(struct device *device, uint64_t seed, char *detail)
{
    struct device_cpu *cpu = device_cpu_of(device);
    struct topk_args args;
    struct topk_options options;
    char reason[TOPK_DETAIL_SIZE] = "";

    canary_fill(seed, cpu->canary_scores, cpu->canary_indices);
    canary_args(cpu->canary_scores, cpu->canary_indices, &args, &options);
    enum topk_status status = topk_cpu_select(cpu->selector, &args, &options, NULL, reason);
    if (status != TOPK_OK)
        return detail_set(detail, TOPKD_E_DEVICE_FAULT, "canary: %s: %s", topk_strerror(status),
                          reason);
    return canary_check(seed, cpu->canary_indices, detail) ? TOPKD_OK : TOPKD_E_DEVICE_FAULT;
}

const struct device_ops device_cpu_ops = {
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .routes = cpu_routes,
    .bucket_open = cpu_bucket_open,
    .bucket_close = cpu_bucket_close,
    .shared_create = device_cpu_shared_create,
    .shared_destroy = device_cpu_shared_destroy,
    .memory_open = device_cpu_memory_open,
    .memory_map = device_cpu_memory_map,
    .memory_close = device_cpu_memory_close,
    .memory_faulted = device_cpu_memory_faulted,
    .memory_unlink = device_cpu_memory_unlink,
    .lane_create = device_cpu_lane_create,
    .lane_destroy = device_cpu_lane_destroy,
    .lane_submit = device_cpu_lane_submit,
    .lane_cancel = device_cpu_lane_cancel,
    .self_test = cpu_self_test,
};
