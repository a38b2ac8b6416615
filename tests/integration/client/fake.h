/*
 * fake.h - a fake daemon (fake_daemon.c) under a test's control, and short words for tests of the
 * client library.
 */
#ifndef TOPKD_TESTS_FAKE_H
#define TOPKD_TESTS_FAKE_H

#include "fake_counters.h"
#include "topkd.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fake {
    char folder[64]; /* for its sockets and counters */
    char supervisor_url[WIRE_URL_SIZE], worker_url[WIRE_URL_SIZE], counters_path[WIRE_URL_SIZE];
    uint64_t *counters; /* [FAKE_COUNTERS], of every life together */
    uint64_t epoch;
    pid_t pid; /* 0: not running */
};

/* A folder and counters at zero; nothing runs yet. Fails the test when that cannot be had. */
void fake_init(struct fake *fake);

/* Starts a life of the daemon with settings and rules, see fake_daemon.c; NULL ends the list. Waits
 * until it listens. */
void fake_start(struct fake *fake, ...) __attribute__((sentinel));

/* Kills it as kill -9 does, and removes what it leaves. Nothing happens when it does not run. */
void fake_kill(struct fake *fake);

/* Waits until it has died of itself. */
void fake_await_death(struct fake *fake);

void fake_fini(struct fake *fake);

/* The same for cmocka: *state is a fake of the test's own. */
int fake_set_up(void **state);
int fake_tear_down(void **state);

/* Requests of this kind seen so far; the second waits until there were so many. */
uint64_t fake_count(const struct fake *fake, enum wire_kind kind);
void fake_await_count(const struct fake *fake, enum wire_kind kind, uint64_t count);

/* Opens a client of it; `options` may be NULL, its url is set here. Fails the test otherwise. */
struct topkd_client *fake_client(const struct fake *fake,
                                 const struct topkd_client_options *options);

/* A short deadline that still is enough to open a session on a busy machine under a sanitizer. */
#define SHORT_MS 4000u

/* What must come comes within it, on the busiest machine. */
#define WAIT_MS 30000

/* Less than the deadline that a client has by itself: what takes longer did not obey its own. */
#define LATE_MS 9000

/* ---- Words ----------------------------------------------------------------------------------- */

/* Fails the test, with the detail text, unless `actual` is `expected`. */
#define expect_status(expected, actual)                                                            \
    expect_status_at(expected, actual, #actual, __FILE__, __LINE__)
void expect_status_at(enum topkd_status expected, enum topkd_status actual, const char *what,
                      const char *file, int line);
#define expect_ok(actual) expect_status(TOPKD_OK, actual)

/* Fails the test unless topkd_detail() contains each text; NULL ends the list. */
void expect_detail(const char *text, ...) __attribute__((sentinel));

/* A matrix in a buffer: seeded scores, and a result checked by the oracle. */
struct matrix {
    struct topkd_buffer *buffer; /* scores, then room for a result of k */
    uint32_t rows, width, k;
    uint64_t indices_offset;
};

void matrix_create(struct topkd_client *client, uint32_t rows, uint32_t width, uint32_t k,
                   struct matrix *matrix);
/* A request for it; into the arena, or into the buffer's own room. */
struct topkd_select_request matrix_request(const struct matrix *matrix, bool arena);
/* Fails the test unless the result is right. */
void matrix_check(const struct matrix *matrix, const struct topkd_select_request *request,
                  const struct topkd_result *result);

/* Whether any name in /dev/shm begins with "topkd-held-<this process>-", or with that of another.
 */
bool has_buffers(void);
bool has_buffers_of(pid_t pid);

uint64_t now_ms(void);

#endif
