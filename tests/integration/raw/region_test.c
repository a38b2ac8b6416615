/* Regions: what is refused, limits, sharing of mappings, recycled names, memory that vanishes. */
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

static enum topkd_status unregister(struct raw_client *client, const struct raw_shm *shm)
{
    struct wire_request request = raw_request(client, WIRE_UNREGISTER);
    request.u.unreg =
        (struct wire_unregister_request){.region = shm->region, .generation = shm->generation};
    return raw_call(client, &request, &reply);
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
    shm.region = first.region;
    shm.generation = first.generation;
    assert_int_equal(unregister(&a, &shm), TOPKD_OK);

    /* Bytes of the session: 4 * 4096 are taken; up to the limit, and one more. */
    struct wire_request request = raw_register_request(&a, &shm, WIRE_ACCESS_READ);
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

/* CASES 27: another session's id, twice, and while work is in flight. */
static void it_35_unregister(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    struct raw_shm shm, other;
    struct raw_pending pending;
    raw_worker_start(&worker, "", NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_shm_create(&shm, 8192);
    raw_shm_create(&other, 8192);
    raw_register(&a, &shm, WIRE_ACCESS_READ_WRITE);
    raw_register(&b, &other, WIRE_ACCESS_READ_WRITE);
    assert_int_equal(unregister(&b, &shm), TOPKD_E_NO_REGION);
    struct wire_request select = raw_select_request(&b, &shm, &other, 1, 8, 2);
    assert_int_equal(raw_call(&b, &select, &reply), TOPKD_E_NO_REGION);
    select = raw_select_request(&b, &other, &shm, 1, 8, 2);
    assert_int_equal(raw_call(&b, &select, &reply), TOPKD_E_NO_REGION);
    struct raw_shm guess = other;
    guess.generation--;
    assert_int_equal(unregister(&b, &guess), TOPKD_E_NO_REGION);
    guess.region = 12345;
    assert_int_equal(unregister(&b, &guess), TOPKD_E_NO_REGION);

    select = raw_select_request(&a, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    select.u.select.wait = (struct wire_semaphore_ref){.index = 0, .value = 1};
    raw_start(&a, &select, &pending);
    raw_sleep_ms(20);
    assert_int_equal(unregister(&a, &shm), TOPKD_OK);
    assert_true(reply.u.unreg.draining);
    assert_int_equal(unregister(&a, &shm), TOPKD_OK); /* asked again: still */
    assert_true(reply.u.unreg.draining);
    struct wire_request late = raw_select_request(&a, &shm, &shm, 1, 8, 2);
    assert_int_equal(raw_call(&a, &late, &reply), TOPKD_E_NO_REGION);
    raw_signal(&a, 0, 1);
    assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
    assert_int_equal(reply.status, TOPKD_OK); /* it ran on the memory it was given */
    assert_int_equal(unregister(&a, &shm), TOPKD_E_NO_REGION);

    raw_register(&a, &shm, WIRE_ACCESS_READ_WRITE);
    assert_int_equal(unregister(&a, &shm), TOPKD_OK);
    assert_false(reply.u.unreg.draining);
    assert_int_equal(unregister(&a, &shm), TOPKD_E_NO_REGION);
    raw_shm_destroy(&shm);
    raw_shm_destroy(&other);
    raw_disconnect(&a);
    raw_disconnect(&b);
    raw_worker_stop(&worker);
}

/* CASES 23: the same object twice is one mapping; a read-only one is mapped read-only. */
static void it_36_mappings_are_shared(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client a, b;
    struct raw_shm shm;
    raw_worker_start(&worker, "", NULL);
    raw_open(&a, &worker);
    raw_open(&b, &worker);
    raw_shm_create(&shm, 65536);
    raw_register(&a, &shm, WIRE_ACCESS_READ);
    struct raw_shm first = shm;
    raw_register(&a, &shm, WIRE_ACCESS_READ);
    struct raw_shm second = shm;
    raw_register(&b, &shm, WIRE_ACCESS_READ);
    assert_int_equal(raw_worker_num_mappings(&worker, shm.name), 1);
    char path[64];
    (void)snprintf(path, sizeof(path), "r--s");
    assert_true(raw_worker_num_mappings(&worker, path) >= 1);
    raw_register(&b, &shm, WIRE_ACCESS_READ_WRITE);
    assert_int_equal(raw_worker_num_mappings(&worker, shm.name), 2);
    assert_int_equal(unregister(&a, &first), TOPKD_OK);
    assert_int_equal(raw_worker_num_mappings(&worker, shm.name), 2);
    struct wire_request select = raw_select_request(&b, &shm, &shm, 1, 8, 2);
    select.u.select.indices.offset = 4096;
    assert_int_equal(raw_call(&b, &select, &reply), TOPKD_OK);
    assert_int_equal(unregister(&a, &second), TOPKD_OK);
    raw_disconnect(&b);
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (raw_worker_num_mappings(&worker, shm.name) > 0) {
        assert_true(raw_now_ms() < end_ms);
        raw_sleep_ms(5);
    }
    raw_shm_destroy(&shm);
    raw_disconnect(&a);
    raw_worker_stop(&worker);
}

/* CASES 23: an object made again under its old name is another; the stale mapping is not hit. */
static void it_37_recycled_names(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm old, fresh, out;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&old, 4096);
    raw_shm_create(&out, 4096);
    raw_register(&client, &out, WIRE_ACCESS_READ_WRITE);
    raw_register(&client, &old, WIRE_ACCESS_READ);
    ((float *)old.data)[3] = 5;
    assert_int_equal(shm_unlink(old.name), 0);
    raw_shm_create_as(&fresh, old.name, 4096);
    ((float *)fresh.data)[6] = 5;
    raw_register(&client, &fresh, WIRE_ACCESS_READ);
    const int32_t *indices = (const int32_t *)out.data;
    struct wire_request select = raw_select_request(&client, &fresh, &out, 1, 8, 1);
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_OK);
    assert_int_equal(indices[0], 6);
    select = raw_select_request(&client, &old, &out, 1, 8, 1);
    assert_int_equal(raw_call(&client, &select, &reply), TOPKD_OK);
    assert_int_equal(indices[0], 3);
    munmap(old.data, 4096);
    close(old.lock_fd);
    raw_shm_destroy(&fresh);
    raw_shm_destroy(&out);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* CASES 28 through the wire; the arithmetic itself is geometry_test's. */
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

/* The client shrinks the object under the worker: its own requests say so, nobody else notices. */
static void it_39_memory_that_vanishes(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client victim, other;
    struct raw_shm shm, out;
    struct raw_pending pending;
    raw_worker_start(&worker, "", NULL);
    raw_open(&victim, &worker);
    raw_open(&other, &worker);
    for (int round = 0; round < 3; round++) {
        raw_shm_create(&shm, 1 << 20);
        raw_shm_create(&out, 8192);
        raw_register(&victim, &shm, WIRE_ACCESS_READ_WRITE);
        raw_register(&victim, &out, WIRE_ACCESS_READ_WRITE);
        struct wire_request select = raw_select_request(&victim, &shm, &out, 4, 60000, 16);
        select.u.select.wait =
            (struct wire_semaphore_ref){.index = 0, .value = 1u + (unsigned)round};
        select.u.select.signal =
            (struct wire_semaphore_ref){.index = 1, .value = 1u + (unsigned)round};
        raw_start(&victim, &select, &pending);
        int fd = shm_open(round == 2 ? out.name : shm.name, O_RDWR, 0);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, round == 1 ? 4096 : 0), 0);
        close(fd);
        raw_signal(&victim, 0, 1u + (unsigned)round);
        assert_true(raw_finish(&pending, RAW_TIMEOUT_MS, &reply));
        assert_int_equal(reply.status, TOPKD_E_REGION_FAULT);
        assert_int_equal(victim.semaphores[1].value, 1 + round);
        assert_int_equal(victim.semaphores[1].failed_value, 1 + round);
        assert_int_equal(victim.semaphores[1].failed_status, TOPKD_E_REGION_FAULT);
        raw_expect_selects(&other);
        /* Once gone it stays gone for that registration, also after the object has grown again. */
        fd = shm_open(shm.name, O_RDWR, 0);
        assert_int_equal(ftruncate(fd, 1 << 20), 0);
        close(fd);
        fd = shm_open(out.name, O_RDWR, 0);
        assert_int_equal(ftruncate(fd, 8192), 0);
        close(fd);
        select = raw_select_request(&victim, &shm, &out, 4, 60000, 16);
        assert_int_equal(raw_call(&victim, &select, &reply), TOPKD_E_REGION_FAULT);
        /* A new registration is a new mapping. */
        raw_register(&victim, &shm, WIRE_ACCESS_READ_WRITE);
        raw_register(&victim, &out, WIRE_ACCESS_READ_WRITE);
        select = raw_select_request(&victim, &shm, &out, 4, 60000, 16);
        assert_int_equal(raw_call(&victim, &select, &reply), TOPKD_OK);
        raw_shm_destroy(&shm);
        raw_shm_destroy(&out);
    }
    /* Even the memory that the daemon shares with it may be shrunk by the client. */
    char name[WIRE_HANDLE_SIZE + 1] = "";
    memcpy(name, victim.hello.arena.handle, victim.hello.arena.handle_bytes);
    int fd = shm_open(name, O_RDWR, 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    raw_shm_create(&shm, 1 << 20);
    raw_register(&victim, &shm, WIRE_ACCESS_READ);
    struct wire_request select = raw_select_request(&victim, &shm, &shm, 4, 60000, 16);
    select.u.select.output_mode = WIRE_OUTPUT_ARENA;
    select.u.select.indices.region = 0;
    enum topkd_status status = raw_call(&victim, &select, &reply);
    assert_true(status == TOPKD_OK || status == TOPKD_E_REGION_FAULT); /* reserving grows it */
    raw_expect_selects(&other);
    raw_shm_destroy(&shm);
    raw_disconnect(&victim);
    raw_disconnect(&other);
    raw_worker_stop(&worker);
}

static void it_40_a_thousand_registrations_leave_nothing(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    raw_worker_start(&worker, "limits: {registrations_per_s: 1000000}", NULL);
    raw_open(&client, &worker);
    raw_expect_selects(&client);
    raw_sleep_ms(50);
    uint32_t num_fds = raw_worker_num_fds(&worker);
    uint32_t num_mappings = raw_worker_num_mappings(&worker, "topkd-held");
    for (int i = 0; i < 1000; i++) {
        if (i % 50 == 0)
            raw_shm_create(&shm, 4096);
        raw_register(&client, &shm, i % 2 ? WIRE_ACCESS_READ : WIRE_ACCESS_READ_WRITE);
        assert_int_equal(unregister(&client, &shm), TOPKD_OK);
        if (i % 50 == 49)
            raw_shm_destroy(&shm);
    }
    /* Mappings end on another thread; the worker's own count follows when its loop has heard. */
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    struct wire_request request = raw_request(&client, WIRE_STATS);
    for (;;) {
        assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
        if (reply.u.stats.mapped_bytes == 0 && raw_worker_num_fds(&worker) <= num_fds &&
            raw_worker_num_mappings(&worker, "topkd-held") <= num_mappings)
            break;
        assert_true(raw_now_ms() < end_ms);
        raw_sleep_ms(5);
    }
    assert_int_equal(reply.u.stats.regions, 0);
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
        cmocka_unit_test(it_35_unregister),
        cmocka_unit_test(it_36_mappings_are_shared),
        cmocka_unit_test(it_37_recycled_names),
        cmocka_unit_test(it_38_geometry_is_checked),
        cmocka_unit_test(it_39_memory_that_vanishes),
        cmocka_unit_test(it_40_a_thousand_registrations_leave_nothing),
    };
    return cmocka_run_group_tests_name("regions", tests, NULL, NULL);
}
