/*
 * The ordered key against the comparison of floats, over every float: all 2^32 bit patterns in a
 * plain build, one chunk of neighbours in 257 (a prime, so that no bit stays fixed) in a sanitizer
 * build, which is some twenty times slower.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cpu/key.h"
#include "trial.h"

static int64_t step(void)
{
    return trial_is_sanitized() ? 257 : 1;
}

/*
 * Of the keys first + 1 ... first + count: how many break a rule. Each must map to a float above
 * that of the key before and back to itself, and the descending keys must fall. The two zeros
 * (keys -1 and 0) are equal, so that pair may be level.
 */
static int32_t count_wrong(int32_t first, int32_t count)
{
    int32_t wrong = 0;
    float before = topk_float_of(first);
    uint32_t down_before = topk_descending_key(before);
    for (int32_t key = first + 1; key <= first + count; key++) {
        float here = topk_float_of(key);
        uint32_t down = topk_descending_key(here);
        wrong += topk_key_of(here) != key;
        wrong += !(here > before) & !((key == 0) & (here == before));
        wrong += !(down < down_before) & !((key == 0) & (down == down_before));
        before = here;
        down_before = down;
    }
    return wrong;
}

static void keys_order_as_floats_do(void **state)
{
    (void)state;
    enum { CHUNK = 4096 };
    int64_t wrong = 0, key = TOPK_KEY_MINUS_INF;
    for (; key + CHUNK <= TOPK_KEY_PLUS_INF; key += CHUNK * step()) {
        wrong += count_wrong((int32_t)key, CHUNK);
    }
    wrong += count_wrong(TOPK_KEY_PLUS_INF - CHUNK, CHUNK);
    wrong += count_wrong(-CHUNK / 2, CHUNK);
    assert_int_equal(wrong, 0);
    assert_true(topk_float_of(TOPK_KEY_MINUS_INF) == -INFINITY);
    assert_true(topk_float_of(TOPK_KEY_PLUS_INF) == INFINITY);
}

static void the_next_float_is_the_next(void **state)
{
    (void)state;
    int64_t wrong = 0;
    for (int64_t key = TOPK_KEY_MINUS_INF; key < TOPK_KEY_PLUS_INF; key += 1021 * step()) {
        float value = topk_float_of((int32_t)key);
        wrong += topk_next_above(value) != nextafterf(value, INFINITY);
    }
    assert_int_equal(wrong, 0);
    assert_true(topk_next_above(-INFINITY) == -0x1.fffffep127f);
    assert_true(topk_next_above(-0.0f) == 0x1p-149f);
    assert_true(topk_next_above(0.0f) == 0x1p-149f);
    assert_true(isnan(topk_next_above(INFINITY)));
}

static void every_nan_sorts_last(void **state)
{
    (void)state;
    int64_t wrong = 0;
    for (uint32_t payload = 1; payload < 0x800000u; payload += (uint32_t)step()) {
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint32_t bits = (sign << 31) | 0x7f800000u | payload;
            float nan;
            memcpy(&nan, &bits, sizeof(nan));
            wrong += topk_descending_key(nan) != UINT32_MAX;
        }
    }
    assert_int_equal(wrong, 0);
    assert_true(topk_descending_key(-INFINITY) < UINT32_MAX);
    assert_int_equal(topk_descending_key(-0.0f), topk_descending_key(0.0f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_order_as_floats_do),
        cmocka_unit_test(the_next_float_is_the_next),
        cmocka_unit_test(every_nan_sorts_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
