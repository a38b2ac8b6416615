/* fake_select.c - selections by the CPU selector, and the steps of lanes around them. */
#include "fake_cuda.h"

#include "topk_select.h"
#include "topk_step.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* As kernels/cuda/step.cu. A kernel that looks is a stream that waits: frees stand behind it. */
static bool look(const struct topk_step *step)
{
    uint64_t from_ns = now_ns();
    bool is_asked = false, is_over = false;
    fake_wait_begin();
    while (!is_asked && !is_over) {
        is_over = __atomic_load_n(&step->paused, __ATOMIC_SEQ_CST) != 0 ||
                  now_ns() - from_ns >= step->poll_ns;
        is_asked = __atomic_load_n(step->mailbox, __ATOMIC_SEQ_CST) == TOPK_STEP_ASKED;
        if (!is_asked && !is_over)
            fake_pause_us(5);
    }
    fake_wait_end();
    return is_asked;
}

void fake_step_begin(struct topk_step *step)
{
    bool is_real = true;
    if (step->is_awake != 0) {
        is_real = look(step);
        if (!is_real) {
            step->is_awake = 0;
            __atomic_store_n(step->awake, 0, __ATOMIC_SEQ_CST);
        }
    } else if (__atomic_load_n(&step->paused, __ATOMIC_SEQ_CST) != 0) {
        is_real = __atomic_load_n(step->mailbox, __ATOMIC_SEQ_CST) == TOPK_STEP_ASKED;
    }
    int32_t rows = step->rows_max;
    if (step->live_rows != NULL) {
        int32_t live = *step->live_rows;
        rows = live < 0 ? 0 : live < rows ? live : rows;
    }
    step->args->num_rows = is_real ? rows : 0;
    step->is_real = is_real;
}

void fake_step_end(struct topk_step *step)
{
    if (step->is_real) {
        __atomic_store_n(step->mailbox, TOPK_STEP_ANSWERED, __ATOMIC_SEQ_CST);
        step->num_real++;
        if (step->poll_ns != 0 && __atomic_load_n(&step->paused, __ATOMIC_SEQ_CST) == 0) {
            step->is_awake = 1;
            __atomic_store_n(step->awake, 1, __ATOMIC_SEQ_CST);
        }
    }
    __atomic_store_n(&step->counts->num_real, step->num_real, __ATOMIC_SEQ_CST);
    __atomic_store_n(&step->counts->num_ended, ++step->num_ended, __ATOMIC_SEQ_CST);
}

/* ---- Selection: in place of libtopksel's CUDA half ------------------------------------------- */

struct selection {
    const struct topk_args *d_args;
    struct topk_plan plan;
    struct selection *next;
};

static struct selection *selections; /* graphs refer to them for as long as the process lives */

enum topk_status topk_cuda_device(int ordinal, struct topk_device *device_p, char *detail)
{
    (void)ordinal;
    (void)detail;
    *device_p = (struct topk_device){.num_multiprocessors = 132,
                                     .compute_major = 9,
                                     .shared_bytes_per_block = 232448,
                                     .shared_bytes_per_multiprocessor = 233472,
                                     .l2_bytes = 60 << 20};
    return TOPK_OK;
}

enum topk_status topk_cuda_load(const struct topk_plan *plan, char *detail)
{
    (void)plan;
    (void)detail;
    return TOPK_OK;
}

enum topk_status topk_cuda_workspace_init(const struct topk_plan *plan, void *d_workspace,
                                          void *stream, char *detail)
{
    (void)detail;
    return cuMemsetD8Async((CUdeviceptr)(uintptr_t)d_workspace, 0, (size_t)plan->workspace_bytes,
                           stream) == CUDA_SUCCESS
               ? TOPK_OK
               : TOPK_E_CUDA;
}

enum topk_status topk_cuda_enqueue(const struct topk_plan *plan, const struct topk_args *d_args,
                                   void *d_workspace, void *stream, char *detail)
{
    (void)d_workspace;
    (void)detail;
    struct selection *selection = malloc(sizeof(*selection));
    if (selection == NULL)
        return TOPK_E_NO_MEMORY;
    *selection = (struct selection){.d_args = d_args, .plan = *plan};
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    selection->next = selections;
    selections = selection;
    pthread_mutex_unlock(&mutex);
    fake_push(stream, &(struct fake_op){.kind = FAKE_SELECT, .from = selection});
    return TOPK_OK;
}

enum topk_status topk_cuda_step_load(char *detail)
{
    (void)detail;
    return TOPK_OK;
}

enum topk_status topk_cuda_step_begin(struct topk_step *d_step, bool looks, void *stream,
                                      char *detail)
{
    (void)looks;
    (void)detail;
    fake_push(stream, &(struct fake_op){.kind = FAKE_BEGIN, .to = d_step});
    return TOPK_OK;
}

enum topk_status topk_cuda_step_end(struct topk_step *d_step, void *stream, char *detail)
{
    (void)detail;
    fake_push(stream, &(struct fake_op){.kind = FAKE_END, .to = d_step});
    return TOPK_OK;
}

void fake_select(const void *what)
{
    static struct topk_cpu *cpu;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const struct selection *selection = what;
    const char *least_us = getenv("FAKE_CUDA_KERNEL_US");
    pthread_mutex_lock(&mutex);
    if (cpu == NULL &&
        topk_cpu_create(&(struct topk_cpu_config){.num_threads = 1}, &cpu, NULL) != TOPK_OK)
        abort();
    pthread_mutex_unlock(&mutex);
    if (least_us != NULL)
        fake_pause_us(atol(least_us));
    struct topk_args args = *selection->d_args;
    const struct topk_shape *shape = &selection->plan.shape;
    if (args.num_rows > shape->rows || args.width > shape->width || args.k > shape->k)
        abort(); /* the bucket does not serve the request */
    if (topk_cpu_select(cpu, &args, &shape->options, NULL, NULL) != TOPK_OK)
        abort();
}
