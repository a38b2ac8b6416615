/*
 * raw.h - a worker process under test, and a client that speaks the wire protocol by hand: NNG and
 * topkd_wire.h, no libtopkd. Everything fails the running cmocka test when it cannot do its part.
 */
#ifndef TOPKD_TESTS_RAW_H
#define TOPKD_TESTS_RAW_H

#include "topkd_wire.h"

#include <nng/nng.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RAW_TIMEOUT_MS 60000 /* longer than anything here takes, sanitizers included */

/* ---- Worker ---------------------------------------------------------------------------------- */

/* `topkd --worker` as a supervisor starts it, with this test as the supervisor. */
struct raw_worker {
    pid_t pid;
    int control_fd;
    uint64_t epoch;
    char directory[64];
    char url[WIRE_URL_SIZE];
    char shm_prefix[WIRE_NAME_SIZE];
};

/* Starts and waits for READY. `yaml` are settings over the defaults; `fault` is a value for
 * TOPKD_TEST_FAULT, or NULL. */
void raw_worker_start(struct raw_worker *worker, const char *yaml, const char *fault);

/* Drains, expects exit code 0, and that no shared memory or socket is left. */
void raw_worker_stop(struct raw_worker *worker);

/* Hands new settings over, as the supervisor does on SIGHUP. */
void raw_worker_reload(const struct raw_worker *worker, const char *yaml);

/* Waits for the end of the process and returns its wait status; removes what it left. */
int raw_worker_wait(struct raw_worker *worker);

/* Whether it is alive and, on top, that many of its mappings carry `text` in /proc/PID/maps. */
uint32_t raw_worker_num_mappings(const struct raw_worker *worker, const char *text);
uint32_t raw_worker_num_fds(const struct raw_worker *worker);

/* Objects in /dev/shm whose name begins with the prefix (without '/'). */
uint32_t raw_shm_num_objects(const char *prefix);

/* ---- Client ---------------------------------------------------------------------------------- */

struct raw_client {
    nng_socket socket;
    nng_dialer dialer;
    uint64_t session, sequence, epoch; /* `sequence`: the last one used */
    struct wire_hello_reply hello;
    struct wire_semaphore *semaphores; /* mapped after raw_hello */
    uint8_t *arena;                    /* mapped after raw_hello; NULL without */
};

/* Connects a REQ socket whose own resend is off. */
void raw_connect(struct raw_client *client, const struct raw_worker *worker);
void raw_disconnect(struct raw_client *client);

/* Hello, and maps what it hands over. Returns the status of the answer. */
enum topkd_status raw_hello(struct raw_client *client, struct wire_reply *reply);

/* raw_connect and a Hello that must succeed. */
void raw_open(struct raw_client *client, const struct raw_worker *worker);

/* A request of this kind with the numbers of the session; takes the next sequence. */
struct wire_request raw_request(struct raw_client *client, enum wire_kind kind);

/* Sends and waits for the answer, whose status it returns. */
enum topkd_status raw_call(struct raw_client *client, const struct wire_request *request,
                           struct wire_reply *reply);

/* A request in flight. */
struct raw_pending {
    nng_ctx ctx;
    nng_aio *aio;
};

void raw_start(struct raw_client *client, const struct wire_request *request,
               struct raw_pending *pending);
/* False when no answer came within timeout_ms (or the connection was lost); ends the pending. */
bool raw_finish(struct raw_pending *pending, int timeout_ms, struct wire_reply *reply);

/* ---- Memory ---------------------------------------------------------------------------------- */

struct raw_shm {
    char name[WIRE_NAME_SIZE];
    uint8_t *data;
    size_t size_bytes;
    int lock_fd;     /* holds the name */
    uint64_t region; /* after raw_register */
    uint32_t generation;
};

/* A new POSIX shared memory object, named as libtopkd names its own. */
void raw_shm_create(struct raw_shm *shm, size_t size_bytes);
/* The same under this name, which nothing has now. */
void raw_shm_create_as(struct raw_shm *shm, const char *name, size_t size_bytes);
void raw_shm_destroy(struct raw_shm *shm);

/* The request that registers all of it. */
struct wire_request raw_register_request(struct raw_client *client, const struct raw_shm *shm,
                                         enum wire_access access);
/* Registers all of it, which must succeed. */
void raw_register(struct raw_client *client, struct raw_shm *shm, enum wire_access access);
struct wire_region_ref raw_ref(const struct raw_shm *shm, uint64_t offset);

/* A small Select: scores [rows, width] at the start of `scores`, indices at the start of `out`. */
struct wire_request raw_select_request(struct raw_client *client, const struct raw_shm *scores,
                                       const struct raw_shm *out, uint32_t rows, uint32_t width,
                                       uint32_t k);

/* Whether the worker still selects right for this client: the proof that it came to no harm. */
void raw_expect_selects(struct raw_client *client);

/* Raises a semaphore of the page, as libtopkd does. */
void raw_signal(struct raw_client *client, uint32_t index, uint64_t value);

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* A connection on which the test writes NNG's stream itself (SP over a Unix socket). */
int raw_stream_connect(const struct raw_worker *worker); /* without handshake */
void raw_stream_handshake(int fd);
/* One message: REQ id, then the body. False when the peer has closed. */
bool raw_stream_send(int fd, uint32_t id, const void *body, size_t size_bytes);
/* One reply's body. False at end of file or after timeout_ms. */
bool raw_stream_receive(int fd, int timeout_ms, void *body, size_t *size_p);

uint64_t raw_now_ms(void);
void raw_sleep_ms(unsigned ms);

#endif
