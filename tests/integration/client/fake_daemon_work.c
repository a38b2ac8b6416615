/* fake_daemon_work.c - sessions, regions, semaphores and selections of the fake daemon. */
#include "fake_daemon.h"
#include "oracle.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum topkd_status fake_refuse(struct wire_reply *reply, enum topkd_status status,
                              const char *detail)
{
    reply->status = status;
    (void)snprintf(reply->detail, sizeof(reply->detail), "fake: %s", detail);
    return status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *make_shared(const char *name, uint64_t size)
{
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || fchmod(fd, 0666) != 0 || ftruncate(fd, (off_t)size) != 0) {
        fake_die(name);
    }
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return base == MAP_FAILED ? NULL : base;
}

static void describe(struct wire_memory *memory, const char *name, uint64_t size)
{
    memory->kind = WIRE_MEMORY_SHM;
    memory->handle_bytes = (uint32_t)strlen(name);
    memcpy(memory->handle, name, memory->handle_bytes);
    memory->allocation_bytes = size;
}

/* ---- Handlers -------------------------------------------------------------------------------- */

void fake_say_hello(struct wire_reply *reply)
{
    struct wire_hello_reply *hello = &reply->u.hello;
    struct session *session = &fake.sessions[fake.num_sessions % SESSIONS];
    memset(session, 0, sizeof(*session));
    session->id = fake.epoch * 1000 + ++fake.num_sessions;
    uint64_t page_bytes = fake.limits.semaphores * sizeof(struct wire_semaphore);
    uint64_t arena_bytes = fake.limits.arena_slots * fake.limits.arena_slot_bytes;
    (void)snprintf(session->page_name, sizeof(session->page_name), "/topkd-fake-%d-%llu-page",
                   (int)getpid(), (unsigned long long)session->id);
    (void)snprintf(session->arena_name, sizeof(session->arena_name), "/topkd-fake-%d-%llu-arena",
                   (int)getpid(), (unsigned long long)session->id);
    session->page = make_shared(session->page_name, page_bytes);
    describe(&hello->semaphores, session->page_name, page_bytes);
    if (fake.limits.arena_slots > 0) {
        session->arena = make_shared(session->arena_name, arena_bytes);
        describe(&hello->arena, session->arena_name, arena_bytes);
    }
    hello->version = fake.version;
    hello->device_kind = fake.kind;
    hello->limits = fake.limits;
    memcpy(hello->device, fake.device, sizeof(hello->device));
    (void)snprintf(hello->server_version, sizeof(hello->server_version), "fake");
    reply->session = session->id;
}

void fake_list_devices(struct wire_reply *reply)
{
    struct wire_device *device = &reply->u.devices.devices[0];
    reply->u.devices.num_devices = 1;
    memcpy(device->device, fake.device, sizeof(device->device));
    (void)snprintf(device->name, sizeof(device->name), "fake");
    (void)snprintf(device->url, sizeof(device->url), "%s", fake.worker_url);
    device->kind = fake.kind;
    device->state = fake.state;
    device->epoch = fake.epoch;
    device->pid = (int32_t)getpid();
    if (fake.starting > 0) {
        fake.starting--;
        device->state = WIRE_DEVICE_STARTING;
    }
}

void fake_open_region(struct session *session, const struct wire_request *request,
                      struct wire_reply *reply)
{
    const struct wire_register_request *reg = &request->u.reg;
    char name[WIRE_HANDLE_SIZE + 1] = "";
    memcpy(name, reg->memory.handle, reg->memory.handle_bytes);
    uint32_t place = 0;
    while (place < REGIONS && session->regions[place].base) {
        place++;
    }
    if (place == REGIONS) {
        (void)fake_refuse(reply, TOPKD_E_LIMIT, "no more regions");
        return;
    }
    int fd = shm_open(name, O_RDWR, 0);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        char text[128];
        (void)snprintf(text, sizeof(text), "cannot open %.80s: %m", name);
        (void)fake_refuse(reply, TOPKD_E_MAP_FAILED, text);
        return;
    }
    struct region *region = &session->regions[place];
    void *base = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) {
        fake_die("mmap");
    }
    *region = (struct region){
        .base = base, .size = (uint64_t)info.st_size, .generation = ++fake.num_generations};
    reply->u.reg.region = place + 1;
    reply->u.reg.generation = region->generation;
}

static struct region *find_region(struct session *session, uint64_t id, uint32_t generation)
{
    if (id < 1 || id > REGIONS || !session->regions[id - 1].base ||
        session->regions[id - 1].generation != generation) {
        return NULL;
    }
    return &session->regions[id - 1];
}

void fake_close_region(struct session *session, const struct wire_request *request,
                       struct wire_reply *reply)
{
    struct region *region =
        find_region(session, request->u.unreg.region, request->u.unreg.generation);
    if (!region) {
        (void)fake_refuse(reply, TOPKD_E_NO_REGION, "no such region");
        return;
    }
    if (region->looks++ < fake.drain_looks) {
        reply->u.unreg.draining = true;
        return;
    }
    (void)munmap(region->base, region->size);
    memset(region, 0, sizeof(*region));
}

void fake_release(struct session *session, const struct wire_request *request,
                  struct wire_reply *reply)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (session->leases[i] == request->u.release.lease) {
            session->leases[i] = 0;
            return;
        }
    }
    (void)fake_refuse(reply, TOPKD_E_INVALID, "no such lease");
}

/* ---- Select ---------------------------------------------------------------------------------- */

static void *locate(struct session *session, const struct wire_region_ref *ref, bool *ok)
{
    if (ref->region == 0) {
        return NULL;
    }
    struct region *region = find_region(session, ref->region, ref->generation);
    if (!region || ref->offset >= region->size) {
        *ok = false;
        return NULL;
    }
    return region->base + ref->offset;
}

static bool lease_slot(struct session *session, const struct wire_select_request *select,
                       struct topk_args *args, struct wire_select_reply *reply)
{
    for (uint32_t i = 0; i < fake.limits.arena_slots; i++) {
        if (session->leases[i] == 0) {
            session->leases[i] = ++fake.num_leases;
            reply->slot = i;
            reply->lease = session->leases[i];
            reply->indices_offset = i * fake.limits.arena_slot_bytes;
            reply->values_offset =
                reply->indices_offset + (uint64_t)select->rows * select->k * sizeof(int32_t);
            args->indices = (int32_t *)(void *)(session->arena + reply->indices_offset);
            args->index_stride = select->k;
            if (select->want_values) {
                args->values = (float *)(void *)(session->arena + reply->values_offset);
                args->value_stride = select->k;
            }
            return true;
        }
    }
    return false;
}

/* With the mutex held. */
static enum topkd_status prepare(struct session *session, const struct wire_request *request,
                                 struct topk_args *args, struct wire_reply *reply)
{
    const struct wire_select_request *select = &request->u.select;
    bool ok = true;
    *args = (struct topk_args){
        .scores = locate(session, &select->scores, &ok),
        .row_stride = select->row_stride,
        .lengths = locate(session, &select->lengths, &ok),
        .indices = locate(session, &select->indices, &ok),
        .index_stride = select->index_stride,
        .values = locate(session, &select->values, &ok),
        .value_stride = select->value_stride,
        .page_table = locate(session, &select->page_table, &ok),
        .page_table_stride = select->page_table_stride,
        .row_offsets = locate(session, &select->row_offsets, &ok),
        .num_rows = (int32_t)select->rows,
        .width = (int32_t)select->width,
        .length_all = select->length_all,
        .k = (int32_t)select->k,
        .page_table_width = (int32_t)select->page_table_width,
        .page_size_log2 = select->page_size_log2,
    };
    if (!ok) {
        return fake_refuse(reply, TOPKD_E_NO_REGION, "no such region");
    }
    if (select->lengths_mode == WIRE_LENGTHS_INLINE) {
        args->lengths = select->lengths_inline;
    }
    if (select->output_mode == WIRE_OUTPUT_ARENA &&
        !lease_slot(session, select, args, &reply->u.select)) {
        return fake_refuse(reply, TOPKD_E_BUSY, "the arena is full");
    }
    return TOPKD_OK;
}

static void run(const struct topk_args *args, const struct wire_select_request *select)
{
    const struct topk_options options = {.order = (enum topk_order)select->order,
                                         .ties = (enum topk_ties)select->ties,
                                         .dtype = (enum topk_dtype)select->dtype};
    for (int32_t i = 0; i < args->num_rows; i++) {
        struct oracle_row row = oracle_row_of(args, &options, i);
        oracle_select_row(&row, args->indices + i * args->index_stride,
                          args->values ? args->values + i * args->value_stride : NULL);
    }
}

static enum topkd_status await(const struct session *session,
                               const struct wire_select_request *select, struct wire_reply *reply)
{
    const struct wire_semaphore *word = &session->page[select->wait.index];
    for (uint32_t i = 0; select->wait.value != 0; i++) {
        if (__atomic_load_n(&word->value, __ATOMIC_ACQUIRE) >= select->wait.value) {
            return __atomic_load_n(&word->failed_value, __ATOMIC_ACQUIRE) == select->wait.value
                       ? fake_refuse(reply, (enum topkd_status)word->failed_status, "wait failed")
                       : TOPKD_OK;
        }
        if (i >= select->timeout_ms) {
            return fake_refuse(reply, TOPKD_E_TIMEOUT, "waited too long");
        }
        usleep(1000);
    }
    return TOPKD_OK;
}

static void signal_end(struct session *session, const struct wire_select_request *select,
                       enum topkd_status status)
{
    struct wire_semaphore *word = &session->page[select->signal.index];
    if (select->signal.value == 0) {
        return;
    }
    if (status != TOPKD_OK) {
        __atomic_store_n(&word->failed_status, (uint32_t)status, __ATOMIC_RELAXED);
        __atomic_store_n(&word->failed_value, select->signal.value, __ATOMIC_RELEASE);
    }
    if (__atomic_load_n(&word->value, __ATOMIC_RELAXED) < select->signal.value) {
        __atomic_store_n(&word->value, select->signal.value, __ATOMIC_RELEASE);
        (void)syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void fake_select(struct session *session, const struct wire_request *request,
                 struct wire_reply *reply)
{
    const struct wire_select_request *select = &request->u.select;
    struct topk_args args;
    pthread_mutex_lock(&fake.mutex);
    enum topkd_status status = prepare(session, request, &args, reply);
    pthread_mutex_unlock(&fake.mutex);
    if (status == TOPKD_OK) {
        status = await(session, select, reply);
    }
    if (status == TOPKD_OK) {
        pthread_mutex_lock(&fake.running); /* one at a time, as a session has it */
        run(&args, select);
        pthread_mutex_unlock(&fake.running);
    }
    signal_end(session, select, status);
    reply->status = status;
}
