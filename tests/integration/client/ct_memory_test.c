/* ct_memory_test.c - buffers and regions: whose they are, when they go, what is refused. */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NOBODY = 65534 };

static void ct_90_buffers_are_zeroed_and_leave_nothing(void **state)
{
    struct fake *fake = *state;
    struct topkd_buffer *buffers[4];
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    for (int i = 0; i < 4; i++) {
        uint64_t size = UINT64_C(1) << (8 * i); /* 1 byte, 256, 64 KiB, 16 MiB */
        expect_ok(topkd_buffer_create(client, size, &buffers[i]));
        assert_int_equal(topkd_buffer_size_bytes(buffers[i]), size);
        const unsigned char *data = topkd_buffer_data(buffers[i]);
        assert_int_equal(data[0], 0);
        assert_int_equal(memcmp(data, data + 1, size - 1), 0);
    }
    assert_true(has_buffers());
    topkd_buffer_destroy(buffers[1]);
    topkd_buffer_destroy(buffers[3]);
    assert_int_equal(fake_count(fake, WIRE_UNREGISTER), 2);
    topkd_client_close(client); /* takes the other two along */
    assert_false(has_buffers());
}

static void ct_91_sizes_that_cannot_be(void **state)
{
    struct fake *fake = *state;
    struct topkd_buffer *buffer;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    expect_status(TOPKD_E_INVALID, topkd_buffer_create(client, 0, &buffer));
    expect_detail("size_bytes is 0", NULL);
    expect_status(TOPKD_E_LIMIT, topkd_buffer_create(client, (UINT64_C(1) << 30) + 1, &buffer));
    expect_detail("1073741825", "region_bytes_max 1073741824", NULL);
    expect_status(TOPKD_E_LIMIT, topkd_buffer_create(client, UINT64_MAX, &buffer));
    expect_status(TOPKD_E_INVALID, topkd_buffer_create(client, 1, NULL));
    struct rlimit before, small = {.rlim_cur = 4096};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_status(TOPKD_E_LIMIT, topkd_buffer_create(client, 4097, &buffer)); /* and no signal */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_detail("4097", "4096", NULL);
    assert_false(has_buffers());
    topkd_client_close(client);
}

static void ct_92_a_worker_that_cannot_map_it(void **state)
{
    struct fake *fake = *state;
    struct topkd_buffer *buffer;
    fake_start(fake, "register:1:status:21", "register:2:status:12", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    expect_status(TOPKD_E_MAP_FAILED, topkd_buffer_create(client, 100, &buffer));
    assert_false(has_buffers());
    expect_ok(topkd_buffer_create(client, 100, &buffer)); /* a busy one is asked again */
    assert_int_equal(fake_count(fake, WIRE_REGISTER), 3);
    topkd_client_close(client);
}

static void ct_93_destroying_waits_for_work_in_flight(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_op *op;
    fake_start(fake, "select:1:delay:400", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 1, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    uint64_t before_ms = now_ms();
    expect_ok(topkd_select_start(client, &request, NULL, &op));
    topkd_buffer_destroy(matrix.buffer);
    assert_in_range(now_ms() - before_ms, 400, LATE_MS);
    expect_ok(topkd_op_wait(op, 1)); /* it has ended */
    expect_ok(topkd_op_finish(op, NULL));
    assert_false(has_buffers());
    topkd_client_close(client);
}

static void ct_94_a_region_that_drains_is_waited_for(void **state)
{
    struct fake *fake = *state;
    struct topkd_buffer *buffer;
    fake_start(fake, "drain_looks=4", NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    expect_ok(topkd_buffer_create(client, 100, &buffer));
    topkd_buffer_destroy(buffer);
    assert_int_equal(fake_count(fake, WIRE_UNREGISTER), 5);
    topkd_client_close(client);
}

static void ct_95_a_region_that_never_drains_times_out(void **state)
{
    struct fake *fake = *state;
    char name[64];
    struct topkd_region *region;
    struct topkd_op *op;
    fake_start(fake, "drain_looks=1000000", NULL);
    const struct topkd_client_options options = {.timeout_ms = SHORT_MS};
    struct topkd_client *client = fake_client(fake, &options);
    (void)snprintf(name, sizeof(name), "/topkd-test-%d", (int)getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(ftruncate(fd, 4096), 0);
    close(fd);
    const struct topkd_shm shm = {.name = name, .length_bytes = 4096, .access = TOPKD_ACCESS_READ};
    expect_ok(topkd_region_register_shm(client, &shm, &region));
    expect_status(TOPKD_E_TIMEOUT, topkd_region_unregister(region));
    expect_detail(name, "still in use", NULL);
    /* The handle stays, for another try only. */
    struct topkd_select_request request = {
        .scores = {.region = region}, .rows = 1, .width = 10, .k = 1};
    expect_status(TOPKD_E_NO_REGION, topkd_select_start(client, &request, NULL, &op));
    expect_detail("being unregistered", NULL);
    expect_status(TOPKD_E_TIMEOUT, topkd_region_unregister(region));
    assert_int_equal(shm_unlink(name), 0);
    topkd_client_close(client);
}

static void ct_96_registering_what_cannot_be(void **state)
{
    struct fake *fake = *state;
    char name[64];
    struct topkd_region *region;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    (void)snprintf(name, sizeof(name), "/topkd-test-%d", (int)getpid());
    struct topkd_shm shm = {.name = name, .length_bytes = 4096, .access = TOPKD_ACCESS_READ};
    expect_status(TOPKD_E_MAP_FAILED, topkd_region_register_shm(client, &shm, &region));
    expect_detail(name, "/dev/shm", NULL);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(ftruncate(fd, 4096), 0);
    close(fd);
    shm.offset_bytes = 1;
    expect_status(TOPKD_E_OUT_OF_RANGE, topkd_region_register_shm(client, &shm, &region));
    expect_detail("offset_bytes 1", "length_bytes 4096", "4096 bytes", NULL);
    shm.offset_bytes = UINT64_MAX;
    shm.length_bytes = UINT64_MAX; /* the sum wraps */
    expect_status(TOPKD_E_OUT_OF_RANGE, topkd_region_register_shm(client, &shm, &region));
    shm.offset_bytes = 0;
    shm.length_bytes = 0;
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, &shm, &region));
    expect_detail("length_bytes is 0", NULL);
    shm.length_bytes = 4096;
    shm.access = (enum topkd_access)2;
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, &shm, &region));
    expect_detail("access 2", NULL);
    shm.access = TOPKD_ACCESS_READ;
    static const char *const bad_names[] = {"", "/", "topkd", "/a/b"};
    for (size_t i = 0; i < sizeof(bad_names) / sizeof(bad_names[0]); i++) {
        shm.name = bad_names[i];
        expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, &shm, &region));
    }
    char long_name[300];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[0] = '/';
    long_name[sizeof(long_name) - 1] = '\0';
    shm.name = long_name;
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, &shm, &region));
    expect_detail("127", NULL);
    shm.name = NULL;
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, &shm, &region));
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, NULL, &region));
    shm.name = name;
    expect_status(TOPKD_E_INVALID, topkd_region_register_shm(client, &shm, NULL));
    assert_int_equal(fake_count(fake, WIRE_REGISTER), 0); /* none went out */
    expect_ok(topkd_region_register_shm(client, &shm, &region));
    expect_ok(topkd_region_unregister(region));
    struct topkd_buffer *buffer;
    expect_ok(topkd_buffer_create(client, 100, &buffer));
    expect_status(TOPKD_E_INVALID, topkd_region_unregister(topkd_buffer_region(buffer)));
    expect_detail("topkd_buffer_destroy", NULL);
    assert_int_equal(shm_unlink(name), 0);
    topkd_client_close(client);
}

static void ct_97_a_worker_of_another_user_is_let_in(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    if (geteuid() != 0) {
        print_message("only root can run a worker of another user\n");
        skip();
    }
    fake_start(fake, "uid=65534", NULL); /* it opens each buffer with its own rights */
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    struct topkd_select_request request = matrix_request(&matrix, false);
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&matrix, &request, &result);
    topkd_client_close(client);
}

/* ---- Fork ------------------------------------------------------------------------------------ */

/* In the child: everything of the parent's is closed, nothing of it is touched. The exit code says
 * which call went wrong. */
static int look_around_in_child(struct topkd_client *client, const struct matrix *matrix,
                                struct topkd_semaphore *semaphore)
{
    struct topkd_select_request request = matrix_request(matrix, true);
    struct topkd_result result;
    struct topkd_client_info info;
    struct topkd_buffer *buffer;
    int failed = 0;
    failed |= (topkd_select(client, &request, &result) != TOPKD_E_CLOSED) << 0;
    failed |= (topkd_ping(client, NULL) != TOPKD_E_CLOSED) << 1;
    failed |= (topkd_client_info(client, &info) != TOPKD_E_CLOSED) << 2;
    failed |= (topkd_buffer_create(client, 10, &buffer) != TOPKD_E_CLOSED) << 3;
    failed |= (topkd_semaphore_signal(semaphore, 99) != TOPKD_E_CLOSED) << 4;
    failed |= (topkd_client_fd(client) != -1 || topkd_op_next(client)) << 5;
    topkd_semaphore_destroy(semaphore);
    topkd_buffer_destroy(matrix->buffer);
    topkd_client_close(client);
    return failed;
}

static void ct_98_a_child_has_no_part_in_it(void **state)
{
    struct fake *fake = *state;
    struct matrix matrix;
    struct topkd_result result;
    struct topkd_semaphore *semaphore;
    int end;
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    matrix_create(client, 2, 100, 8, &matrix);
    expect_ok(topkd_semaphore_create(client, &semaphore));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(look_around_in_child(client, &matrix, semaphore));
    }
    assert_int_equal(waitpid(pid, &end, 0), pid);
    assert_true(WIFEXITED(end));
    assert_int_equal(WEXITSTATUS(end), 0);
    /* The parent did not notice. */
    assert_true(has_buffers());
    assert_int_equal(topkd_semaphore_value(semaphore), 0);
    struct topkd_select_request request = matrix_request(&matrix, false);
    expect_ok(topkd_select(client, &request, &result));
    matrix_check(&matrix, &request, &result);
    assert_int_equal(fake_count(fake, WIRE_HELLO), 1);
    topkd_client_close(client);
}

/* 0 when a client that this process opens is as any other. */
static int be_a_client(const char *url)
{
    const struct topkd_client_options options = {.url = url};
    struct topkd_client *client;
    struct topkd_buffer *buffer;
    if (topkd_client_open(&options, &client) != TOPKD_OK) {
        return 1;
    }
    bool works = topkd_buffer_create(client, 10, &buffer) == TOPKD_OK &&
                 topkd_ping(client, NULL) == TOPKD_OK;
    topkd_client_close(client);
    return works ? 0 : 2;
}

static void ct_89_a_child_opens_its_own(void **state)
{
    struct fake *fake = *state;
    int end;
#ifdef __SANITIZE_THREAD__
    print_message("ThreadSanitizer lets no child have threads whose parent had some\n");
    skip();
#endif
    fake_start(fake, NULL);
    struct topkd_client *client = fake_client(fake, NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(be_a_client(fake->supervisor_url));
    }
    assert_int_equal(waitpid(pid, &end, 0), pid);
    assert_true(WIFEXITED(end));
    assert_int_equal(WEXITSTATUS(end), 0);
    expect_ok(topkd_ping(client, NULL));
    assert_int_equal(fake_count(fake, WIRE_HELLO), 2);
    topkd_client_close(client);
}

/* ---- A full /dev/shm, in a mount namespace of a child that has not used the library ------------
 */

static int fill_small_shm(const struct fake *fake)
{
    const struct topkd_client_options options = {.url = fake->supervisor_url};
    struct topkd_client *client;
    struct topkd_buffer *buffer, *second;
    /* The worker must map what is made here: it starts inside, too. */
    if (topkd_client_open(&options, &client) != TOPKD_OK) {
        return 10;
    }
    if (topkd_buffer_create(client, 1 << 20, &buffer) != TOPKD_OK) {
        return 11;
    }
    if (topkd_buffer_create(client, 16 << 20, &second) != TOPKD_E_NO_MEMORY) {
        return 12;
    }
    if (!strstr(topkd_detail(), "16777216") || !strstr(topkd_detail(), "/dev/shm")) {
        return 13;
    }
    memset(topkd_buffer_data(buffer), 1, 1 << 20);                   /* no bus error */
    if (topkd_buffer_create(client, 4 << 20, &second) != TOPKD_OK) { /* what failed left nothing */
        return 14;
    }
    topkd_client_close(client);
    return has_buffers() ? 15 : 0;
}

static void ct_99_a_full_shared_memory_is_an_error(void **state)
{
    struct fake *fake = *state;
    int end;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=12m") != 0) {
            _exit(77);
        }
        fake_start(fake, NULL);
        int result = fill_small_shm(fake);
        fake_kill(fake);
        _exit(result);
    }
    assert_int_equal(waitpid(pid, &end, 0), pid);
    assert_true(WIFEXITED(end));
    if (WEXITSTATUS(end) == 77) {
        print_message("no permission for a mount namespace\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(end), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(ct_99_a_full_shared_memory_is_an_error), /* first: it forks a fresh process */
        TEST(ct_90_buffers_are_zeroed_and_leave_nothing),
        TEST(ct_91_sizes_that_cannot_be),
        TEST(ct_92_a_worker_that_cannot_map_it),
        TEST(ct_93_destroying_waits_for_work_in_flight),
        TEST(ct_94_a_region_that_drains_is_waited_for),
        TEST(ct_95_a_region_that_never_drains_times_out),
        TEST(ct_96_registering_what_cannot_be),
        TEST(ct_97_a_worker_of_another_user_is_let_in),
        TEST(ct_98_a_child_has_no_part_in_it),
        TEST(ct_89_a_child_opens_its_own),
    };
    return cmocka_run_group_tests_name("ct_memory", tests, NULL, NULL);
}
