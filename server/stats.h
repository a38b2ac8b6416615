/*
 * stats.h - counters and latency histograms of a worker. One thread; the counters live in the wire
 * struct itself, so that a Stats reply is a copy.
 */
#ifndef TOPKD_SERVER_STATS_H
#define TOPKD_SERVER_STATS_H

#include "topk_select.h"
#include "topkd_wire.h"

#include <stdint.h>

/* The bin of a latency: i for [2^i, 2^(i+1)) ns; 0 ns counts as 1, the last bin is open. */
uint32_t stats_bin(uint64_t latency_ns);

/* A Select has ended: from arrival to end, and the part spent selecting (0: it never ran). */
void stats_request_done(struct wire_stats_reply *stats, enum topkd_status status,
                        uint64_t request_ns, uint64_t run_ns);

/* A Select was refused before it was queued. */
void stats_request_refused(struct wire_stats_reply *stats);

/* Copies the route counters into their wire fields. */
void stats_set_routes(struct wire_stats_reply *stats, const struct topk_routes *routes);

#endif
