/* Discovery: what the supervisor answers on <socket.directory>/topkd.sock. */
#include "detail.h"
#include "gate.h"
#include "log.h"
#include "supervisor_internal.h"
#include "supervisor_system.h"
#include "topk_select.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NUM_CONTEXTS 64u /* choice: answers come from the loop at once, so few are ever held */
#define UNSENT_MAX 8u    /* choice: nobody has reason to ask discovery more at a time */
#define REPLY_MS 5000u   /* choice: a peer that takes no reply for so long is gone */

/* Into a zeroed field of the reply; what does not fit is cut. */
static void copy_text(char *to, const char *from, size_t size)
{
    memcpy(to, from, strnlen(from, size - 1));
}

static enum topkd_status answer_hello(struct supervisor *supervisor,
                                      const struct wire_hello_request *hello,
                                      struct wire_hello_reply *reply, char *detail)
{
    const struct slot *slot = NULL;
    if (hello->version != WIRE_VERSION)
        return detail_set(detail, TOPKD_E_VERSION,
                          "the client speaks wire version %u, the daemon %u; upgrade the older one",
                          hello->version, WIRE_VERSION);
    if (supervisor->is_draining)
        return detail_set(detail, TOPKD_E_DRAINING, "the daemon is draining and will end");
    for (uint32_t i = 0; i < supervisor->num_slots && slot == NULL; i++)
        if (hello->device[0] == '\0' ||
            strcmp(hello->device, supervisor->slots[i].device.device) == 0)
            slot = &supervisor->slots[i];
    if (slot == NULL)
        return detail_set(detail, TOPKD_E_NO_DEVICE,
                          "device %.47s is not served here; topkctl devices lists those that are",
                          hello->device);
    const struct settings *settings = &supervisor->settings;
    reply->version = WIRE_VERSION;
    reply->device_kind = slot_device_kind(slot);
    copy_text(reply->device, slot->device.device, sizeof reply->device);
    copy_text(reply->server_version, TOPKD_VERSION_TEXT, sizeof reply->server_version);
    /* What a worker's session would get; the worker's own hello gives pages and arena. */
    reply->limits = (struct wire_limits){
        .regions_max = settings->limits.regions_max,
        .outstanding_max = settings->limits.outstanding_max,
        .semaphores = settings->limits.semaphores,
        .k_max = TOPK_K_MAX,
        .timeout_ms_max = settings->limits.timeout_ms_max,
        .region_bytes_max = settings->limits.region_bytes_max,
        .rows_max = TOPK_ROWS_MAX,
        .width_max = TOPK_WIDTH_MAX,
        .arena_slots = settings->limits.arena_slots,
        .arena_slot_bytes = settings->limits.arena_slot_bytes,
    };
    return TOPKD_OK;
}

static void answer_devices(const struct supervisor *supervisor, struct wire_devices_reply *reply)
{
    reply->num_devices = supervisor->num_slots;
    for (uint32_t i = 0; i < supervisor->num_slots; i++) {
        const struct slot *slot = &supervisor->slots[i];
        struct wire_device *device = &reply->devices[i];
        copy_text(device->device, slot->device.device, sizeof device->device);
        copy_text(device->name,
                  slot->ready.device_name[0] != '\0' ? slot->ready.device_name
                                                     : slot->device.device,
                  sizeof device->name);
        copy_text(device->url, slot->url, sizeof device->url);
        device->kind = slot_device_kind(slot);
        device->state = slot_device_state(slot);
        device->epoch = slot->epoch;
        device->restarts = slot->num_starts == 0 ? 0 : slot->num_starts - 1;
        device->pid = (int32_t)slot_pid(slot);
    }
}

static bool is_operator(const struct supervisor *supervisor, const struct peer *peer)
{
    return peer->uid >= 0 &&
           settings_allow_operator(&supervisor->settings, geteuid(), (uid_t)peer->uid);
}

static void answer_stats(const struct supervisor *supervisor, const struct peer *peer,
                         struct wire_stats_reply *reply)
{
    reply->uptime_ms = uv_now(&supervisor->loop) - supervisor->started_ms;
    reply->epoch = supervisor->epoch;
    if (!is_operator(supervisor, peer)) /* the rest is about others */
        return;
    for (uint32_t i = 0; i < supervisor->num_slots; i++) {
        const struct slot *slot = &supervisor->slots[i];
        if (slot->state != SLOT_READY && slot->state != SLOT_DRAINING)
            continue;
        reply->sessions += slot->heartbeat.num_sessions;
        reply->running += slot->heartbeat.num_running;
    }
    reply->requests = supervisor->counters.requests;
    reply->requests_failed = supervisor->counters.requests_failed;
    reply->messages_rejected = supervisor->counters.messages_rejected;
    reply->worker_restarts = supervisor_num_restarts(supervisor);
}

static enum topkd_status answer_drain(struct supervisor *supervisor,
                                      const struct wire_drain_request *drain,
                                      const struct peer *peer, char *detail)
{
    if (!is_operator(supervisor, peer))
        return detail_set(detail, TOPKD_E_NOT_PERMITTED,
                          "user %" PRId64 " may not drain the daemon; only root, user %u and "
                          "access.operator_uids may",
                          peer->uid, geteuid());
    uint32_t deadline_ms =
        drain->deadline_ms != 0 ? drain->deadline_ms : supervisor->settings.drain.deadline_ms;
    log_info("drain_request", "uid=%" PRId64 " pid=%" PRId64 " deadline_ms=%u", peer->uid,
             peer->pid, deadline_ms);
    supervisor_drain(supervisor, deadline_ms, "operator");
    return TOPKD_OK;
}

static enum topkd_status answer(struct supervisor *supervisor, const struct peer *peer,
                                const struct wire_request *request, struct wire_reply *reply)
{
    switch (request->kind) {
    case WIRE_HELLO:
        return answer_hello(supervisor, &request->u.hello, &reply->u.hello, reply->detail);
    case WIRE_PING:
        return TOPKD_OK;
    case WIRE_DEVICES:
        answer_devices(supervisor, &reply->u.devices);
        return TOPKD_OK;
    case WIRE_STATS:
        answer_stats(supervisor, peer, &reply->u.stats);
        return TOPKD_OK;
    case WIRE_DRAIN:
        return answer_drain(supervisor, &request->u.drain, peer, reply->detail);
    case WIRE_REGISTER:
    case WIRE_UNREGISTER:
    case WIRE_SELECT:
    case WIRE_SELECT_BATCH:
    case WIRE_RELEASE:
    case WIRE_LANE_OPEN:
    case WIRE_LANE_CLOSE:
    case WIRE_SESSIONS:
        break;
    }
    return detail_set(reply->detail, TOPKD_E_UNSUPPORTED,
                      "%s is answered by the worker of a device; ask this socket for the devices "
                      "and their urls",
                      wire_kind_name(request->kind));
}

static bool is_allowed(const struct supervisor *supervisor, const struct endpoint_pipe *pipe)
{
    return gate_allows(&supervisor->settings.access, geteuid(), endpoint_pipe_peer(pipe),
                       endpoint_pipe_groups(pipe));
}

/* Fills supervisor->reply for the bytes of one message. */
static void make_reply(struct supervisor *supervisor, const struct endpoint_pipe *pipe,
                       const void *bytes, size_t size)
{
    const struct peer *peer = endpoint_pipe_peer(pipe);
    struct wire_request *request = &supervisor->request;
    struct wire_reply *reply = &supervisor->reply;
    memset(reply, 0, sizeof *reply);
    supervisor->counters.requests++;
    /* A peer that may not speak is not listened to. */
    if (!is_allowed(supervisor, pipe)) {
        reply->status = detail_set(reply->detail, TOPKD_E_NOT_PERMITTED,
                                   "neither user %" PRId64 " nor group %" PRId64
                                   " is in access.uids or access.gids",
                                   peer->uid, peer->gid);
    } else {
        reply->status =
            wire_request_decode(bytes, size, &supervisor->buffer, request, reply->detail);
        if (reply->status != TOPKD_OK)
            supervisor->counters.messages_rejected++;
        reply->session = request->session;
        reply->sequence = request->sequence;
        reply->kind = request->kind;
        if (reply->status == TOPKD_OK)
            reply->status = answer(supervisor, peer, request, reply);
    }
    reply->epoch = supervisor->epoch;
    if (reply->status != TOPKD_OK)
        supervisor->counters.requests_failed++;
}

static void on_request(void *owner, struct endpoint_request *endpoint_request)
{
    struct supervisor *supervisor = owner;
    struct endpoint_pipe *pipe = endpoint_request_pipe(endpoint_request);
    char detail[WIRE_DETAIL_SIZE];
    size_t size = 0;
    if (pipe == NULL) { /* it hung up */
        endpoint_drop(endpoint_request);
        return;
    }
    const struct peer *peer = endpoint_pipe_peer(pipe);
    const void *bytes = endpoint_request_bytes(endpoint_request, &size);
    make_reply(supervisor, pipe, bytes, size);
    const struct wire_reply *reply = &supervisor->reply;
    if (reply->status != TOPKD_OK)
        log_warn("request_failed", "kind=%s status=%s uid=%" PRId64 " pid=%" PRId64,
                 wire_kind_name(reply->kind), wire_status_name(reply->status), peer->uid,
                 peer->pid);
    enum topkd_status status = wire_reply_encode(reply, supervisor->reply_bytes,
                                                 sizeof supervisor->reply_bytes, &size, detail);
    if (status != TOPKD_OK) {
        char text[LOG_QUOTE_SIZE];
        log_error("reply_lost", "kind=%s status=%s detail=%s", wire_kind_name(reply->kind),
                  wire_status_name(status), log_quote(text, detail));
        endpoint_pipe_close(pipe); /* it must not wait for what does not come */
        endpoint_drop(endpoint_request);
        return;
    }
    endpoint_reply(endpoint_request, supervisor->reply_bytes, size);
}

static const struct endpoint_handler handler = {.request = on_request};

static struct endpoint_limits limits_of(const struct settings *settings)
{
    return (struct endpoint_limits){
        .num_contexts = NUM_CONTEXTS,
        .pipes_max = settings->limits.connections_max,
        .unsent_max = UNSENT_MAX,
        .idle_ms = settings->limits.hello_ms, /* discovery has no session that keeps a pipe */
        .reply_ms = REPLY_MS,
    };
}

enum topkd_status discovery_open(struct supervisor *supervisor, char *detail)
{
    static const char scheme[] = "ipc://";
    char url[WIRE_URL_SIZE];
    int listen_fd;
    const struct settings *settings = &supervisor->settings;
    snprintf(url, sizeof url, "%s%s/" SETTINGS_SOCKET_NAME, scheme, settings->socket.directory);
    if (!system_activation(url + strlen(scheme), &listen_fd, detail, WIRE_DETAIL_SIZE))
        return TOPKD_E_INVALID;
    if (listen_fd >= 0)
        log_info("activated", "socket=%s", url);
    struct endpoint_config config = {
        .loop = &supervisor->loop,
        .url = url,
        .listen_fd = listen_fd,
        .rights = {.mode = settings->socket.mode, .gid = settings->socket.group},
        .limits = limits_of(settings),
        .handler = &handler,
        .owner = supervisor,
    };
    return endpoint_open(&config, &supervisor->endpoint, detail);
}

void discovery_configure(struct supervisor *supervisor)
{
    struct endpoint_limits limits = limits_of(&supervisor->settings);
    endpoint_configure(supervisor->endpoint, &limits);
}
