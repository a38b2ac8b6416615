/* bench_usage.h - what the threads of a daemon's worker and of its clients did, by /proc. */
#ifndef TOPKD_BENCH_USAGE_H
#define TOPKD_BENCH_USAGE_H

#include <sys/types.h>

/* Of all threads of some processes: time on a processor, time in wait for one, times begun. */
struct usage {
    double cpu_us, wait_us, turns;
};

/* [0] the worker, [1] the clients together; zeros when `worker` is 0. */
void usage_read(pid_t worker, const pid_t *clients, int num, struct usage usage[2]);

#endif
