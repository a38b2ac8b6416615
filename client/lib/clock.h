/*
 * clock.h - deadlines. All times are nanoseconds of CLOCK_MONOTONIC, which no adjustment of the
 * wall clock moves.
 */
#ifndef TOPKD_CLIENT_CLOCK_H
#define TOPKD_CLIENT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define CLOCK_NS_PER_MS UINT64_C(1000000)
#define CLOCK_NS_PER_S UINT64_C(1000000000)
#define CLOCK_NEVER UINT64_MAX

static inline uint64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* The deadline that many milliseconds from now. */
static inline uint64_t clock_after_ms(uint64_t ms)
{
    return clock_now_ns() + ms * CLOCK_NS_PER_MS;
}

static inline bool clock_passed(uint64_t deadline_ns)
{
    return clock_now_ns() >= deadline_ns;
}

static inline uint64_t clock_earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* Milliseconds until the deadline, rounded up; 0 when it has passed, at most INT32_MAX. */
static inline int32_t clock_left_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_now_ns();
    if (deadline_ns <= now_ns) {
        return 0;
    }
    uint64_t left_ms = (deadline_ns - now_ns - 1) / CLOCK_NS_PER_MS + 1;
    return left_ms > INT32_MAX ? INT32_MAX : (int32_t)left_ms;
}

static inline struct timespec clock_timespec(uint64_t ns)
{
    struct timespec time = {
        .tv_sec = (time_t)(ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(ns % CLOCK_NS_PER_S),
    };
    return time;
}

#endif
