/* daemon.c - starting and stopping the real daemon. */
#include "daemon.h"

#include "fake.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* after the three that it needs */
#include <cmocka.h>

void daemon_init(struct daemon *daemon)
{
    memset(daemon, 0, sizeof(*daemon));
    (void)snprintf(daemon->folder, sizeof(daemon->folder), "/tmp/topkd-it-XXXXXX");
    assert_non_null(mkdtemp(daemon->folder));
    (void)snprintf(daemon->url, sizeof(daemon->url), "ipc://%s/topkd.sock", daemon->folder);
}

void daemon_start(struct daemon *daemon)
{
    const char *argv[] = {TOPKD_PROGRAM, "--socket-dir", daemon->folder,        "--device", "cpu",
                          "--log-level", "error",        "--allow-shared-pid1", NULL};
    assert_int_equal(daemon->pid, 0);
    assert_int_equal(
        posix_spawn(&daemon->pid, TOPKD_PROGRAM, NULL, NULL, (char **)(uintptr_t)argv, environ), 0);
}

void daemon_stop(struct daemon *daemon)
{
    int end;
    pid_t pid;
    if (daemon->pid == 0) {
        return;
    }
    assert_int_equal(kill(daemon->pid, SIGTERM), 0);
    do {
        pid = waitpid(daemon->pid, &end, 0);
    } while (pid < 0 && errno == EINTR);
    assert_int_equal(pid, daemon->pid);
    daemon->pid = 0;
    assert_true(WIFEXITED(end));
    assert_int_equal(WEXITSTATUS(end), 0);
}

void daemon_fini(struct daemon *daemon)
{
    daemon_stop(daemon);
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", daemon->folder);
    assert_int_equal(system(command), 0);
}

/* The first child of a process, 0 when it has none. */
static pid_t child_of(pid_t pid)
{
    char path[64];
    int child = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &child) != 1) {
            child = 0;
        }
        (void)fclose(file);
    }
    return child;
}

pid_t daemon_worker(const struct daemon *daemon, pid_t other)
{
    pid_t worker = 0;
    for (int i = 0; i < WAIT_MS / 5 && (worker == 0 || worker == other); i++) {
        worker = child_of(daemon->pid);
        usleep(5000);
    }
    assert_true(worker != 0 && worker != other);
    return worker;
}

struct topkd_client *daemon_client(const struct daemon *daemon,
                                   const struct topkd_client_options *options)
{
    struct topkd_client_options with_url = {0};
    if (options) {
        with_url = *options;
    }
    with_url.url = daemon->url;
    if (with_url.timeout_ms == 0) {
        with_url.timeout_ms = 30000;
    }
    struct topkd_client *client = NULL;
    expect_ok(topkd_client_open(&with_url, &client));
    return client;
}
