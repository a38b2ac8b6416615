/*
 * worker_fault.h - faults on purpose, for tests of what a faulting worker does to others.
 *
 * Only when the environment of the worker has TOPKD_TEST_FAULT=kind@n (n from 1): the n-th Select
 * that this worker takes in (for `canary` and `stall`: the n-th canary after ready) meets the
 * fault. A worker says so in its log at start. Nothing of it can be reached through a socket.
 */
#ifndef TOPKD_SERVER_WORKER_FAULT_H
#define TOPKD_SERVER_WORKER_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Kind, its name, what happens. */
#define WORKER_FAULT_TABLE(X)                                                                      \
    X(WORKER_FAULT_NONE, "none", "nothing")                                                        \
    X(WORKER_FAULT_ABORT, "abort", "the process aborts")                                           \
    X(WORKER_FAULT_SEGV, "segv", "an illegal address is written")                                  \
    X(WORKER_FAULT_HANG, "hang", "the loop stops turning")                                         \
    X(WORKER_FAULT_DEVICE, "device", "the device fails: the worker gives up in order")             \
    X(WORKER_FAULT_LOSE, "lose", "the device never ends this one, cancelled or not")               \
    X(WORKER_FAULT_CANARY, "canary", "this canary and all later ones are wrong")                   \
    X(WORKER_FAULT_STALL, "stall", "this canary never ends, though the loop turns")

enum worker_fault_kind {
#define WORKER_FAULT_ENUM(name, text, what) name,
    WORKER_FAULT_TABLE(WORKER_FAULT_ENUM)
#undef WORKER_FAULT_ENUM
};

struct worker_fault {
    enum worker_fault_kind kind;
    uint32_t countdown; /* events until it happens */
    bool lose;          /* the Select at hand must not reach the device */
};

/* Reads the environment. False when the variable is there and not understood. */
bool worker_fault_init(struct worker_fault *fault);

/* A Select was taken in: does what `kind` says when it is the n-th. True: the device has failed. */
bool worker_fault_select(struct worker_fault *fault);

/* A canary is about to run (on its thread). True: it is to be called wrong. */
bool worker_fault_canary(struct worker_fault *fault);

#endif
