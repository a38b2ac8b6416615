/*
 * Bit masks of vector lanes and what else the files for x86 vectors share. They are compiled with
 * BMI1, POPCNT and F16C.
 *
 * topk_lanes[mask]: the numbers of the set bits of an 8-bit mask, lowest first, a byte each, the
 * rest 0. AVX2 has no compress instruction; a permutation by this table takes its place.
 */
#ifndef TOPKSEL_CPU_LANES_H
#define TOPKSEL_CPU_LANES_H

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define BIT(m, b) (((uint64_t)(m) >> (b)) & 1u)
#define BELOW2(m) (BIT(m, 0) + BIT(m, 1))
#define BELOW3(m) (BELOW2(m) + BIT(m, 2))
#define BELOW4(m) (BELOW3(m) + BIT(m, 3))
#define BELOW5(m) (BELOW4(m) + BIT(m, 4))
#define BELOW6(m) (BELOW5(m) + BIT(m, 5))
#define BELOW7(m) (BELOW6(m) + BIT(m, 6))
#define LANE(m, b, below) ((BIT(m, b) * (b)) << (8u * (below)))
#define LANES_1(m)                                                                                 \
    (LANE(m, 1, BIT(m, 0)) | LANE(m, 2, BELOW2(m)) | LANE(m, 3, BELOW3(m)) |                       \
     LANE(m, 4, BELOW4(m)) | LANE(m, 5, BELOW5(m)) | LANE(m, 6, BELOW6(m)) |                       \
     LANE(m, 7, BELOW7(m)))
#define LANES_4(m) LANES_1(m), LANES_1((m) + 1), LANES_1((m) + 2), LANES_1((m) + 3)
#define LANES_16(m) LANES_4(m), LANES_4((m) + 4), LANES_4((m) + 8), LANES_4((m) + 12)
#define LANES_64(m) LANES_16(m), LANES_16((m) + 16), LANES_16((m) + 32), LANES_16((m) + 48)

static const uint64_t topk_lanes[256]
    __attribute__((unused)) = {LANES_64(0), LANES_64(64), LANES_64(128), LANES_64(192)};

#undef BIT
#undef BELOW2
#undef BELOW3
#undef BELOW4
#undef BELOW5
#undef BELOW6
#undef BELOW7
#undef LANE
#undef LANES_1
#undef LANES_4
#undef LANES_16
#undef LANES_64

/* The processor has the small instructions that all vector files are compiled with. */
static inline bool topk_lanes_usable(void)
{
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static inline float float16_value(uint16_t bits)
{
    return _cvtsh_ss(bits);
}

/* The lowest *num_ties_p set bits of ties; takes them off *num_ties_p. */
static inline uint32_t topk_first_ties(uint32_t ties, int32_t *num_ties_p)
{
    int32_t count = __builtin_popcount(ties);
    if (count <= *num_ties_p) {
        *num_ties_p -= count;
        return ties;
    }
    uint32_t taken = 0;
    for (; *num_ties_p > 0; ties &= ties - 1, (*num_ties_p)--) {
        taken |= ties & (0u - ties);
    }
    return taken;
}

#endif
