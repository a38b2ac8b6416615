/*
 * http.h - a small HTTP server in the loop: a few pages, one request a connection.
 *
 * Everything has a limit, so that nobody on this machine can use it against the daemon: the size of
 * a request, the time to send it and to take the answer, connections at once (one more takes the
 * place of the oldest), connections accepted a second (more wait in the kernel). It listens on
 * 127.0.0.1 only and keeps nothing between requests. For the loop thread.
 *
 * NNG 1.5 has an HTTP server too, without any of these limits: server/README.md has measurements.
 */
#ifndef TOPKD_SERVER_HTTP_H
#define TOPKD_SERVER_HTTP_H

#include "http_request.h"
#include "textbuf.h"
#include "topkd_status.h"

#include <stdint.h>
#include <uv.h>

struct http_server;

/* What a page gives. `fixed` instead of `text` is memory that outlives the server. */
struct http_answer {
    uint32_t status; /* 200 or an error */
    const char *content_type;
    struct textbuf text; /* freed by the server */
    const void *fixed;   /* NULL: text */
    size_t fixed_size;
};

struct http_limits {
    uint32_t connections_max;
    uint32_t request_ms; /* to send the request, and again to take the answer */
};

struct http_config {
    uv_loop_t *loop;
    uint16_t port; /* 0: any, for tests */
    struct http_limits limits;
    /* Fills the answer, which is a 404 without text before. */
    void (*page)(void *owner, const struct http_request *request, struct http_answer *answer);
    void *owner;
};

struct http_counters {
    uint64_t answers; /* all of them */
    uint64_t refused; /* with a code of 400 or more */
    uint64_t evicted; /* connections that made room */
};

/* SYSTEM with a text in detail[WIRE_DETAIL_SIZE] when it cannot listen. */
enum topkd_status http_open(const struct http_config *config, struct http_server **server_p,
                            char *detail);
/* Closes everything at once; memory is freed as the loop turns. */
void http_close(struct http_server *server);
void http_configure(struct http_server *server, const struct http_limits *limits);
const struct http_counters *http_count(const struct http_server *server);
uint16_t http_port(const struct http_server *server);

#endif
