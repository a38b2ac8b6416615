/*
 * wire_forge.h - messages that topkd's own encoder would never send: well-formed FlatBuffers whose
 * content breaks one rule of topkd_wire.h, or that a newer version could have sent.
 */
#ifndef TOPKD_TESTS_WIRE_FORGE_H
#define TOPKD_TESTS_WIRE_FORGE_H

#include "topkd_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every forged message has in its header. */
#define FORGE_SESSION UINT64_C(0x1122334455667788)
#define FORGE_SEQUENCE UINT64_C(77)
#define FORGE_EPOCH UINT64_C(5)

struct forgery {
    const char *name;
    bool is_reply;              /* what it is decoded as */
    enum topkd_status expected; /* of the decoder */
    const char *detail;         /* part of the expected text; NULL for an accepted message */
};

size_t forge_count(void);
const struct forgery *forge_case(size_t idx);

/* Writes case idx to out[out_size]; its length. */
size_t forge_message(size_t idx, uint8_t *out, size_t out_size);

#ifdef __cplusplus
}
#endif

#endif
