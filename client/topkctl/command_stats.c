/* topkctl stats: counters of every device side by side, latencies, shape buckets. */
#include "histogram.h"
#include "json.h"
#include "remote.h"
#include "table.h"
#include "text.h"

#include <inttypes.h>

/* Counters and gauges: field of wire_stats_reply, how a person reads it, text. */
#define STATS_TABLE(X)                                                                             \
    X(epoch, COUNT, "epoch of the worker")                                                         \
    X(uptime_ms, AGE, "up for")                                                                    \
    X(sessions, COUNT, "sessions")                                                                 \
    X(sessions_opened, COUNT, "sessions opened")                                                   \
    X(sessions_reaped, COUNT, "sessions ended")                                                    \
    X(regions, COUNT, "regions")                                                                   \
    X(mapped_bytes, BYTES, "mapped memory")                                                        \
    X(leases, COUNT, "arena slots leased")                                                         \
    X(queued, COUNT, "requests queued")                                                            \
    X(running, COUNT, "requests running")                                                          \
    X(requests, COUNT, "selections")                                                               \
    X(requests_failed, COUNT, "selections failed")                                                 \
    X(replies_repeated, COUNT, "replies repeated")                                                 \
    X(select_batches, COUNT, "messages with several selections")                                   \
    X(selects_batched, COUNT, "selections in them")                                                \
    X(messages_rejected, COUNT, "messages rejected")                                               \
    X(rows_copied, COUNT, "rows copied: no longer than K")                                         \
    X(rows_direct, COUNT, "rows direct: without a sample")                                         \
    X(rows_certified, COUNT, "rows certified: read once")                                          \
    X(rows_band, COUNT, "rows band: by a second boundary")                                         \
    X(rows_recovery, COUNT, "rows recovery: read twice")                                           \
    X(rows_spill, COUNT, "rows spill: too many candidates")                                        \
    X(rows_clamped, COUNT, "lengths clamped")                                                      \
    X(scores_read, COUNT, "scores read")                                                           \
    X(lanes, COUNT, "client lanes")                                                                \
    X(lanes_armed, COUNT, "lanes armed on the device")                                             \
    X(lanes_max, COUNT, "lanes that may be open")                                                  \
    X(lane_steps, COUNT, "selections of lanes")                                                    \
    X(lane_pauses, COUNT, "pauses of lanes")

enum stats_unit { COUNT, AGE, BYTES };

/* One device's answer, kept until all are there. */
struct stats_devices {
    uint32_t num_devices;
    struct wire_device devices[WIRE_DEVICES_MAX];
    bool has_stats[WIRE_DEVICES_MAX];
    struct wire_stats_reply stats[WIRE_DEVICES_MAX];
};

static void visit_stats(void *arg, const struct wire_device *device, const struct wire_reply *reply)
{
    struct stats_devices *all = arg;
    uint32_t i = all->num_devices++;
    all->devices[i] = *device;
    all->has_stats[i] = reply != NULL;
    if (reply != NULL) {
        all->stats[i] = reply->u.stats;
    }
}

static uint64_t quantile_ns(const uint64_t *bins, double part)
{
    return histogram_log2_quantile_ns(bins, WIRE_HISTOGRAM_BINS, part);
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void json_latency(struct json *json, const char *key, const uint64_t *bins, uint64_t sum_ns)
{
    json_open_object(json, key);
    json_u64(json, "sum_ns", sum_ns);
    json_u64(json, "p50_ns", quantile_ns(bins, 0.5));
    json_u64(json, "p99_ns", quantile_ns(bins, 0.99));
    json_open_array(json, "log2_bins");
    for (unsigned i = 0; i < WIRE_HISTOGRAM_BINS; i++) {
        json_u64(json, NULL, bins[i]);
    }
    json_close_array(json);
    json_close_object(json);
}

static void json_stats(struct json *json, const struct wire_stats_reply *stats)
{
#define STATS_JSON(field, unit, text) json_u64(json, #field, stats->field);
    STATS_TABLE(STATS_JSON)
#undef STATS_JSON
    json_latency(json, "request", stats->request_ns_bins, stats->request_ns_sum);
    json_latency(json, "run", stats->run_ns_bins, stats->run_ns_sum);
    json_open_array(json, "buckets");
    for (uint32_t i = 0; i < stats->num_buckets; i++) {
        const struct wire_bucket_stats *bucket = &stats->buckets[i];
        json_open_object(json, NULL);
        json_u64(json, "bucket", bucket->bucket);
        json_u64(json, "rows", bucket->rows);
        json_u64(json, "width", bucket->width);
        json_u64(json, "k", bucket->k);
        json_string(json, "dtype", topk_dtype_name((enum topk_dtype)bucket->dtype));
        json_u64(json, "requests", bucket->requests);
        json_close_object(json);
    }
    json_close_array(json);
}

static void print_json(const struct stats_devices *all)
{
    struct json json = json_of(stdout);
    json_open_object(&json, NULL);
    json_open_array(&json, "devices");
    for (uint32_t i = 0; i < all->num_devices; i++) {
        const struct wire_device *device = &all->devices[i];
        json_open_object(&json, NULL);
        json_string(&json, "device", device->device);
        json_string(&json, "state", remote_state_name(device->state));
        json_u64(&json, "worker_restarts", device->restarts);
        if (all->has_stats[i]) {
            json_stats(&json, &all->stats[i]);
        }
        json_close_object(&json);
    }
    json_close_array(&json);
    json_close_object(&json);
    json_end(&json);
}

/* ---- for people ------------------------------------------------------------------------------ */

static void cell_of(struct table *table, enum stats_unit unit, uint64_t value)
{
    char text[TEXT_SIZE];
    switch (unit) {
    case AGE:
        table_cell(table, "%s", text_age(value, text));
        break;
    case BYTES:
        table_cell(table, "%s", text_bytes(value, text));
        break;
    case COUNT:
        table_cell(table, "%" PRIu64, value);
        break;
    }
}

/* "p50 / p99", about. */
static void latency_row(struct table *table, const struct stats_devices *all, const char *text,
                        bool whole_request)
{
    table_cell(table, "%s", text);
    for (uint32_t i = 0; i < all->num_devices; i++) {
        const uint64_t *bins =
            whole_request ? all->stats[i].request_ns_bins : all->stats[i].run_ns_bins;
        char p50[TEXT_SIZE];
        char p99[TEXT_SIZE];
        table_cell(table, "%s / %s", text_duration(quantile_ns(bins, 0.5), p50),
                   text_duration(quantile_ns(bins, 0.99), p99));
    }
}

static void print_counters(const struct stats_devices *all)
{
    struct table_column columns[WIRE_DEVICES_MAX + 1] = {{"COUNTER", TABLE_LEFT}};
    for (uint32_t i = 0; i < all->num_devices; i++) {
        columns[i + 1] = (struct table_column){all->devices[i].device, TABLE_RIGHT};
    }
    struct table *table = table_create(columns, all->num_devices + 1);
    table_cell(table, "state");
    for (uint32_t i = 0; i < all->num_devices; i++) {
        table_cell(table, "%s", remote_state_name(all->devices[i].state));
    }
    table_cell(table, "worker restarts");
    for (uint32_t i = 0; i < all->num_devices; i++) {
        table_cell(table, "%u", all->devices[i].restarts);
    }
#define STATS_ROW(field, unit, text)                                                               \
    table_cell(table, text);                                                                       \
    for (uint32_t i = 0; i < all->num_devices; i++) {                                              \
        cell_of(table, unit, all->stats[i].field);                                                 \
    }
    STATS_TABLE(STATS_ROW)
#undef STATS_ROW
    latency_row(table, all, "request time, about p50 / p99", true);
    latency_row(table, all, "selecting time, about p50 / p99", false);
    table_print(table, stdout);
    table_destroy(table);
}

static void print_buckets(const struct stats_devices *all)
{
    static const struct table_column columns[] = {
        {"DEVICE", TABLE_LEFT},     {"BUCKET", TABLE_RIGHT}, {"ROWS", TABLE_RIGHT},
        {"WIDTH", TABLE_RIGHT},     {"K", TABLE_RIGHT},      {"DTYPE", TABLE_LEFT},
        {"SELECTIONS", TABLE_RIGHT}};
    struct table *table = table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (uint32_t i = 0; i < all->num_devices; i++) {
        for (uint32_t j = 0; j < all->stats[i].num_buckets; j++) {
            const struct wire_bucket_stats *bucket = &all->stats[i].buckets[j];
            table_cell(table, "%s", all->devices[i].device);
            table_cell(table, "%u", bucket->bucket);
            table_cell(table, "%u", bucket->rows);
            table_cell(table, "%u", bucket->width);
            table_cell(table, "%u", bucket->k);
            table_cell(table, "%s", topk_dtype_name((enum topk_dtype)bucket->dtype));
            table_cell(table, "%" PRIu64, bucket->requests);
        }
    }
    putchar('\n');
    table_print(table, stdout);
    table_destroy(table);
}

enum ctl_exit command_stats(const struct ctl_options *options)
{
    static struct remote remote;
    static struct stats_devices
        all; /* zeroed: a device that is down shows zeros beside its state */
    enum ctl_exit code = remote_open(options, &remote);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    code = remote_visit(&remote, WIRE_STATS, visit_stats, &all);
    remote_close(&remote);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    if (options->json) {
        print_json(&all);
    } else {
        print_counters(&all);
        print_buckets(&all);
    }
    return CTL_EXIT_OK;
}
