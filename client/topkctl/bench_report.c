/* The result of `topkctl bench`. */
#include "bench.h"
#include "json.h"
#include "table.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NS_PER_S 1e9

static const struct {
    const char *name;
    double part;
} quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}};
#define NUM_QUANTILES (sizeof(quantiles) / sizeof(quantiles[0]))

/* All clients together; zeroed before. */
static void add_up(const struct bench_plan *plan, struct bench_slot *total)
{
    for (uint32_t i = 0; i < plan->num_clients; i++) {
        const struct bench_slot *slot = &plan->shared->slots[i];
        total->requests += slot->requests;
        total->failed += slot->failed;
        total->rows += slot->rows;
        total->scores += slot->scores;
        total->queued_ns += slot->queued_ns;
        total->run_ns += slot->run_ns;
        total->retries += slot->retries;
        histogram_merge(&total->latency, &slot->latency);
        for (uint32_t j = 0; j < BENCH_STATUSES; j++) {
            total->by_status[j] += slot->by_status[j];
        }
    }
}

static uint64_t mean_of(uint64_t sum, uint64_t count)
{
    return count == 0 ? 0 : sum / count;
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void json_latency(struct json *json, const char *key, const struct histogram *latency,
                         bool with_bins)
{
    json_open_object(json, key);
    json_u64(json, "mean_ns", mean_of(latency->sum_ns, latency->count));
    json_u64(json, "min_ns", latency->count == 0 ? 0 : latency->min_ns);
    for (size_t i = 0; i < NUM_QUANTILES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%s_ns", quantiles[i].name);
        json_u64(json, name, histogram_quantile_ns(latency, quantiles[i].part));
    }
    json_u64(json, "max_ns", latency->count == 0 ? 0 : latency->max_ns);
    if (with_bins) {
        json_open_array(json, "bins"); /* [from_ns, count], those that have any */
        for (uint32_t i = 0; i < HISTOGRAM_BINS; i++) {
            if (latency->bins[i] > 0) {
                json_open_array(json, NULL);
                json_u64(json, NULL, histogram_low_ns(i));
                json_u64(json, NULL, latency->bins[i]);
                json_close_array(json);
            }
        }
        json_close_array(json);
    }
    json_close_object(json);
}

static void json_plan(struct json *json, const struct ctl_options *options)
{
    json_u64(json, "clients", options->num_clients);
    json_u64(json, "threads", options->num_threads);
    json_u64(json, "outstanding", options->outstanding);
    json_string(json, "scores", options_scores_name(options->scores_kind));
    json_string(json, "order", options_order_name(options->order));
    json_string(json, "ties", options_ties_name(options->ties));
    json_string(json, "dtype", topk_dtype_name(options->dtype));
    json_open_array(json, "shapes");
    for (uint32_t i = 0; i < options->num_shapes; i++) {
        json_open_object(json, NULL);
        json_u64(json, "rows", options->shapes[i].rows);
        json_u64(json, "width", options->shapes[i].width);
        json_u64(json, "k", options->shapes[i].k);
        json_close_object(json);
    }
    json_close_array(json);
}

static uint64_t score_bytes_per_s(const struct bench_plan *plan, const struct bench_slot *total,
                                  double seconds)
{
    double bytes = (double)total->scores * topk_dtype_bytes(plan->options->dtype);
    return (uint64_t)(bytes / seconds);
}

static void print_json(const struct bench_plan *plan, const struct bench_slot *total,
                       uint64_t duration_ns)
{
    struct json json = json_of(stdout);
    double seconds = (double)duration_ns / NS_PER_S;
    json_open_object(&json, NULL);
    json_string(&json, "device", plan->shared->slots[0].device);
    json_plan(&json, plan->options);
    json_u64(&json, "duration_ns", duration_ns);
    json_u64(&json, "requests", total->requests);
    json_u64(&json, "failed", total->failed);
    json_u64(&json, "retries", total->retries);
    json_u64(&json, "requests_per_s", (uint64_t)((double)total->requests / seconds));
    json_u64(&json, "rows_per_s", (uint64_t)((double)total->rows / seconds));
    json_u64(&json, "score_bytes_per_s", score_bytes_per_s(plan, total, seconds));
    json_u64(&json, "mean_queued_ns", mean_of(total->queued_ns, total->requests));
    json_u64(&json, "mean_run_ns", mean_of(total->run_ns, total->requests));
    json_latency(&json, "latency", &total->latency, true);
    json_open_object(&json, "statuses");
    for (uint32_t i = 0; i < BENCH_STATUSES; i++) {
        if (total->by_status[i] > 0) {
            json_u64(&json, topkd_status_name((enum topkd_status)i), total->by_status[i]);
        }
    }
    json_close_object(&json);
    json_open_array(&json, "each");
    for (uint32_t i = 0; i < plan->num_clients; i++) {
        const struct bench_slot *slot = &plan->shared->slots[i];
        json_open_object(&json, NULL);
        json_u64(&json, "requests", slot->requests);
        json_u64(&json, "failed", slot->failed);
        json_latency(&json, "latency", &slot->latency, false);
        json_close_object(&json);
    }
    json_close_array(&json);
    json_close_object(&json);
    json_end(&json);
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_plan(const struct bench_plan *plan)
{
    const struct ctl_options *options = plan->options;
    printf("device %s, %u client%s, %u in flight each, %s scores, shapes",
           plan->shared->slots[0].device, plan->num_clients, plan->num_clients == 1 ? "" : "s",
           options->outstanding, options_scores_name(options->scores_kind));
    for (uint32_t i = 0; i < options->num_shapes; i++) {
        printf("%s %ux%ux%u", i == 0 ? "" : ",", options->shapes[i].rows, options->shapes[i].width,
               options->shapes[i].k);
    }
    putchar('\n');
}

static void print_failures(const struct bench_slot *total)
{
    for (uint32_t i = TOPKD_OK + 1; i < BENCH_STATUSES; i++) {
        if (total->by_status[i] > 0) {
            printf("%" PRIu64 " failed with %s: %s (%s)\n", total->by_status[i],
                   topkd_status_name((enum topkd_status)i), topkd_strerror((enum topkd_status)i),
                   topkd_strhint((enum topkd_status)i));
        }
    }
}

/* Clients that fared very differently show that one starves. */
static void print_fairness(const struct bench_plan *plan)
{
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (uint32_t i = 0; i < plan->num_clients; i++) {
        uint64_t requests = plan->shared->slots[i].requests;
        least = requests < least ? requests : least;
        most = requests > most ? requests : most;
    }
    if (plan->num_clients > 1) {
        printf("a client had from %" PRIu64 " to %" PRIu64 " selections\n", least, most);
    }
}

static unsigned terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        return size.ws_col;
    }
    return 80;
}

static void print_text(const struct bench_plan *plan, const struct bench_slot *total,
                       uint64_t duration_ns)
{
    char text[4][TEXT_SIZE];
    double seconds = (double)duration_ns / NS_PER_S;
    print_plan(plan);
    printf("%" PRIu64 " selections in %.2f s: %.1f/s, %.0f rows/s, %s/s of scores\n",
           total->requests, seconds, (double)total->requests / seconds,
           (double)total->rows / seconds,
           text_bytes(score_bytes_per_s(plan, total, seconds), text[0]));
    print_failures(total);
    if (total->retries > 0) {
        printf("%" PRIu64 " repeated after a renewed session\n", total->retries);
    }
    if (total->requests == 0) {
        return;
    }
    print_fairness(plan);
    printf("in the daemon, mean: waiting %s, selecting %s\n",
           text_duration(mean_of(total->queued_ns, total->requests), text[0]),
           text_duration(mean_of(total->run_ns, total->requests), text[1]));
    printf("from start to end: mean %s, min %s",
           text_duration(mean_of(total->latency.sum_ns, total->latency.count), text[0]),
           text_duration(total->latency.min_ns, text[1]));
    for (size_t i = 0; i < NUM_QUANTILES; i++) {
        printf(", %s %s", quantiles[i].name,
               text_duration(histogram_quantile_ns(&total->latency, quantiles[i].part), text[2]));
    }
    printf(", max %s\n\n", text_duration(total->latency.max_ns, text[3]));
    histogram_print(&total->latency, terminal_columns(), stdout);
}

void bench_report(const struct bench_plan *plan)
{
    static struct bench_slot total;
    const struct bench_shared *shared = plan->shared;
    uint64_t duration_ns =
        shared->end_ns > shared->start_ns ? shared->end_ns - shared->start_ns : 1;
    add_up(plan, &total);
    if (plan->options->json) {
        print_json(plan, &total, duration_ns);
    } else {
        print_text(plan, &total, duration_ns);
    }
}
