/*
 * chaos_clock.so - preloaded, it moves the wall clock of a process: the first 8 bytes of the file
 * $TOPKD_CHAOS_CLOCK are nanoseconds added to it, read anew each time, so that it jumps when they
 * change. The monotonic clocks stay as they are.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset_ns;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("TOPKD_CHAOS_CLOCK");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *base = mmap(NULL, sizeof(*offset_ns), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (base != MAP_FAILED)
        offset_ns = base;
}

static int next_clock_gettime(clockid_t id, struct timespec *time_p)
{
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    return next(id, time_p);
}

int clock_gettime(clockid_t id, struct timespec *time_p)
{
    int result = next_clock_gettime(id, time_p);
    if (result == 0 && offset_ns != NULL && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = time_p->tv_nsec + *(const volatile int64_t *)offset_ns % 1000000000;
        time_p->tv_sec += *(const volatile int64_t *)offset_ns / 1000000000;
        if (ns >= 1000000000 || ns < 0) {
            int64_t carry = ns < 0 ? -1 : 1;
            time_p->tv_sec += carry;
            ns -= carry * 1000000000;
        }
        time_p->tv_nsec = ns;
    }
    return result;
}

int gettimeofday(struct timeval *restrict time_p, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    *time_p = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *time_p)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (time_p != NULL)
        *time_p = now.tv_sec;
    return now.tv_sec;
}
