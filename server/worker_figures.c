/* What the supervisor may read of this worker at any time: figures.h. */
#include "worker_internal.h"

#include <string.h>

static void describe_buckets(const struct bucket_table *table, struct figures *figures)
{
    for (uint32_t i = 0; i < table->num_buckets && i < WIRE_BUCKETS_MAX; i++) {
        const struct bucket *bucket = &table->buckets[i];
        figures->buckets[i] = (struct figures_bucket){
            .alignment_bytes = bucket->key.alignment_bytes,
            .order = (uint8_t)bucket->key.options.order,
            .ties = (uint8_t)bucket->key.options.ties,
            .dtype = (uint8_t)bucket->key.options.dtype,
            .is_pinned = bucket->is_pinned,
            .has_values = bucket->key.has_values,
            .has_page_table = bucket->key.has_page_table,
            .has_row_offsets = bucket->key.has_row_offsets,
            .misses = __atomic_load_n(&bucket->num_misses, __ATOMIC_RELAXED),
        };
    }
}

/* The first ones of the list: the youngest. */
static void describe_sessions(const struct session *session, struct figures *figures)
{
    uint64_t now_ns = uv_hrtime();
    figures->num_sessions = 0;
    for (; session != NULL && figures->num_sessions < FIGURES_SESSIONS_MAX; session = session->next)
        figures->sessions[figures->num_sessions++] = (struct figures_session){
            .session = session->id,
            .mapped_bytes = session->regions.num_bytes,
            .requests = session->num_requests,
            .age_ms = (now_ns - session->opened_ns) / 1000000,
            .regions = session->regions.num_regions,
            .outstanding = session->num_outstanding,
            .leases = session->arena.num_leased,
        };
}

void worker_publish(struct worker *worker)
{
    struct figures *figures = &worker->figures;
    if (worker->figures_page == NULL || worker->device == NULL)
        return;
    memset(figures, 0, sizeof *figures); /* padding too: it goes to another process */
    figures->epoch = worker->args->epoch;
    figures->published_ns = uv_hrtime();
    figures->tally = worker->tally;
    figures->loop_lag_ns = worker_lag_longest_ns(worker);
    worker_stats_at_hand(worker, &figures->stats);
    stats_set_routes(&figures->stats, &worker->canary.routes);
    describe_buckets(&worker->buckets, figures);
    describe_sessions(worker->sessions, figures);
    figures_publish(worker->figures_page, figures);
}
