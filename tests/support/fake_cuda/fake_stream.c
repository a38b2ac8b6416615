/* fake_stream.c - streams as threads, graphs as lists. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_MAX 4096u
#define QUEUES_SHARED_MAX 128u

/* A hardware queue: what is pushed is done in its order, whatever stream it belongs to. */
struct queue {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct {
        struct fake_op op;
        CUstream stream;
    } entries[QUEUE_MAX];
    uint64_t num_pushed, num_done;
    bool is_stopping;
};

/* Counts are guarded by the queue's mutex. */
struct CUstream_st {
    struct queue *queue;
    uint64_t num_pushed, num_done;
    unsigned long long id;
    struct CUgraph_st *capturing;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

/* ---- Streams --------------------------------------------------------------------------------- */

static uint64_t load_value(const struct fake_op *op)
{
    return op->size == 4 ? __atomic_load_n((uint32_t *)op->to, __ATOMIC_SEQ_CST)
                         : __atomic_load_n((uint64_t *)op->to, __ATOMIC_SEQ_CST);
}

static bool is_reached(const struct fake_op *op)
{
    uint64_t value = load_value(op);
    switch (op->flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return op->size == 4 ? (int32_t)((uint32_t)value - (uint32_t)op->value) >= 0
                             : (int64_t)(value - op->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return value == op->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (value & op->value) != 0;
    default:
        abort(); /* NOR is not the product's */
    }
}

static void wait_value(const struct fake_op *op)
{
    if (is_reached(op))
        return;
    fake_wait_begin();
    while (!is_reached(op))
        fake_pause_us(20);
    fake_wait_end();
}

/* As on a device that is slow, or busy with others. */
static void take_time(size_t size)
{
    const char *least_us = getenv("FAKE_CUDA_CLEAR_US");
    if (least_us != NULL && size >= FAKE_CLEAR_BYTES)
        fake_pause_us(strtol(least_us, NULL, 10));
}

static void run(const struct fake_op *op)
{
    switch (op->kind) {
    case FAKE_COPY:
        memcpy(op->to, op->from, op->size);
        break;
    case FAKE_SET:
        memset(op->to, (int)op->value, op->size);
        take_time(op->size);
        break;
    case FAKE_WRITE:
        if (op->size == 4)
            __atomic_store_n((uint32_t *)op->to, (uint32_t)op->value, __ATOMIC_SEQ_CST);
        else
            __atomic_store_n((uint64_t *)op->to, op->value, __ATOMIC_SEQ_CST);
        break;
    case FAKE_WAIT:
        wait_value(op);
        break;
    case FAKE_SELECT:
        fake_select(op->from);
        break;
    case FAKE_BEGIN:
        fake_step_begin((struct topk_step *)op->to);
        break;
    case FAKE_END:
        fake_step_end((struct topk_step *)op->to);
        break;
    }
}

static void *queue_main(void *arg)
{
    struct queue *queue = arg;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (queue->num_done == queue->num_pushed && !queue->is_stopping)
            pthread_cond_wait(&queue->changed, &queue->mutex);
        if (queue->num_done == queue->num_pushed)
            break;
        uint64_t place = queue->num_done % QUEUE_MAX;
        struct fake_op op = queue->entries[place].op;
        pthread_mutex_unlock(&queue->mutex);
        run(&op);
        pthread_mutex_lock(&queue->mutex);
        queue->num_done++;
        queue->entries[place].stream->num_done++;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static struct queue *queue_create(void)
{
    struct queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        return NULL;
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    if (pthread_create(&queue->thread, NULL, queue_main, queue) == 0)
        return queue;
    free(queue);
    return NULL;
}

static void queue_destroy(struct queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    queue->is_stopping = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    pthread_join(queue->thread, NULL);
    free(queue);
}

/* How many there are for all streams together; 0: one for each. */
static uint32_t queues_max(void)
{
    const char *text = getenv("FAKE_CUDA_QUEUES");
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* Of the stream with this number, from 1; shared ones stay. */
static struct queue *queue_of(unsigned long long id)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct queue *shared[QUEUES_SHARED_MAX];
    uint32_t num = queues_max();
    if (num == 0)
        return queue_create();
    if (num > QUEUES_SHARED_MAX)
        abort();
    pthread_mutex_lock(&mutex);
    struct queue **place = &shared[(id - 1) % num];
    if (*place == NULL)
        *place = queue_create();
    pthread_mutex_unlock(&mutex);
    return *place;
}

CUresult cuStreamCreate(CUstream *stream_p, unsigned int flags)
{
    static unsigned long long next_id;
    (void)flags;
    CUstream stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->id = __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED);
    stream->queue = queue_of(stream->id);
    if (stream->queue == NULL) {
        free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream_p = stream;
    return CUDA_SUCCESS;
}

static CUstream default_stream;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void make_default(void)
{
    cuStreamCreate(&default_stream, 0);
}

static CUstream real_stream(CUstream stream)
{
    pthread_once(&default_once, make_default);
    return stream != NULL ? stream : default_stream;
}

static void push_locked(CUstream stream, const struct fake_op *op)
{
    struct queue *queue = stream->queue;
    while (queue->num_pushed - queue->num_done == QUEUE_MAX)
        pthread_cond_wait(&queue->changed, &queue->mutex);
    uint64_t place = queue->num_pushed++ % QUEUE_MAX;
    queue->entries[place].op = *op;
    queue->entries[place].stream = stream;
    stream->num_pushed++;
    pthread_cond_broadcast(&queue->changed);
}

CUresult fake_push(CUstream stream, const struct fake_op *op)
{
    fake_wall_pass();
    stream = real_stream(stream);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&stream->queue->mutex);
    if (stream->capturing == NULL)
        push_locked(stream, op);
    else if (stream->capturing->num_ops < FAKE_OPS_MAX)
        stream->capturing->ops[stream->capturing->num_ops++] = *op;
    else
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&stream->queue->mutex);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    stream = real_stream(stream);
    pthread_mutex_lock(&stream->queue->mutex);
    while (stream->num_done != stream->num_pushed)
        pthread_cond_wait(&stream->queue->changed, &stream->queue->mutex);
    pthread_mutex_unlock(&stream->queue->mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
    stream = real_stream(stream);
    pthread_mutex_lock(&stream->queue->mutex);
    bool idle = stream->num_done == stream->num_pushed;
    pthread_mutex_unlock(&stream->queue->mutex);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamDestroy(CUstream stream)
{
    cuStreamSynchronize(stream);
    if (queues_max() == 0)
        queue_destroy(stream->queue);
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id_p)
{
    *id_p = real_stream(stream)->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status_p)
{
    *status_p = real_stream(stream)->capturing != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                       : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* ---- Operations ------------------------------------------------------------------------------ */

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned int flags)
{
    (void)flags;
    return fake_push(
        stream, &(struct fake_op){
                    .kind = FAKE_WRITE, .to = (void *)(uintptr_t)to, .value = value, .size = 8});
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags)
{
    return fake_push(stream, &(struct fake_op){.kind = FAKE_WAIT,
                                               .to = (void *)(uintptr_t)at,
                                               .value = value,
                                               .size = 8,
                                               .flags = flags});
}

/* One operation of a batch; they are done in their order. */
static bool op_of(const CUstreamBatchMemOpParams *params, struct fake_op *op)
{
    switch (params->operation) {
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        *op = (struct fake_op){.kind = FAKE_WRITE,
                               .to = (void *)(uintptr_t)params->writeValue.address,
                               .value = params->writeValue.value64,
                               .size = 8};
        break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        *op = (struct fake_op){.kind = FAKE_WAIT,
                               .to = (void *)(uintptr_t)params->waitValue.address,
                               .value = params->waitValue.value64,
                               .size = 8,
                               .flags = params->waitValue.flags};
        break;
    default:
        return false;
    }
    if (params->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
        params->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
        op->size = 4;
        op->value = (uint32_t)op->value;
    }
    return true;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int num, CUstreamBatchMemOpParams *params,
                            unsigned int flags)
{
    (void)flags;
    for (unsigned i = 0; i < num; i++) {
        struct fake_op op;
        if (!op_of(&params[i], &op))
            return CUDA_ERROR_NOT_SUPPORTED;
        CUresult result = fake_push(stream, &op);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static CUresult push_copy(CUstream stream, void *to, const void *from, size_t size)
{
    return fake_push(stream,
                     &(struct fake_op){.kind = FAKE_COPY, .to = to, .from = from, .size = size});
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return push_copy(stream, (void *)(uintptr_t)to, from, size);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return push_copy(stream, to, (const void *)(uintptr_t)from, size);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return push_copy(stream, (void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream)
{
    return fake_push(
        stream, &(struct fake_op){
                    .kind = FAKE_SET, .to = (void *)(uintptr_t)to, .value = value, .size = size});
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    stream->capturing = calloc(1, sizeof(*stream->capturing));
    return stream->capturing != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph_p)
{
    *graph_p = stream->capturing;
    stream->capturing = NULL;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph_p, unsigned int flags)
{
    (void)flags;
    *graph_p = calloc(1, sizeof(**graph_p));
    return *graph_p != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nodes are done in the order in which they were added, which their dependencies allow. */
CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node_p, CUgraph graph,
                                  const CUgraphNode *dependencies, size_t num_dependencies,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    (void)dependencies;
    (void)num_dependencies;
    for (unsigned i = 0; i < params->count; i++) {
        if (graph->num_ops == FAKE_OPS_MAX ||
            !op_of(&params->paramArray[i], &graph->ops[graph->num_ops]))
            return CUDA_ERROR_INVALID_VALUE;
        graph->num_ops++;
    }
    *node_p = (CUgraphNode)&graph->ops[graph->num_ops - 1];
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec_p, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    fake_wall_meet("cuGraphInstantiateWithFlags");
    CUgraphExec exec = malloc(sizeof(*exec));
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->graph = *graph;
    *exec_p = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)exec;
    (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    for (uint32_t i = 0; i < exec->graph.num_ops; i++)
        fake_push(stream, &exec->graph.ops[i]);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}

/* ---- Synchronous calls ----------------------------------------------------------------------- */

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
    CUresult result = cuMemcpyDtoHAsync(to, from, size, NULL);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t size)
{
    CUresult result = cuMemsetD8Async(to, value, size, NULL);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

CUresult cuCtxSynchronize(void)
{
    return cuStreamSynchronize(NULL);
}
