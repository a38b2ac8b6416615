/*
 * supervisor_system.h - what the supervisor asks of the operating system and tells systemd.
 */
#ifndef TOPKD_SERVER_SUPERVISOR_SYSTEM_H
#define TOPKD_SERVER_SUPERVISOR_SYSTEM_H

#include "settings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * An epoch that no process of this machine has used since its boot: microseconds of CLOCK_BOOTTIME,
 * which neither stops nor jumps, and at least one above the last one.
 */
uint64_t system_epoch(void);

/* Raises the limit of open descriptors to what is allowed, opens missing standard ones. */
void system_prepare_descriptors(void);

/* Holds SIGHUP back, or lets it come: before the supervisor looks for signals it would end the
 * process. One that was held back comes when it is let in. */
void system_hold_reload(bool is_held);

/* Copies the settings as text into a descriptor that nobody can change any more. The descriptor
 * (close-on-exec), or -errno. */
int system_seal_settings(const struct settings *settings);

/*
 * PID 1 has duties and powers that a service does not expect: it must reap every orphan of its PID
 * namespace, and the kernel kills the whole namespace when it ends. 0 when this process may run;
 * otherwise a text that says what would break, when it is PID 1 of the machine, or of a namespace
 * in which other processes already live (`allow_shared` accepts the latter).
 */
int system_check_pid1(bool allow_shared, char *text, size_t text_size);

/* As PID 1: reaps ended processes that are none of `pids` (those are libuv's). */
void system_reap_orphans(const pid_t *pids, uint32_t num_pids);

/*
 * Devices to serve: "auto" becomes every GPU of this machine when this build serves GPUs, else
 * "cpu". False with a text when a configured device cannot be served by this build.
 */
bool system_resolve_devices(const struct settings *settings, bool serves_gpus,
                            struct settings_device *devices_p, uint32_t *num_devices_p, char *text,
                            size_t text_size);

/* ---- systemd (nothing happens without it) ---------------------------------------------------- */

/* One state, "READY=1" and so on. */
void system_notify(const char *state);
/* "STATUS=..." from a text. */
void system_notify_status(const char *status);
/* "RELOADING=1" with the time that systemd 253 and later wants. */
void system_notify_reloading(void);
/* Interval at which WATCHDOG=1 must be sent, half of what systemd asks; 0: no watchdog. */
uint64_t system_watchdog_ms(void);

/*
 * The listening socket that whoever started the process holds for it (socket activation: LISTEN_PID
 * and LISTEN_FDS, which are taken out of the environment). *fd_p is -1 when there is none. False,
 * with a text, when there is one that is not a stream socket listening at `path`.
 */
bool system_activation(const char *path, int *fd_p, char *text, size_t text_size);

#endif
