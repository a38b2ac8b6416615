#include "histogram.h"

#include "text.h"

#include <inttypes.h>

#define SUB_BITS 5u /* log2 of HISTOGRAM_SUB */
#define POWERS (HISTOGRAM_BINS / HISTOGRAM_SUB)

uint32_t histogram_bin(uint64_t duration_ns)
{
    if (duration_ns < HISTOGRAM_SUB) {
        return (uint32_t)duration_ns;
    }
    uint32_t power = 63u - (uint32_t)__builtin_clzll(duration_ns);
    uint32_t sub = (uint32_t)(duration_ns >> (power - SUB_BITS)) - HISTOGRAM_SUB;
    uint32_t bin = (power - SUB_BITS + 1) * HISTOGRAM_SUB + sub;
    return bin < HISTOGRAM_BINS ? bin : HISTOGRAM_BINS - 1;
}

uint64_t histogram_low_ns(uint32_t bin)
{
    if (bin < HISTOGRAM_SUB) {
        return bin;
    }
    uint32_t shift = bin / HISTOGRAM_SUB - 1;
    return (uint64_t)(HISTOGRAM_SUB + bin % HISTOGRAM_SUB) << shift;
}

void histogram_add(struct histogram *histogram, uint64_t duration_ns)
{
    if (histogram->count == 0 || duration_ns < histogram->min_ns) {
        histogram->min_ns = duration_ns;
    }
    if (histogram->count == 0 || duration_ns > histogram->max_ns) {
        histogram->max_ns = duration_ns;
    }
    histogram->count++;
    histogram->sum_ns += duration_ns;
    histogram->bins[histogram_bin(duration_ns)]++;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    if (from->count == 0) {
        return;
    }
    if (into->count == 0 || from->min_ns < into->min_ns) {
        into->min_ns = from->min_ns;
    }
    if (into->count == 0 || from->max_ns > into->max_ns) {
        into->max_ns = from->max_ns;
    }
    into->count += from->count;
    into->sum_ns += from->sum_ns;
    for (uint32_t i = 0; i < HISTOGRAM_BINS; i++) {
        into->bins[i] += from->bins[i];
    }
}

uint64_t histogram_quantile_ns(const struct histogram *histogram, double part)
{
    double rank = part * (double)histogram->count;
    double below = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BINS; i++) {
        double here = (double)histogram->bins[i];
        if (here > 0 && below + here >= rank) {
            uint64_t low_ns = histogram_low_ns(i);
            double width_ns = (double)(histogram_low_ns(i + 1) - low_ns);
            uint64_t at_ns = low_ns + (uint64_t)(width_ns * (rank - below) / here);
            /* What was seen is known better than its bin. */
            at_ns = at_ns < histogram->min_ns ? histogram->min_ns : at_ns;
            return at_ns > histogram->max_ns ? histogram->max_ns : at_ns;
        }
        below += here;
    }
    return 0;
}

uint64_t histogram_log2_quantile_ns(const uint64_t *bins, uint32_t num_bins, double part)
{
    double total = 0;
    for (uint32_t i = 0; i < num_bins; i++) {
        total += (double)bins[i];
    }
    double below = 0;
    for (uint32_t i = 0; i < num_bins; i++) {
        double count = (double)bins[i];
        if (count > 0 && below + count >= part * total) {
            double low_ns = (double)(UINT64_C(1) << i);
            return (uint64_t)(low_ns * (1.0 + (part * total - below) / count));
        }
        below += count;
    }
    return 0;
}

void histogram_print(const struct histogram *histogram, unsigned columns, FILE *out)
{
    uint64_t powers[POWERS] = {0};
    uint64_t most = 1;
    for (uint32_t i = 0; i < HISTOGRAM_BINS; i++) {
        powers[i / HISTOGRAM_SUB] += histogram->bins[i];
    }
    uint32_t first = POWERS;
    uint32_t last = 0;
    for (uint32_t i = 0; i < POWERS; i++) {
        if (powers[i] > 0) {
            first = first == POWERS ? i : first;
            last = i;
            most = powers[i] > most ? powers[i] : most;
        }
    }
    const unsigned left = 36; /* what stands before a bar */
    unsigned room = columns > left + 10 ? columns - left : 10;
    for (uint32_t i = first; i <= last && first < POWERS; i++) {
        char low[TEXT_SIZE];
        char high[TEXT_SIZE];
        unsigned length = (unsigned)((double)powers[i] / (double)most * room + 0.5);
        fprintf(out, "%9s to %9s %11" PRIu64 "  ",
                text_duration(histogram_low_ns(i * HISTOGRAM_SUB), low),
                text_duration(histogram_low_ns((i + 1) * HISTOGRAM_SUB), high), powers[i]);
        for (unsigned j = 0; j < length; j++) {
            putc('#', out);
        }
        if (length == 0 && powers[i] > 0) {
            putc('.', out);
        }
        putc('\n', out);
    }
}
