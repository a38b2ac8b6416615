/* How long the loop is away from its sockets: work on its thread that should be elsewhere shows
 * here. */
#include "log.h"
#include "worker_internal.h"

#include <inttypes.h>
#include <string.h>

#define NS_PER_S UINT64_C(1000000000)
/* Choice: a turn that other clients notice; a tenth of what makes the supervisor suspicious. */
#define LATE_NS (NS_PER_S / 4)

/* Forgets spans that are over. */
static void move_on(struct worker_lag *lag, uint64_t now_ns)
{
    uint64_t span = now_ns / (WORKER_LAG_SPAN_S * NS_PER_S);
    uint64_t num_over = span - lag->span;
    for (uint64_t i = 0; i < num_over && i < WORKER_LAG_SPANS; i++)
        lag->longest_ns[(span - i) % WORKER_LAG_SPANS] = 0;
    lag->span = span;
}

/* Before the loop waits for its sockets: a turn is what went by since the last time, less what was
 * spent waiting. */
static void prepare_callback(uv_prepare_t *prepare)
{
    struct worker *worker = prepare->data;
    struct worker_lag *lag = &worker->lag;
    uint64_t now_ns = uv_hrtime(), idle_ns = uv_metrics_idle_time(&worker->loop);
    uint64_t gone_ns = now_ns - lag->turned_ns, waited_ns = idle_ns - lag->idle_ns;
    uint64_t turn_ns = gone_ns > waited_ns ? gone_ns - waited_ns : 0;

    lag->turned_ns = now_ns;
    lag->idle_ns = idle_ns;
    if (turn_ns <= lag->longest_ns[lag->span % WORKER_LAG_SPANS])
        return; /* most turns, so that a loop that spins does little here */
    move_on(lag, now_ns);
    uint64_t *longest_ns = &lag->longest_ns[lag->span % WORKER_LAG_SPANS];
    if (turn_ns > *longest_ns)
        *longest_ns = turn_ns;
    if (turn_ns >= LATE_NS)
        log_warn("loop_late", "turn_ms=%" PRIu64, turn_ns * 1000 / NS_PER_S);
}

void worker_lag_init(struct worker *worker)
{
    uv_prepare_init(&worker->loop, &worker->lag.prepare);
    worker->lag.prepare.data = worker;
    uv_unref((uv_handle_t *)&worker->lag.prepare);
}

void worker_lag_start(struct worker *worker)
{
    struct worker_lag *lag = &worker->lag;
    lag->turned_ns = uv_hrtime();
    lag->idle_ns = uv_metrics_idle_time(&worker->loop);
    lag->span = lag->turned_ns / (WORKER_LAG_SPAN_S * NS_PER_S);
    uv_prepare_start(&lag->prepare, prepare_callback);
}

uint64_t worker_lag_longest_ns(struct worker *worker)
{
    struct worker_lag *lag = &worker->lag;
    uint64_t longest_ns = 0;
    move_on(lag, uv_hrtime());
    for (uint32_t i = 0; i < WORKER_LAG_SPANS; i++)
        if (lag->longest_ns[i] > longest_ns)
            longest_ns = lag->longest_ns[i];
    return longest_ns;
}
