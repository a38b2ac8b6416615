#include "supervisor_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#define LOCK_NAME "topkd.lock"
#define PID_SIZE 16u

/* Error of mkdir or open on the folder: what to do about it. */
static int refuse_folder(const char *directory, const char *what, int error, char *text,
                         size_t text_size)
{
    const char *advice = "choose another folder with --socket-dir";
    int code = EX_CANTCREAT;
    if (error == EACCES || error == EPERM) {
        advice = "run as a user that may write there, let the administrator make the folder for "
                 "this user, or choose another one with --socket-dir";
        code = EX_NOPERM;
    } else if (error == ENOENT) {
        advice = "its parent folder must exist";
    } else if (error == ENOTDIR || error == ELOOP) {
        advice = "it must be a folder, not a file or a link";
    }
    snprintf(text, text_size, "%s: cannot %s the runtime folder: %s; %s", directory, what,
             strerror(error), advice);
    return code;
}

/* A folder that others can write to lets them replace our sockets. */
static int check_owner(const char *directory, const struct stat *status, char *text,
                       size_t text_size)
{
    if (status->st_uid != geteuid() && status->st_uid != 0) {
        snprintf(text, text_size,
                 "%s: the folder belongs to user %u, and this is user %u; use a folder of this "
                 "user or of root",
                 directory, status->st_uid, geteuid());
        return EX_NOPERM;
    }
    if (status->st_uid != geteuid() && (status->st_mode & 0022) != 0) {
        snprintf(text, text_size,
                 "%s: the folder has mode %04o, so that other users could replace the sockets; use "
                 "a folder of its own",
                 directory, status->st_mode & 07777);
        return EX_NOPERM;
    }
    return 0;
}

/* Group and mode as configured. Only on a folder of ours: one that root made stays as it is. */
static int dress(const char *directory, int fd, const struct stat *status,
                 const struct settings *settings, char *text, size_t text_size)
{
    if (status->st_uid != geteuid())
        return 0;
    if ((status->st_mode & S_ISVTX) != 0) { /* /tmp and its like, as root */
        snprintf(text, text_size,
                 "%s: this folder is shared by many programs (mode %04o) and keeps its mode; use a "
                 "folder of its own, for example %s/topkd",
                 directory, status->st_mode & 07777, directory);
        return EX_NOPERM;
    }
    if (settings->socket.group != SETTINGS_GROUP_NONE &&
        status->st_gid != (gid_t)settings->socket.group &&
        fchown(fd, (uid_t)-1, (gid_t)settings->socket.group) != 0) {
        snprintf(text, text_size,
                 "%s: cannot give the folder to group %lld (socket.group): %s; the daemon's user "
                 "must be a member of it",
                 directory, (long long)settings->socket.group, strerror(errno));
        return EX_NOPERM;
    }
    if ((status->st_mode & 07777) != settings->socket.directory_mode &&
        fchmod(fd, settings->socket.directory_mode) != 0) {
        snprintf(text, text_size, "%s: cannot set mode %04o (socket.directory_mode): %s", directory,
                 settings->socket.directory_mode, strerror(errno));
        return EX_NOPERM;
    }
    return 0;
}

/* The pid that the holder of the lock wrote, "unknown" when there is none (yet). */
static const char *read_pid(int fd, char pid[PID_SIZE])
{
    ssize_t size = pread(fd, pid, PID_SIZE - 1, 0);
    pid[size < 0 ? 0 : size] = '\0';
    size_t digits = strspn(pid, "0123456789");
    pid[digits] = '\0';
    return digits == 0 ? "unknown" : pid;
}

static int lock(const char *directory, int directory_fd, int *lock_fd_p, char *text,
                size_t text_size)
{
    char pid[PID_SIZE];
    int fd = openat(directory_fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        int code = errno == EACCES || errno == EPERM || errno == EROFS ? EX_NOPERM : EX_OSERR;
        snprintf(text, text_size,
                 "%s/" LOCK_NAME ": cannot be opened: %s; the daemon's user must be able to write "
                 "in the runtime folder",
                 directory, strerror(errno));
        return code;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        if (error == EWOULDBLOCK)
            snprintf(text, text_size,
                     "%s: another topkd (pid %s) serves this folder; stop it, or choose another "
                     "folder with --socket-dir",
                     directory, read_pid(fd, pid));
        else
            snprintf(text, text_size, "%s/" LOCK_NAME ": cannot be locked: %s", directory,
                     strerror(error));
        close(fd);
        return error == EWOULDBLOCK ? EX_TEMPFAIL : EX_OSERR;
    }
    int size = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)size, 0) != size) {
        snprintf(text, text_size, "%s/" LOCK_NAME ": cannot be written: %s", directory,
                 strerror(errno));
        close(fd);
        return EX_OSERR;
    }
    *lock_fd_p = fd; /* the file stays when we end: removing it would race with the next daemon */
    return 0;
}

int folder_open(const struct settings *settings, struct folder *folder_p, char *text,
                size_t text_size)
{
    const char *directory = settings->socket.directory;
    struct stat status;
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return refuse_folder(directory, "make", errno, text, text_size);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return refuse_folder(directory, "open", errno, text, text_size);
    if (fstat(fd, &status) != 0) {
        int code = refuse_folder(directory, "look at", errno, text, text_size);
        close(fd);
        return code;
    }
    int code = check_owner(directory, &status, text, text_size);
    if (code == 0)
        code = dress(directory, fd, &status, settings, text, text_size);
    if (code == 0)
        code = lock(directory, fd, &folder_p->lock_fd, text, text_size);
    close(fd);
    return code;
}

void folder_close(struct folder *folder)
{
    close(folder->lock_fd);
    folder->lock_fd = -1;
}
