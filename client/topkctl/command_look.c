/* Commands that look at a daemon: devices, sessions; and ping, which times its answers. */
#include "clock.h"
#include "json.h"
#include "remote.h"
#include "table.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>

#define NUM_PINGS 20 /* choice: enough for a median, over in milliseconds */

/* ---- devices --------------------------------------------------------------------------------- */

static void print_devices_json(const struct remote *remote)
{
    struct json json = json_of(stdout);
    json_open_object(&json, NULL);
    json_string(&json, "url", remote->url);
    json_open_array(&json, "devices");
    for (uint32_t i = 0; i < remote->devices.num_devices; i++) {
        const struct wire_device *device = &remote->devices.devices[i];
        json_open_object(&json, NULL);
        json_string(&json, "device", device->device);
        json_string(&json, "name", device->name);
        json_string(&json, "kind", remote_kind_name(device->kind));
        json_string(&json, "state", remote_state_name(device->state));
        json_u64(&json, "epoch", device->epoch);
        json_u64(&json, "restarts", device->restarts);
        json_i64(&json, "pid", device->pid);
        json_string(&json, "url", device->url);
        json_close_object(&json);
    }
    json_close_array(&json);
    json_close_object(&json);
    json_end(&json);
}

static void print_devices_table(const struct remote *remote)
{
    static const struct table_column columns[] = {{"DEVICE", TABLE_LEFT}, {"STATE", TABLE_LEFT},
                                                  {"EPOCH", TABLE_RIGHT}, {"RESTARTS", TABLE_RIGHT},
                                                  {"PID", TABLE_RIGHT},   {"NAME", TABLE_LEFT}};
    struct table *table = table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (uint32_t i = 0; i < remote->devices.num_devices; i++) {
        const struct wire_device *device = &remote->devices.devices[i];
        table_cell(table, "%s", device->device);
        table_cell(table, "%s", remote_state_name(device->state));
        table_cell(table, "%" PRIu64, device->epoch);
        table_cell(table, "%u", device->restarts);
        table_cell(table, "%d", device->pid);
        table_cell(table, "%s", device->name);
    }
    table_print(table, stdout);
    table_destroy(table);
}

enum ctl_exit command_devices(const struct ctl_options *options)
{
    static struct remote remote;
    enum ctl_exit code = remote_open(options, &remote);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    if (options->json) {
        print_devices_json(&remote);
    } else {
        print_devices_table(&remote);
    }
    remote_close(&remote);
    return CTL_EXIT_OK;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* Where the visited sessions go; one of the two is used. */
struct sessions_output {
    struct table *table;
    struct json json;
    uint64_t num_hidden; /* sessions of others, or more than one reply holds */
};

static void visit_sessions_json(void *arg, const struct wire_device *device,
                                const struct wire_reply *reply)
{
    struct json *json = &((struct sessions_output *)arg)->json;
    for (uint32_t i = 0; reply != NULL && i < reply->u.sessions.num_sessions; i++) {
        const struct wire_session *session = &reply->u.sessions.sessions[i];
        json_open_object(json, NULL);
        json_string(json, "device", device->device);
        json_u64(json, "session", session->session);
        json_string(json, "client", session->client_name);
        json_i64(json, "uid", session->uid);
        json_i64(json, "gid", session->gid);
        json_i64(json, "pid", session->pid);
        json_u64(json, "regions", session->regions);
        json_u64(json, "outstanding", session->outstanding);
        json_u64(json, "leases", session->leases);
        json_u64(json, "mapped_bytes", session->mapped_bytes);
        json_u64(json, "requests", session->requests);
        json_u64(json, "age_ms", session->age_ms);
        json_close_object(json);
    }
    if (reply != NULL) {
        ((struct sessions_output *)arg)->num_hidden +=
            reply->u.sessions.num_total - reply->u.sessions.num_sessions;
    }
}

static void visit_sessions_table(void *arg, const struct wire_device *device,
                                 const struct wire_reply *reply)
{
    struct sessions_output *output = arg;
    for (uint32_t i = 0; reply != NULL && i < reply->u.sessions.num_sessions; i++) {
        const struct wire_session *session = &reply->u.sessions.sessions[i];
        char text[TEXT_SIZE];
        table_cell(output->table, "%s", device->device);
        table_cell(output->table, "%" PRIx64, session->session);
        table_cell(output->table, "%s", session->client_name);
        table_cell(output->table, "%" PRId64, session->uid);
        table_cell(output->table, "%" PRId64, session->pid);
        table_cell(output->table, "%u", session->regions);
        table_cell(output->table, "%s", text_bytes(session->mapped_bytes, text));
        table_cell(output->table, "%u", session->outstanding);
        table_cell(output->table, "%" PRIu64, session->requests);
        table_cell(output->table, "%s", text_age(session->age_ms, text));
    }
    if (reply != NULL) {
        output->num_hidden += reply->u.sessions.num_total - reply->u.sessions.num_sessions;
    }
}

/* Written to memory first: a failure half way must leave one JSON value, the error. */
static enum ctl_exit print_sessions_json(struct remote *remote)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory == NULL) {
        return report_failure(remote->options, CTL_EXIT_FAILED, "sessions: out of memory");
    }
    struct sessions_output output = {.json = json_of(memory)};
    json_open_object(&output.json, NULL);
    json_open_array(&output.json, "sessions");
    enum ctl_exit code = remote_visit(remote, WIRE_SESSIONS, visit_sessions_json, &output);
    json_close_array(&output.json);
    json_u64(&output.json, "hidden", output.num_hidden);
    json_close_object(&output.json);
    json_end(&output.json);
    fclose(memory);
    if (code == CTL_EXIT_OK) {
        fputs(text, stdout);
    }
    free(text);
    return code;
}

static enum ctl_exit print_sessions_table(struct remote *remote)
{
    static const struct table_column columns[] = {
        {"DEVICE", TABLE_LEFT},  {"SESSION", TABLE_RIGHT},   {"CLIENT", TABLE_LEFT},
        {"UID", TABLE_RIGHT},    {"PID", TABLE_RIGHT},       {"REGIONS", TABLE_RIGHT},
        {"MAPPED", TABLE_RIGHT}, {"IN FLIGHT", TABLE_RIGHT}, {"REQUESTS", TABLE_RIGHT},
        {"AGE", TABLE_RIGHT}};
    struct sessions_output output = {
        .table = table_create(columns, sizeof(columns) / sizeof(columns[0]))};
    enum ctl_exit code = remote_visit(remote, WIRE_SESSIONS, visit_sessions_table, &output);
    if (code == CTL_EXIT_OK) {
        table_print(output.table, stdout);
        if (output.num_hidden > 0) {
            printf("%" PRIu64 " more not shown\n", output.num_hidden);
        }
    }
    table_destroy(output.table);
    return code;
}

enum ctl_exit command_sessions(const struct ctl_options *options)
{
    static struct remote remote;
    enum ctl_exit code = remote_open(options, &remote);
    if (code == CTL_EXIT_OK) {
        code = options->json ? print_sessions_json(&remote) : print_sessions_table(&remote);
        remote_close(&remote);
    }
    return code;
}

/* ---- ping ------------------------------------------------------------------------------------ */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print_ping(const struct ctl_options *options, const struct topkd_client_info *info,
                       const uint64_t *sorted_ns)
{
    uint64_t median_ns = sorted_ns[NUM_PINGS / 2];
    if (options->json) {
        struct json json = json_of(stdout);
        json_open_object(&json, NULL);
        json_string(&json, "device", info->device);
        json_string(&json, "server_version", info->server_version);
        json_u64(&json, "epoch", info->epoch);
        json_u64(&json, "pings", NUM_PINGS);
        json_u64(&json, "min_ns", sorted_ns[0]);
        json_u64(&json, "median_ns", median_ns);
        json_u64(&json, "max_ns", sorted_ns[NUM_PINGS - 1]);
        json_close_object(&json);
        json_end(&json);
        return;
    }
    char min[TEXT_SIZE];
    char median[TEXT_SIZE];
    char max[TEXT_SIZE];
    printf("%s answers (topkd %s, epoch %" PRIu64 "): %d round trips, min %s, median %s, max %s\n",
           info->device, info->server_version, info->epoch, NUM_PINGS,
           text_duration(sorted_ns[0], min), text_duration(median_ns, median),
           text_duration(sorted_ns[NUM_PINGS - 1], max));
}

enum ctl_exit command_ping(const struct ctl_options *options)
{
    const struct topkd_client_options client_options = {
        .url = options->url,
        .device = options->device,
        .name = "topkctl ping",
        .timeout_ms = options->timeout_ms,
    };
    struct topkd_client *client;
    enum topkd_status status = topkd_client_open(&client_options, &client);
    if (status != TOPKD_OK) {
        return report_status(options, "ping", status, topkd_detail());
    }
    struct topkd_client_info info;
    status = topkd_client_info(client, &info);
    uint64_t round_trips_ns[NUM_PINGS];
    for (int i = 0; i < NUM_PINGS && status == TOPKD_OK; i++) {
        status = topkd_ping(client, &round_trips_ns[i]);
    }
    enum ctl_exit code = CTL_EXIT_OK;
    if (status == TOPKD_OK) {
        qsort(round_trips_ns, NUM_PINGS, sizeof(round_trips_ns[0]), compare_u64);
        print_ping(options, &info, round_trips_ns);
    } else {
        code = report_status(options, "ping", status, topkd_detail());
    }
    topkd_client_close(client);
    return code;
}
