#include "supervisor_system.h"

#include "supervisor_gpus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#ifdef TOPKD_WITH_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

/* Linux gives the initial PID namespace this inode (include/linux/proc_ns.h: PROC_PID_INIT_INO). */
#define INITIAL_PID_NAMESPACE 0xEFFFFFFCu

uint64_t system_epoch(void)
{
    static uint64_t last;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t epoch = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    last = epoch > last ? epoch : last + 1;
    return last;
}

void system_hold_reload(bool is_held)
{
    sigset_t reload;
    sigemptyset(&reload);
    sigaddset(&reload, SIGHUP);
    sigprocmask(is_held ? SIG_BLOCK : SIG_UNBLOCK, &reload, NULL);
}

void system_prepare_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* the lower limit serves as well, for fewer */
    }
    /* Otherwise a socket could become the standard error and receive the log. */
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

int system_seal_settings(const struct settings *settings)
{
    int error;
    int fd = memfd_create("topkd-settings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    int write_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = write_fd < 0 ? NULL : fdopen(write_fd, "w");
    if (file == NULL) {
        error = errno;
        if (write_fd >= 0)
            close(write_fd);
        goto err_close;
    }
    settings_print(settings, false, file);
    error = ferror(file) != 0 ? EIO : 0;
    if (fclose(file) != 0 && error == 0)
        error = errno;
    if (error != 0)
        goto err_close;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
        error = errno;
        goto err_close;
    }
    return fd;

err_close:
    close(fd);
    return -error;
}

/* ---- PID 1 ----------------------------------------------------------------------------------- */

/* Another process of our PID namespace, 0 if there is none: at our start nothing descends from us,
 * so it came from outside (a shared namespace, or one we were put into as its first process). */
static pid_t find_other_process(void)
{
    pid_t other = 0;
    DIR *folder = opendir("/proc");
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; other == 0 && (entry = readdir(folder)) != NULL;) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1)
            other = (pid_t)pid;
    }
    closedir(folder);
    return other;
}

int system_check_pid1(bool allow_shared, char *text, size_t text_size)
{
    struct stat status;
    if (getpid() != 1)
        return 0;
    if (stat("/proc/self/ns/pid", &status) == 0 && status.st_ino == INITIAL_PID_NAMESPACE) {
        snprintf(text, text_size,
                 "refusing to run as PID 1 of the machine: the kernel panics when "
                 "PID 1 ends; start topkd from an init system");
        return EX_CONFIG;
    }
    pid_t other = find_other_process();
    if (other != 0 && !allow_shared) {
        snprintf(text, text_size,
                 "refusing to run as PID 1 of a PID namespace with other processes (pid %d): when "
                 "topkd ends or restarts, the kernel kills all of them; run it beside an init "
                 "(docker run --init, tini, a pod's pause process), or accept it with "
                 "--allow-shared-pid1",
                 (int)other);
        return EX_CONFIG;
    }
    return 0;
}

static bool contains(const pid_t *pids, uint32_t num_pids, pid_t pid)
{
    for (uint32_t i = 0; i < num_pids; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

void system_reap_orphans(const pid_t *pids, uint32_t num_pids)
{
    for (;;) {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        /* One of libuv's hides the others until libuv has taken it; then we are called again. */
        if (contains(pids, num_pids, info.si_pid))
            return;
        waitpid(info.si_pid, NULL, WNOHANG);
    }
}

/* ---- Devices --------------------------------------------------------------------------------- */

bool system_resolve_devices(const struct settings *settings, bool serves_gpus,
                            struct settings_device *devices_p, uint32_t *num_devices_p, char *text,
                            size_t text_size)
{
    if (strcmp(settings->devices[0].device, "auto") == 0) {
        *num_devices_p = serves_gpus ? gpus_find("/proc/driver/nvidia/gpus", "/dev", devices_p,
                                                 SETTINGS_DEVICES_MAX)
                                     : 0;
        if (*num_devices_p == 0) {
            devices_p[0] = settings->devices[0];
            strcpy(devices_p[0].device, "cpu");
            *num_devices_p = 1;
        }
        return true;
    }
    for (uint32_t i = 0; i < settings->num_devices; i++) {
        devices_p[i] = settings->devices[i];
        if (strcmp(devices_p[i].device, "cpu") != 0 && !serves_gpus) {
            snprintf(text, text_size,
                     "%s: this topkd was built without CUDA and serves no GPU; build it with "
                     "-DTOPKD_CUDA=ON, or configure the device cpu",
                     devices_p[i].device);
            return false;
        }
    }
    *num_devices_p = settings->num_devices;
    return true;
}

/* ---- Socket activation ------------------------------------------------------------------------
 */

#define ACTIVATION_FD 3 /* the first of those handed over; sd_listen_fds(3) */

static bool listens_at(int fd, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof address;
    int type = 0, listens = 0;
    socklen_t type_size = sizeof type, listens_size = sizeof listens;
    return getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) == 0 &&
           address.sun_family == AF_UNIX && type == SOCK_STREAM && listens != 0 &&
           strncmp(address.sun_path, path, sizeof address.sun_path) == 0;
}

bool system_activation(const char *path, int *fd_p, char *text, size_t text_size)
{
    const char *pid = getenv("LISTEN_PID"), *num_fds = getenv("LISTEN_FDS");
    bool is_ours = pid != NULL && num_fds != NULL && strtol(pid, NULL, 10) == (long)getpid();
    bool is_one = is_ours && strcmp(num_fds, "1") == 0;
    *fd_p = -1;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (!is_ours)
        return true;
    if (!is_one || !listens_at(ACTIVATION_FD, path)) {
        snprintf(text, text_size,
                 "socket activation: want one stream socket that listens at %s (ListenStream= of "
                 "topkd.socket, which must be socket.directory and topkd.sock)",
                 path);
        return false;
    }
    if (fcntl(ACTIVATION_FD, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(ACTIVATION_FD, F_SETFL, O_NONBLOCK) != 0) {
        snprintf(text, text_size, "socket activation: %s", strerror(errno));
        return false;
    }
    *fd_p = ACTIVATION_FD;
    return true;
}

/* ---- systemd --------------------------------------------------------------------------------- */

#ifdef TOPKD_WITH_SYSTEMD

void system_notify(const char *state)
{
    (void)sd_notify(0, state); /* nobody to tell when it fails */
}

uint64_t system_watchdog_ms(void)
{
    uint64_t interval_us = 0;
    return sd_watchdog_enabled(0, &interval_us) > 0 ? interval_us / 2000 + 1 : 0;
}

#else

void system_notify(const char *state)
{
    (void)state;
}

uint64_t system_watchdog_ms(void)
{
    return 0;
}

#endif

void system_notify_status(const char *status)
{
    char state[512];
    snprintf(state, sizeof state, "STATUS=%s", status);
    system_notify(state);
}

void system_notify_reloading(void)
{
    char state[96];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%lld%06ld", (long long)now.tv_sec,
             now.tv_nsec / 1000);
    system_notify(state);
}
