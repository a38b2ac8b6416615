/*
 * emulate.h - what a test may ask of the model of a GPU beyond CUDA.
 */
#ifndef TOPKD_EMULATE_EMULATE_H
#define TOPKD_EMULATE_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pretends the device of this name, before the first CUDA call; ends the program when there is
 * none. Without: that of TOPKD_EMULATE_DEVICE, else a small one. */
void emulate_device(const char *name);

/* Draws the schedules from here on from this seed. Without: TOPKD_EMULATE_SEED, else 1. */
void emulate_seed(uint64_t seed);

/* The number of what is tested now, to be printed when a kernel does what it must not. */
void emulate_case(uint64_t number);

/* Lends memory of the test's own to the device, until it is taken back; it need not all be
 * accessible. */
void emulate_lend(void *memory, size_t size_bytes);
void emulate_take_back(void *memory);

/* Calls `meddle` from here on wherever threads may switch, on the stack of a CUDA thread: it may
 * write to memory that kernels read, as another process would, but call nothing of CUDA. NULL: no
 * more. What was enqueued before is run first. */
void emulate_on_switch(void (*meddle)(void *context), void *context);

#ifdef __cplusplus
}
#endif

#endif
