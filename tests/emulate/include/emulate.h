/*
 * emulate.h - what a test may ask of the model of a GPU beyond CUDA.
 */
#ifndef TOPKD_EMULATE_EMULATE_H
#define TOPKD_EMULATE_EMULATE_H

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

#ifdef __cplusplus
}
#endif

#endif
