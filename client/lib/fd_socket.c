/* fd_socket.c - descriptors to and from a worker. */
#include "fd_socket.h"

#include "fault.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Choice: a worker answers within a millisecond; the thread that does is never busy for long. */
#define ANSWER_S 2

static enum topkd_status open_socket(const char *url, int *fd_p, char *detail)
{
    static const char scheme[] = "ipc://", suffix[] = ".sock";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(url);
    size_t scheme_length = strlen(scheme), suffix_length = strlen(suffix);
    if (length < scheme_length + suffix_length || strncmp(url, scheme, scheme_length) != 0 ||
        strcmp(url + length - suffix_length, suffix) != 0) {
        return fault(detail, TOPKD_E_UNSUPPORTED, "no side socket belongs to the worker's url %s",
                     url);
    }
    int written = snprintf(address.sun_path, sizeof(address.sun_path), "%.*s%s",
                           (int)(length - scheme_length - suffix_length), url + scheme_length,
                           FD_SOCKET_SUFFIX);
    if (written < 0 || (size_t)written >= sizeof(address.sun_path)) {
        return fault(detail, TOPKD_E_INVALID, "the path of %s is too long for a socket", url);
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return fault_system(detail, "socket", errno);
    }
    const struct timeval limit = {.tv_sec = ANSWER_S};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    int result;
    do { /* a signal may come while the worker's queue is full */
        result = connect(fd, (const struct sockaddr *)&address, sizeof(address));
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        enum topkd_status status = fault(
            detail, errno == EACCES ? TOPKD_E_NOT_PERMITTED : TOPKD_E_UNREACHABLE,
            "cannot connect to the worker's side socket %s: %s", address.sun_path, strerror(errno));
        close(fd);
        return status;
    }
    *fd_p = fd;
    return TOPKD_OK;
}

/* The answer, and the descriptor that came along in *fd_p, or -1. */
static enum topkd_status receive_answer(int fd, struct fd_answer *answer, int *fd_p, char *detail)
{
    uint32_t num_fds = 1;
    *fd_p = -1;
    ssize_t size = rights_receive(fd, answer, sizeof(*answer), fd_p, &num_fds);
    if (size == 0 || (size < 0 && errno != EMSGSIZE)) {
        return fault(detail, TOPKD_E_UNREACHABLE,
                     "the worker's side socket gave no answer (%s): it may hold too many "
                     "connections of this process",
                     size == 0 ? "closed" : strerror(errno));
    }
    if (size < 0) {
        return fault(detail, TOPKD_E_MAP_FAILED,
                     "the worker's descriptor did not arrive: this process may have no free "
                     "descriptor (ulimit -n)");
    }
    if (size != (ssize_t)sizeof(*answer) || answer->magic != FD_MAGIC ||
        answer->version != FD_VERSION) {
        return fault(detail, TOPKD_E_VERSION,
                     "the worker's side socket speaks another version than %u: use a library and a "
                     "daemon of one release",
                     FD_VERSION);
    }
    if (answer->status != TOPKD_OK) {
        answer->detail[sizeof(answer->detail) - 1] = '\0';
        return fault(detail, (enum topkd_status)answer->status, "%s", answer->detail);
    }
    return TOPKD_OK;
}

/* A worker that hangs up before it has read everything has said why. */
static enum topkd_status explain_refusal(int fd, int error, char *detail)
{
    struct fd_answer answer;
    int extra = -1;
    if (error == EPIPE || error == ECONNRESET) {
        enum topkd_status status = receive_answer(fd, &answer, &extra, detail);
        if (extra >= 0) {
            close(extra);
        }
        if (status != TOPKD_OK && status != TOPKD_E_UNREACHABLE) {
            return status;
        }
    }
    return fault(detail, TOPKD_E_UNREACHABLE, "the worker's side socket took no packet: %s",
                 strerror(error));
}

static enum topkd_status send_packet(int fd, struct fd_packet *packet, const int *fds,
                                     uint32_t num_fds, char *detail)
{
    packet->magic = FD_MAGIC;
    packet->version = FD_VERSION;
    packet->num_fds = num_fds;
    if (rights_send(fd, packet, sizeof(*packet), fds, num_fds) != (ssize_t)sizeof(*packet)) {
        return explain_refusal(fd, errno, detail);
    }
    return TOPKD_OK;
}

enum topkd_status fd_socket_offer(const char *url, const int *fds, const uint64_t *sizes_bytes,
                                  uint32_t num_fds, uint8_t ticket_p[FD_TICKET_SIZE], char *detail)
{
    if (num_fds < 1 || num_fds > FD_TICKET_FDS_MAX) {
        return fault(detail, TOPKD_E_LIMIT,
                     "the memory consists of %u allocations, a region may have %u: register it in "
                     "parts",
                     num_fds, FD_TICKET_FDS_MAX);
    }
    int fd;
    enum topkd_status status = open_socket(url, &fd, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    for (uint32_t sent = 0; sent < num_fds && status == TOPKD_OK;) {
        uint32_t left = num_fds - sent;
        uint32_t count = left < FD_PACKET_FDS_MAX ? left : FD_PACKET_FDS_MAX;
        struct fd_packet packet = {.kind = FD_OFFER, .is_last = count == left};
        memcpy(packet.size_bytes, sizes_bytes + sent, count * sizeof(*sizes_bytes));
        status = send_packet(fd, &packet, fds + sent, count, detail);
        sent += count;
    }
    struct fd_answer answer;
    int extra = -1;
    if (status == TOPKD_OK) {
        status = receive_answer(fd, &answer, &extra, detail);
    }
    if (status == TOPKD_OK) {
        memcpy(ticket_p, answer.ticket, FD_TICKET_SIZE);
    }
    if (extra >= 0) {
        close(extra);
    }
    close(fd);
    return status;
}

enum topkd_status fd_socket_fetch(const char *url, const uint8_t ticket[FD_TICKET_SIZE], int *fd_p,
                                  char *detail)
{
    int fd;
    enum topkd_status status = open_socket(url, &fd, detail);
    if (status != TOPKD_OK) {
        return status;
    }
    struct fd_packet packet = {.kind = FD_FETCH};
    memcpy(packet.ticket, ticket, FD_TICKET_SIZE);
    status = send_packet(fd, &packet, NULL, 0, detail);
    struct fd_answer answer;
    int fetched = -1;
    if (status == TOPKD_OK) {
        status = receive_answer(fd, &answer, &fetched, detail);
    }
    close(fd);
    if (status == TOPKD_OK && fetched < 0) {
        return fault(detail, TOPKD_E_MAP_FAILED,
                     "the worker's descriptor did not arrive: this process may have no free "
                     "descriptor (ulimit -n)");
    }
    if (status != TOPKD_OK) {
        if (fetched >= 0) {
            close(fetched);
        }
        return status;
    }
    *fd_p = fetched;
    return TOPKD_OK;
}
