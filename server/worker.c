#include "worker.h"

#include "assert.h"
#include "detail.h"
#include "log.h"
#include "worker_internal.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <unistd.h>

/* Choice: an ending worker whose jobs do not come back by then leaves them to the kernel. */
#define END_MS (SELECTION_STUCK_MS + 2000u)
#define END_SOON_MS 1000u /* choice: long enough for answers, short enough to restart at once */

/* Choices: a spinning loop that comes back after so long may have lost its processor to another
 * thread; then it does not spin for a while. */
#define SPIN_LATE_NS UINT64_C(300000)
#define SPIN_REST_NS UINT64_C(50000000)

static enum wire_device_kind kind_of(const char *device)
{
    return strcmp(device, "cpu") == 0 ? WIRE_DEVICE_CPU : WIRE_DEVICE_CUDA;
}

static const struct device_ops *ops_of(enum wire_device_kind kind)
{
    return kind == WIRE_DEVICE_CPU ? &device_cpu_ops : device_cuda_ops();
}

bool worker_device_supported(enum wire_device_kind kind)
{
    return ops_of(kind) != NULL;
}

struct endpoint_limits worker_endpoint_limits(const struct settings *settings)
{
    return (struct endpoint_limits){
        .num_contexts = settings->limits.queue_max + settings->limits.lanes + WORKER_CONTEXTS_SPARE,
        .pipes_max = settings->limits.connections_max,
        .unsent_max = settings->limits.outstanding_max + WORKER_UNSENT_SPARE,
        .idle_ms = settings->limits.hello_ms,
        .reply_ms = WORKER_REPLY_MS,
    };
}

/* ---- Ended jobs ------------------------------------------------------------------------------ */

static void finish_ended(struct worker *worker)
{
    struct worker_ended *ended = &worker->ended;

    for (;;) { /* wake-ups coalesce: until the list is empty */
        pthread_mutex_lock(&ended->mutex);
        struct selection *selection = ended->first;
        ended->first = NULL;
        ended->last = &ended->first;
        pthread_mutex_unlock(&ended->mutex);
        if (selection == NULL)
            return;
        while (selection != NULL) {
            struct selection *next = selection->next;
            selection_finish(selection);
            selection = next;
        }
    }
}

static void ended_callback(uv_async_t *async)
{
    finish_ended(async->data);
}

/* ---- Spinning -------------------------------------------------------------------------------- */

/* Whether another process wanted this processor and got it. A thread that has spun is served last
 * then, one that slept first: spinning would cost what it is to save. */
static bool was_preempted(struct worker_spin *spin, uint64_t now_ns)
{
    struct rusage usage;
    bool is_late = now_ns - spin->looked_ns > SPIN_LATE_NS;
    spin->looked_ns = now_ns;
    if (!is_late || getrusage(RUSAGE_THREAD, &usage) != 0)
        return false;
    bool was = usage.ru_nivcsw != spin->num_preempted;
    spin->num_preempted = usage.ru_nivcsw;
    return was;
}

static void spin_callback(uv_idle_t *idle)
{
    struct worker *worker = idle->data;
    struct worker_spin *spin = &worker->spin;
    uint64_t now_ns = uv_hrtime();
    if (was_preempted(spin, now_ns))
        spin->not_before_ns = now_ns + SPIN_REST_NS;
    spin->is_looking = true;
    bool goes_on = worker->device->ops->look(worker->device);
    spin->is_looking = false;
    finish_ended(worker);
    if (!goes_on || now_ns < spin->not_before_ns)
        uv_idle_stop(idle);
}

void worker_spin(struct worker *worker)
{
    struct worker_spin *spin = &worker->spin;
    uint64_t now_ns = uv_hrtime();
    if (worker->device->ops->look == NULL || uv_is_active((uv_handle_t *)&spin->idle) ||
        now_ns < spin->not_before_ns)
        return;
    spin->looked_ns = now_ns;
    uv_idle_start(&spin->idle, spin_callback);
}

bool worker_spin_looks(const struct worker *worker)
{
    /* is_looking is the loop's: others are told apart first. */
    return pthread_equal(worker->spin.thread, pthread_self()) && worker->spin.is_looking;
}

/* ---- Start ----------------------------------------------------------------------------------- */

/* The file of a URL "ipc:///path". */
static const char *socket_path(const char *url)
{
    const char *scheme = "ipc://";
    return strncmp(url, scheme, strlen(scheme)) == 0 ? url + strlen(scheme) : url;
}

static struct socket_rights socket_rights(const struct worker *worker)
{
    return (struct socket_rights){.mode = worker->settings.socket.mode,
                                  .gid = worker->settings.socket.group,
                                  .like = worker->main_socket};
}

static enum topkd_status open_device(struct worker *worker, char *detail)
{
    const struct device_ops *ops = ops_of(kind_of(worker->args->device));
    if (ops == NULL)
        return detail_set(detail, TOPKD_E_NO_DEVICE,
                          "device %s: this build has the CPU device only", worker->args->device);
    struct device_config config = {.threads = worker->args->threads,
                                   .lanes = worker->settings.limits.lanes,
                                   .client_lanes_max = worker->settings.limits.client_lanes_max,
                                   .lane_idle_ms = worker->settings.limits.lane_idle_ms,
                                   .lane_poll_us = worker->settings.limits.lane_poll_us,
                                   .shm_prefix = worker->args->shm_prefix,
                                   .socket_path = socket_path(worker->args->url),
                                   .socket_rights = socket_rights(worker),
                                   .gate = &worker->gate};
    memcpy(config.device, worker->args->device, sizeof(config.device));
    enum topkd_status status = ops->open(&config, &worker->device, detail);
    if (status == TOPKD_OK)
        ops->info(worker->device, &worker->device_info);
    return status;
}

static enum topkd_status open_buckets(struct worker *worker, char *detail)
{
    const struct settings *settings = &worker->settings;
    enum topkd_status status = bucket_table_init(&worker->buckets, settings->limits.buckets_max);
    if (status != TOPKD_OK)
        return detail_set(detail, status, "no memory for %" PRIu32 " buckets",
                          settings->limits.buckets_max);
    for (uint32_t i = 0; i < settings->num_buckets; i++) {
        const struct settings_bucket *from = &settings->buckets[i];
        struct bucket *bucket;
        struct bucket_key capacities = {.rows = from->rows,
                                        .width = from->width,
                                        .k = from->k,
                                        .options.dtype = (enum topk_dtype)from->dtype};
        status = bucket_table_pin(&worker->buckets, &capacities, &bucket);
        if (status != TOPKD_OK)
            return detail_set(detail, status, "%" PRIu32 " buckets exceed limits.buckets_max",
                              settings->num_buckets);
        status = worker->device->ops->bucket_open(worker->device, bucket, detail);
        if (status != TOPKD_OK)
            return status;
    }
    return TOPKD_OK;
}

static void close_buckets(struct worker *worker)
{
    for (uint32_t i = 0; i < worker->buckets.num_buckets; i++)
        worker->device->ops->bucket_close(worker->device, &worker->buckets.buckets[i]);
    bucket_table_fini(&worker->buckets);
}

static enum topkd_status open_endpoint(struct worker *worker, char *detail)
{
    const struct settings *settings = &worker->settings;
    struct endpoint_config config = {.loop = &worker->loop,
                                     .url = worker->args->url,
                                     .listen_fd = -1,
                                     .rights = socket_rights(worker),
                                     .limits = worker_endpoint_limits(settings),
                                     .handler = &worker_handler,
                                     .owner = worker};
    return endpoint_open(&config, &worker->endpoint, detail);
}

/* The first canary runs here, before anyone may come. */
static enum topkd_status first_canary(struct worker *worker, char *detail)
{
    struct worker_canary *canary = &worker->canary;
    canary->seed = worker->args->epoch;
    enum topkd_status status = worker->device->ops->self_test(worker->device, canary->seed, detail);
    canary->finished_ns = uv_hrtime();
    return status;
}

static void close_wakers(struct worker *worker)
{
    uv_close((uv_handle_t *)&worker->ended.async, NULL);
    uv_close((uv_handle_t *)&worker->spin.idle, NULL);
    uv_close((uv_handle_t *)&worker->lag.prepare, NULL);
}

/* Opens everything in order. On failure closes what it opened, but for handles of the loop, which
 * are closed by running it. */
static enum topkd_status start(struct worker *worker, char *detail)
{
    uv_async_init(&worker->loop, &worker->ended.async, ended_callback);
    worker->ended.async.data = worker;
    uv_idle_init(&worker->loop, &worker->spin.idle);
    worker->spin.idle.data = worker;
    worker->spin.thread = pthread_self();
    worker_lag_init(worker);
    enum topkd_status status = worker_control_start(worker, detail);
    if (status != TOPKD_OK)
        goto err_async;
    status = open_device(worker, detail);
    if (status != TOPKD_OK)
        goto err_control;
    region_cache_init(&worker->regions, &worker->loop, worker->device,
                      worker->settings.limits.region_bytes_total);
    status = open_buckets(worker, detail);
    if (status == TOPKD_OK)
        status = first_canary(worker, detail);
    if (status != TOPKD_OK)
        goto err_device;
    status = open_endpoint(worker, detail);
    if (status != TOPKD_OK)
        goto err_device;
    return TOPKD_OK;

err_device:
    close_buckets(worker);
    worker->device->ops->close(worker->device);
    worker->device = NULL;
err_control:
    worker_control_stop(worker);
err_async:
    close_wakers(worker);
    return status;
}

/* ---- End ------------------------------------------------------------------------------------- */

static void end_deadline(uv_timer_t *timer)
{
    struct worker *worker = timer->data;
    log_error("end_forced", "num_sessions=%" PRIu32, worker->num_sessions);
    _exit(worker->exit_code != EX_OK ? worker->exit_code : EX_SOFTWARE);
}

void worker_end(struct worker *worker, int exit_code, enum topkd_status status)
{
    if (worker->is_ending)
        return;
    worker->is_ending = true;
    worker->exit_code = exit_code;
    worker->state = WIRE_DEVICE_DRAINING;
    uv_timer_start(&worker->drain, end_deadline, END_MS, 0);
    struct session *next;
    for (struct session *session = worker->sessions; session != NULL; session = next) {
        next = session->next;
        if (session->pipe == NULL)
            continue;
        session_end(session, exit_code == EX_OK ? FIGURES_END_DRAINED : FIGURES_END_FAULT, status);
    }
    session_orphans_close(worker);
    worker_drain_check(worker);
}

void worker_end_soon(struct worker *worker)
{
    topkd_assert(worker->is_ending);
    uv_timer_start(&worker->drain, end_deadline, END_SOON_MS, 0);
}

bool worker_end_check(struct worker *worker)
{
    /* Sessions go with their last job, and look here again; so does a canary. */
    if (worker->endpoint == NULL || worker->num_sessions > 0 || worker->canary.is_running)
        return true;
    /* A client that uses NNG forgets what it has not read when the connection is closed: last
     * replies get time to leave and to be read. */
    uint64_t now_ns = uv_hrtime();
    if (worker->rested_ns == 0)
        worker->rested_ns = now_ns;
    bool has_unsent = endpoint_num_unsent(worker->endpoint) > 0;
    uint64_t linger_ms = has_unsent ? WORKER_LINGER_MAX_MS : WORKER_LINGER_MS;
    if (now_ns - worker->rested_ns < UINT64_C(1000000) * linger_ms)
        return false;
    worker_publish(worker); /* its last word */
    endpoint_close(worker->endpoint);
    worker->endpoint = NULL;
    worker_control_stop(worker);
    close_wakers(worker);
    return true;
}

static void finish(struct worker *worker)
{
    if (worker->device != NULL) {
        close_buckets(worker);
        worker->device->ops->close(worker->device);
    }
    int error = uv_loop_close(&worker->loop);
    topkd_assert(error == 0);
    figures_close(worker->figures_page);
    pthread_mutex_destroy(&worker->ended.mutex);
    gate_fini(&worker->gate);
    free(worker);
}

int worker_main(const struct settings *settings, const struct worker_args *args)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    if (worker == NULL || uv_loop_init(&worker->loop) != 0 ||
        uv_loop_configure(&worker->loop, UV_METRICS_IDLE_TIME) != 0) {
        log_error("worker_start_failed", "reason=no_memory");
        free(worker);
        return EX_OSERR;
    }
    worker->settings = *settings;
    worker->args = args;
    worker->state = WIRE_DEVICE_STARTING;
    worker->started_ns = uv_hrtime();
    worker->uid = geteuid();
    worker->next_session = 1;
    worker->next_generation = 1;
    worker->next_lane = 1;
    gate_init(&worker->gate, &settings->access, worker->uid);
    (void)snprintf(worker->main_socket, sizeof(worker->main_socket), "%s/" SETTINGS_SOCKET_NAME,
                   settings->socket.directory);
    worker->ended.last = &worker->ended.first;
    pthread_mutex_init(&worker->ended.mutex, NULL);
    if (args->figures_fd >= 0) {
        worker->figures_page = figures_open(args->figures_fd);
        close(args->figures_fd);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error code, not a death */

    char detail[WIRE_DETAIL_SIZE] = "";
    int exit_code = EX_UNAVAILABLE;
    if (!worker_fault_init(&worker->fault) || start(worker, detail) != TOPKD_OK) {
        char quoted[LOG_QUOTE_SIZE];
        log_error("worker_start_failed", "device=%s reason=%s", args->device,
                  log_quote(quoted, detail));
        uv_run(&worker->loop, UV_RUN_DEFAULT); /* runs the close callbacks */
        finish(worker);
        return exit_code;
    }
    log_info("worker_ready", "device=%s name=\"%s\" epoch=%" PRIu64 " url=%s start_ms=%" PRIu64,
             args->device, worker->device_info.name, args->epoch, args->url,
             (uv_hrtime() - worker->started_ns) / 1000000);
    worker_control_ready(worker);
    worker_lag_start(worker);
    uv_run(&worker->loop, UV_RUN_DEFAULT); /* until worker_end_check has closed every handle */
    exit_code = worker->exit_code;
    finish(worker);
    return exit_code;
}
