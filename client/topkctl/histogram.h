/*
 * histogram.h - latencies counted in bins of three percent: 32 bins between a power of two and the
 * next. Plain data, one writer.
 */
#ifndef TOPKCTL_HISTOGRAM_H
#define TOPKCTL_HISTOGRAM_H

#include <stdint.h>
#include <stdio.h>

#define HISTOGRAM_SUB 32u    /* bins of a power of two */
#define HISTOGRAM_BINS 1184u /* up to 2^41 ns, 37 minutes; the last one is open */

struct histogram {
    uint64_t count, sum_ns, min_ns, max_ns; /* min and max mean nothing while count is 0 */
    uint64_t bins[HISTOGRAM_BINS];
};

uint32_t histogram_bin(uint64_t duration_ns);
uint64_t histogram_low_ns(uint32_t bin); /* of the bin; that of the next is its end */

void histogram_add(struct histogram *histogram, uint64_t duration_ns);
void histogram_merge(struct histogram *into, const struct histogram *from);

/* The duration that this part (0 to 1) of the counted ones do not exceed, to within a bin; 0 when
 * nothing was counted. */
uint64_t histogram_quantile_ns(const struct histogram *histogram, double part);

/*
 * The same for bins of a factor of two, as the daemon counts: bin i holds [2^i, 2^(i+1)) ns. Placed
 * in its bin in proportion, so it is only about right. 0 when nothing was counted.
 */
uint64_t histogram_log2_quantile_ns(const uint64_t *bins, uint32_t num_bins, double part);

/* A bar for each power of two that has any, as wide as `columns` allows. */
void histogram_print(const struct histogram *histogram, unsigned columns, FILE *out);

#endif
