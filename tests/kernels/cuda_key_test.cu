/*
 * The key map of the CUDA families, on the host: order, boundaries and the exact ends of coarse
 * bins. Needs nvcc to build, no GPU to run.
 */
#include "cuda/key.cuh"

#include <cmath>
#include <cstdio>
#include <cstring>

static int num_failed;

static void expect(bool good, const char *what, uint32_t a, uint32_t b)
{
    if (!good) {
        num_failed++;
        printf("FAILED %s: 0x%08x 0x%08x\n", what, a, b);
    }
}

static float score_of(uint32_t bits)
{
    float score;
    memcpy(&score, &bits, sizeof(score));
    return score;
}

/* A pair of scores: keys rank as the contract says, and boundaries admit what they should. */
static void check_pair(uint32_t a_bits, uint32_t b_bits)
{
    const float a = score_of(a_bits), b = score_of(b_bits);
    const uint32_t a_key = key_of_bits(a_bits), b_key = key_of_bits(b_bits);
    bool above = std::isnan(b) ? !std::isnan(a) : a > b;
    expect((a_key > b_key) == above, "order", a_bits, b_bits);
    if (!std::isnan(a) && b_key > KEY_NAN) {
        bool admitted = a >= score_of(key_floor_bits(b_key));
        expect(admitted == (a_key >= b_key), "floor", a_bits, b_bits);
        bool later = a >= score_of(key_floor_bits(b_key + 1));
        expect(later == (a_key > b_key), "floor of the next key", a_bits, b_bits);
    }
}

int main()
{
    /* Around every exponent of either sign, the specials among them. */
    static const uint32_t mantissas[] = {0, 1, 2, 0x3fffff, 0x400000, 0x7ffffe, 0x7fffff};
    uint32_t samples[2 * 256 * 7], count = 0;
    for (uint32_t top = 0; top < 512; top++) {
        for (uint32_t mantissa : mantissas) {
            samples[count++] = top << 23 | mantissa;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++) {
            check_pair(samples[i], samples[j]);
        }
        uint32_t key = key_of_bits(samples[i]);
        expect(key >= KEY_NAN, "0 is no score", samples[i], key);
        expect(key_of_bits(key_to_bits(key)) == key, "there and back", samples[i], key);
    }
    for (uint32_t bin = 0; bin < TOPK_BINS; bin++) {
        uint32_t low = coarse_floor(bin);
        expect(coarse_bin(low) == bin, "lowest key of a bin", bin, low);
        expect(bin == 0 || coarse_bin(low - 1) == bin - 1, "the key below it", bin, low);
    }
    for (uint32_t span = 1; span != 0; span <<= 1) {
        const uint32_t spans[] = {span - 1, span, span + 1, 2 * span - 1};
        for (uint32_t s : spans) {
            uint32_t shift = range_shift(s);
            expect((s >> shift) < TOPK_BINS, "a range fits its bins", s, shift);
            expect(shift == 0 || (s >> (shift - 1)) >= TOPK_BINS, "as fine as can be", s, shift);
        }
    }
    printf("%s\n", num_failed == 0 ? "ok" : "FAILED");
    return num_failed == 0 ? 0 : 1;
}
