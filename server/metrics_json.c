/* /status.json: what the page shows. Keys only grow in number; times are nanoseconds. */
#include "metrics.h"

#include <inttypes.h>

/* Numbers of Stats under their own names. */
#define STATS_NUMBERS(X)                                                                           \
    X(uptime_ms)                                                                                   \
    X(sessions)                                                                                    \
    X(regions)                                                                                     \
    X(leases)                                                                                      \
    X(queued)                                                                                      \
    X(running)                                                                                     \
    X(mapped_bytes)                                                                                \
    X(lanes)                                                                                       \
    X(lanes_armed)                                                                                 \
    X(lanes_max)                                                                                   \
    X(lanes_wanted)                                                                                \
    X(lane_steps)                                                                                  \
    X(lane_pauses)                                                                                 \
    X(select_batches)                                                                              \
    X(selects_batched)                                                                             \
    X(sessions_opened)                                                                             \
    X(requests)                                                                                    \
    X(requests_failed)                                                                             \
    X(replies_repeated)                                                                            \
    X(messages_rejected)                                                                           \
    X(rows_clamped)                                                                                \
    X(scores_read)

static void number(struct textbuf *text, const char *key, uint64_t value)
{
    textbuf_add(text, ",\"%s\":%" PRIu64, key, value);
}

/* null for what is not known. */
static void age(struct textbuf *text, const char *key, uint64_t age_ms)
{
    if (age_ms == METRICS_NEVER)
        textbuf_add(text, ",\"%s\":null", key);
    else
        number(text, key, age_ms);
}

static void string(struct textbuf *text, const char *key, const char *value)
{
    textbuf_add(text, ",\"%s\":", key);
    textbuf_quote(text, value);
}

static void boolean(struct textbuf *text, const char *key, bool value)
{
    textbuf_add(text, ",\"%s\":%s", key, value ? "true" : "false");
}

static void latency(struct textbuf *text, const char *key, const uint64_t *bins, uint64_t sum_ns)
{
    textbuf_add(text, ",\"%s\":{\"sum_ns\":%" PRIu64 ",\"log2_bins\":[", key, sum_ns);
    for (uint32_t i = 0; i < WIRE_HISTOGRAM_BINS; i++)
        textbuf_add(text, "%s%" PRIu64, i == 0 ? "" : ",", bins[i]);
    textbuf_add(text, "]}");
}

/* An object of counters; `count` of them. */
static void named(struct textbuf *text, const char *key, const char *const *names,
                  const uint64_t *counts, uint32_t count)
{
    textbuf_add(text, ",\"%s\":{", key);
    for (uint32_t i = 0; i < count; i++)
        textbuf_add(text, "%s\"%s\":%" PRIu64, i == 0 ? "" : ",", names[i], counts[i]);
    textbuf_add(text, "}");
}

static void codes(struct textbuf *text, const struct figures_tally *tally)
{
    char code[WIRE_NAME_SIZE];
    textbuf_add(text, ",\"codes\":{\"ok\":%" PRIu64, tally->by_status[TOPKD_OK]);
    for (uint32_t i = TOPKD_OK + 1; i < FIGURES_STATUSES; i++)
        if (tally->by_status[i] != 0)
            number(text, metrics_code((enum topkd_status)i, code), tally->by_status[i]);
    textbuf_add(text, "}");
}

static void buckets(struct textbuf *text, const struct figures *figures)
{
    char variant[METRICS_VARIANT_SIZE];
    bool is_first = true;
    textbuf_add(text, ",\"buckets\":[");
    for (uint32_t i = 0; i < figures->stats.num_buckets; i++) {
        const struct wire_bucket_stats *bucket = &figures->stats.buckets[i];
        const struct figures_bucket *more = &figures->buckets[i];
        if (bucket->k == 0) /* a place that was given up */
            continue;
        textbuf_add(text, "%s{\"bucket\":%u", is_first ? "" : ",", bucket->bucket);
        number(text, "rows", bucket->rows);
        number(text, "width", bucket->width);
        number(text, "k", bucket->k);
        string(text, "variant", metrics_variant(more, variant));
        boolean(text, "configured", more->is_pinned);
        number(text, "requests", bucket->requests);
        number(text, "misses", more->misses);
        textbuf_add(text, "}");
        is_first = false;
    }
    textbuf_add(text, "]");
}

static void sessions(struct textbuf *text, const struct figures *figures)
{
    textbuf_add(text, ",\"session_list\":[");
    for (uint32_t i = 0; i < figures->num_sessions; i++) {
        const struct figures_session *session = &figures->sessions[i];
        textbuf_add(text, "%s{\"session\":%" PRIu64, i == 0 ? "" : ",", session->session);
        number(text, "age_ms", session->age_ms);
        number(text, "regions", session->regions);
        number(text, "mapped_bytes", session->mapped_bytes);
        number(text, "outstanding", session->outstanding);
        number(text, "leases", session->leases);
        number(text, "requests", session->requests);
        textbuf_add(text, "}");
    }
    textbuf_add(text, "]");
}

static void figures_of(struct textbuf *text, const struct metrics_view *view,
                       const struct figures *figures)
{
    const struct wire_stats_reply *stats = &figures->stats;
    uint64_t routes[METRICS_ROUTES];
    textbuf_add(text, ",\"figures\":{\"age_ms\":%" PRIu64,
                view->now_ns > figures->published_ns
                    ? (view->now_ns - figures->published_ns) / 1000000
                    : 0);
    number(text, "published_ns", figures->published_ns);
#define STATS_NUMBER(field) number(text, #field, stats->field);
    STATS_NUMBERS(STATS_NUMBER)
#undef STATS_NUMBER
    number(text, "loop_lag_ns", figures->loop_lag_ns);
    number(text, "canaries", figures->tally.canaries);
    codes(text, &figures->tally);
    named(text, "reaped", metrics_end_names, figures->tally.ends, FIGURES_ENDS);
    metrics_routes(stats, routes);
    named(text, "routes", metrics_route_names, routes, METRICS_ROUTES);
    latency(text, "request", stats->request_ns_bins, stats->request_ns_sum);
    latency(text, "run", stats->run_ns_bins, stats->run_ns_sum);
    buckets(text, figures);
    sessions(text, figures);
    textbuf_add(text, "}");
}

static void device_of(struct textbuf *text, const struct metrics_view *view,
                      const struct metrics_device *device)
{
    const char *reason = metrics_not_ready(view, device);
    textbuf_add(text, "{\"device\":");
    textbuf_quote(text, device->device);
    string(text, "name", device->name);
    string(text, "kind", device->kind == WIRE_DEVICE_CUDA ? "cuda" : "cpu");
    string(text, "state", metrics_state_names[device->state]);
    boolean(text, "ready", reason == NULL);
    string(text, "reason", reason == NULL ? "" : reason);
    number(text, "epoch", device->epoch);
    number(text, "restarts", device->restarts);
    number(text, "canaries_wrong", device->canaries_wrong);
    boolean(text, "canary_ok", device->canary_ok);
    age(text, "canary_age_ms", device->canary_age_ms);
    age(text, "heard_ago_ms", device->heard_ago_ms);
    if (device->figures != NULL)
        figures_of(text, view, device->figures);
    else
        textbuf_add(text, ",\"figures\":null");
    textbuf_add(text, "}");
}

void metrics_json(const struct metrics_view *view, struct textbuf *text)
{
    textbuf_add(text, "{\"name\":\"topkd\"");
    string(text, "version", view->version);
    number(text, "wire", WIRE_VERSION);
    number(text, "uptime_ms", view->uptime_ms);
    number(text, "now_ns", view->now_ns);
    boolean(text, "ready", metrics_ready(view));
    boolean(text, "draining", view->is_draining);
    number(text, "ready_ms", view->ready_ms);
    number(text, "discovery_requests", view->discovery_requests);
    number(text, "http_answers", view->http_answers);
    textbuf_add(text, ",\"devices\":[");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        if (i > 0)
            textbuf_bytes(text, ",", 1);
        device_of(text, view, &view->devices[i]);
    }
    textbuf_add(text, "]}\n");
}
