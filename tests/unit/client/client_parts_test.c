/* client_parts_test.c - the parts of the client library that need no daemon. */
#include "client.h"
#include "discover.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- list.h ---------------------------------------------------------------------------------- */

struct element {
    int number;
    struct list node;
};

static void lists_keep_their_order_and_lose_any_element(void **state)
{
    (void)state;
    struct list head;
    struct element elements[5];
    int seen = 0;
    list_init(&head);
    assert_true(list_empty(&head));
    for (int i = 0; i < 5; i++) {
        elements[i].number = i;
        list_insert(&head, &elements[i].node);
    }
    list_each(node, &head)
    {
        struct element *element = list_entry(node, struct element, node);
        assert_int_equal(element->number, seen++);
        if (element->number % 2 == 0) {
            list_remove(node); /* the one at hand */
            list_remove(node); /* and again, which does nothing */
            assert_true(list_empty(node));
        }
    }
    assert_int_equal(seen, 5);
    list_insert(&elements[3].node, &elements[2].node); /* between 1 and 3 */
    seen = 1;
    list_each(node, &head)
    {
        assert_int_equal(list_entry(node, struct element, node)->number, seen++);
    }
    assert_int_equal(seen, 4);
}

/* ---- clock.h --------------------------------------------------------------------------------- */

static void deadlines_round_up_and_end(void **state)
{
    (void)state;
    uint64_t now_ns = clock_now_ns();
    assert_int_equal(clock_left_ms(now_ns), 0);
    assert_int_equal(clock_left_ms(0), 0);
    assert_true(clock_passed(now_ns));
    assert_false(clock_passed(clock_after_ms(60000)));
    assert_in_range(clock_left_ms(clock_after_ms(60000)), 30000, 60000);
    /* Never too short, and never longer than it was. */
    uint64_t deadline_ns = clock_now_ns() + 1000000000;
    int left_ms = clock_left_ms(deadline_ns);
    assert_in_range(left_ms, 0, 1000);
    assert_true(clock_now_ns() + (uint64_t)left_ms * CLOCK_NS_PER_MS >= deadline_ns);
    assert_int_equal(clock_left_ms(CLOCK_NEVER), INT32_MAX);
    assert_true(clock_earlier(5, CLOCK_NEVER) == 5);
    struct timespec time = clock_timespec(UINT64_C(3000000007));
    assert_int_equal(time.tv_sec, 3);
    assert_int_equal(time.tv_nsec, 7);
}

/* ---- fault.h --------------------------------------------------------------------------------- */

static void texts_end_where_their_room_ends(void **state)
{
    (void)state;
    char detail[WIRE_DETAIL_SIZE + 1];
    char text[2 * WIRE_DETAIL_SIZE];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    detail[WIRE_DETAIL_SIZE] = '!';
    assert_int_equal(fault(detail, TOPKD_E_BUSY, "%s", text), TOPKD_E_BUSY);
    assert_int_equal(strlen(detail), WIRE_DETAIL_SIZE - 1);
    assert_int_equal(detail[WIRE_DETAIL_SIZE], '!');
    assert_int_equal(fault_system(detail, "opening it", ENOENT), TOPKD_E_SYSTEM);
    assert_string_equal(detail, "opening it: No such file or directory");
    assert_int_equal(fault_system(detail, "mapping it", ENOMEM), TOPKD_E_NO_MEMORY);
}

/* ---- discover.h ------------------------------------------------------------------------------ */

static void the_url_is_the_first_that_is_given(void **state)
{
    (void)state;
    char url[WIRE_URL_SIZE], detail[WIRE_DETAIL_SIZE];
    char folder[] = "/tmp/topkd-unit-XXXXXX", path[64], long_url[200];
    assert_non_null(mkdtemp(folder));
    unsetenv("TOPKD_URL");
    setenv("XDG_RUNTIME_DIR", folder, 1);
    assert_int_equal(discover_url(NULL, url, detail), TOPKD_OK);
    assert_string_equal(url, DISCOVER_DEFAULT_URL); /* nothing there */
    (void)snprintf(path, sizeof(path), "%s/topkd", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/topkd/topkd.sock", folder);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(discover_url("", url, detail), TOPKD_OK);
    assert_string_equal(url + strlen("ipc://"), path);
    setenv("TOPKD_URL", "ipc:///from/environment", 1);
    assert_int_equal(discover_url(NULL, url, detail), TOPKD_OK);
    assert_string_equal(url, "ipc:///from/environment");
    assert_int_equal(discover_url("ipc:///from/caller", url, detail), TOPKD_OK);
    assert_string_equal(url, "ipc:///from/caller");
    setenv("XDG_RUNTIME_DIR", "relative", 1); /* not what the specification asks for */
    setenv("TOPKD_URL", "", 1);
    assert_int_equal(discover_url(NULL, url, detail), TOPKD_OK);
    assert_string_equal(url, DISCOVER_DEFAULT_URL);
    memset(long_url, 'x', sizeof(long_url) - 1);
    long_url[sizeof(long_url) - 1] = '\0';
    setenv("TOPKD_URL", long_url, 1);
    assert_int_equal(discover_url(NULL, url, detail), TOPKD_E_INVALID);
    assert_non_null(strstr(detail, "TOPKD_URL has 199 characters, at most 127"));
    unsetenv("TOPKD_URL");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- shm.h ----------------------------------------------------------------------------------- */

static mode_t mode_of(const char *name)
{
    struct stat info;
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    close(fd);
    return info.st_mode & 0777;
}

static void an_object_is_for_its_user_alone(void **state)
{
    (void)state;
    struct shm_name name;
    char detail[WIRE_DETAIL_SIZE];
    struct shm_map map;
    const struct rpc_peer self = {.pid = 1, .uid = geteuid(), .gid = getegid()};
    const struct rpc_peer unknown = {.pid = -1, .uid = -1, .gid = -1};
    const struct rpc_peer *const peers[] = {&self, &unknown};
    mode_t before = umask(0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shm_create(12345, peers[i], &name, &map, detail), TOPKD_OK);
        assert_int_equal(strncmp(name.text, WIRE_SHM_BUFFER_PREFIX, strlen(WIRE_SHM_BUFFER_PREFIX)),
                         0);
        assert_int_equal(mode_of(name.text), 0600);
        assert_int_equal(map.size_bytes, 12345);
        struct shm_info info;
        assert_int_equal(shm_inspect(name.text, true, &info, detail), TOPKD_OK);
        assert_int_equal(info.size_bytes, 12345);
        assert_true(info.inode != 0);
        shm_remove(&name);
        assert_int_equal(shm_inspect(name.text, true, &info, detail), TOPKD_E_MAP_FAILED);
        memset(map.base, 1, map.size_bytes); /* without its name it is still there */
        shm_unmap(&map);
        assert_null(map.base);
        shm_unmap(&map); /* an empty one */
    }
    umask(before);
}

/* Whether a process of that user can open the object. */
static bool can_open(const char *name, uid_t uid)
{
    int end;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setgid(uid) != 0 || setuid(uid) != 0) {
            _exit(2);
        }
        _exit(shm_open(name, O_RDWR, 0) >= 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &end, 0), pid);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) != 2);
    return WEXITSTATUS(end) == 0;
}

static void a_worker_of_another_user_alone_is_let_in(void **state)
{
    (void)state;
    struct shm_name name;
    char detail[WIRE_DETAIL_SIZE] = "";
    struct shm_map map;
    const struct rpc_peer worker = {.pid = 1, .uid = 12345, .gid = 12345};
    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    assert_int_equal(shm_create(100, &worker, &name, &map, detail), TOPKD_OK);
    assert_true(can_open(name.text, 12345));
    assert_false(can_open(name.text, 12346));
    shm_unmap(&map);
    shm_remove(&name);
}

static void memory_of_the_worker_must_be_what_it_says(void **state)
{
    (void)state;
    struct shm_name name;
    char detail[WIRE_DETAIL_SIZE];
    struct shm_map map, second;
    const struct rpc_peer self = {.uid = geteuid()};
    assert_int_equal(shm_create(8192, &self, &name, &map, detail), TOPKD_OK);
    struct wire_memory memory = {.kind = WIRE_MEMORY_SHM, .allocation_bytes = 8192};
    memory.handle_bytes = (uint32_t)strlen(name.text);
    memcpy(memory.handle, name.text, memory.handle_bytes);
    assert_int_equal(shm_map(&memory, true, &second, detail), TOPKD_OK);
    ((char *)map.base)[8191] = 'x';
    assert_int_equal(((char *)second.base)[8191], 'x');
    shm_unmap(&second);
    memory.allocation_bytes = 8193; /* beyond its end would be a bus error */
    assert_int_equal(shm_map(&memory, true, &second, detail), TOPKD_E_MAP_FAILED);
    assert_non_null(strstr(detail, "8192"));
    memory.allocation_bytes = 0;
    assert_int_equal(shm_map(&memory, true, &second, detail), TOPKD_E_MAP_FAILED);
    memory.allocation_bytes = 8192;
    memory.kind = WIRE_MEMORY_CUDA_IPC;
    assert_int_equal(shm_map(&memory, true, &second, detail), TOPKD_E_UNSUPPORTED);
    memory.kind = WIRE_MEMORY_SHM;
    memory.handle[0] = '.'; /* a path, perhaps out of /dev/shm */
    assert_int_equal(shm_map(&memory, true, &second, detail), TOPKD_E_INVALID);
    shm_unmap(&map);
    shm_remove(&name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_keep_their_order_and_lose_any_element),
        cmocka_unit_test(deadlines_round_up_and_end),
        cmocka_unit_test(texts_end_where_their_room_ends),
        cmocka_unit_test(the_url_is_the_first_that_is_given),
        cmocka_unit_test(an_object_is_for_its_user_alone),
        cmocka_unit_test(a_worker_of_another_user_alone_is_let_in),
        cmocka_unit_test(memory_of_the_worker_must_be_what_it_says),
    };
    return cmocka_run_group_tests_name("client_parts", tests, NULL, NULL);
}
