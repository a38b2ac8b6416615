#include "process_watch.h"

#include "assert.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

static void poll_callback(uv_poll_t *poll, int status, int events)
{
    struct process_watch *watch = poll->data;
    (void)status;
    (void)events;
    uv_poll_stop(poll);
    watch->died(watch);
}

int process_watch_open(struct process_watch *watch, uv_loop_t *loop, int64_t pid,
                       void (*died)(struct process_watch *watch))
{
    if (pid <= 0)
        return -ESRCH;
    long fd = syscall(SYS_pidfd_open, (pid_t)pid, 0); /* close-on-exec by itself */
    if (fd < 0)
        return -errno;
    int error = uv_poll_init(loop, &watch->poll, (int)fd);
    if (error != 0) {
        close((int)fd);
        return error;
    }
    watch->poll.data = watch;
    watch->pidfd = (int)fd;
    watch->died = died;
    error = uv_poll_start(&watch->poll, UV_READABLE, poll_callback);
    topkd_assert(error == 0);
    return 0;
}

static void close_callback(uv_handle_t *handle)
{
    struct process_watch *watch = handle->data;
    close(watch->pidfd);
    watch->closed(watch);
}

void process_watch_close(struct process_watch *watch, void (*closed)(struct process_watch *watch))
{
    watch->closed = closed;
    uv_close((uv_handle_t *)&watch->poll, close_callback);
}
