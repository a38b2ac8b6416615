/*
 * fake_daemon - supervisor and worker in one process, for tests of the client library that need a
 * daemon to misbehave at a chosen moment. Speaks the real wire over real sockets, keeps sessions,
 * regions, semaphores and an arena as a worker does, and selects with the oracle.
 *
 *     fake_daemon SUPERVISOR_URL WORKER_URL EPOCH COUNTERS [KEY=VALUE | RULE]...
 *
 * COUNTERS is a file of FAKE_COUNTERS 64-bit numbers, one a request kind, that the test maps.
 * A RULE is KIND:NUMBER:ACTION[:ARGUMENT]: at the NUMBERth request of the kind (or each, "*") do
 *     exit         die without an answer         exit_after   do it, then die without an answer
 *     status:N     refuse with status N          stale        forget the session, say so
 *     silent       never answer                  garbage      answer bytes that are no message
 *     delay:MS     answer later                  sequence     answer with another number
 *     offset       lie about where the result is
 * Not a server: it trusts its peer with everything that a test does not break on purpose.
 */
#include "fake_counters.h"
#include "oracle.h"
#include "topkd_wire.h"

#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/futex.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CONTEXTS = 48, SESSIONS = 64, REGIONS = 64, RULES = 16, SLOTS = 64 };

struct rule {
    char kind[16], action[16];
    uint64_t number; /* 0: each */
    uint32_t argument;
};

struct region {
    uint8_t *base;
    uint64_t size;
    uint32_t generation;
    uint32_t looks; /* unregister requests so far */
};

struct session {
    uint64_t id;
    char page_name[64], arena_name[64];
    struct wire_semaphore *page;
    uint8_t *arena;
    struct region regions[REGIONS];
    uint64_t leases[SLOTS];
};

static struct {
    const char *supervisor_url, *worker_url;
    uint64_t epoch;
    uint64_t *counters;
    char device[WIRE_UUID_SIZE];
    enum wire_device_kind kind;
    enum wire_device_state state;
    uint32_t starting; /* answers of Devices that still say so */
    uint32_t drain_looks;
    uint32_t version;
    uid_t uid;
    struct wire_limits limits;
    struct rule rules[RULES];
    uint32_t num_rules;
    pthread_mutex_t mutex, running;
    struct session sessions[SESSIONS];
    uint64_t num_sessions, num_leases;
    uint32_t num_generations;
} fake = {
    .device = "cpu",
    .state = WIRE_DEVICE_READY,
    .version = WIRE_VERSION,
    .limits = {.regions_max = REGIONS,
               .outstanding_max = 8,
               .semaphores = 16,
               .k_max = 16384,
               .timeout_ms_max = 600000,
               .region_bytes_max = UINT64_C(1) << 30,
               .rows_max = INT32_MAX,
               .width_max = INT32_MAX,
               .arena_slots = 4,
               .arena_slot_bytes = 1 << 20},
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .running = PTHREAD_MUTEX_INITIALIZER,
};

static void die(const char *what)
{
    perror(what);
    _exit(3);
}

static enum topkd_status refuse(struct wire_reply *reply, enum topkd_status status,
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
        die(name);
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

static void say_hello(struct wire_reply *reply)
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

static void list_devices(struct wire_reply *reply)
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

static void open_region(struct session *session, const struct wire_request *request,
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
        (void)refuse(reply, TOPKD_E_LIMIT, "no more regions");
        return;
    }
    int fd = shm_open(name, O_RDWR, 0);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        char text[128];
        (void)snprintf(text, sizeof(text), "cannot open %.80s: %m", name);
        (void)refuse(reply, TOPKD_E_MAP_FAILED, text);
        return;
    }
    struct region *region = &session->regions[place];
    void *base = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) {
        die("mmap");
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

static void close_region(struct session *session, const struct wire_request *request,
                         struct wire_reply *reply)
{
    struct region *region =
        find_region(session, request->u.unreg.region, request->u.unreg.generation);
    if (!region) {
        (void)refuse(reply, TOPKD_E_NO_REGION, "no such region");
        return;
    }
    if (region->looks++ < fake.drain_looks) {
        reply->u.unreg.draining = true;
        return;
    }
    (void)munmap(region->base, region->size);
    memset(region, 0, sizeof(*region));
}

static void release(struct session *session, const struct wire_request *request,
                    struct wire_reply *reply)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (session->leases[i] == request->u.release.lease) {
            session->leases[i] = 0;
            return;
        }
    }
    (void)refuse(reply, TOPKD_E_INVALID, "no such lease");
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
        return refuse(reply, TOPKD_E_NO_REGION, "no such region");
    }
    if (select->lengths_mode == WIRE_LENGTHS_INLINE) {
        args->lengths = select->lengths_inline;
    }
    if (select->output_mode == WIRE_OUTPUT_ARENA &&
        !lease_slot(session, select, args, &reply->u.select)) {
        return refuse(reply, TOPKD_E_BUSY, "the arena is full");
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
                       ? refuse(reply, (enum topkd_status)word->failed_status, "wait failed")
                       : TOPKD_OK;
        }
        if (i >= select->timeout_ms) {
            return refuse(reply, TOPKD_E_TIMEOUT, "waited too long");
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

static void do_select(struct session *session, const struct wire_request *request,
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

/* ---- Dispatch -------------------------------------------------------------------------------- */

static struct session *find_session(uint64_t id)
{
    for (uint32_t i = 0; id != 0 && i < SESSIONS; i++) {
        if (fake.sessions[i].id == id) {
            return &fake.sessions[i];
        }
    }
    return NULL;
}

static const struct rule *find_rule(enum wire_kind kind, uint64_t number)
{
    for (uint32_t i = 0; i < fake.num_rules; i++) {
        const struct rule *rule = &fake.rules[i];
        if (strcmp(rule->kind, wire_kind_name(kind)) == 0 &&
            (rule->number == 0 || rule->number == number)) {
            return rule;
        }
    }
    return NULL;
}

static void dispatch(const struct wire_request *request, struct wire_reply *reply)
{
    struct session *session = NULL;
    pthread_mutex_lock(&fake.mutex);
    if (request->kind != WIRE_HELLO && request->kind != WIRE_DEVICES) {
        session = find_session(request->session);
        if (!session) {
            (void)refuse(reply, TOPKD_E_STALE_SESSION, "who are you?");
        }
    }
    if (request->kind == WIRE_HELLO) {
        say_hello(reply);
    } else if (request->kind == WIRE_DEVICES) {
        list_devices(reply);
    } else if (session && request->kind == WIRE_REGISTER) {
        open_region(session, request, reply);
    } else if (session && request->kind == WIRE_UNREGISTER) {
        close_region(session, request, reply);
    } else if (session && request->kind == WIRE_RELEASE) {
        release(session, request, reply);
    }
    pthread_mutex_unlock(&fake.mutex);
    if (session && request->kind == WIRE_SELECT) {
        do_select(session, request, reply);
    }
}

/* Does the request as the rules say; false when nothing is to be answered. */
static bool serve(const struct wire_request *request, struct wire_reply *reply)
{
    uint64_t number = __atomic_add_fetch(&fake.counters[request->kind], 1, __ATOMIC_ACQ_REL);
    const struct rule *rule = find_rule(request->kind, number);
    const char *action = rule ? rule->action : "";
    if (strcmp(action, "exit") == 0) {
        _exit(9);
    } else if (strcmp(action, "silent") == 0) {
        return false;
    } else if (strcmp(action, "status") == 0) {
        (void)refuse(reply, (enum topkd_status)rule->argument, "as the test wants");
        return true;
    } else if (strcmp(action, "stale") == 0) {
        pthread_mutex_lock(&fake.mutex);
        struct session *session = find_session(request->session);
        if (session) {
            session->id = 0;
        }
        pthread_mutex_unlock(&fake.mutex);
    } else if (strcmp(action, "delay") == 0) {
        usleep(rule->argument * 1000);
    }
    dispatch(request, reply);
    if (strcmp(action, "exit_after") == 0) {
        _exit(9);
    } else if (strcmp(action, "sequence") == 0) {
        reply->sequence += 1000;
    } else if (strcmp(action, "offset") == 0) {
        reply->u.select.indices_offset = UINT64_MAX - 3;
    }
    return true;
}

static void answer(nng_msg *message, struct wire_request *request, struct wire_reply *reply,
                   struct wire_buffer *buffer, bool *reply_p)
{
    char detail[WIRE_DETAIL_SIZE];
    memset(reply, 0, sizeof(*reply));
    if (wire_request_decode(nng_msg_body(message), nng_msg_len(message), buffer, request, detail) !=
        TOPKD_OK) {
        fprintf(stderr, "fake_daemon: %s\n", detail);
        _exit(4);
    }
    reply->session = request->session;
    reply->sequence = request->sequence;
    reply->epoch = fake.epoch;
    reply->kind = request->kind;
    *reply_p = serve(request, reply);
    nng_msg_clear(message);
    const struct rule *rule =
        find_rule(request->kind, __atomic_load_n(&fake.counters[request->kind], __ATOMIC_ACQUIRE));
    if (rule && strcmp(rule->action, "garbage") == 0) {
        (void)nng_msg_append(message, "not a message at all", 20);
        return;
    }
    static __thread uint8_t out[WIRE_MESSAGE_SIZE_MAX];
    size_t size;
    if (wire_reply_encode(reply, out, sizeof(out), &size, detail) != TOPKD_OK) {
        fprintf(stderr, "fake_daemon: %s\n", detail);
        _exit(5);
    }
    (void)nng_msg_append(message, out, size);
}

static void *serve_context(void *arg)
{
    nng_socket socket = *(const nng_socket *)arg;
    struct wire_request *request = malloc(sizeof(*request));
    struct wire_reply *reply = malloc(sizeof(*reply));
    struct wire_buffer *buffer = malloc(sizeof(*buffer));
    nng_ctx ctx = NNG_CTX_INITIALIZER;
    nng_aio *aio = NULL;
    if (!request || !reply || !buffer || nng_ctx_open(&ctx, socket) != 0 ||
        nng_aio_alloc(&aio, NULL, NULL) != 0) {
        die("context");
    }
    for (;;) {
        nng_ctx_recv(ctx, aio);
        nng_aio_wait(aio);
        if (nng_aio_result(aio) != 0) {
            continue;
        }
        nng_msg *message = nng_aio_get_msg(aio);
        bool reply_wanted;
        answer(message, request, reply, buffer, &reply_wanted);
        if (!reply_wanted) {
            nng_msg_free(message);
            continue;
        }
        nng_aio_set_msg(aio, message);
        nng_ctx_send(ctx, aio);
        nng_aio_wait(aio);
        if (nng_aio_result(aio) != 0) {
            nng_msg_free(nng_aio_get_msg(aio));
        }
    }
    return NULL;
}

/* ---- Start ----------------------------------------------------------------------------------- */

static bool read_rule(const char *text)
{
    struct rule *rule = &fake.rules[fake.num_rules];
    char number[16] = "", argument[16] = "0";
    if (fake.num_rules == RULES || sscanf(text, "%15[a-z_]:%15[0-9*]:%15[a-z_]:%15[0-9]",
                                          rule->kind, number, rule->action, argument) < 3) {
        return false;
    }
    rule->number = strcmp(number, "*") == 0 ? 0 : strtoull(number, NULL, 10);
    rule->argument = (uint32_t)strtoul(argument, NULL, 10);
    fake.num_rules++;
    return true;
}

static bool read_setting(const char *text)
{
    const struct {
        const char *key;
        uint32_t *number;
    } numbers[] = {
        {"starting=", &fake.starting},
        {"state=", (uint32_t *)&fake.state},
        {"kind=", (uint32_t *)&fake.kind},
        {"drain_looks=", &fake.drain_looks},
        {"version=", &fake.version},
        {"uid=", &fake.uid},
        {"outstanding=", &fake.limits.outstanding_max},
        {"arena_slots=", &fake.limits.arena_slots},
        {"semaphores=", &fake.limits.semaphores},
        {"dtypes=", &fake.limits.dtypes},
        {"timeout_max=", &fake.limits.timeout_ms_max},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        size_t length = strlen(numbers[i].key);
        if (strncmp(text, numbers[i].key, length) == 0) {
            *numbers[i].number = (uint32_t)strtoul(text + length, NULL, 10);
            return true;
        }
    }
    return false;
}

static void listen_on(const char *url, nng_socket *socket)
{
    const char *path = url + strlen("ipc://");
    (void)unlink(path);
    int error = nng_rep0_open(socket);
    if (!error) {
        error = nng_socket_set_size(*socket, NNG_OPT_RECVMAXSZ, WIRE_MESSAGE_SIZE_MAX);
    }
    if (!error) {
        error = nng_listen(*socket, url, NULL, 0);
    }
    if (error) {
        fprintf(stderr, "fake_daemon: %s: %s\n", url, nng_strerror(error));
        _exit(2);
    }
}

static void map_counters(const char *path)
{
    int fd = open(path, O_RDWR);
    fake.counters =
        mmap(NULL, FAKE_COUNTERS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || fake.counters == MAP_FAILED) {
        die(path);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: fake_daemon SUPERVISOR_URL WORKER_URL EPOCH COUNTERS ...\n");
        return 2;
    }
    fake.supervisor_url = argv[1];
    fake.worker_url = argv[2];
    fake.epoch = strtoull(argv[3], NULL, 10);
    for (int i = 5; i < argc; i++) {
        if (!read_setting(argv[i]) && !read_rule(argv[i])) {
            fprintf(stderr, "fake_daemon: what is %s?\n", argv[i]);
            return 2;
        }
    }
    map_counters(argv[4]);
    if (fake.uid != 0 &&
        (setgroups(0, NULL) != 0 || setgid(fake.uid) != 0 || setuid(fake.uid) != 0)) {
        die("setuid");
    }
    umask(0); /* sockets for everybody from the first moment, as a test may change that at once */
    static nng_socket worker, supervisor;
    listen_on(fake.worker_url, &worker);
    listen_on(fake.supervisor_url, &supervisor);
    for (uint32_t i = 0; i < CONTEXTS + 2; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_context, i < CONTEXTS ? &worker : &supervisor) !=
            0) {
            die("thread");
        }
    }
    for (pid_t parent = getppid(); getppid() == parent;) {
        sleep(1); /* no daemon without a test */
    }
    return 0;
}
