/*
 * wire_sample.h - sample messages for tests of the wire, and their comparison field by field.
 *
 * Every struct of topkd_wire.h is described by a table of its fields (wire_layout.c), which knows
 * nothing of how messages are encoded. A field's value depends on the seed and its own name alone,
 * so that a field appended later leaves the values of the others as they were.
 */
#ifndef TOPKD_TESTS_WIRE_SAMPLE_H
#define TOPKD_TESTS_WIRE_SAMPLE_H

#include "topkd_wire.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SAMPLE_SMALL_COUNT 2u

enum sample_mode {
    SAMPLE_MIN,    /* every number as small as its type allows, texts and lists empty */
    SAMPLE_MAX,    /* every number, text, list and enum at its largest */
    SAMPLE_RANDOM, /* from the seed: about half the numbers random, the others extreme */
    SAMPLE_SMALL   /* as SAMPLE_RANDOM, lists with at most SAMPLE_SMALL_COUNT entries */
};

/* A message within the limits. Inline lengths point to static memory. */
void sample_request(enum wire_kind kind, enum sample_mode mode, uint64_t seed,
                    struct wire_request *request);
/* With a status other than TOPKD_OK the body is zero. kind may then be 0. */
void sample_reply(enum wire_kind kind, enum topkd_status status, enum sample_mode mode,
                  uint64_t seed, struct wire_reply *reply);

/* Gives the Select or the shape of a LaneOpen this many inline lengths, and as many rows. */
void sample_inline_lengths(struct wire_select_request *select, uint32_t num_lengths, uint64_t seed);

/* Compares every field of the header and of the kind's body. False with the path of the first
 * difference in where[WIRE_DETAIL_SIZE]. */
bool sample_requests_equal(const struct wire_request *a, const struct wire_request *b, char *where);
bool sample_replies_equal(const struct wire_reply *a, const struct wire_reply *b, char *where);

/* Prints "path value" of every field that is not zero or empty, a line each, onto `to`. A field
 * that a later version appends is zero in an old message, so the dump of that message stays the
 * same. */
void sample_request_dump(const struct wire_request *request, FILE *to);
void sample_reply_dump(const struct wire_reply *reply, FILE *to);

/* Does every byte of every struct belong to a field of its table, or to padding that the next field
 * needs? False with the struct and the place: a field was added and its table forgotten. */
bool sample_layouts_complete(char *where);

#ifdef __cplusplus
}
#endif

#endif
