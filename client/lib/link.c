/* link.c - a session with a worker over one connection, and its slots for requests in flight. */
#include "client.h"
#include "discover.h"
#include "fd_socket.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Choice: how long the socket of a worker that the supervisor calls ready is tried before the
 * supervisor is asked again. */
#define WORKER_DIAL_MS 1000u
/* Choice: bounds on what hello may make this process allocate; the daemon's own limits are these
 * (limits.outstanding_max, limits.arena_slots). */
#define SLOTS_MAX 1024u
/* Choice: a worker that says BUSY while a session is renewed (its rate of registrations is limited)
 * is asked again after so long. */
#define BUSY_RETRY_NS (5 * CLOCK_NS_PER_MS)

/* ---- Session --------------------------------------------------------------------------------- */

void session_release(struct session *session)
{
    if (--session->num_refs > 0) {
        return;
    }
    if (session->cuda.cuda) {
        cuda_retire(session);
    } else {
        shm_unmap(&session->page);
        shm_unmap(&session->arena);
        free(session);
    }
}

static enum topkd_status check_hello(const struct wire_hello_reply *hello, char *detail)
{
    const struct wire_limits *limits = &hello->limits;
    if (hello->version != WIRE_VERSION) {
        return fault(detail, TOPKD_E_VERSION,
                     "the worker speaks wire version %u, this library %u: upgrade the older one",
                     hello->version, WIRE_VERSION);
    }
    uint64_t page_bytes = (uint64_t)limits->semaphores * sizeof(struct wire_semaphore);
    if (limits->outstanding_max < 1 || limits->outstanding_max > SLOTS_MAX ||
        limits->arena_slots > SLOTS_MAX || hello->semaphores.allocation_bytes < page_bytes) {
        return fault(detail, TOPKD_E_PROTOCOL,
                     "the worker's hello makes no sense: %u outstanding requests, %u arena slots, "
                     "%u semaphores in %" PRIu64 " bytes",
                     limits->outstanding_max, limits->arena_slots, limits->semaphores,
                     hello->semaphores.allocation_bytes);
    }
    if (limits->arena_slots > 0 &&
        hello->arena.allocation_bytes / limits->arena_slots < limits->arena_slot_bytes) {
        return fault(detail, TOPKD_E_PROTOCOL,
                     "the worker's hello makes no sense: %u arena slots of %" PRIu64
                     " bytes in %" PRIu64,
                     limits->arena_slots, limits->arena_slot_bytes, hello->arena.allocation_bytes);
    }
    return TOPKD_OK;
}

/* A page that hello offers as a descriptor, which reaches a client in any namespace. */
static enum topkd_status map_fetched(struct session *session, const struct wire_memory *memory,
                                     char *detail)
{
    int fd;
    if (memory->handle_bytes != FD_TICKET_SIZE) {
        return fault(detail, TOPKD_E_PROTOCOL, "the worker's ticket has %u bytes, not %u",
                     memory->handle_bytes, FD_TICKET_SIZE);
    }
    enum topkd_status status = fd_socket_fetch(session->url, memory->handle, &fd, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = shm_map_fd(fd, memory->allocation_bytes, &session->page, detail);
    close(fd);
    return status;
}

static enum topkd_status map_session(struct session *session, const struct wire_hello_reply *hello,
                                     char *detail)
{
    enum topkd_status status = TOPKD_OK;
    if (hello->device_kind == WIRE_DEVICE_CUDA) {
        session->cuda.arena = hello->arena; /* opened when a result is to lie there */
        return hello->limits.semaphores > 0 ? map_fetched(session, &hello->semaphores, detail)
                                            : TOPKD_OK;
    }
    if (hello->limits.semaphores > 0) {
        status = shm_map(&hello->semaphores, true, &session->page, detail);
    }
    if (status == TOPKD_OK && hello->limits.arena_slots > 0) {
        status = shm_map(&hello->arena, false, &session->arena, detail);
    }
    return status;
}

static enum topkd_status session_make(const struct wire_reply *reply, uint64_t serial,
                                      const struct rpc *rpc, struct session **session_p,
                                      char *detail)
{
    const struct wire_hello_reply *hello = &reply->u.hello;
    enum topkd_status status = check_hello(hello, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct session *session = calloc(1, sizeof(*session));
    if (!session) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a session");
    }
    session->num_refs = 1;
    session->serial = serial;
    session->id = reply->session;
    session->epoch = reply->epoch;
    session->limits = hello->limits;
    session->limits.dtypes |= 1u << TOPKD_DTYPE_FLOAT32; /* a worker that knows no other says 0 */
    session->device_kind = hello->device_kind;
    session->worker = rpc_peer(rpc);
    (void)snprintf(session->url, sizeof(session->url), "%s", rpc_url(rpc));
    memcpy(session->device, hello->device, sizeof(session->device));
    memcpy(session->server_version, hello->server_version, sizeof(session->server_version));
    status = map_session(session, hello, detail);
    if (status != TOPKD_OK) {
        session_release(session);
        return status;
    }
    *session_p = session;
    return TOPKD_OK;
}

static enum topkd_status say_hello(struct topkd_client *client, struct rpc *rpc, const char *device,
                                   uint64_t deadline_ns, struct wire_reply *reply, char *detail)
{
    struct wire_request request = {.kind = WIRE_HELLO};
    request.u.hello.version = WIRE_VERSION;
    memcpy(request.u.hello.client_name, client->name, sizeof(client->name));
    memcpy(request.u.hello.device, device, strlen(device) + 1);
    return rpc_exchange(rpc, &request, deadline_ns, reply, detail);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

/* The same end for every operation of the slot. */
static void fill_answer(const struct slot *slot, struct answer *answer, enum topkd_status status,
                        const char *detail)
{
    answer->status = status;
    for (uint32_t i = 0; i < slot->num_ops; i++) {
        answer->selects[i].status = status;
        memcpy(answer->selects[i].detail, detail, WIRE_DETAIL_SIZE);
    }
}

/* A reply that is OK has one status for each operation. */
static void take_reply(const struct slot *slot, const struct wire_reply *reply,
                       struct answer *answer)
{
    if (slot->message.kind == WIRE_SELECT) {
        answer->selects[0].select = reply->u.select;
        return;
    }
    if (slot->message.kind != WIRE_SELECT_BATCH) {
        return;
    }
    uint32_t num_answers = reply->u.select_batch.num_answers;
    if (num_answers != slot->num_ops) {
        char detail[WIRE_DETAIL_SIZE];
        (void)fault(detail, TOPKD_E_PROTOCOL, "the worker answered %u requests with %u answers",
                    slot->num_ops, num_answers);
        fill_answer(slot, answer, TOPKD_E_PROTOCOL, detail);
        return;
    }
    memcpy(answer->selects, reply->u.select_batch.answers,
           num_answers * sizeof(answer->selects[0]));
    for (uint32_t i = 0; i < num_answers; i++) {
        struct wire_select_answer *select = &answer->selects[i];
        if (select->status != TOPKD_OK && select->detail[0] == '\0') {
            (void)fault(select->detail, select->status, "%s", wire_status_text(select->status));
        }
    }
}

/* From the connection's thread: the reply is here, or there will be none. */
static void slot_answer(struct rpc_request *message, const struct rpc_answer *answered)
{
    struct slot *slot = list_entry(message, struct slot, message);
    struct answer answer = {.lost = answered->lost};
    if (answered->status == TOPKD_OK) {
        take_reply(slot, answered->reply, &answer);
    } else if (!answered->lost) {
        fill_answer(slot, &answer, answered->status, answered->detail);
    }
    engine_answer(slot, &answer);
}

struct slot *link_take_slot(struct link *link)
{
    struct slot *slot = link->free_slots;
    if (slot) {
        link->free_slots = slot->next_free;
        slot->next_free = NULL;
        link->num_in_use++;
    }
    return slot;
}

static void put_free(struct slot *slot)
{
    slot->num_ops = 0;
    slot->is_counted = false;
    slot->next_free = slot->link->free_slots;
    slot->link->free_slots = slot;
}

void link_give_slot(struct slot *slot)
{
    put_free(slot);
    slot->link->num_in_use--;
}

enum topkd_status link_send(struct slot *slot, struct wire_request *request, char *detail)
{
    struct link *link = slot->link;
    request->session = link->session->id;
    request->epoch = link->session->epoch;
    request->sequence = link->sequence + 1;
    enum topkd_status status = rpc_post(link->rpc, request, &slot->message, detail);
    if (status == TOPKD_OK) {
        link->sequence +=
            request->kind == WIRE_SELECT_BATCH ? request->u.select_batch.num_selects : 1;
    }
    return status;
}

enum topkd_status link_exchange(struct link *link, struct wire_request *request,
                                uint64_t deadline_ns, struct wire_reply *reply, char *detail)
{
    for (;;) {
        request->sequence = ++link->sequence;
        enum topkd_status status = rpc_exchange(link->rpc, request, deadline_ns, reply, detail);
        if (status != TOPKD_E_BUSY || clock_now_ns() + BUSY_RETRY_NS >= deadline_ns) {
            return status;
        }
        const struct timespec pause = clock_timespec(BUSY_RETRY_NS);
        (void)nanosleep(&pause, NULL);
    }
}

static enum topkd_status make_slots(struct link *link, char *detail)
{
    const struct wire_limits *limits = &link->session->limits;
    uint32_t num_slots = limits->outstanding_max + limits->arena_slots;
    link->slots = calloc(num_slots, sizeof(*link->slots));
    if (!link->slots) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for %u requests", num_slots);
    }
    for (; link->num_slots < num_slots; link->num_slots++) {
        struct slot *slot = &link->slots[link->num_slots];
        slot->link = link;
        slot->message.answer = slot_answer;
        put_free(slot);
    }
    return TOPKD_OK;
}

/* ---- Link ------------------------------------------------------------------------------------ */

static void lost_cb(void *arg)
{
    struct link *link = arg;
    pthread_mutex_lock(&link->client->mutex);
    link->lost = true;
    renew_wake(link->client);
    pthread_mutex_unlock(&link->client->mutex);
}

bool link_usable(const struct link *link)
{
    return link && !link->lost && !link->stale && !link->draining;
}

static enum topkd_status connect_worker(struct topkd_client *client, uint64_t serial,
                                        uint64_t deadline_ns, struct link *link,
                                        struct wire_reply *reply, char *detail)
{
    struct wire_device device;
    enum topkd_status status =
        discover_device(client->url, client->device, deadline_ns, &device, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    uint64_t dial_ns = clock_earlier(deadline_ns, clock_after_ms(WORKER_DIAL_MS));
    status = rpc_open(device.url, dial_ns, &link->rpc, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = say_hello(client, link->rpc, device.device, deadline_ns, reply, detail);
    if (status == TOPKD_OK) {
        status = session_make(reply, serial, link->rpc, &link->session, detail);
    }
    if (status == TOPKD_OK) {
        status = make_slots(link, detail);
    }
    if (status == TOPKD_OK && link->session->limits.arena_slots > 0 &&
        __atomic_load_n(&client->cuda, __ATOMIC_ACQUIRE)) {
        /* Requests for the arena may be parked: it must be open before they are sent again. */
        status = cuda_arena_open(client, link->session, detail);
    }
    if (status != TOPKD_OK && rpc_lost(link->rpc)) {
        /* Whatever failed, failed because the worker went; that is worth another attempt. */
        status = TOPKD_E_UNREACHABLE;
    }
    return status;
}

enum topkd_status link_open(struct topkd_client *client, uint64_t serial, uint64_t deadline_ns,
                            struct link **link_p, char *detail)
{
    struct link *link = calloc(1, sizeof(*link));
    struct wire_reply *reply = malloc(sizeof(*reply));
    if (!link || !reply) {
        free(link);
        free(reply);
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a connection");
    }
    link->client = client;
    enum topkd_status status = connect_worker(client, serial, deadline_ns, link, reply, detail);
    free(reply);
    if (status != TOPKD_OK) {
        link_close(link);
        return status;
    }
    rpc_watch(link->rpc, lost_cb, link);
    *link_p = link;
    return TOPKD_OK;
}

void link_close(struct link *link)
{
    struct topkd_client *client = link->client;
    if (link->rpc) {
        rpc_abort(link->rpc); /* no slot is in use after it */
    }
    pthread_mutex_lock(&client->mutex);
    while (link->num_callers > 0) {
        pthread_cond_wait(&client->changed, &client->mutex);
    }
    if (link->session) {
        session_release(link->session);
    }
    pthread_mutex_unlock(&client->mutex);
    rpc_close(link->rpc);
    free(link->slots);
    free(link);
}
