/* fake.c - starting and killing the fake daemon, and short words for tests. */
#include "fake.h"

#include "inputs.h"
#include "oracle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stddef.h>
/* after the three that it needs */
#include <cmocka.h>

enum { ARGUMENTS = 24 };

/* ---- The daemon ------------------------------------------------------------------------------ */

void fake_init(struct fake *fake)
{
    memset(fake, 0, sizeof(*fake));
    (void)snprintf(fake->folder, sizeof(fake->folder), "/tmp/topkd-fake-XXXXXX");
    assert_non_null(mkdtemp(fake->folder));
    assert_int_equal(chmod(fake->folder, 0777), 0);
    (void)snprintf(fake->supervisor_url, sizeof(fake->supervisor_url), "ipc://%s/topkd.sock",
                   fake->folder);
    (void)snprintf(fake->worker_url, sizeof(fake->worker_url), "ipc://%s/cpu.sock", fake->folder);
    (void)snprintf(fake->counters_path, sizeof(fake->counters_path), "%s/counters", fake->folder);
    int fd = open(fake->counters_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, FAKE_COUNTERS * sizeof(uint64_t)), 0);
    fake->counters =
        mmap(NULL, FAKE_COUNTERS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(fake->counters, MAP_FAILED);
    close(fd);
}

static const char *path_of(const char *url)
{
    return url + strlen("ipc://");
}

void fake_start(struct fake *fake, ...)
{
    char epoch[24];
    const char *argv[ARGUMENTS] = {FAKE_DAEMON, fake->supervisor_url, fake->worker_url, epoch,
                                   fake->counters_path};
    int argc = 5;
    va_list arguments;
    va_start(arguments, fake);
    for (const char *argument; (argument = va_arg(arguments, const char *)) != NULL;) {
        assert_true(argc + 1 < ARGUMENTS);
        argv[argc++] = argument;
    }
    va_end(arguments);
    (void)snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)++fake->epoch);
    assert_int_equal(fake->pid, 0);
    assert_int_equal(
        posix_spawn(&fake->pid, FAKE_DAEMON, NULL, NULL, (char **)(uintptr_t)argv, environ), 0);
    /* The supervisor's socket is the last it makes. */
    uint64_t deadline_ms = now_ms() + WAIT_MS;
    while (access(path_of(fake->supervisor_url), F_OK) != 0 && now_ms() < deadline_ms) {
        usleep(1000);
    }
}

/* The objects of a fake daemon that was killed. */
static void remove_objects(pid_t pid)
{
    char prefix[64], path[320];
    (void)snprintf(prefix, sizeof(prefix), "topkd-fake-%d-", (int)pid);
    DIR *folder = opendir("/dev/shm");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            (void)snprintf(path, sizeof(path), "/dev/shm/%s", entry->d_name);
            (void)unlink(path);
        }
    }
    closedir(folder);
}

void fake_await_death(struct fake *fake)
{
    int state;
    pid_t pid;
    do {
        pid = waitpid(fake->pid, &state, 0);
    } while (pid < 0 && errno == EINTR);
    assert_int_equal(pid, fake->pid);
    remove_objects(fake->pid);
    (void)unlink(path_of(fake->supervisor_url));
    (void)unlink(path_of(fake->worker_url));
    fake->pid = 0;
}

void fake_kill(struct fake *fake)
{
    if (fake->pid != 0) {
        (void)kill(fake->pid, SIGKILL);
        fake_await_death(fake);
    }
}

void fake_fini(struct fake *fake)
{
    fake_kill(fake);
    (void)unlink(path_of(fake->supervisor_url)); /* a test may have made one itself */
    (void)unlink(fake->counters_path);
    assert_int_equal(rmdir(fake->folder), 0);
    (void)munmap(fake->counters, FAKE_COUNTERS * sizeof(uint64_t));
}

int fake_set_up(void **state)
{
    struct fake *fake = malloc(sizeof(*fake));
    assert_non_null(fake);
    fake_init(fake);
    *state = fake;
    return 0;
}

int fake_tear_down(void **state)
{
    fake_fini(*state);
    free(*state);
    return 0;
}

uint64_t fake_count(const struct fake *fake, enum wire_kind kind)
{
    return __atomic_load_n(&fake->counters[kind], __ATOMIC_ACQUIRE);
}

void fake_await_count(const struct fake *fake, enum wire_kind kind, uint64_t count)
{
    for (int i = 0; i < WAIT_MS / 5 && fake_count(fake, kind) < count; i++) {
        usleep(5000);
    }
    assert_true(fake_count(fake, kind) >= count);
}

struct topkd_client *fake_client(const struct fake *fake,
                                 const struct topkd_client_options *options)
{
    struct topkd_client_options with_url = {0};
    if (options) {
        with_url = *options;
    }
    with_url.url = fake->supervisor_url;
    struct topkd_client *client = NULL;
    expect_ok(topkd_client_open(&with_url, &client));
    return client;
}

/* ---- Words ----------------------------------------------------------------------------------- */

void expect_status_at(enum topkd_status expected, enum topkd_status actual, const char *what,
                      const char *file, int line)
{
    if (actual != expected) {
        print_error("%s: %s, expected %s: %s\n", what, topkd_status_name(actual),
                    topkd_status_name(expected), topkd_detail());
        _fail(file, line);
    }
}

void expect_detail(const char *text, ...)
{
    va_list texts;
    va_start(texts, text);
    for (; text; text = va_arg(texts, const char *)) {
        if (!strstr(topkd_detail(), text)) {
            print_error("\"%s\" is not in \"%s\"\n", text, topkd_detail());
            fail();
        }
    }
    va_end(texts);
}

static struct inputs_spec spec_of(const struct matrix *matrix)
{
    return (struct inputs_spec){.family = INPUTS_NORMAL,
                                .seed = inputs_run_seed(),
                                .num_rows = (int32_t)matrix->rows,
                                .width = (int32_t)matrix->width,
                                .row_stride = matrix->width,
                                .k = (int32_t)matrix->k};
}

void matrix_create(struct topkd_client *client, uint32_t rows, uint32_t width, uint32_t k,
                   struct matrix *matrix)
{
    *matrix = (struct matrix){.rows = rows, .width = width, .k = k};
    struct inputs_spec spec = spec_of(matrix);
    matrix->indices_offset = (uint64_t)rows * width * sizeof(float);
    uint64_t size = matrix->indices_offset + (uint64_t)rows * k * sizeof(int32_t);
    expect_ok(topkd_buffer_create(client, size, &matrix->buffer));
    inputs_fill(&spec, topkd_buffer_data(matrix->buffer));
}

struct topkd_select_request matrix_request(const struct matrix *matrix, bool arena)
{
    struct topkd_select_request request = {
        .scores = {.region = topkd_buffer_region(matrix->buffer)},
        .rows = matrix->rows,
        .width = matrix->width,
        .k = matrix->k,
    };
    if (!arena) {
        request.indices.region = topkd_buffer_region(matrix->buffer);
        request.indices.offset_bytes = matrix->indices_offset;
    }
    return request;
}

void matrix_check(const struct matrix *matrix, const struct topkd_select_request *request,
                  const struct topkd_result *result)
{
    assert_int_equal(result->rows, matrix->rows);
    assert_int_equal(result->k, matrix->k);
    assert_non_null(result->indices);
    const struct topk_args args = {
        .scores = topkd_buffer_data(matrix->buffer),
        .row_stride = matrix->width,
        .indices = (int32_t *)(uintptr_t)result->indices,
        .index_stride = result->index_stride,
        .values = (float *)(uintptr_t)result->values,
        .value_stride = result->value_stride,
        .num_rows = (int32_t)matrix->rows,
        .width = (int32_t)matrix->width,
        .length_all = (int32_t)matrix->width,
        .k = (int32_t)matrix->k,
    };
    const struct topk_options options = {.order = (enum topk_order)request->order,
                                         .ties = (enum topk_ties)request->ties};
    char detail[ORACLE_DETAIL_SIZE];
    if (!oracle_check(&args, &options, detail)) {
        print_error("seed=%llu: %s\n", (unsigned long long)inputs_run_seed(), detail);
        fail();
    }
}

bool has_buffers(void)
{
    return has_buffers_of(getpid());
}

bool has_buffers_of(pid_t pid)
{
    char prefix[64];
    bool found = false;
    (void)snprintf(prefix, sizeof(prefix), "topkd-held-%d-", (int)pid);
    DIR *folder = opendir("/dev/shm");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        found = found || strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(folder);
    return found;
}

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
