/* The worker's sessions: hello, versions, epochs, exactly once, who sees what. */
#include "raw.h"

#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

static void it_01_hello_describes_the_session(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    raw_worker_start(&worker, "limits: {semaphores: 5, arena_slots: 3, outstanding_max: 4}", NULL);
    raw_open(&a, &worker);
    assert_int_equal(a.hello.version, WIRE_VERSION);
    assert_string_equal(a.hello.device, "cpu");
    assert_int_equal(a.hello.device_kind, WIRE_DEVICE_CPU);
    assert_int_equal(a.hello.limits.semaphores, 5);
    assert_int_equal(a.hello.limits.arena_slots, 3);
    assert_int_equal(a.hello.limits.outstanding_max, 4);
    assert_int_equal(a.hello.limits.lanes_max, 0);
    assert_true(a.hello.semaphores.allocation_bytes >= 5 * sizeof(struct wire_semaphore));
    assert_true(a.hello.arena.allocation_bytes >= 3 * a.hello.limits.arena_slot_bytes);
    for (int i = 0; i < 5; i++)
        assert_int_equal(a.semaphores[i].value, 0);

    raw_open(&b, &worker);
    assert_int_not_equal(a.session, b.session);
    assert_memory_not_equal(a.hello.semaphores.handle, b.hello.semaphores.handle, WIRE_HANDLE_SIZE);

    /* Hello again on the same connection is the same session. */
    struct wire_request request = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
    assert_int_equal(raw_call(&a, &request, &reply), TOPKD_OK);
    assert_int_equal(reply.session, a.session);
    raw_expect_selects(&a);
    raw_expect_selects(&b);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

static void it_02_hello_refuses_other_versions_and_devices(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "", NULL);
    raw_connect(&client, &worker);

    struct wire_request request = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION + 7};
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_VERSION);
    assert_non_null(strstr(reply.detail, "8")); /* both versions are named */
    assert_non_null(strstr(reply.detail, "1"));
    request.u.hello.version = 0;
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_VERSION);

    request.u.hello.version = WIRE_VERSION;
    (void)snprintf(request.u.hello.device, WIRE_UUID_SIZE, "GPU-0000");
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_NOT_VISIBLE);
    assert_non_null(strstr(reply.detail, "GPU-0000"));
    assert_int_equal(reply.session, 0);

    /* A refusal leaves the connection usable. */
    (void)snprintf(request.u.hello.device, WIRE_UUID_SIZE, "cpu");
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    assert_int_not_equal(reply.session, 0);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* Everything but ping, stats and sessions needs the session of this connection and this epoch. */
static void it_03_stale_numbers_are_refused(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b, stranger;
    raw_worker_start(&worker, "", NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_connect(&stranger, &worker);
    const enum wire_kind kinds[] = {WIRE_REGISTER, WIRE_UNREGISTER, WIRE_SELECT, WIRE_RELEASE};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct wire_request request = raw_request(&a, kinds[i]);
        request.u.select = (struct wire_select_request){.rows = 0};
        if (kinds[i] == WIRE_REGISTER)
            request.u.reg = (struct wire_register_request){.access = WIRE_ACCESS_READ,
                                                           .memory.kind = WIRE_MEMORY_SHM};
        request.epoch--;
        assert_int_equal(raw_call(&a, &request, &reply), TOPKD_E_STALE_SESSION);
        assert_int_equal(reply.epoch, worker.epoch); /* so that the client learns the new one */
        request.epoch++;
        request.session = b.session; /* another's session over our connection */
        assert_int_equal(raw_call(&a, &request, &reply), TOPKD_E_STALE_SESSION);
        request.session = 0;
        assert_int_equal(raw_call(&a, &request, &reply), TOPKD_E_STALE_SESSION);
        request.session = a.session; /* ours over a connection that said no hello */
        assert_int_equal(raw_call(&stranger, &request, &reply), TOPKD_E_STALE_SESSION);
    }
    struct wire_request ping = raw_request(&a, WIRE_PING);
    ping.session = b.session;
    assert_int_equal(raw_call(&a, &ping, &reply), TOPKD_E_STALE_SESSION);
    ping.session = 0;
    assert_int_equal(raw_call(&stranger, &ping, &reply), TOPKD_OK);
    raw_expect_selects(&a);
    raw_disconnect(&stranger);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

static struct wire_stats_reply stats_of(struct raw_client *client)
{
    struct wire_request request = raw_request(client, WIRE_STATS);
    assert_int_equal(raw_call(client, &request, &reply), TOPKD_OK);
    return reply.u.stats;
}

/* A repeated sequence is answered from the cache; what it asked for happened once. */
static void it_04_a_repeated_request_runs_once(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    raw_worker_start(&worker, "limits: {reply_cache: 32}", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 8192);

    struct wire_request request = raw_register_request(&client, &shm, WIRE_ACCESS_READ_WRITE);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    struct wire_register_reply first = reply.u.reg;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
        assert_int_equal(reply.u.reg.region, first.region);
        assert_int_equal(reply.u.reg.generation, first.generation);
    }
    assert_int_equal(stats_of(&client).regions, 1);
    assert_int_equal(stats_of(&client).replies_repeated, 3);
    shm.region = first.region;
    shm.generation = first.generation;

    /* A Select whose output the client then scribbles over: a second run would restore it. */
    float *scores = (float *)shm.data;
    int32_t *indices = (int32_t *)(shm.data + 4096);
    for (int i = 0; i < 8; i++)
        scores[i] = (float)i;
    struct wire_request select = raw_select_request(&client, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_OK);
    assert_int_equal(indices[0] + indices[1], 13);
    uint64_t run_ns = reply.u.select.run_ns;
    indices[0] = -77;
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_OK);
    assert_int_equal(reply.u.select.run_ns, run_ns);
    assert_int_equal(indices[0], -77);
    assert_int_equal(stats_of(&client).requests, 1);

    /* Refusals are remembered too: the same question has the same answer. */
    struct wire_request bad = select;
    bad.sequence = ++client.sequence;
    bad.u.select.k = 0;
    assert_int_equal(raw_call(&client, &bad, &reply), TOPKD_E_INVALID);
    bad.u.select.k = 2;
    assert_int_equal(raw_call(&client, &bad, &reply), TOPKD_E_INVALID);

    /* A number under another kind, number 0, and one that the cache has lost. */
    struct wire_request other = raw_request(&client, WIRE_RELEASE);
    other.sequence = select.sequence;
    assert_int_equal(raw_call(&client, &other, &reply), TOPKD_E_INVALID);
    select.sequence = 0;
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_E_INVALID);
    for (int i = 0; i < 70; i++) { /* reply_cache and outstanding_max are 32 each */
        other = raw_request(&client, WIRE_RELEASE);
        other.u.release.lease = 9999;
        assert_int_equal(raw_call(&client, &other, &reply), TOPKD_E_INVALID);
    }
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_INVALID);
    assert_non_null(strstr(reply.detail, "was forgotten already"));
    assert_int_equal(stats_of(&client).regions, 1);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* While the first run is not finished, its repetition is told so and does not run. */
static void it_05_a_repetition_of_a_running_request_is_busy(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    struct raw_pending pending;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 8192);
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    struct wire_request select = raw_select_request(&client, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    select.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    raw_start(&client, &select, &pending);
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_E_BUSY);
    raw_signal(&client, 0, 1);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK);
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_OK); /* now from the cache */
    assert_int_equal(stats_of(&client).requests, 1);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* However long one request runs, others find a place in the memory of replies. */
static void it_05_a_long_wait_stands_in_no_other_requests_way(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    struct raw_pending pending;
    raw_worker_start(&worker, "limits: {reply_cache: 32}", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 8192);
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    struct wire_request select = raw_select_request(&client, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    select.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    raw_start(&client, &select, &pending);
    for (int i = 0; i < 300; i++) {
        struct wire_request other = raw_request(&client, WIRE_RELEASE);
        other.u.release.lease = 9999;
        assert_int_equal(raw_call(&client, &other, &reply), TOPKD_E_INVALID);
        assert_non_null(strstr(reply.detail, "lease 9999"));
    }
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_E_BUSY); /* it still runs */
    raw_signal(&client, 0, 1);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK);
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_OK); /* and is remembered */
    assert_int_equal(stats_of(&client).requests, 1);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

static void it_06_sessions_at_their_limit(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client clients[3], more;
    raw_worker_start(&worker, "limits: {sessions_max: 3}", NULL);
    for (int i = 0; i < 3; i++)
        raw_open(&clients[i], &worker);
    raw_connect(&more, &worker);
    for (int i = 0; i < 50; i++) /* far beyond */
        assert_int_equal(raw_hello(&more, &reply), TOPKD_E_LIMIT);
    assert_non_null(strstr(reply.detail, "3"));
    raw_expect_selects(&clients[2]);

    /* One goes, its place is free soon. */
    raw_disconnect(&clients[0]);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    enum topkd_status status;
    while ((status = raw_hello(&more, &reply)) == TOPKD_E_LIMIT && raw_now_ms() < end_ms)
        raw_sleep_ms(5);
    assert_int_equal(status, TOPKD_OK);
    raw_expect_selects(&more);
    raw_disconnect(&more);
    raw_disconnect(&clients[1]);
    raw_disconnect(&clients[2]);
    raw_worker_stop(&worker);
}

/* ---- As another user: refused by name; without operator rights one sees only oneself --------- */

/* One request and its answer in `reply`; NNG does not survive fork, so a child speaks the stream.
 */
static bool child_call(int fd, uint32_t id, const struct wire_request *request)
{
    static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
    static struct wire_buffer buffer;
    size_t size = 0;
    (void)wire_request_encode(request, bytes, sizeof(bytes), &size, NULL);
    return raw_stream_send(fd, id, bytes, size) &&
           raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size) &&
           wire_reply_decode(bytes, size, &buffer, &reply, NULL) == TOPKD_OK;
}

/* A client of another user; returns its exit code, 0 when all is as it should be. */
static int child_of_user(const struct raw_worker *worker, uid_t uid)
{
    if (setgroups(0, NULL) != 0 || setgid(uid) != 0 || setuid(uid) != 0)
        return 90;
    int fd = raw_stream_connect(worker);
    if (fd < 0)
        return 91;
    raw_stream_handshake(fd);
    struct wire_request request = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
    if (!child_call(fd, 1, &request))
        return 92;
    if (reply.status != TOPKD_OK)
        return (int)reply.status;
    /* Of the other session it learns nothing, and it operates nothing. */
    request = (struct wire_request){.kind = WIRE_SESSIONS};
    if (!child_call(fd, 2, &request) || reply.u.sessions.num_total != 1 ||
        reply.u.sessions.sessions[0].uid != uid)
        return 94;
    request = (struct wire_request){.kind = WIRE_STATS};
    if (!child_call(fd, 3, &request) || reply.status != TOPKD_OK || reply.u.stats.sessions != 1 ||
        reply.u.stats.requests != 0 || reply.u.stats.regions != 0 ||
        reply.u.stats.mapped_bytes != 0 || reply.u.stats.num_buckets != 0 ||
        reply.u.stats.scores_read != 0 || reply.u.stats.request_ns_sum != 0 ||
        reply.u.stats.epoch != worker->epoch)
        return 95;
    request = (struct wire_request){.kind = WIRE_DRAIN, .u.drain.deadline_ms = 0};
    if (!child_call(fd, 4, &request) || reply.status != TOPKD_E_NOT_PERMITTED)
        return 96;
    return 0;
}

static void it_07_access_lists_hold(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client, stranger;
    struct raw_shm shm;
    /* root and the daemon's own user always may, so the list is tested from a child of other uid.
     */
    raw_worker_start(&worker, "socket: {mode: 0666}\naccess: {uids: [4242]}", NULL);
    raw_open(&client, &worker);
    if (geteuid() != 0) {
        print_message("needs root to become another user: not run\n");
        raw_disconnect(&client);
        raw_worker_stop(&worker);
        skip();
    }
    assert_int_equal(chmod(worker.directory, 0755), 0);
    raw_expect_selects(&client); /* something to be told of */
    raw_shm_create(&shm, 4096);
    raw_register(&client, &shm, WIRE_ACCESS_READ);
    const uid_t uids[] = {4243, 4242};
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(child_of_user(&worker, uids[i]));
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), i == 0 ? TOPKD_E_NOT_PERMITTED : 0);
    }
    raw_shm_destroy(&shm);
    /* We are root, so an operator: both sessions may be seen while they live. */
    raw_connect(&stranger, &worker);
    struct wire_request request = {.kind = WIRE_SESSIONS};
    assert_int_equal(raw_call(&stranger, &request, &reply), TOPKD_OK);
    assert_true(reply.u.sessions.num_total >= 1);
    raw_expect_selects(&client);
    raw_disconnect(&stranger);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

static void it_08_sessions_are_listed(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    raw_worker_start(&worker, "", NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_expect_selects(&a);
    struct wire_request request = raw_request(&b, WIRE_SESSIONS);
    assert_int_equal(raw_call(&b, &request, &reply), TOPKD_OK);
    assert_int_equal(reply.u.sessions.num_total, 2); /* the same user as the worker: an operator */
    assert_int_equal(reply.u.sessions.num_sessions, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_session *row = &reply.u.sessions.sessions[i];
        assert_int_equal(row->pid, getpid());
        assert_int_equal(row->uid, geteuid());
        assert_int_equal(row->requests, row->session == a.session ? 1 : 0);
        assert_int_equal(row->regions, 0);
        assert_string_equal(row->client_name, "raw \"client\"");
    }
    struct wire_stats_reply stats = stats_of(&a);
    assert_int_equal(stats.sessions, 2);
    assert_int_equal(stats.sessions_opened, 2);
    assert_int_equal(stats.requests, 1);
    assert_int_equal(stats.requests_failed, 0);
    uint64_t num_in_buckets = 0;
    for (uint32_t i = 0; i < stats.num_buckets; i++)
        num_in_buckets += stats.buckets[i].requests;
    assert_int_equal(num_in_buckets, 1);
    assert_int_equal(stats.rows_copied + stats.rows_direct + stats.rows_certified, 3);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

/* Requests of devices that have them, or of the supervisor, are answered by name. */
static void it_13_unsupported_requests(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    struct wire_request request = raw_request(&client, WIRE_DEVICES);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_UNSUPPORTED);
    request = raw_request(&client, WIRE_LANE_OPEN);
    request.u.lane_open.shape = (struct wire_select_request){.rows = 1, .width = 10, .k = 1};
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_UNSUPPORTED);
    request = raw_request(&client, WIRE_LANE_CLOSE);
    request.u.lane_close.lane = 3;
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_UNSUPPORTED);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_01_hello_describes_the_session),
        cmocka_unit_test(it_02_hello_refuses_other_versions_and_devices),
        cmocka_unit_test(it_03_stale_numbers_are_refused),
        cmocka_unit_test(it_04_a_repeated_request_runs_once),
        cmocka_unit_test(it_05_a_repetition_of_a_running_request_is_busy),
        cmocka_unit_test(it_05_a_long_wait_stands_in_no_other_requests_way),
        cmocka_unit_test(it_06_sessions_at_their_limit),
        cmocka_unit_test(it_07_access_lists_hold),
        cmocka_unit_test(it_08_sessions_are_listed),
        cmocka_unit_test(it_13_unsupported_requests),
    };
    return cmocka_run_group_tests_name("worker sessions", tests, NULL, NULL);
}
