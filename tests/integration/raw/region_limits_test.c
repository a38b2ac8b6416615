/* Regions: what cannot be registered, limits, selections that reach outside. */
#include "raw.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct wire_reply reply;

static void set_name(struct wire_request *request, const char *name)
{
    struct wire_memory *memory = &request->u.reg.memory;
    memory->handle_bytes = (uint32_t)strlen(name);
    memcpy(memory->handle, name, strlen(name));
}

static void it_30_what_cannot_be_registered(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    raw_worker_start(&worker, "limits: {registrations_per_s: 1000000}", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 10000);

    static const struct {
        uint64_t offset, length;
        enum topkd_status status;
    } ranges[] = {
        {0, 10000, TOPKD_OK},
        {9999, 1, TOPKD_OK},
        {0, 0, TOPKD_E_INVALID},
        {0, 10001, TOPKD_E_OUT_OF_RANGE},
        {10000, 1, TOPKD_E_OUT_OF_RANGE},
        {UINT64_MAX, 1, TOPKD_E_OUT_OF_RANGE},
        {UINT64_MAX - 5, 10, TOPKD_E_OUT_OF_RANGE},
        {1, UINT64_C(60) << 30, TOPKD_E_OUT_OF_RANGE},
        {1, UINT64_MAX, TOPKD_E_LIMIT}, /* beyond what a session may have at all */
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        struct wire_request request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
        request.u.reg.offset = ranges[i].offset;
        request.u.reg.length = ranges[i].length;
        enum topkd_status status = raw_call(&client, &request, &reply);
        if (status != ranges[i].status)
            fail_msg("range %zu: %s: %s", i, wire_status_name(status), reply.detail);
    }
    struct wire_request request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    struct stat info;
    char path[128];
    (void)snprintf(path, sizeof(path), "/dev/shm%s", shm.name);
    assert_int_equal(stat(path, &info), 0);
    request.u.reg.buffer_id = info.st_ino;
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    request.u.reg.buffer_id = info.st_ino + 1; /* the client means another object */
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_MAP_FAILED);
    request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    request.u.reg.memory.allocation_bytes = 20000;
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_OUT_OF_RANGE);

    static const struct {
        const char *name;
        enum topkd_status status;
    } names[] = {
        {"/topkd-no-such-object", TOPKD_E_MAP_FAILED},
        {"no-slash", TOPKD_E_INVALID},
        {"/two/slashes", TOPKD_E_INVALID},
        {"/..", TOPKD_E_INVALID},
        {"/.", TOPKD_E_INVALID},
        {"/", TOPKD_E_INVALID},
        {"", TOPKD_E_INVALID},
        {"/../../etc/passwd", TOPKD_E_INVALID},
        {"/caf\xc3\xa9", TOPKD_E_INVALID}, /* printable ASCII only */
        {"/a\nb", TOPKD_E_INVALID},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
        set_name(&request, names[i].name);
        enum topkd_status status = raw_call(&client, &request, &reply);
        if (status != names[i].status)
            fail_msg("name %s: %s: %s", names[i].name, wire_status_name(status), reply.detail);
    }
    request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    request.u.reg.memory.handle[3] = '\0'; /* a name that ends early */
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_INVALID);

    request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    (void)snprintf(request.u.reg.device, WIRE_UUID_SIZE, "GPU-1234");
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_NOT_VISIBLE);
    request = raw_register_request(&client, &shm, WIRE_ACCESS_READ);
    request.u.reg.memory.kind = WIRE_MEMORY_CUDA_IPC;
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_UNSUPPORTED);
    raw_expect_selects(&client);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* Names in /dev/shm that are no shared memory: refused at once, whoever holds their other end. */
static void it_31_fifos_links_and_folders_are_refused(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 4096);
    char path[128], target[128];
    static const char *const kinds[] = {"fifo", "link", "folder"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "/dev/shm/topkd-raw-%s-%d", kinds[i], (int)getpid());
        (void)snprintf(target, sizeof(target), "/dev/shm%s", shm.name);
        int made = i == 0 ? mkfifo(path, 0600) : i == 1 ? symlink(target, path) : mkdir(path, 0700);
        assert_int_equal(made, 0);
        for (enum wire_access access = WIRE_ACCESS_READ; access <= WIRE_ACCESS_READ_WRITE;
             access += 2) {
            struct wire_request request = raw_register_request(&client, &shm, access);
            set_name(&request, path + strlen("/dev/shm"));
            uint64_t start_ms = raw_now_ms();
            enum topkd_status status = raw_call(&client, &request, &reply);
            assert_true(status == TOPKD_E_INVALID || status == TOPKD_E_MAP_FAILED);
            assert_true(raw_now_ms() - start_ms < 10000);
        }
        assert_int_equal(remove(path), 0);
    }
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* A client of another user, speaking bytes (see session_test): exit code is the status. */
static int register_as(const struct raw_worker *worker, uid_t uid, const char *name)
{
    pid_t pid = fork();
    if (pid == 0) {
        static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
        static struct wire_buffer buffer;
        size_t size = 0;
        int fd;
        if (setgid(uid) != 0 || setuid(uid) != 0 || (fd = raw_stream_connect(worker)) < 0)
            _exit(90);
        raw_stream_handshake(fd);
        struct wire_request request = {.kind = WIRE_HELLO, .u.hello.version = WIRE_VERSION};
        for (uint32_t i = 1; i <= 2; i++) {
            if (wire_request_encode(&request, bytes, sizeof(bytes), &size, NULL) != TOPKD_OK ||
                !raw_stream_send(fd, i, bytes, size) ||
                !raw_stream_receive(fd, RAW_TIMEOUT_MS, bytes, &size) ||
                wire_reply_decode(bytes, size, &buffer, &reply, NULL) != TOPKD_OK)
                _exit(91);
            if (i == 2)
                break;
            request = (struct wire_request){.kind = WIRE_REGISTER,
                                            .session = reply.session,
                                            .sequence = 1,
                                            .epoch = reply.epoch};
            request.u.reg = (struct wire_register_request){
                .memory.kind = WIRE_MEMORY_SHM, .length = 4096, .access = WIRE_ACCESS_READ};
            set_name(&request, name);
        }
        _exit((int)reply.status);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void it_32_memory_of_other_users(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("needs root to become other users: not run\n");
        skip();
    }
    struct raw_worker worker;
    struct raw_shm shm;
    raw_worker_start(&worker, "socket: {mode: 0666}", NULL);
    assert_int_equal(chmod(worker.directory, 0755), 0);
    raw_shm_create(&shm, 4096);
    char path[128];
    (void)snprintf(path, sizeof(path), "/dev/shm%s", shm.name);
    assert_int_equal(chown(path, 4242, 4242), 0);
    assert_int_equal(chmod(path, 0666), 0); /* readable by all, and still not theirs */
    assert_int_equal(register_as(&worker, 4242, shm.name), TOPKD_OK);
    assert_int_equal(register_as(&worker, 4243, shm.name), TOPKD_E_NOT_PERMITTED);
    raw_shm_destroy(&shm);
    raw_worker_stop(&worker);
}

static void it_33_limits_of_regions(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    struct raw_shm shm;
    raw_worker_start(&worker,
                     "limits: {regions_max: 5, region_bytes_max: 64KiB, region_bytes_total: 96KiB, "
                     "registrations_per_s: 1000000}",
                     NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_shm_create(&shm, 40960);
    uint32_t num_ok = 0;
    struct wire_register_reply first = {.region = 0};
    for (int i = 0; i < 100; i++) {
        struct wire_request request = raw_register_request(&a, &shm, WIRE_ACCESS_READ);
        request.u.reg.length = 4096;
        enum topkd_status status = raw_call(&a, &request, &reply);
        assert_int_equal(status, i < 5 ? TOPKD_OK : TOPKD_E_LIMIT);
        num_ok += status == TOPKD_OK;
        if (i == 0)
            first = reply.u.reg;
    }
    assert_int_equal(num_ok, 5);
    assert_non_null(strstr(reply.detail, "regions_max"));
    struct wire_request request = raw_request(&a, WIRE_UNREGISTER);
    request.u.unreg =
        (struct wire_unregister_request){.region = first.region, .generation = first.generation};
    assert_int_equal(raw_call(&a, &request, &reply), TOPKD_OK);

    /* Bytes of the session: 4 * 4096 are taken; up to the limit, and one more. */
    struct raw_shm big;
    raw_shm_create(&big, 65536);
    request = raw_register_request(&a, &big, WIRE_ACCESS_READ);
    request.u.reg.length = 65536 - 4 * 4096 + 1;
    assert_int_equal(raw_call(&a, &request, &reply), TOPKD_E_LIMIT);
    assert_non_null(strstr(reply.detail, "region_bytes_max"));
    /* Bytes of the worker: the object of 40960 is mapped, 65536 more are too many. */
    request.sequence = ++a.sequence;
    request.u.reg.length = 100;
    assert_int_equal(raw_call(&a, &request, &reply), TOPKD_E_LIMIT);
    assert_non_null(strstr(reply.detail, "region_bytes_total"));
    /* The same object again costs the worker nothing. */
    raw_register(&b, &shm, WIRE_ACCESS_READ);
    raw_shm_destroy(&big);
    raw_shm_destroy(&shm);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

static void it_34_rate_of_registrations(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    struct raw_shm shm;
    raw_worker_start(&worker, "limits: {registrations_per_s: 10}", NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_shm_create(&shm, 4096);
    uint32_t num_ok = 0, num_busy = 0;
    uint64_t start_ms = raw_now_ms();
    while (num_busy < 30) {
        struct wire_request request = raw_register_request(&a, &shm, WIRE_ACCESS_READ);
        enum topkd_status status = raw_call(&a, &request, &reply);
        assert_true(status == TOPKD_OK || status == TOPKD_E_BUSY);
        assert_true(raw_now_ms() - start_ms < RAW_TIMEOUT_MS); /* it need not be refused yet */
        num_ok += status == TOPKD_OK;
        num_busy += status == TOPKD_E_BUSY;
    }
    /* A second's worth at once, then one each tenth of a second. */
    assert_in_range(num_ok, 10, 11 + (raw_now_ms() - start_ms) / 100);
    raw_register(&b, &shm, WIRE_ACCESS_READ); /* each session has its own rate */
    raw_shm_destroy(&shm);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

/* CASES 28 through the wire; the arithmetic itself is geometry_exact_test's. */
static void it_38_geometry_is_checked(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm in, out;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&in, 8192);
    raw_shm_create(&out, 8192);
    raw_register(&client, &in, WIRE_ACCESS_READ);
    raw_register(&client, &out, WIRE_ACCESS_READ_WRITE);
    struct raw_shm alias = in; /* the same memory under a second id, writable */
    raw_register(&client, &alias, WIRE_ACCESS_READ_WRITE);

    struct wire_request good = raw_select_request(&client, &in, &out, 4, 512, 16);
    assert_int_equal(raw_call(&client, &good, &reply), TOPKD_OK);
    struct {
        enum topkd_status status;
        struct wire_request request;
    } cases[8];
    for (int i = 0; i < 8; i++)
        cases[i].request = good;
    cases[0].status = TOPKD_E_OUT_OF_RANGE;
    cases[0].request.u.select.rows = 5;
    cases[1].status = TOPKD_E_OUT_OF_RANGE;
    cases[1].request.u.select.row_stride = INT64_MAX / 2;
    cases[2].status = TOPKD_E_READ_ONLY;
    cases[2].request.u.select.indices = raw_ref(&in, 0);
    cases[3].status = TOPKD_E_OVERLAP;
    cases[3].request.u.select.indices = raw_ref(&alias, 0);
    cases[4].status = TOPKD_E_OUT_OF_RANGE;
    cases[4].request.u.select.indices.offset = 8192 - 4 * 16 * 4 + 4;
    cases[5].status = TOPKD_E_INVALID;
    cases[5].request.u.select.k = 0;
    cases[6].status = TOPKD_E_INVALID;
    cases[6].request.u.select.timeout_ms = 600001;
    cases[7].status = TOPKD_E_INVALID;
    cases[7].request.u.select.scores.region = 0;
    for (int i = 0; i < 8; i++) {
        cases[i].request.sequence = ++client.sequence;
        enum topkd_status status = raw_call(&client, &cases[i].request, &reply);
        if (status != cases[i].status)
            fail_msg("case %d: %s: %s", i, wire_status_name(status), reply.detail);
    }
    raw_expect_selects(&client);
    raw_shm_destroy(&in);
    raw_shm_destroy(&out);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_30_what_cannot_be_registered),
        cmocka_unit_test(it_31_fifos_links_and_folders_are_refused),
        cmocka_unit_test(it_32_memory_of_other_users),
        cmocka_unit_test(it_33_limits_of_regions),
        cmocka_unit_test(it_34_rate_of_registrations),
        cmocka_unit_test(it_38_geometry_is_checked),
    };
    return cmocka_run_group_tests_name("what cannot be registered", tests, NULL, NULL);
}
