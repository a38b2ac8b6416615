/*
 * device_cpu.h - what the files of the CPU device share: device_cpu.c (open, self-test, table),
 * device_cpu_memory.c (POSIX shared memory) and device_cpu_lane.c (lanes).
 */
#ifndef TOPKD_SERVER_DEVICE_CPU_H
#define TOPKD_SERVER_DEVICE_CPU_H

#include "device.h"

#include <pthread.h>

struct device_cpu {
    struct device base;
    struct topk_cpu *selector;
    const char *shm_prefix;
    struct topk_routes routes; /* grows by atomic additions of the selector */
    float *canary_scores;
    int32_t *canary_indices;

    /* The lanes. At most run_max of them select at the same time, first come, first served. */
    pthread_mutex_t mutex; /* guards what follows and all lanes */
    uint32_t run_max;
    uint32_t num_running;
    struct device_lane *first_turn, **last_turn; /* lanes whose job is ready to run */
};

static inline struct device_cpu *device_cpu_of(struct device *device)
{
    return (struct device_cpu *)device; /* base is its first member */
}

/* Monotonic clock. */
uint64_t device_cpu_now_ns(void);

enum topkd_status device_cpu_shared_create(struct device *device,
                                           const struct device_shared_config *config,
                                           struct device_shared **shared_p, char *detail);
/* Takes memory for a part of it. Blocks while the kernel clears pages. */
enum topkd_status device_cpu_shared_reserve(const struct device_shared *shared, uint64_t offset,
                                            uint64_t size_bytes, char *detail);
void device_cpu_shared_destroy(struct device *device, struct device_shared *shared);
bool device_cpu_shared_faulted(const struct device_shared *shared);

enum topkd_status device_cpu_memory_open(struct device *device,
                                         const struct wire_register_request *request,
                                         const struct peer *peer, struct device_memory **memory_p,
                                         char *detail);
enum topkd_status device_cpu_memory_map(struct device *device, struct device_memory *memory,
                                        char *detail);
void device_cpu_memory_close(struct device *device, struct device_memory *memory);
bool device_cpu_memory_faulted(const struct device_memory *memory);
void device_cpu_memory_unlink(const struct wire_memory *memory, const struct device_memory_key *key,
                              const struct peer *peer);

enum topkd_status device_cpu_lane_create(struct device *device, struct device_shared *page,
                                         struct device_lane **lane_p, char *detail);
void device_cpu_lane_destroy(struct device *device, struct device_lane *lane);
void device_cpu_lane_submit(struct device_lane *lane, struct device_job *job);
bool device_cpu_lane_cancel(struct device_lane *lane, struct device_job *job,
                            enum topkd_status status);

#endif
