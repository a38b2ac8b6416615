/*
 * topkd_status.h - every status of topkd, in one table for both sides of the wire.
 *
 * The numbers are part of the wire contract: they are never reused or renumbered, new ones are
 * added at the end. Each entry: name, number, what happened, what to do.
 */
#ifndef TOPKD_STATUS_H
#define TOPKD_STATUS_H

#define TOPKD_STATUS_TABLE(X)                                                                      \
    X(TOPKD_OK, 0, "ok", "nothing to do")                                                          \
    X(TOPKD_E_INVALID, 1, "an argument is outside its limits",                                     \
      "correct the value that the detail text names")                                              \
    X(TOPKD_E_OUT_OF_RANGE, 2, "a tensor reaches outside its region",                              \
      "check offset, strides, rows and width against the region's length")                         \
    X(TOPKD_E_OVERLAP, 3, "output memory overlaps input or other output",                          \
      "give each output its own bytes")                                                            \
    X(TOPKD_E_READ_ONLY, 4, "output into a region registered for reading only",                    \
      "register the region with TOPKD_ACCESS_READ_WRITE")                                          \
    X(TOPKD_E_UNSUPPORTED, 5, "this daemon or device does not support the request",                \
      "see the features and limits of the session")                                                \
    X(TOPKD_E_PROTOCOL, 6, "a message could not be understood",                                    \
      "use a client library of this daemon's wire version")                                        \
    X(TOPKD_E_VERSION, 7, "the wire versions do not match",                                        \
      "upgrade the older side; the detail text has both versions")                                 \
    X(TOPKD_E_STALE_SESSION, 8, "the session is gone: its worker restarted or reaped it",          \
      "say hello again and register again; libtopkd does this by itself")                          \
    X(TOPKD_E_NO_REGION, 9, "unknown region id or generation",                                     \
      "use the id that register returned in this session, before unregister")                      \
    X(TOPKD_E_IN_USE, 10, "the object is in use",                                                  \
      "wait for the work in flight, or for the drain to end")                                      \
    X(TOPKD_E_NOT_PERMITTED, 11, "the caller is not permitted to do this",                         \
      "ask the operator to add the uid or gid to the access list")                                 \
    X(TOPKD_E_BUSY, 12, "a queue is full", "retry after an answer of an earlier request")          \
    X(TOPKD_E_LIMIT, 13, "a configured limit is reached",                                          \
      "release what is no longer needed, or raise the limit in the configuration")                 \
    X(TOPKD_E_DRAINING, 14, "the daemon is draining and takes no new work",                        \
      "connect again once it has restarted")                                                       \
    X(TOPKD_E_TIMEOUT, 15, "the deadline passed",                                                  \
      "check that the producer signals its semaphore, or give more time")                          \
    X(TOPKD_E_CANCELLED, 16, "the request was cancelled", "nothing to do")                         \
    X(TOPKD_E_NOT_EXPORTABLE, 17, "this memory cannot be shared with another process",             \
      "allocate it with cudaMalloc or as topkd_buffer, or stage it; the detail names the kind")    \
    X(TOPKD_E_SAME_PROCESS, 18, "memory of the daemon's own process cannot be registered",         \
      "register from another process, or call the selection library in process")                   \
    X(TOPKD_E_NOT_VISIBLE, 19, "the device is not visible or not the session's",                   \
      "compare the device UUIDs of both sides (topkctl devices)")                                  \
    X(TOPKD_E_NO_DEVICE, 20, "no such device is configured", "see topkctl devices")                \
    X(TOPKD_E_MAP_FAILED, 21, "the memory could not be mapped",                                    \
      "check the handle, its owner and its namespace")                                             \
    X(TOPKD_E_REGION_FAULT, 22, "memory of a region vanished while it was in use",                 \
      "unregister a region before its memory is freed or shrunk")                                  \
    X(TOPKD_E_DEVICE_FAULT, 23, "the device failed; its worker restarts",                          \
      "retry once the session is renewed; see the daemon's log")                                   \
    X(TOPKD_E_UNREACHABLE, 24, "the daemon cannot be reached",                                     \
      "start topkd, or check the socket's path and permissions")                                   \
    X(TOPKD_E_NO_MEMORY, 25, "out of memory", "free memory or lower the limits")                   \
    X(TOPKD_E_SYSTEM, 26, "a system call failed", "see the detail text")                           \
    X(TOPKD_E_CLOSED, 27, "the object is closed", "do not use it after close")

enum topkd_status {
#define TOPKD_STATUS_ENUM(name, number, text, hint) name = number,
    TOPKD_STATUS_TABLE(TOPKD_STATUS_ENUM)
#undef TOPKD_STATUS_ENUM
};

#endif
