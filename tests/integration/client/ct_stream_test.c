/*
 * ct_stream_test.c - what goes over a connection, byte by byte: the peer is this test. Uses the
 * library's own objects, for its raw connections.
 */
#include "fake.h"
#include "rpc_internal.h"
#include "topkd_stream.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

enum { LARGE_LENGTHS = 8000, LARGE_MAX = 8, PINGS = 5 };

/* ---- The peer -------------------------------------------------------------------------------- */

struct peer {
    struct fake fake; /* its folder; no daemon runs */
    int listen_fd;
    int fd; /* of the one connection */
    struct rpc *rpc;
    pthread_t greeter;
    uint8_t greeting[STREAM_GREETING_SIZE];
    struct wire_reply replies[PINGS];
    struct wire_buffer buffer;
    struct wire_request request;
};

static int set_up(void **state)
{
    struct peer *peer = calloc(1, sizeof(*peer));
    assert_non_null(peer);
    fake_init(&peer->fake);
    peer->fd = -1;
    stream_put_greeting(peer->greeting, STREAM_REP);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s",
                   peer->fake.worker_url + strlen("ipc://"));
    peer->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(peer->listen_fd >= 0);
    assert_int_equal(bind(peer->listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(peer->listen_fd, 4), 0);
    *state = peer;
    return 0;
}

static int tear_down(void **state)
{
    struct peer *peer = *state;
    rpc_close(peer->rpc);
    if (peer->fd >= 0) {
        close(peer->fd);
    }
    close(peer->listen_fd);
    (void)unlink(peer->fake.worker_url + strlen("ipc://"));
    fake_fini(&peer->fake);
    free(peer);
    return 0;
}

static void read_all(int fd, void *bytes, size_t size)
{
    uint8_t *to = bytes;
    while (size > 0) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&polled, 1, WAIT_MS), 1);
        ssize_t got = read(fd, to, size);
        assert_true(got > 0);
        to += got;
        size -= (size_t)got;
    }
}

static void write_all(int fd, const void *bytes, size_t size)
{
    assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
}

/* Accepts one connection and greets in two parts; what is not checked here, the test does. */
static void *greet(void *arg)
{
    struct peer *peer = arg;
    peer->fd = accept(peer->listen_fd, NULL, NULL);
    if (peer->fd >= 0) {
        (void)!write(peer->fd, peer->greeting, 3);
        (void)!write(peer->fd, peer->greeting + 3, sizeof(peer->greeting) - 3);
    }
    return NULL;
}

static enum topkd_status try_open(struct peer *peer, uint32_t timeout_ms, char *detail)
{
    assert_int_equal(pthread_create(&peer->greeter, NULL, greet, peer), 0);
    enum topkd_status status =
        rpc_open(peer->fake.worker_url, clock_after_ms(timeout_ms), &peer->rpc, detail);
    assert_int_equal(pthread_join(peer->greeter, NULL), 0);
    return status;
}

static void open_rpc(struct peer *peer)
{
    char detail[WIRE_DETAIL_SIZE];
    uint8_t greeting[STREAM_GREETING_SIZE];
    if (try_open(peer, WAIT_MS, detail) != TOPKD_OK) {
        fail_msg("%s", detail);
    }
    read_all(peer->fd, greeting, sizeof(greeting));
    assert_true(stream_is_greeting(greeting, STREAM_REQ));
}

/* The next request; its identifier. */
static uint32_t read_request(struct peer *peer)
{
    uint8_t head[STREAM_HEAD_SIZE], id[STREAM_ID_SIZE];
    char detail[WIRE_DETAIL_SIZE];
    uint64_t length;
    read_all(peer->fd, head, sizeof(head));
    assert_true(stream_get_head(head, &length));
    assert_in_range(length, STREAM_ID_SIZE + 1, STREAM_ID_SIZE + WIRE_MESSAGE_SIZE_MAX);
    read_all(peer->fd, id, sizeof(id));
    assert_true((stream_get_id(id) & STREAM_ID_LAST) != 0);
    read_all(peer->fd, peer->buffer.bytes, length - STREAM_ID_SIZE);
    if (wire_request_decode(peer->buffer.bytes, length - STREAM_ID_SIZE, &peer->buffer,
                            &peer->request, detail) != TOPKD_OK) {
        fail_msg("%s", detail);
    }
    return stream_get_id(id);
}

/* A reply to PING as it goes over the wire; its size. */
static size_t make_reply(uint32_t id, uint64_t sequence, uint8_t *bytes, size_t room)
{
    static struct wire_reply reply; /* large */
    char detail[WIRE_DETAIL_SIZE];
    size_t size;
    reply = (struct wire_reply){.kind = WIRE_PING, .sequence = sequence};
    size_t prefix = STREAM_HEAD_SIZE + STREAM_ID_SIZE;
    if (wire_reply_encode(&reply, bytes + prefix, room - prefix, &size, detail) != TOPKD_OK) {
        fail_msg("%s", detail);
    }
    stream_put_head(bytes, STREAM_ID_SIZE + size);
    stream_put_id(bytes + STREAM_HEAD_SIZE, id);
    return prefix + size;
}

static void send_ping(struct peer *peer, uint64_t sequence, uint32_t timeout_ms,
                      struct rpc_exchange *exchange)
{
    char detail[WIRE_DETAIL_SIZE];
    const struct wire_request ping = {.kind = WIRE_PING, .session = 1, .sequence = sequence};
    struct wire_reply *reply = &peer->replies[sequence % PINGS];
    assert_int_equal(
        rpc_send(peer->rpc, &ping, clock_after_ms(timeout_ms), reply, exchange, detail), TOPKD_OK);
}

/* ---- Replies --------------------------------------------------------------------------------- */

static void ct_110_replies_find_their_requests(void **state)
{
    struct peer *peer = *state;
    struct rpc_exchange exchanges[PINGS];
    uint32_t ids[PINGS];
    uint8_t bytes[4096];
    char detail[WIRE_DETAIL_SIZE];
    size_t size = 0;
    open_rpc(peer);
    for (uint64_t i = 0; i < PINGS; i++) {
        send_ping(peer, i, WAIT_MS, &exchanges[i]);
        ids[i] = read_request(peer);
        assert_int_equal(peer->request.sequence, i);
    }
    /* Backwards, behind one that nobody asked for, in one piece but for the last byte. */
    size += make_reply(ids[PINGS - 1] + 1, 77, bytes, sizeof(bytes));
    for (uint64_t i = PINGS; i-- > 0;) {
        size += make_reply(ids[i], i, bytes + size, sizeof(bytes) - size);
    }
    write_all(peer->fd, bytes, size - 1);
    for (uint64_t i = 1; i < PINGS; i++) {
        assert_int_equal(rpc_receive(&exchanges[i], detail), TOPKD_OK);
        assert_int_equal(peer->replies[i].sequence, i);
    }
    write_all(peer->fd, bytes + size - 1, 1);
    assert_int_equal(rpc_receive(&exchanges[0], detail), TOPKD_OK);
}

static void ct_111_a_reply_may_come_byte_by_byte(void **state)
{
    struct peer *peer = *state;
    struct rpc_exchange exchange;
    uint8_t bytes[1024];
    char detail[WIRE_DETAIL_SIZE];
    open_rpc(peer);
    send_ping(peer, 1, WAIT_MS, &exchange);
    size_t size = make_reply(read_request(peer), 1, bytes, sizeof(bytes));
    for (size_t i = 0; i < size; i++) {
        write_all(peer->fd, bytes + i, 1);
    }
    assert_int_equal(rpc_receive(&exchange, detail), TOPKD_OK);
}

static void ct_112_the_reply_to_another_request_is_none(void **state)
{
    struct peer *peer = *state;
    struct rpc_exchange exchange;
    uint8_t bytes[1024];
    char detail[WIRE_DETAIL_SIZE];
    open_rpc(peer);
    send_ping(peer, 1, WAIT_MS, &exchange);
    write_all(peer->fd, bytes, make_reply(read_request(peer), 2, bytes, sizeof(bytes)));
    assert_int_equal(rpc_receive(&exchange, detail), TOPKD_E_PROTOCOL);
    assert_non_null(strstr(detail, "answered request 1 "));
    /* One that comes after its request was given up answers nothing. */
    send_ping(peer, 3, 1, &exchange);
    assert_int_equal(rpc_receive(&exchange, detail), TOPKD_E_TIMEOUT);
    write_all(peer->fd, bytes, make_reply(read_request(peer), 3, bytes, sizeof(bytes)));
    send_ping(peer, 4, WAIT_MS, &exchange);
    write_all(peer->fd, bytes, make_reply(read_request(peer), 4, bytes, sizeof(bytes)));
    assert_int_equal(rpc_receive(&exchange, detail), TOPKD_OK);
}

/* ---- The end --------------------------------------------------------------------------------- */

static void set_flag(void *arg)
{
    __atomic_store_n((bool *)arg, true, __ATOMIC_RELEASE);
}

/* What was said before the end is heard. */
static void ct_113_the_last_replies_of_a_peer_count(void **state)
{
    struct peer *peer = *state;
    struct rpc_exchange exchanges[2];
    uint8_t bytes[1024];
    char detail[WIRE_DETAIL_SIZE];
    bool is_lost = false;
    open_rpc(peer);
    rpc_watch(peer->rpc, set_flag, &is_lost);
    send_ping(peer, 0, WAIT_MS, &exchanges[0]);
    send_ping(peer, 1, WAIT_MS, &exchanges[1]);
    write_all(peer->fd, bytes, make_reply(read_request(peer), 0, bytes, sizeof(bytes)));
    (void)read_request(peer);
    close(peer->fd);
    peer->fd = -1;
    assert_int_equal(rpc_receive(&exchanges[1], detail), TOPKD_E_UNREACHABLE);
    assert_int_equal(rpc_receive(&exchanges[0], detail), TOPKD_OK);
    assert_true(rpc_lost(peer->rpc));
    rpc_abort(peer->rpc);
    assert_true(__atomic_load_n(&is_lost, __ATOMIC_ACQUIRE));
    is_lost = false;
    rpc_watch(peer->rpc, set_flag, &is_lost); /* who asks late is told at once */
    assert_true(is_lost);
    const struct wire_request ping = {.kind = WIRE_PING};
    assert_int_equal(rpc_exchange(peer->rpc, &ping, CLOCK_NEVER, peer->replies, detail),
                     TOPKD_E_UNREACHABLE);
}

static void ct_114_what_is_no_message_ends_the_connection(void **state)
{
    static const uint8_t cases[][STREAM_HEAD_SIZE + STREAM_ID_SIZE] = {
        {2, 0, 0, 0, 0, 0, 0, 0, 8, 128, 0, 0, 1}, /* begins with another byte */
        {1, 0, 0, 0, 0, 0, 0, 0, 3, 128, 0, 0, 1}, /* has no room for an identifier */
        {1, 0, 0, 0, 0, 0, 1, 0, 5, 128, 0, 0, 1}, /* is longer than messages are by a byte */
        {1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
    };
    struct peer *peer = *state;
    char detail[WIRE_DETAIL_SIZE];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rpc_exchange exchange;
        open_rpc(peer);
        send_ping(peer, 1, WAIT_MS, &exchange);
        write_all(peer->fd, cases[i], sizeof(cases[i]));
        assert_int_equal(rpc_receive(&exchange, detail), TOPKD_E_UNREACHABLE);
        rpc_close(peer->rpc);
        peer->rpc = NULL;
        close(peer->fd);
        peer->fd = -1;
    }
}

static void ct_115_who_greets_otherwise_is_not_topkd(void **state)
{
    struct peer *peer = *state;
    char detail[WIRE_DETAIL_SIZE];
    memcpy(peer->greeting, "HTTP/1.1", sizeof(peer->greeting));
    assert_int_equal(try_open(peer, WAIT_MS, detail), TOPKD_E_PROTOCOL);
    assert_non_null(strstr(detail, peer->fake.worker_url));
}

static void ct_116_what_cannot_be_encoded_harms_nothing(void **state)
{
    static int32_t lengths[WIRE_LENGTHS_MAX + 1];
    struct peer *peer = *state;
    struct rpc_exchange exchange;
    uint8_t bytes[1024];
    char detail[WIRE_DETAIL_SIZE] = "";
    struct wire_request request = {.kind = WIRE_SELECT};
    request.u.select.lengths_mode = WIRE_LENGTHS_INLINE;
    request.u.select.rows = request.u.select.num_lengths = WIRE_LENGTHS_MAX + 1;
    request.u.select.lengths_inline = lengths;
    open_rpc(peer);
    assert_int_equal(rpc_exchange(peer->rpc, &request, CLOCK_NEVER, peer->replies, detail),
                     TOPKD_E_INVALID);
    assert_true(strlen(detail) > 0);
    send_ping(peer, 1, WAIT_MS, &exchange);
    write_all(peer->fd, bytes, make_reply(read_request(peer), 1, bytes, sizeof(bytes)));
    assert_int_equal(rpc_receive(&exchange, detail), TOPKD_OK);
}

/* ---- A peer that reads slowly, or not at all ------------------------------------------------- */

/* Requests that are larger than what the socket holds. */
struct flood {
    struct rpc_request requests[LARGE_MAX];
    enum topkd_status statuses[LARGE_MAX];
    int num_answered; /* by the connection's thread */
    bool all_lost;
};

static struct flood flood;

static void count_answer(struct rpc_request *request, const struct rpc_answer *answer)
{
    flood.statuses[request - flood.requests] = answer->status;
    flood.all_lost = flood.all_lost && answer->lost;
    __atomic_add_fetch(&flood.num_answered, 1, __ATOMIC_ACQ_REL);
}

static void post_flood(struct peer *peer)
{
    static int32_t lengths[LARGE_LENGTHS];
    char detail[WIRE_DETAIL_SIZE];
    const int small = 1; /* the kernel makes it some kilobytes */
    assert_int_equal(setsockopt(peer->rpc->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    memset(&flood, 0, sizeof(flood));
    flood.all_lost = true;
    peer->request = (struct wire_request){.kind = WIRE_SELECT};
    peer->request.u.select.lengths_mode = WIRE_LENGTHS_INLINE;
    peer->request.u.select.lengths_inline = lengths;
    peer->request.u.select.num_lengths = peer->request.u.select.rows = LARGE_LENGTHS;
    peer->request.u.select.width = peer->request.u.select.k = 1;
    for (int i = 0; i < LARGE_MAX; i++) {
        flood.requests[i].answer = count_answer;
        peer->request.sequence = (uint64_t)i;
        assert_int_equal(rpc_post(peer->rpc, &peer->request, &flood.requests[i], detail), TOPKD_OK);
    }
}

static void ct_117_what_has_no_room_leaves_later_in_order(void **state)
{
    struct peer *peer = *state;
    struct rpc_exchange given_up, last;
    uint8_t bytes[1024];
    char detail[WIRE_DETAIL_SIZE];
    open_rpc(peer);
    post_flood(peer);
    send_ping(peer, 1000, 1, &given_up); /* never leaves */
    send_ping(peer, 1001, WAIT_MS, &last);
    assert_int_equal(rpc_receive(&given_up, detail), TOPKD_E_TIMEOUT);
    for (uint64_t i = 0; i < LARGE_MAX; i++) {
        uint32_t id = read_request(peer);
        assert_int_equal(peer->request.sequence, i);
        assert_int_equal(peer->request.u.select.num_lengths, LARGE_LENGTHS);
        write_all(peer->fd, bytes, make_reply(id, i, bytes, sizeof(bytes)));
    }
    uint32_t id = read_request(peer);
    assert_int_equal(peer->request.sequence, 1001);
    write_all(peer->fd, bytes, make_reply(id, 1001, bytes, sizeof(bytes)));
    assert_int_equal(rpc_receive(&last, detail), TOPKD_OK);
    assert_int_equal(__atomic_load_n(&flood.num_answered, __ATOMIC_ACQUIRE), LARGE_MAX);
    for (int i = 0; i < LARGE_MAX; i++) { /* a PING is no answer to a SELECT */
        assert_int_equal(flood.statuses[i], TOPKD_E_PROTOCOL);
    }
}

static void ct_118_a_peer_that_takes_nothing_is_given_up(void **state)
{
    struct peer *peer = *state;
    struct rpc_exchange exchange;
    char detail[WIRE_DETAIL_SIZE];
    open_rpc(peer);
    post_flood(peer);
    send_ping(peer, 1, 2 * WAIT_MS, &exchange);
    uint64_t before_ms = now_ms();
    assert_int_equal(rpc_receive(&exchange, detail), TOPKD_E_UNREACHABLE);
    assert_true(now_ms() - before_ms < WAIT_MS);
    assert_int_equal(__atomic_load_n(&flood.num_answered, __ATOMIC_ACQUIRE), LARGE_MAX);
    assert_true(flood.all_lost);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(ct_110_replies_find_their_requests),
        TEST(ct_111_a_reply_may_come_byte_by_byte),
        TEST(ct_112_the_reply_to_another_request_is_none),
        TEST(ct_113_the_last_replies_of_a_peer_count),
        TEST(ct_114_what_is_no_message_ends_the_connection),
        TEST(ct_115_who_greets_otherwise_is_not_topkd),
        TEST(ct_116_what_cannot_be_encoded_harms_nothing),
        TEST(ct_117_what_has_no_room_leaves_later_in_order),
        TEST(ct_118_a_peer_that_takes_nothing_is_given_up),
    };
    return cmocka_run_group_tests_name("ct_stream", tests, NULL, NULL);
}
