/*
 * trace_calls.h - the selections that one long request asks for, call by call.
 *
 * The rule is that of section 6.3 of the paper (arXiv:2609.08450): the query tokens of a request
 * are taken in steps of at most 64K; a step that ends at token N has N columns, and its queries are
 * cut into calls of as many rows as fit a workspace of scores, workspace_scores / N. Query q sees
 * the tokens up to its own, so that its valid length is q + 1.
 *
 * The paper names the calls of two requests, 245K tokens in 4 steps and 26 calls, 430K in 7 and 71,
 * but not its workspace. Of all workspaces only those from 6.0 to 6.15 GiB give these numbers (K
 * being 1024), and so 6 GiB is taken.
 */
#ifndef TOPKD_BENCH_TRACE_CALLS_H
#define TOPKD_BENCH_TRACE_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRACE_STEP_TOKENS 65536
#define TRACE_WORKSPACE_SCORES (6ll << 28) /* 6 GiB of float32 */
#define TRACE_TOKENS_MAX (1 << 24)
#define TRACE_CALLS_MAX 65536

struct trace_request {
    int32_t tokens;           /* of the request, 1 ... TRACE_TOKENS_MAX */
    int32_t step_tokens;      /* query tokens a step at most */
    int64_t workspace_scores; /* rows x width of a call at most; but one row always fits */
};

/* One selection: query tokens [first_token, first_token + rows) against `width` columns. */
struct trace_call {
    int32_t step; /* from 0 */
    int32_t rows, width;
    int32_t first_token; /* row r has first_token + r + 1 valid scores */
};

/*
 * Reads "245K", "430K" or any number of tokens, and "245K/32", the same request at 1/32 of its
 * size: tokens and steps by 32, the workspace by 32 squared, so that the calls stay alike. False
 * when the text is no such number or the scale leaves nothing.
 */
bool trace_request_parse(const char *text, struct trace_request *request_p);

/*
 * Writes the calls in their order and returns their number; when that is above calls_max, only so
 * many were written. A request outside its limits has none.
 */
int32_t trace_calls(const struct trace_request *request, struct trace_call *calls,
                    int32_t calls_max);

/* The valid scores of a call. */
int64_t trace_call_scores(const struct trace_call *call);

#ifdef __cplusplus
}
#endif

#endif
