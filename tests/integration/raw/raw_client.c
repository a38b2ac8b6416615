/* raw_client.c - the wire protocol by hand, over NNG. */
#include "raw.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <nng/protocol/reqrep0/req.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
/* NNG leaks a connection that it dials again while its socket closes, as happens to a raw client
 * that the daemon has turned away, and a message that it is given for a connection that has just
 * ended, as when a worker dies. The daemon is another process and has no such pardon. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libnng.so\n";
}
#endif

/* ---- Requests -------------------------------------------------------------------------------- */

void raw_connect(struct raw_client *client, const struct raw_worker *worker)
{
    memset(client, 0, sizeof(*client));
    client->epoch = worker->epoch;
    assert_int_equal(nng_req0_open(&client->socket), 0);
    assert_int_equal(
        nng_socket_set_ms(client->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE), 0);
    /* A worker at limits.connections_max hangs up instead of greeting. */
    uint64_t end_ms = raw_now_ms() + RAW_TIMEOUT_MS;
    int error;
    while ((error = nng_dial(client->socket, worker->url, &client->dialer, 0)) != 0 &&
           raw_now_ms() < end_ms)
        raw_sleep_ms(20);
    assert_int_equal(error, 0);
}

static void *map_shared(const struct wire_memory *memory)
{
    char name[WIRE_HANDLE_SIZE + 1] = "";
    assert_int_equal(memory->kind, WIRE_MEMORY_SHM);
    memcpy(name, memory->handle, memory->handle_bytes);
    int fd = shm_open(name, O_RDWR, 0);
    assert_true(fd >= 0);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* nobody else may look */
    assert_true((uint64_t)info.st_size >= memory->allocation_bytes);
    void *base = mmap(NULL, memory->allocation_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(base != MAP_FAILED);
    close(fd);
    return base;
}

void raw_disconnect(struct raw_client *client)
{
    nng_dialer_close(client->dialer); /* NNG leaks a connection it dials while its socket closes */
    nng_close(client->socket);
    if (client->semaphores != NULL)
        munmap(client->semaphores, client->hello.semaphores.allocation_bytes);
    if (client->arena != NULL)
        munmap(client->arena, client->hello.arena.allocation_bytes);
    client->semaphores = NULL;
    client->arena = NULL;
}

enum topkd_status raw_hello(struct raw_client *client, struct wire_reply *reply)
{
    struct wire_request request = {.kind = WIRE_HELLO};
    request.u.hello.version = WIRE_VERSION;
    (void)snprintf(request.u.hello.client_name, WIRE_NAME_SIZE, "raw \"client\"");
    enum topkd_status status = raw_call(client, &request, reply);
    if (status != TOPKD_OK)
        return status;
    client->session = reply->session;
    client->epoch = reply->epoch;
    client->hello = reply->u.hello;
    client->semaphores = map_shared(&client->hello.semaphores);
    if (client->hello.arena.kind != WIRE_MEMORY_NONE)
        client->arena = map_shared(&client->hello.arena);
    return TOPKD_OK;
}

void raw_open(struct raw_client *client, const struct raw_worker *worker)
{
    static struct wire_reply reply;
    raw_connect(client, worker);
    enum topkd_status status = raw_hello(client, &reply);
    if (status != TOPKD_OK)
        fail_msg("hello: %s: %s", wire_status_name(status), reply.detail);
    assert_int_equal(reply.epoch, worker->epoch);
    assert_int_not_equal(client->session, 0);
}

struct wire_request raw_request(struct raw_client *client, enum wire_kind kind)
{
    return (struct wire_request){.session = client->session,
                                 .sequence = ++client->sequence,
                                 .epoch = client->epoch,
                                 .kind = kind};
}

void raw_start(struct raw_client *client, const struct wire_request *request,
               struct raw_pending *pending)
{
    static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
    size_t size = 0;
    char detail[WIRE_DETAIL_SIZE];
    enum topkd_status status = wire_request_encode(request, bytes, sizeof(bytes), &size, detail);
    if (status != TOPKD_OK)
        fail_msg("cannot encode: %s", detail);
    nng_msg *message;
    assert_int_equal(nng_msg_alloc(&message, 0), 0);
    assert_int_equal(nng_msg_append(message, bytes, size), 0);
    assert_int_equal(nng_ctx_open(&pending->ctx, client->socket), 0);
    assert_int_equal(nng_aio_alloc(&pending->aio, NULL, NULL), 0);
    nng_aio_set_timeout(pending->aio, RAW_TIMEOUT_MS);
    nng_aio_set_msg(pending->aio, message);
    nng_ctx_send(pending->ctx, pending->aio);
    nng_aio_wait(pending->aio);
    assert_int_equal(nng_aio_result(pending->aio), 0);
}

bool raw_finish(struct raw_pending *pending, int timeout_ms, struct wire_reply *reply)
{
    static struct wire_buffer buffer;
    nng_aio_set_timeout(pending->aio, timeout_ms);
    nng_ctx_recv(pending->ctx, pending->aio);
    nng_aio_wait(pending->aio);
    bool is_there = nng_aio_result(pending->aio) == 0;
    if (is_there) {
        nng_msg *message = nng_aio_get_msg(pending->aio);
        char detail[WIRE_DETAIL_SIZE];
        enum topkd_status status =
            wire_reply_decode(nng_msg_body(message), nng_msg_len(message), &buffer, reply, detail);
        if (status != TOPKD_OK)
            fail_msg("cannot decode the reply: %s", detail);
        nng_msg_free(message);
        /* Every refusal explains itself. */
        assert_true(reply->status == TOPKD_OK || reply->detail[0] != '\0');
    }
    nng_ctx_close(pending->ctx);
    nng_aio_free(pending->aio);
    return is_there;
}

enum topkd_status raw_call(struct raw_client *client, const struct wire_request *request,
                           struct wire_reply *reply)
{
    struct raw_pending pending;
    raw_start(client, request, &pending);
    if (!raw_finish(&pending, RAW_TIMEOUT_MS, reply))
        fail_msg("no answer to a %s", wire_kind_name(request->kind));
    assert_int_equal(reply->kind, request->kind);
    assert_int_equal(reply->sequence, request->sequence);
    return reply->status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

void raw_shm_create_as(struct raw_shm *shm, const char *name, size_t size_bytes)
{
    char first[64], from[128], to[128];
    *shm = (struct raw_shm){.size_bytes = size_bytes};
    (void)snprintf(shm->name, sizeof(shm->name), "%s", name);
    (void)snprintf(first, sizeof(first), "/topkd-raw-first-%d", (int)getpid());
    int fd = shm_open(first, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
    void *data = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(data != MAP_FAILED);
    shm->data = data;
    shm->lock_fd = fd;
    /* It has its name once it is locked: daemons of other tests take unlocked ones away. */
    assert_int_equal(flock(fd, LOCK_SH), 0);
    (void)snprintf(from, sizeof(from), "/dev/shm%s", first);
    (void)snprintf(to, sizeof(to), "/dev/shm%s", shm->name);
    assert_int_equal(rename(from, to), 0);
}

void raw_shm_create(struct raw_shm *shm, size_t size_bytes)
{
    static uint32_t counter = 0;
    char name[WIRE_NAME_SIZE];
    (void)snprintf(name, sizeof(name), WIRE_SHM_BUFFER_PREFIX "raw%d-%u", (int)getpid(), counter++);
    raw_shm_create_as(shm, name, size_bytes);
}

void raw_shm_destroy(struct raw_shm *shm)
{
    munmap(shm->data, shm->size_bytes);
    (void)shm_unlink(shm->name);
    close(shm->lock_fd);
}

struct wire_request raw_register_request(struct raw_client *client, const struct raw_shm *shm,
                                         enum wire_access access)
{
    struct wire_request request = raw_request(client, WIRE_REGISTER);
    struct wire_register_request *reg = &request.u.reg;
    reg->memory.kind = WIRE_MEMORY_SHM;
    reg->memory.handle_bytes = (uint32_t)strlen(shm->name);
    memcpy(reg->memory.handle, shm->name, strlen(shm->name));
    reg->memory.allocation_bytes = shm->size_bytes;
    reg->length = shm->size_bytes;
    reg->access = access;
    (void)snprintf(reg->device, sizeof(reg->device), "cpu");
    return request;
}

void raw_register(struct raw_client *client, struct raw_shm *shm, enum wire_access access)
{
    struct wire_request request = raw_register_request(client, shm, access);
    static struct wire_reply reply;
    if (raw_call(client, &request, &reply) != TOPKD_OK)
        fail_msg("register: %s: %s", wire_status_name(reply.status), reply.detail);
    shm->region = reply.u.reg.region;
    shm->generation = reply.u.reg.generation;
}

struct wire_region_ref raw_ref(const struct raw_shm *shm, uint64_t offset)
{
    return (struct wire_region_ref){
        .region = shm->region, .generation = shm->generation, .offset = offset};
}

struct wire_request raw_select_request(struct raw_client *client, const struct raw_shm *scores,
                                       const struct raw_shm *out, uint32_t rows, uint32_t width,
                                       uint32_t k)
{
    struct wire_request request = raw_request(client, WIRE_SELECT);
    struct wire_select_request *select = &request.u.select;
    select->scores = raw_ref(scores, 0);
    select->row_stride = width;
    select->rows = rows;
    select->width = width;
    select->k = k;
    select->lengths_mode = WIRE_LENGTHS_ALL;
    select->length_all = (int32_t)width;
    select->output_mode = WIRE_OUTPUT_REGION;
    select->indices = raw_ref(out, 0);
    select->index_stride = k;
    return request;
}

void raw_expect_selects(struct raw_client *client)
{
    enum { ROWS = 3, WIDTH = 500, K = 7 };
    struct raw_shm shm;
    raw_shm_create(&shm, 65536);
    float *scores = (float *)shm.data;
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        scores[i] = (float)((i * 7919u) % 100003u);
    raw_register(client, &shm, WIRE_ACCESS_READ_WRITE);

    struct wire_request request = raw_select_request(client, &shm, &shm, ROWS, WIDTH, K);
    struct wire_select_request *select = &request.u.select;
    select->order = 2;
    select->indices.offset = 32768;
    static struct wire_reply reply;
    if (raw_call(client, &request, &reply) != TOPKD_OK)
        fail_msg("select: %s: %s", wire_status_name(reply.status), reply.detail);
    const int32_t *indices = (const int32_t *)(shm.data + 32768);
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t i = 0; i < K; i++) {
            int32_t position = indices[row * K + i];
            assert_in_range(position, 0, WIDTH - 1);
            /* Its rank, counted the long way. */
            uint32_t rank = 0;
            for (uint32_t other = 0; other < WIDTH; other++)
                rank += scores[row * WIDTH + other] > scores[row * WIDTH + (uint32_t)position];
            assert_int_equal(rank, i);
        }
    }
    request = raw_request(client, WIRE_UNREGISTER);
    request.u.unreg =
        (struct wire_unregister_request){.region = shm.region, .generation = shm.generation};
    assert_int_equal(raw_call(client, &request, &reply), TOPKD_OK);
    raw_shm_destroy(&shm);
}

void raw_signal(struct raw_client *client, uint32_t index, uint64_t value)
{
    struct wire_semaphore *semaphore = &client->semaphores[index];
    __atomic_store_n(&semaphore->value, value, __ATOMIC_RELEASE);
    (void)syscall(SYS_futex, (uint32_t *)&semaphore->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
