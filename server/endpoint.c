#include "endpoint_internal.h"

#include "assert.h"
#include "detail.h"
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#define URL_PREFIX "ipc://"
/* NNG counts the 4-byte request id of REQ as part of the message. */
#define RECEIVE_SIZE_MAX (WIRE_MESSAGE_SIZE_MAX + 4u)
#define SWEEP_MS 250u /* choice: how late an idle pipe may be closed */

static enum topkd_status add_contexts(struct endpoint *endpoint, uint32_t num_contexts)
{
    if (num_contexts <= endpoint->num_requests)
        return TOPKD_OK;
    struct endpoint_request **requests =
        realloc(endpoint->requests, num_contexts * sizeof(*requests));
    if (requests == NULL)
        return TOPKD_E_NO_MEMORY;
    endpoint->requests = requests;
    while (endpoint->num_requests < num_contexts) {
        struct endpoint_request *request = calloc(1, sizeof(*request));
        if (request == NULL)
            return TOPKD_E_NO_MEMORY;
        request->endpoint = endpoint;
        request->event = (struct event){.kind = EVENT_REQUEST, .object = request};
        if (nng_aio_alloc(&request->aio, endpoint_aio_callback, request) != 0) {
            free(request);
            return TOPKD_E_NO_MEMORY;
        }
        if (nng_ctx_open(&request->ctx, endpoint->socket) != 0) {
            nng_aio_free(request->aio);
            free(request);
            return TOPKD_E_NO_MEMORY;
        }
        requests[endpoint->num_requests++] = request;
        endpoint_request_free(request);
    }
    return TOPKD_OK;
}

/* nng_close on a thread of its own, so that the wait for it can end. */
struct closer {
    nng_socket socket;
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* of the monotonic clock */
    bool is_done;
};

static void *close_on_thread(void *arg)
{
    struct closer *closer = arg;
    nng_close(closer->socket); /* ends every receive, and every pipe with its callbacks */
    pthread_mutex_lock(&closer->mutex);
    closer->is_done = true;
    pthread_cond_signal(&closer->cond);
    pthread_mutex_unlock(&closer->mutex);
    return NULL;
}

static bool wait_closed(struct closer *closer)
{
    struct timespec end;
    int error = 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += ENDPOINT_CLOSE_MS / 1000u;
    end.tv_nsec += (long)(ENDPOINT_CLOSE_MS % 1000u) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&closer->mutex);
    while (!closer->is_done && error == 0)
        error = pthread_cond_timedwait(&closer->cond, &closer->mutex, &end);
    bool is_done = closer->is_done;
    pthread_mutex_unlock(&closer->mutex);
    return is_done;
}

static bool close_in_time(nng_socket socket)
{
    struct closer *closer = calloc(1, sizeof(*closer));
    pthread_condattr_t attributes;
    pthread_t thread;
    if (closer == NULL) {
        nng_close(socket);
        return true;
    }
    closer->socket = socket;
    pthread_mutex_init(&closer->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&closer->cond, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&thread, NULL, close_on_thread, closer) != 0) {
        close_on_thread(closer);
    } else if (wait_closed(closer)) {
        pthread_join(thread, NULL);
    } else {
        pthread_detach(thread);
        log_error("close_stuck", "after_ms=%u reason=\"NNG did not close its socket\"",
                  ENDPOINT_CLOSE_MS);
        return false; /* the thread keeps the closer */
    }
    pthread_cond_destroy(&closer->cond);
    pthread_mutex_destroy(&closer->mutex);
    free(closer);
    return true;
}

/* Frees the socket and all that NNG's threads can reach, then the requests. False: NNG is stuck,
 * and nothing was freed. */
static bool socket_close(struct endpoint *endpoint)
{
    pthread_mutex_lock(&endpoint->mutex);
    endpoint->is_stopping = true;
    pthread_mutex_unlock(&endpoint->mutex);
    if (!close_in_time(endpoint->socket))
        return false;
    for (uint32_t i = 0; i < endpoint->num_requests; i++)
        nng_aio_stop(endpoint->requests[i]->aio); /* its callback has run: nothing is pushed now */
    for (uint32_t i = 0; i < endpoint->num_requests; i++) {
        struct endpoint_request *request = endpoint->requests[i];
        if (request->state == REQUEST_RECEIVING && nng_aio_result(request->aio) == 0)
            request->message = nng_aio_get_msg(request->aio);
        else if (request->state == REQUEST_SENDING && nng_aio_result(request->aio) != 0)
            request->message = nng_aio_get_msg(request->aio);
        if (request->message != NULL)
            nng_msg_free(request->message);
        if (request->pipe != NULL)
            endpoint_pipe_unref(request->pipe);
        nng_aio_free(request->aio);
        free(request);
    }
    free(endpoint->requests);
    endpoint->requests = NULL;
    endpoint->num_requests = 0;
    return true;
}

/* Ends what is known of the pipes once NNG has none any more. */
static void forget_pipes(struct endpoint *endpoint)
{
    while (endpoint->pipes != NULL)
        endpoint_pipe_forget(endpoint->pipes);
    for (uint32_t i = 0; i < PIPE_HASH_SIZE; i++) {
        while (endpoint->hash[i] != NULL) { /* opened() was still to come */
            struct endpoint_pipe *pipe = endpoint->hash[i];
            endpoint->hash[i] = pipe->hash_next;
            endpoint_pipe_free(pipe);
        }
    }
}

static enum topkd_status listen_on(struct endpoint *endpoint, const struct endpoint_config *config,
                                   char *detail)
{
    const char *path = config->url + strlen(URL_PREFIX);
    nng_listener listener;
    int error = nng_listener_create(&listener, endpoint->socket, config->url);
    if (error == 0)
        error = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, (int)config->mode);
    if (error == 0)
        error = nng_listener_start(listener, 0);
    if (error == NNG_EADDRINUSE)
        return detail_set(detail, TOPKD_E_IN_USE,
                          "%s: another process listens there; stop it or configure another "
                          "socket.directory",
                          path);
    if (error != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "%s: cannot listen: %s", path,
                          nng_strerror(error));
    if (config->gid >= 0 && chown(path, (uid_t)-1, (gid_t)config->gid) != 0)
        return detail_set(detail, TOPKD_E_SYSTEM,
                          "%s: cannot give the socket to group %" PRId64
                          ": %s; the daemon's user must be a member of socket.group",
                          path, config->gid, strerror(errno));
    return TOPKD_OK;
}

static enum topkd_status open_socket(struct endpoint *endpoint, char *detail)
{
    int error = nng_rep0_open(&endpoint->socket);
    if (error != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot open a REP socket: %s",
                          nng_strerror(error));
    error = nng_socket_set_size(endpoint->socket, NNG_OPT_RECVMAXSZ, RECEIVE_SIZE_MAX);
    if (error == 0)
        error = nng_pipe_notify(endpoint->socket, NNG_PIPE_EV_ADD_PRE, endpoint_pipe_callback,
                                endpoint);
    if (error == 0)
        error = nng_pipe_notify(endpoint->socket, NNG_PIPE_EV_REM_POST, endpoint_pipe_callback,
                                endpoint);
    if (error != 0) {
        nng_close(endpoint->socket);
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot prepare a REP socket: %s",
                          nng_strerror(error));
    }
    return TOPKD_OK;
}

static void handle_closed(uv_handle_t *handle)
{
    struct endpoint *endpoint = handle->data;
    if (--endpoint->num_handles > 0)
        return;
    pthread_mutex_destroy(&endpoint->mutex);
    free(endpoint);
}

static void close_handles(struct endpoint *endpoint)
{
    uv_close((uv_handle_t *)&endpoint->sweep, handle_closed);
    uv_close((uv_handle_t *)&endpoint->async, handle_closed);
}

static enum topkd_status check_url(const char *url, char *detail)
{
    size_t path_size_max = sizeof(((struct sockaddr_un *)NULL)->sun_path);

    if (strncmp(url, URL_PREFIX "/", strlen(URL_PREFIX "/")) != 0)
        return detail_set(detail, TOPKD_E_INVALID,
                          "url %s: want " URL_PREFIX " and an absolute path", url);
    size_t length = strlen(url) - strlen(URL_PREFIX);
    if (length >= path_size_max)
        return detail_set(detail, TOPKD_E_INVALID,
                          "%s: a socket path has at most %zu characters, this one has %zu",
                          url + strlen(URL_PREFIX), path_size_max - 1, length);
    return TOPKD_OK;
}

enum topkd_status endpoint_open(const struct endpoint_config *config, struct endpoint **endpoint_p,
                                char *detail)
{
    enum topkd_status status = check_url(config->url, detail);
    if (status != TOPKD_OK)
        return status;
    struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
    if (endpoint == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for an endpoint");
    endpoint->limits = config->limits;
    endpoint->pipes_max = config->limits.pipes_max;
    endpoint->handler = config->handler;
    endpoint->owner = config->owner;
    endpoint->last_event = &endpoint->first_event;
    pthread_mutex_init(&endpoint->mutex, NULL);

    int error = uv_async_init(config->loop, &endpoint->async, endpoint_async_callback);
    if (error != 0) {
        status =
            detail_set(detail, TOPKD_E_SYSTEM, "cannot watch for messages: %s", uv_strerror(error));
        goto err_free;
    }
    uv_timer_init(config->loop, &endpoint->sweep); /* cannot fail */
    endpoint->num_handles = 2;
    endpoint->async.data = endpoint;
    endpoint->sweep.data = endpoint;

    status = open_socket(endpoint, detail);
    if (status != TOPKD_OK)
        goto err_handles;
    status = add_contexts(endpoint, config->limits.num_contexts);
    if (status != TOPKD_OK) {
        detail_set(detail, status, "no memory for %" PRIu32 " REP contexts",
                   config->limits.num_contexts);
        goto err_socket;
    }
    status = listen_on(endpoint, config, detail);
    if (status != TOPKD_OK)
        goto err_socket;
    uv_timer_start(&endpoint->sweep, endpoint_sweep_callback, SWEEP_MS, SWEEP_MS);
    *endpoint_p = endpoint;
    return TOPKD_OK;

err_socket:
    endpoint->is_closing = true;
    if (!socket_close(endpoint))
        _exit(EX_SOFTWARE); /* no caller could go on beside NNG's threads */
    forget_pipes(endpoint);
err_handles:
    endpoint->is_closing = true;
    close_handles(endpoint);
    return status;
err_free:
    pthread_mutex_destroy(&endpoint->mutex);
    free(endpoint);
    return status;
}

bool endpoint_close(struct endpoint *endpoint)
{
    topkd_assert(!endpoint->is_closing && !endpoint->is_handling);
    endpoint->is_closing = true;
    uv_timer_stop(&endpoint->sweep);
    if (!socket_close(endpoint))
        return false;
    forget_pipes(endpoint);
    close_handles(endpoint);
    return true;
}

enum topkd_status endpoint_configure(struct endpoint *endpoint,
                                     const struct endpoint_limits *limits)
{
    endpoint->limits = *limits;
    pthread_mutex_lock(&endpoint->mutex);
    endpoint->pipes_max = limits->pipes_max;
    pthread_mutex_unlock(&endpoint->mutex);
    return add_contexts(endpoint, limits->num_contexts);
}

uint32_t endpoint_num_unsent(const struct endpoint *endpoint)
{
    return endpoint->num_unsent;
}
