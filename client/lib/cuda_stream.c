/* cuda_stream.c - semaphores and selections in the order of a CUDA stream. */
#include "client.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

/* A deadline that has always passed. */
#define NO_WAIT UINT64_C(0)

/* A stream that selections were ordered with, and its two timelines: `ready` is written by the
 * stream when scores are there, `done` by the worker when the result is. */
struct stream {
    struct list node; /* in client->streams, the one used last at the end */
    unsigned long long id;
    struct topkd_semaphore *ready, *done;
    uint64_t count;          /* the last value that the stream was told to write */
    uint64_t awaited;        /* and to wait for */
    uint64_t session_serial; /* on whose page */
    uint32_t num_users;      /* threads inside topkd_select_stream */
    pthread_mutex_t order;   /* held over the stream's writes and waits, which must be in order */
};

/* ---- Words on the page ----------------------------------------------------------------------- */

static cuda_pointer word_of(const struct session *session, const struct topkd_semaphore *semaphore)
{
    return session->cuda.page_base + semaphore->index * sizeof(struct wire_semaphore) +
           offsetof(struct wire_semaphore, value);
}

static enum topkd_status stream_write(const struct cuda *cuda, void *stream, cuda_pointer word,
                                      uint64_t value, char *detail)
{
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int result = cuda_calls(cuda)->stream_write(stream, word, value, 0);
    cuda_leave(cuda);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_SYSTEM,
                                                 "the stream takes no write of a value", detail);
}

static enum topkd_status stream_wait(const struct cuda *cuda, void *stream, cuda_pointer word,
                                     uint64_t value, char *detail)
{
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int result = cuda_calls(cuda)->stream_wait(stream, word, value, CUDA_WAIT_GEQ);
    cuda_leave(cuda);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_SYSTEM,
                                                 "the stream takes no wait for a value", detail);
}

/* ---- Sessions and streams -------------------------------------------------------------------- */

/* The present session, held, with its page ready for streams. Waits for a renewal until the
 * deadline; with NO_WAIT not at all. */
static enum topkd_status hold_session(struct topkd_client *client, uint64_t deadline_ns,
                                      struct session **session_p, char *detail)
{
    struct link *link;
    enum topkd_status status;
    pthread_mutex_lock(&client->mutex);
    if (deadline_ns == NO_WAIT && !link_usable(client->link) && !client->closing &&
        !client->ended) {
        renew_wake(client);
        status = fault(detail, TOPKD_E_TIMEOUT,
                       "the session is being renewed: topkd_client_wait waits for it");
    } else {
        status = call_await_link(client, deadline_ns, &link, detail);
    }
    struct session *session = client->session;
    if (status == TOPKD_OK) {
        session->num_refs++;
    }
    pthread_mutex_unlock(&client->mutex);
    if (status != TOPKD_OK) {
        return status;
    }
    status = cuda_page_need(client, session, detail);
    if (status != TOPKD_OK) {
        session_let_go(client, session);
        return status;
    }
    *session_p = session;
    return TOPKD_OK;
}

/* A stream in capture would record the constants of one selection and replay them. */
static enum topkd_status check_capture(const struct cuda *cuda, void *stream, char *detail)
{
    int capturing = 0;
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int result = cuda_calls(cuda)->stream_capturing(stream, &capturing);
    cuda_leave(cuda);
    if (result != CUDA_OK) {
        return cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_INVALID,
                                 "the stream is not one of the session's device", detail);
    }
    if (capturing != 0) {
        return fault(detail, TOPKD_E_UNSUPPORTED,
                     "the stream is being captured into a graph: call outside of the capture");
    }
    return TOPKD_OK;
}

static void free_stream(struct stream *stream)
{
    list_remove(&stream->node);
    pthread_mutex_destroy(&stream->order);
    free(stream);
}

/* Whether the stream has gone by all that it was given: it has written what it was to write, and
 * what it waits for next is reached. It meets nothing on the page of a later session. */
static bool is_idle(const struct topkd_client *client, const struct stream *stream)
{
    return stream->num_users == 0 && (stream->session_serial != client->session->serial ||
                                      (semaphore_value(stream->ready) >= stream->count &&
                                       semaphore_value(stream->done) >= stream->awaited));
}

/* With the mutex: the timelines of the idle stream that was used longest ago, for another one;
 * NULL: none is idle. They go on from where they are, so that a wait which the former stream has
 * not looked at yet ends as well. */
static struct stream *take_idle(struct topkd_client *client, unsigned long long id)
{
    list_each(node, &client->streams)
    {
        struct stream *stream = list_entry(node, struct stream, node);
        if (is_idle(client, stream)) {
            stream->id = id;
            return stream;
        }
    }
    return NULL;
}

static struct stream *find_stream(struct topkd_client *client, unsigned long long id)
{
    list_each(node, &client->streams)
    {
        struct stream *stream = list_entry(node, struct stream, node);
        if (stream->id == id) {
            return stream;
        }
    }
    return NULL;
}

static enum topkd_status make_stream(struct topkd_client *client, unsigned long long id,
                                     struct stream **stream_p, char *detail)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        return fault(detail, TOPKD_E_NO_MEMORY, "no memory for a stream");
    }
    enum topkd_status status = topkd_semaphore_create(client, &stream->ready);
    if (status == TOPKD_OK) {
        status = topkd_semaphore_create(client, &stream->done);
        if (status != TOPKD_OK) {
            topkd_semaphore_destroy(stream->ready);
        }
    }
    if (status != TOPKD_OK) {
        free(stream);
        return status;
    }
    stream->id = id;
    list_init(&stream->node);
    pthread_mutex_init(&stream->order, NULL);
    *stream_p = stream;
    return TOPKD_OK;
}

/* With the mutex: it stays until num_users falls again, and was used last. */
static void hold(struct topkd_client *client, struct stream *stream)
{
    list_remove(&stream->node);
    list_insert(&client->streams, &stream->node);
    stream->num_users++;
}

/* The stream's timelines, made at its first selection; held. */
static enum topkd_status hold_stream(struct topkd_client *client, unsigned long long id,
                                     struct stream **stream_p, char *detail)
{
    enum topkd_status status = TOPKD_OK;
    pthread_mutex_lock(&client->mutex);
    struct stream *stream = find_stream(client, id);
    if (!stream) {
        pthread_mutex_unlock(&client->mutex);
        status = make_stream(client, id, &stream, detail);
        pthread_mutex_lock(&client->mutex);
    }
    if (status == TOPKD_E_LIMIT && (stream = take_idle(client, id)) != NULL) {
        status = TOPKD_OK;
    }
    if (status == TOPKD_OK) {
        hold(client, stream);
        *stream_p = stream;
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

void cuda_streams_free(struct topkd_client *client)
{
    list_each(node, &client->streams)
    {
        free_stream(list_entry(node, struct stream, node));
    }
}

/* ---- Public: selections ---------------------------------------------------------------------- */

/* Between the stream's write of `ready` and its wait for `done` lies the request. */
static enum topkd_status select_ordered(struct topkd_client *client, struct session *session,
                                        struct stream *ordered, void *stream,
                                        const struct topkd_select_request *request,
                                        struct topkd_op **op_p, char *detail)
{
    uint64_t value = ordered->count + 1;
    enum topkd_status status =
        stream_write(client->cuda, stream, word_of(session, ordered->ready), value, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    ordered->count = value;
    ordered->session_serial = session->serial;
    struct topkd_select_request point = *request;
    point.wait = (struct topkd_semaphore_point){.semaphore = ordered->ready, .value = value};
    point.signal = (struct topkd_semaphore_point){.semaphore = ordered->done, .value = value};
    struct topkd_op *op;
    status = op_start(client, &point, session, false, NULL, &op);
    if (status != TOPKD_OK) {
        return status;
    }
    ordered->awaited = value;
    pthread_mutex_lock(&client->mutex);
    ordered->done->streamed = value;
    if (client->session != session) {
        /* The session went in between, and with it the page that the stream will look at. */
        semaphore_fail_on(session, ordered->done, value, TOPKD_E_STALE_SESSION);
    }
    pthread_mutex_unlock(&client->mutex);
    status = stream_wait(client->cuda, stream, word_of(session, ordered->done), value, detail);
    if (status != TOPKD_OK) {
        (void)topkd_op_finish(op, NULL);
        return status;
    }
    *op_p = op;
    return TOPKD_OK;
}

/* Both ways of starting one. */
static enum topkd_status select_in_stream(struct topkd_client *client,
                                          const struct topkd_select_request *request, void *stream,
                                          bool may_wait, struct topkd_op **op_p)
{
    char *detail = fault_detail();
    enum topkd_status status = client_check(client, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    if (!request || !op_p) {
        return fault(detail, TOPKD_E_INVALID, "%s is NULL", request ? "op_p" : "request");
    }
    if (request->wait.semaphore || request->signal.semaphore) {
        return fault(detail, TOPKD_E_INVALID,
                     "wait and signal are the stream's here: leave them empty, or use "
                     "topkd_select_start with topkd_semaphore_signal_stream");
    }
    struct cuda *cuda;
    status = cuda_get(client, &cuda, detail);
    if (status == TOPKD_OK) {
        status = check_capture(cuda, stream, detail);
    }
    if (status != TOPKD_OK) {
        return status;
    }
    unsigned long long id = 0;
    status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int result = cuda_calls(cuda)->stream_id(stream, &id);
    cuda_leave(cuda);
    if (result != CUDA_OK) {
        return cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_INVALID, "not a stream", detail);
    }
    struct session *session;
    struct stream *ordered;
    uint64_t deadline_ns = may_wait ? client_deadline_ns(client, request->timeout_ms) : NO_WAIT;
    status = hold_session(client, deadline_ns, &session, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    status = hold_stream(client, id, &ordered, detail);
    if (status == TOPKD_OK) {
        pthread_mutex_lock(&ordered->order);
        status = select_ordered(client, session, ordered, stream, request, op_p, detail);
        pthread_mutex_unlock(&ordered->order);
        pthread_mutex_lock(&client->mutex);
        ordered->num_users--;
        pthread_mutex_unlock(&client->mutex);
    }
    session_let_go(client, session);
    return status;
}

enum topkd_status topkd_select_stream(struct topkd_client *client,
                                      const struct topkd_select_request *request, void *stream,
                                      struct topkd_op **op_p)
{
    return select_in_stream(client, request, stream, true, op_p);
}

enum topkd_status topkd_select_stream_try(struct topkd_client *client,
                                          const struct topkd_select_request *request, void *stream,
                                          struct topkd_op **op_p)
{
    return select_in_stream(client, request, stream, false, op_p);
}

/* ---- Public: semaphores ---------------------------------------------------------------------- */

/* What both have in common: checks, the session; `write` or wait. */
static enum topkd_status semaphore_on_stream(struct topkd_semaphore *semaphore, uint64_t value,
                                             void *stream, bool write)
{
    char *detail = fault_detail();
    if (!semaphore || value == 0) {
        return fault(detail, TOPKD_E_INVALID, "%s",
                     semaphore ? "value is 0, the least is 1" : "semaphore is NULL");
    }
    struct topkd_client *client = semaphore->client;
    enum topkd_status status = client_check(client, detail);
    struct cuda *cuda;
    if (status == TOPKD_OK) {
        status = cuda_get(client, &cuda, detail);
    }
    if (status == TOPKD_OK) {
        status = check_capture(cuda, stream, detail);
    }
    struct session *session;
    if (status == TOPKD_OK) {
        status = hold_session(client, client_deadline_ns(client, TOPKD_TIMEOUT_DEFAULT), &session,
                              detail);
    }
    if (status != TOPKD_OK) {
        return status;
    }
    if (write) {
        status = stream_write(cuda, stream, word_of(session, semaphore), value, detail);
    } else {
        pthread_mutex_lock(&client->mutex);
        if (semaphore->streamed < value) {
            semaphore->streamed = value;
        }
        if (client->session != session) {
            semaphore_fail_on(session, semaphore, value, TOPKD_E_STALE_SESSION);
        }
        pthread_mutex_unlock(&client->mutex);
        status = stream_wait(cuda, stream, word_of(session, semaphore), value, detail);
    }
    session_let_go(client, session);
    return status;
}

enum topkd_status topkd_semaphore_signal_stream(struct topkd_semaphore *semaphore, uint64_t value,
                                                void *stream)
{
    return semaphore_on_stream(semaphore, value, stream, true);
}

enum topkd_status topkd_semaphore_wait_stream(struct topkd_semaphore *semaphore, uint64_t value,
                                              void *stream)
{
    return semaphore_on_stream(semaphore, value, stream, false);
}
