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
#include "fake_daemon.h"
#include "fake_counters.h"

#include <fcntl.h>
#include <grp.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake_daemon fake = {
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

void fake_die(const char *what)
{
    perror(what);
    _exit(3);
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
            (void)fake_refuse(reply, TOPKD_E_STALE_SESSION, "who are you?");
        }
    }
    if (request->kind == WIRE_HELLO) {
        fake_say_hello(reply);
    } else if (request->kind == WIRE_DEVICES) {
        fake_list_devices(reply);
    } else if (session && request->kind == WIRE_REGISTER) {
        fake_open_region(session, request, reply);
    } else if (session && request->kind == WIRE_UNREGISTER) {
        fake_close_region(session, request, reply);
    } else if (session && request->kind == WIRE_RELEASE) {
        fake_release(session, request, reply);
    }
    pthread_mutex_unlock(&fake.mutex);
    if (session && request->kind == WIRE_SELECT) {
        fake_select(session, request, reply);
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
        (void)fake_refuse(reply, (enum topkd_status)rule->argument, "as the test wants");
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
        fake_die("context");
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
        fake_die(path);
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
        fake_die("setuid");
    }
    umask(0); /* sockets for everybody from the first moment, as a test may change that at once */
    static nng_socket worker, supervisor;
    listen_on(fake.worker_url, &worker);
    listen_on(fake.supervisor_url, &supervisor);
    for (uint32_t i = 0; i < CONTEXTS + 2; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_context, i < CONTEXTS ? &worker : &supervisor) !=
            0) {
            fake_die("thread");
        }
    }
    for (pid_t parent = getppid(); getppid() == parent;) {
        sleep(1); /* no daemon without a test */
    }
    return 0;
}
