/* Figures of workers: the page they pass through, and the texts made of them. */
#include "server/figures.h"
#include "server/metrics.h"
#include "server/textbuf.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 5000u

/* ---- The page -------------------------------------------------------------------------------- */

static void fg_01_what_is_written_is_read(void **state)
{
    static struct figures from, to;
    struct figures_page *reader, *writer;
    int fd;
    (void)state;
    assert_int_equal(figures_create(&reader, &fd), 0);
    assert_false(figures_read(reader, &to)); /* nothing yet */
    writer = figures_open(fd);
    assert_non_null(writer);
    memset(&from, 0x5a, sizeof from);
    from.stats.num_buckets = WIRE_BUCKETS_MAX;
    from.num_sessions = FIGURES_SESSIONS_MAX;
    figures_publish(writer, &from);
    assert_true(figures_read(reader, &to));
    assert_memory_equal(&from, &to, sizeof to);
    from.num_sessions = FIGURES_SESSIONS_MAX + 1; /* what another process says is not believed */
    figures_publish(writer, &from);
    assert_false(figures_read(reader, &to));
    assert_int_not_equal(ftruncate(fd, 1), 0); /* nor can it pull the memory away */
    figures_close(writer);
    figures_close(reader);
    close(fd);
    assert_null(figures_open(STDIN_FILENO));
}

static void *write_rounds(void *argument)
{
    static struct figures figures;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        figures.epoch = i;
        figures.stats.requests = i;
        figures.sessions[FIGURES_SESSIONS_MAX - 1].requests = i;
        figures_publish(argument, &figures);
    }
    return NULL;
}

static void fg_02_never_half_of_one(void **state)
{
    static struct figures figures;
    struct figures_page *reader, *writer;
    int fd;
    pthread_t thread;
    uint64_t last = 0;
    (void)state;
    assert_int_equal(figures_create(&reader, &fd), 0);
    writer = figures_open(fd);
    assert_non_null(writer);
    assert_int_equal(pthread_create(&thread, NULL, write_rounds, writer), 0);
    while (last < ROUNDS) {
        if (!figures_read(reader, &figures))
            continue;
        assert_true(figures.epoch >= last);
        last = figures.epoch;
        assert_int_equal(figures.stats.requests, last);
        assert_int_equal(figures.sessions[FIGURES_SESSIONS_MAX - 1].requests, last);
    }
    pthread_join(thread, NULL);
    figures_close(writer);
    figures_close(reader);
    close(fd);
}

/* A worker that dies while it writes leaves an odd number; the next life goes on from there. */
static void fg_03_a_writer_that_died(void **state)
{
    static struct figures figures = {.epoch = 7}, to;
    struct figures_page *reader, *writer;
    int fd;
    (void)state;
    assert_int_equal(figures_create(&reader, &fd), 0);
    writer = figures_open(fd);
    assert_non_null(writer);
    figures_publish(writer, &figures);
    __atomic_add_fetch((uint64_t *)writer, 1, __ATOMIC_RELAXED);
    assert_false(figures_read(reader, &to));
    figures.epoch = 8;
    figures_publish(writer, &figures);
    assert_true(figures_read(reader, &to));
    assert_int_equal(to.epoch, 8);
    figures_close(writer);
    figures_close(reader);
    close(fd);
}

static void fg_04_count(void **state)
{
    struct figures_tally tally = {.canaries = 0};
    (void)state;
    figures_count(&tally, TOPKD_E_CLOSED); /* the last one */
    figures_count(&tally, (enum topkd_status)FIGURES_STATUSES);
    figures_count(&tally, (enum topkd_status) - 1);
    assert_int_equal(tally.by_status[TOPKD_E_CLOSED], 1);
    assert_int_equal(tally.canaries, 0);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static void text_is(struct textbuf *text, const char *wanted)
{
    assert_false(text->has_failed);
    assert_int_equal(text->size, strlen(wanted));
    assert_memory_equal(text->data, wanted, text->size);
    textbuf_fini(text);
}

static void tx_01_textbuf(void **state)
{
    struct textbuf text;
    (void)state;
    textbuf_init(&text);
    textbuf_quote(&text, "a\"b\\c\n\x01\xc3\xa9");
    text_is(&text, "\"a\\\"b\\\\c????\"");
    textbuf_seconds(&text, 0);
    textbuf_add(&text, " ");
    textbuf_seconds(&text, 1);
    textbuf_add(&text, " ");
    textbuf_seconds(&text, UINT64_C(1) << 36);
    textbuf_add(&text, " ");
    textbuf_seconds(&text, 1500000000);
    text_is(&text, "0 0.000000001 68.719476736 1.5");
    char *much = calloc(1, TEXTBUF_SIZE_MAX);
    assert_non_null(much);
    textbuf_bytes(&text, much, TEXTBUF_SIZE_MAX);
    assert_false(text.has_failed);
    textbuf_bytes(&text, much, 1);
    assert_true(text.has_failed);
    assert_int_equal(text.size, TEXTBUF_SIZE_MAX);
    textbuf_fini(&text);
    free(much);
}

static bool has(const struct textbuf *text, const char *line)
{
    return memmem(text->data, text->size, line, strlen(line)) != NULL;
}

static uint32_t count_of(const struct textbuf *text, const char *part)
{
    uint32_t count = 0;
    const char *at = text->data;
    while ((at = memmem(at, (size_t)(text->data + text->size - at), part, strlen(part))) != NULL) {
        at += strlen(part);
        count++;
    }
    return count;
}

static struct metrics_device ready_device(const struct figures *figures)
{
    return (struct metrics_device){
        .device = "GPU-0",
        .name = "a \"fast\" one",
        .kind = WIRE_DEVICE_CUDA,
        .state = WIRE_DEVICE_READY,
        .epoch = 5,
        .canary_ok = true,
        .canary_age_ms = 100,
        .heard_ago_ms = 50,
        .figures = figures,
    };
}

static void mt_01_readiness(void **state)
{
    struct metrics_device device = ready_device(NULL);
    struct metrics_view view = {
        .version = "1", .ready_ms = 150, .num_devices = 1, .devices = &device};
    (void)state;
    assert_null(metrics_not_ready(&view, &device));
    assert_true(metrics_ready(&view));
    device.canary_age_ms = 101; /* one millisecond more than it may be */
    assert_string_equal(metrics_not_ready(&view, &device), "no selection has ended lately");
    device.canary_age_ms = 0;
    device.heard_ago_ms = 151;
    assert_string_equal(metrics_not_ready(&view, &device), "its worker is silent");
    device = ready_device(NULL);
    device.canary_ok = false;
    assert_string_equal(metrics_not_ready(&view, &device), "the last selection was wrong");
    device.canary_age_ms = METRICS_NEVER;
    assert_string_equal(metrics_not_ready(&view, &device), "no selection has been tried yet");
    for (int i = 0; i < 4; i++) {
        device = ready_device(NULL);
        device.state = (enum wire_device_state)i;
        assert_int_equal(metrics_ready(&view), i == WIRE_DEVICE_READY);
    }
    device = ready_device(NULL);
    view.is_draining = true;
    assert_false(metrics_ready(&view));
    view.is_draining = false;
    view.num_devices = 0; /* nobody to serve is not ready */
    assert_false(metrics_ready(&view));
}

static void mt_02_prometheus(void **state)
{
    static struct figures figures;
    struct metrics_device device = ready_device(&figures);
    struct metrics_view view = {
        .version = "1.2", .ready_ms = 150, .num_devices = 1, .devices = &device};
    struct textbuf text;
    (void)state;
    memset(&figures, 0, sizeof figures);
    figures.stats.request_ns_bins[0] = 1;  /* below the first bucket */
    figures.stats.request_ns_bins[10] = 2; /* [1.024, 2.048) us */
    figures.stats.request_ns_bins[WIRE_HISTOGRAM_BINS - 1] = 4;
    figures.stats.request_ns_sum = 1234567890;
    figures.tally.by_status[TOPKD_E_BUSY] = 3;
    figures.stats.num_buckets = 2;
    figures.stats.buckets[0] = (struct wire_bucket_stats){
        .bucket = 1, .rows = 64, .width = 131072, .k = 2048, .requests = 9};
    figures.buckets[0] = (struct figures_bucket){
        .alignment_bytes = 16, .order = 1, .ties = 1, .has_values = true, .misses = 2};
    textbuf_init(&text);
    metrics_prometheus(&view, &text);
    assert_true(has(&text, "topkd_build_info{version=\"1.2\",wire=\"1\"} 1\n"));
    assert_true(has(&text, "topkd_requests_total{device=\"GPU-0\",code=\"busy\"} 3\n"));
    assert_true(
        has(&text, "_request_duration_seconds_bucket{device=\"GPU-0\",le=\"0.000002048\"} 3\n"));
    assert_true(
        has(&text, "_request_duration_seconds_bucket{device=\"GPU-0\",le=\"68.719476736\"} 3\n"));
    assert_true(has(&text, "_request_duration_seconds_bucket{device=\"GPU-0\",le=\"+Inf\"} 7\n"));
    assert_true(has(&text, "_request_duration_seconds_sum{device=\"GPU-0\"} 1.23456789\n"));
    assert_true(has(&text, "topkd_graph_replays_total{device=\"GPU-0\",bucket=\"64x131072x2048\","
                           "variant=\"index,lowest,scores,16-byte\"} 7\n"));
    assert_true(has(&text, "topkd_graph_misses_total{device=\"GPU-0\",bucket=\"64x131072x2048\","
                           "variant=\"index,lowest,scores,16-byte\"} 2\n"));
    assert_true(has(&text, "name=\"a \\\"fast\\\" one\"} 1\n"));
    assert_int_equal(count_of(&text, "topkd_bucket_requests_total{"),
                     1);   /* none of the empty place */
    device.figures = NULL; /* of a worker that is down there is nothing but that */
    device.state = WIRE_DEVICE_DOWN;
    textbuf_fini(&text);
    metrics_prometheus(&view, &text);
    assert_true(has(&text, "topkd_device_ready{device=\"GPU-0\"} 0\n"));
    assert_false(has(&text, "topkd_sessions{"));
    textbuf_fini(&text);
}

/* As many devices, buckets and sessions as there may be stay below the limit of a text. */
static void mt_03_the_largest(void **state)
{
    static struct figures figures;
    static struct metrics_device devices[WIRE_DEVICES_MAX];
    struct metrics_view view = {
        .version = "1", .num_devices = WIRE_DEVICES_MAX, .devices = devices};
    struct textbuf text;
    (void)state;
    memset(&figures, 0xff, sizeof figures);
    figures.stats.num_buckets = WIRE_BUCKETS_MAX;
    figures.num_sessions = FIGURES_SESSIONS_MAX;
    for (uint32_t i = 0; i < WIRE_BUCKETS_MAX; i++)
        figures.buckets[i] = (struct figures_bucket){.alignment_bytes = UINT32_MAX,
                                                     .order = 2,
                                                     .ties = 1,
                                                     .has_values = true,
                                                     .has_page_table = true,
                                                     .has_row_offsets = true};
    for (uint32_t i = 0; i < WIRE_DEVICES_MAX; i++)
        devices[i] = ready_device(&figures);
    textbuf_init(&text);
    metrics_prometheus(&view, &text);
    assert_false(text.has_failed);
    textbuf_fini(&text);
    metrics_json(&view, &text);
    assert_false(text.has_failed);
    textbuf_fini(&text);
    metrics_readiness(&view, &text);
    assert_false(text.has_failed);
    textbuf_fini(&text);
}

static void mt_04_variants(void **state)
{
    char out[METRICS_VARIANT_SIZE];
    (void)state;
    struct figures_bucket bucket = {.alignment_bytes = 4};
    assert_string_equal(metrics_variant(&bucket, out), "4-byte");
    bucket = (struct figures_bucket){.alignment_bytes = UINT32_MAX,
                                     .order = 2,
                                     .ties = 1,
                                     .has_values = true,
                                     .has_page_table = true,
                                     .has_row_offsets = true};
    assert_string_equal(metrics_variant(&bucket, out),
                        "value,lowest,scores,pages,offsets,4294967295-byte");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fg_01_what_is_written_is_read),
        cmocka_unit_test(fg_02_never_half_of_one),
        cmocka_unit_test(fg_03_a_writer_that_died),
        cmocka_unit_test(fg_04_count),
        cmocka_unit_test(tx_01_textbuf),
        cmocka_unit_test(mt_01_readiness),
        cmocka_unit_test(mt_02_prometheus),
        cmocka_unit_test(mt_03_the_largest),
        cmocka_unit_test(mt_04_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
