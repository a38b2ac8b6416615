/*
 * float16.h - the numbers that float16 scores stand for, by the definition of the format; selectors
 * have code of their own. Used where rows are judged: `topkctl select --verify`, the examples.
 */
#ifndef TOPKCTL_FLOAT16_H
#define TOPKCTL_FLOAT16_H

#include <stddef.h>
#include <stdint.h>

/* numbers[count] from scores[count]; a NaN gives a NaN. */
void float16_widen(const uint16_t *scores, size_t count, float *numbers);

#endif
