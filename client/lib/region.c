/* region.c - registered memory: what the worker maps, in this session and the next ones. */
#include "client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Choices: pauses between two looks at a region that still drains. */
#define DRAIN_LOOK_MIN_NS (1 * CLOCK_NS_PER_MS)
#define DRAIN_LOOK_MAX_NS (50 * CLOCK_NS_PER_MS)
/* Choice: the most that one registration may take while a session is renewed. */
#define REGISTER_MS 2000u

/* ---- Requests -------------------------------------------------------------------------------- */

void region_fill(const struct topkd_region *region, const struct session *session,
                 struct wire_request *request)
{
    struct wire_register_request *reg = &request->u.reg;
    request->kind = WIRE_REGISTER;
    if (!region->is_cuda) { /* else whoever sends it has the memory: cuda_export_send */
        reg->memory.kind = WIRE_MEMORY_SHM;
        reg->memory.handle_bytes = (uint32_t)strlen(region->name);
        memcpy(reg->memory.handle, region->name, reg->memory.handle_bytes);
        reg->memory.allocation_bytes = region->allocation_bytes;
    }
    reg->buffer_id = region->inode;
    reg->offset = region->offset_bytes;
    reg->length = region->length_bytes;
    reg->access = (enum wire_access)region->access;
    memcpy(reg->device, session->device, sizeof(reg->device));
    reg->unlink_when_dead = region->buffer != NULL && !region->is_cuda;
}

static enum topkd_status fill_register(struct wire_request *request, const struct session *session,
                                       void *arg, char *detail)
{
    (void)detail;
    region_fill(arg, session, request);
    return TOPKD_OK;
}

static void take_region(struct topkd_region *region, const struct wire_reply *reply,
                        const struct session *session)
{
    region->id = reply->u.reg.region;
    region->generation = reply->u.reg.generation;
    region->session_serial = session->serial;
}

static void take_registered(const struct wire_reply *reply, const struct session *session,
                            void *arg)
{
    struct topkd_region *region = arg;
    take_region(region, reply, session);
    list_insert(&region->client->regions, &region->node);
}

struct unregistration {
    struct topkd_region *region;
    bool draining;
};

static enum topkd_status fill_unregister(struct wire_request *request,
                                         const struct session *session, void *arg, char *detail)
{
    const struct topkd_region *region = ((struct unregistration *)arg)->region;
    if (region->session_serial != session->serial) {
        return fault(detail, TOPKD_E_NO_REGION, "the session of the region is gone");
    }
    request->kind = WIRE_UNREGISTER;
    request->u.unreg.region = region->id;
    request->u.unreg.generation = region->generation;
    return TOPKD_OK;
}

static void take_unregistered(const struct wire_reply *reply, const struct session *session,
                              void *arg)
{
    (void)session;
    ((struct unregistration *)arg)->draining = reply->u.unreg.draining;
}

/* ---- Open ------------------------------------------------------------------------------------ */

static struct topkd_region *make_region(struct topkd_client *client, const struct topkd_shm *shm,
                                        const struct shm_info *info, struct topkd_buffer *buffer)
{
    struct topkd_region *region = calloc(1, sizeof(*region));
    if (!region) {
        return NULL;
    }
    region->client = client;
    region->buffer = buffer;
    region->inode = info->inode;
    region->allocation_bytes = info->size_bytes;
    region->offset_bytes = shm->offset_bytes;
    region->length_bytes = shm->length_bytes;
    region->access = shm->access;
    list_init(&region->node);
    memcpy(region->name, shm->name, strlen(shm->name) + 1);
    return region;
}

enum topkd_status region_open(struct topkd_client *client, const struct topkd_shm *shm,
                              const struct shm_info *info, struct topkd_buffer *buffer,
                              struct topkd_region **region_p, char *detail)
{
    struct topkd_region *region = make_region(client, shm, info, buffer);
    if (!region) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a region");
    }
    const struct call call = {
        .fill = fill_register,
        .take = take_registered,
        .arg = region,
        .deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT),
    };
    enum topkd_status status = call_run(client, &call, detail);
    if (status != TOPKD_OK) {
        free(region);
        return status;
    }
    *region_p = region;
    return TOPKD_OK;
}

static enum topkd_status check_shm(const struct topkd_shm *shm, char *detail)
{
    if (!shm || !shm->name) {
        return fault(detail, TOPKD_E_INVALID, "shm or shm->name is NULL");
    }
    if (shm->access != TOPKD_ACCESS_READ && shm->access != TOPKD_ACCESS_READ_WRITE) {
        return fault(detail, TOPKD_E_INVALID,
                     "access %u is neither TOPKD_ACCESS_READ nor TOPKD_ACCESS_READ_WRITE",
                     (unsigned)shm->access);
    }
    if (shm->length_bytes == 0) {
        return fault(detail, TOPKD_E_INVALID, "length_bytes is 0, the least is 1");
    }
    return TOPKD_OK;
}

enum topkd_status topkd_region_register_shm(struct topkd_client *client,
                                            const struct topkd_shm *shm,
                                            struct topkd_region **region_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status == TOPKD_OK) {
        status = check_shm(shm, detail);
    }
    if (status != TOPKD_OK) {
        return status;
    }
    if (!region_p) {
        return fault(detail, TOPKD_E_INVALID, "region_p is NULL");
    }
    struct shm_info info;
    status = shm_inspect(shm->name, shm->access == TOPKD_ACCESS_READ_WRITE, &info, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (shm->offset_bytes > info.size_bytes ||
        shm->length_bytes > info.size_bytes - shm->offset_bytes) {
        return fault(detail, TOPKD_E_OUT_OF_RANGE,
                     "offset_bytes %" PRIu64 " + length_bytes %" PRIu64 " reach beyond the %" PRIu64
                     " bytes of %s",
                     shm->offset_bytes, shm->length_bytes, info.size_bytes, shm->name);
    }
    return region_open(client, shm, &info, NULL, region_p, detail);
}

/* ---- Open, CUDA memory ----------------------------------------------------------------------- */

struct cuda_registration {
    struct topkd_region *region;
    struct call_worker worker; /* that has the descriptors */
    struct wire_memory memory;
};

static enum topkd_status fill_cuda(struct wire_request *request, const struct session *session,
                                   void *arg, char *detail)
{
    const struct cuda_registration *registration = arg;
    if (session->serial != registration->worker.session_serial) {
        return fault(detail, TOPKD_E_CANCELLED, "the session was renewed meanwhile");
    }
    region_fill(registration->region, session, request);
    request->u.reg.memory = registration->memory;
    return TOPKD_OK;
}

static void take_cuda(const struct wire_reply *reply, const struct session *session, void *arg)
{
    take_registered(reply, session, ((struct cuda_registration *)arg)->region);
}

/* One attempt with the present session. TOPKD_E_CANCELLED: try again, it was renewed in the
 * middle or its side socket took nothing. */
static enum topkd_status register_cuda(struct cuda_registration *registration, uint64_t deadline_ns,
                                       char *detail)
{
    struct topkd_client *client = registration->region->client;
    struct call_worker *worker = &registration->worker;
    enum topkd_status status = call_find_worker(client, deadline_ns, worker, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = cuda_export_send(client->cuda, &registration->region->export, worker->url,
                              &registration->memory, detail);
    if (status == TOPKD_E_UNREACHABLE && call_worker_again(client, worker, deadline_ns)) {
        return TOPKD_E_CANCELLED;
    }
    if (status != TOPKD_OK) {
        return status;
    }
    const struct call call = {
        .fill = fill_cuda,
        .take = take_cuda,
        .arg = registration,
        .deadline_ns = deadline_ns,
    };
    return call_run(client, &call, detail);
}

enum topkd_status region_open_cuda(struct topkd_client *client, const struct cuda_export *export,
                                   enum topkd_access access, struct topkd_buffer *buffer,
                                   struct topkd_region **region_p, char *detail)
{
    struct topkd_region *region = calloc(1, sizeof(*region));
    if (!region) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a region");
    }
    region->client = client;
    region->is_cuda = true;
    region->export = *export;
    region->buffer = buffer;
    region->inode = export->buffer_id;
    region->allocation_bytes = export->memory.allocation_bytes;
    region->offset_bytes = export->offset_bytes;
    region->length_bytes = export->length_bytes;
    region->access = access;
    list_init(&region->node);
    (void)snprintf(region->name, sizeof(region->name), "%p", export->pointer);
    uint64_t deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT);
    struct cuda_registration registration = {.region = region};
    enum topkd_status status;
    do {
        status = register_cuda(&registration, deadline_ns, detail);
    } while (status == TOPKD_E_CANCELLED);
    if (status != TOPKD_OK) {
        free(region);
        return status;
    }
    *region_p = region;
    return TOPKD_OK;
}

/* ---- Close ----------------------------------------------------------------------------------- */

/* With the mutex held: until no operation refers to the region and no renewal is under way. */
static bool await_idle(struct topkd_region *region, uint64_t deadline_ns)
{
    struct topkd_client *client = region->client;
    while (region->num_users > 0 || (client->attempting && !client->link)) {
        if (!client_cond_wait(client, &client->changed, deadline_ns)) {
            return false;
        }
    }
    return true;
}

/* Sends unregister until the worker has let the memory go. */
static enum topkd_status unregister(struct topkd_region *region, uint64_t deadline_ns, char *detail)
{
    struct topkd_client *client = region->client;
    struct unregistration unregistration = {.region = region};
    const struct call call = {
        .fill = fill_unregister,
        .take = take_unregistered,
        .arg = &unregistration,
        .deadline_ns = deadline_ns,
    };
    uint64_t pause_ns = DRAIN_LOOK_MIN_NS;
    for (;;) {
        enum topkd_status status = call_run(client, &call, detail);
        bool was_draining = unregistration.draining; /* as of this answer, or of the last one */
        if (!was_draining || (status != TOPKD_OK && status != TOPKD_E_TIMEOUT)) {
            return status;
        }
        uint64_t look_ns = clock_now_ns() + pause_ns;
        if (status == TOPKD_E_TIMEOUT || look_ns >= deadline_ns) {
            return fault(detail, TOPKD_E_TIMEOUT,
                         "region %s is still in use by work in flight; try again", region->name);
        }
        pthread_mutex_lock(&client->mutex);
        while (client_cond_wait(client, &client->changed, look_ns)) {
        }
        pthread_mutex_unlock(&client->mutex);
        pause_ns = pause_ns * 2 < DRAIN_LOOK_MAX_NS ? pause_ns * 2 : DRAIN_LOOK_MAX_NS;
    }
}

enum topkd_status region_close(struct topkd_region *region, char *detail)
{
    struct topkd_client *client = region->client;
    uint64_t deadline_ns = client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT);
    pthread_mutex_lock(&client->mutex);
    region->closing = true;
    bool idle = await_idle(region, deadline_ns);
    uint32_t num_users = region->num_users;
    /* Without a link there is no session that could have it mapped. */
    bool registered = client->link && region->session_serial == client->session->serial;
    pthread_mutex_unlock(&client->mutex);
    if (!idle) {
        return fault(detail, TOPKD_E_TIMEOUT,
                     "region %s is still in use by %u operations; finish them and try again",
                     region->name, num_users);
    }
    enum topkd_status status = TOPKD_OK;
    if (registered) {
        status = unregister(region, deadline_ns, detail);
    }
    if (status == TOPKD_E_TIMEOUT) {
        return status;
    }
    pthread_mutex_lock(&client->mutex);
    list_remove(&region->node);
    pthread_mutex_unlock(&client->mutex);
    free(region);
    /* The session or the region's place in it is gone: that is what was wanted. */
    return status == TOPKD_E_NO_REGION || status == TOPKD_E_STALE_SESSION ? TOPKD_OK : status;
}

enum topkd_status topkd_region_unregister(struct topkd_region *region)
{
    char *detail = fault_detail();
    if (!region) {
        return TOPKD_OK;
    }
    enum topkd_status status = client_check(region->client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (region->buffer) {
        return fault(detail, TOPKD_E_INVALID,
                     "the region belongs to a buffer: topkd_buffer_destroy unregisters it");
    }
    return region_close(region, detail);
}

/* ---- Renewal --------------------------------------------------------------------------------- */

/* A region under the renewer's hands: what it will be when the link becomes the client's. */
static struct topkd_region *next_region(struct topkd_client *client, uint64_t serial)
{
    list_each(node, &client->regions)
    {
        struct topkd_region *region = list_entry(node, struct topkd_region, node);
        if (region->session_serial != serial && !region->closing &&
            region->renewed_serial != serial) {
            return region;
        }
    }
    return NULL;
}

/* The memory must still be what was registered; CUDA memory is handed over anew. */
static enum topkd_status prepare(const struct topkd_region *region, const struct session *session,
                                 struct wire_register_request *reg, char *detail)
{
    if (region->is_cuda) {
        return cuda_export_send(region->client->cuda, &region->export, session->url, &reg->memory,
                                detail);
    }
    struct shm_info info;
    enum topkd_status status =
        shm_inspect(region->name, region->access == TOPKD_ACCESS_READ_WRITE, &info, detail);
    if (status == TOPKD_OK && info.inode != region->inode) {
        status = fault(detail, TOPKD_E_MAP_FAILED,
                       "shared memory object %s is not the one that was registered", region->name);
    }
    return status;
}

/* Whether the failure says something about the region, and not about the link. */
static bool concerns_region(enum topkd_status status)
{
    return !renew_transient(status) || status == TOPKD_E_LIMIT;
}

enum topkd_status region_renew_all(struct topkd_client *client, struct link *link, char *detail)
{
    const struct session *session = link->session;
    struct wire_reply *reply = malloc(sizeof(*reply));
    if (!reply) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory to register regions again");
    }
    enum topkd_status status = TOPKD_OK;
    pthread_mutex_lock(&client->mutex);
    struct topkd_region *region;
    while (!client->closing && (region = next_region(client, session->serial)) != NULL) {
        struct wire_request request = {.session = session->id, .epoch = session->epoch};
        region_fill(region, session, &request);
        region->num_users++;
        pthread_mutex_unlock(&client->mutex);
        status = prepare(region, session, &request.u.reg, detail);
        if (status == TOPKD_OK) {
            status = link_exchange(link, &request, clock_after_ms(REGISTER_MS), reply, detail);
        }
        pthread_mutex_lock(&client->mutex);
        region->num_users--;
        region->renewed_serial = session->serial;
        region->fault_status = status;
        if (status == TOPKD_OK) {
            take_region(region, reply, session);
        } else if (concerns_region(status)) {
            memcpy(region->fault_detail, detail, sizeof(region->fault_detail));
            status = TOPKD_OK;
        } else {
            break;
        }
    }
    pthread_mutex_unlock(&client->mutex);
    free(reply);
    return status;
}
