#include "stats.h"

uint32_t stats_bin(uint64_t latency_ns)
{
    uint32_t bin = latency_ns < 2 ? 0u : 63u - (uint32_t)__builtin_clzll(latency_ns);
    return bin < WIRE_HISTOGRAM_BINS ? bin : WIRE_HISTOGRAM_BINS - 1;
}

void stats_request_done(struct wire_stats_reply *stats, enum topkd_status status,
                        uint64_t request_ns, uint64_t run_ns)
{
    stats->requests++;
    if (status != TOPKD_OK)
        stats->requests_failed++;
    stats->request_ns_sum += request_ns;
    stats->request_ns_bins[stats_bin(request_ns)]++;
    if (run_ns > 0) {
        stats->run_ns_sum += run_ns;
        stats->run_ns_bins[stats_bin(run_ns)]++;
    }
}

void stats_request_refused(struct wire_stats_reply *stats)
{
    stats->requests++;
    stats->requests_failed++;
}

void stats_set_routes(struct wire_stats_reply *stats, const struct topk_routes *routes)
{
    stats->rows_copied = routes->copied;
    stats->rows_direct = routes->direct;
    stats->rows_certified = routes->certified;
    stats->rows_band = routes->band;
    stats->rows_recovery = routes->recovery;
    stats->rows_spill = routes->spill;
    stats->rows_clamped = routes->clamped;
    stats->scores_read = routes->scores_read;
}
