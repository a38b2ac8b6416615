/* raw_stream.c - NNG's stream (SP over a Unix socket), byte by byte. */
#include "raw.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define URL_PREFIX "ipc://"
#define PROTOCOL_REQ 0x30
#define MESSAGE_MARK 1 /* before each message, then its length in 64 bits, big endian */
#define ID_LAST 0x80000000u

int raw_stream_connect(const struct raw_worker *worker)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)strncpy(address.sun_path, worker->url + strlen(URL_PREFIX), sizeof(address.sun_path) - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool write_all(int fd, const void *bytes, size_t size_bytes)
{
    const uint8_t *at = bytes;
    while (size_bytes > 0) {
        ssize_t written = send(fd, at, size_bytes, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        size_bytes -= (size_t)written;
    }
    return true;
}

static bool read_all(int fd, int timeout_ms, void *bytes, size_t size_bytes)
{
    uint8_t *at = bytes;
    while (size_bytes > 0) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, timeout_ms) <= 0)
            return false;
        ssize_t got = read(fd, at, size_bytes);
        if (got <= 0)
            return false;
        at += got;
        size_bytes -= (size_t)got;
    }
    return true;
}

void raw_stream_handshake(int fd)
{
    const uint8_t hello[8] = {0, 'S', 'P', 0, 0, PROTOCOL_REQ, 0, 0};
    uint8_t answer[8];
    assert_true(write_all(fd, hello, sizeof(hello)));
    assert_true(read_all(fd, RAW_TIMEOUT_MS, answer, sizeof(answer)));
    assert_memory_equal(answer, "\0SP", 4);
}

bool raw_stream_send(int fd, uint32_t id, const void *body, size_t size_bytes)
{
    uint8_t head[13] = {MESSAGE_MARK};
    uint64_t length = htobe64(size_bytes + 4);
    uint32_t id_bytes = htobe32(id | ID_LAST);
    memcpy(head + 1, &length, sizeof(length));
    memcpy(head + 9, &id_bytes, sizeof(id_bytes));
    return write_all(fd, head, sizeof(head)) && write_all(fd, body, size_bytes);
}

bool raw_stream_receive(int fd, int timeout_ms, void *body, size_t *size_p)
{
    uint8_t head[13];
    uint64_t length;
    if (!read_all(fd, timeout_ms, head, sizeof(head)))
        return false;
    memcpy(&length, head + 1, sizeof(length));
    *size_p = be64toh(length) - 4;
    assert_true(head[0] == MESSAGE_MARK && *size_p <= WIRE_MESSAGE_SIZE_MAX);
    return read_all(fd, timeout_ms, body, *size_p);
}
