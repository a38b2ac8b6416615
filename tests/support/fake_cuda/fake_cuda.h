/*
 * fake_cuda.h - a stand-in for libcuda on machines without a GPU.
 *
 * Enough of the driver to run the CUDA device of the daemon and the CUDA part of the client library
 * as real processes: device memory is shared memory, a stream is a thread that does its operations
 * in order, a wait on a value really waits, a graph is a list of operations, IPC handles and
 * shareable descriptors map the same bytes in other processes. The rules that decide are kept: a
 * handle cannot be opened by the process that made it, the handle of an interior pointer is that of
 * the allocation, a descriptor maps read-only when asked. In place of the kernels stands the CPU
 * selector, and the client library's one kernel is what it does. So it proves the logic around the
 * driver; time, scheduling and faults of a device are for tests/gpu.
 *
 * Load it with LD_PRELOAD. Environment: FAKE_CUDA_DEVICES (how many, default 1), FAKE_CUDA_FIRST
 * (ordinal of the first visible one, default 0: another process may see another device),
 * FAKE_CUDA_KERNEL_US (least time of a selection), FAKE_CUDA_CLEAR_US (of setting FAKE_CLEAR_BYTES
 * or more), FAKE_CUDA_MPS (0: the device says that it runs without), FAKE_CUDA_WALL (1: what frees
 * memory or makes a graph blocks while any stream of the process waits for a value, and every other
 * call behind it, as the real driver does; a process that stands so for five seconds is aborted),
 * FAKE_CUDA_QUEUES (so many hardware queues a process, which its streams take in turns as they are
 * made: behind a stream that waits nothing of its queue goes on; default: one for each stream),
 * FAKE_CUDA_FAIL (a file: while it is there, the call that it names finds no memory: cuMemAlloc,
 * cuMemHostAlloc, cuMemHostRegister or cuIpcOpenMemHandle, or cuModuleLoadData no compiler).
 */
#ifndef TOPKD_TESTS_FAKE_CUDA_H
#define TOPKD_TESTS_FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CLEAR_BYTES (4u << 20)

enum fake_kind {
    FAKE_COPY,
    FAKE_SET,
    FAKE_WRITE,
    FAKE_WAIT,
    FAKE_SELECT,
    FAKE_BEGIN, /* of a step, and its end */
    FAKE_END
};

struct fake_op {
    enum fake_kind kind;
    void *to;
    const void *from; /* of a copy; of a selection: its arguments; of a step: its state */
    uint64_t value;
    size_t size;    /* of a copy; of a write or a wait: 4 or 8 */
    unsigned flags; /* of a wait */
};

#define FAKE_OPS_MAX 64 /* of a graph */

struct CUgraph_st {
    uint32_t num_ops;
    struct fake_op ops[FAKE_OPS_MAX];
};

/* Appends to the stream, or to the graph that it captures. */
CUresult fake_push(CUstream stream, const struct fake_op *op);

/* What a stream does with FAKE_SELECT. */
void fake_select(const void *args);

/* And with the other two. */
struct topk_step;
void fake_step_begin(struct topk_step *step);
void fake_step_end(struct topk_step *step);

void fake_pause_us(long us);

/* Around a wait of a stream's. */
void fake_wait_begin(void);
void fake_wait_end(void);

/* The device of the calling thread's context; -1: it has none. */
int fake_current_device(void);

/* Whether FAKE_CUDA_FAIL wants this call to fail now. */
bool fake_fails(const char *call);

/* What frees memory goes through here first, what else enters the driver through the other. */
void fake_wall_meet(const char *call);
void fake_wall_pass(void);

enum fake_memory { FAKE_DEVICE, FAKE_POOL, FAKE_MANAGED, FAKE_HOST, FAKE_OPENED, FAKE_VIRTUAL };

#endif
