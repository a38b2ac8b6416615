/*
 * supervisor_probe - one message to a daemon's discovery socket, the answer as lines key=value.
 *
 *   supervisor_probe URL hello [DEVICE [VERSION]]
 *   supervisor_probe URL ping | devices | stats | sessions | select
 *   supervisor_probe URL drain DEADLINE_MS
 *   supervisor_probe URL raw HEX          bytes as they are ("-": none)
 *   supervisor_probe URL size BYTES       that many zero bytes
 *   supervisor_probe URL hangup TIMES     connects, sends three bytes and hangs up; no answer
 *   supervisor_probe --notify PATH        receives notices as systemd does, until it is killed
 *
 * Exit code: 0 an answer came, whatever its status; 1 none came within half a minute, or the
 * connection was lost; 2 wrong usage.
 */
#include "topkd_wire.h"

#include <inttypes.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 30000

static struct wire_request request;
static struct wire_reply reply;
static struct wire_buffer buffer;
static uint8_t bytes[2 * WIRE_MESSAGE_SIZE_MAX];

static int usage(void)
{
    fputs("supervisor_probe: wrong usage, see the top of its source\n", stderr);
    return 2;
}

static int receive_notices(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return usage();
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        return 1;
    }
    for (;;) {
        ssize_t size = recv(fd, bytes, sizeof bytes - 1, 0);
        if (size < 0) {
            perror("recv");
            return 1;
        }
        printf("%.*s\n", (int)size, (const char *)bytes);
        fflush(stdout);
    }
}

/* Ends connections in the middle of the greeting, before the daemon may have said its own. */
static int hang_up(const char *url, int times)
{
    static const char prefix[] = "ipc://";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strncmp(url, prefix, sizeof prefix - 1) != 0 ||
        strlen(url + sizeof prefix - 1) >= sizeof address.sun_path)
        return usage();
    strcpy(address.sun_path, url + sizeof prefix - 1);
    for (int i = 0; i < times; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
            send(fd, "\0SP", 3, MSG_NOSIGNAL) < 0) {
            perror("hangup");
            return 1;
        }
        close(fd);
    }
    return 0;
}

/* Size of the message in bytes, or -1. */
static long make_raw(const char *hex)
{
    size_t size = 0;
    if (strcmp(hex, "-") == 0)
        return 0;
    for (; hex[0] != '\0' && hex[1] != '\0'; hex += 2) {
        unsigned value;
        if (sscanf(hex, "%2x", &value) != 1)
            return -1;
        bytes[size++] = (uint8_t)value;
    }
    return (long)size;
}

static long make_request(int argc, char **argv)
{
    static const enum wire_kind kinds[] = {WIRE_HELLO,    WIRE_PING,   WIRE_DEVICES, WIRE_STATS,
                                           WIRE_SESSIONS, WIRE_SELECT, WIRE_DRAIN};
    char detail[WIRE_DETAIL_SIZE];
    size_t size = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(argv[0], wire_kind_name(kinds[i])) == 0)
            request.kind = kinds[i];
    if (request.kind == 0)
        return -1;
    if (request.kind == WIRE_HELLO) {
        request.u.hello.version = argc > 2 ? (uint32_t)atoi(argv[2]) : WIRE_VERSION;
        strcpy(request.u.hello.client_name, "probe");
        if (argc > 1)
            snprintf(request.u.hello.device, sizeof request.u.hello.device, "%s", argv[1]);
    }
    if (request.kind == WIRE_DRAIN && argc > 1)
        request.u.drain.deadline_ms = (uint32_t)atoi(argv[1]);
    if (request.kind == WIRE_SELECT) {
        request.u.select.rows = request.u.select.width = request.u.select.k = 1;
        request.u.select.row_stride = request.u.select.index_stride = 1;
        request.u.select.scores.region = request.u.select.indices.region = 1;
    }
    if (wire_request_encode(&request, bytes, sizeof bytes, &size, detail) != TOPKD_OK) {
        fprintf(stderr, "supervisor_probe: %s\n", detail);
        return -1;
    }
    return (long)size;
}

static void print_devices(void)
{
    const struct wire_devices_reply *devices = &reply.u.devices;
    for (uint32_t i = 0; i < devices->num_devices; i++) {
        const struct wire_device *device = &devices->devices[i];
        printf("device=%s state=%d device_epoch=%" PRIu64 " restarts=%u worker_pid=%d kind=%d "
               "url=%s name=\"%s\"\n",
               device->device, (int)device->state, device->epoch, device->restarts, device->pid,
               (int)device->kind, device->url, device->name);
    }
}

static void print_reply(void)
{
    printf("status=%s kind=%s sequence=%" PRIu64 " epoch=%" PRIu64 "\ndetail=%s\n",
           wire_status_name(reply.status), wire_kind_name(reply.kind), reply.sequence, reply.epoch,
           reply.detail);
    if (reply.status != TOPKD_OK)
        return;
    if (reply.kind == WIRE_DEVICES)
        print_devices();
    if (reply.kind == WIRE_STATS)
        printf("uptime_ms=%" PRIu64 " worker_restarts=%" PRIu64 " requests=%" PRIu64
               " requests_failed=%" PRIu64 " messages_rejected=%" PRIu64 " sessions=%u\n",
               reply.u.stats.uptime_ms, reply.u.stats.worker_restarts, reply.u.stats.requests,
               reply.u.stats.requests_failed, reply.u.stats.messages_rejected,
               reply.u.stats.sessions);
    if (reply.kind == WIRE_HELLO)
        printf("version=%u device=%s server_version=%s k_max=%u\n", reply.u.hello.version,
               reply.u.hello.device, reply.u.hello.server_version, reply.u.hello.limits.k_max);
}

static int fail(const char *what, int error)
{
    fprintf(stderr, "supervisor_probe: %s: %s\n", what, nng_strerror(error));
    return 1;
}

static int is_lost;

/* Nobody will answer any more. */
static void lost_cb(nng_pipe pipe, nng_pipe_ev event, void *aio)
{
    (void)pipe;
    (void)event;
    __atomic_store_n(&is_lost, 1, __ATOMIC_SEQ_CST);
    nng_aio_cancel(aio);
}

/* Sends the message, and puts the answer in its place. */
static int ask(nng_socket socket, nng_aio *aio)
{
    nng_send_aio(socket, aio);
    nng_aio_wait(aio);
    if (nng_aio_result(aio) != 0)
        return fail("send", nng_aio_result(aio));
    nng_recv_aio(socket, aio);
    if (__atomic_load_n(&is_lost, __ATOMIC_SEQ_CST)) /* before it was waited for */
        nng_aio_cancel(aio);
    nng_aio_wait(aio);
    return nng_aio_result(aio) == 0 ? 0 : fail("receive", nng_aio_result(aio));
}

static int exchange(const char *url, size_t size)
{
    nng_socket socket;
    nng_aio *aio;
    nng_msg *message;
    char detail[WIRE_DETAIL_SIZE];
    int error = nng_req0_open(&socket);
    if (error == 0)
        error = nng_aio_alloc(&aio, NULL, NULL);
    if (error == 0)
        error = nng_msg_alloc(&message, 0);
    if (error == 0)
        error = nng_msg_append(message, bytes, size);
    if (error != 0)
        return fail("open", error);
    nng_socket_set_ms(socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    nng_pipe_notify(socket, NNG_PIPE_EV_REM_POST, lost_cb, aio);
    nng_aio_set_timeout(aio, WAIT_MS);
    nng_aio_set_msg(aio, message);
    error = nng_dial(socket, url, NULL, 0);
    if (error != 0)
        return fail("dial", error);
    if (ask(socket, aio) != 0)
        return 1;
    message = nng_aio_get_msg(aio);
    enum topkd_status status =
        wire_reply_decode(nng_msg_body(message), nng_msg_len(message), &buffer, &reply, detail);
    nng_msg_free(message);
    nng_close(socket);
    nng_aio_free(aio);
    if (status != TOPKD_OK) {
        fprintf(stderr, "supervisor_probe: the answer is not valid: %s\n", detail);
        return 1;
    }
    print_reply();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--notify") == 0)
        return receive_notices(argv[2]);
    if (argc < 3)
        return usage();
    if (strcmp(argv[2], "hangup") == 0 && argc == 4)
        return hang_up(argv[1], atoi(argv[3]));
    long size;
    if (strcmp(argv[2], "raw") == 0 && argc == 4)
        size = make_raw(argv[3]);
    else if (strcmp(argv[2], "size") == 0 && argc == 4)
        size = atol(argv[3]);
    else
        size = make_request(argc - 2, argv + 2);
    if (size < 0 || (size_t)size > sizeof bytes)
        return usage();
    return exchange(argv[1], (size_t)size);
}
