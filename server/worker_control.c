#include "assert.h"
#include "control.h"
#include "detail.h"
#include "log.h"
#include "worker_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define NS_PER_MS UINT64_C(1000000)
/* Choice: how often a drain looks whether the last replies have left. */
#define SETTLE_MS 10u

/* ---- To the supervisor ----------------------------------------------------------------------- */

static void send_message(struct worker *worker, const struct control_message *message)
{
    int error = control_send(worker->args->control_fd, message, -1);
    if (error != 0 && error != -EPIPE) /* a closed channel is seen by reading */
        log_warn("control_send_failed", "kind=%s reason=\"%s\"",
                 control_kind_name((enum control_kind)message->kind), strerror(-error));
}

static void send_heartbeat(struct worker *worker)
{
    const struct worker_canary *canary = &worker->canary;
    struct control_message message = control_message_make(CONTROL_HEARTBEAT, worker->args->epoch);
    struct control_heartbeat *heartbeat = &message.u.heartbeat;

    heartbeat->state = (uint32_t)worker->state;
    heartbeat->canary_ok = canary->finished_ns != 0 && !canary->is_wrong;
    heartbeat->canary_age_ms = canary->finished_ns == 0
                                   ? CONTROL_CANARY_NEVER
                                   : (uv_hrtime() - canary->finished_ns) / NS_PER_MS;
    heartbeat->num_sessions = worker->num_sessions;
    heartbeat->num_running = worker->num_admitted;
    worker_publish(worker);
    send_message(worker, &message);
}

static void heartbeat_callback(uv_timer_t *timer)
{
    struct worker *worker = timer->data;
    const struct device_ops *ops = worker->device != NULL ? worker->device->ops : NULL;
    send_heartbeat(worker);
    /* With selections in flight these say it; lanes of clients do not come by. */
    if (ops != NULL && ops->is_lost != NULL && ops->is_lost(worker->device) &&
        worker->num_admitted == 0)
        worker_end(worker, EX_SOFTWARE, TOPKD_E_DEVICE_FAULT);
}

void worker_control_ready(struct worker *worker)
{
    struct control_message message = control_message_make(CONTROL_READY, worker->args->epoch);
    message.u.ready.device_kind = (uint32_t)worker->device_info.kind;
    memcpy(message.u.ready.device_name, worker->device_info.name,
           sizeof(message.u.ready.device_name));
    worker->state = WIRE_DEVICE_READY;
    send_message(worker, &message);
    send_heartbeat(worker);
}

/* ---- Canary ---------------------------------------------------------------------------------- */

static void canary_work(uv_work_t *work)
{
    struct worker *worker = work->data;
    struct worker_canary *canary = &worker->canary;

    canary->work_status =
        worker->device->ops->self_test(worker->device, canary->seed, canary->work_detail);
    if (worker_fault_canary(&worker->fault))
        canary->work_status =
            detail_set(canary->work_detail, TOPKD_E_DEVICE_FAULT, "a fault on purpose");
    worker->device->ops->routes(worker->device, &canary->work_routes);
}

static void canary_done(uv_work_t *work, int status)
{
    struct worker *worker = work->data;
    struct worker_canary *canary = &worker->canary;

    topkd_assert(status == 0); /* nobody cancels it */
    canary->is_running = false;
    canary->finished_ns = uv_hrtime();
    canary->routes = canary->work_routes;
    if (canary->work_status == TOPKD_OK)
        worker->tally.canaries++;
    if (worker->is_ending) {
        worker_drain_check(worker);
        return;
    }
    if (canary->work_status == TOPKD_OK)
        return;
    canary->is_wrong = true;
    memcpy(canary->detail, canary->work_detail, sizeof(canary->detail));
    char quoted[LOG_QUOTE_SIZE];
    log_error("canary_wrong", "reason=%s", log_quote(quoted, canary->detail));
    send_heartbeat(worker); /* the supervisor kills this worker */
}

static void canary_callback(uv_timer_t *timer)
{
    struct worker *worker = timer->data;
    struct worker_canary *canary = &worker->canary;

    if (canary->is_running || canary->is_wrong) /* its age, in the heartbeat, tells */
        return;
    canary->is_running = true;
    canary->seed++;
    int error = uv_queue_work(&worker->loop, &canary->work, canary_work, canary_done);
    topkd_assert(error == 0);
}

/* ---- Drain ----------------------------------------------------------------------------------- */

static void send_drained(struct worker *worker)
{
    struct control_message message = control_message_make(CONTROL_DRAINED, worker->args->epoch);
    send_message(worker, &message);
}

static void drain_deadline(uv_timer_t *timer)
{
    struct worker *worker = timer->data;

    if (worker->is_ending)
        return;
    log_warn("drain_deadline", "num_cancelled=%" PRIu32, worker->num_admitted);
    send_drained(worker);
    worker_end(worker, EX_OK, TOPKD_E_DRAINING);
}

static void settle_callback(uv_timer_t *timer)
{
    struct worker *worker = timer->data;

    if (worker->is_ending) {
        if (!worker_end_check(worker))
            uv_timer_start(timer, settle_callback, SETTLE_MS, 0);
        return;
    }
    if (worker->state != WIRE_DEVICE_DRAINING || worker->num_admitted > 0)
        return; /* the end of the last one looks again */
    if (endpoint_num_unsent(worker->endpoint) > 0) {
        uv_timer_start(timer, settle_callback, SETTLE_MS, 0);
        return;
    }
    log_info("drained", "num_sessions=%" PRIu32, worker->num_sessions);
    send_drained(worker);
    worker_end(worker, EX_OK, TOPKD_E_DRAINING);
}

void worker_drain_check(struct worker *worker)
{
    if (worker->is_ending || worker->state == WIRE_DEVICE_DRAINING)
        uv_timer_start(&worker->settle, settle_callback, 0, 0);
}

void worker_drain(struct worker *worker, uint32_t deadline_ms)
{
    if (worker->is_ending)
        return;
    /* Asked again, the new deadline counts. */
    if (worker->state != WIRE_DEVICE_DRAINING)
        log_info("drain", "deadline_ms=%" PRIu32 " num_running=%" PRIu32, deadline_ms,
                 worker->num_admitted);
    worker->state = WIRE_DEVICE_DRAINING;
    send_heartbeat(worker);
    uv_timer_start(&worker->drain, drain_deadline, deadline_ms, 0);
    /* The reply to whoever asked leaves first. */
    uv_timer_start(&worker->settle, settle_callback, SETTLE_MS, 0);
}

/* ---- From the supervisor --------------------------------------------------------------------- */

/* One that runs at this interval already goes on: reloads that come more often must not keep it
 * from ever being due. */
static void set_interval(uv_timer_t *timer, uv_timer_cb callback, uint64_t interval_ms)
{
    if (uv_timer_get_repeat(timer) != interval_ms)
        uv_timer_start(timer, callback, interval_ms, interval_ms);
}

static void set_timers(struct worker *worker)
{
    const struct settings *settings = &worker->settings;
    set_interval(&worker->heartbeat, heartbeat_callback, settings->worker.heartbeat_ms);
    set_interval(&worker->canary.timer, canary_callback, settings->worker.canary_interval_ms);
}

static void reload(struct worker *worker, int fd)
{
    static struct settings fresh;
    static struct settings_report report;

    /* The supervisor has checked this text; what it says of changes it has logged. */
    enum topkd_status status = settings_load_fd(fd, "reload", &fresh, &report);
    if (status != TOPKD_OK) {
        char quoted[LOG_QUOTE_SIZE];
        log_error("reload_failed", "reason=%s",
                  log_quote(quoted, report.num_errors > 0 ? report.lines[0] : ""));
        return;
    }
    settings_merge_live(&worker->settings, &fresh, NULL);
    gate_set(&worker->gate, &worker->settings.access);
    const struct settings *settings = &worker->settings;
    log_configure((enum log_level)settings->log.level, settings->log.rate_per_s);
    worker->regions.bytes_max = settings->limits.region_bytes_total;
    struct endpoint_limits limits = worker_endpoint_limits(settings);
    endpoint_configure(worker->endpoint, &limits);
    set_timers(worker);
    log_info("reloaded", "queue_max=%" PRIu32 " sessions_max=%" PRIu32, settings->limits.queue_max,
             settings->limits.sessions_max);
}

static void handle_control(struct worker *worker, const struct control_message *message, int fd)
{
    switch (message->kind) {
    case CONTROL_DRAIN:
        worker_drain(worker, message->u.drain.deadline_ms);
        break;
    case CONTROL_RELOAD:
        if (fd >= 0)
            reload(worker, fd);
        break;
    default:
        log_warn("control_unknown", "kind=%" PRIu32, message->kind);
        break;
    }
}

static void control_callback(uv_poll_t *poll, int status, int events)
{
    struct worker *worker = poll->data;
    (void)status;
    (void)events;

    for (;;) {
        struct control_message message;
        int fd = -1;
        int result = control_receive(worker->args->control_fd, &message, &fd);
        if (result == -EAGAIN)
            return;
        if (result == -EPROTO) {
            log_warn("control_foreign", "reason=not_a_message");
            continue;
        }
        if (result <= 0) {
            log_warn("control_closed", "reason=%s",
                     result == 0 ? "supervisor_gone" : strerror(-result));
            uv_poll_stop(poll);
            worker_end(worker, EX_OK, TOPKD_E_DRAINING);
            return;
        }
        handle_control(worker, &message, fd);
        if (fd >= 0)
            close(fd);
    }
}

/* ---- Start and stop -------------------------------------------------------------------------- */

enum topkd_status worker_control_start(struct worker *worker, char *detail)
{
    int error = uv_poll_init(&worker->loop, &worker->control, worker->args->control_fd);
    if (error != 0)
        return detail_set(detail, TOPKD_E_SYSTEM, "cannot watch the control channel: %s",
                          uv_strerror(error));
    worker->control.data = worker;
    uv_timer_t *timers[] = {&worker->heartbeat, &worker->drain, &worker->settle,
                            &worker->canary.timer};
    for (size_t i = 0; i < sizeof(timers) / sizeof(timers[0]); i++) {
        uv_timer_init(&worker->loop, timers[i]);
        timers[i]->data = worker;
    }
    worker->canary.work.data = worker;
    uv_poll_start(&worker->control, UV_READABLE | UV_DISCONNECT, control_callback);
    set_timers(worker);
    return TOPKD_OK;
}

void worker_control_stop(struct worker *worker)
{
    uv_close((uv_handle_t *)&worker->control, NULL);
    uv_close((uv_handle_t *)&worker->heartbeat, NULL);
    uv_close((uv_handle_t *)&worker->drain, NULL);
    uv_close((uv_handle_t *)&worker->settle, NULL);
    uv_close((uv_handle_t *)&worker->canary.timer, NULL);
}
