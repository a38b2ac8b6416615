#include "device_cuda.h"

#include "assert.h"
#include "detail.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Choices: how often one looks whether the stream has gone on; by when the GPU has begun with a new
 * lane, whoever else uses it (a hand-over among eight processes without MPS took 1.4 ms, H200);
 * after what time a stream that is to run out is taken to stand behind others that wait. */
#define LOOK_NS 5000
#define TAKE_NS UINT64_C(2000000000)
#define BEHIND_NS UINT64_C(20000000)

/* ---- The client's file ----------------------------------------------------------------------- */

/* The file must not shrink, or a look at it would end the worker. */
static enum topkd_status check_file(struct device_mailbox *mailbox, int fd, char *detail)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return detail_set(detail, TOPKD_E_MAP_FAILED, "the mailbox cannot be looked at: %s",
                          strerror(errno));
    int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(info.st_mode) || info.st_size < (off_t)WIRE_MAILBOX_BYTES || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0)
        return detail_set(detail, TOPKD_E_INVALID,
                          "the mailbox is no memory file of at least %u bytes that is sealed "
                          "against shrinking (%" PRId64 " bytes, seals %d)",
                          WIRE_MAILBOX_BYTES, (int64_t)info.st_size, seals);
    mailbox->file_device = info.st_dev;
    mailbox->file_inode = info.st_ino;
    return TOPKD_OK;
}

static enum topkd_status map_file(struct device_mailbox *mailbox, int fd, char *detail)
{
    enum topkd_status status = check_file(mailbox, fd, detail);
    if (status != TOPKD_OK)
        return status;
    void *address = mmap(NULL, WIRE_MAILBOX_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return detail_set(detail, TOPKD_E_MAP_FAILED, "the mailbox cannot be mapped: %s",
                          strerror(errno));
    mailbox->file = address;
    return TOPKD_OK;
}

static enum topkd_status take_file(struct device_mailbox *mailbox,
                                   const struct device_mailbox_config *config, char *detail)
{
    const struct wire_memory *file = config->file;
    if (file->kind != WIRE_MEMORY_CUDA_FD || file->handle_bytes != FD_TICKET_SIZE)
        return detail_set(detail, TOPKD_E_INVALID,
                          "a lane's mailbox comes as the ticket of a descriptor (kind %d, %u "
                          "bytes), not as kind %d with %" PRIu32 " bytes",
                          WIRE_MEMORY_CUDA_FD, FD_TICKET_SIZE, (int)file->kind, file->handle_bytes);
    struct fd_bundle *bundle;
    enum topkd_status status =
        fd_channel_take(mailbox->cuda->channel, file->handle, &config->peer, &bundle, detail);
    if (status != TOPKD_OK)
        return status;
    status = bundle->num_fds == 1
                 ? map_file(mailbox, bundle->entries[0].fd, detail)
                 : detail_set(detail, TOPKD_E_INVALID,
                              "a lane's mailbox is one descriptor, not %" PRIu32, bundle->num_fds);
    fd_bundle_destroy(bundle);
    return status;
}

/* Where the streams find the word. */
static enum topkd_status reach_word(struct device_mailbox *mailbox,
                                    const struct device_mailbox_config *config, char *detail)
{
    struct device_cuda *cuda = mailbox->cuda;
    const struct cuda_driver *driver = cuda->driver;
    mailbox->is_device = config->device_mailbox != 0;
    if (mailbox->is_device)
        mailbox->poll_us =
            config->poll_us < cuda->mailbox_poll_us ? config->poll_us : cuda->mailbox_poll_us;
    if (mailbox->is_device) {
        mailbox->d_mailbox = config->device_mailbox;
        return TOPKD_OK;
    }
    CUresult result =
        driver->cuMemHostRegister(mailbox->file, WIRE_MAILBOX_BYTES,
                                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result != CUDA_SUCCESS)
        return cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot register a mailbox", detail);
    mailbox->is_registered = true;
    result = driver->cuMemHostGetDevicePointer(&mailbox->d_mailbox, mailbox->file, 0);
    return result == CUDA_SUCCESS
               ? TOPKD_OK
               : cuda_fail(cuda, result, TOPKD_E_SYSTEM, "a mailbox has no device address", detail);
}

/* ---- Open ------------------------------------------------------------------------------------ */

/* With the mutex. One file serves one mailbox: two would answer each other's requests. */
static enum topkd_status take_place(struct device_mailbox *mailbox, char *detail)
{
    struct device_cuda *cuda = mailbox->cuda;
    if (cuda->num_mailboxes >= cuda->mailboxes_max)
        return detail_set(detail, TOPKD_E_BUSY,
                          "%" PRIu32 " lanes are open on this device, the most that "
                          "limits.client_lanes_max and its hardware queues allow: close one",
                          cuda->num_mailboxes);
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++) {
        const struct device_mailbox *other = cuda->mailboxes[i];
        if (other != NULL && other->file_inode == mailbox->file_inode &&
            other->file_device == mailbox->file_device)
            return detail_set(detail, TOPKD_E_BUSY,
                              "the mailbox still serves another lane; retry when that is closed");
    }
    uint32_t place = 0;
    while (cuda->mailboxes[place] != NULL)
        place++;
    topkd_assert(place < cuda->mailboxes_max);
    mailbox->track = &cuda->mailbox_tracks[place];
    return TOPKD_OK;
}

/* With the mutex: arguments and state to the device, in the order of the lane's stream. */
static CUresult upload(struct device_mailbox *mailbox, const struct device_mailbox_config *config)
{
    struct device_cuda *cuda = mailbox->cuda;
    const struct cuda_driver *driver = cuda->driver;
    struct cuda_track *track = mailbox->track;
    struct cuda_request *request = &track->h_requests[0];
    memset(track->h_marks, 0, sizeof(*track->h_marks));
    request->args = config->args;
    request->args.routes = (struct topk_routes *)(uintptr_t)cuda->d_routes;
    request->step = (struct topk_step){
        .mailbox =
            (uint32_t *)(uintptr_t)(mailbox->d_mailbox + offsetof(struct wire_mailbox, word)),
        .live_rows = (const int32_t *)config->live_rows,
        .args = (struct topk_args *)(uintptr_t)track->d_request,
        .counts = &track->h_marks->counts,
        .awake =
            (uint16_t *)(uintptr_t)(mailbox->d_mailbox + offsetof(struct wire_mailbox, release) +
                                    sizeof(uint16_t)), /* little-endian: the upper half */
        .rows_max = config->args.num_rows,
        .poll_ns = mailbox->poll_us * 1000,
    };
    CUresult result = driver->cuMemcpyHtoDAsync(
        track->d_request, request, offsetof(struct cuda_request, lengths), track->stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemcpyHtoDAsync(track->d_request + offsetof(struct cuda_request, step),
                                           &request->step, sizeof(request->step), track->stream);
    /* What a former worker left in the release word goes; the client's own word stays. The mark
     * says that all this is done: it begins like the end of a pause. */
    CUstreamBatchMemOpParams ops[2];
    memset(ops, 0, sizeof(ops));
    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = mailbox->d_mailbox + offsetof(struct wire_mailbox, release);
    ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[1].writeValue.address = (CUdeviceptr)(uintptr_t)&track->h_marks->num_cleared;
    ops[1].writeValue.value64 = ++mailbox->num_clears;
    mailbox->state = MAILBOX_CLEARING;
    mailbox->is_wanted = true;
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamBatchMemOp(track->stream, 2, ops, 0);
    return result;
}

/* With the mutex: it is the poller's from now on. */
static void publish(struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = mailbox->cuda;
    mailbox->moved_ns = cuda_now_ns();
    __atomic_store_n(&cuda->mailboxes[mailbox->track - cuda->mailbox_tracks], mailbox,
                     __ATOMIC_RELEASE);
    __atomic_store_n(&cuda->num_mailboxes, cuda->num_mailboxes + 1, __ATOMIC_RELEASE);
    cuda_poller_wake(cuda);
}

static void free_parts(struct device_mailbox *mailbox);

/* What the driver may not get through with while a stream of the process waits: with four lanes
 * armed, opening four more stood still for good (H200, driver 580, MPS, 2026-11-30). */
static enum topkd_status make_parts(struct device_mailbox *mailbox,
                                    const struct device_mailbox_config *config, char *detail)
{
    struct device_cuda *cuda = mailbox->cuda;
    enum topkd_status status = reach_word(mailbox, config, detail);
    if (status != TOPKD_OK)
        return status;
    pthread_mutex_lock(&cuda->mutex);
    status = take_place(mailbox, detail);
    if (status == TOPKD_OK)
        status = cuda_steps_make(mailbox, config->bucket->prepared, detail);
    if (status == TOPKD_OK) {
        CUresult result = upload(mailbox, config);
        if (result != CUDA_SUCCESS)
            status = cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot prepare a lane", detail);
    }
    if (status == TOPKD_OK)
        publish(mailbox);
    pthread_mutex_unlock(&cuda->mutex);
    return status;
}

static enum topkd_status open_parts(struct device_mailbox *mailbox,
                                    const struct device_mailbox_config *config, char *detail)
{
    struct device_cuda *cuda = mailbox->cuda;
    enum topkd_status status = take_file(mailbox, config, detail);
    if (status != TOPKD_OK)
        return status;
    status = cuda_quiet_need(cuda, "a lane that opens", detail);
    if (status != TOPKD_OK)
        return status;
    status = make_parts(mailbox, config, detail);
    cuda_quiet_end(cuda);
    return status;
}

/* Until its stream has done what upload() put there, so that a lane which is open can be armed. */
static enum topkd_status await_taken(struct device_mailbox *mailbox, char *detail)
{
    struct device_cuda *cuda = mailbox->cuda;
    uint64_t until_ns = cuda_now_ns() + TAKE_NS;
    for (;;) {
        pthread_mutex_lock(&cuda->mutex);
        cuda_mailbox_advance(mailbox, false);
        bool is_taken = mailbox->state != MAILBOX_CLEARING;
        uint32_t num_others = cuda->num_mailboxes - 1;
        pthread_mutex_unlock(&cuda->mutex);
        if (is_taken)
            return TOPKD_OK;
        if (__atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED))
            return detail_set(detail, TOPKD_E_DEVICE_FAULT, "the device has failed");
        if (cuda_now_ns() > until_ns) {
            log_warn("lane_not_taken", "device=%s num_others=%" PRIu32, cuda->uuid, num_others);
            return detail_set(detail, TOPKD_E_BUSY,
                              "the GPU has not begun with the lane within %" PRIu64 " ms, beside "
                              "%" PRIu32 " others: its hardware queues are taken; close lanes, or "
                              "run one daemon a GPU",
                              TAKE_NS / 1000000, num_others);
        }
        cuda_pause_ns(LOOK_NS);
    }
}

/* Whether the selection has a block for every multiprocessor. One that shares its multiprocessor
 * with another block may not fit beside it and begins when others have ended: 512 x 131072 took 133
 * us instead of 119, 512 x 524288 495 instead of 304, while 512 x 16384, which leaves room, took 34
 * instead of 39 (H200, 2026-11-30). */
static bool fills_device(const struct device_cuda *cuda, const struct topk_plan *plan)
{
    return plan->num_blocks >= cuda->properties.num_multiprocessors;
}

enum topkd_status cuda_mailbox_open(struct device *device,
                                    const struct device_mailbox_config *config,
                                    struct device_mailbox_opened *opened_p, char *detail)
{
    struct device_cuda *cuda = device_cuda_of(device);
    struct device_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    if (mailbox == NULL)
        return detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a lane");
    mailbox->cuda = cuda;
    cuda_enter(cuda); /* on whatever thread */
    enum topkd_status status = open_parts(mailbox, config, detail);
    if (status != TOPKD_OK) {
        free_parts(mailbox);
        return status;
    }
    status = await_taken(mailbox, detail);
    if (status != TOPKD_OK) {
        cuda_mailbox_close(device, mailbox);
        return status;
    }
    const struct cuda_bucket *bucket = config->bucket->prepared;
    *opened_p = (struct device_mailbox_opened){
        .mailbox = mailbox,
        .fills_device = fills_device(cuda, &bucket->plan),
        .poll_us = mailbox->poll_us,
    };
    return TOPKD_OK;
}

/* ---- Close ----------------------------------------------------------------------------------- */

/* No step of it is armed and the poller does not know it. */
static void free_parts(struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = mailbox->cuda;
    bool is_usable = !__atomic_load_n(&cuda->is_faulted, __ATOMIC_RELAXED);
    if ((mailbox->exec != NULL || mailbox->is_registered) && is_usable) {
        cuda_quiet_begin(cuda);
        if (mailbox->exec != NULL)
            cuda->driver->cuGraphExecDestroy(mailbox->exec);
        if (mailbox->is_registered)
            cuda->driver->cuMemHostUnregister(mailbox->file);
        cuda_quiet_end(cuda);
    }
    /* A lost context may still write there: the mapping stays with the dying process. */
    if (mailbox->file != NULL && is_usable)
        munmap(mailbox->file, WIRE_MAILBOX_BYTES);
    free(mailbox);
}

/* Its stream waits no more, and nothing of it is on its way. */
static bool is_at_rest(struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = mailbox->cuda;
    pthread_mutex_lock(&cuda->mutex);
    cuda_mailbox_advance(mailbox, false);
    bool is_at_rest = mailbox->state == MAILBOX_CLEAR || cuda->is_faulted;
    pthread_mutex_unlock(&cuda->mutex);
    return is_at_rest;
}

void cuda_mailbox_close(struct device *device, struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = device_cuda_of(device);
    cuda_enter(cuda); /* on whatever thread */
    pthread_mutex_lock(&cuda->mutex);
    mailbox->is_closing = true;
    pthread_mutex_unlock(&cuda->mutex);
    uint64_t from_ns = cuda_now_ns();
    bool is_quiet = false;
    while (!is_at_rest(mailbox)) {
        /* Perhaps its stream stands behind others that wait. */
        if (!is_quiet && cuda_now_ns() - from_ns > BEHIND_NS)
            is_quiet = cuda_quiet_within(cuda, TAKE_NS);
        cuda_pause_ns(LOOK_NS);
    }
    if (is_quiet)
        cuda_quiet_end(cuda);
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++) {
        if (cuda->mailboxes[i] == mailbox)
            __atomic_store_n(&cuda->mailboxes[i], NULL, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&cuda->num_mailboxes, cuda->num_mailboxes - 1, __ATOMIC_RELEASE);
    cuda->num_steps_closed += mailbox->track->h_marks->counts.num_real;
    pthread_mutex_unlock(&cuda->mutex);
    cuda_poller_pass(cuda);
    free_parts(mailbox);
}

void cuda_mailbox_counts(struct device *device, struct device_mailbox_counts *counts_p)
{
    struct device_cuda *cuda = device_cuda_of(device);
    pthread_mutex_lock(&cuda->mutex);
    *counts_p = (struct device_mailbox_counts){.num_open = cuda->num_mailboxes,
                                               .num_steps = cuda->num_steps_closed,
                                               .num_pauses = cuda->num_pauses};
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++) {
        const struct device_mailbox *mailbox = cuda->mailboxes[i];
        if (mailbox == NULL)
            continue;
        counts_p->num_armed += mailbox->state == MAILBOX_ARMED;
        counts_p->num_steps +=
            __atomic_load_n(&mailbox->track->h_marks->counts.num_real, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&cuda->mutex);
}
