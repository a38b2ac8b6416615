/*
 * fuzz_http.c - any bytes as the head of an HTTP request.
 *
 * Each is answered, refused with a code that has a reason, or waits for more while it may grow.
 * What is decided stays so, whatever follows; a path begins with '/' and is printable.
 */
#include "fuzz_check.h"
#include "server/http_request.h"

#include <string.h>

static void check_answered(const struct http_request *request)
{
    FUZZ_CHECK(memchr(request->path, '\0', sizeof request->path), "the path has no end");
    FUZZ_CHECK(request->path[0] == '/', "path %s", request->path);
    for (const char *at = request->path; *at; at++)
        FUZZ_CHECK(*at > 0x20 && *at < 0x7f && *at != '?', "byte 0x%02x in the path",
                   (unsigned char)*at);
}

/* What is decided of the first bytes stays so. Looking at every prefix of every input would take
 * nine tenths of the time: each input draws its own, so that a search comes by all lengths. */
static void check_prefixes(const char *bytes, size_t size, uint32_t status)
{
    uint32_t drawn = 2166136261u; /* FNV-1a */
    for (size_t i = size > 16 ? size - 16 : 0; i < size; i++)
        drawn = (drawn ^ (unsigned char)bytes[i]) * 16777619u;
    const size_t cuts[] = {size - 1, drawn % size, (drawn >> 16) % size};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        struct http_request before;
        const uint32_t earlier = http_request_parse(bytes, cuts[i], &before);
        FUZZ_CHECK(earlier == 0 || earlier == status, "%u at %zu bytes, %u at %zu", earlier,
                   cuts[i], status, size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request request;
    const char *bytes = (const char *)data;
    memset(&request, 0xa5, sizeof request);
    if (size > HTTP_HEAD_SIZE_MAX)
        size = HTTP_HEAD_SIZE_MAX; /* as the connection's buffer */
    const uint32_t status = http_request_parse(bytes, size, &request);
    if (status == 200)
        check_answered(&request);
    else
        FUZZ_CHECK(fuzz_is_all(&request, sizeof request, 0xa5), "%u changed the request", status);
    FUZZ_CHECK(status != 0 || size < HTTP_HEAD_SIZE_MAX, "it waits for ever");
    FUZZ_CHECK(status == 0 || status == 200 || strcmp(http_reason(status), http_reason(500)) != 0,
               "status %u", status);
    if (size > 0)
        check_prefixes(bytes, size, status);
    return 0;
}
