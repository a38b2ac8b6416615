/*
 * metrics.h - the daemon as its HTTP pages show it: /metrics in Prometheus' text format, version
 * 0.0.4, /status.json and /readyz. Pure: from a plain struct to text.
 *
 * Names begin with topkd_, units are seconds and bytes, counters end with _total and begin anew
 * with a worker's life. Labels are bounded: a device by its UUID, never a process or a client.
 */
#ifndef TOPKD_SERVER_METRICS_H
#define TOPKD_SERVER_METRICS_H

#include "figures.h"
#include "textbuf.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>

#define METRICS_NEVER UINT64_MAX

/* One device. Strings and figures belong to the caller. */
struct metrics_device {
    const char *device, *name;
    enum wire_device_kind kind;
    enum wire_device_state state;
    uint64_t epoch;
    uint32_t restarts;
    uint32_t canaries_wrong;       /* of all lives: each ended one */
    bool canary_ok;                /* the last one that ended */
    uint64_t canary_age_ms;        /* since it ended, or METRICS_NEVER */
    uint64_t heard_ago_ms;         /* since the worker's last heartbeat, or METRICS_NEVER */
    const struct figures *figures; /* of this life, or NULL */
};

struct metrics_view {
    const char *version;
    uint64_t uptime_ms;
    double started_unix_s;
    bool is_draining;
    uint64_t now_ns;   /* CLOCK_MONOTONIC, as figures.published_ns */
    uint64_t ready_ms; /* the oldest canary of a ready device */
    /* What the supervisor's socket and these pages were asked. */
    uint64_t discovery_requests, discovery_failed;
    uint64_t http_answers, http_refused, http_evicted;
    uint32_t num_devices;
    const struct metrics_device *devices;
};

/* NULL when a device is ready, otherwise why it is not, in a few words. */
const char *metrics_not_ready(const struct metrics_view *view, const struct metrics_device *device);
bool metrics_ready(const struct metrics_view *view); /* every device, and no drain */

void metrics_prometheus(const struct metrics_view *view, struct textbuf *text);
void metrics_json(const struct metrics_view *view, struct textbuf *text);
/* A line a device, and one for the whole. */
void metrics_readiness(const struct metrics_view *view, struct textbuf *text);

/* The code of a status as label: "ok", "busy". `out` has WIRE_NAME_SIZE bytes. */
const char *metrics_code(enum topkd_status status, char *out);
/* Rows by route: the counters in a fixed order, and their names. */
#define METRICS_ROUTES 6u
extern const char *const metrics_route_names[METRICS_ROUTES];
void metrics_routes(const struct wire_stats_reply *stats, uint64_t counts[METRICS_ROUTES]);
/* What a bucket is for beside its shape: "any" or "index,lowest,values". `out` has 64 bytes. */
#define METRICS_VARIANT_SIZE 64u
const char *metrics_variant(const struct figures_bucket *bucket, char *out);

extern const char *const metrics_end_names[FIGURES_ENDS];
extern const char *const metrics_state_names[4];

#endif
