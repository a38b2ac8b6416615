/* cuda_context.c - a client's device context, and what its sessions hold of it. */
#include "client.h"
#include "thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda {
    const struct cuda_driver *driver;
    int device, ordinal;
    void *context;
    void *stream;
    pthread_t janitor;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t wake;
    struct session *retired;
    bool ending;
};

const struct cuda_driver *cuda_calls(const struct cuda *cuda)
{
    return cuda->driver;
}

void *cuda_context(const struct cuda *cuda)
{
    return cuda->context;
}

void *cuda_stream(const struct cuda *cuda)
{
    return cuda->stream;
}

int cuda_ordinal(const struct cuda *cuda)
{
    return cuda->ordinal;
}

int cuda_device(const struct cuda *cuda)
{
    return cuda->device;
}

enum topkd_status cuda_enter(const struct cuda *cuda, char *detail)
{
    int result = cuda->driver->context_push(cuda->context);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(cuda->driver, result, TOPKD_E_SYSTEM,
                                                 "the device's context cannot be used", detail);
}

void cuda_leave(const struct cuda *cuda)
{
    void *context;
    (void)cuda->driver->context_pop(&context);
}

/* ---- The janitor ----------------------------------------------------------------------------- */

static void free_session(const struct cuda *cuda, struct session *session)
{
    char detail[WIRE_DETAIL_SIZE];
    struct cuda_session *held = &session->cuda;
    if (cuda_enter(cuda, detail) == TOPKD_OK) {
        if (held->page_base) {
            (void)cuda->driver->host_unregister(session->page.base);
        }
        if (held->arena_base) {
            (void)cuda->driver->ipc_close(held->arena_base);
        }
        cuda_leave(cuda);
    }
    shm_unmap(&session->page);
    free(session);
}

static void *janitor_main(void *arg)
{
    struct cuda *cuda = arg;
    pthread_mutex_lock(&cuda->mutex);
    for (;;) {
        struct session *session = cuda->retired;
        if (session) {
            cuda->retired = session->cuda.next;
            pthread_mutex_unlock(&cuda->mutex);
            free_session(cuda, session);
            pthread_mutex_lock(&cuda->mutex);
        } else if (cuda->ending) {
            break;
        } else {
            pthread_cond_wait(&cuda->wake, &cuda->mutex);
        }
    }
    pthread_mutex_unlock(&cuda->mutex);
    return NULL;
}

void cuda_retire(struct session *session)
{
    struct cuda *cuda = session->cuda.cuda;
    pthread_mutex_lock(&cuda->mutex);
    session->cuda.next = cuda->retired;
    cuda->retired = session;
    pthread_cond_signal(&cuda->wake);
    pthread_mutex_unlock(&cuda->mutex);
}

/* ---- Open and end ---------------------------------------------------------------------------- */

static void uuid_text(const struct cuda_uuid *uuid, char text[WIRE_UUID_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    char *to = text;
    memcpy(to, "GPU-", 4);
    to += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            *to++ = '-';
        }
        *to++ = digits[uuid->bytes[i] >> 4];
        *to++ = digits[uuid->bytes[i] & 15];
    }
    *to = '\0';
}

static enum topkd_status find_device(struct cuda *cuda, const char *wanted, char *detail)
{
    int count = 0;
    (void)cuda->driver->device_count(&count);
    for (int i = 0; i < count; i++) {
        struct cuda_uuid uuid;
        char text[WIRE_UUID_SIZE];
        if (cuda->driver->device(&cuda->device, i) != CUDA_OK ||
            cuda->driver->device_uuid(&uuid, cuda->device) != CUDA_OK) {
            continue;
        }
        uuid_text(&uuid, text);
        if (strcmp(text, wanted) == 0) {
            cuda->ordinal = i;
            return TOPKD_OK;
        }
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return fault(detail, TOPKD_E_NOT_VISIBLE,
                 "the session's device %s is none of the %d that this process sees "
                 "(CUDA_VISIBLE_DEVICES is %.40s): open a session with a device that it sees",
                 wanted, count, visible ? visible : "not set");
}

static enum topkd_status start_janitor(struct cuda *cuda, char *detail)
{
    int error = thread_start(&cuda->janitor, janitor_main, cuda);
    if (error) {
        return fault_system(detail, "cannot start a thread", error);
    }
    (void)pthread_setname_np(cuda->janitor, "topkd-cuda");
    return TOPKD_OK;
}

static enum topkd_status make(const char *device, struct cuda **cuda_p, char *detail)
{
    struct cuda *cuda = calloc(1, sizeof(*cuda));
    if (!cuda) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for the CUDA part");
    }
    enum topkd_status status = cuda_driver_get(&cuda->driver, detail);
    if (status == TOPKD_OK) {
        status = find_device(cuda, device, detail);
    }
    if (status != TOPKD_OK) {
        goto err_free;
    }
    int result = cuda->driver->context_retain(&cuda->context, cuda->device);
    if (result != CUDA_OK) {
        status = cuda_driver_fault(cuda->driver, result, TOPKD_E_SYSTEM,
                                   "the device gives this process no context", detail);
        goto err_free;
    }
    status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        goto err_release;
    }
    result = cuda->driver->stream_create(&cuda->stream, CUDA_STREAM_NON_BLOCKING);
    cuda_leave(cuda);
    if (result != CUDA_OK) {
        status = cuda_driver_fault(cuda->driver, result, TOPKD_E_SYSTEM, "no stream", detail);
        goto err_release;
    }
    pthread_mutex_init(&cuda->mutex, NULL);
    pthread_cond_init(&cuda->wake, NULL);
    status = start_janitor(cuda, detail);
    if (status != TOPKD_OK) {
        goto err_stream;
    }
    *cuda_p = cuda;
    return TOPKD_OK;
err_stream:
    pthread_cond_destroy(&cuda->wake);
    pthread_mutex_destroy(&cuda->mutex);
    (void)cuda->driver->stream_destroy(cuda->stream);
err_release:
    (void)cuda->driver->context_release(cuda->device);
err_free:
    free(cuda);
    return status;
}

enum topkd_status cuda_get(struct topkd_client *client, struct cuda **cuda_p, char *detail)
{
    pthread_mutex_lock(&client->mutex);
    bool is_cuda = client->session->device_kind == WIRE_DEVICE_CUDA;
    char device[WIRE_UUID_SIZE];
    memcpy(device, client->session->device, sizeof(device));
    pthread_mutex_unlock(&client->mutex);
    if (!is_cuda) {
        return fault(detail, TOPKD_E_UNSUPPORTED,
                     "the session's device is %s, which takes no CUDA memory and no CUDA stream: "
                     "open a session with a GPU",
                     device);
    }
    enum topkd_status status = TOPKD_OK;
    pthread_mutex_lock(&client->cuda_mutex);
    if (!client->cuda) {
        struct cuda *cuda = NULL;
        status = make(device, &cuda, detail);
        if (status == TOPKD_OK) {
            __atomic_store_n(&client->cuda, cuda, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&client->cuda_mutex);
    *cuda_p = client->cuda;
    return status;
}

void cuda_end(struct topkd_client *client)
{
    struct cuda *cuda = client->cuda;
    if (!cuda) {
        return;
    }
    pthread_mutex_lock(&cuda->mutex);
    cuda->ending = true;
    pthread_cond_signal(&cuda->wake);
    pthread_mutex_unlock(&cuda->mutex);
    pthread_join(cuda->janitor, NULL);
    pthread_cond_destroy(&cuda->wake);
    pthread_mutex_destroy(&cuda->mutex);
    (void)cuda->driver->stream_destroy(cuda->stream);
    (void)cuda->driver->context_release(cuda->device);
    free(cuda);
    client->cuda = NULL;
}

/* ---- What a session holds -------------------------------------------------------------------- */

enum topkd_status cuda_arena_open(struct topkd_client *client, struct session *session,
                                  char *detail)
{
    struct cuda *cuda;
    enum topkd_status status = cuda_get(client, &cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    const struct wire_memory *memory = &session->cuda.arena;
    struct cuda_ipc_handle handle;
    if (memory->kind != WIRE_MEMORY_CUDA_IPC || memory->handle_bytes != sizeof(handle)) {
        return fault(detail, TOPKD_E_PROTOCOL, "the worker's arena is memory of kind %d",
                     (int)memory->kind);
    }
    memcpy(&handle, memory->handle, sizeof(handle));
    pthread_mutex_lock(&client->cuda_mutex); /* once, whoever comes first */
    if (!session->cuda.arena_base && (status = cuda_enter(cuda, detail)) == TOPKD_OK) {
        cuda_pointer base;
        int result = cuda->driver->ipc_open(&base, handle, CUDA_IPC_LAZY_PEER_ACCESS);
        cuda_leave(cuda);
        if (result == CUDA_OK) {
            pthread_mutex_lock(&client->mutex);
            session->cuda.cuda = cuda;
            session->cuda.arena_base = base;
            session->arena.base = (void *)(uintptr_t)base;
            session->arena.size_bytes = memory->allocation_bytes;
            pthread_mutex_unlock(&client->mutex);
        } else {
            status = cuda_driver_fault(cuda->driver, result, TOPKD_E_MAP_FAILED,
                                       "the worker's output arena cannot be opened", detail);
        }
    }
    pthread_mutex_unlock(&client->cuda_mutex);
    return status;
}

/* The present session, held; NULL when its device is not CUDA. */
static struct session *hold_session(struct topkd_client *client)
{
    struct session *session = NULL;
    pthread_mutex_lock(&client->mutex);
    if (client->session->device_kind == WIRE_DEVICE_CUDA) {
        session = client->session;
        session->num_refs++;
    }
    pthread_mutex_unlock(&client->mutex);
    return session;
}

enum topkd_status cuda_arena_need(struct topkd_client *client, char *detail)
{
    struct session *session = hold_session(client);
    if (!session) {
        return TOPKD_OK;
    }
    enum topkd_status status = TOPKD_OK;
    if (session->limits.arena_slots > 0) { /* otherwise the request is refused as it is */
        status = cuda_arena_open(client, session, detail);
    }
    session_let_go(client, session);
    return status;
}

enum topkd_status cuda_page_need(struct topkd_client *client, struct session *session, char *detail)
{
    struct cuda *cuda;
    enum topkd_status status = cuda_get(client, &cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    pthread_mutex_lock(&client->cuda_mutex);
    if (!session->cuda.page_base && (status = cuda_enter(cuda, detail)) == TOPKD_OK) {
        cuda_pointer base = 0;
        int result =
            cuda->driver->host_register(session->page.base, session->page.size_bytes,
                                        CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_DEVICEMAP);
        if (result == CUDA_OK) {
            result = cuda->driver->host_pointer(&base, session->page.base, 0);
        }
        cuda_leave(cuda);
        if (result == CUDA_OK) {
            pthread_mutex_lock(&client->mutex);
            session->cuda.cuda = cuda;
            session->cuda.page_base = base;
            pthread_mutex_unlock(&client->mutex);
        } else {
            status = cuda_driver_fault(cuda->driver, result, TOPKD_E_SYSTEM,
                                       "the semaphore page cannot be registered with CUDA", detail);
        }
    }
    pthread_mutex_unlock(&client->cuda_mutex);
    return status;
}
