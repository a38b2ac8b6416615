/* Clients that die at every stage, and workers that fault on purpose: CASES 25, 31, 32. The program
 * runs itself as the client that is to be killed: death_test --client STAGE URL EPOCH. */
#include "raw.h"
#include "server/control.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

/* ---- The client that dies -------------------------------------------------------------------- */

/* Stage, its name, what the client has done when it is killed. */
#define STAGE_TABLE(X)                                                                             \
    X(STAGE_CONNECTED, "connected", "nothing but connect")                                         \
    X(STAGE_HELLO, "hello", "hello")                                                               \
    X(STAGE_HALF, "half", "half of a message, in a session")                                       \
    X(STAGE_REGIONS, "regions", "three regions, to be unlinked when it is dead")                   \
    X(STAGE_WAITING, "waiting", "requests that wait for a semaphore")                              \
    X(STAGE_LEASES, "leases", "results in the arena")                                              \
    X(STAGE_FORKED, "forked", "as regions, and a child of it keeps the connection open")

enum stage {
#define STAGE_ENUM(id, name, text) id,
    STAGE_TABLE(STAGE_ENUM) STAGE_COUNT
#undef STAGE_ENUM
};

static const char *const stage_names[] = {
#define STAGE_NAME(id, name, text) [id] = name,
    STAGE_TABLE(STAGE_NAME)
#undef STAGE_NAME
};

static void client_regions(struct raw_client *client, struct raw_shm shm[3])
{
    for (int i = 0; i < 3; i++) {
        raw_shm_create(&shm[i], 1 << 20);
        struct wire_request request = raw_register_request(client, &shm[i], WIRE_ACCESS_READ_WRITE);
        request.u.reg.unlink_when_dead = true;
        assert_int_equal(raw_call(client, &request, &reply), TOPKD_OK);
        shm[i].region = reply.u.reg.region;
        shm[i].generation = reply.u.reg.generation;
    }
}

static void client_half(const struct raw_worker *worker)
{
    static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
    size_t size = 0;
    struct wire_request hello = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
    int fd = raw_stream_connect(worker);
    raw_stream_handshake(fd);
    assert_int_equal(wire_request_encode(&hello, bytes, sizeof(bytes), &size, NULL), TOPKD_OK);
    assert_true(raw_stream_send(fd, 1, bytes, size));
    assert_true(raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size));
    const uint8_t head[20] = {1, 0, 0, 0, 0, 0, 0, 1, 0, 0x80, 0, 0, 1, 'h', 'a', 'l', 'f'};
    assert_int_equal(send(fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
}

static void client_main(enum stage stage, const struct raw_worker *worker)
{
    static struct raw_client client;
    static struct raw_shm shm[3];
    static struct raw_pending pending[8];

    if (stage == STAGE_HALF) {
        client_half(worker);
    } else {
        raw_connect(&client, worker);
        if (stage != STAGE_CONNECTED)
            assert_int_equal(raw_hello(&client, &reply), TOPKD_OK);
        if (stage >= STAGE_REGIONS)
            client_regions(&client, shm);
    }
    for (int i = 0; i < 8 && stage == STAGE_WAITING; i++) {
        struct wire_request request = raw_select_request(&client, &shm[0], &shm[1], 4, 60000, 16);
        request.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
        request.u.select.timeout_ms = 600000;
        raw_start(&client, &request, &pending[i]);
    }
    for (int i = 0; i < 3 && stage == STAGE_LEASES; i++) {
        struct wire_request request = raw_select_request(&client, &shm[0], &shm[1], 4, 60000, 16);
        request.u.select.output_mode = WIRE_OUTPUT_ARENA;
        request.u.select.indices.region = 0;
        assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    }
    if (stage == STAGE_FORKED && fork() == 0) {
        char byte;
        close(STDOUT_FILENO);
        (void)!read(STDIN_FILENO, &byte, 1); /* outlives its parent, with its descriptors */
        _exit(0);
    }
    raw_sleep_ms(20); /* so that most of what was sent is taken in */
    (void)!write(STDOUT_FILENO, "R", 1);
    pause();
}

/* Starts the client and returns its pid once it has reached its stage. A child of it lives until
 * *hold_fd_p is closed. */
static pid_t client_start(enum stage stage, const struct raw_worker *worker, int *hold_fd_p)
{
    int fds[2], hold_fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(pipe2(hold_fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char epoch[32];
        (void)snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)worker->epoch);
        dup2(hold_fds[0], STDIN_FILENO);
        dup2(fds[1], STDOUT_FILENO);
        execl("/proc/self/exe", "death_test", "--client", stage_names[stage], worker->url, epoch,
              (char *)NULL);
        _exit(97);
    }
    close(fds[1]);
    close(hold_fds[0]);
    *hold_fd_p = hold_fds[1];
    char byte = 0;
    struct pollfd poll_fd = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, RAW_TIMEOUT_MS), 1);
    if (read(fds[0], &byte, 1) != 1 || byte != 'R')
        fail_msg("the client did not reach stage %s", stage_names[stage]);
    close(fds[0]);
    return pid;
}

static int client_run(char **argv)
{
    struct raw_worker worker = {.epoch = strtoull(argv[4], NULL, 10)};
    (void)snprintf(worker.url, sizeof(worker.url), "%s", argv[3]);
    for (int stage = 0; stage < STAGE_COUNT; stage++)
        if (strcmp(argv[2], stage_names[stage]) == 0)
            client_main((enum stage)stage, &worker);
    return 96;
}

/* ---- Clients die ----------------------------------------------------------------------------- */

static struct wire_stats_reply stats_of(struct raw_client *client)
{
    struct wire_request request = raw_request(client, WIRE_STATS);
    assert_int_equal(raw_call(client, &request, &reply), TOPKD_OK);
    return reply.u.stats;
}

static void await_queued(struct raw_client *client, uint32_t num_queued)
{
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (stats_of(client).queued != num_queued)
        assert_true(raw_now_ms() < end_ms);
}

/* What a client holds in the worker, and what is left in /dev/shm. */
static bool is_all_gone(const struct raw_worker *worker, struct raw_client *client,
                        const char *buffers, uint32_t num_fds, uint32_t num_shared)
{
    struct wire_stats_reply stats = stats_of(client);
    return stats.sessions == 1 && stats.regions == 0 && stats.mapped_bytes == 0 &&
           stats.queued + stats.running == 0 && stats.leases == 0 &&
           raw_worker_num_mappings(worker, "topkd-held") == 0 &&
           raw_worker_num_fds(worker) <= num_fds && raw_shm_num_objects(buffers) == 0 &&
           raw_shm_num_objects(worker->shm_prefix + 1) == num_shared;
}

static void it_70_a_client_dies_at_any_stage(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client other;
    raw_worker_start(&worker, "", NULL);
    raw_open(&other, &worker);
    raw_expect_selects(&other);
    raw_sleep_ms(50);
    uint32_t num_fds = raw_worker_num_fds(&worker);
    uint32_t num_shared = raw_shm_num_objects(worker.shm_prefix + 1);
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        int hold_fd;
        pid_t pid = client_start((enum stage)stage, &worker, &hold_fd);
        char buffers[64];
        (void)snprintf(buffers, sizeof(buffers), "topkd-held-raw%d-", (int)pid);
        if (stage >= STAGE_REGIONS) {
            assert_int_equal(raw_shm_num_objects(buffers), 3);
            assert_int_equal(stats_of(&other).regions, 3);
            assert_true(raw_worker_num_mappings(&worker, "topkd-held") > 0);
        }
        if (stage == STAGE_WAITING)
            await_queued(&other, 8);
        if (stage == STAGE_LEASES)
            assert_int_equal(stats_of(&other).leases, 3);
        assert_int_equal(kill(pid, SIGKILL), 0);
        uint64_t start_ms = raw_now_ms();
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        while (!is_all_gone(&worker, &other, buffers, num_fds, num_shared)) {
            if (raw_now_ms() - start_ms > RAW_TIMEOUT_MS)
                fail_msg("stage %s: not all is back after %d ms", stage_names[stage],
                         RAW_TIMEOUT_MS);
            raw_sleep_ms(5);
        }
        close(hold_fd);
        print_message("killed at stage %s: all back after %d ms\n", stage_names[stage],
                      (int)(raw_now_ms() - start_ms));
        raw_expect_selects(&other);
    }
    raw_disconnect(&other);
    raw_worker_stop(&worker);
}

/* It only closed its connection: its buffers are its own and stay. */
static void it_71_a_living_client_keeps_its_buffers(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client, other;
    struct raw_shm shm[3];
    raw_worker_start(&worker, "", NULL);
    raw_open(&other, &worker);
    raw_open(&client, &worker);
    client_regions(&client, shm);
    raw_disconnect(&client);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (stats_of(&other).regions > 0)
        assert_true(raw_now_ms() < end_ms);
    raw_sleep_ms(100);
    char buffers[64];
    (void)snprintf(buffers, sizeof(buffers), "topkd-held-raw%d-", (int)getpid());
    assert_int_equal(raw_shm_num_objects(buffers), 3);
    for (int i = 0; i < 3; i++)
        raw_shm_destroy(&shm[i]);
    raw_disconnect(&other);
    raw_worker_stop(&worker);
}

/* Other names than libtopkd's are never unlinked, whatever a client asks. */
static void it_72_foreign_names_are_never_unlinked(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client other;
    raw_worker_start(&worker, "", NULL);
    raw_open(&other, &worker);
    struct raw_shm shm;
    raw_shm_create(&shm, 4096);
    char from[128], to[128], name[64];
    (void)snprintf(name, sizeof(name), "/topkd-raw-foreign-%d", (int)getpid());
    (void)snprintf(from, sizeof(from), "/dev/shm%s", shm.name);
    (void)snprintf(to, sizeof(to), "/dev/shm%s", name);
    assert_int_equal(rename(from, to), 0);
    pid_t pid = fork();
    if (pid == 0) { /* speaks bytes, since NNG does not survive fork */
        static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
        static struct wire_buffer buffer;
        size_t size = 0;
        int fd = raw_stream_connect(&worker);
        raw_stream_handshake(fd);
        struct wire_request request = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
        for (uint32_t i = 1; i <= 2; i++) {
            (void)wire_request_encode(&request, bytes, sizeof(bytes), &size, NULL);
            if (!raw_stream_send(fd, i, bytes, size) ||
                !raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size) ||
                wire_reply_decode(bytes, size, &buffer, &reply, NULL) != TOPKD_OK)
                _exit(91);
            struct raw_client self = {.session = reply.session, .epoch = reply.epoch};
            struct raw_shm foreign = shm;
            (void)snprintf(foreign.name, sizeof(foreign.name), "%s", name);
            request = raw_register_request(&self, &foreign, WIRE_ACCESS_READ);
            request.u.reg.unlink_when_dead = true;
        }
        _exit(reply.status == TOPKD_OK ? 0 : 92);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (stats_of(&other).sessions > 1)
        assert_true(raw_now_ms() < end_ms);
    raw_sleep_ms(100);
    assert_int_equal(access(to, F_OK), 0);
    (void)unlink(to);
    raw_disconnect(&other);
    raw_worker_stop(&worker);
}

/* ---- Workers fault --------------------------------------------------------------------------- */

/* *answer_p is what became of a request that was waiting meanwhile, CLOSED without an answer. */
static int run_fault(const char *fault, bool is_answered, enum topkd_status *answer_p)
{
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    struct raw_pending waiting, last;
    raw_worker_start(&worker, "", fault);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 65536);
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    struct wire_request request = raw_select_request(&client, &shm, &shm, 1, 100, 4);
    request.u.select.indices.offset = 32768;
    request.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    raw_start(&client, &request, &waiting);
    request = raw_select_request(&client, &shm, &shm, 1, 100, 4);
    request.u.select.indices.offset = 32768;
    raw_start(&client, &request, &last); /* the second: the fault */
    *answer_p = TOPKD_E_CLOSED;
    if (raw_finish(&waiting, is_answered ? RAW_TIMEOUT_MS : 1000, &reply))
        *answer_p = reply.status;
    (void)raw_finish(&last, 100, &reply);
    int status = raw_worker_wait(&worker);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    return status;
}

/* What the supervisor has to deal with; that it does is a test of the supervisor. */
static void it_73_a_worker_that_faults_ends(void **state)
{
    (void)state;
    enum topkd_status answer;
    int status = run_fault("abort@2", false, &answer);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_int_equal(answer, TOPKD_E_CLOSED); /* nobody can answer; the connection is gone */
    status = run_fault("segv@2", false, &answer);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    /* A device that fails leaves time for answers. */
    status = run_fault("device@2", true, &answer);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 70);
    assert_int_equal(answer, TOPKD_E_DEVICE_FAULT);
}

static void start_waiting(struct raw_client *client, struct raw_shm *shm, uint32_t timeout_ms,
                          struct raw_pending *pending)
{
    struct wire_request request = raw_select_request(client, shm, shm, 1, 100, 4);
    request.u.select.indices.offset = 32768;
    request.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    request.u.select.timeout_ms = timeout_ms;
    raw_start(client, &request, pending);
}

/* A device that swallows a request: others go on, and when it does not end though its deadline has
 * passed, the worker gives up, with answers for what is in flight. Meanwhile, in another worker, a
 * request is cancelled behind one that waits for long and in order: that is nobody's fault. */
static void it_77_a_request_that_never_ends(void **state)
{
    (void)state;
    struct raw_worker faulty, patient;
    struct raw_client client, other, waiter;
    struct raw_shm shm;
    struct raw_pending lost, pending, first, second;
    raw_worker_start(&patient, "", NULL);
    raw_open(&waiter, &patient);
    raw_worker_start(&faulty, "", "lose@1");
    raw_open(&client, &faulty);
    raw_open(&other, &faulty);
    raw_shm_create(&shm, 65536);

    raw_register(&waiter, &shm, WIRE_ACCESS_READ_WRITE);
    start_waiting(&waiter, &shm, 60000, &first);
    start_waiting(&waiter, &shm, 100, &second);
    assert_true(raw_finish(&second, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_E_TIMEOUT);

    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    start_waiting(&client, &shm, 100, &lost);
    raw_expect_selects(&other);
    raw_register(&other, &shm, WIRE_ACCESS_READ_WRITE);
    start_waiting(&other, &shm, 60000, &pending);
    assert_true(raw_finish(&lost, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_E_DEVICE_FAULT);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_E_DEVICE_FAULT);
    int status = raw_worker_wait(&faulty);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 70);

    raw_signal(&waiter, 0, 1);
    assert_true(raw_finish(&first, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_disconnect(&other);
    raw_disconnect(&waiter);
    raw_worker_stop(&patient);
}

static bool next_heartbeat(const struct raw_worker *worker, int timeout_ms,
                           struct control_heartbeat *heartbeat_p)
{
    uint64_t end_ms = raw_now_ms() + (uint64_t)timeout_ms;
    while (raw_now_ms() < end_ms) {
        struct control_message message;
        int fd;
        struct pollfd poll_fd = {.fd = worker->control_fd, .events = POLLIN};
        (void)poll(&poll_fd, 1, 20);
        if (control_receive(worker->control_fd, &message, &fd) == 1 &&
            message.kind == CONTROL_HEARTBEAT) {
            *heartbeat_p = message.u.heartbeat;
            return true;
        }
    }
    return false;
}

static void need_heartbeat(const struct raw_worker *worker, uint64_t end_ms,
                           struct control_heartbeat *heartbeat_p)
{
    assert_true(raw_now_ms() < end_ms);
    assert_true(next_heartbeat(worker, RAW_TIMEOUT_MS, heartbeat_p));
}

/* CASES 32: a loop that hangs falls silent, though the process lives. */
static void it_74_a_hanging_loop_is_silent(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct control_heartbeat heartbeat;
    raw_worker_start(&worker, "worker: {heartbeat_ms: 20}", "hang@1");
    raw_open(&client, &worker);
    assert_true(next_heartbeat(&worker, RAW_TIMEOUT_MS, &heartbeat));
    assert_int_equal(heartbeat.state, WIRE_DEVICE_READY);
    assert_int_equal(heartbeat.canary_ok, 1);
    struct raw_pending pending;
    struct wire_request request = raw_request(&client, WIRE_SELECT);
    raw_start(&client, &request, &pending);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (next_heartbeat(&worker, 300, &heartbeat)) /* those before it took the request in */
        assert_true(raw_now_ms() < end_ms);
    assert_int_equal(kill(worker.pid, 0), 0);
    assert_int_equal(kill(worker.pid, SIGKILL), 0);
    (void)raw_finish(&pending, 1000, &reply);
    (void)raw_worker_wait(&worker);
    raw_disconnect(&client);
}

/* A canary that never ends: the loop lives, the heartbeat says how old the last one is. */
static void it_75_a_stalled_canary_grows_old(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct control_heartbeat heartbeat = {.state = 0};
    raw_worker_start(&worker, "worker: {heartbeat_ms: 20, canary_interval_ms: 100}", "stall@2");
    raw_open(&client, &worker);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (heartbeat.canary_age_ms < 500)
        need_heartbeat(&worker, end_ms, &heartbeat);
    raw_expect_selects(&client);
    assert_int_equal(kill(worker.pid, SIGKILL), 0);
    (void)raw_worker_wait(&worker);
    raw_disconnect(&client);
}

/* A wrong canary is said at once and for good: no more work is taken, and no later one helps. */
static void it_76_a_wrong_canary_ends_the_service(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct control_heartbeat heartbeat = {.canary_ok = 1};
    raw_worker_start(&worker, "worker: {heartbeat_ms: 20, canary_interval_ms: 100}", "canary@2");
    raw_open(&client, &worker);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (heartbeat.canary_ok || heartbeat.canary_age_ms < 500)
        need_heartbeat(&worker, end_ms, &heartbeat);
    struct wire_request request = raw_request(&client, WIRE_SELECT);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_DEVICE_FAULT);
    assert_int_equal(kill(worker.pid, SIGKILL), 0);
    (void)raw_worker_wait(&worker);
    raw_disconnect(&client);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--client") == 0)
        return client_run(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_70_a_client_dies_at_any_stage),
        cmocka_unit_test(it_71_a_living_client_keeps_its_buffers),
        cmocka_unit_test(it_72_foreign_names_are_never_unlinked),
        cmocka_unit_test(it_73_a_worker_that_faults_ends),
        cmocka_unit_test(it_74_a_hanging_loop_is_silent),
        cmocka_unit_test(it_75_a_stalled_canary_grows_old),
        cmocka_unit_test(it_76_a_wrong_canary_ends_the_service),
        cmocka_unit_test(it_77_a_request_that_never_ends),
    };
    return cmocka_run_group_tests_name("deaths", tests, NULL, NULL);
}
