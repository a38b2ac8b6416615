/* Limits at, one beyond and far beyond, where other tests do not have them: bytes, connections,
 * descriptors; and what a client that floods or never reads does to the latency of another. */
#include "inputs.h"
#include "raw.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

/* ---- Bytes ----------------------------------------------------------------------------------- */

static enum topkd_status register_bytes(struct raw_client *client, const struct raw_shm *shm,
                                        uint64_t length)
{
    struct wire_request request = raw_register_request(client, shm, WIRE_ACCESS_READ);
    request.u.reg.length = length;
    return raw_call(client, &request, &reply);
}

static void it_80_mapped_bytes(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    struct raw_shm first, second, third;
    raw_worker_start(&worker,
                     "limits: {region_bytes_max: 64KiB, region_bytes_total: 96KiB, "
                     "registrations_per_s: 1000000}",
                     NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_shm_create(&first, 65536);
    raw_shm_create(&second, 32768);
    raw_shm_create(&third, 4096);
    /* Of a session: to the byte. */
    assert_int_equal(register_bytes(&a, &first, 65535), TOPKD_OK);
    assert_int_equal(register_bytes(&a, &first, 1), TOPKD_OK);
    assert_int_equal(register_bytes(&a, &first, 1), TOPKD_E_LIMIT);
    assert_non_null(strstr(reply.detail, "region_bytes_max"));
    for (int i = 0; i < 50; i++)
        assert_int_equal(register_bytes(&a, &first, 65536), TOPKD_E_LIMIT);
    /* Of the worker: objects are mapped once and whole. 64 KiB and 32 KiB fill it. */
    assert_int_equal(register_bytes(&b, &second, 32768), TOPKD_OK);
    assert_int_equal(register_bytes(&b, &third, 1), TOPKD_E_LIMIT);
    assert_non_null(strstr(reply.detail, "region_bytes_total"));
    for (int i = 0; i < 50; i++)
        assert_int_equal(register_bytes(&b, &third, 4096), TOPKD_E_LIMIT);
    raw_shm_destroy(&first);
    raw_shm_destroy(&second);
    raw_shm_destroy(&third);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

/* ---- Connections ----------------------------------------------------------------------------- */

/* Whether the worker greets on a new connection; *fd_p is to be closed. */
static bool is_greeted(const struct raw_worker *worker, int *fd_p)
{
    uint8_t greeting[8];
    *fd_p = raw_stream_connect(worker);
    assert_true(*fd_p >= 0);
    struct pollfd wait = {.fd = *fd_p, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, RAW_TIMEOUT_MS), 1);
    return recv(*fd_p, greeting, sizeof(greeting), 0) == (ssize_t)sizeof(greeting);
}

static void it_81_connections(void **state)
{
    (void)state;
    enum { MAX = 8 };
    struct raw_worker worker;
    struct raw_client client;
    int fds[MAX], fd;
    raw_worker_start(&worker, "limits: {connections_max: 8, hello_ms: 600000}", NULL);
    raw_open(&client, &worker);
    for (int i = 0; i < MAX - 1; i++)
        assert_true(is_greeted(&worker, &fds[i]));
    for (int i = 0; i < 60; i++) {
        assert_false(is_greeted(&worker, &fd));
        close(fd);
    }
    raw_expect_selects(&client);
    close(fds[0]);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (!is_greeted(&worker, &fds[0])) {
        assert_true(raw_now_ms() < end_ms);
        close(fds[0]);
    }
    for (int i = 0; i < MAX - 1; i++)
        close(fds[i]);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

static uint64_t cpu_ms_of(pid_t pid)
{
    clockid_t clock;
    struct timespec used;
    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &used), 0);
    return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

/* The process has no descriptor left: who is there goes on, who comes waits, the worker does not
 * spin, and when there are descriptors again those who waited are served. */
static void it_82_descriptors_run_out(void **state)
{
    (void)state;
    enum { WAITING = 20 };
    struct raw_worker worker;
    struct raw_client client, late;
    int fds[WAITING];
    raw_worker_start(&worker, "worker: {canary_interval_ms: 60000}", NULL);
    raw_open(&client, &worker);
    raw_expect_selects(&client);
    struct rlimit before, few;
    assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, NULL, &before), 0);
    few = (struct rlimit){.rlim_cur = raw_worker_num_fds(&worker), .rlim_max = before.rlim_max};
    assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (int i = 0; i < WAITING; i++)
        fds[i] = raw_stream_connect(&worker);
    uint64_t used_ms = cpu_ms_of(worker.pid);
    raw_sleep_ms(1000);
    assert_true(cpu_ms_of(worker.pid) - used_ms < 300);
    struct wire_request request = raw_request(&client, WIRE_STATS);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    struct raw_shm shm; /* mapping it needs a descriptor */
    raw_shm_create(&shm, 4096);
    request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    /* It passes: a status that libtopkd takes for a reason to try again. */
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_NO_MEMORY);
    assert_int_equal(prlimit(worker.pid, RLIMIT_NOFILE, &before, NULL), 0);
    raw_open(&late, &worker);
    raw_expect_selects(&late);
    raw_expect_selects(&client);
    for (int i = 0; i < WAITING; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    raw_shm_destroy(&shm);
    raw_disconnect(&late);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* ---- Latency of another ---------------------------------------------------------------------- */

/* HARM: beside one that floods a call takes two to three times as long, for they take turns; with
 * the other's 32 requests before each of ours it would be some thirty times. */
enum { CALLS = 150, ATTEMPTS = 16, HARM = 6, ROWS = 16, WIDTH = 16384, K = 64 };

static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
static struct wire_buffer buffer;

static size_t encode(const struct wire_request *request)
{
    size_t size = 0;
    (void)wire_request_encode(request, bytes, sizeof(bytes), &size, NULL);
    return size;
}

/* A session on a bare connection; its numbers are in `reply`. */
static int open_stream(const struct raw_worker *worker)
{
    const struct wire_request hello = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
    size_t size;
    int fd = raw_stream_connect(worker);
    if (fd < 0)
        return -1;
    raw_stream_handshake(fd);
    if (raw_stream_send(fd, 1, bytes, encode(&hello)) &&
        raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size) &&
        wire_reply_decode(bytes, size, &buffer, &reply, NULL) == TOPKD_OK &&
        reply.status == TOPKD_OK)
        return fd;
    close(fd);
    return -1;
}

/* Sends what costs the worker most to answer, and takes no answer; comes again when sent away. */
static _Noreturn void never_read(const struct raw_worker *worker)
{
    for (;;) {
        int fd = open_stream(worker);
        if (fd >= 0) {
            const struct wire_request stats = {.kind = WIRE_STATS};
            size_t size = encode(&stats);
            uint32_t id = 2;
            while (raw_stream_send(fd, id++, bytes, size))
                continue;
            close(fd);
        }
        raw_sleep_ms(1);
    }
}

/* As many selections at once as it may, one after the other without end; `shm` is its memory. */
static _Noreturn void flood(const struct raw_worker *worker, struct raw_shm *shm)
{
    struct raw_client self = {.session = 0};
    size_t size;
    int fd = open_stream(worker);
    if (fd < 0)
        _exit(1);
    self.session = reply.session;
    self.epoch = reply.epoch;
    struct wire_request request = raw_register_request(&self, shm, WIRE_ACCESS_READ_WRITE);
    if (!raw_stream_send(fd, 2, bytes, encode(&request)) ||
        !raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size) ||
        wire_reply_decode(bytes, size, &buffer, &reply, NULL) != TOPKD_OK ||
        reply.status != TOPKD_OK)
        _exit(2);
    shm->region = reply.u.reg.region;
    shm->generation = reply.u.reg.generation;
    for (uint32_t id = 3;; id++) {
        request = raw_select_request(&self, shm, shm, ROWS, WIDTH, K);
        request.u.select.indices.offset = sizeof(float) * ROWS * WIDTH;
        if (!raw_stream_send(fd, id, bytes, encode(&request)))
            _exit(3);
        if (id >= 3 + 32 && !raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size))
            _exit(4);
    }
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Median of the calls of a well-behaved client. */
static uint64_t median_us(struct raw_client *client, const struct raw_shm *shm)
{
    static uint64_t took_us[CALLS];
    for (int i = 0; i < CALLS; i++) {
        struct wire_request request = raw_select_request(client, shm, shm, ROWS, WIDTH, K);
        request.u.select.indices.offset = sizeof(float) * ROWS * WIDTH;
        uint64_t begin_us = now_us();
        assert_int_equal(raw_call(client, &request, &reply), TOPKD_OK);
        took_us[i] = now_us() - begin_us;
    }
    qsort(took_us, CALLS, sizeof(took_us[0]), compare_u64);
    return took_us[CALLS / 2];
}

/* Alone and beside the other in turn: the least median beside it must be below HARM times the most
 * alone. In turns, and so compared, because what else runs on this machine must not be taken for
 * the other's doing. */
static void expect_no_harm(const char *yaml, bool reads)
{
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm, others;
    raw_worker_start(&worker, yaml, NULL);
    raw_shm_create(&shm, sizeof(float) * ROWS * WIDTH + 65536);
    raw_shm_create(&others, sizeof(float) * ROWS * WIDTH + 65536);
    struct inputs_spec inputs = {.family = INPUTS_NORMAL,
                                 .seed = inputs_run_seed(),
                                 .num_rows = ROWS,
                                 .width = WIDTH,
                                 .row_stride = WIDTH,
                                 .k = K};
    inputs_fill(&inputs, (float *)shm.data);
    inputs_fill(&inputs, (float *)others.data);
    pid_t pid = fork(); /* before NNG's threads */
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)raise(SIGSTOP);
        if (reads)
            flood(&worker, &others);
        never_read(&worker);
    }
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    raw_open(&client, &worker);
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    (void)median_us(&client, &shm); /* warm */
    uint64_t most_alone_us = 0, least_beside_us = UINT64_MAX;
    for (int i = 0; i < ATTEMPTS && (i < 3 || least_beside_us >= HARM * most_alone_us); i++) {
        uint64_t alone_us = median_us(&client, &shm);
        assert_int_equal(kill(pid, SIGCONT), 0);
        raw_sleep_ms(50);
        uint64_t beside_us = median_us(&client, &shm);
        assert_int_equal(kill(pid, SIGSTOP), 0);
        raw_sleep_ms(50); /* what it had sent is done */
        print_message("median alone %d us, beside %s %d us\n", (int)alone_us,
                      reads ? "a flood" : "one that never reads", (int)beside_us);
        most_alone_us = alone_us > most_alone_us ? alone_us : most_alone_us;
        least_beside_us = beside_us < least_beside_us ? beside_us : least_beside_us;
    }
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* it was at work all the time */
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(least_beside_us < HARM * most_alone_us);
    raw_shm_destroy(&shm);
    raw_shm_destroy(&others);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

static void it_83_a_client_that_never_reads_slows_nobody(void **state)
{
    (void)state;
    expect_no_harm("", false);
}

static void it_84_a_client_that_floods_slows_nobody(void **state)
{
    (void)state;
    expect_no_harm("limits: {lanes: 1}", true); /* one runs at a time */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_83_a_client_that_never_reads_slows_nobody), /* first: they fork */
        cmocka_unit_test(it_84_a_client_that_floods_slows_nobody),
        cmocka_unit_test(it_80_mapped_bytes),
        cmocka_unit_test(it_81_connections),
        cmocka_unit_test(it_82_descriptors_run_out),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
