/* Prometheus' text format: a family at a time, every device in it. */
#include "metrics.h"

#include <inttypes.h>

/* Bins of Stats that become buckets of their own; latencies below and above join the ends.
 * [2^10, 2^36) ns: 1 us to 69 s. */
#define BIN_FIRST 10u
#define BIN_LAST 35u

#define NS_PER_MS UINT64_C(1000000)

/* Families of one number a device: name, type, help, field of Stats. */
#define STATS_FAMILIES(X)                                                                          \
    X("topkd_sessions", "gauge", "Open sessions.", sessions)                                       \
    X("topkd_regions", "gauge", "Registered regions of all sessions.", regions)                    \
    X("topkd_mapped_bytes", "gauge", "Client memory that the worker has mapped.", mapped_bytes)    \
    X("topkd_arena_leases", "gauge", "Result slots that clients hold.", leases)                    \
    X("topkd_requests_queued", "gauge", "Selections waiting for their turn or a semaphore.",       \
      queued)                                                                                      \
    X("topkd_requests_running", "gauge", "Selections on the device.", running)                     \
    X("topkd_lanes", "gauge", "Lanes that clients hold open for their graphs.", lanes)             \
    X("topkd_lanes_armed", "gauge", "Of them those that the device waits for.", lanes_armed)       \
    X("topkd_lanes_max", "gauge",                                                                  \
      "Lanes that may be open; fewer than limits.client_lanes_max "                                \
      "where the device's hardware queues hold fewer.",                                            \
      lanes_max)                                                                                   \
    X("topkd_lane_steps_total", "counter", "Selections that lanes ran.", lane_steps)               \
    X("topkd_lane_pauses_total", "counter", "Times that all lanes were paused.", lane_pauses)      \
    X("topkd_sessions_opened_total", "counter", "Sessions opened.", sessions_opened)               \
    X("topkd_replies_repeated_total", "counter", "Repeated requests answered from the cache.",     \
      replies_repeated)                                                                            \
    X("topkd_select_batches_total", "counter", "Messages with several selections.",                \
      select_batches)                                                                              \
    X("topkd_selects_batched_total", "counter", "Selections that came in such messages.",          \
      selects_batched)                                                                             \
    X("topkd_messages_rejected_total", "counter", "Messages that could not be understood.",        \
      messages_rejected)                                                                           \
    X("topkd_lengths_clamped_total", "counter", "Valid lengths outside of their row.",             \
      rows_clamped)                                                                                \
    X("topkd_scores_read_total", "counter", "Scores read, samples and repeated passes included.",  \
      scores_read)

static void family(struct textbuf *text, const char *name, const char *type, const char *help)
{
    textbuf_add(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* name{device="..." : the caller adds further labels and closes. */
static void series(struct textbuf *text, const char *name, const struct metrics_device *device)
{
    textbuf_add(text, "%s{device=", name);
    textbuf_quote(text, device->device);
}

static void stats_families(const struct metrics_view *view, struct textbuf *text)
{
#define STATS_FAMILY(name, type, help, field)                                                      \
    family(text, name, type, help);                                                                \
    for (uint32_t i = 0; i < view->num_devices; i++) {                                             \
        const struct figures *figures = view->devices[i].figures;                                  \
        if (figures == NULL)                                                                       \
            continue;                                                                              \
        series(text, name, &view->devices[i]);                                                     \
        textbuf_add(text, "} %" PRIu64 "\n", (uint64_t)figures->stats.field);                      \
    }
    STATS_FAMILIES(STATS_FAMILY)
#undef STATS_FAMILY
}

/* ---- Families with a label ------------------------------------------------------------------- */

static void requests_by_code(const struct metrics_device *device, struct textbuf *text)
{
    char code[WIRE_NAME_SIZE];
    for (uint32_t i = 0; i < FIGURES_STATUSES; i++) {
        series(text, "topkd_requests_total", device);
        textbuf_add(text, ",code=\"%s\"} %" PRIu64 "\n", metrics_code((enum topkd_status)i, code),
                    device->figures->tally.by_status[i]);
    }
}

static void rows_by_route(const struct metrics_device *device, struct textbuf *text)
{
    uint64_t counts[METRICS_ROUTES];
    metrics_routes(&device->figures->stats, counts);
    for (uint32_t i = 0; i < METRICS_ROUTES; i++) {
        series(text, "topkd_rows_total", device);
        textbuf_add(text, ",route=\"%s\"} %" PRIu64 "\n", metrics_route_names[i], counts[i]);
    }
}

static void sessions_by_end(const struct metrics_device *device, struct textbuf *text)
{
    for (uint32_t i = 0; i < FIGURES_ENDS; i++) {
        series(text, "topkd_sessions_reaped_total", device);
        textbuf_add(text, ",reason=\"%s\"} %" PRIu64 "\n", metrics_end_names[i],
                    device->figures->tally.ends[i]);
    }
}

static void bucket_series(const struct metrics_device *device, const char *name, uint32_t i,
                          uint64_t value, struct textbuf *text)
{
    char variant[METRICS_VARIANT_SIZE];
    const struct wire_bucket_stats *bucket = &device->figures->stats.buckets[i];
    series(text, name, device);
    textbuf_add(text, ",bucket=\"%ux%ux%u\",variant=\"%s\"} %" PRIu64 "\n", bucket->rows,
                bucket->width, bucket->k, metrics_variant(&device->figures->buckets[i], variant),
                value);
}

static void bucket_requests(const struct metrics_device *device, struct textbuf *text)
{
    const struct wire_stats_reply *stats = &device->figures->stats;
    for (uint32_t i = 0; i < stats->num_buckets; i++)
        if (stats->buckets[i].k != 0) /* 0: a place that was given up */
            bucket_series(device, "topkd_bucket_requests_total", i, stats->buckets[i].requests,
                          text);
}

static void graph_replays(const struct metrics_device *device, struct textbuf *text)
{
    const struct figures *figures = device->figures;
    for (uint32_t i = 0; i < figures->stats.num_buckets && device->kind == WIRE_DEVICE_CUDA; i++) {
        uint64_t requests = figures->stats.buckets[i].requests;
        uint64_t misses = figures->buckets[i].misses;
        if (figures->stats.buckets[i].k != 0)
            bucket_series(device, "topkd_graph_replays_total", i,
                          requests > misses ? requests - misses : 0, text);
    }
}

static void graph_misses(const struct metrics_device *device, struct textbuf *text)
{
    const struct figures *figures = device->figures;
    for (uint32_t i = 0; i < figures->stats.num_buckets && device->kind == WIRE_DEVICE_CUDA; i++)
        if (figures->stats.buckets[i].k != 0)
            bucket_series(device, "topkd_graph_misses_total", i, figures->buckets[i].misses, text);
}

static void histogram(const struct metrics_device *device, const char *name, const uint64_t *bins,
                      uint64_t sum_ns, struct textbuf *text)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < WIRE_HISTOGRAM_BINS; i++) {
        count += bins[i];
        if (i < BIN_FIRST || i > BIN_LAST)
            continue;
        textbuf_add(text, "%s_bucket{device=", name);
        textbuf_quote(text, device->device);
        textbuf_add(text, ",le=\"");
        textbuf_seconds(text, UINT64_C(1) << (i + 1));
        textbuf_add(text, "\"} %" PRIu64 "\n", count);
    }
    textbuf_add(text, "%s_bucket{device=", name);
    textbuf_quote(text, device->device);
    textbuf_add(text, ",le=\"+Inf\"} %" PRIu64 "\n%s_sum{device=", count, name);
    textbuf_quote(text, device->device);
    textbuf_add(text, "} ");
    textbuf_seconds(text, sum_ns);
    textbuf_add(text, "\n%s_count{device=", name);
    textbuf_quote(text, device->device);
    textbuf_add(text, "} %" PRIu64 "\n", count);
}

static void request_histogram(const struct metrics_device *device, struct textbuf *text)
{
    const struct wire_stats_reply *stats = &device->figures->stats;
    histogram(device, "topkd_request_duration_seconds", stats->request_ns_bins,
              stats->request_ns_sum, text);
}

static void device_histogram(const struct metrics_device *device, struct textbuf *text)
{
    const struct wire_stats_reply *stats = &device->figures->stats;
    histogram(device, "topkd_device_duration_seconds", stats->run_ns_bins, stats->run_ns_sum, text);
}

static void figures_age(const struct metrics_view *view, struct textbuf *text)
{
    family(text, "topkd_figures_age_seconds", "gauge", "Age of a worker's figures on this page.");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        const struct figures *figures = view->devices[i].figures;
        if (figures == NULL)
            continue;
        series(text, "topkd_figures_age_seconds", &view->devices[i]);
        textbuf_add(text, "} ");
        textbuf_seconds(
            text, view->now_ns > figures->published_ns ? view->now_ns - figures->published_ns : 0);
        textbuf_add(text, "\n");
    }
}

static void loop_lag(const struct metrics_device *device, struct textbuf *text)
{
    series(text, "topkd_loop_lag_seconds", device);
    textbuf_add(text, "} ");
    textbuf_seconds(text, device->figures->loop_lag_ns);
    textbuf_add(text, "\n");
}

/* Families whose series one function writes: name, type, help, function. */
static const struct {
    const char *name, *type, *help;
    void (*write)(const struct metrics_device *device, struct textbuf *text);
} label_families[] = {
    {"topkd_requests_total", "counter", "Selections by the code they ended with.",
     requests_by_code},
    {"topkd_rows_total", "counter", "Rows by the route that selected them.", rows_by_route},
    {"topkd_sessions_reaped_total", "counter", "Sessions that ended, by reason.", sessions_by_end},
    {"topkd_loop_lag_seconds", "gauge",
     "Longest time in the last minute that a worker's loop was away from its sockets.", loop_lag},
    {"topkd_bucket_requests_total", "counter", "Selections by shape bucket, rows x width x K.",
     bucket_requests},
    {"topkd_graph_replays_total", "counter", "Selections that replayed a graph that was there.",
     graph_replays},
    {"topkd_graph_misses_total", "counter", "Selections that a graph had to be made for.",
     graph_misses},
    {"topkd_request_duration_seconds", "histogram", "From a selection's arrival to its end.",
     request_histogram},
    {"topkd_device_duration_seconds", "histogram", "The part spent selecting on the device.",
     device_histogram},
};

/* ---- The supervisor's own -------------------------------------------------------------------- */

static void one(struct textbuf *text, const char *name, const char *type, const char *help,
                uint64_t value)
{
    family(text, name, type, help);
    textbuf_add(text, "%s %" PRIu64 "\n", name, value);
}

static void daemon_families(const struct metrics_view *view, struct textbuf *text)
{
    family(text, "topkd_build_info", "gauge", "Always 1; the labels say what it is.");
    textbuf_add(text, "topkd_build_info{version=");
    textbuf_quote(text, view->version);
    textbuf_add(text, ",wire=\"%u\"} 1\n", WIRE_VERSION);
    family(text, "topkd_start_time_seconds", "gauge", "When the daemon started, Unix time.");
    textbuf_add(text, "topkd_start_time_seconds %.3f\n", view->started_unix_s);
    one(text, "topkd_ready", "gauge", "1 while /readyz says so.", metrics_ready(view));
    one(text, "topkd_draining", "gauge", "1 while the daemon drains.", view->is_draining);
    one(text, "topkd_discovery_requests_total", "counter", "Requests to the daemon's own socket.",
        view->discovery_requests);
    one(text, "topkd_discovery_failed_total", "counter", "Of these, refused or failed.",
        view->discovery_failed);
    one(text, "topkd_http_answers_total", "counter", "HTTP requests answered.", view->http_answers);
    one(text, "topkd_http_refused_total", "counter", "Of these, with a code of 400 or more.",
        view->http_refused);
    one(text, "topkd_http_evicted_total", "counter", "HTTP connections that made room for others.",
        view->http_evicted);
}

/* The right ones are the worker's to count; a wrong one ends it, so the supervisor counts those. */
static void canaries(const struct metrics_view *view, struct textbuf *text)
{
    family(text, "topkd_canaries_total", "counter", "Selections of known answer, by result.");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        const struct metrics_device *device = &view->devices[i];
        if (device->figures != NULL) {
            series(text, "topkd_canaries_total", device);
            textbuf_add(text, ",result=\"right\"} %" PRIu64 "\n", device->figures->tally.canaries);
        }
        series(text, "topkd_canaries_total", device);
        textbuf_add(text, ",result=\"wrong\"} %u\n", device->canaries_wrong);
    }
}

static void device_families(const struct metrics_view *view, struct textbuf *text)
{
    family(text, "topkd_device_info", "gauge", "Always 1; the labels say what it is.");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        const struct metrics_device *device = &view->devices[i];
        series(text, "topkd_device_info", device);
        textbuf_add(text, ",kind=\"%s\",name=", device->kind == WIRE_DEVICE_CUDA ? "cuda" : "cpu");
        textbuf_quote(text, device->name);
        textbuf_add(text, "} 1\n");
    }
    family(text, "topkd_device_ready", "gauge", "1 while a right selection ended lately.");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        series(text, "topkd_device_ready", &view->devices[i]);
        textbuf_add(text, "} %d\n", metrics_not_ready(view, &view->devices[i]) == NULL);
    }
    family(text, "topkd_worker_restarts_total", "counter", "Workers started again.");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        series(text, "topkd_worker_restarts_total", &view->devices[i]);
        textbuf_add(text, "} %u\n", view->devices[i].restarts);
    }
    canaries(view, text);
    family(text, "topkd_canary_age_seconds", "gauge", "Since the last selection of known answer.");
    for (uint32_t i = 0; i < view->num_devices; i++) {
        const struct metrics_device *device = &view->devices[i];
        if (device->canary_age_ms == METRICS_NEVER || device->heard_ago_ms == METRICS_NEVER)
            continue;
        series(text, "topkd_canary_age_seconds", device);
        textbuf_add(text, "} ");
        textbuf_seconds(text, (device->canary_age_ms + device->heard_ago_ms) * NS_PER_MS);
        textbuf_add(text, "\n");
    }
}

void metrics_prometheus(const struct metrics_view *view, struct textbuf *text)
{
    daemon_families(view, text);
    device_families(view, text);
    figures_age(view, text);
    stats_families(view, text);
    for (size_t j = 0; j < sizeof label_families / sizeof label_families[0]; j++) {
        family(text, label_families[j].name, label_families[j].type, label_families[j].help);
        for (uint32_t i = 0; i < view->num_devices; i++)
            if (view->devices[i].figures != NULL)
                label_families[j].write(&view->devices[i], text);
    }
}
