/*
 * fuzz_wire_request.c - any bytes as a request.
 *
 * What is refused leaves nothing but the header behind; what is accepted encodes, and the encoding
 * decodes to the same request and encodes to the same bytes.
 */
#include "fuzz_check.h"
#include "wire_sample.h"

#include <string.h>

static struct wire_request first, second;
static struct wire_buffer first_buffer, second_buffer;
static uint8_t encoded[WIRE_MESSAGE_SIZE_MAX], again[WIRE_MESSAGE_SIZE_MAX];
static char detail[WIRE_DETAIL_SIZE];

static void check_refused(enum topkd_status status)
{
    FUZZ_CHECK(status == TOPKD_E_PROTOCOL || status == TOPKD_E_UNSUPPORTED, "status %s",
               wire_status_name(status));
    FUZZ_CHECK(memchr(detail, '\0', sizeof(detail)) && detail[0] != '\0', "no detail text");
    FUZZ_CHECK((uint32_t)first.kind == 0 && fuzz_is_all(&first.u, sizeof(first.u), 0),
               "more than the header is left: %s", detail);
}

static void check_accepted(void)
{
    size_t encoded_size, again_size;
    enum topkd_status status =
        wire_request_encode(&first, encoded, sizeof(encoded), &encoded_size, detail);
    FUZZ_CHECK(status == TOPKD_OK, "accepted, but not encoded: %s", detail);
    status = wire_request_decode(encoded, encoded_size, &second_buffer, &second, detail);
    FUZZ_CHECK(status == TOPKD_OK, "own encoding refused: %s", detail);
    FUZZ_CHECK(sample_requests_equal(&first, &second, detail), "came back changed in %s", detail);
    status = wire_request_encode(&second, again, sizeof(again), &again_size, detail);
    FUZZ_CHECK(status == TOPKD_OK, "not encoded again: %s", detail);
    FUZZ_CHECK(again_size == encoded_size && memcmp(again, encoded, encoded_size) == 0,
               "two encodings differ: %zu and %zu bytes", encoded_size, again_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&first, 0xa5, sizeof(first));
    memset(&second, 0x5a, sizeof(second));
    memset(detail, 0, sizeof(detail));
    const enum topkd_status status = wire_request_decode(data, size, &first_buffer, &first, detail);
    if (status == TOPKD_OK)
        check_accepted();
    else
        check_refused(status);
    return 0;
}
