/* Hostile bytes, floods, clients that never read: CASES 29. Whatever comes, a well-behaved client
 * beside it goes on. */
#include "inputs.h"
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;
static struct wire_buffer buffer;
static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX + 1];

/* Sends bytes as one message and reads the answer, which must be one. */
static enum topkd_status send_bytes(int fd, const void *body, size_t size)
{
    static uint8_t answer[WIRE_MESSAGE_SIZE_MAX];
    size_t answer_size;
    assert_true(raw_stream_send(fd, 7, body, size));
    if (!raw_stream_receive(fd, RAW_TIMEOUT_MS, answer, &answer_size))
        fail_msg("no answer to %zu bytes", size);
    assert_int_equal(wire_reply_decode(answer, answer_size, &buffer, &reply, NULL), TOPKD_OK);
    assert_true(reply.status == TOPKD_OK || reply.detail[0] != '\0');
    return reply.status;
}

static size_t encode(const struct wire_request *request)
{
    size_t size = 0;
    assert_int_equal(wire_request_encode(request, bytes, WIRE_MESSAGE_SIZE_MAX, &size, NULL),
                     TOPKD_OK);
    return size;
}

static int stream_open(const struct raw_worker *worker)
{
    int fd = raw_stream_connect(worker);
    assert_true(fd >= 0);
    raw_stream_handshake(fd);
    return fd;
}

/* True once the peer has closed, within the time. */
static bool is_closed(int fd, int timeout_ms)
{
    uint64_t end_ms = raw_now_ms() + (uint64_t)timeout_ms;
    while (raw_now_ms() < end_ms) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint8_t sink[4096];
        if (poll(&poll_fd, 1, 20) > 0 && read(fd, sink, sizeof(sink)) <= 0)
            return true;
    }
    return false;
}

static void it_60_messages_that_are_none(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    int fd = stream_open(&worker);
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 11);

    assert_int_equal(send_bytes(fd, "", 0), TOPKD_E_PROTOCOL);
    assert_int_equal(send_bytes(fd, "GET / HTTP/1.1\r\n\r\n", 18), TOPKD_E_PROTOCOL);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(send_bytes(fd, bytes, 4096), TOPKD_E_PROTOCOL);

    /* A good Select, cut at every length and with bytes turned: refused, or understood; and never
     * taken for this session's. */
    struct wire_request good = raw_select_request(&client, &(struct raw_shm){.region = 1},
                                                  &(struct raw_shm){.region = 2}, 3, 100, 5);
    size_t size = encode(&good);
    static uint8_t copy[WIRE_MESSAGE_SIZE_MAX];
    memcpy(copy, bytes, size);
    for (size_t cut = 0; cut < size; cut += 1 + size / 200)
        assert_int_equal(send_bytes(fd, copy, cut), TOPKD_E_PROTOCOL);
    for (int i = 0; i < 3000; i++) {
        memcpy(bytes, copy, size);
        for (uint32_t flips = 1 + inputs_rng_below(&rng, 4); flips > 0; flips--)
            bytes[inputs_rng_below(&rng, (uint32_t)size)] = (uint8_t)inputs_rng_next(&rng);
        assert_int_not_equal(send_bytes(fd, bytes, size), TOPKD_OK);
    }
    for (int i = 0; i < 1000; i++) {
        uint32_t length = inputs_rng_below(&rng, 300);
        for (uint32_t j = 0; j < length; j++)
            bytes[j] = (uint8_t)inputs_rng_next(&rng);
        assert_int_equal(send_bytes(fd, bytes, length), TOPKD_E_PROTOCOL);
    }
    struct wire_request request = raw_request(&client, WIRE_STATS);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    assert_true(reply.u.stats.messages_rejected > 1000);
    raw_expect_selects(&client);
    close(fd);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* The same from inside a session: turned bytes of good requests never harm it. */
static void it_61_turned_bytes_inside_a_session(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client, other;
    struct raw_shm shm;
    raw_worker_start(&worker, "limits: {timeout_ms_default: 50, registrations_per_s: 1000000}",
                     NULL);
    raw_open(&other, &worker);
    struct inputs_rng rng = inputs_rng_of(inputs_run_seed(), 12);
    int fd = stream_open(&worker);
    struct wire_request hello = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
    assert_int_equal(send_bytes(fd, bytes, encode(&hello)), TOPKD_OK);
    memset(&client, 0, sizeof(client));
    client.session = reply.session;
    client.epoch = reply.epoch;
    raw_shm_create(&shm, 65536);
    struct wire_request reg = raw_register_request(&client, &shm, WIRE_ACCESS_READ_WRITE);
    assert_int_equal(send_bytes(fd, bytes, encode(&reg)), TOPKD_OK);
    shm.region = reply.u.reg.region;
    shm.generation = reply.u.reg.generation;
    for (int i = 0; i < 3000; i++) {
        struct wire_request request = raw_select_request(&client, &shm, &shm, 3, 100, 5);
        request.u.select.indices.offset = 32768;
        if (i % 3 == 1)
            request = raw_register_request(&client, &shm, WIRE_ACCESS_READ_WRITE);
        size_t size = encode(&request);
        for (uint32_t flips = inputs_rng_below(&rng, 3); flips > 0; flips--)
            bytes[inputs_rng_below(&rng, (uint32_t)size)] = (uint8_t)inputs_rng_next(&rng);
        (void)send_bytes(fd, bytes, size);
    }
    raw_expect_selects(&other);
    close(fd);
    raw_shm_destroy(&shm);
    raw_disconnect(&other);
    raw_worker_stop(&worker);
}

/* 64 KiB is taken in (and refused as a message); one byte more ends the connection. */
static void it_62_the_size_of_messages(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    memset(bytes, 0x5a, sizeof(bytes));
    int fd = stream_open(&worker);
    assert_int_equal(send_bytes(fd, bytes, WIRE_MESSAGE_SIZE_MAX), TOPKD_E_PROTOCOL);
    (void)raw_stream_send(fd, 8, bytes, WIRE_MESSAGE_SIZE_MAX + 1);
    assert_true(is_closed(fd, RAW_TIMEOUT_MS));
    close(fd);
    /* A length that no message has, with nothing behind it. */
    fd = stream_open(&worker);
    uint8_t head[9] = {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(send(fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    assert_true(is_closed(fd, RAW_TIMEOUT_MS));
    close(fd);
    /* Too short for a request id; and an id chain without an end. */
    fd = stream_open(&worker);
    uint8_t tiny[12] = {1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3};
    assert_int_equal(send(fd, tiny, sizeof(tiny), MSG_NOSIGNAL), sizeof(tiny));
    assert_true(is_closed(fd, RAW_TIMEOUT_MS));
    close(fd);
    raw_expect_selects(&client);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* Connections that say nothing, or half of something: at the limit new ones are closed, sessions go
 * on, and after limits.hello_ms there is room again. */
static void it_63_a_flood_of_half_open_connections(void **state)
{
    (void)state;
    enum { FLOOD = 400 };
    static int fds[FLOOD];
    struct raw_worker worker;
    struct raw_client client, late;
    raw_worker_start(&worker, "limits: {connections_max: 64, sessions_max: 16, hello_ms: 500}",
                     NULL);
    raw_open(&client, &worker);
    uint32_t num_silent = 0;
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = raw_stream_connect(&worker);
        if (fds[i] < 0)
            continue; /* the backlog is full */
        const uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
        if (i % 4 == 1) /* garbage for a handshake */
            (void)send(fds[i], "HTTP/1.1", 8, MSG_NOSIGNAL);
        else if (i % 4 == 2) /* half of one */
            (void)send(fds[i], hello, 5, MSG_NOSIGNAL);
        else if (i % 4 == 3) /* all of it, then half a message */
            (void)send(fds[i], hello, 8, MSG_NOSIGNAL);
        num_silent += i % 4 == 3;
        if (i % 40 == 0)
            raw_expect_selects(&client);
    }
    for (int i = 0; i < 20; i++)
        raw_expect_selects(&client);
    assert_true(num_silent > 64);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    enum topkd_status status = TOPKD_E_CLOSED;
    while (status != TOPKD_OK && raw_now_ms() < end_ms) {
        struct raw_pending pending;
        struct wire_request hello = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
        raw_connect(&late, &worker);
        raw_start(&late, &hello, &pending);
        if (raw_finish(&pending, 1000, &reply))
            status = reply.status;
        if (status != TOPKD_OK)
            raw_disconnect(&late);
    }
    assert_int_equal(status, TOPKD_OK);
    raw_disconnect(&late);
    /* The session's own silence is no reason to close it. */
    raw_sleep_ms(800);
    raw_expect_selects(&client);
    for (int i = 0; i < FLOOD; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* A client that sends and never reads: it is not listened to any more, loses its connection after a
 * while, and nobody waits for it. */
static void it_64_replies_that_nobody_reads(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "limits: {registrations_per_s: 1000000}", NULL);
    raw_open(&client, &worker);
    for (int with_session = 0; with_session < 2; with_session++) {
        int fd = stream_open(&worker);
        struct wire_request hello = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
        if (with_session)
            assert_int_equal(send_bytes(fd, bytes, encode(&hello)), TOPKD_OK);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        struct wire_request stats = {.kind = WIRE_STATS};
        size_t size = encode(&stats);
        uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS, worst_ms = 0;
        bool is_over = false;
        uint32_t num_sent = 0;
        while (!is_over && raw_now_ms() < end_ms) {
            for (int i = 0; i < 100 && !is_over; i++) {
                if (raw_stream_send(fd, num_sent, bytes, size))
                    num_sent++;
                else
                    is_over = errno == EPIPE || errno == ECONNRESET;
            }
            uint64_t start_ms = raw_now_ms();
            raw_expect_selects(&client);
            uint64_t took_ms = raw_now_ms() - start_ms;
            worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
        }
        assert_true(is_over);
        assert_true(num_sent > 10);
        assert_true(worst_ms < 8000);
        close(fd);
    }
    struct wire_request request = raw_request(&client, WIRE_SESSIONS);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    assert_int_equal(reply.u.sessions.num_total, 1);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* Selections and queries as fast as one client can send them, while another does its work. */
static void it_65_a_flood_of_requests(void **state)
{
    (void)state;
    enum { N = 64 };
    struct raw_worker worker;
    struct raw_client flood, client;
    struct raw_shm shm;
    struct raw_pending pending[N];
    raw_worker_start(&worker, "limits: {outstanding_max: 16, queue_max: 32}", NULL);
    raw_open(&flood, &worker);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 1 << 20);
    raw_register(&flood, &shm, WIRE_ACCESS_READ_WRITE);
    uint32_t num_ok = 0, num_busy = 0;
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < N; i++) {
            struct wire_request request =
                i % 8 == 7 ? raw_request(&flood, WIRE_STATS)
                           : raw_select_request(&flood, &shm, &shm, 16, 8000, 64);
            if (request.kind == WIRE_SELECT)
                request.u.select.indices.offset = 900000;
            raw_start(&flood, &request, &pending[i]);
        }
        raw_expect_selects(&client); /* never refused, whatever the other does */
        for (int i = 0; i < N; i++) {
            assert_true(raw_finish(&pending[i], RAW_TIMEOUT_MS, &reply));
            num_ok += reply.status == TOPKD_OK;
            num_busy += reply.status == TOPKD_E_BUSY;
        }
    }
    assert_int_equal(num_ok + num_busy, 30 * N);
    raw_shm_destroy(&shm);
    raw_disconnect(&flood);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* Floods whose senders go away in the middle, or are sent away: every connection is given back, and
 * the worker is not deaf afterwards. (NNG 1.5 as a server loses such connections, and with enough
 * of them hears nobody any more.) */
static void it_66_floods_that_break_off(void **state)
{
    (void)state;
    enum { FLOODS = 120, MESSAGES = 400 };
    static int fds[FLOODS];
    struct raw_worker worker;
    struct raw_client client, late;
    /* Room for all: one that has gone is one of them until the worker has seen it go. */
    raw_worker_start(&worker, "limits: {connections_max: 160, hello_ms: 1000}", NULL);
    raw_open(&client, &worker);
    raw_expect_selects(&client);
    uint32_t num_fds = raw_worker_num_fds(&worker);
    const struct wire_request ping = {.kind = WIRE_PING};
    size_t size = encode(&ping);
    for (int i = 0; i < FLOODS; i++) {
        fds[i] = raw_stream_connect(&worker);
        if (fds[i] < 0)
            continue;
        raw_stream_handshake(fds[i]);
        assert_int_equal(fcntl(fds[i], F_SETFL, O_NONBLOCK), 0);
        for (int n = 0; n < MESSAGES && raw_stream_send(fds[i], (uint32_t)n, bytes, size); n++)
            continue;
        if (i % 2 == 0) { /* at once, or when the worker has had enough */
            close(fds[i]);
            fds[i] = -1;
        }
        if (i % 20 == 0)
            raw_expect_selects(&client);
    }
    for (int i = 0; i < FLOODS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (raw_worker_num_fds(&worker) > num_fds) {
        assert_true(raw_now_ms() < end_ms);
        raw_sleep_ms(10);
    }
    raw_open(&late, &worker);
    raw_expect_selects(&late);
    raw_expect_selects(&client);
    raw_disconnect(&late);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_60_messages_that_are_none),
        cmocka_unit_test(it_61_turned_bytes_inside_a_session),
        cmocka_unit_test(it_62_the_size_of_messages),
        cmocka_unit_test(it_63_a_flood_of_half_open_connections),
        cmocka_unit_test(it_64_replies_that_nobody_reads),
        cmocka_unit_test(it_65_a_flood_of_requests),
        cmocka_unit_test(it_66_floods_that_break_off),
    };
    return cmocka_run_group_tests_name("abuse", tests, NULL, NULL);
}
