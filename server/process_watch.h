/*
 * process_watch.h - learn on the loop that a process has died (pidfd), whoever inherited its
 * sockets. For the loop thread; the struct is the caller's until its close callback.
 */
#ifndef TOPKD_SERVER_PROCESS_WATCH_H
#define TOPKD_SERVER_PROCESS_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct process_watch {
    uv_poll_t poll;
    int pidfd;
    void (*died)(struct process_watch *watch); /* once; may close the watch */
    void (*closed)(struct process_watch *watch);
};

/* 0, or -errno (-ESRCH: dead already; -ENOSYS, -EMFILE, ...: cannot be watched). */
int process_watch_open(struct process_watch *watch, uv_loop_t *loop, int64_t pid,
                       void (*died)(struct process_watch *watch));

/* closed(watch) follows from the loop; the memory must live until then. */
void process_watch_close(struct process_watch *watch, void (*closed)(struct process_watch *watch));

#endif
