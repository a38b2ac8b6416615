/* What both formats share: names, readiness. */
#include "metrics.h"

#include "topk_select.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const metrics_route_names[METRICS_ROUTES] = {"copied", "direct",   "certified",
                                                         "band",   "recovery", "spill"};

const char *const metrics_end_names[FIGURES_ENDS] = {
#define END_LABEL(name, label, text) label,
    FIGURES_END_TABLE(END_LABEL)
#undef END_LABEL
};

const char *const metrics_state_names[4] = {"starting", "ready", "draining", "down"};

const char *metrics_code(enum topkd_status status, char *out)
{
    const char *name = wire_status_name(status);
    static const char *const prefixes[] = {"TOPKD_E_", "TOPKD_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            break;
        }
    size_t length = 0;
    for (; name[length] != '\0' && length + 1 < WIRE_NAME_SIZE; length++)
        out[length] = (char)tolower((unsigned char)name[length]);
    out[length] = '\0';
    return out;
}

void metrics_routes(const struct wire_stats_reply *stats, uint64_t counts[METRICS_ROUTES])
{
    const uint64_t rows[METRICS_ROUTES] = {stats->rows_copied,    stats->rows_direct,
                                           stats->rows_certified, stats->rows_band,
                                           stats->rows_recovery,  stats->rows_spill};
    memcpy(counts, rows, sizeof rows);
}

const char *metrics_variant(const struct figures_bucket *bucket, char *out)
{
    const struct {
        bool is_given;
        const char *word;
    } parts[] = {
        {bucket->dtype != TOPK_DTYPE_FLOAT32, topk_dtype_name((enum topk_dtype)bucket->dtype)},
        {bucket->order == TOPK_ORDER_INDEX, "index"},
        {bucket->order == TOPK_ORDER_VALUE, "value"},
        {bucket->ties == TOPK_TIES_LOWEST, "lowest"},
        {bucket->has_values, "scores"},
        {bucket->has_page_table, "pages"},
        {bucket->has_row_offsets, "offsets"},
    };
    int used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].is_given)
            used += snprintf(out + used, METRICS_VARIANT_SIZE - (size_t)used, "%s%s",
                             used > 0 ? "," : "", parts[i].word);
    (void)snprintf(out + used, METRICS_VARIANT_SIZE - (size_t)used, "%s%u-byte",
                   used > 0 ? "," : "", bucket->alignment_bytes);
    return out;
}

/* ---- Readiness ------------------------------------------------------------------------------- */

/* Age of the last right canary now; the worker told its age at its last heartbeat. */
static uint64_t canary_age_ms(const struct metrics_device *device)
{
    if (device->canary_age_ms == METRICS_NEVER || device->heard_ago_ms == METRICS_NEVER)
        return METRICS_NEVER;
    return device->canary_age_ms + device->heard_ago_ms;
}

const char *metrics_not_ready(const struct metrics_view *view, const struct metrics_device *device)
{
    if (device->state != WIRE_DEVICE_READY)
        return metrics_state_names[device->state];
    if (canary_age_ms(device) == METRICS_NEVER)
        return "no selection has been tried yet";
    if (!device->canary_ok)
        return "the last selection was wrong";
    if (canary_age_ms(device) <= view->ready_ms)
        return NULL;
    return device->heard_ago_ms > view->ready_ms / 2 ? "its worker is silent"
                                                     : "no selection has ended lately";
}

bool metrics_ready(const struct metrics_view *view)
{
    bool is_ready = !view->is_draining && view->num_devices > 0;
    for (uint32_t i = 0; i < view->num_devices && is_ready; i++)
        is_ready = metrics_not_ready(view, &view->devices[i]) == NULL;
    return is_ready;
}

void metrics_readiness(const struct metrics_view *view, struct textbuf *text)
{
    textbuf_add(text, "%s\n",
                metrics_ready(view) ? "ready" : (view->is_draining ? "draining" : "not ready"));
    for (uint32_t i = 0; i < view->num_devices; i++) {
        const struct metrics_device *device = &view->devices[i];
        const char *reason = metrics_not_ready(view, device);
        uint64_t age_ms = canary_age_ms(device);
        textbuf_add(text, "%s: %s", device->device, reason == NULL ? "ready" : reason);
        if (age_ms != METRICS_NEVER) {
            textbuf_add(text, "; last right selection ");
            textbuf_seconds(text, age_ms * 1000000);
            textbuf_add(text, " s ago");
        }
        textbuf_add(text, ", at most ");
        textbuf_seconds(text, view->ready_ms * 1000000);
        textbuf_add(text, " s are ready\n");
    }
}
