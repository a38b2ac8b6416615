/* cuda_lane.c - a lane's mailbox and the operations of streams on it. */
#include "client.h"
#include "fd_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- The mailbox ----------------------------------------------------------------------------- */

/* A memory file that nobody can make smaller. */
static enum topkd_status make_file(struct lane_mailbox *mailbox, char *detail)
{
    mailbox->fd = memfd_create("topkd-mailbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (mailbox->fd < 0 || ftruncate(mailbox->fd, WIRE_MAILBOX_BYTES) != 0 ||
        fcntl(mailbox->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return fault_system(detail, "cannot make a memory file for a mailbox", errno);
    }
    void *base = mmap(NULL, WIRE_MAILBOX_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, mailbox->fd, 0);
    if (base == MAP_FAILED) {
        return fault_system(detail, "cannot map a mailbox", errno);
    }
    mailbox->file = base;
    return TOPKD_OK;
}

static enum topkd_status register_file(const struct cuda *cuda, struct lane_mailbox *mailbox,
                                       char *detail)
{
    const struct cuda_driver *driver = cuda_calls(cuda);
    enum topkd_status status = cuda_enter(cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    int result = driver->host_register(mailbox->file, WIRE_MAILBOX_BYTES,
                                       CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_DEVICEMAP);
    mailbox->is_registered = result == CUDA_OK;
    if (result == CUDA_OK) {
        result = driver->host_pointer(&mailbox->d_file, mailbox->file, 0);
    }
    if (result == CUDA_OK && mailbox->buffer) {
        result = driver->stream_create(&mailbox->stream, CUDA_STREAM_NON_BLOCKING);
    }
    cuda_leave(cuda);
    return result == CUDA_OK
               ? TOPKD_OK
               : cuda_driver_fault(driver, result, TOPKD_E_SYSTEM,
                                   "a mailbox cannot be registered with CUDA", detail);
}

enum topkd_status cuda_lane_mailbox_make(struct topkd_client *client,
                                         const struct topkd_lane_options *options,
                                         struct lane_mailbox *mailbox_p, char *detail)
{
    struct lane_mailbox mailbox = {.fd = -1};
    struct cuda *cuda;
    enum topkd_status status = cuda_get(client, &cuda, detail);
    if (status == TOPKD_OK) {
        status = make_file(&mailbox, detail);
    }
    if (status == TOPKD_OK && options->device_mailbox) {
        status = topkd_buffer_create(client, WIRE_MAILBOX_BYTES, &mailbox.buffer);
    }
    if (status == TOPKD_OK) {
        status = register_file(cuda, &mailbox, detail);
    }
    if (status != TOPKD_OK) {
        cuda_lane_mailbox_free(client, &mailbox);
        return status;
    }
    mailbox.d_word = mailbox.buffer ? (cuda_pointer)(uintptr_t)topkd_buffer_data(mailbox.buffer)
                                    : mailbox.d_file + offsetof(struct wire_mailbox, word);
    mailbox.d_bell = mailbox.d_file + offsetof(struct wire_mailbox, doorbell);
    if (mailbox.buffer && options->wait != TOPKD_LANE_WAIT_DRIVER) {
        status =
            cuda_ask_get(client, options->wait == TOPKD_LANE_WAIT_KERNEL, &mailbox.kernel, detail);
    }
    if (status != TOPKD_OK) {
        cuda_lane_mailbox_free(client, &mailbox);
        return status;
    }
    *mailbox_p = mailbox;
    return TOPKD_OK;
}

void cuda_lane_mailbox_free(struct topkd_client *client, struct lane_mailbox *mailbox)
{
    char detail[WIRE_DETAIL_SIZE];
    struct cuda *cuda = client->cuda;
    if (cuda && cuda_enter(cuda, detail) == TOPKD_OK) {
        if (mailbox->stream) {
            (void)cuda_calls(cuda)->stream_destroy(mailbox->stream);
        }
        if (mailbox->is_registered) {
            (void)cuda_calls(cuda)->host_unregister(mailbox->file);
        }
        cuda_leave(cuda);
    }
    topkd_buffer_destroy(mailbox->buffer);
    if (mailbox->file) {
        (void)munmap(mailbox->file, WIRE_MAILBOX_BYTES);
    }
    if (mailbox->fd >= 0) {
        (void)close(mailbox->fd);
    }
    *mailbox = (struct lane_mailbox){.fd = -1};
}

enum topkd_status cuda_lane_offer(const struct lane_mailbox *mailbox, const char *url,
                                  struct wire_memory *memory_p, char *detail)
{
    const uint64_t size_bytes = WIRE_MAILBOX_BYTES;
    *memory_p = (struct wire_memory){
        .kind = WIRE_MEMORY_CUDA_FD,
        .handle_bytes = FD_TICKET_SIZE,
        .allocation_bytes = WIRE_MAILBOX_BYTES,
    };
    return fd_socket_offer(url, &mailbox->fd, &size_bytes, 1, memory_p->handle, detail);
}

/* ---- Answers without a worker ---------------------------------------------------------------- */

/* Where the word in device memory is read to: pinned memory of ours, which no worker looks at. */
#define READ_OFFSET 2048u

/* Somebody has rung, for a step that a worker may have answered since. */
static bool answer_device(const struct cuda_driver *driver, struct lane_mailbox *mailbox)
{
    uint32_t *word = (uint32_t *)((uint8_t *)mailbox->file + READ_OFFSET);
    struct cuda_word_op op = {
        .operation = CUDA_OP_WRITE_32,
        .address = mailbox->d_word,
        .value = WIRE_MAILBOX_ANSWERED,
    };
    *word = 0;
    if (driver->read(word, mailbox->d_word, sizeof(*word), mailbox->stream) != CUDA_OK ||
        driver->stream_synchronize(mailbox->stream) != CUDA_OK ||
        *(volatile uint32_t *)word != WIRE_MAILBOX_ASKED) {
        return false;
    }
    return driver->stream_words(mailbox->stream, 1, &op, 0) == CUDA_OK;
}

bool cuda_lane_answer(struct topkd_client *client, struct lane_mailbox *mailbox)
{
    if (!mailbox->buffer) {
        uint32_t asked = WIRE_MAILBOX_ASKED;
        return __atomic_compare_exchange_n(&mailbox->file->word, &asked, WIRE_MAILBOX_ANSWERED,
                                           false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    }
    /* It rings after it has asked, and does not ask again before it has its answer: a step that
     * comes after this look rings once more. */
    if (__atomic_exchange_n(&mailbox->file->doorbell, 0, __ATOMIC_SEQ_CST) == 0) {
        return false;
    }
    char detail[WIRE_DETAIL_SIZE];
    if (cuda_enter(client->cuda, detail) != TOPKD_OK) {
        return false;
    }
    bool was_asked = answer_device(cuda_calls(client->cuda), mailbox);
    cuda_leave(client->cuda);
    return was_asked;
}

enum topkd_status cuda_lane_settle(struct topkd_client *client, struct lane_mailbox *mailbox,
                                   char *detail)
{
    if (!mailbox->buffer) {
        return TOPKD_OK; /* plain stores */
    }
    enum topkd_status status = cuda_enter(client->cuda, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    const struct cuda_driver *driver = cuda_calls(client->cuda);
    int result = driver->stream_synchronize(mailbox->stream);
    cuda_leave(client->cuda);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(driver, result, TOPKD_E_SYSTEM,
                                                 "a mailbox cannot be written", detail);
}

/* ---- A step ---------------------------------------------------------------------------------- */

#define STEP_OPS_MAX 3u

/* Ask, ring where a processor could not see it otherwise, wait for the answer. */
static uint32_t step_ops(const struct lane_mailbox *mailbox, struct cuda_word_op ops[STEP_OPS_MAX])
{
    uint32_t num = 0;
    ops[num++] = (struct cuda_word_op){
        .operation = CUDA_OP_WRITE_32,
        .address = mailbox->d_word,
        .value = WIRE_MAILBOX_ASKED,
    };
    if (mailbox->buffer) {
        ops[num++] = (struct cuda_word_op){
            .operation = CUDA_OP_WRITE_32,
            .address = mailbox->d_bell,
            .value = 1,
        };
    }
    ops[num++] = (struct cuda_word_op){
        .operation = CUDA_OP_WAIT_32,
        .address = mailbox->d_word,
        .value = WIRE_MAILBOX_ANSWERED,
        .flags = CUDA_WAIT_AND,
    };
    return num;
}

/* What both ways of adding a step begin with. */
static enum topkd_status begin_step(struct topkd_lane *lane, char *detail)
{
    enum topkd_status status = topkd_lane_check(lane);
    if (status != TOPKD_OK) {
        return status;
    }
    struct topkd_client *client = lane->client;
    pthread_mutex_lock(&client->mutex);
    if (!lane->is_served) {
        status = fault(detail, lane->outage_status, "no worker serves the lane at present: %.180s",
                       lane->outage_detail);
    }
    pthread_mutex_unlock(&client->mutex);
    return status != TOPKD_OK ? status : cuda_enter(client->cuda, detail);
}

enum topkd_status topkd_lane_enqueue(struct topkd_lane *lane, void *stream)
{
    char *detail = fault_detail();
    enum topkd_status status = begin_step(lane, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    const struct cuda *cuda = lane->client->cuda;
    int result;
    if (lane->mailbox.kernel) {
        result = cuda_ask_launch(cuda, &lane->mailbox, stream);
    } else {
        struct cuda_word_op ops[STEP_OPS_MAX];
        uint32_t num = step_ops(&lane->mailbox, ops);
        result = cuda_calls(cuda)->stream_words(stream, num, ops, 0);
    }
    cuda_leave(cuda);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_SYSTEM,
                                                 "the stream takes no step of a lane", detail);
}

/* The driver's operations as one node. */
static int add_words(const struct cuda *cuda, const struct lane_mailbox *mailbox,
                     const struct lane_place *place)
{
    struct cuda_word_op ops[STEP_OPS_MAX];
    const struct cuda_word_node params = {
        .context = cuda_context(cuda),
        .num_ops = step_ops(mailbox, ops),
        .ops = ops,
    };
    return cuda_calls(cuda)->graph_add_words(place->node_p, place->graph, place->dependencies,
                                             place->num_dependencies, &params);
}

enum topkd_status topkd_lane_add_node(struct topkd_lane *lane, void *graph,
                                      void *const *dependencies, size_t num_dependencies,
                                      void **node_p)
{
    char *detail = fault_detail();
    if (!graph || !node_p || (num_dependencies > 0 && !dependencies)) {
        return fault(detail, TOPKD_E_INVALID, "%s is NULL",
                     !graph    ? "graph"
                     : !node_p ? "node_p"
                               : "dependencies");
    }
    enum topkd_status status = begin_step(lane, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    const struct cuda *cuda = lane->client->cuda;
    const struct lane_place place = {
        .graph = graph,
        .dependencies = dependencies,
        .num_dependencies = num_dependencies,
        .node_p = node_p,
    };
    int result = lane->mailbox.kernel ? cuda_ask_add_node(cuda, &lane->mailbox, &place)
                                      : add_words(cuda, &lane->mailbox, &place);
    cuda_leave(cuda);
    return result == CUDA_OK ? TOPKD_OK
                             : cuda_driver_fault(cuda_calls(cuda), result, TOPKD_E_INVALID,
                                                 "the graph takes no step of a lane", detail);
}
