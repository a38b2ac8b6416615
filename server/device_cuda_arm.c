#include "device_cuda.h"

#include "detail.h"
#include "log.h"

#include <inttypes.h>
#include <string.h>

/* Choices: how long the poller rests while steps are armed (a third of what two launches last at
 * 20,000 steps a second), while something changes hands, and while every mailbox is disarmed (the
 * first step after a pause waits so much longer); and after what time a step that has not begun is
 * taken to stand behind a mailbox that is only waiting, in the same hardware queue. */
#define REST_ARMED_NS UINT64_C(50000)
#define REST_CHANGING_NS UINT64_C(10000)
#define REST_CLEAR_NS UINT64_C(200000)
#define STALL_NS UINT64_C(2000000)
/* Choice: how often a pause looks whether the steps have gone by, and when it says that it waits.
 */
#define QUIET_LOOK_NS 5000
#define QUIET_SLOW_NS UINT64_C(1000000000)

/* ---- What the poller sees -------------------------------------------------------------------- */

static uint64_t num_ended(const struct device_mailbox *mailbox)
{
    return __atomic_load_n(&mailbox->track->h_marks->counts.num_ended, __ATOMIC_ACQUIRE);
}

static enum cuda_mailbox_state state_of(const struct device_mailbox *mailbox)
{
    return (enum cuda_mailbox_state)__atomic_load_n(&mailbox->state, __ATOMIC_RELAXED);
}

/* The client writes there as it likes: nothing but time depends on it. */
static bool is_asked(const struct device_mailbox *mailbox)
{
    const struct wire_mailbox *file = mailbox->file;
    return mailbox->is_device
               ? __atomic_load_n(&file->doorbell, __ATOMIC_RELAXED) != 0
               : __atomic_load_n(&file->word, __ATOMIC_RELAXED) == WIRE_MAILBOX_ASKED;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static CUstreamBatchMemOpParams write_u32(CUdeviceptr address, uint32_t value)
{
    CUstreamBatchMemOpParams op;
    memset(&op, 0, sizeof(op));
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = address;
    op.writeValue.value = value;
    return op;
}

static void set_state(struct device_mailbox *mailbox, enum cuda_mailbox_state state)
{
    __atomic_store_n(&mailbox->state, (uint32_t)state, __ATOMIC_RELAXED);
}

/* The driver took no work: the context is lost, or will be. */
static void lose(struct device_cuda *cuda, CUresult result, const char *what)
{
    (void)cuda_fail(cuda, result, TOPKD_E_DEVICE_FAULT, what, cuda->fault);
    log_error("device_fault", "device=%s reason=%s", cuda->uuid, cuda->fault);
    cuda_lanes_fault(cuda);
}

static CUdeviceptr paused_word(const struct device_mailbox *mailbox)
{
    return mailbox->track->d_request + offsetof(struct cuda_request, step) +
           offsetof(struct topk_step, paused);
}

static CUdeviceptr release_word(const struct device_mailbox *mailbox)
{
    return mailbox->d_mailbox + offsetof(struct wire_mailbox, release);
}

static void launch(struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = mailbox->cuda;
    CUresult result = cuda->driver->cuGraphLaunch(mailbox->exec, mailbox->track->stream);
    if (result != CUDA_SUCCESS)
        lose(cuda, result, "cannot arm a client's lane");
    else
        __atomic_store_n(&mailbox->num_armed, mailbox->num_armed + CUDA_STEPS_PER_LAUNCH,
                         __ATOMIC_RELAXED);
}

/* Lets the armed steps pass. `paused` before the release, as topk_step.h asks. */
static void release(struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = mailbox->cuda;
    CUstreamBatchMemOpParams ops[] = {write_u32(paused_word(mailbox), 1),
                                      write_u32(release_word(mailbox), WIRE_MAILBOX_RELEASED)};
    /* Before the steps run out: one that they do not see rings after this. */
    if (mailbox->is_device)
        __atomic_store_n(&mailbox->file->doorbell, 0, __ATOMIC_SEQ_CST);
    CUresult result = cuda->driver->cuStreamBatchMemOp(cuda->mailbox_stream, 2, ops, 0);
    if (result != CUDA_SUCCESS)
        lose(cuda, result, "cannot release a client's lane");
    else
        set_state(mailbox, MAILBOX_RELEASED);
}

/* No step is armed. In the stream of the release, so that a later one cannot overtake it. */
static void clear(struct device_mailbox *mailbox)
{
    struct device_cuda *cuda = mailbox->cuda;
    CUstreamBatchMemOpParams ops[] = {write_u32(release_word(mailbox), 0),
                                      write_u32(paused_word(mailbox), 0), write_u32(0, 0)};
    ops[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[2].writeValue.address = (CUdeviceptr)(uintptr_t)&mailbox->track->h_marks->num_cleared;
    ops[2].writeValue.value64 = ++mailbox->num_clears;
    CUresult result = cuda->driver->cuStreamBatchMemOp(cuda->mailbox_stream, 3, ops, 0);
    if (result != CUDA_SUCCESS)
        lose(cuda, result, "cannot end a pause of a client's lane");
    else
        set_state(mailbox, MAILBOX_CLEARING);
}

/* ---- One mailbox ----------------------------------------------------------------------------- */

static bool is_cleared(const struct device_mailbox *mailbox)
{
    return __atomic_load_n(&mailbox->track->h_marks->num_cleared, __ATOMIC_ACQUIRE) >=
           mailbox->num_clears;
}

static bool wants_launch(const struct device_mailbox *mailbox)
{
    return __atomic_load_n(&mailbox->num_armed, __ATOMIC_RELAXED) - num_ended(mailbox) <=
           (uint64_t)(CUDA_LAUNCHES_AHEAD - 1) * CUDA_STEPS_PER_LAUNCH;
}

void cuda_mailbox_advance(struct device_mailbox *mailbox, bool is_idle)
{
    struct device_cuda *cuda = mailbox->cuda;
    if (cuda->is_faulted)
        return;
    bool may_wait = cuda->num_quiet == 0 && !mailbox->is_closing;
    if (state_of(mailbox) == MAILBOX_ARMED && (!may_wait || is_idle)) {
        mailbox->is_wanted = !is_idle;
        release(mailbox);
    }
    if (state_of(mailbox) == MAILBOX_RELEASED && num_ended(mailbox) == mailbox->num_armed)
        clear(mailbox);
    if (state_of(mailbox) == MAILBOX_CLEARING && is_cleared(mailbox))
        set_state(mailbox, MAILBOX_CLEAR);
    if (state_of(mailbox) == MAILBOX_CLEAR && may_wait &&
        (mailbox->is_wanted || is_asked(mailbox))) {
        mailbox->is_wanted = false;
        set_state(mailbox, MAILBOX_ARMED);
    }
    while (state_of(mailbox) == MAILBOX_ARMED && !cuda->is_faulted && wants_launch(mailbox))
        launch(mailbox);
}

/* Whether advancing would find something to do. */
static bool wants(const struct device_mailbox *mailbox)
{
    switch (state_of(mailbox)) {
    case MAILBOX_CLEAR:
        return is_asked(mailbox) &&
               __atomic_load_n(&mailbox->cuda->num_quiet, __ATOMIC_RELAXED) == 0;
    case MAILBOX_ARMED:
        return wants_launch(mailbox);
    default:
        return true; /* soon */
    }
}

/* ---- The poller's look ----------------------------------------------------------------------- */

static void advance_locked(struct device_mailbox *mailbox, bool is_idle)
{
    pthread_mutex_lock(&mailbox->cuda->mutex);
    cuda_mailbox_advance(mailbox, is_idle);
    pthread_mutex_unlock(&mailbox->cuda->mutex);
}

/* True when a step is asked for and does not begin. A doorbell tells too little for that. */
static bool look(struct device_mailbox *mailbox, uint64_t now_ns, uint64_t *rest_ns)
{
    uint64_t ended = num_ended(mailbox);
    bool has_moved = ended != mailbox->seen_ended || state_of(mailbox) != MAILBOX_ARMED;
    if (has_moved) {
        mailbox->seen_ended = ended;
        mailbox->moved_ns = now_ns;
    }
    if (mailbox->is_device || has_moved || !is_asked(mailbox))
        mailbox->asked_ns = 0;
    else if (mailbox->asked_ns == 0)
        mailbox->asked_ns = now_ns;
    bool is_idle = now_ns - mailbox->moved_ns > mailbox->cuda->mailbox_idle_ns;
    if (is_idle || wants(mailbox))
        advance_locked(mailbox, is_idle);
    enum cuda_mailbox_state state = state_of(mailbox);
    uint64_t wish_ns = state == MAILBOX_CLEAR   ? REST_CLEAR_NS
                       : state == MAILBOX_ARMED ? REST_ARMED_NS
                                                : REST_CHANGING_NS;
    *rest_ns = wish_ns < *rest_ns ? wish_ns : *rest_ns;
    return mailbox->asked_ns != 0 && now_ns - mailbox->asked_ns > STALL_NS;
}

/* Whether the device has begun nothing of a track's work for long. With the mutex. */
static bool is_track_stalled(const struct cuda_track *track, uint64_t now_ns)
{
    const struct device_job *job = track->first_running;
    uint64_t since_ns = job == NULL ? now_ns : job->run_ns; /* when it was enqueued */
    since_ns = since_ns < track->last_end_ns ? track->last_end_ns : since_ns;
    return now_ns > since_ns && now_ns - since_ns > STALL_NS;
}

static bool any_track_stalled(struct device_cuda *cuda, uint64_t now_ns)
{
    bool is_stalled = false;
    pthread_mutex_lock(&cuda->mutex);
    for (uint32_t i = 0; i < cuda->num_lanes; i++) {
        for (uint32_t j = 0; j < CUDA_LANE_TRACKS; j++)
            is_stalled |= is_track_stalled(&cuda->lanes[i]->tracks[j], now_ns);
    }
    pthread_mutex_unlock(&cuda->mutex);
    return is_stalled;
}

/* A waiting stream holds up whatever shares its hardware queue: those that only wait go. */
static void relieve(struct device_cuda *cuda, uint64_t now_ns)
{
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++) {
        struct device_mailbox *mailbox = __atomic_load_n(&cuda->mailboxes[i], __ATOMIC_ACQUIRE);
        if (mailbox != NULL && state_of(mailbox) == MAILBOX_ARMED && mailbox->asked_ns == 0 &&
            now_ns - mailbox->moved_ns > STALL_NS)
            advance_locked(mailbox, true);
    }
}

uint64_t cuda_mailboxes_look(struct device_cuda *cuda, uint64_t now_ns)
{
    if (__atomic_load_n(&cuda->num_mailboxes, __ATOMIC_ACQUIRE) == 0)
        return 0;
    uint64_t rest_ns = REST_CLEAR_NS;
    bool is_stalled = false;
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++) {
        struct device_mailbox *mailbox = __atomic_load_n(&cuda->mailboxes[i], __ATOMIC_ACQUIRE);
        if (mailbox != NULL)
            is_stalled |= look(mailbox, now_ns, &rest_ns);
    }
    if (now_ns - cuda->stall_looked_ns > STALL_NS) {
        cuda->stall_looked_ns = now_ns;
        is_stalled |= any_track_stalled(cuda, now_ns);
    }
    if (is_stalled)
        relieve(cuda, now_ns);
    return rest_ns;
}

void cuda_mailboxes_check(struct device_cuda *cuda)
{
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX && !cuda->is_faulted; i++) {
        if (cuda->mailboxes[i] == NULL)
            continue;
        CUresult result = cuda->driver->cuStreamQuery(cuda->mailboxes[i]->track->stream);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
            lose(cuda, result, "a client's lane failed on the device");
    }
}

/* ---- Quiet ----------------------------------------------------------------------------------- */

/* With the mutex. */
static bool any_waits(struct device_cuda *cuda)
{
    bool waits = false;
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX; i++) {
        struct device_mailbox *mailbox = cuda->mailboxes[i];
        if (mailbox == NULL)
            continue;
        cuda_mailbox_advance(mailbox, false);
        waits |= mailbox->state == MAILBOX_ARMED || mailbox->state == MAILBOX_RELEASED;
    }
    return waits && !cuda->is_faulted;
}

bool cuda_quiet_within(struct device_cuda *cuda, uint64_t timeout_ns)
{
    uint64_t from_ns = cuda_now_ns(), waited_ns = 0;
    bool is_said = false;
    pthread_mutex_lock(&cuda->mutex);
    __atomic_store_n(&cuda->num_quiet, cuda->num_quiet + 1, __ATOMIC_RELAXED);
    bool is_pause = any_waits(cuda), waits = is_pause;
    cuda->num_pauses += is_pause;
    while (waits && waited_ns <= timeout_ns) {
        pthread_mutex_unlock(&cuda->mutex);
        cuda_pause_ns(QUIET_LOOK_NS);
        waited_ns = cuda_now_ns() - from_ns;
        if (!is_said && waited_ns > QUIET_SLOW_NS) {
            is_said = true;
            log_warn("lanes_slow", "reason=\"the GPU has not run released steps for a second\"");
        }
        pthread_mutex_lock(&cuda->mutex);
        waits = any_waits(cuda);
    }
    pthread_mutex_unlock(&cuda->mutex);
    if (waits)
        cuda_quiet_end(cuda);
    else if (is_pause)
        log_debug("lanes_paused", "after_us=%" PRIu64, waited_ns / 1000);
    return !waits;
}

enum topkd_status cuda_quiet_need(struct device_cuda *cuda, const char *who, char *detail)
{
    if (cuda_quiet_within(cuda, CUDA_QUIET_MAX_NS))
        return TOPKD_OK;
    return detail_set(detail, TOPKD_E_BUSY,
                      "%s has to wait until the clients' lanes pause, which they did not within "
                      "%" PRIu64 " ms: the GPU is held by others; retry",
                      who, CUDA_QUIET_MAX_NS / 1000000);
}

void cuda_quiet_begin(struct device_cuda *cuda)
{
    (void)cuda_quiet_within(cuda, UINT64_MAX);
}

void cuda_quiet_end(struct device_cuda *cuda)
{
    pthread_mutex_lock(&cuda->mutex);
    __atomic_store_n(&cuda->num_quiet, cuda->num_quiet - 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < CUDA_MAILBOXES_MAX && cuda->num_quiet == 0; i++) {
        if (cuda->mailboxes[i] != NULL)
            cuda_mailbox_advance(cuda->mailboxes[i], false);
    }
    pthread_mutex_unlock(&cuda->mutex);
}
