/* The calls of a long request against what the paper says of them, and against the rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "bench/trace_calls.h"

static struct trace_call calls[TRACE_CALLS_MAX];

/* Writes the calls of a request and holds them to the rule; returns their number. */
static int32_t check(const struct trace_request *request)
{
    int32_t count = trace_calls(request, calls, TRACE_CALLS_MAX);
    int64_t scores = 0;
    int32_t token = 0, step = 0, step_begin = 0;
    assert_in_range(count, 1, TRACE_CALLS_MAX);
    for (int32_t i = 0; i < count; i++) {
        const struct trace_call *call = &calls[i];
        if (call->step != step) {
            assert_int_equal(call->step, step + 1);
            assert_int_equal(token, step_begin + request->step_tokens);
            step = call->step;
            step_begin = token;
        }
        assert_int_equal(call->first_token, token);
        assert_true(call->rows >= 1);
        assert_true((int64_t)call->rows * call->width <= request->workspace_scores ||
                    call->rows == 1);
        token += call->rows;
        assert_true(token <= call->width);
        assert_true(call->width <= step_begin + request->step_tokens);
        scores += trace_call_scores(call);
    }
    assert_int_equal(token, request->tokens);
    assert_int_equal(scores, (int64_t)request->tokens * (request->tokens + 1) / 2);
    return count;
}

static void the_papers_requests(void **state)
{
    (void)state;
    struct trace_request request;
    assert_true(trace_request_parse("245K", &request));
    assert_int_equal(request.tokens, 250880);
    assert_int_equal(check(&request), 26);
    assert_int_equal(calls[25].step + 1, 4);
    assert_int_equal(calls[0].rows, 24576);
    assert_int_equal(calls[0].width, 65536);
    assert_int_equal(calls[25].width, 250880);
    assert_true(trace_request_parse("430K", &request));
    assert_int_equal(check(&request), 71);
    assert_int_equal(calls[70].step + 1, 7);
}

/* What the header claims: no other workspace of whole GiB gives the paper's numbers. */
static void only_one_workspace_fits(void **state)
{
    (void)state;
    for (int64_t gib = 1; gib <= 64; gib++) {
        struct trace_request small, large;
        assert_true(trace_request_parse("245K", &small));
        assert_true(trace_request_parse("430K", &large));
        small.workspace_scores = large.workspace_scores = gib << 28;
        bool fits = check(&small) == 26 && check(&large) == 71;
        assert_int_equal(fits, gib == 6);
    }
}

static void scaled_requests_have_the_same_calls(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"245K/8", "430K/8"}, {"245K/32", "430K/32"}, {"245K/64", "430K/64"}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct trace_request request;
        assert_true(trace_request_parse(texts[i][0], &request));
        assert_int_equal(check(&request), 26);
        assert_true(trace_request_parse(texts[i][1], &request));
        assert_int_equal(check(&request), 71);
    }
}

static void edges_of_the_rule(void **state)
{
    (void)state;
    struct trace_request one = {.tokens = 1, .step_tokens = 1, .workspace_scores = 1};
    assert_int_equal(check(&one), 1);
    struct trace_request narrow = {.tokens = 1000, .step_tokens = 300, .workspace_scores = 10};
    assert_int_equal(check(&narrow), 1000); /* a row a call, however wide */
    struct trace_request exact = {.tokens = 600, .step_tokens = 300, .workspace_scores = 90000};
    assert_int_equal(check(&exact), 3);
    struct trace_call few[2];
    assert_int_equal(trace_calls(&narrow, few, 2), 1000);
    assert_int_equal(few[1].first_token, 1);
    struct trace_request wrong = {.tokens = 0, .step_tokens = 1, .workspace_scores = 1};
    assert_int_equal(trace_calls(&wrong, few, 2), 0);
    wrong.tokens = TRACE_TOKENS_MAX + 1;
    assert_int_equal(trace_calls(&wrong, few, 2), 0);
}

static void texts_that_are_no_request(void **state)
{
    (void)state;
    static const char *const texts[] = {"",       "K",       "0",     "-1K",  "245k", "245K/",
                                        "245K/0", "245K/-2", "245Kx", "16M",  "1/2",  "99999999",
                                        "20000K", "/2",      "2K/2K", "245K "};
    struct trace_request request;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_false(trace_request_parse(texts[i], &request));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_papers_requests),
        cmocka_unit_test(only_one_workspace_fits),
        cmocka_unit_test(scaled_requests_have_the_same_calls),
        cmocka_unit_test(edges_of_the_rule),
        cmocka_unit_test(texts_that_are_no_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
