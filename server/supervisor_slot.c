/* One device's worker: start, watch, drain, kill, restart. */
#include "assert.h"
#include "log.h"
#include "supervisor_internal.h"
#include "supervisor_system.h"
#include "topkd_fd.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define URL_PREFIX "ipc://"

/* Choice: a worker that was told to drain answers what is pending at the deadline and then exits;
 * this is the time for that. */
#define DRAIN_GRACE_MS 1000u

/* Choice: how long a worker that closed its channel may take to exit, and how often a kill that
 * had no effect (a process stuck in the kernel) is repeated and logged. */
#define END_GRACE_MS 2000u

/* Of a worker that was still starting when a drain began: nothing went wrong. */
static const char reason_drain[] = "drain";

static void on_timer(uv_timer_t *timer);

static uint64_t loop_now(const struct slot *slot)
{
    return uv_now(&slot->supervisor->loop);
}

void slot_init(struct slot *slot, struct supervisor *supervisor,
               const struct settings_device *device)
{
    memset(slot, 0, sizeof *slot);
    slot->supervisor = supervisor;
    slot->device = *device;
    snprintf(slot->url, sizeof slot->url, URL_PREFIX "%s/%s.sock",
             supervisor->settings.socket.directory, device->device);
    slot->state = SLOT_STOPPED;
    slot->figures_fd = -1;
    int error = uv_timer_init(&supervisor->loop, &slot->timer);
    topkd_assert(error == 0); /* it cannot fail */
    slot->timer.data = slot;
}

void slot_close(struct slot *slot)
{
    topkd_assert(slot->state == SLOT_STOPPED);
    uv_close((uv_handle_t *)&slot->timer, NULL);
}

pid_t slot_pid(const struct slot *slot)
{
    return slot->life == NULL ? 0 : slot->life->process.pid;
}

enum wire_device_state slot_device_state(const struct slot *slot)
{
    switch (slot->state) {
    case SLOT_STARTING:
        return WIRE_DEVICE_STARTING;
    case SLOT_READY:
        return WIRE_DEVICE_READY;
    case SLOT_DRAINING:
        return WIRE_DEVICE_DRAINING;
    case SLOT_STOPPED:
    case SLOT_WAITING:
    case SLOT_ENDING:
        break;
    }
    return WIRE_DEVICE_DOWN;
}

enum wire_device_kind slot_device_kind(const struct slot *slot)
{
    return strcmp(slot->device.device, "cpu") == 0 ? WIRE_DEVICE_CPU : WIRE_DEVICE_CUDA;
}

static void enter(struct slot *slot, enum slot_state state, uint64_t timeout_ms)
{
    slot->state = state;
    uv_update_time(&slot->supervisor->loop); /* a wait begins now, not when this turn began */
    if (state == SLOT_STOPPED)
        uv_timer_stop(&slot->timer);
    else
        uv_timer_start(&slot->timer, on_timer, timeout_ms, 0);
    supervisor_slot_changed(slot->supervisor);
}

static void wait_and_restart(struct slot *slot)
{
    const struct settings *settings = &slot->supervisor->settings;
    uint32_t min_ms = settings->worker.restart_min_ms, max_ms = settings->worker.restart_max_ms;
    bool was_stable = slot->ready_ms != 0 && loop_now(slot) - slot->ready_ms >= max_ms;
    if (slot->backoff_ms == 0 || was_stable)
        slot->backoff_ms = min_ms;
    else
        slot->backoff_ms = slot->backoff_ms > max_ms / 2 ? max_ms : slot->backoff_ms * 2;
    if (slot->backoff_ms < min_ms) /* a reload raised it */
        slot->backoff_ms = min_ms;
    log_info("worker_wait", "device=%s wait_ms=%u", slot->device.device, slot->backoff_ms);
    enter(slot, SLOT_WAITING, slot->backoff_ms);
}

/* Kills the worker; what follows comes from its exit. */
static void kill_worker(struct slot *slot, const char *reason)
{
    topkd_assert(slot->life != NULL);
    if (slot->end_reason == NULL)
        slot->end_reason = reason;
    log_at(slot->end_reason == reason_drain ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, "worker_kill",
           "device=%s epoch=%" PRIu64 " pid=%d reason=%s", slot->device.device, slot->epoch,
           (int)slot_pid(slot), reason);
    uv_process_kill(&slot->life->process, SIGKILL);
    enter(slot, SLOT_ENDING, END_GRACE_MS);
}

/* ---- Messages of the worker ------------------------------------------------------------------ */

static void on_ready(struct slot *slot, const struct control_message *message)
{
    slot->ready = message->u.ready;
    slot->ready.device_name[sizeof slot->ready.device_name - 1] = '\0';
    if (slot->state != SLOT_STARTING)
        return; /* told to drain meanwhile */
    char name[LOG_QUOTE_SIZE];
    slot->ready_ms = loop_now(slot);
    log_info("worker_ready", "device=%s epoch=%" PRIu64 " pid=%d name=%s url=%s",
             slot->device.device, slot->epoch, (int)slot_pid(slot),
             log_quote(name, slot->ready.device_name), slot->url);
    enter(slot, SLOT_READY, slot->supervisor->settings.worker.heartbeat_ms);
    slot->check_ms = loop_now(slot) + slot->supervisor->settings.worker.heartbeat_ms;
}

static void on_heartbeat(struct slot *slot, const struct control_message *message)
{
    slot->heartbeat = message->u.heartbeat;
    bool is_wrong =
        slot->heartbeat.canary_age_ms != CONTROL_CANARY_NEVER && slot->heartbeat.canary_ok == 0;
    if (is_wrong && (slot->state == SLOT_READY || slot->state == SLOT_DRAINING)) {
        slot->num_canaries_wrong++;
        kill_worker(slot, "canary_wrong"); /* its answers cannot be trusted */
    }
}

static void on_message(struct slot *slot, const struct control_message *message)
{
    slot->heard_ms = loop_now(slot);
    if (message->epoch != slot->epoch) {
        kill_worker(slot, "wrong_epoch");
        return;
    }
    switch ((enum control_kind)message->kind) {
    case CONTROL_READY:
        on_ready(slot, message);
        return;
    case CONTROL_HEARTBEAT:
        on_heartbeat(slot, message);
        return;
    case CONTROL_DRAINED:
        if (slot->state == SLOT_DRAINING)
            enter(slot, SLOT_ENDING, END_GRACE_MS);
        return;
    case CONTROL_DRAIN:
    case CONTROL_RELOAD:
        break;
    }
    kill_worker(slot, "unknown_message");
}

/* Takes all messages that are there. At the end of the channel the worker must exit soon. */
static void read_messages(struct slot *slot)
{
    struct life *life = slot->life;
    while (slot->life == life) {
        struct control_message message;
        int fd = -1;
        int result = control_receive(life->control_fd, &message, &fd);
        if (fd >= 0)
            close(fd); /* workers pass none */
        if (result > 0) {
            on_message(slot, &message);
            continue;
        }
        if (result == -EAGAIN)
            return;
        uv_poll_stop(&life->poll);
        if (result < 0)
            log_error("control_failed", "device=%s epoch=%" PRIu64 " error=%s", slot->device.device,
                      slot->epoch, strerror(-result));
        if (result < 0)
            kill_worker(slot, "control_failed");
        else if (slot->state != SLOT_ENDING)
            enter(slot, SLOT_ENDING, END_GRACE_MS);
        return;
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct life *life = poll->data;
    (void)status; /* an error shows up again when reading */
    (void)events;
    if (life->slot != NULL)
        read_messages(life->slot);
}

/* Silence is judged only after reading what waits: a supervisor that was stopped, or a machine that
 * was, finds its timer due and the messages of the meantime at once. If the machine stood still as
 * a whole there are none, and the lateness of this very check is the sign of it. */
static void check_heartbeat(struct slot *slot)
{
    const struct settings *settings = &slot->supervisor->settings;
    uint64_t late_ms = loop_now(slot) - slot->check_ms;
    read_messages(slot);
    if (slot->state != SLOT_READY)
        return;
    if (late_ms >= settings->worker.hang_ms / 2) {
        log_warn("supervisor_late", "device=%s late_ms=%" PRIu64, slot->device.device, late_ms);
        slot->heard_ms = loop_now(slot);
    }
    uint64_t silent_ms = loop_now(slot) - slot->heard_ms;
    if (silent_ms >= settings->worker.hang_ms) {
        kill_worker(slot, "silent");
        return;
    }
    uint64_t next_ms = settings->worker.hang_ms - silent_ms;
    if (next_ms > settings->worker.heartbeat_ms)
        next_ms = settings->worker.heartbeat_ms;
    slot->check_ms = loop_now(slot) + next_ms;
    uv_timer_start(&slot->timer, on_timer, next_ms, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct slot *slot = timer->data;
    switch (slot->state) {
    case SLOT_STOPPED:
        return;
    case SLOT_WAITING:
        slot_start(slot);
        return;
    case SLOT_STARTING:
        read_messages(slot);
        if (slot->state == SLOT_STARTING)
            kill_worker(slot, "start_timeout");
        return;
    case SLOT_READY:
        check_heartbeat(slot);
        return;
    case SLOT_DRAINING:
        kill_worker(slot, "drain_deadline");
        return;
    case SLOT_ENDING:
        kill_worker(slot, "does_not_end");
        return;
    }
}

/* ---- Life and death -------------------------------------------------------------------------- */

static void on_process_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct life *life = handle->data;
    if (life->has_process)
        uv_close((uv_handle_t *)&life->process, on_process_closed);
    else
        free(life);
}

/* Frees it when libuv has let go of it. */
static void close_life(struct life *life)
{
    life->slot = NULL;
    if (life->has_poll)
        uv_close((uv_handle_t *)&life->poll, on_poll_closed);
    close(life->control_fd);
    if (!life->has_poll)
        free(life);
}

/* What a dead worker leaves in the file system. */
static void remove_remains(struct slot *slot)
{
    char prefix[WIRE_NAME_SIZE];
    shm_prefix(&slot->supervisor->shm, slot->epoch, prefix);
    uint32_t num_objects = shm_remove(prefix);
    char side_socket[WIRE_URL_SIZE]; /* of devices that take memory as descriptors */
    snprintf(side_socket, sizeof side_socket, "%s/%s" FD_SOCKET_SUFFIX,
             slot->supervisor->settings.socket.directory, slot->device.device);
    (void)unlink(side_socket);
    bool had_socket = unlink(slot->url + strlen(URL_PREFIX)) == 0;
    if (num_objects != 0 || had_socket)
        log_info("worker_remains", "device=%s epoch=%" PRIu64 " shm_objects=%u socket=%s",
                 slot->device.device, slot->epoch, num_objects, had_socket ? "yes" : "no");
}

static void on_process_exit(uv_process_t *process, int64_t exit_code, int signal)
{
    struct life *life = process->data;
    struct slot *slot = life->slot;
    topkd_assert(slot != NULL && slot->life == life);
    bool is_expected = slot->supervisor->is_draining &&
                       ((exit_code == 0 && signal == 0) || slot->end_reason == reason_drain);
    log_at(is_expected ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, "worker_exit",
           "device=%s epoch=%" PRIu64 " pid=%d code=%" PRId64 " signal=%d kill_reason=%s",
           slot->device.device, slot->epoch, (int)process->pid, exit_code, signal,
           slot->end_reason != NULL ? slot->end_reason : "none");
    slot->life = NULL;
    close_life(life);
    remove_remains(slot);
    if (slot->supervisor->is_draining)
        enter(slot, SLOT_STOPPED, 0);
    else
        wait_and_restart(slot);
    supervisor_reap(slot->supervisor);
}

/* The worker's command line; main.c reads it again. */
struct command {
    char name[8], option[12], epoch[24], prefix[WIRE_NAME_SIZE], threads[12];
    char *argv[8];
};

static void make_command(struct command *command, struct slot *slot)
{
    *command = (struct command){
        .name = "topkd",
        .option = "--worker",
        .argv = {command->name, command->option, slot->device.device, command->threads,
                 command->epoch, command->prefix, slot->url, NULL},
    };
    snprintf(command->epoch, sizeof command->epoch, "%" PRIu64, slot->epoch);
    snprintf(command->threads, sizeof command->threads, "%u", slot->device.threads);
    shm_prefix(&slot->supervisor->shm, slot->epoch, command->prefix);
}

/* Starts the process with its end of the channel. 0, or a negative error of libuv. */
static int spawn(struct slot *slot, struct life *life, int worker_fd)
{
    struct command command;
    make_command(&command, slot);
    uv_stdio_container_t stdio[] = {
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = STDOUT_FILENO},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
        [CONTROL_FD] = {.flags = UV_INHERIT_FD, .data.fd = worker_fd},
        [CONTROL_CONFIG_FD] = {.flags = UV_INHERIT_FD, .data.fd = slot->supervisor->settings_fd},
        [FIGURES_FD] = {.flags = UV_INHERIT_FD, .data.fd = slot->figures_fd},
    };
    int num_fds = slot->figures_fd >= 0 ? FIGURES_FD + 1 : FIGURES_FD;
    uv_process_options_t options = {
        .exit_cb = on_process_exit,
        .file = "/proc/self/exe", /* this very file, also when a newer one is in its place */
        .args = command.argv,
        .stdio_count = num_fds,
        .stdio = stdio,
    };
    life->process.data = life;
    life->poll.data = life;
    int error = uv_poll_init(&slot->supervisor->loop, &life->poll, life->control_fd);
    if (error != 0)
        return error;
    life->has_poll = true;
    error = uv_poll_start(&life->poll, UV_READABLE, on_poll);
    if (error != 0)
        return error;
    life->has_process = true; /* also a failed one is to be closed */
    return uv_spawn(&slot->supervisor->loop, &life->process, &options);
}

/* 0, or a negative error; *life_p is set only on success. */
static int open_life(struct slot *slot, struct life **life_p)
{
    int fds[2];
    struct life *life = calloc(1, sizeof *life);
    if (life == NULL)
        return -ENOMEM;
    int error = control_pair(fds);
    if (error != 0) {
        free(life);
        return error;
    }
    life->slot = slot;
    life->control_fd = fds[0];
    error = spawn(slot, life, fds[1]);
    close(fds[1]);
    if (error == 0) {
        *life_p = life;
        return 0;
    }
    close_life(life);
    return error;
}

void slot_start(struct slot *slot)
{
    topkd_assert(slot->life == NULL && !slot->supervisor->is_draining);
    slot->epoch = system_epoch();
    slot->num_starts++;
    slot->ready_ms = 0;
    slot->end_reason = NULL;
    memset(&slot->ready, 0, sizeof slot->ready);
    memset(&slot->heartbeat, 0, sizeof slot->heartbeat);
    slot->heartbeat.canary_age_ms = CONTROL_CANARY_NEVER;
    uv_update_time(&slot->supervisor->loop);
    slot->heard_ms = loop_now(slot);
    int error = open_life(slot, &slot->life);
    if (error != 0) {
        log_error("worker_start_failed", "device=%s epoch=%" PRIu64 " error=%s",
                  slot->device.device, slot->epoch, uv_strerror(error));
        wait_and_restart(slot);
        return;
    }
    log_info("worker_start", "device=%s epoch=%" PRIu64 " pid=%d restarts=%u", slot->device.device,
             slot->epoch, (int)slot_pid(slot), slot->num_starts - 1);
    enter(slot, SLOT_STARTING, slot->supervisor->settings.worker.start_ms);
}

void slot_drain(struct slot *slot, uint32_t deadline_ms)
{
    struct control_message message = control_message_make(CONTROL_DRAIN, slot->epoch);
    message.u.drain.deadline_ms = deadline_ms;
    int error;
    switch (slot->state) {
    case SLOT_STOPPED:
    case SLOT_ENDING:
        return;
    case SLOT_WAITING:
        enter(slot, SLOT_STOPPED, 0);
        return;
    case SLOT_STARTING: /* nobody uses it yet, and it may not look at its channel for long */
        kill_worker(slot, reason_drain);
        return;
    case SLOT_READY:
    case SLOT_DRAINING:
        error = control_send(slot->life->control_fd, &message, -1);
        if (error != 0)
            kill_worker(slot, "control_failed");
        else
            enter(slot, SLOT_DRAINING, (uint64_t)deadline_ms + DRAIN_GRACE_MS);
        return;
    }
}

void slot_reload(struct slot *slot, int settings_fd)
{
    struct control_message message = control_message_make(CONTROL_RELOAD, slot->epoch);
    if (slot->state != SLOT_STARTING && slot->state != SLOT_READY)
        return; /* ending, or a later one gets the new settings at its start */
    if (control_send(slot->life->control_fd, &message, settings_fd) != 0)
        kill_worker(slot, "control_failed");
}
