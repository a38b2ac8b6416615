/* Two looks to text. Rates are differences of counters of the same life of a worker. */
#include "histogram.h"
#include "json.h"
#include "remote.h"
#include "table.h"
#include "text.h"
#include "top.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NUM_ROUTES 6u
#define BAR_COLUMNS 40u
#define CELL_SIZE 24u

static const char *const route_names[NUM_ROUTES] = {"copied", "direct",   "certified",
                                                    "band",   "recovery", "spill"};

/* One device between two looks. */
struct change {
    const struct top_device *then, *now; /* then: NULL when it was not up, or in another life */
    double seconds;
};

struct client {
    const struct wire_device *device;
    const struct wire_session *session;
    double per_s; /* below 0: not known yet */
};

static struct change change_of(const struct top_look *before, const struct top_look *now,
                               const struct top_device *device)
{
    struct change change = {.now = device, .seconds = (double)(now->at_ns - before->at_ns) / 1e9};
    for (uint32_t i = 0; before->is_good && i < before->num_devices; i++) {
        const struct top_device *then = &before->devices[i];
        if (then->is_up && device->is_up && then->device.epoch == device->device.epoch &&
            strcmp(then->device.device, device->device.device) == 0) {
            change.then = then;
        }
    }
    return change;
}

/* Counters only grow in one life; a reply for others' eyes may have zeros. */
static double per_second(const struct change *change, uint64_t now, uint64_t then)
{
    return now > then ? (double)(now - then) / change->seconds : 0;
}

#define RATE(change, field)                                                                        \
    per_second((change), (change)->now->stats.field, (change)->then->stats.field)

static void routes_of(const struct wire_stats_reply *stats, uint64_t rows[NUM_ROUTES])
{
    const uint64_t all[NUM_ROUTES] = {stats->rows_copied,    stats->rows_direct,
                                      stats->rows_certified, stats->rows_band,
                                      stats->rows_recovery,  stats->rows_spill};
    memcpy(rows, all, sizeof(all));
}

static void bins_between(const uint64_t *now, const uint64_t *then, uint64_t *out)
{
    for (uint32_t i = 0; i < WIRE_HISTOGRAM_BINS; i++) {
        out[i] = now[i] > then[i] ? now[i] - then[i] : 0;
    }
}

/* p50 and p99 of what ended between the looks; 0: nothing did. */
static void latency_of(const struct change *change, bool whole, uint64_t quantiles_ns[2])
{
    uint64_t bins[WIRE_HISTOGRAM_BINS];
    const struct wire_stats_reply *now = &change->now->stats;
    const struct wire_stats_reply *then = &change->then->stats;
    if (whole) {
        bins_between(now->request_ns_bins, then->request_ns_bins, bins);
    } else {
        bins_between(now->run_ns_bins, then->run_ns_bins, bins);
    }
    quantiles_ns[0] = histogram_log2_quantile_ns(bins, WIRE_HISTOGRAM_BINS, 0.5);
    quantiles_ns[1] = histogram_log2_quantile_ns(bins, WIRE_HISTOGRAM_BINS, 0.99);
}

/* ---- Clients --------------------------------------------------------------------------------- */

static double client_rate(const struct change *change, const struct wire_session *session)
{
    if (change->then == NULL) {
        return -1;
    }
    const struct wire_sessions_reply *then = &change->then->sessions;
    for (uint32_t i = 0; i < then->num_sessions; i++) {
        if (then->sessions[i].session == session->session) {
            return per_second(change, session->requests, then->sessions[i].requests);
        }
    }
    return -1;
}

static int busier(const void *a, const void *b)
{
    const struct client *x = a;
    const struct client *y = b;
    if (x->per_s != y->per_s) {
        return x->per_s < y->per_s ? 1 : -1;
    }
    return x->session->session < y->session->session ? -1
                                                     : x->session->session > y->session->session;
}

/* The clients of all devices, the busiest first; the caller frees. */
static struct client *list_clients(const struct top_look *before, const struct top_look *now,
                                   size_t *num_p)
{
    size_t num = 0;
    for (uint32_t i = 0; i < now->num_devices; i++) {
        num += now->devices[i].is_up ? now->devices[i].sessions.num_sessions : 0;
    }
    struct client *clients = calloc(num + 1, sizeof(*clients));
    *num_p = 0;
    for (uint32_t i = 0; i < now->num_devices && clients != NULL; i++) {
        const struct top_device *device = &now->devices[i];
        struct change change = change_of(before, now, device);
        for (uint32_t j = 0; device->is_up && j < device->sessions.num_sessions; j++) {
            const struct wire_session *session = &device->sessions.sessions[j];
            clients[(*num_p)++] = (struct client){.device = &device->device,
                                                  .session = session,
                                                  .per_s = client_rate(&change, session)};
        }
    }
    if (clients != NULL) {
        qsort(clients, *num_p, sizeof(*clients), busier);
    }
    return clients;
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* "1234", "12.3k"; "-" below 0. */
static const char *number(double value, char out[CELL_SIZE])
{
    if (value < 0) {
        snprintf(out, CELL_SIZE, "-");
    } else if (value < 10) {
        snprintf(out, CELL_SIZE, value > 0 ? "%.1f" : "0", value);
    } else if (value < 10000) {
        snprintf(out, CELL_SIZE, "%.0f", value);
    } else if (value < 1e7) {
        snprintf(out, CELL_SIZE, "%.1fk", value / 1e3);
    } else {
        snprintf(out, CELL_SIZE, "%.1fM", value / 1e6);
    }
    return out;
}

static const char *duration(uint64_t duration_ns, char out[TEXT_SIZE])
{
    return duration_ns == 0 ? "-" : text_duration(duration_ns, out);
}

static void print_head(const struct top_look *now, FILE *out)
{
    char clock[16] = "";
    char name[WIRE_URL_SIZE];
    time_t seconds = time(NULL);
    struct tm parts;
    if (localtime_r(&seconds, &parts) != NULL) {
        (void)strftime(clock, sizeof(clock), "%H:%M:%S", &parts);
    }
    (void)text_printable(now->url, name, sizeof(name));
    fprintf(out, "topkd at %s, %s\n\n", name, clock);
}

static void print_devices(const struct top_look *before, const struct top_look *now, FILE *out)
{
    static const struct table_column columns[] = {
        {"DEVICE", TABLE_LEFT},     {"STATE", TABLE_LEFT},    {"SELECT/S", TABLE_RIGHT},
        {"FAILED/S", TABLE_RIGHT},  {"P50", TABLE_RIGHT},     {"P99", TABLE_RIGHT},
        {"ON DEVICE", TABLE_RIGHT}, {"RUNNING", TABLE_RIGHT}, {"QUEUED", TABLE_RIGHT},
        {"SESSIONS", TABLE_RIGHT},  {"LANES", TABLE_RIGHT},   {"MAPPED", TABLE_RIGHT},
        {"RESTARTS", TABLE_RIGHT}};
    struct table *table = table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (uint32_t i = 0; i < now->num_devices; i++) {
        const struct top_device *device = &now->devices[i];
        struct change change = change_of(before, now, device);
        uint64_t whole[2] = {0};
        uint64_t part[2] = {0};
        char text[TEXT_SIZE];
        char cell[CELL_SIZE];
        if (change.then != NULL) {
            latency_of(&change, true, whole);
            latency_of(&change, false, part);
        }
        table_cell(table, "%s", device->device.device);
        table_cell(table, "%s", remote_state_name(device->device.state));
        table_cell(table, "%s", number(change.then == NULL ? -1 : RATE(&change, requests), cell));
        table_cell(table, "%s",
                   number(change.then == NULL ? -1 : RATE(&change, requests_failed), cell));
        table_cell(table, "%s", duration(whole[0], text));
        table_cell(table, "%s", duration(whole[1], text));
        table_cell(table, "%s", duration(part[0], text));
        table_cell(table, "%u", device->stats.running);
        table_cell(table, "%u", device->stats.queued);
        table_cell(table, "%u", device->stats.sessions);
        table_cell(table, "%u", device->stats.lanes);
        table_cell(table, "%s", text_bytes(device->stats.mapped_bytes, text));
        table_cell(table, "%u", device->device.restarts);
    }
    table_print(table, out);
    table_destroy(table);
}

/* Rows a second of all devices by route, with a bar for the share. */
static void print_routes(const struct top_look *before, const struct top_look *now, FILE *out)
{
    double rates[NUM_ROUTES] = {0};
    double total = 0;
    for (uint32_t i = 0; i < now->num_devices; i++) {
        struct change change = change_of(before, now, &now->devices[i]);
        if (change.then == NULL) {
            continue;
        }
        uint64_t then[NUM_ROUTES];
        uint64_t rows[NUM_ROUTES];
        routes_of(&change.then->stats, then);
        routes_of(&change.now->stats, rows);
        for (uint32_t j = 0; j < NUM_ROUTES; j++) {
            double rate = per_second(&change, rows[j], then[j]);
            rates[j] += rate;
            total += rate;
        }
    }
    fprintf(out, "\n%-10s %10s\n", "ROUTE", "ROWS/S");
    for (uint32_t j = 0; j < NUM_ROUTES; j++) {
        char cell[CELL_SIZE];
        double share = total > 0 ? rates[j] / total : 0;
        fprintf(out, "%-10s %10s", route_names[j], number(rates[j], cell));
        unsigned length = (unsigned)(share * BAR_COLUMNS + 0.5);
        fputs(length > 0 ? "  " : "", out);
        for (unsigned k = 0; k < length; k++) {
            putc('#', out);
        }
        putc('\n', out);
    }
}

static void print_clients(const struct top_look *before, const struct top_look *now, size_t num_max,
                          FILE *out)
{
    static const struct table_column columns[] = {
        {"CLIENT", TABLE_LEFT},    {"PID", TABLE_RIGHT},    {"UID", TABLE_RIGHT},
        {"SELECT/S", TABLE_RIGHT}, {"FLIGHT", TABLE_RIGHT}, {"REGIONS", TABLE_RIGHT},
        {"MAPPED", TABLE_RIGHT},   {"AGE", TABLE_RIGHT},    {"SELECTIONS", TABLE_RIGHT},
        {"SESSION", TABLE_RIGHT},  {"DEVICE", TABLE_LEFT}};
    size_t num = 0;
    struct client *clients = list_clients(before, now, &num);
    struct table *table = table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < num && i < num_max; i++) {
        const struct wire_session *session = clients[i].session;
        char text[TEXT_SIZE];
        char cell[CELL_SIZE];
        table_cell(table, "%s", session->client_name);
        table_cell(table, "%" PRId64, session->pid);
        table_cell(table, "%" PRId64, session->uid);
        table_cell(table, "%s", number(clients[i].per_s, cell));
        table_cell(table, "%u", session->outstanding);
        table_cell(table, "%u", session->regions);
        table_cell(table, "%s", text_bytes(session->mapped_bytes, text));
        table_cell(table, "%s", text_age(session->age_ms, text));
        table_cell(table, "%" PRIu64, session->requests);
        table_cell(table, "%" PRIx64, session->session);
        table_cell(table, "%s", clients[i].device->device);
    }
    putc('\n', out);
    table_print(table, out);
    if (num > num_max) {
        fprintf(out, "and %zu more\n", num - num_max);
    } else if (num == 0) {
        fputs("no client that you may see\n", out);
    }
    table_destroy(table);
    free(clients);
}

void top_frame(const struct top_look *before, const struct top_look *now, unsigned num_lines_max,
               FILE *out)
{
    print_head(now, out);
    if (!now->is_good) {
        fprintf(out, "no answer: %s\n", now->trouble);
        return;
    }
    print_devices(before, now, out);
    print_routes(before, now, out);
    /* head 2, devices, routes 8, an empty line, a heading, "and more" */
    unsigned used = 2 + 1 + now->num_devices + 8 + 3;
    size_t num_max = num_lines_max == 0     ? SIZE_MAX
                     : num_lines_max > used ? num_lines_max - used
                                            : 0;
    print_clients(before, now, num_max, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_device(struct json *json, const struct change *change)
{
    const struct top_device *device = change->now;
    json_open_object(json, NULL);
    json_string(json, "device", device->device.device);
    json_string(json, "state", remote_state_name(device->device.state));
    json_u64(json, "restarts", device->device.restarts);
    if (change->then != NULL) {
        uint64_t whole[2];
        uint64_t part[2];
        uint64_t then[NUM_ROUTES];
        uint64_t rows[NUM_ROUTES];
        latency_of(change, true, whole);
        latency_of(change, false, part);
        routes_of(&change->then->stats, then);
        routes_of(&device->stats, rows);
        json_u64(json, "requests_per_s", (uint64_t)RATE(change, requests));
        json_u64(json, "failed_per_s", (uint64_t)RATE(change, requests_failed));
        json_u64(json, "request_p50_ns", whole[0]);
        json_u64(json, "request_p99_ns", whole[1]);
        json_u64(json, "run_p50_ns", part[0]);
        json_u64(json, "run_p99_ns", part[1]);
        json_open_object(json, "rows_per_s");
        for (uint32_t i = 0; i < NUM_ROUTES; i++) {
            json_u64(json, route_names[i], (uint64_t)per_second(change, rows[i], then[i]));
        }
        json_close_object(json);
        json_u64(json, "running", device->stats.running);
        json_u64(json, "queued", device->stats.queued);
        json_u64(json, "sessions", device->stats.sessions);
        json_u64(json, "lanes", device->stats.lanes);
        json_u64(json, "lane_steps_per_s", (uint64_t)RATE(change, lane_steps));
        json_u64(json, "mapped_bytes", device->stats.mapped_bytes);
    }
    json_close_object(json);
}

void top_json(const struct top_look *before, const struct top_look *now, FILE *out)
{
    struct json json = json_of(out);
    json_open_object(&json, NULL);
    json_string(&json, "url", now->url);
    if (!now->is_good) {
        json_string(&json, "trouble", now->trouble);
    } else {
        size_t num = 0;
        struct client *clients = list_clients(before, now, &num);
        json_u64(&json, "interval_ns", now->at_ns - before->at_ns);
        json_open_array(&json, "devices");
        for (uint32_t i = 0; i < now->num_devices; i++) {
            struct change change = change_of(before, now, &now->devices[i]);
            json_device(&json, &change);
        }
        json_close_array(&json);
        json_open_array(&json, "clients");
        for (size_t i = 0; i < num; i++) {
            json_open_object(&json, NULL);
            json_string(&json, "device", clients[i].device->device);
            json_u64(&json, "session", clients[i].session->session);
            json_string(&json, "client", clients[i].session->client_name);
            json_i64(&json, "uid", clients[i].session->uid);
            json_i64(&json, "pid", clients[i].session->pid);
            if (clients[i].per_s >= 0) {
                json_u64(&json, "requests_per_s", (uint64_t)clients[i].per_s);
            } else {
                json_null(&json, "requests_per_s");
            }
            json_u64(&json, "outstanding", clients[i].session->outstanding);
            json_close_object(&json);
        }
        json_close_array(&json);
        free(clients);
    }
    json_close_object(&json);
    json_end(&json);
}
