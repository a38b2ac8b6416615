/* The daemon's HTTP pages: what each path gives. */
#include "detail.h"
#include "http.h"
#include "log.h"
#include "metrics.h"
#include "page.h"
#include "supervisor_internal.h"

#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define TEXT_TYPE "text/plain; charset=utf-8"

static struct http_limits limits_of(const struct settings *settings)
{
    return (struct http_limits){.connections_max = settings->http.connections_max,
                                .request_ms = settings->http.request_ms};
}

/* ---- What there is to show ------------------------------------------------------------------- */

static void describe(struct supervisor *supervisor, struct slot *slot,
                     struct metrics_device *device)
{
    bool is_up = slot->state == SLOT_READY || slot->state == SLOT_DRAINING;
    if (slot->figures_page != NULL)
        (void)figures_read(slot->figures_page, &slot->figures); /* else what was read before */
    *device = (struct metrics_device){
        .device = slot->device.device,
        .name = slot->ready.device_name[0] != '\0' ? slot->ready.device_name : slot->device.device,
        .kind = slot_device_kind(slot),
        .state = slot_device_state(slot),
        .epoch = slot->epoch,
        .restarts = slot->num_starts == 0 ? 0 : slot->num_starts - 1,
        .canaries_wrong = slot->num_canaries_wrong,
        .canary_ok = slot->heartbeat.canary_ok != 0,
        .canary_age_ms = is_up && slot->heartbeat.canary_age_ms != CONTROL_CANARY_NEVER
                             ? slot->heartbeat.canary_age_ms
                             : METRICS_NEVER,
        .heard_ago_ms = is_up ? uv_now(&supervisor->loop) - slot->heard_ms : METRICS_NEVER,
        .figures = is_up && slot->figures.epoch == slot->epoch ? &slot->figures : NULL,
    };
}

static void make_view(struct supervisor *supervisor, struct metrics_device *devices,
                      struct metrics_view *view)
{
    const struct http_counters *counters = http_count(supervisor->http);
    struct timeval now;
    uint64_t uptime_ms = uv_now(&supervisor->loop) - supervisor->started_ms;
    gettimeofday(&now, NULL);
    for (uint32_t i = 0; i < supervisor->num_slots; i++)
        describe(supervisor, &supervisor->slots[i], &devices[i]);
    *view = (struct metrics_view){
        .version = TOPKD_VERSION_TEXT,
        .uptime_ms = uptime_ms,
        .started_unix_s = (double)now.tv_sec + (double)now.tv_usec / 1e6 - (double)uptime_ms / 1e3,
        .is_draining = supervisor->is_draining,
        .now_ns = uv_hrtime(),
        .ready_ms = (uint64_t)supervisor->settings.http.ready_ms +
                    supervisor->settings.worker.canary_interval_ms,
        .discovery_requests = supervisor->counters.requests,
        .discovery_failed = supervisor->counters.requests_failed,
        .http_answers = counters->answers,
        .http_refused = counters->refused,
        .http_evicted = counters->evicted,
        .num_devices = supervisor->num_slots,
        .devices = devices,
    };
}

/* ---- Pages ----------------------------------------------------------------------------------- */

static void page_metrics(const struct metrics_view *view, struct http_answer *answer)
{
    answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
    metrics_prometheus(view, &answer->text);
}

static void page_status(const struct metrics_view *view, struct http_answer *answer)
{
    answer->content_type = "application/json";
    metrics_json(view, &answer->text);
}

/* That there is an answer is the answer: it comes from the loop that watches the workers. */
static void page_live(const struct metrics_view *view, struct http_answer *answer)
{
    (void)view;
    textbuf_add(&answer->text, "live\n");
}

static void page_ready(const struct metrics_view *view, struct http_answer *answer)
{
    if (!metrics_ready(view))
        answer->status = 503;
    metrics_readiness(view, &answer->text);
}

static const struct {
    const char *path;
    void (*make)(const struct metrics_view *view, struct http_answer *answer);
} pages[] = {
    {"/metrics", page_metrics},
    {"/status.json", page_status},
    {"/livez", page_live},
    {"/readyz", page_ready},
};

static void on_page(void *owner, const struct http_request *request, struct http_answer *answer)
{
    struct supervisor *supervisor = owner;
    struct metrics_device devices[SETTINGS_DEVICES_MAX];
    struct metrics_view view;
    for (uint32_t i = 0; i < page_num_files; i++) {
        if (strcmp(request->path, page_files[i].path) != 0)
            continue;
        answer->status = 200;
        answer->content_type = page_files[i].content_type;
        answer->fixed = page_files[i].bytes;
        answer->fixed_size = page_files[i].size;
        return;
    }
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        if (strcmp(request->path, pages[i].path) != 0)
            continue;
        answer->status = 200;
        answer->content_type = TEXT_TYPE;
        make_view(supervisor, devices, &view);
        pages[i].make(&view, answer);
        return;
    }
}

/* ---- Open and close -------------------------------------------------------------------------- */

static enum topkd_status open_figures(struct supervisor *supervisor, char *detail)
{
    for (uint32_t i = 0; i < supervisor->num_slots; i++) {
        struct slot *slot = &supervisor->slots[i];
        int error = figures_create(&slot->figures_page, &slot->figures_fd);
        if (error != 0)
            return detail_set(detail, TOPKD_E_SYSTEM, "cannot make a page of figures: %s",
                              strerror(-error));
    }
    return TOPKD_OK;
}

static void close_figures(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->num_slots; i++) {
        struct slot *slot = &supervisor->slots[i];
        figures_close(slot->figures_page);
        slot->figures_page = NULL;
        if (slot->figures_fd >= 0)
            close(slot->figures_fd);
        slot->figures_fd = -1;
    }
}

enum topkd_status supervisor_http_open(struct supervisor *supervisor, char *detail)
{
    const struct settings *settings = &supervisor->settings;
    if (settings->http.port == 0)
        return TOPKD_OK;
    enum topkd_status status = open_figures(supervisor, detail);
    const struct http_config config = {
        .loop = &supervisor->loop,
        .port = (uint16_t)settings->http.port,
        .limits = limits_of(settings),
        .page = on_page,
        .owner = supervisor,
    };
    if (status == TOPKD_OK)
        status = http_open(&config, &supervisor->http, detail);
    if (status != TOPKD_OK) {
        close_figures(supervisor);
        return status;
    }
    log_info("http", "url=http://127.0.0.1:%u/", (unsigned)http_port(supervisor->http));
    return TOPKD_OK;
}

void supervisor_http_configure(struct supervisor *supervisor)
{
    struct http_limits limits = limits_of(&supervisor->settings);
    if (supervisor->http != NULL)
        http_configure(supervisor->http, &limits);
}

void supervisor_http_close(struct supervisor *supervisor)
{
    if (supervisor->http != NULL)
        http_close(supervisor->http);
    supervisor->http = NULL;
    close_figures(supervisor);
}
