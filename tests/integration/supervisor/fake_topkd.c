/*
 * fake_topkd - the real supervisor over workers that misbehave on purpose.
 *
 * The supervisor starts its own executable as worker, so that this program is both. What a worker
 * does wrong is in the file $TOPKD_FAKE, read at each of its starts; a device's name behind it
 * means the worker of that device alone:
 *
 *   good               nothing
 *   never_ready        says nothing and stays
 *   wrong_canary       is ready, then reports a wrong selection
 *   wrong_in_drain     stays when told to drain, and reports a wrong selection then
 *   wrong_epoch        is ready under another epoch
 *   garbage            sends a packet that is none
 *   unknown            sends a message that only a supervisor may send
 *   hangs_up           closes its channel and stays
 *   ignores_drain      stays when told to drain
 *   fails              exits at once
 */
#include "server/control.h"
#include "server/log.h"
#include "server/options.h"
#include "server/supervisor.h"
#include "server/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <unistd.h>

#define HEARTBEAT_MS 20

/* Instead of the library's: devices of any kind, since none is opened. */
bool worker_device_supported(enum wire_device_kind kind)
{
    (void)kind;
    return true;
}

static char behaviour[32];
static bool is_draining; /* this worker was told to */

static bool behaves(const char *name)
{
    return strcmp(behaviour, name) == 0;
}

static void read_behaviour(const char *device)
{
    char only[64] = "";
    const char *path = getenv("TOPKD_FAKE");
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    if (file == NULL || fscanf(file, "%31s %63s", behaviour, only) < 1)
        exit(EX_NOINPUT);
    fclose(file);
    if (only[0] != '\0' && strcmp(only, device) != 0)
        strcpy(behaviour, "good");
}

static _Noreturn void stay(void)
{
    for (;;)
        pause();
}

static void send_message(enum control_kind kind, uint64_t epoch)
{
    struct control_message message = control_message_make(kind, epoch);
    if (kind == CONTROL_READY)
        snprintf(message.u.ready.device_name, sizeof message.u.ready.device_name, "fake \"%s\"",
                 behaviour);
    if (kind == CONTROL_HEARTBEAT) {
        message.u.heartbeat.canary_age_ms = 1;
        message.u.heartbeat.canary_ok =
            !behaves("wrong_canary") && !(behaves("wrong_in_drain") && is_draining);
    }
    (void)control_send(CONTROL_FD, &message, -1);
}

/* Heartbeats until the channel says otherwise; returns the exit code. */
static int live(uint64_t epoch)
{
    for (;;) {
        struct pollfd wait = {.fd = CONTROL_FD, .events = POLLIN};
        struct control_message message;
        int fd = -1;
        if (poll(&wait, 1, HEARTBEAT_MS) <= 0) {
            send_message(CONTROL_HEARTBEAT, epoch);
            continue;
        }
        int result = control_receive(CONTROL_FD, &message, &fd);
        if (fd >= 0)
            close(fd);
        if (result <= 0 && result != -EAGAIN)
            return EX_OK;
        if (result > 0 && message.kind == CONTROL_DRAIN) {
            if (behaves("ignores_drain"))
                stay();
            is_draining = true;
            if (behaves("wrong_in_drain"))
                continue;
            send_message(CONTROL_DRAINED, epoch);
            return EX_OK;
        }
    }
}

static int fake_worker(char *const *argv, int argc)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 7)
        return EX_USAGE;
    read_behaviour(argv[2]);
    uint64_t epoch = strtoull(argv[4], NULL, 10);
    if (behaves("fails"))
        return EX_UNAVAILABLE;
    if (behaves("never_ready"))
        stay();
    if (behaves("hangs_up")) {
        close(CONTROL_FD);
        stay();
    }
    if (behaves("garbage"))
        (void)send(CONTROL_FD, "garbage", 7, MSG_NOSIGNAL);
    if (behaves("unknown"))
        send_message(CONTROL_DRAIN, epoch);
    send_message(CONTROL_READY, behaves("wrong_epoch") ? epoch + 1 : epoch);
    return live(epoch);
}

int main(int argc, char **argv)
{
    static struct settings settings;
    static struct settings_report report;
    struct options options;
    char error[OPTIONS_ERROR_SIZE];
    if (argc > 1 && strcmp(argv[1], "--worker") == 0)
        return fake_worker(argv, argc);
    if (!options_parse(argc, argv, &options, error) ||
        options_settings(&options, &settings, &report) != TOPKD_OK)
        return EX_USAGE;
    signal(SIGPIPE, SIG_IGN);
    log_init("supervisor", (enum log_level)settings.log.level, settings.log.rate_per_s);
    return supervisor_main(&options, &settings);
}
