/* float16.c - the numbers that float16 scores stand for. */
#include "float16.h"

#include <math.h>
#include <string.h>

static float number_of(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float number = exponent == 0 ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(1024 + fraction), exponent - 25);
    if (exponent == 31) {
        uint32_t image = 0x7f800000u | (fraction != 0 ? 0x00400000u : 0) | (uint32_t)fraction << 13;
        memcpy(&number, &image, sizeof(number));
    }
    return bits >> 15 != 0 ? -number : number;
}

void float16_widen(const uint16_t *scores, size_t count, float *numbers)
{
    for (size_t i = 0; i < count; i++) {
        numbers[i] = number_of(scores[i]);
    }
}
