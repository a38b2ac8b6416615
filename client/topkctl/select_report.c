/* What a person or a program gets to read about a selection. */
#include "json.h"
#include "select.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>

#define PREVIEW_POSITIONS 8u /* choice: a line */

void select_report_json(const struct select_job *job, const struct select_output *output,
                        const struct select_summary *summary)
{
    struct json json = json_of(stdout);
    json_open_object(&json, NULL);
    json_u64(&json, "rows", job->rows);
    json_u64(&json, "width", job->width);
    json_u64(&json, "k", job->k);
    json_string(&json, "order", options_order_name(job->options->order));
    json_string(&json, "ties", options_ties_name(job->options->ties));
    json_string(&json, "dtype", topk_dtype_name(job->dtype));
    json_bool(&json, "deterministic", job->options->deterministic);
    json_string(&json, "where", summary->where);
    json_u64(&json, "blocks", summary->num_blocks);
    json_u64(&json, "select_ns", summary->select_ns);
    json_u64(&json, "total_ns", summary->total_ns);
    json_u64(&json, "retries", summary->num_retries);
    json_u64(&json, "rows_verified", summary->rows_verified);
    if (summary->has_routes) {
        json_open_object(&json, "routes");
        json_u64(&json, "copied", summary->routes.copied);
        json_u64(&json, "direct", summary->routes.direct);
        json_u64(&json, "certified", summary->routes.certified);
        json_u64(&json, "band", summary->routes.band);
        json_u64(&json, "recovery", summary->routes.recovery);
        json_u64(&json, "spill", summary->routes.spill);
        json_u64(&json, "clamped", summary->routes.clamped);
        json_u64(&json, "scores_read", summary->routes.scores_read);
        json_close_object(&json);
    }
    if (job->options->out != NULL || output->kept_rows < job->rows) {
        json_null(&json, "indices");
    } else {
        json_open_array(&json, "indices");
        for (uint32_t row = 0; row < job->rows; row++) {
            json_open_array(&json, NULL);
            for (uint32_t j = 0; j < job->k; j++) {
                json_i64(&json, NULL, output->kept[(size_t)row * job->k + j]);
            }
            json_close_array(&json);
        }
        json_close_array(&json);
    }
    json_close_object(&json);
    json_end(&json);
}

static void print_preview(const struct select_job *job, const struct select_output *output)
{
    for (uint32_t row = 0; row < output->kept_rows; row++) {
        printf("row %u:", row);
        for (uint32_t j = 0; j < job->k && j < PREVIEW_POSITIONS; j++) {
            printf(" %d", output->kept[(size_t)row * job->k + j]);
        }
        puts(job->k > PREVIEW_POSITIONS ? " ..." : "");
    }
    bool cut = output->kept_rows < job->rows || job->k > PREVIEW_POSITIONS;
    if (cut && job->options->out == NULL) {
        puts("--out FILE.npy writes all of them");
    }
}

void select_report_text(const struct select_job *job, const struct select_output *output,
                        const struct select_summary *summary)
{
    char select[TEXT_SIZE];
    char total[TEXT_SIZE];
    printf("%u row%s of %u %s scores, K %u, order %s, ties %s\n", job->rows,
           job->rows == 1 ? "" : "s", job->width, topk_dtype_name(job->dtype), job->k,
           options_order_name(job->options->order), options_ties_name(job->options->ties));
    printf("by %s: selecting %s, in all %s, %" PRIu64 " block%s\n", summary->where,
           text_duration(summary->select_ns, select), text_duration(summary->total_ns, total),
           summary->num_blocks, summary->num_blocks == 1 ? "" : "s");
    if (summary->has_routes) {
        const struct topk_routes *routes = &summary->routes;
        printf("rows by route: copied %" PRIu64 ", direct %" PRIu64 ", certified %" PRIu64
               ", band %" PRIu64 ", recovery %" PRIu64 ", spill %" PRIu64 "\n",
               routes->copied, routes->direct, routes->certified, routes->band, routes->recovery,
               routes->spill);
    }
    if (job->options->verify) {
        printf("verified: %" PRIu64 " of %u rows exact\n", summary->rows_verified, job->rows);
    }
    if (job->options->out != NULL) {
        printf("positions in %s\n", job->options->out);
    }
    if (job->options->values != NULL) {
        printf("scores in %s\n", job->options->values);
    }
    print_preview(job, output);
}
