/* The calls of a long request; see trace_calls.h. */
#include "trace_calls.h"

#include <stdlib.h>

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

bool trace_request_parse(const char *text, struct trace_request *request_p)
{
    char *end;
    long tokens = strtol(text, &end, 10), scale = 1;
    if (end == text || tokens < 1 || tokens > TRACE_TOKENS_MAX) {
        return false;
    }
    if (*end == 'K') {
        tokens *= 1024;
        end++;
    }
    if (*end == '/') {
        const char *digits = end + 1;
        scale = strtol(digits, &end, 10);
        if (end == digits || scale < 1 || scale > TRACE_STEP_TOKENS) {
            return false;
        }
    }
    if (*end != '\0' || tokens > TRACE_TOKENS_MAX || tokens / scale < 1) {
        return false;
    }
    *request_p = (struct trace_request){
        .tokens = (int32_t)(tokens / scale),
        .step_tokens = (int32_t)(TRACE_STEP_TOKENS / scale),
        .workspace_scores = TRACE_WORKSPACE_SCORES / scale / scale,
    };
    return true;
}

int32_t trace_calls(const struct trace_request *request, struct trace_call *calls,
                    int32_t calls_max)
{
    int32_t count = 0, step = 0, done = 0;
    if (request->tokens < 1 || request->tokens > TRACE_TOKENS_MAX || request->step_tokens < 1) {
        return 0;
    }
    while (done < request->tokens) {
        int32_t width = (int32_t)min_i64((int64_t)done + request->step_tokens, request->tokens);
        int64_t fitting = request->workspace_scores / width;
        while (done < width) {
            int32_t rows = (int32_t)min_i64(fitting > 1 ? fitting : 1, width - done);
            if (count < calls_max) {
                calls[count] = (struct trace_call){
                    .step = step, .rows = rows, .width = width, .first_token = done};
            }
            count++;
            done += rows;
        }
        step++;
    }
    return count;
}

int64_t trace_call_scores(const struct trace_call *call)
{
    int64_t rows = call->rows, first = call->first_token;
    return rows * first + rows * (rows + 1) / 2;
}
