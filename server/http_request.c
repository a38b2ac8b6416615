#include "http_request.h"

#include <string.h>
#include <strings.h>

/* A part of the bytes. */
struct span {
    const char *at;
    size_t size;
};

/* What the headers have said. */
struct headers {
    uint32_t num_hosts;
    uint32_t status; /* 0: nothing is wrong */
};

const char *http_reason(uint32_t status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 414:
        return "URI Too Long";
    case 421:
        return "Misdirected Request";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Internal Server Error";
    }
}

/* A character of a method or a header's name. */
static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token_span(struct span span)
{
    for (size_t i = 0; i < span.size; i++)
        if (!is_token(span.at[i]))
            return false;
    return span.size > 0;
}

static bool equals(struct span span, const char *word)
{
    return span.size == strlen(word) && strncasecmp(span.at, word, span.size) == 0;
}

/* Cuts the part before `end` off; false when there is none. */
static bool cut(struct span *rest, char end, struct span *part_p)
{
    const char *found = memchr(rest->at, end, rest->size);
    if (found == NULL)
        return false;
    *part_p = (struct span){rest->at, (size_t)(found - rest->at)};
    rest->size -= part_p->size + 1;
    rest->at = found + 1;
    return true;
}

static struct span trim(struct span span)
{
    while (span.size > 0 && (span.at[0] == ' ' || span.at[0] == '\t'))
        span = (struct span){span.at + 1, span.size - 1};
    while (span.size > 0 && (span.at[span.size - 1] == ' ' || span.at[span.size - 1] == '\t'))
        span.size--;
    return span;
}

/* Names of this machine's own loopback, with any port: a forwarded one has another. A web page that
 * points a name of its own at 127.0.0.1 is told apart by it. */
static bool is_own_host(struct span host)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t length = strlen(names[i]);
        if (host.size < length || strncasecmp(host.at, names[i], length) != 0)
            continue;
        if (host.size == length)
            return true;
        if (host.at[length] != ':')
            continue;
        for (size_t j = length + 1; j < host.size; j++)
            if (host.at[j] < '0' || host.at[j] > '9')
                return false;
        return host.size - length <= 6;
    }
    return false;
}

static void take_header(struct span name, struct span value, struct headers *headers)
{
    uint32_t status = 0;
    if (equals(name, "host")) {
        headers->num_hosts++;
        if (headers->num_hosts > 1)
            status = 400;
        else if (!is_own_host(value))
            status = 421;
    } else if (equals(name, "transfer-encoding")) {
        status = 413;
    } else if (equals(name, "content-length")) {
        status = equals(value, "0") ? 0 : 413;
    }
    if (headers->status == 0)
        headers->status = status;
}

/* The lines after the first. */
static uint32_t parse_headers(struct span rest, struct headers *headers)
{
    for (uint32_t i = 0; rest.size > 0; i++) {
        struct span line, name;
        if (!cut(&rest, '\n', &line) || line.size == 0 || line.at[line.size - 1] != '\r')
            return 400;
        line.size--;
        if (i == HTTP_HEADERS_MAX)
            return 431;
        if (!cut(&line, ':', &name) || !is_token_span(name)) /* a folded line too */
            return 400;
        take_header(name, trim(line), headers);
    }
    return 0;
}

/* "HTTP/1.1": 0, or the status. */
static uint32_t check_version(struct span version)
{
    static const char prefix[] = "HTTP/";
    if (version.size != 8 || strncmp(version.at, prefix, 5) != 0 || version.at[6] != '.' ||
        version.at[5] < '0' || version.at[5] > '9' || version.at[7] < '0' || version.at[7] > '9')
        return 400;
    return version.at[5] == '1' && version.at[7] <= '1' ? 0 : 505;
}

static uint32_t take_target(struct span target, struct http_request *request)
{
    if (target.size == 0 || target.at[0] != '/')
        return 400;
    for (size_t i = 0; i < target.size; i++) {
        if ((unsigned char)target.at[i] <= 0x20) /* a tab or a lone CR: find_end let it pass */
            return 400;
    }
    const char *query = memchr(target.at, '?', target.size);
    if (query != NULL)
        target.size = (size_t)(query - target.at);
    if (target.size >= HTTP_PATH_SIZE)
        return 404; /* no page has so long a name */
    memcpy(request->path, target.at, target.size);
    request->path[target.size] = '\0';
    return 0;
}

/* The end of the head: behind the empty line; 0 when it has not come. Control characters and bytes
 * beyond ASCII have no place in it. */
static size_t find_end(const char *bytes, size_t size, bool *is_bad_p)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        bool is_line_end = byte == '\r' || byte == '\n';
        if ((byte < 0x20 && byte != '\t' && !is_line_end) || byte > 0x7e) {
            *is_bad_p = true;
            return 0;
        }
        if (byte == '\n' && i >= 3 && memcmp(bytes + i - 3, "\r\n\r\n", 4) == 0)
            return i + 1;
    }
    return 0;
}

uint32_t http_request_parse(const char *bytes, size_t size, struct http_request *request_p)
{
    struct http_request request = {.is_head = false};
    struct headers headers = {.num_hosts = 0};
    struct span line, method, target;
    bool is_bad = false;
    size_t end = find_end(bytes, size, &is_bad);
    if (is_bad)
        return 400;
    if (end == 0) {
        if (size < HTTP_HEAD_SIZE_MAX)
            return 0;
        return memchr(bytes, '\n', size) == NULL ? 414 : 431;
    }
    struct span rest = {bytes, end - 2}; /* without the empty line */
    if (!cut(&rest, '\n', &line) || line.size == 0 || line.at[line.size - 1] != '\r')
        return 400;
    line.size--;
    if (!cut(&line, ' ', &method) || !is_token_span(method) || !cut(&line, ' ', &target))
        return 400;
    uint32_t status = check_version(line);
    if (status == 0)
        status = parse_headers(rest, &headers);
    bool is_one_one = line.size == 8 && line.at[7] == '1';
    if (status == 0 && is_one_one && headers.num_hosts == 0)
        status = 400;
    if (status == 0)
        status = headers.status;
    if (status != 0)
        return status;
    request.is_head = method.size == 4 && memcmp(method.at, "HEAD", 4) == 0;
    if (!request.is_head && (method.size != 3 || memcmp(method.at, "GET", 3) != 0))
        return 405;
    status = take_target(target, &request);
    if (status != 0)
        return status;
    *request_p = request;
    return 200;
}
