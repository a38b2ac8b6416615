#include "http.h"

#include "assert.h"
#include "detail.h"
#include "topkd_wire.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BACKLOG 128
/* Choice: Prometheus, a probe and an open page together ask a few times a second. */
#define ACCEPTS_PER_S 200u
#define ACCEPTS_BURST 64u
#define ACCEPT_WAIT_MS (1000u / ACCEPTS_PER_S)
/* Choice: after the answer a client may still send what it had begun; closing at once would make
 * its kernel throw the answer away. */
#define LINGER_MS 1000u
#define HEADER_SIZE 1024u

enum conn_state { CONN_READING, CONN_WRITING, CONN_LINGERING, CONN_CLOSING };

struct conn {
    struct http_server *server;
    enum conn_state state;
    uv_tcp_t tcp;
    uv_timer_t timer;
    uint32_t num_handles; /* of libuv, not closed yet */
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct conn *previous, *next; /* the oldest first */
    struct http_answer answer;
    size_t size; /* of the head so far */
    char head[HTTP_HEAD_SIZE_MAX];
    char header[HEADER_SIZE]; /* of the answer */
};

struct http_server {
    struct http_config config;
    uv_tcp_t listener;
    uv_timer_t accept_timer; /* runs while a connection waits to be accepted */
    uint32_t num_handles;
    uint64_t tokens_ms; /* loop time up to which accepts are paid for */
    uint32_t num_conns;
    struct conn *oldest, *youngest;
    struct http_counters counters;
    bool is_closing;
};

static void free_when_last(struct http_server *server)
{
    if (server->is_closing && server->num_handles == 0 && server->oldest == NULL)
        free(server);
}

/* ---- The end of a connection ----------------------------------------------------------------- */

static void unlink_conn(struct conn *conn)
{
    struct http_server *server = conn->server;
    if (conn->previous != NULL)
        conn->previous->next = conn->next;
    else
        server->oldest = conn->next;
    if (conn->next != NULL)
        conn->next->previous = conn->previous;
    else
        server->youngest = conn->previous;
}

static void conn_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    struct http_server *server = conn->server;
    if (--conn->num_handles > 0)
        return;
    unlink_conn(conn);
    textbuf_fini(&conn->answer.text);
    free(conn);
    free_when_last(server);
}

static void conn_close(struct conn *conn)
{
    if (conn->state == CONN_CLOSING)
        return;
    conn->state = CONN_CLOSING;
    conn->server->num_conns--;
    uv_close((uv_handle_t *)&conn->tcp, conn_handle_closed);
    uv_close((uv_handle_t *)&conn->timer, conn_handle_closed);
}

/* ---- The answer ------------------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer);
static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buffer_p);
static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer);

/* Our side is shut: what still comes is thrown away until the client closes too. */
static void on_shutdown(uv_shutdown_t *shutdown, int status)
{
    struct conn *conn = shutdown->data;
    if (conn->state != CONN_WRITING)
        return;
    conn->state = CONN_LINGERING;
    if (status != 0 || uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) != 0)
        conn_close(conn);
    else
        uv_timer_start(&conn->timer, on_timer, LINGER_MS, 0);
}

static void on_written(uv_write_t *write, int status)
{
    struct conn *conn = write->data;
    if (conn->state != CONN_WRITING)
        return;
    conn->shutdown.data = conn;
    if (status != 0 || uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown) != 0)
        conn_close(conn);
}

static int write_header(struct conn *conn, size_t body_size)
{
    const struct http_answer *answer = &conn->answer;
    char date[40] = "";
    struct tm parts;
    time_t now = time(NULL);
    if (gmtime_r(&now, &parts) != NULL)
        (void)strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts);
    return snprintf(conn->header, sizeof conn->header,
                    "HTTP/1.1 %u %s\r\n"
                    "%s"
                    "Content-Type: %s\r\n"
                    "Content-Length: %zu\r\n"
                    "%s"
                    "Connection: close\r\n"
                    "Cache-Control: no-store\r\n"
                    "Content-Security-Policy: default-src 'none'; script-src 'self'; "
                    "style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
                    "form-action 'none'; frame-ancestors 'none'\r\n"
                    "Cross-Origin-Resource-Policy: same-origin\r\n"
                    "Cross-Origin-Opener-Policy: same-origin\r\n"
                    "Referrer-Policy: no-referrer\r\n"
                    "X-Content-Type-Options: nosniff\r\n"
                    "X-Frame-Options: DENY\r\n"
                    "\r\n",
                    answer->status, http_reason(answer->status), date, answer->content_type,
                    body_size, answer->status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

static void send_answer(struct conn *conn, bool is_head)
{
    struct http_server *server = conn->server;
    struct http_answer *answer = &conn->answer;
    conn->state = CONN_WRITING;
    uv_read_stop((uv_stream_t *)&conn->tcp);
    if (answer->text.has_failed) {
        textbuf_fini(&answer->text);
        answer->status = 503;
        answer->content_type = "text/plain; charset=utf-8";
        textbuf_add(&answer->text, "503 the daemon has no memory for this page\n");
    }
    server->counters.answers++;
    if (answer->status >= 400)
        server->counters.refused++;
    const void *body = answer->fixed != NULL ? answer->fixed : answer->text.data;
    size_t body_size = answer->fixed != NULL ? answer->fixed_size : answer->text.size;
    int header_size = write_header(conn, body_size);
    topkd_assert(header_size > 0 && header_size < (int)sizeof conn->header);
    uv_buf_t buffers[2] = {
        uv_buf_init(conn->header, (unsigned)header_size),
        uv_buf_init((char *)(uintptr_t)body, (unsigned)body_size),
    };
    conn->write.data = conn;
    uv_timer_start(&conn->timer, on_timer, server->config.limits.request_ms, 0);
    if (uv_write(&conn->write, (uv_stream_t *)&conn->tcp, buffers,
                 is_head || body_size == 0 ? 1 : 2, on_written) != 0)
        conn_close(conn);
}

/* Also of what was not understood: an answer to HEAD has no body, whatever it says. */
static bool begins_with_head(const struct conn *conn)
{
    static const char word[] = "HEAD ";
    return conn->size >= sizeof word - 1 && memcmp(conn->head, word, sizeof word - 1) == 0;
}

static void refuse(struct conn *conn, uint32_t status)
{
    conn->answer.status = status;
    conn->answer.content_type = "text/plain; charset=utf-8";
    textbuf_add(&conn->answer.text, "%u %s\n", status, http_reason(status));
    send_answer(conn, begins_with_head(conn));
}

static void answer_request(struct conn *conn, const struct http_request *request)
{
    struct http_server *server = conn->server;
    struct http_answer *answer = &conn->answer;
    answer->status = 404;
    answer->content_type = "text/plain; charset=utf-8";
    server->config.page(server->config.owner, request, answer);
    if (answer->status == 404)
        refuse(conn, 404);
    else
        send_answer(conn, request->is_head);
}

/* ---- The request ----------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    struct conn *conn = timer->data;
    if (conn->state == CONN_READING && conn->size > 0)
        refuse(conn, 408);
    else
        conn_close(conn);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buffer_p)
{
    static char nowhere[4096]; /* what comes after the request */
    struct conn *conn = handle->data;
    (void)size;
    if (conn->state == CONN_READING)
        *buffer_p =
            uv_buf_init(conn->head + conn->size, (unsigned)(sizeof conn->head - conn->size));
    else
        *buffer_p = uv_buf_init(nowhere, sizeof nowhere);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer)
{
    struct conn *conn = stream->data;
    struct http_request request;
    (void)buffer;
    if (size < 0) { /* the end, or an error */
        conn_close(conn);
        return;
    }
    if (conn->state != CONN_READING || size == 0)
        return;
    conn->size += (size_t)size;
    uint32_t status = http_request_parse(conn->head, conn->size, &request);
    if (status == 200)
        answer_request(conn, &request);
    else if (status != 0)
        refuse(conn, status);
}

/* ---- Accepting ------------------------------------------------------------------------------- */

static void link_youngest(struct conn *conn)
{
    struct http_server *server = conn->server;
    conn->previous = server->youngest;
    if (server->youngest != NULL)
        server->youngest->next = conn;
    else
        server->oldest = conn;
    server->youngest = conn;
}

/* The oldest that is not closing already. */
static void evict(struct http_server *server)
{
    struct conn *conn = server->oldest;
    while (conn != NULL && conn->state == CONN_CLOSING)
        conn = conn->next;
    topkd_assert(conn != NULL);
    server->counters.evicted++;
    conn_close(conn);
}

/* Takes the connection that waits. Without memory for it, it stays in the kernel until later. */
static bool accept_one(struct http_server *server)
{
    struct conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL)
        return false;
    conn->server = server;
    uv_tcp_init(server->config.loop, &conn->tcp);
    uv_timer_init(server->config.loop, &conn->timer);
    conn->num_handles = 2;
    conn->tcp.data = conn;
    conn->timer.data = conn;
    textbuf_init(&conn->answer.text);
    link_youngest(conn);
    server->num_conns++;
    if (uv_accept((uv_stream_t *)&server->listener, (uv_stream_t *)&conn->tcp) != 0 ||
        uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) != 0) {
        conn_close(conn);
        return true;
    }
    (void)uv_tcp_nodelay(&conn->tcp, 1);
    uv_timer_start(&conn->timer, on_timer, server->config.limits.request_ms, 0);
    while (server->num_conns > server->config.limits.connections_max)
        evict(server);
    return true;
}

/* Whether one more connection is within the rate; if so, it is paid for. */
static bool pay(struct http_server *server)
{
    uint64_t now_ms = uv_now(server->config.loop);
    uint64_t begin_ms = now_ms - ACCEPTS_BURST * ACCEPT_WAIT_MS;
    if (server->tokens_ms < begin_ms)
        server->tokens_ms = begin_ms;
    if (server->tokens_ms + ACCEPT_WAIT_MS > now_ms)
        return false;
    server->tokens_ms += ACCEPT_WAIT_MS;
    return true;
}

/* While a connection waits libuv does not listen; taking it makes it listen again. */
static void accept_waiting(uv_timer_t *timer)
{
    struct http_server *server = timer->data;
    if (!pay(server) || !accept_one(server))
        uv_timer_start(timer, accept_waiting, ACCEPT_WAIT_MS, 0);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct http_server *server = listener->data;
    if (status == 0)
        accept_waiting(&server->accept_timer);
}

/* ---- The server ------------------------------------------------------------------------------ */

static void server_handle_closed(uv_handle_t *handle)
{
    struct http_server *server = handle->data;
    server->num_handles--;
    free_when_last(server);
}

void http_close(struct http_server *server)
{
    topkd_assert(!server->is_closing);
    server->is_closing = true;
    for (struct conn *conn = server->oldest; conn != NULL; conn = conn->next)
        conn_close(conn);
    uv_close((uv_handle_t *)&server->listener, server_handle_closed);
    uv_close((uv_handle_t *)&server->accept_timer, server_handle_closed);
}

enum topkd_status http_open(const struct http_config *config, struct http_server **server_p,
                            char *detail)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(config->port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    struct http_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for the HTTP server");
    server->config = *config;
    uv_tcp_init(config->loop, &server->listener);
    uv_timer_init(config->loop, &server->accept_timer);
    server->listener.data = server;
    server->accept_timer.data = server;
    server->num_handles = 2;
    int error = uv_tcp_bind(&server->listener, (const struct sockaddr *)&address, 0);
    if (error == 0)
        error = uv_listen((uv_stream_t *)&server->listener, BACKLOG, on_connection);
    if (error != 0) {
        http_close(server);
        return detail_set(detail, TOPKD_E_SYSTEM,
                          "http.port: cannot listen on 127.0.0.1:%u: %s; choose another port, or 0 "
                          "for none",
                          config->port, uv_strerror(error));
    }
    *server_p = server;
    return TOPKD_OK;
}

void http_configure(struct http_server *server, const struct http_limits *limits)
{
    server->config.limits = *limits;
}

const struct http_counters *http_count(const struct http_server *server)
{
    return &server->counters;
}

uint16_t http_port(const struct http_server *server)
{
    struct sockaddr_in address;
    int size = sizeof address;
    int error = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&address, &size);
    topkd_assert(error == 0);
    return ntohs(address.sin_port);
}
