/* A /dev/shm without room: named errors, no deaths, and service again once there is room. Runs in
 * a mount namespace of its own with a small /dev/shm, which takes privileges. */
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define SHM_OPTIONS "size=4m,mode=1777"
#define CTEST_SKIPPED 77 /* SKIP_RETURN_CODE of the ctest entry */

static struct wire_reply reply;

/* Takes all that is left but `keep_bytes`; freed by unlink. */
static void fill(const char *path, size_t keep_bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    off_t size = 0;
    while (posix_fallocate(fd, size, 4096) == 0)
        size += 4096;
    assert_true(size > (off_t)keep_bytes);
    assert_int_equal(ftruncate(fd, size - (off_t)keep_bytes), 0);
    close(fd);
}

static struct wire_request arena_request(struct raw_client *client, const struct raw_shm *shm)
{
    /* 64 * 2048 * 4 bytes of result. */
    struct wire_request request = raw_select_request(client, shm, shm, 64, 64, 2048);
    request.u.select.row_stride = 64;
    request.u.select.output_mode = WIRE_OUTPUT_ARENA;
    request.u.select.indices.region = 0;
    return request;
}

static void it_80_the_arena_finds_no_room(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    struct raw_shm shm;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_shm_create(&shm, 65536);
    memset(shm.data, 0, shm.size_bytes); /* has memory before there is none */
    raw_register(&client, &shm, WIRE_ACCESS_READ_WRITE);
    fill("/dev/shm/fill", 65536);
    for (int i = 0; i < 20; i++) { /* more than there are slots: a failed one gives its slot back */
        struct wire_request request = arena_request(&client, &shm);
        assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_NO_MEMORY);
        assert_non_null(strstr(reply.detail, "/dev/shm"));
    }
    assert_int_equal(unlink("/dev/shm/fill"), 0);
    struct wire_request request = arena_request(&client, &shm);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_OK);
    const int32_t *indices = (const int32_t *)(client.arena + reply.u.select.indices_offset);
    assert_int_equal(indices[63], 63);
    assert_int_equal(indices[64], -1);
    raw_shm_destroy(&shm);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

/* A client's own object with holes: writing there finds no memory, which looks like a shrunk one.
 */
static void it_81_a_region_with_holes(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client, other;
    struct raw_shm in, out;
    raw_worker_start(&worker, "", NULL);
    raw_open(&client, &worker);
    raw_open(&other, &worker);
    raw_shm_create(&in, 65536);
    memset(in.data, 0, in.size_bytes);
    raw_shm_create(&out, 1 << 20); /* only its ends are touched, by the registration */
    raw_register(&client, &in, WIRE_ACCESS_READ);
    raw_register(&client, &out, WIRE_ACCESS_READ_WRITE);
    fill("/dev/shm/fill", 0);
    struct wire_request request = raw_select_request(&client, &in, &out, 64, 64, 2048);
    assert_int_equal(raw_call(&client, &request, &reply), TOPKD_E_REGION_FAULT);
    assert_int_equal(unlink("/dev/shm/fill"), 0);
    raw_expect_selects(&other);
    raw_shm_destroy(&in);
    raw_shm_destroy(&out);
    raw_disconnect(&client);
    raw_disconnect(&other);
    raw_worker_stop(&worker);
}

static void it_82_a_session_finds_no_room(void **state)
{
    (void)state;
    struct raw_worker worker;
    struct raw_client client;
    raw_worker_start(&worker, "", NULL);
    raw_connect(&client, &worker);
    fill("/dev/shm/fill", 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(raw_hello(&client, &reply), TOPKD_E_NO_MEMORY);
    assert_int_equal(raw_shm_num_objects(worker.shm_prefix + 1), 0);
    assert_int_equal(unlink("/dev/shm/fill"), 0);
    assert_int_equal(raw_hello(&client, &reply), TOPKD_OK);
    raw_expect_selects(&client);
    raw_disconnect(&client);
    raw_worker_stop(&worker);
}

int main(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, SHM_OPTIONS) != 0) {
        printf("a small /dev/shm cannot be mounted (%s): not run\n", strerror(errno));
        return CTEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_80_the_arena_finds_no_room),
        cmocka_unit_test(it_81_a_region_with_holes),
        cmocka_unit_test(it_82_a_session_finds_no_room),
    };
    return cmocka_run_group_tests_name("full /dev/shm", tests, NULL, NULL);
}
