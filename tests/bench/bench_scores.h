/*
 * bench_scores.h - what the benchmarks of the service and of enqueueing share: scores and a clock.
 */
#ifndef TOPKD_TESTS_BENCH_SCORES_H
#define TOPKD_TESTS_BENCH_SCORES_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

static inline double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Scores of a bell-like shape (sums of four uniforms), the same in every run. */
static inline void fill_scores(float *scores, size_t count)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        scores[i] = (float)((state & 0xffff) + (state >> 16 & 0xffff) + (state >> 32 & 0xffff) +
                            (state >> 48)) /
                        65536.0f -
                    2.0f;
    }
}

#endif
