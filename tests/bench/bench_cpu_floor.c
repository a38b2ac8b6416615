#include "bench_cpu_floor.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct bench_floor {
    uint32_t num_threads;
    pthread_t *threads;
    pthread_barrier_t begin, end; /* num_threads + the caller */
    bool stop;
    const float *scores;
    int64_t row_stride;
    const int32_t *lengths;
    int32_t num_rows, width;
    float bound;
    int64_t next_part; /* atomic */
    int64_t found;     /* atomic */
};

enum { PART_MAX = 65536 }; /* scores that a thread takes at a time */

/* One clone for each vector width, chosen when the program starts. */
#if defined(__x86_64__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
static int32_t
count_part(const float *scores, int32_t length, float bound)
{
    int32_t found = 0;
    for (int32_t i = 0; i < length; i++) {
        found += scores[i] >= bound;
    }
    return found;
}

static void *thread_main(void *argument)
{
    struct bench_floor *floor = argument;
    for (;;) {
        pthread_barrier_wait(&floor->begin);
        if (floor->stop) {
            return NULL;
        }
        int64_t found = 0;
        const int64_t parts_a_row = (floor->width + PART_MAX - 1) / PART_MAX;
        for (;;) {
            int64_t part = __atomic_fetch_add(&floor->next_part, 1, __ATOMIC_RELAXED);
            int64_t row = part / parts_a_row;
            if (row >= floor->num_rows) {
                break;
            }
            int32_t begin = (int32_t)(part % parts_a_row) * PART_MAX;
            int32_t length = floor->lengths != NULL ? floor->lengths[row] : floor->width;
            int32_t rest = length - begin < PART_MAX ? length - begin : PART_MAX;
            found +=
                count_part(floor->scores + row * floor->row_stride + begin, rest, floor->bound);
        }
        __atomic_fetch_add(&floor->found, found, __ATOMIC_RELAXED);
        pthread_barrier_wait(&floor->end);
    }
}

struct bench_floor *bench_floor_start(uint32_t num_threads)
{
    struct bench_floor *floor = calloc(1, sizeof(*floor));
    pthread_t *threads = calloc(num_threads, sizeof(*threads));
    if (floor == NULL || threads == NULL) {
        fprintf(stderr, "bench: no memory for %u threads\n", num_threads);
        exit(1);
    }
    floor->num_threads = num_threads;
    floor->threads = threads;
    pthread_barrier_init(&floor->begin, NULL, num_threads + 1);
    pthread_barrier_init(&floor->end, NULL, num_threads + 1);
    for (uint32_t i = 0; i < num_threads; i++) {
        if (pthread_create(&threads[i], NULL, thread_main, floor) != 0) {
            fprintf(stderr, "bench: thread %u of %u did not start\n", i + 1, num_threads);
            exit(1);
        }
    }
    return floor;
}

void bench_floor_stop(struct bench_floor *floor)
{
    floor->stop = true;
    pthread_barrier_wait(&floor->begin);
    for (uint32_t i = 0; i < floor->num_threads; i++) {
        pthread_join(floor->threads[i], NULL);
    }
    pthread_barrier_destroy(&floor->begin);
    pthread_barrier_destroy(&floor->end);
    free(floor->threads);
    free(floor);
}

int64_t bench_floor_run(struct bench_floor *floor, const float *scores, int64_t row_stride,
                        const int32_t *lengths, int32_t num_rows, int32_t width, float bound)
{
    floor->scores = scores;
    floor->row_stride = row_stride;
    floor->lengths = lengths;
    floor->num_rows = num_rows;
    floor->width = width;
    floor->bound = bound;
    floor->next_part = 0;
    floor->found = 0;
    pthread_barrier_wait(&floor->begin);
    pthread_barrier_wait(&floor->end);
    return floor->found;
}
