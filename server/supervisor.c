#include "supervisor.h"

#include "assert.h"
#include "log.h"
#include "supervisor_internal.h"
#include "supervisor_system.h"
#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

/* Choice: replies on their way when the daemon ends (that of a drain among them) get so long. */
#define FINISH_MS 500u
#define FINISH_POLL_MS 10u

/* Choice: memory of a client that died together with its worker returns within this time. */
#define SWEEP_MS 2000u

#define STATUS_SIZE 400u

static const int signal_numbers[SUPERVISOR_SIGNALS] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};

/* ---- State as systemd and the log see it ----------------------------------------------------- */

uint32_t supervisor_num_restarts(const struct supervisor *supervisor)
{
    uint32_t num_restarts = 0;
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        if (supervisor->slots[i].num_starts != 0)
            num_restarts += supervisor->slots[i].num_starts - 1;
    return num_restarts;
}

static uint32_t count_slots(const struct supervisor *supervisor, enum slot_state state)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        num += supervisor->slots[i].state == state;
    return num;
}

static void notify_status(const struct supervisor *supervisor)
{
    char text[STATUS_SIZE];
    uint32_t num_ready = count_slots(supervisor, SLOT_READY);
    int used = snprintf(text, sizeof text, "%s%u of %u devices ready, %u restarts",
                        supervisor->is_draining ? "Draining: " : "", num_ready,
                        supervisor->num_slots, supervisor_num_restarts(supervisor));
    for (uint32_t i = 0; i < supervisor->num_slots && used < (int)sizeof text; i++) {
        const struct slot *slot = &supervisor->slots[i];
        static const char *const words[] = {
            [WIRE_DEVICE_STARTING] = "starting",
            [WIRE_DEVICE_DRAINING] = "draining",
            [WIRE_DEVICE_DOWN] = "down",
        };
        enum wire_device_state state = slot_device_state(slot);
        if (state != WIRE_DEVICE_READY)
            used += snprintf(text + used, sizeof text - (size_t)used, "; %s %s",
                             slot->device.device, words[state]);
    }
    system_notify_status(text);
}

/* Ends the daemon from the loop itself, once replies on their way are out. */
static void on_finish(uv_timer_t *timer);

/* Every device, or, once one has had the time to get ready and was given up, those that are: one
 * broken GPU must not let the service manager end the others. Its end is a change too, so that this
 * is asked then. */
static bool is_ready(const struct supervisor *supervisor, uint32_t num_ready)
{
    uint64_t age_ms = uv_now(&supervisor->loop) - supervisor->started_ms;
    return num_ready == supervisor->num_slots ||
           (num_ready != 0 && age_ms >= supervisor->settings.worker.start_ms);
}

void supervisor_slot_changed(struct supervisor *supervisor)
{
    notify_status(supervisor);
    uint32_t num_ready = count_slots(supervisor, SLOT_READY);
    if (!supervisor->was_ready && is_ready(supervisor, num_ready)) {
        supervisor->was_ready = true;
        log_info("ready", "devices=%u", num_ready);
        if (num_ready != supervisor->num_slots)
            log_warn("ready_in_part", "missing=%u", supervisor->num_slots - num_ready);
        system_notify("READY=1");
    }
    if (supervisor->is_draining && !supervisor->is_finishing &&
        count_slots(supervisor, SLOT_STOPPED) == supervisor->num_slots) {
        supervisor->is_finishing = true;
        supervisor->finish_end_ms = uv_now(&supervisor->loop) + FINISH_MS;
        uv_timer_start(&supervisor->finish, on_finish, 0, FINISH_POLL_MS);
    }
}

void supervisor_reap(struct supervisor *supervisor)
{
    if (getpid() != 1)
        return;
    pid_t pids[SETTINGS_DEVICES_MAX];
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        pids[i] = slot_pid(&supervisor->slots[i]);
    system_reap_orphans(pids, supervisor->num_slots);
}

/* A real selection was right not long ago. No request runs longer than timeout_ms_max, so that a
 * canary that waits behind others has ended by then. */
static bool is_healthy(const struct supervisor *supervisor, const struct slot *slot)
{
    const struct settings *settings = &supervisor->settings;
    return slot->state == SLOT_READY &&
           (slot->heartbeat.canary_age_ms == CONTROL_CANARY_NEVER ||
            slot->heartbeat.canary_age_ms <=
                (uint64_t)settings->worker.canary_interval_ms + settings->limits.timeout_ms_max);
}

/* systemd starts the whole daemon again when the loop no longer turns, or when no device at all has
 * been healthy for longer than killing and starting a worker may take. As long as one device
 * serves, the others are restarted here and it is left in peace. */
static void on_watchdog(uv_timer_t *timer)
{
    struct supervisor *supervisor = timer->data;
    const struct settings *settings = &supervisor->settings;
    uint64_t now_ms = uv_now(&supervisor->loop);
    bool is_good = supervisor->is_draining;
    for (uint32_t i = 0; i < supervisor->num_slots && !is_good; i++)
        is_good = is_healthy(supervisor, &supervisor->slots[i]);
    if (is_good)
        supervisor->healthy_ms = now_ms;
    uint64_t patience_ms = (uint64_t)settings->worker.hang_ms + settings->worker.restart_max_ms +
                           settings->worker.start_ms;
    uint64_t sick_ms = now_ms - supervisor->healthy_ms;
    if (sick_ms <= patience_ms)
        system_notify("WATCHDOG=1");
    else
        log_error("watchdog_withheld", "no_healthy_device_ms=%" PRIu64 " patience_ms=%" PRIu64,
                  sick_ms, patience_ms);
}

/* ---- Memory of dead clients ------------------------------------------------------------------ */

static void sweep_work(uv_work_t *work)
{
    struct supervisor *supervisor = work->data;
    supervisor->sweep.num_removed = shm_remove_unheld();
}

static void sweep_done(uv_work_t *work, int status)
{
    struct supervisor *supervisor = work->data;
    topkd_assert(status == 0); /* nobody cancels it */
    supervisor->sweep.is_running = false;
    if (supervisor->sweep.num_removed != 0)
        log_info("shm_remains", "objects=%u of=\"clients that died\"",
                 supervisor->sweep.num_removed);
}

static void on_sweep(uv_timer_t *timer)
{
    struct supervisor *supervisor = timer->data;
    if (supervisor->sweep.is_running)
        return;
    supervisor->sweep.is_running = true;
    int error = uv_queue_work(&supervisor->loop, &supervisor->sweep.work, sweep_work, sweep_done);
    topkd_assert(error == 0);
}

/* ---- The end --------------------------------------------------------------------------------- */

static void on_finish(uv_timer_t *timer)
{
    struct supervisor *supervisor = timer->data;
    if (endpoint_num_unsent(supervisor->endpoint) != 0 &&
        uv_now(&supervisor->loop) < supervisor->finish_end_ms)
        return;
    endpoint_close(supervisor->endpoint);
    supervisor->endpoint = NULL;
    supervisor_http_close(supervisor);
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        slot_close(&supervisor->slots[i]);
    for (uint32_t i = 0; i < SUPERVISOR_SIGNALS; i++)
        uv_close((uv_handle_t *)&supervisor->signals[i], NULL);
    uv_close((uv_handle_t *)&supervisor->watchdog, NULL);
    uv_close((uv_handle_t *)&supervisor->sweep.timer, NULL);
    uv_close((uv_handle_t *)&supervisor->finish, NULL); /* the loop now runs out */
}

void supervisor_drain(struct supervisor *supervisor, uint32_t deadline_ms, const char *reason)
{
    uint64_t end_ms = uv_now(&supervisor->loop) + deadline_ms;
    if (supervisor->is_draining && end_ms >= supervisor->drain_end_ms)
        return; /* never later than promised */
    log_info("drain", "reason=%s deadline_ms=%u", reason, deadline_ms);
    if (!supervisor->is_draining)
        system_notify("STOPPING=1");
    supervisor->is_draining = true;
    supervisor->drain_end_ms = end_ms;
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        slot_drain(&supervisor->slots[i], deadline_ms);
    supervisor_slot_changed(supervisor);
}

/* ---- Reload ---------------------------------------------------------------------------------- */

/* Choice: of one line of paths; with what stands before it stays below LOG_LINE_SIZE. */
#define PATHS_SIZE 800u

/* "limits.lanes,log.level": as few lines as possible, since a site may write only so many. */
static void log_paths(const char *applies, const char *const *paths, uint32_t num_paths)
{
    char text[PATHS_SIZE];
    size_t used = 0;
    for (uint32_t i = 0; i < num_paths; i++) {
        size_t size = strlen(paths[i]);
        topkd_assert(size + 2 <= sizeof text);
        if (used != 0 && used + 1 + size + 1 > sizeof text) {
            log_info("reload_settings", "applies=%s paths=%s", applies, text);
            used = 0;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used == 0 ? "" : ",",
                                 paths[i]);
    }
    if (used != 0)
        log_info("reload_settings", "applies=%s paths=%s", applies, text);
}

static void log_report(const char *event, const struct settings_report *report)
{
    char text[LOG_QUOTE_SIZE];
    uint32_t num_lines = report->num_errors;
    if (num_lines > SETTINGS_REPORT_LINES)
        num_lines = SETTINGS_REPORT_LINES;
    for (uint32_t i = 0; i < num_lines; i++)
        log_error(event, "error=%s", log_quote(text, report->lines[i]));
}

/* Takes the settings over in every process, or in none. */
static bool apply(struct supervisor *supervisor, const struct settings *fresh)
{
    struct settings merged = supervisor->settings;
    struct settings_changes changes;
    settings_merge_live(&merged, fresh, &changes);
    int fd = system_seal_settings(&merged);
    if (fd < 0) {
        log_error("reload_failed", "error=\"cannot copy the settings: %s\"", strerror(-fd));
        return false;
    }
    supervisor->settings = merged;
    close(supervisor->settings_fd);
    supervisor->settings_fd = fd;
    log_configure((enum log_level)merged.log.level, merged.log.rate_per_s);
    discovery_configure(supervisor);
    supervisor_http_configure(supervisor);
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        slot_reload(&supervisor->slots[i], fd);
    log_paths("now", changes.live, changes.num_live);
    log_paths("restart", changes.restart, changes.num_restart);
    log_info("reload", "applied=%u need_restart=%u", changes.num_live, changes.num_restart);
    return true;
}

static void reload(struct supervisor *supervisor)
{
    struct settings_report report = {.num_errors = 0};
    struct settings fresh;
    if (supervisor->is_draining)
        return;
    if (supervisor->options->config == NULL) {
        log_warn("reload_ignored", "reason=\"no --config FILE was given\"");
        return;
    }
    if (supervisor->was_ready) /* READY=1 below must not come before its time */
        system_notify_reloading();
    enum topkd_status status = options_settings(supervisor->options, &fresh, &report);
    if (status == TOPKD_OK)
        status = settings_resolve_directory(&fresh, &report);
    if (status != TOPKD_OK) {
        log_report("reload_error", &report);
        log_error("reload_failed", "errors=%u kept=\"the settings in force\"", report.num_errors);
    } else {
        (void)apply(supervisor, &fresh); /* logged */
    }
    if (supervisor->was_ready)
        system_notify("READY=1");
    notify_status(supervisor);
}

/* ---- Start ----------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *handle, int number)
{
    struct supervisor *supervisor = handle->data;
    switch (number) {
    case SIGHUP:
        reload(supervisor);
        return;
    case SIGCHLD:
        supervisor_reap(supervisor);
        return;
    default:
        break;
    }
    bool is_second = supervisor->is_draining;
    supervisor_drain(supervisor, is_second ? 0 : supervisor->settings.drain.deadline_ms,
                     number == SIGTERM ? "SIGTERM" : "SIGINT");
}

/* Nothing here fails on a machine that could start the process at all. */
static int open_loop(struct supervisor *supervisor)
{
    int error = uv_loop_init(&supervisor->loop);
    if (error != 0)
        return error;
    supervisor->started_ms = uv_now(&supervisor->loop);
    uv_timer_init(&supervisor->loop, &supervisor->watchdog);
    uv_timer_init(&supervisor->loop, &supervisor->finish);
    supervisor->watchdog.data = supervisor;
    supervisor->finish.data = supervisor;
    uv_timer_init(&supervisor->loop, &supervisor->sweep.timer);
    supervisor->sweep.timer.data = supervisor;
    supervisor->sweep.work.data = supervisor;
    uv_timer_start(&supervisor->sweep.timer, on_sweep, 0, SWEEP_MS);
    supervisor->healthy_ms = supervisor->started_ms;
    uint64_t watchdog_ms = system_watchdog_ms();
    if (watchdog_ms != 0)
        uv_timer_start(&supervisor->watchdog, on_watchdog, 0, watchdog_ms);
    for (uint32_t i = 0; i < SUPERVISOR_SIGNALS; i++) {
        error = uv_signal_init(&supervisor->loop, &supervisor->signals[i]);
        topkd_assert(error == 0);
        supervisor->signals[i].data = supervisor;
        error = uv_signal_start(&supervisor->signals[i], on_signal, signal_numbers[i]);
        topkd_assert(error == 0);
    }
    system_hold_reload(false); /* as main() does */
    return 0;
}

/* Closes what open_loop opened, and what a failed start has left. */
static void close_handle(uv_handle_t *handle, void *context)
{
    (void)context;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static int serve(struct supervisor *supervisor, const struct settings_device *devices)
{
    char detail[WIRE_DETAIL_SIZE];
    int error = open_loop(supervisor);
    if (error != 0) {
        log_error("start_failed", "error=\"cannot make a loop: %s\"", uv_strerror(error));
        return EX_OSERR;
    }
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        slot_init(&supervisor->slots[i], supervisor, &devices[i]);
    enum topkd_status status = supervisor_http_open(supervisor, detail);
    if (status == TOPKD_OK)
        status = discovery_open(supervisor, detail);
    if (status == TOPKD_OK) {
        for (uint32_t i = 0; i < supervisor->num_slots; i++)
            slot_start(&supervisor->slots[i]);
    } else {
        char text[LOG_QUOTE_SIZE];
        log_error("start_failed", "error=%s", log_quote(text, detail));
        supervisor->exit_code = status == TOPKD_E_IN_USE    ? EX_TEMPFAIL
                                : status == TOPKD_E_INVALID ? EX_CONFIG
                                                            : EX_OSERR;
        supervisor_http_close(supervisor);
        uv_walk(&supervisor->loop, close_handle, NULL);
    }
    uv_run(&supervisor->loop, UV_RUN_DEFAULT);
    error = uv_loop_close(&supervisor->loop);
    topkd_assert(error == 0); /* every handle was closed */
    return supervisor->exit_code;
}

static int with_settings(struct supervisor *supervisor, const struct settings_device *devices)
{
    supervisor->settings_fd = system_seal_settings(&supervisor->settings);
    if (supervisor->settings_fd < 0) {
        log_error("start_failed", "error=\"cannot copy the settings: %s\"",
                  strerror(-supervisor->settings_fd));
        return EX_OSERR;
    }
    int code = serve(supervisor, devices);
    close(supervisor->settings_fd);
    return code;
}

static int with_folder(struct supervisor *supervisor, const struct settings_device *devices)
{
    uint32_t num_removed = shm_remove_dead();
    if (num_removed != 0)
        log_info("shm_remains", "objects=%u of=\"daemons that died\"", num_removed);
    int error = shm_instance_open(&supervisor->shm);
    if (error != 0) {
        log_error("start_failed",
                  "error=\"cannot make shared memory: %s\" hint=\"check the mode "
                  "and the free space of /dev/shm\"",
                  strerror(-error));
        return EX_OSERR;
    }
    int code = with_settings(supervisor, devices);
    shm_instance_close(&supervisor->shm);
    return code;
}

int supervisor_main(const struct options *options, const struct settings *settings)
{
    char text[512], quoted[LOG_QUOTE_SIZE];
    struct settings_device devices[SETTINGS_DEVICES_MAX];
    struct supervisor *supervisor = calloc(1, sizeof *supervisor);
    if (supervisor == NULL) {
        log_error("start_failed", "error=\"out of memory\"");
        return EX_OSERR;
    }
    supervisor->options = options;
    supervisor->settings = *settings;
    int code = system_check_pid1(options->allow_shared_pid1, text, sizeof text);
    if (code == 0 && !system_resolve_devices(settings, worker_device_supported(WIRE_DEVICE_CUDA),
                                             devices, &supervisor->num_slots, text, sizeof text))
        code = EX_UNAVAILABLE;
    if (code == 0)
        code = folder_open(settings, &supervisor->folder, text, sizeof text);
    if (code != 0) {
        log_error("start_failed", "error=%s", log_quote(quoted, text));
        free(supervisor);
        return code;
    }
    if (getpid() == 1)
        log_warn("pid_1", "consequence=\"every process of this PID namespace is killed when topkd "
                          "ends; orphans are reaped\"");
    supervisor->epoch = system_epoch();
    log_info("start", "version=%s pid=%d epoch=%" PRIu64 " folder=%s devices=%u",
             TOPKD_VERSION_TEXT, (int)getpid(), supervisor->epoch, settings->socket.directory,
             supervisor->num_slots);
    code = with_folder(supervisor, devices);
    log_info("stop", "code=%d", code);
    folder_close(&supervisor->folder);
    free(supervisor);
    return code;
}
