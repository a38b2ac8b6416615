/* raw_worker.c - start, watch and stop a worker process. */
#include "raw.h"
#include "server/control.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

uint64_t raw_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void raw_sleep_ms(unsigned ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* The settings as the supervisor hands them over: a descriptor with text. */
static int settings_fd(const char *yaml)
{
    int fd = memfd_create("raw-settings", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
    return fd;
}

static void exec_worker(const struct raw_worker *worker, int control_fd, int config_fd,
                        const char *fault)
{
    char epoch[32];
    (void)snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)worker->epoch);
    /* Out of the way of 3 and 4 first. */
    int control = fcntl(control_fd, F_DUPFD, 10);
    int config = fcntl(config_fd, F_DUPFD, 10);
    if (control < 0 || config < 0 || dup2(control, CONTROL_FD) < 0 ||
        dup2(config, CONTROL_CONFIG_FD) < 0)
        _exit(99);
    if (fault != NULL)
        setenv("TOPKD_TEST_FAULT", fault, 1);
    execl(TOPKD_BINARY, "topkd", "--worker", "cpu", "2", epoch, worker->shm_prefix, worker->url,
          (char *)NULL);
    _exit(98);
}

/* The next message of this kind; others (heartbeats) are passed over. */
static struct control_message wait_for(const struct raw_worker *worker, enum control_kind kind)
{
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    struct control_message message;
    while (raw_now_ms() < end_ms) {
        struct pollfd poll_fd = {.fd = worker->control_fd, .events = POLLIN};
        (void)poll(&poll_fd, 1, 100);
        int fd;
        int result = control_receive(worker->control_fd, &message, &fd);
        if (result == 1 && message.kind == (uint32_t)kind)
            return message;
        if (result != 1 && result != -EAGAIN)
            break;
    }
    fail_msg("the worker did not say %s", control_kind_name(kind));
    return message;
}

void raw_worker_start(struct raw_worker *worker, const char *yaml, const char *fault)
{
    static uint64_t epoch = 0;
    if (epoch == 0)
        epoch = ((uint64_t)time(NULL) << 20) + (uint64_t)getpid();
    *worker = (struct raw_worker){.epoch = ++epoch};
    (void)snprintf(worker->directory, sizeof(worker->directory), "/tmp/topkd-raw-XXXXXX");
    assert_non_null(mkdtemp(worker->directory));
    (void)snprintf(worker->url, sizeof(worker->url), "ipc://%s/cpu.sock", worker->directory);
    (void)snprintf(worker->shm_prefix, sizeof(worker->shm_prefix), "/topkd-raw%d-%llu-",
                   (int)getpid(), (unsigned long long)worker->epoch);
    int config_fd = settings_fd(yaml);
    int fds[2];
    assert_int_equal(control_pair(fds), 0);
    worker->pid = fork();
    assert_true(worker->pid >= 0);
    if (worker->pid == 0)
        exec_worker(worker, fds[1], config_fd, fault);
    close(fds[1]);
    close(config_fd);
    worker->control_fd = fds[0];
    struct control_message ready = wait_for(worker, CONTROL_READY);
    assert_int_equal(ready.epoch, worker->epoch);
    assert_int_equal(ready.u.ready.device_kind, WIRE_DEVICE_CPU);
}

void raw_worker_reload(const struct raw_worker *worker, const char *yaml)
{
    struct control_message message = control_message_make(CONTROL_RELOAD, worker->epoch);
    int fd = settings_fd(yaml);
    assert_int_equal(control_send(worker->control_fd, &message, fd), 0);
    close(fd);
}

static void remove_directory(struct raw_worker *worker)
{
    char path[sizeof(worker->directory) + 16];
    (void)snprintf(path, sizeof(path), "%s/cpu.sock", worker->directory);
    (void)unlink(path);
    (void)rmdir(worker->directory);
}

static void remove_objects(const char *prefix)
{
    DIR *directory = opendir("/dev/shm");
    assert_non_null(directory);
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        char name[sizeof(entry->d_name) + 2];
        (void)snprintf(name, sizeof(name), "/%s", entry->d_name);
        (void)shm_unlink(name);
    }
    closedir(directory);
}

int raw_worker_wait(struct raw_worker *worker)
{
    int status = 0;
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    pid_t pid;
    while ((pid = waitpid(worker->pid, &status, WNOHANG)) == 0 && raw_now_ms() < end_ms)
        raw_sleep_ms(5);
    if (pid == 0) {
        kill(worker->pid, SIGKILL);
        waitpid(worker->pid, &status, 0);
        fail_msg("the worker did not end");
    }
    worker->pid = 0;
    close(worker->control_fd);
    remove_objects(worker->shm_prefix + 1);
    remove_directory(worker);
    return status;
}

void raw_worker_stop(struct raw_worker *worker)
{
    struct control_message message = control_message_make(CONTROL_DRAIN, worker->epoch);
    message.u.drain.deadline_ms = RAW_TIMEOUT_MS / 2;
    assert_int_equal(control_send(worker->control_fd, &message, -1), 0);
    (void)wait_for(worker, CONTROL_DRAINED);
    int status = 0;
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    while (waitpid(worker->pid, &status, WNOHANG) == 0) {
        assert_true(raw_now_ms() < end_ms);
        raw_sleep_ms(5);
    }
    worker->pid = 0;
    close(worker->control_fd);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(raw_shm_num_objects(worker->shm_prefix + 1), 0);
    assert_int_equal(rmdir(worker->directory), 0); /* the socket file is gone */
}

uint32_t raw_worker_num_mappings(const struct raw_worker *worker, const char *text)
{
    char path[64], line[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)worker->pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    uint32_t num = 0;
    while (fgets(line, sizeof(line), file) != NULL)
        if (strstr(line, text) != NULL)
            num++;
    fclose(file);
    return num;
}

uint32_t raw_worker_num_fds(const struct raw_worker *worker)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)worker->pid);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    uint32_t num = 0;
    while (readdir(directory) != NULL)
        num++;
    closedir(directory);
    return num - 2;
}

uint32_t raw_shm_num_objects(const char *prefix)
{
    DIR *directory = opendir("/dev/shm");
    assert_non_null(directory);
    uint32_t num = 0;
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL)
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
            num++;
    closedir(directory);
    return num;
}
