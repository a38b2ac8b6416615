/* doctor_share.c - a trial of each way in which device memory reaches another process: one fresh
 * process makes it, another maps and reads it, as client and worker do. */
#include "doctor.h"

#include "cuda_driver.h"
#include "fault.h"
#include "topkd_rights.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRIAL_S 20       /* choice: a context takes up to some seconds */
#define BYTES (2u << 20) /* one block: what both ways can share */
#define PATTERN 0x5a
#define PROT_READ_FLAG 1u    /* CU_MEM_ACCESS_FLAGS_PROT_READ */
#define PROT_READ_WRITE 3u   /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
#define ALLOCATION_PINNED 1u /* CU_MEM_ALLOCATION_TYPE_PINNED */
#define LOCATION_DEVICE 1u   /* CU_MEM_LOCATION_TYPE_DEVICE */

/* What only a trial needs of the driver. */
struct access {
    uint32_t location_type;
    int32_t location_id;
    uint32_t flags;
};
#define TRIAL_TABLE(X)                                                                             \
    X(copy_out, "cuMemcpyDtoH_v2", (void *to, cuda_pointer from, size_t size))                     \
    X(set, "cuMemsetD8_v2", (cuda_pointer to, unsigned char value, size_t size))                   \
    X(synchronize, "cuCtxSynchronize", (void))                                                     \
    X(create, "cuMemCreate",                                                                       \
      (uint64_t * handle_p, size_t size, const struct cuda_allocation *allocation,                 \
       unsigned long long flags))                                                                  \
    X(reserve, "cuMemAddressReserve",                                                              \
      (cuda_pointer * pointer_p, size_t size, size_t alignment, cuda_pointer address,              \
       unsigned long long flags))                                                                  \
    X(map, "cuMemMap",                                                                             \
      (cuda_pointer pointer, size_t size, size_t offset, uint64_t handle,                          \
       unsigned long long flags))                                                                  \
    X(allow, "cuMemSetAccess",                                                                     \
      (cuda_pointer pointer, size_t size, const struct access *access, size_t count))              \
    X(import, "cuMemImportFromShareableHandle", (uint64_t * handle_p, void *from, unsigned type))

struct trial {
    const struct cuda_driver *cuda;
#define TRIAL_FIELD(field, symbol, parameters) int(*field) parameters;
    TRIAL_TABLE(TRIAL_FIELD)
#undef TRIAL_FIELD
    bool by_descriptor;
    int ordinal, device;
    int fd;       /* to the other side */
    char *report; /* [DOCTOR_TEXT_SIZE], shared with the parent: what went wrong */
};

/* Ends the process when a call failed. */
static void must(struct trial *trial, int result, const char *what)
{
    if (result != CUDA_OK) {
        char detail[WIRE_DETAIL_SIZE];
        (void)cuda_driver_fault(trial->cuda, result, TOPKD_E_SYSTEM, what, detail);
        (void)snprintf(trial->report, DOCTOR_TEXT_SIZE, "%s", detail);
        _exit(1);
    }
}

static void fail(struct trial *trial, const char *what)
{
    (void)snprintf(trial->report, DOCTOR_TEXT_SIZE, "%s", what);
    _exit(1);
}

static void start(struct trial *trial)
{
    char detail[WIRE_DETAIL_SIZE];
    alarm(TRIAL_S);
    if (cuda_driver_get(&trial->cuda, detail) != TOPKD_OK) {
        fail(trial, detail);
    }
#define LOAD(field, symbol, parameters) *(void **)&trial->field = dlsym(RTLD_DEFAULT, symbol);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    TRIAL_TABLE(LOAD)
#undef LOAD
    if (!library || !trial->copy_out || !trial->set || !trial->synchronize || !trial->create ||
        !trial->reserve || !trial->map || !trial->allow || !trial->import) {
        fail(trial, "the driver is older than CUDA 12");
    }
    void *context;
    must(trial, trial->cuda->device(&trial->device, trial->ordinal), "cannot find the device");
    must(trial, trial->cuda->context_retain(&context, trial->device), "cannot make a context");
    must(trial, trial->cuda->context_push(context), "cannot use the context");
}

static cuda_pointer map_handle(struct trial *trial, uint64_t handle, uint32_t flags)
{
    cuda_pointer pointer = 0;
    const struct access access = {LOCATION_DEVICE, trial->device, flags};
    must(trial, trial->reserve(&pointer, BYTES, 0, 0, 0), "cannot reserve addresses");
    must(trial, trial->map(pointer, BYTES, 0, handle, 0), "cannot map virtual memory");
    must(trial, trial->allow(pointer, BYTES, &access, 1), "cannot make mapped memory accessible");
    return pointer;
}

static void send_message(struct trial *trial, const void *bytes, size_t size, int fd)
{
    if (rights_send(trial->fd, bytes, size, &fd, fd >= 0 ? 1 : 0) != (ssize_t)size) {
        fail(trial, "the other process of the trial is gone");
    }
}

/* Makes memory, hands it over, and stays until the other has looked. */
static void give(struct trial *trial)
{
    struct cuda_ipc_handle handle = {{0}};
    cuda_pointer pointer = 0;
    int fd = -1;
    start(trial);
    if (trial->by_descriptor) {
        const struct cuda_allocation allocation = {.type = ALLOCATION_PINNED,
                                                   .handle_types = CUDA_HANDLE_POSIX_FD,
                                                   .location_type = LOCATION_DEVICE,
                                                   .location_id = trial->device};
        uint64_t generic = 0;
        must(trial, trial->create(&generic, BYTES, &allocation, 0), "cannot make virtual memory");
        pointer = map_handle(trial, generic, PROT_READ_WRITE);
        must(trial, trial->cuda->virtual_export(&fd, generic, CUDA_HANDLE_POSIX_FD, 0),
             "cannot export a descriptor");
    } else {
        must(trial, trial->cuda->alloc(&pointer, BYTES), "cannot allocate device memory");
        must(trial, trial->cuda->ipc_get(&handle, pointer), "cannot get an IPC handle");
    }
    must(trial, trial->set(pointer, PATTERN, BYTES), "cannot write device memory");
    must(trial, trial->synchronize(), "cannot synchronise");
    send_message(trial, &handle, sizeof(handle), fd);
    char seen;
    (void)recv(trial->fd, &seen, 1, 0);
    _exit(0);
}

static void take(struct trial *trial)
{
    struct cuda_ipc_handle handle;
    cuda_pointer pointer = 0;
    start(trial);
    int fd = -1;
    uint32_t num_fds = 1;
    if (rights_receive(trial->fd, &handle, sizeof(handle), &fd, &num_fds) !=
        (ssize_t)sizeof(handle)) {
        _exit(1); /* the other has reported */
    }
    if (trial->by_descriptor) {
        uint64_t generic = 0;
        if (num_fds == 0) {
            fail(trial, "the descriptor did not arrive");
        }
        must(trial, trial->import(&generic, (void *)(uintptr_t)(unsigned)fd, CUDA_HANDLE_POSIX_FD),
             "cannot import the descriptor");
        pointer = map_handle(trial, generic, PROT_READ_FLAG);
    } else {
        must(trial, trial->cuda->ipc_open(&pointer, handle, CUDA_IPC_LAZY_PEER_ACCESS),
             "cannot open the IPC handle");
    }
    unsigned char ends[2] = {0};
    must(trial, trial->copy_out(&ends[0], pointer, 1), "cannot read the mapped memory");
    must(trial, trial->copy_out(&ends[1], pointer + BYTES - 1, 1), "cannot read the mapped memory");
    if (ends[0] != PATTERN || ends[1] != PATTERN) {
        fail(trial, "the mapped memory holds something else than was written");
    }
    (void)send(trial->fd, "x", 1, MSG_NOSIGNAL);
    _exit(0);
}

/* ---- The parent ------------------------------------------------------------------------------ */

/* True when the child ended well. */
static bool ended_well(pid_t pid)
{
    int status = 1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static void run_trial(struct doctor *doctor, int ordinal, bool by_descriptor, char *report)
{
    const char *subject = by_descriptor ? "share by fd" : "share by handle";
    int fds[2];
    memset(report, 0, DOCTOR_TEXT_SIZE);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) {
        doctor_note(doctor, DOCTOR_WARN, subject, "raise ulimit -n", "no socket pair");
        return;
    }
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        fflush(stdout);
        pids[i] = fork();
        if (pids[i] == 0) {
            struct trial trial = {
                .by_descriptor = by_descriptor, .ordinal = ordinal, .fd = fds[i], .report = report};
            close(fds[1 - i]);
            (i == 0 ? give : take)(&trial);
        }
    }
    close(fds[0]);
    close(fds[1]);
    bool gave = ended_well(pids[0]), took = ended_well(pids[1]);
    if (gave && took) {
        doctor_note(doctor, DOCTOR_OK, subject, NULL, "GPU %d: memory reached a second process%s",
                    ordinal, by_descriptor ? ", read-only" : "");
        return;
    }
    doctor_note(
        doctor, DOCTOR_FAIL, subject,
        by_descriptor ? "PyTorch's expandable segments cannot be used here; turn them off"
                      : "check that both sides see the device and run on one host, that MIG and "
                        "confidential computing are off",
        "GPU %d: %s", ordinal, report[0] ? report : "a process of the trial did not end in time");
}

/* The number of devices that CUDA shows to a process here, found out by one; -1 with a report. */
static int count_devices(char *report)
{
    pid_t pid = fork();
    if (pid == 0) {
        const struct cuda_driver *cuda;
        char detail[WIRE_DETAIL_SIZE];
        int count = 0;
        alarm(TRIAL_S);
        if (cuda_driver_get(&cuda, detail) != TOPKD_OK) {
            (void)snprintf(report, DOCTOR_TEXT_SIZE, "%s", detail);
            _exit(255);
        }
        (void)cuda->device_count(&count);
        _exit(count < 64 ? count : 64);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        return -1;
    }
    return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

void doctor_share(struct doctor *doctor)
{
    char *report =
        mmap(NULL, DOCTOR_TEXT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        doctor_note(doctor, DOCTOR_WARN, "share", "free memory", "no memory for a trial");
        return;
    }
    int count = count_devices(report);
    if (count < 0 && access("/dev/nvidiactl", F_OK) == 0) {
        doctor_note(doctor, DOCTOR_FAIL, "cuda",
                    "under MPS all clients' CUDA_DEVICE_MAX_CONNECTIONS share the hardware's "
                    "channels: unset it; otherwise see the driver's log (dmesg)",
                    "CUDA does not start in a fresh process: %s", report);
    } else if (count <= 0) {
        doctor_note(doctor, DOCTOR_OK, "share", NULL,
                    "no GPU here: trials of sharing device memory were not made");
    }
    for (int i = 0; i < count; i++) {
        run_trial(doctor, i, false, report);
        run_trial(doctor, i, true, report);
    }
}
