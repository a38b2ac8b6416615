/* Latencies in bins: where each goes, and the percentiles that come out. */
#include "histogram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bins follow each other without a gap, and each is at most a 32nd of its value wide. */
static void hi_01_bins(void **state)
{
    (void)state;
    for (uint32_t bin = 0; bin + 1 < HISTOGRAM_BINS; bin++) {
        uint64_t low = histogram_low_ns(bin);
        uint64_t end = histogram_low_ns(bin + 1);
        assert_true(low < end);
        assert_int_equal(histogram_bin(low), bin);
        assert_int_equal(histogram_bin(end - 1), bin);
        assert_true(end - low == 1 || (end - low) * HISTOGRAM_SUB <= low);
    }
    assert_int_equal(histogram_bin(UINT64_MAX), HISTOGRAM_BINS - 1);
    assert_true(histogram_low_ns(HISTOGRAM_BINS - 1) > UINT64_C(1000000000) * 2000);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Against a sorted list, for latencies over nine powers of ten. */
static void hi_02_quantiles(void **state)
{
    enum { COUNT = 5000 };
    static uint64_t values[COUNT];
    struct histogram *histogram = calloc(1, sizeof(*histogram));
    uint64_t random = 88172645463325252u;
    (void)state;
    assert_non_null(histogram);
    for (int i = 0; i < COUNT; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        values[i] = (random >> 24) >> (random % 38);
        histogram_add(histogram, values[i]);
    }
    qsort(values, COUNT, sizeof(values[0]), ascending);
    assert_int_equal(histogram->count, COUNT);
    assert_int_equal(histogram->min_ns, values[0]);
    assert_int_equal(histogram->max_ns, values[COUNT - 1]);
    for (int percent = 1; percent < 100; percent++) {
        int rank = COUNT * percent / 100;
        double wanted = (double)values[rank - 1];
        double found = (double)histogram_quantile_ns(histogram, percent / 100.0);
        if (found < wanted * 0.96 - 1 || found > wanted * 1.04 + 1) {
            fail_msg("p%d is %f, wanted about %f", percent, found, wanted);
        }
    }
    assert_int_equal(histogram_quantile_ns(histogram, 1.0), values[COUNT - 1]);
    free(histogram);
}

static void hi_03_merge(void **state)
{
    static struct histogram a, b, both, none;
    (void)state;
    for (uint64_t i = 1; i < 1000; i++) {
        histogram_add(i % 3 == 0 ? &a : &b, i * i);
        histogram_add(&both, i * i);
    }
    histogram_merge(&a, &none);
    histogram_merge(&a, &b);
    assert_memory_equal(&a, &both, sizeof(a));
    histogram_merge(&none, &a);
    assert_memory_equal(&none, &both, sizeof(a));
}

static void hi_04_nothing_counted(void **state)
{
    static const struct histogram none;
    static const uint64_t bins[40];
    (void)state;
    assert_int_equal(histogram_quantile_ns(&none, 0.5), 0);
    assert_int_equal(histogram_log2_quantile_ns(bins, 40, 0.5), 0);
}

static void hi_05_bins_of_a_factor_of_two(void **state)
{
    uint64_t bins[40] = {0};
    (void)state;
    bins[10] = 100; /* evenly over [1024, 2048) */
    assert_int_equal(histogram_log2_quantile_ns(bins, 40, 0.5), 1536);
    bins[20] = 100;
    assert_int_equal(histogram_log2_quantile_ns(bins, 40, 0.5), 2048);
    assert_int_equal(histogram_log2_quantile_ns(bins, 40, 0.75), (1 << 20) + (1 << 19));
}

static void hi_06_bars(void **state)
{
    static struct histogram histogram;
    char *text = NULL;
    size_t size = 0;
    (void)state;
    for (int i = 0; i < 100; i++) {
        histogram_add(&histogram, 1500);
    }
    histogram_add(&histogram, 5000);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    histogram_print(&histogram, 60, out);
    fclose(out);
    assert_string_equal(text, "  1.02 us to   2.05 us         100  ########################\n"
                              "  2.05 us to   4.10 us           0  \n"
                              "  4.10 us to   8.19 us           1  .\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hi_01_bins),
        cmocka_unit_test(hi_02_quantiles),
        cmocka_unit_test(hi_03_merge),
        cmocka_unit_test(hi_04_nothing_counted),
        cmocka_unit_test(hi_05_bins_of_a_factor_of_two),
        cmocka_unit_test(hi_06_bars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
