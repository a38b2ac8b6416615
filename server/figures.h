/*
 * figures.h - what a worker tells of itself for metrics: one struct in memory shared with the
 * supervisor, written whole at every heartbeat, read whenever somebody asks.
 *
 * The supervisor makes a page a device and hands its descriptor to each worker of that device
 * (FIGURES_FD). A sequence number tells a reader that it met a writer; a worker that dies while it
 * writes leaves the number odd, and the supervisor keeps what it read before. The request path
 * knows nothing of it: it counts in plain memory of the worker, as it does for Stats.
 */
#ifndef TOPKD_SERVER_FIGURES_H
#define TOPKD_SERVER_FIGURES_H

#include "control.h"
#include "topkd_status.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

#define FIGURES_FD (CONTROL_CONFIG_FD + 1) /* of a worker: its page */
#define FIGURES_SESSIONS_MAX 32u           /* choice: sessions listed one by one */

#define FIGURES_STATUS_COUNT(name, number, text, hint) +1
#define FIGURES_STATUSES (0u TOPKD_STATUS_TABLE(FIGURES_STATUS_COUNT)) /* numbers 0 ... */

/* Why sessions ended: identifier, label, text. */
#define FIGURES_END_TABLE(X)                                                                       \
    X(FIGURES_END_CLOSED, "closed", "the client closed its connection, or its process ended")      \
    X(FIGURES_END_DIED, "died", "the client's process died while others kept its connection")      \
    X(FIGURES_END_DRAINED, "drained", "the worker drained")                                        \
    X(FIGURES_END_FAULT, "fault", "the worker gave up on its device")

enum figures_end {
#define FIGURES_END_ENUM(name, label, text) name,
    FIGURES_END_TABLE(FIGURES_END_ENUM) FIGURES_ENDS
#undef FIGURES_END_ENUM
};

/* Counters of a worker beside those of Stats. */
struct figures_tally {
    uint64_t by_status[FIGURES_STATUSES]; /* Selects that ended with this status */
    uint64_t ends[FIGURES_ENDS];          /* sessions */
    uint64_t canaries;                    /* that came out right */
};

/* What tells buckets of equal shape apart, and how often a graph had to be made for a request. */
struct figures_bucket {
    uint32_t alignment_bytes;
    uint8_t order, ties, dtype; /* values of enum topk_order / topk_ties / topk_dtype */
    bool is_pinned, has_values, has_page_table, has_row_offsets;
    uint64_t misses;
};

/* A session without its name: whoever reaches the port may look. */
struct figures_session {
    uint64_t session, mapped_bytes, requests, age_ms;
    uint32_t regions, outstanding, leases;
};

struct figures {
    uint64_t epoch;
    uint64_t published_ns; /* CLOCK_MONOTONIC, one for all processes */
    struct wire_stats_reply stats;
    struct figures_tally tally;
    uint64_t loop_lag_ns;                            /* longest turn of the loop, last minute */
    struct figures_bucket buckets[WIRE_BUCKETS_MAX]; /* beside stats.buckets */
    uint32_t num_sessions;
    struct figures_session sessions[FIGURES_SESSIONS_MAX];
};

struct figures_page;

/* Counts a Select that has ended, or was refused. */
void figures_count(struct figures_tally *tally, enum topkd_status status);

/* A zeroed page of a size that cannot change, mapped for reading. 0, or -errno. */
int figures_create(struct figures_page **page_p, int *fd_p);
/* Maps the page behind a descriptor for writing; NULL when it is none. The descriptor stays open.
 */
struct figures_page *figures_open(int fd);
void figures_close(struct figures_page *page);

/* One writer. */
void figures_publish(struct figures_page *page, const struct figures *figures);
/* False when nothing was published yet, or a writer was met again and again (or died writing). */
bool figures_read(const struct figures_page *page, struct figures *figures_p);

#endif
