/* client.c - opening, closing and looking at a client. */
#include "client.h"
#include "discover.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 10000u /* documented in topkd.h */
/* Choices: the pause between two attempts to open, doubled up to the longer one. */
#define OPEN_PAUSE_MIN_NS (10 * CLOCK_NS_PER_MS)
#define OPEN_PAUSE_MAX_NS (200 * CLOCK_NS_PER_MS)

/* ---- Small things ---------------------------------------------------------------------------- */

enum topkd_status client_check(const struct topkd_client *client, char *detail)
{
    if (!client) {
        return fault(detail, TOPKD_E_INVALID, "client is NULL");
    }
    pid_t pid = getpid();
    if (client->pid != pid) {
        return fault(detail, TOPKD_E_CLOSED,
                     "the client belongs to process %d, this is its child %d: open one here",
                     (int)client->pid, (int)pid);
    }
    return TOPKD_OK;
}

uint64_t client_deadline_ns(const struct topkd_client *client, uint32_t timeout_ms)
{
    return clock_after_ms(timeout_ms != TOPKD_TIMEOUT_DEFAULT ? timeout_ms : client->timeout_ms);
}

void client_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool client_cond_wait(struct topkd_client *client, pthread_cond_t *cond, uint64_t deadline_ns)
{
    if (deadline_ns == CLOCK_NEVER) {
        return pthread_cond_wait(cond, &client->mutex) == 0;
    }
    struct timespec until = clock_timespec(deadline_ns);
    return pthread_cond_timedwait(cond, &client->mutex, &until) != ETIMEDOUT;
}

void session_let_go(struct topkd_client *client, struct session *session)
{
    pthread_mutex_lock(&client->mutex);
    session_release(session);
    pthread_mutex_unlock(&client->mutex);
}

/* ---- Options --------------------------------------------------------------------------------- */

static enum topkd_status copy_name(char *name_p, size_t size, const char *value, const char *what,
                                   char *detail)
{
    size_t length = strlen(value);
    if (length >= size) {
        return fault(detail, TOPKD_E_INVALID,
                     "%s \"%.60s...\" has %zu characters, at most %zu are "
                     "allowed",
                     what, value, length, size - 1);
    }
    memcpy(name_p, value, length + 1);
    return TOPKD_OK;
}

static enum topkd_status take_options(struct topkd_client *client,
                                      const struct topkd_client_options *options, char *detail)
{
    static const struct topkd_client_options defaults = {0};
    options = options ? options : &defaults;
    client->timeout_ms = options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
    client->no_renew = options->no_renew;
    enum topkd_status status = discover_url(options->url, client->url, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    const char *device = options->device ? options->device : getenv("TOPKD_DEVICE");
    status =
        copy_name(client->device, sizeof(client->device), device ? device : "", "device", detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (options->name) {
        return copy_name(client->name, sizeof(client->name), options->name, "name", detail);
    }
    strncpy(client->name, program_invocation_short_name, sizeof(client->name) - 1);
    for (char *c = client->name; *c; c++) {
        *c = iscntrl((unsigned char)*c) ? '?' : *c; /* the wire takes printable names only */
    }
    return TOPKD_OK;
}

/* ---- Open ------------------------------------------------------------------------------------ */

static void free_client(struct topkd_client *client)
{
    lanes_free(client);
    if (client->session) {
        session_release(client->session);
    }
    cuda_end(client);
    pthread_mutex_destroy(&client->cuda_mutex);
    if (client->event_fd >= 0) {
        close(client->event_fd);
    }
    pthread_cond_destroy(&client->changed);
    pthread_cond_destroy(&client->renewing);
    pthread_cond_destroy(&client->timing);
    pthread_mutex_destroy(&client->mutex);
    free(client);
}

static struct topkd_client *make_client(void)
{
    struct topkd_client *client = calloc(1, sizeof(*client));
    if (!client) {
        return NULL;
    }
    client->pid = getpid();
    client->event_fd = -1;
    client->timer_at_ns = CLOCK_NEVER;
    client_cond_init(&client->changed);
    client_cond_init(&client->renewing);
    client_cond_init(&client->timing);
    client_cond_init(&client->lanes.wake);
    pthread_mutex_init(&client->mutex, NULL);
    pthread_mutex_init(&client->cuda_mutex, NULL);
    struct list *const lists[] = {&client->regions,  &client->buffers, &client->semaphores,
                                  &client->leases,   &client->ops,     &client->parked,
                                  &client->finished, &client->streams, &client->lanes.list};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        list_init(lists[i]);
    }
    return client;
}

static enum topkd_status make_event(struct topkd_client *client, char *detail)
{
    client->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (client->event_fd < 0) {
        return fault_system(detail, "cannot create an event descriptor", errno);
    }
    return TOPKD_OK;
}

static enum topkd_status attempt_first(struct topkd_client *client, uint64_t deadline_ns,
                                       char *detail)
{
    struct link *link;
    enum topkd_status status =
        link_open(client, ++client->session_serial, deadline_ns, &link, detail);
    if (status == TOPKD_OK) {
        client->link = link;
        client->session = link->session;
        client->session->num_refs++;
    }
    return status;
}

/* Tries until there is a session, or no sense in trying. The last attempt is cut short by the
 * deadline; then the reason of the one before says more. */
static enum topkd_status connect_first(struct topkd_client *client, char *detail)
{
    uint64_t deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT);
    uint64_t pause_ns = OPEN_PAUSE_MIN_NS;
    char reason[WIRE_DETAIL_SIZE];
    enum topkd_status status = attempt_first(client, deadline_ns, detail);
    while (renew_transient(status) && status != TOPKD_E_LIMIT) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns) {
            return status;
        }
        const struct timespec pause = clock_timespec(clock_earlier(pause_ns, deadline_ns - now_ns));
        (void)nanosleep(&pause, NULL);
        pause_ns = clock_earlier(pause_ns * 2, OPEN_PAUSE_MAX_NS);
        memcpy(reason, detail, sizeof(reason));
        enum topkd_status again = attempt_first(client, deadline_ns, detail);
        if (again == TOPKD_E_TIMEOUT) {
            memcpy(detail, reason, sizeof(reason));
        } else {
            status = again;
        }
    }
    return status;
}

enum topkd_status topkd_client_open(const struct topkd_client_options *options,
                                    struct topkd_client **client_p)
{
    char *detail = fault_detail();
    if (!client_p) {
        return fault(detail, TOPKD_E_INVALID, "client_p is NULL");
    }
    struct topkd_client *client = make_client();
    if (!client) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a client");
    }
    enum topkd_status status = take_options(client, options, detail);
    if (status == TOPKD_OK) {
        status = make_event(client, detail);
    }
    if (status == TOPKD_OK) {
        status = connect_first(client, detail);
    }
    if (status != TOPKD_OK) {
        goto err_free;
    }
    status = engine_timer_start(client, detail);
    if (status != TOPKD_OK) {
        goto err_link;
    }
    status = renew_start(client, detail);
    if (status != TOPKD_OK) {
        goto err_timer;
    }
    *client_p = client;
    return TOPKD_OK;

err_timer:
    engine_timer_stop(client);
err_link:
    link_close(client->link);
err_free:
    free_client(client);
    return status;
}

/* ---- Close ----------------------------------------------------------------------------------- */

/* With the mutex held: no request of ours is worth anything any more. Waits of requests in flight
 * are reached as failed, so that the worker ends them now and not at their deadlines. */
static void cancel_all(struct topkd_client *client)
{
    engine_fail_parked(client, TOPKD_E_CANCELLED, "the client is being closed");
    list_each(node, &client->ops)
    {
        const struct topkd_op *op = list_entry(node, struct topkd_op, node);
        if (op->in_flight && op->request.wait.semaphore) {
            semaphore_fail(op->request.wait.semaphore, op->request.wait.value, TOPKD_E_CANCELLED);
        }
    }
}

/* With the mutex held: until the worker has answered what it has, or cannot. */
static void await_answers(struct topkd_client *client)
{
    uint64_t deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT);
    while (client->link && !client->link->lost && client->link->num_in_use > 0 &&
           client_cond_wait(client, &client->changed, deadline_ns)) {
    }
}

/* Nobody else uses the client any more. */
static void free_handles(struct topkd_client *client)
{
    list_each(op_node, &client->ops)
    {
        struct topkd_op *op = list_entry(op_node, struct topkd_op, node);
        engine_cancel(op, "the client is being closed");
        engine_unhold(op);
    }
    list_each(buffer_node, &client->buffers)
    {
        struct topkd_buffer *buffer = list_entry(buffer_node, struct topkd_buffer, node);
        buffer_free(buffer);
    }
    list_each(region_node, &client->regions)
    {
        free(list_entry(region_node, struct topkd_region, node));
    }
    cuda_streams_free(client);
    list_each(semaphore_node, &client->semaphores)
    {
        free(list_entry(semaphore_node, struct topkd_semaphore, node));
    }
    list_each(lease_node, &client->leases)
    {
        struct lease *lease = list_entry(lease_node, struct lease, node);
        session_release(lease->session);
        free(lease);
    }
}

void topkd_client_close(struct topkd_client *client)
{
    if (client_check(client, fault_detail()) != TOPKD_OK) {
        return; /* NULL, or the parent's */
    }
    lanes_close(client);
    pthread_mutex_lock(&client->mutex);
    client->closing = true;
    cancel_all(client);
    await_answers(client);
    pthread_mutex_unlock(&client->mutex);
    renew_stop(client);
    if (client->link) {
        struct link *link = client->link;
        client->link = NULL;
        link_close(link);
    }
    engine_timer_stop(client);
    semaphore_release_streams(client, TOPKD_E_CANCELLED);
    free_handles(client);
    free_client(client);
}

/* ---- Look ------------------------------------------------------------------------------------ */

enum topkd_status topkd_client_info(struct topkd_client *client, struct topkd_client_info *info_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!info_p) {
        return fault(detail, TOPKD_E_INVALID, "info_p is NULL");
    }
    pthread_mutex_lock(&client->mutex);
    const struct session *session = client->session;
    const struct wire_limits *limits = &session->limits;
    *info_p = (struct topkd_client_info){
        .device_kind =
            session->device_kind == WIRE_DEVICE_CUDA ? TOPKD_DEVICE_CUDA : TOPKD_DEVICE_CPU,
        .session = session->id,
        .epoch = session->epoch,
        .num_renewals = client->num_renewals,
        .k_max = limits->k_max,
        .regions_max = limits->regions_max,
        .outstanding_max = limits->outstanding_max,
        .semaphores_max = limits->semaphores,
        .rows_max = limits->rows_max,
        .width_max = limits->width_max,
        .region_bytes_max = limits->region_bytes_max,
        .timeout_ms_max = limits->timeout_ms_max,
        .arena_slots = limits->arena_slots,
        .arena_slot_bytes = limits->arena_slot_bytes,
        .dtypes = limits->dtypes,
    };
    _Static_assert(sizeof(info_p->device) == sizeof(session->device), "same room");
    _Static_assert(sizeof(info_p->server_version) == sizeof(session->server_version), "same room");
    memcpy(info_p->device, session->device, sizeof(info_p->device));
    memcpy(info_p->server_version, session->server_version, sizeof(info_p->server_version));
    pthread_mutex_unlock(&client->mutex);
    return TOPKD_OK;
}

enum topkd_status topkd_client_wait(struct topkd_client *client, uint32_t timeout_ms)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct link *link;
    uint64_t deadline_ns = client_deadline_ns(client, timeout_ms);
    pthread_mutex_lock(&client->mutex);
    status = call_await_link(client, deadline_ns, &link, detail);
    pthread_mutex_unlock(&client->mutex);
    return status;
}

struct ping {
    uint64_t sent_ns, answered_ns;
};

static enum topkd_status fill_ping(struct wire_request *request, const struct session *session,
                                   void *arg, char *detail)
{
    (void)session;
    (void)detail;
    request->kind = WIRE_PING;
    ((struct ping *)arg)->sent_ns = clock_now_ns();
    return TOPKD_OK;
}

static void take_ping(const struct wire_reply *reply, const struct session *session, void *arg)
{
    (void)reply;
    (void)session;
    ((struct ping *)arg)->answered_ns = clock_now_ns();
}

enum topkd_status topkd_ping(struct topkd_client *client, uint64_t *round_trip_ns_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct ping ping;
    const struct call call = {
        .fill = fill_ping,
        .take = take_ping,
        .arg = &ping,
        .deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT),
    };
    status = call_run(client, &call, detail);
    if (status == TOPKD_OK && round_trip_ns_p) {
        *round_trip_ns_p = ping.answered_ns - ping.sent_ns;
    }
    return status;
}
