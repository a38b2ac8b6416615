/*
 * bench_wire.c - what encoding and decoding a message costs, in nanoseconds.
 *
 *     bench_wire [ROUNDS]
 *
 * Each figure is the median (and the best) of ROUNDS rounds (101 by default) of 2000 messages, one
 * thread, everything in the cache: what the codec itself adds to a request. The messages are those
 * of tests/support/wire_sample.h, with the numbers at random.
 */
#include "bench_args.h"
#include "wire_sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NUM_MESSAGES 2000u /* a round: long against the clock, short against a time slice */
#define ROUNDS_MAX 10001
#define SEED 7u

static struct wire_request request;
static struct wire_reply reply;
static struct wire_buffer buffer;
static uint8_t bytes[WIRE_MESSAGE_SIZE_MAX];
static size_t size;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(enum topkd_status status, const char *detail)
{
    if (status == TOPKD_OK)
        return;
    fprintf(stderr, "bench_wire: %s: %s\n", wire_status_name(status), detail);
    exit(1);
}

static void request_encode(void)
{
    char detail[WIRE_DETAIL_SIZE];
    must(wire_request_encode(&request, bytes, sizeof(bytes), &size, detail), detail);
}

static void request_decode(void)
{
    static struct wire_request decoded;
    char detail[WIRE_DETAIL_SIZE];
    must(wire_request_decode(bytes, size, &buffer, &decoded, detail), detail);
}

static void reply_encode(void)
{
    char detail[WIRE_DETAIL_SIZE];
    must(wire_reply_encode(&reply, bytes, sizeof(bytes), &size, detail), detail);
}

static void reply_decode(void)
{
    static struct wire_reply decoded;
    char detail[WIRE_DETAIL_SIZE];
    must(wire_reply_decode(bytes, size, &buffer, &decoded, detail), detail);
}

/* Median and best time of one call. */
static void measure(void (*step)(void), unsigned num_rounds, double *median_p, double *best_p)
{
    static double round_ns[ROUNDS_MAX];
    for (unsigned round = 0; round < num_rounds; round++) {
        const double start = now_ns();
        for (unsigned i = 0; i < NUM_MESSAGES; i++)
            step();
        round_ns[round] = (now_ns() - start) / NUM_MESSAGES;
    }
    qsort(round_ns, num_rounds, sizeof(round_ns[0]), by_value);
    *median_p = round_ns[num_rounds / 2];
    *best_p = round_ns[0];
}

static void report(const char *name, void (*encode)(void), void (*decode)(void),
                   unsigned num_rounds)
{
    double encode_ns, encode_best_ns, decode_ns, decode_best_ns;
    measure(encode, num_rounds, &encode_ns, &encode_best_ns);
    measure(decode, num_rounds, &decode_ns, &decode_best_ns);
    printf("message=%-22s bytes=%-6zu encode_ns=%-7.0f decode_ns=%-7.0f both_ns=%-7.0f "
           "best_both_ns=%.0f\n",
           name, size, encode_ns, decode_ns, encode_ns + decode_ns,
           encode_best_ns + decode_best_ns);
}

int main(int argc, char **argv)
{
    bench_args(argc, argv, 0, 1,
               "usage: bench_wire [ROUNDS]     (101)\n"
               "Times encoding and decoding a message: median and best of ROUNDS rounds.\n");
    const int num_rounds = bench_integer(argc, argv, 1, "ROUNDS", 1, ROUNDS_MAX, 101);
    static const uint32_t counts[] = {0, 64, WIRE_LENGTHS_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        char name[64];
        sample_request(WIRE_SELECT, SAMPLE_MAX, SEED, &request);
        if (counts[i] > 0)
            sample_inline_lengths(&request.u.select, counts[i], SEED);
        snprintf(name, sizeof(name), "select+%u_lengths", counts[i]);
        report(name, request_encode, request_decode, (unsigned)num_rounds);
    }
    sample_request(WIRE_REGISTER, SAMPLE_RANDOM, SEED, &request);
    report("register", request_encode, request_decode, (unsigned)num_rounds);
    sample_reply(WIRE_SELECT, TOPKD_OK, SAMPLE_MAX, SEED, &reply);
    reply.detail[0] = '\0'; /* as in every successful answer */
    report("select_reply", reply_encode, reply_decode, (unsigned)num_rounds);
    sample_reply(WIRE_SELECT, TOPKD_E_BUSY, SAMPLE_RANDOM, SEED, &reply);
    report("error_reply", reply_encode, reply_decode, (unsigned)num_rounds);
    sample_reply(WIRE_STATS, TOPKD_OK, SAMPLE_MAX, SEED, &reply);
    report("stats_reply", reply_encode, reply_decode, (unsigned)num_rounds);
    sample_reply(WIRE_SESSIONS, TOPKD_OK, SAMPLE_MAX, SEED, &reply);
    report("sessions_reply", reply_encode, reply_decode, (unsigned)(num_rounds + 9) / 10);
    return 0;
}
