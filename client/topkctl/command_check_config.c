/* topkctl check-config: the settings belong to the daemon's program, so that program is asked. */
#include "ctl.h"

#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* "topkd" beside this program or in the sbin beside its folder; "topkd" alone for the PATH. */
static void find_daemon(char path[PATH_MAX])
{
    static const char *const places[] = {"topkd", "../sbin/topkd"};
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0) {
        self[length] = '\0';
        *strrchr(self, '/') = '\0';
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            int written = snprintf(path, PATH_MAX, "%s/%s", self, places[i]);
            if (written < PATH_MAX && access(path, X_OK) == 0) {
                return;
            }
        }
    }
    snprintf(path, PATH_MAX, "topkd");
}

enum ctl_exit command_check_config(const struct ctl_options *options)
{
    char path[PATH_MAX];
    find_daemon(path);
    const char *const arguments[] = {
        path, "--check-config", "--config", options->operand, options->json ? "--json" : NULL,
        NULL};
    pid_t pid;
    /* posix_spawnp takes char * for historical reasons and does not write to them. */
    int error = posix_spawnp(&pid, path, NULL, NULL, (char *const *)arguments, environ);
    if (error != 0) {
        return report_failure(
            options, CTL_EXIT_FAILED,
            "check-config: topkd, which checks its own settings, was not found "
            "beside topkctl or on PATH (%s); install it or add its folder to PATH",
            strerror(error));
    }
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return report_failure(options, CTL_EXIT_FAILED, "check-config: waiting for %s: %s",
                                  path, strerror(errno));
        }
    }
    if (WIFSIGNALED(status)) {
        return report_failure(options, CTL_EXIT_FAILED, "check-config: %s ended by signal %d", path,
                              WTERMSIG(status));
    }
    /* topkd has said what is wrong; its codes tell unreadable from invalid, ours do not. */
    return WEXITSTATUS(status) == 0 ? CTL_EXIT_OK : CTL_EXIT_FAILED;
}
