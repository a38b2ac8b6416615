#include "device_cuda.h"

#include "assert.h"
#include "detail.h"

#include <stdlib.h>
#include <string.h>

enum topkd_status cuda_track_init(struct device_cuda *cuda, struct cuda_track *track,
                                  uint32_t number, char *detail)
{
    const struct cuda_driver *driver = cuda->driver;
    *track = (struct cuda_track){.cuda = cuda, .number = number};
    track->last_running = &track->first_running;
    void *pinned = NULL;
    size_t pinned_bytes = CUDA_TRACK_DEPTH * sizeof(struct cuda_request) + sizeof(uint64_t) +
                          sizeof(struct cuda_step_marks);
    CUresult result = driver->cuStreamCreate(&track->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemAlloc(&track->d_request, sizeof(struct cuda_request));
    if (result == CUDA_SUCCESS)
        result = driver->cuMemHostAlloc(&pinned, pinned_bytes,
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    track->h_requests = pinned;
    track->small = calloc(CUDA_TRACK_DEPTH, sizeof(*track->small));
    if (result == CUDA_SUCCESS && track->small != NULL) {
        memset(pinned, 0, pinned_bytes);
        track->h_ended = (uint64_t *)(track->h_requests + CUDA_TRACK_DEPTH);
        track->h_marks = (struct cuda_step_marks *)(track->h_ended + 1);
        return TOPKD_OK;
    }
    return result == CUDA_SUCCESS
               ? detail_set(detail, TOPKD_E_NO_MEMORY, "no memory for a lane")
               : cuda_fail(cuda, result, TOPKD_E_SYSTEM, "cannot make a lane", detail);
}

void cuda_track_fini(struct cuda_track *track)
{
    if (track->cuda == NULL)
        return;
    const struct cuda_driver *driver = track->cuda->driver;
    free(track->small);
    if (!track->cuda->is_faulted) { /* a lost context is the kernel's to clean up */
        for (uint32_t i = 0; i < track->workspaces.num; i++)
            driver->cuMemFree(track->workspaces.entries[i].address);
        if (track->h_requests != NULL)
            driver->cuMemFreeHost(track->h_requests);
        if (track->d_request != 0)
            driver->cuMemFree(track->d_request);
        if (track->stream != NULL)
            driver->cuStreamDestroy(track->stream);
    }
    *track = (struct cuda_track){.cuda = NULL};
}

struct cuda_request *cuda_track_room(struct cuda_track *track, size_t size_bytes)
{
    uint64_t slot = track->num_enqueued % CUDA_TRACK_DEPTH;
    topkd_assert(size_bytes <= sizeof(struct cuda_request));
    return size_bytes <= CUDA_SMALL_BYTES ? (struct cuda_request *)(void *)track->small[slot]
                                          : &track->h_requests[slot];
}

/* The semaphore to signal, if any, then the end mark. */
static CUresult write_marks(struct cuda_track *track, const struct cuda_enqueue *enqueue)
{
    CUstreamBatchMemOpParams writes[2];
    memset(writes, 0, sizeof(writes));
    uint32_t num_writes = 0;
    if (enqueue->d_signal != 0) {
        writes[num_writes].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        writes[num_writes].writeValue.address = enqueue->d_signal;
        writes[num_writes++].writeValue.value64 = enqueue->value;
    }
    writes[num_writes].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    writes[num_writes].writeValue.address = (CUdeviceptr)(uintptr_t)track->h_ended;
    writes[num_writes++].writeValue.value64 = track->num_enqueued + 1;
    return track->cuda->driver->cuStreamBatchMemOp(track->stream, num_writes, writes, 0);
}

CUresult cuda_track_enqueue(struct cuda_track *track, struct cuda_bucket *bucket,
                            const struct cuda_exec *exec, const struct cuda_enqueue *enqueue)
{
    const struct cuda_driver *driver = track->cuda->driver;
    if (track->last != bucket) {
        /* Another shape lays the workspace out in another way. */
        char reason[TOPK_DETAIL_SIZE];
        if (topk_cuda_workspace_init(&bucket->plan, (void *)(uintptr_t)exec->workspace,
                                     track->stream, reason) != TOPK_OK)
            return CUDA_ERROR_UNKNOWN;
        track->last = bucket;
    }
    CUresult result = driver->cuMemcpyHtoDAsync(track->d_request, enqueue->request,
                                                enqueue->size_bytes, track->stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuGraphLaunch(exec->exec, track->stream);
    if (result == CUDA_SUCCESS)
        result = write_marks(track, enqueue);
    if (result == CUDA_SUCCESS)
        track->num_enqueued++;
    return result;
}

bool cuda_track_has_ended(const struct cuda_track *track)
{
    return __atomic_load_n(track->h_ended, __ATOMIC_ACQUIRE) !=
           __atomic_load_n(&track->num_ended, __ATOMIC_RELAXED);
}

struct device_job *cuda_track_reap(struct cuda_track *track)
{
    if (!cuda_track_has_ended(track))
        return NULL;
    topkd_assert(__atomic_load_n(track->h_ended, __ATOMIC_RELAXED) <= track->num_enqueued);
    struct device_job *job = cuda_track_take(track);
    topkd_assert(job != NULL);
    __atomic_store_n(&track->num_ended, track->num_ended + 1, __ATOMIC_RELAXED);
    /* It ran from when it was enqueued, or from the end of the one before it. */
    uint64_t now_ns = cuda_now_ns();
    uint64_t start_ns = job->run_ns > track->last_end_ns ? job->run_ns : track->last_end_ns;
    job->queued_ns += start_ns - job->run_ns;
    job->run_ns = now_ns - start_ns;
    track->last_end_ns = now_ns;
    return job;
}

void cuda_track_add(struct cuda_track *track, struct device_job *job)
{
    job->next = NULL;
    *track->last_running = job;
    track->last_running = &job->next;
}

struct device_job *cuda_track_take(struct cuda_track *track)
{
    struct device_job *job = track->first_running;
    if (job == NULL)
        return NULL;
    track->first_running = job->next;
    if (track->first_running == NULL)
        track->last_running = &track->first_running;
    job->next = NULL;
    return job;
}
