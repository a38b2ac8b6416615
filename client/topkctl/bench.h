/*
 * bench.h - what the files of `topkctl bench` share: the plan, and memory in which client processes
 * count while the parent looks on.
 *
 *   command_bench.c  the parent: starts clients, shows progress, ends them
 *   bench_client.c   a client process: sessions, scores, requests in flight
 *   bench_report.c   the result for people and programs
 */
#ifndef TOPKCTL_BENCH_H
#define TOPKCTL_BENCH_H

#include "ctl.h"
#include "histogram.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_STATUS_COUNT(name, number, text, hint) +1
#define BENCH_STATUSES (0u TOPKD_STATUS_TABLE(BENCH_STATUS_COUNT))

enum bench_phase {
    BENCH_OPENING = 0, /* connecting and filling memory */
    BENCH_READY = 1,   /* waiting for the others */
    BENCH_ENDED = 2,   /* the run is over */
    BENCH_FAILED = 3   /* see status and detail */
};

/* One client, which is one thread of one process. Written by it, read by the parent: numbers are
 * 64-bit words that grow, and the rest is read when the process has exited. */
struct bench_slot {
    uint32_t phase; /* enum bench_phase, atomic */
    uint64_t requests, failed, rows, scores;
    struct histogram latency;
    uint64_t by_status[BENCH_STATUSES];
    uint64_t queued_ns, run_ns; /* sums, as the daemon measured them */
    uint64_t retries;
    enum topkd_status status; /* of the first failure */
    char detail[256];
    char device[48];
    enum topkd_device_kind device_kind;
};

/* Shared by parent and clients. */
struct bench_shared {
    uint64_t start_ns, end_ns; /* what ends between them counts; 0: not known yet; atomic */
    bool stop;                 /* end at once; atomic */
    struct bench_slot slots[]; /* [clients * threads] */
};

struct bench_plan {
    const struct ctl_options *options;
    uint32_t num_clients; /* processes times threads */
    struct bench_shared *shared;
};

/* The body of a client process: runs its threads, never returns an error (slots have it). */
void bench_client(const struct bench_plan *plan, uint32_t first_slot);

void bench_report(const struct bench_plan *plan);

#endif
