/* fake_wall.c - what blocks while a stream of the process waits: FAKE_CUDA_WALL. */
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void fake_pause_us(long us)
{
    const struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    (void)nanosleep(&pause, NULL);
}

static uint32_t num_waiting; /* streams inside a wait */
static uint32_t num_met;     /* calls that stand at the wall */

static bool has_wall(void)
{
    const char *text = getenv("FAKE_CUDA_WALL");
    return text != NULL && text[0] == '1';
}

void fake_wall_meet(const char *call)
{
    if (!has_wall())
        return;
    __atomic_fetch_add(&num_met, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; __atomic_load_n(&num_waiting, __ATOMIC_SEQ_CST) > 0; i++) {
        if (i == 50000) {
            fprintf(stderr,
                    "fake_cuda: %s was called while a stream waits, and nobody released it\n",
                    call);
            abort();
        }
        fake_pause_us(100);
    }
    __atomic_fetch_sub(&num_met, 1, __ATOMIC_SEQ_CST);
}

void fake_wall_pass(void)
{
    while (__atomic_load_n(&num_met, __ATOMIC_SEQ_CST) > 0)
        fake_pause_us(50);
}

void fake_wait_begin(void)
{
    __atomic_fetch_add(&num_waiting, 1, __ATOMIC_SEQ_CST);
}

void fake_wait_end(void)
{
    __atomic_fetch_sub(&num_waiting, 1, __ATOMIC_SEQ_CST);
}
