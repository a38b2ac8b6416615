/*
 * http_request.h - the head of one HTTP request, judged byte by byte. Pure.
 *
 * Of HTTP/1.0 and 1.1 this is what a server of a few fixed pages needs: GET and HEAD, a target that
 * begins with '/', no body. Everything else has its status code. Nothing is decoded: a path is
 * compared as it came, so there is no second spelling of a page and no way out of the list.
 */
#ifndef TOPKD_SERVER_HTTP_REQUEST_H
#define TOPKD_SERVER_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_HEAD_SIZE_MAX 8192u /* choice: request line and headers; browsers send about 1 KiB */
#define HTTP_HEADERS_MAX 64u     /* choice */
#define HTTP_PATH_SIZE 64u       /* every page has a short name */

struct http_request {
    bool is_head;              /* HEAD: the answer goes without its body */
    char path[HTTP_PATH_SIZE]; /* without the query */
};

/*
 * Looks at the bytes that have come so far. 0: more must come. 200 and *request_p: answer it. Any
 * other number is the status code of the refusal. A head that fills HTTP_HEAD_SIZE_MAX bytes
 * without an end is refused.
 */
uint32_t http_request_parse(const char *bytes, size_t size, struct http_request *request_p);

/* "Not Found" */
const char *http_reason(uint32_t status);

#endif
