/* Regions in use: sharing of mappings, recycled names, memory that vanishes. */
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

static enum topkd_status unregister(struct raw_client *client, const struct raw_shm *shm)
{
    struct wire_request request = raw_request(client, WIRE_UNREGISTER);
    request.u.unreg =
        (struct wire_unregister_request){.region = shm->region, .generation = shm->generation};
    return raw_call(client, &request, &reply);
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
        cmocka_unit_test(it_35_unregister),
        cmocka_unit_test(it_36_mappings_are_shared),
        cmocka_unit_test(it_37_recycled_names),
        cmocka_unit_test(it_39_memory_that_vanishes),
        cmocka_unit_test(it_40_a_thousand_registrations_leave_nothing),
    };
    return cmocka_run_group_tests_name("regions", tests, NULL, NULL);
}
