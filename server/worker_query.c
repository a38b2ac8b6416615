#include "worker_internal.h"

#include <string.h>

static void count_phases(const struct session *session, struct wire_stats_reply *reply)
{
    for (uint32_t i = 0; i < session->limits.outstanding_max; i++) {
        const struct selection *selection = &session->selections[i];
        if (!selection->is_active)
            continue;
        if (__atomic_load_n(&selection->job.phase, __ATOMIC_RELAXED) == DEVICE_JOB_RUNNING)
            reply->running++;
        else
            reply->queued++;
    }
}

static void copy_buckets(const struct bucket_table *table, struct wire_stats_reply *reply)
{
    for (uint32_t i = 0; i < table->num_buckets && reply->num_buckets < WIRE_BUCKETS_MAX; i++) {
        const struct bucket *bucket = &table->buckets[i];
        reply->buckets[reply->num_buckets++] =
            (struct wire_bucket_stats){.bucket = bucket->id,
                                       .rows = bucket->key.rows,
                                       .width = bucket->key.width,
                                       .k = bucket->key.k,
                                       .dtype = (uint8_t)bucket->key.options.dtype,
                                       .requests = bucket->num_requests};
    }
}

/* What a client may know: what it has itself. */
static void own_stats(const struct session *own, struct wire_stats_reply *reply)
{
    if (own == NULL)
        return;
    reply->sessions = 1;
    reply->sessions_opened = 1;
    reply->requests = own->num_requests;
    reply->regions = own->regions.num_regions;
    reply->leases = own->arena.num_leased;
    reply->mapped_bytes = own->regions.num_bytes;
    count_phases(own, reply);
}

static void set_life(const struct worker *worker, struct wire_stats_reply *reply)
{
    reply->uptime_ms = (uv_hrtime() - worker->started_ns) / 1000000;
    reply->epoch = worker->args->epoch;
    reply->lanes_max = worker->device_info.client_lanes_max;
    if (worker->device->ops->mailbox_counts != NULL)
        reply->lanes_wanted = worker->settings.limits.client_lanes_max;
}

void worker_stats_at_hand(const struct worker *worker, struct wire_stats_reply *reply)
{
    *reply = worker->stats;
    set_life(worker, reply);
    reply->sessions = worker->num_sessions;
    reply->mapped_bytes = worker->regions.mapped_bytes;
    for (const struct session *session = worker->sessions; session != NULL;
         session = session->next) {
        reply->regions += session->regions.num_regions;
        reply->leases += session->arena.num_leased;
        if (session->num_outstanding > 0)
            count_phases(session, reply);
    }
    if (worker->device->ops->mailbox_counts != NULL) {
        struct device_mailbox_counts counts;
        worker->device->ops->mailbox_counts(worker->device, &counts);
        reply->lanes = counts.num_open;
        reply->lanes_armed = counts.num_armed;
        reply->lane_steps = counts.num_steps;
        reply->lane_pauses = counts.num_pauses;
    }
    copy_buckets(&worker->buckets, reply);
}

void worker_stats(struct worker *worker, const struct session *own, bool is_operator,
                  struct wire_stats_reply *reply)
{
    struct topk_routes routes;

    if (!is_operator) {
        memset(reply, 0, sizeof(*reply));
        set_life(worker, reply);
        own_stats(own, reply);
        return;
    }
    worker_stats_at_hand(worker, reply);
    worker->device->ops->routes(worker->device, &routes);
    stats_set_routes(reply, &routes);
}

static struct wire_session describe(const struct session *session)
{
    struct wire_session row = {.session = session->id,
                               .uid = session->peer.uid,
                               .gid = session->peer.gid,
                               .pid = session->peer.pid,
                               .regions = session->regions.num_regions,
                               .outstanding = session->num_outstanding,
                               .leases = session->arena.num_leased,
                               .mapped_bytes = session->regions.num_bytes,
                               .requests = session->num_requests,
                               .age_ms = (uv_hrtime() - session->opened_ns) / 1000000};
    memcpy(row.client_name, session->client_name, sizeof(row.client_name));
    return row;
}

void worker_sessions(const struct worker *worker, const struct session *own, bool is_operator,
                     struct wire_sessions_reply *reply)
{
    reply->num_sessions = 0;
    reply->num_total = 0;
    for (const struct session *session = worker->sessions; session != NULL;
         session = session->next) {
        if (!is_operator && session != own)
            continue;
        reply->num_total++;
        if (reply->num_sessions < WIRE_SESSIONS_MAX)
            reply->sessions[reply->num_sessions++] = describe(session);
    }
}
