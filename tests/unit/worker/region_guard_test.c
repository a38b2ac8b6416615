/* region_guard: memory that vanishes under us is replaced and reported; other faults still kill. */
#include "server/region_guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define SIZE ((size_t)64 * 4096)

struct mapping {
    int fd;
    uint8_t *base;
    uint32_t slot;
};

static struct mapping map_new(int protection)
{
    struct mapping mapping = {.fd = memfd_create("guard-test", MFD_CLOEXEC)};
    assert_true(mapping.fd >= 0);
    assert_int_equal(ftruncate(mapping.fd, (off_t)SIZE), 0);
    mapping.base = mmap(NULL, SIZE, protection, MAP_SHARED, mapping.fd, 0);
    assert_true(mapping.base != MAP_FAILED);
    assert_true(region_guard_add(mapping.base, SIZE, protection, &mapping.slot));
    return mapping;
}

static void unmap(struct mapping *mapping)
{
    region_guard_remove(mapping->slot);
    munmap(mapping->base, SIZE);
    close(mapping->fd);
}

static void a_shrunk_object_reads_as_zeros(void **state)
{
    (void)state;
    region_guard_install();
    struct mapping shrunk = map_new(PROT_READ | PROT_WRITE);
    struct mapping other = map_new(PROT_READ);
    shrunk.base[SIZE - 1] = 7;
    assert_false(region_guard_faulted(shrunk.slot));
    assert_int_equal(ftruncate(shrunk.fd, 4096), 0);
    volatile uint8_t *bytes = shrunk.base;
    assert_int_equal(bytes[SIZE - 1], 0);
    assert_true(region_guard_faulted(shrunk.slot));
    bytes[8192] = 9; /* writes go nowhere, and do not fault */
    assert_int_equal(bytes[8192], 9);
    assert_false(region_guard_faulted(other.slot));
    volatile const uint8_t *others = other.base;
    assert_int_equal(others[5], 0);
    unmap(&shrunk);
    /* The slot is used again and knows nothing of the fault. */
    struct mapping next = map_new(PROT_READ | PROT_WRITE);
    assert_false(region_guard_faulted(next.slot));
    unmap(&next);
    unmap(&other);
}

/* Each thread its own byte of each page. */
static void *touch_all(void *arg)
{
    volatile uint8_t *bytes = arg;
    uint32_t sum = 0;
    for (size_t i = 4096; i < SIZE - 4; i += 4096) {
        bytes[i] = 1;
        sum += bytes[i];
    }
    return (void *)(uintptr_t)sum;
}

/* Many threads meet the hole at once; each goes on. */
static void threads_fault_together(void **state)
{
    (void)state;
    region_guard_install();
    for (int round = 0; round < 50; round++) {
        struct mapping mapping = map_new(PROT_READ | PROT_WRITE);
        pthread_t threads[4];
        assert_int_equal(ftruncate(mapping.fd, 4096), 0);
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, touch_all, mapping.base + i), 0);
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(region_guard_faulted(mapping.slot));
        unmap(&mapping);
    }
}

static void foreign_faults_still_kill(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        region_guard_install();
        int fd = memfd_create("guard-test", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, 4096) != 0)
            _exit(1);
        volatile uint8_t *bytes = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
        (void)bytes[4096]; /* not in the table */
        _exit(2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void the_table_is_bounded(void **state)
{
    (void)state;
    static uint32_t slots[REGION_GUARD_SLOTS];
    uint32_t slot;
    for (uint32_t i = 0; i < REGION_GUARD_SLOTS; i++)
        assert_true(region_guard_add((void *)(uintptr_t)(0x100000000000u + i * 4096ull), 4096,
                                     PROT_READ, &slots[i]));
    assert_false(region_guard_add((void *)(uintptr_t)0x200000000000u, 4096, PROT_READ, &slot));
    region_guard_remove(slots[77]);
    assert_true(region_guard_add((void *)(uintptr_t)0x200000000000u, 4096, PROT_READ, &slot));
    assert_int_equal(slot, slots[77]);
    for (uint32_t i = 0; i < REGION_GUARD_SLOTS; i++)
        region_guard_remove(slots[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shrunk_object_reads_as_zeros),
        cmocka_unit_test(threads_fault_together),
        cmocka_unit_test(foreign_faults_still_kill),
        cmocka_unit_test(the_table_is_bounded),
    };
    return cmocka_run_group_tests_name("region guard", tests, NULL, NULL);
}
