/*
 * settings_table.h - every scalar setting of topkd, once.
 *
 * The struct, the parser, the check, the printer, the reload rule and config/topkd.yaml all come
 * from these tables. An entry is
 *     X(type, name, min, max, default, unit, apply, text)
 * type   U32 | BYTES (64-bit, may carry KiB/MiB/GiB/TiB) | MODE (octal) | LEVEL (log level) |
 *        DIRECTORY ("auto" or an absolute path) | GROUP (a name or a gid, "none") |
 *        USERS, GROUPS (a list of names or numbers). min, max and default are inclusive numbers
 *        and mean nothing for the types that are not numbers.
 * unit   what one step of the number is; "" for a count that its text names
 * apply  LIVE: SIGHUP swaps it in the running daemon; RESTART: it needs a new daemon
 * text   the comment of the default file
 * The two lists of structs, devices and buckets, are in settings.h (RESTART both).
 */
#ifndef TOPKD_SERVER_SETTINGS_TABLE_H
#define TOPKD_SERVER_SETTINGS_TABLE_H

/* Choice: address space of a process is 128 TiB on the 4-level page tables of x86-64; half of it
 * bounds every size in bytes, so that sums of two never overflow what the kernel could map. */
#define SETTINGS_BYTES_MAX (UINT64_C(64) << 40)

#define SETTINGS_SOCKET_TABLE(X)                                                                   \
    X(DIRECTORY, directory, 0, 0, 0, "", RESTART,                                                  \
      "Runtime folder of the sockets and the lock file. auto: /run/topkd for root, otherwise "     \
      "$XDG_RUNTIME_DIR/topkd. At most 60 characters, because the path of a Unix socket ends at "  \
      "107. Created when missing; one daemon a folder.")                                           \
    X(MODE, directory_mode, 0700, 0755, 0750, "", RESTART,                                         \
      "Mode of the runtime folder. Whoever may enter it reaches the sockets; who could write to "  \
      "it could replace them, so only its owner may.")                                             \
    X(MODE, mode, 0600, 0777, 0660, "", RESTART,                                                   \
      "Mode of the sockets. Write permission is what connecting needs. A POSIX access list that "  \
      "topkd.sock is given (setfacl) holds for all sockets.")                                      \
    X(GROUP, group, 0, 0, -1, "", RESTART,                                                         \
      "Group that owns the runtime folder and the sockets: a name or a gid. none: the daemon's "   \
      "own group.")

#define SETTINGS_ACCESS_TABLE(X)                                                                   \
    X(USERS, uids, 0, 0, 0, "", LIVE,                                                              \
      "Users that may open sessions, as names or numbers, beside root and the daemon's own user. " \
      "With uids and gids both empty the owner, group and mode of the sockets decide alone.")      \
    X(GROUPS, gids, 0, 0, 0, "", LIVE,                                                             \
      "Groups whose members may open sessions: the primary and the supplementary groups that the " \
      "peer process had when it connected count.")                                                 \
    X(USERS, operator_uids, 0, 0, 0, "", LIVE,                                                     \
      "Users that may drain the daemon and see sessions and statistics of others, beside root "    \
      "and the daemon's own user.")

#define SETTINGS_LIMITS_TABLE(X)                                                                   \
    X(U32, connections_max, 1, 65536, 512, "", LIVE,                                               \
      "Connections a socket accepts at once, sessions or not. More are closed at once.")           \
    X(U32, hello_ms, 100, 600000, 5000, "milliseconds", LIVE,                                      \
      "A connection that has not said hello by then is closed.")                                   \
    X(U32, sessions_max, 1, 65536, 256, "", LIVE, "Sessions a worker holds at once.")              \
    X(U32, regions_max, 1, 65536, 256, "", LIVE, "Registered regions a session.")                  \
    X(BYTES, region_bytes_max, 4096, SETTINGS_BYTES_MAX, UINT64_C(64) << 30, "bytes", LIVE,        \
      "Mapped bytes of all regions of a session. This is address space; the memory is the "        \
      "client's.")                                                                                 \
    X(BYTES, region_bytes_total, 4096, SETTINGS_BYTES_MAX, UINT64_C(1) << 40, "bytes", LIVE,       \
      "Mapped bytes of all regions of a worker. At least region_bytes_max.")                       \
    X(U32, registrations_per_s, 1, 1000000, 1000, "registrations a second", LIVE,                  \
      "Rate at which a session may register regions, averaged over a second.")                     \
    X(U32, outstanding_max, 1, 1024, 32, "", RESTART, "Requests a session may have in flight.")    \
    X(U32, queue_max, 1, 65536, 1024, "", LIVE,                                                    \
      "Requests a worker holds that have not begun to run. A full queue answers BUSY.")            \
    X(U32, timeout_ms_default, 1, 3600000, 10000, "milliseconds", LIVE,                            \
      "Deadline of a request that names none. At most timeout_ms_max.")                            \
    X(U32, timeout_ms_max, 1, 3600000, 600000, "milliseconds", LIVE,                               \
      "Longest deadline a request may ask for.")                                                   \
    X(U32, semaphores, 1, 4096, 64, "", RESTART,                                                   \
      "Semaphores in the page of a session, 64 bytes each.")                                       \
    X(U32, arena_slots, 0, 1024, 8, "", RESTART,                                                   \
      "Slots of a session's output arena: results without an output region that a client may "     \
      "hold at once. 0: no arena.")                                                                \
    X(BYTES, arena_slot_bytes, 4096, UINT64_C(4) << 30, UINT64_C(8) << 20, "bytes", RESTART,       \
      "Size of an arena slot, rounded up to whole pages: rows * k * 4, or * 8 with values. "       \
      "Memory is taken when a slot is first written.")                                             \
    X(U32, reply_cache, 1, 4096, 64, "", RESTART,                                                  \
      "Replies a session keeps to answer a repeated request. At least outstanding_max.")           \
    X(U32, buckets_max, 1, 4096, 64, "", RESTART,                                                  \
      "Shape buckets a worker holds, the configured ones included; beyond, the least recently "    \
      "used goes. At least the number of configured buckets.")                                     \
    X(U32, lanes, 1, 64, 4, "", RESTART, "Requests that a worker runs at the same time.")          \
    X(U32, client_lanes_max, 0, 28, 16, "", RESTART,                                               \
      "Lanes that the clients of a GPU may hold open at once (selection inside their own CUDA "    \
      "graphs). Each has a hardware queue of the GPU to itself, of which there are 32; a worker "  \
      "that finds fewer at its start has fewer lanes. One more lane is refused as BUSY. 0: no "    \
      "lanes.")                                                                                    \
    X(U32, lane_idle_ms, 1, 10000, 200, "milliseconds", RESTART,                                   \
      "A lane without a selection for so long is disarmed: the GPU no longer waits for its "       \
      "client, and its next selection begins some 100 microseconds late.")                         \
    X(U32, lane_poll_us, 0, 10000, 1000, "microseconds", RESTART,                                  \
      "Longest time after a selection in which a kernel of one warp may look for a lane's next "   \
      "request, where the client asks for that and MPS runs: the request is seen sooner, and a "   \
      "place on a multiprocessor is taken meanwhile. 0: none does.")

#define SETTINGS_WORKER_TABLE(X)                                                                   \
    X(U32, start_ms, 1000, 3600000, 60000, "milliseconds", LIVE,                                   \
      "A worker that is not ready by then is killed and started again.")                           \
    X(U32, heartbeat_ms, 10, 60000, 250, "milliseconds", LIVE,                                     \
      "Interval of a worker's heartbeats to the supervisor.")                                      \
    X(U32, hang_ms, 100, 600000, 5000, "milliseconds", LIVE,                                       \
      "A ready worker silent for so long is killed and started again. At least three times "       \
      "heartbeat_ms.")                                                                             \
    X(U32, canary_interval_ms, 100, 3600000, 1000, "milliseconds", LIVE,                           \
      "Interval of the canary, a real selection whose result is checked.")                         \
    X(U32, restart_min_ms, 10, 600000, 100, "milliseconds", LIVE,                                  \
      "Wait before a worker is started again; doubled at each death that comes before the "        \
      "worker has been ready for restart_max_ms.")                                                 \
    X(U32, restart_max_ms, 10, 600000, 10000, "milliseconds", LIVE,                                \
      "Longest wait before a worker is started again. At least restart_min_ms.")

#define SETTINGS_HTTP_TABLE(X)                                                                     \
    X(U32, port, 0, 65535, 0, "", RESTART,                                                         \
      "TCP port on 127.0.0.1. Every user of the machine can read what is there; it names no "      \
      "client, user or process. 0: off.")                                                          \
    X(U32, ready_ms, 100, 600000, 4000, "milliseconds", LIVE,                                      \
      "A device is ready while its last right canary, a real selection, ended at most so long "    \
      "and worker.canary_interval_ms ago.")                                                        \
    X(U32, connections_max, 1, 1024, 32, "", LIVE,                                                 \
      "Connections at once; one more takes the place of the oldest.")                              \
    X(U32, request_ms, 100, 60000, 5000, "milliseconds", LIVE,                                     \
      "Time that a connection has to send its request, and again to take the answer.")

#define SETTINGS_DRAIN_TABLE(X)                                                                    \
    X(U32, deadline_ms, 0, 600000, 10000, "milliseconds", LIVE,                                    \
      "Time that work in flight has to end after SIGTERM or topkctl drain.")

#define SETTINGS_LOG_TABLE(X)                                                                      \
    X(LEVEL, level, 0, 3, 2, "", LIVE,                                                             \
      "Least important lines written: error, warn, info or debug.")                                \
    X(U32, rate_per_s, 0, 100000, 20, "lines a second", LIVE,                                      \
      "Lines that one place of the code may write a second; the rest are counted. 0: no limit.")

/* Section, its table, its comment. */
#define SETTINGS_SECTION_TABLE(S)                                                                  \
    S(socket, SETTINGS_SOCKET_TABLE, "Where clients find the daemon.")                             \
    S(access, SETTINGS_ACCESS_TABLE, "Who may use it.")                                            \
    S(limits, SETTINGS_LIMITS_TABLE,                                                               \
      "Everything has a limit; at the limit a request is refused "                                 \
      "with a status that says so.")                                                               \
    S(worker, SETTINGS_WORKER_TABLE, "How workers are watched and restarted.")                     \
    S(drain, SETTINGS_DRAIN_TABLE, "How the daemon ends.")                                         \
    S(http, SETTINGS_HTTP_TABLE,                                                                   \
      "What people, probes and Prometheus see: /, /metrics, /livez, /readyz and /status.json.")    \
    S(log, SETTINGS_LOG_TABLE, "One line a fact on the standard error.")

#endif
