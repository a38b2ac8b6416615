/* Selecting through the daemon: blocks of rows pass through one shared buffer. */
#include "select.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT                                                                                  \
    UINT64_C(128) /* of each tensor in the buffer: what the widest device reads at once */

/* Where the tensors of a block lie in the buffer, in bytes. */
struct layout {
    uint64_t scores, lengths, row_offsets, page_table, indices, values, end;
};

struct daemon {
    const struct select_job *job;
    struct topkd_client *client;
    struct topkd_buffer *buffer;
    struct layout layout;
};

static void daemon_close(void *state)
{
    struct daemon *daemon = state;
    topkd_buffer_destroy(daemon->buffer);
    topkd_client_close(daemon->client);
    free(daemon);
}

static uint64_t place(uint64_t *end, bool present, uint64_t elements, uint32_t element_bytes)
{
    uint64_t start = *end;
    *end += present ? (elements * element_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
    return start;
}

static struct layout layout_of(const struct select_job *job, uint64_t rows)
{
    struct layout layout = {0};
    uint64_t end = 0;
    layout.scores = place(&end, true, rows * job->width, topk_dtype_bytes(job->dtype));
    layout.lengths = place(&end, job->lengths.map != NULL, rows, 4);
    layout.row_offsets = place(&end, job->row_offsets.map != NULL, rows, 4);
    layout.page_table = place(&end, job->page_table.map != NULL, rows * job->page_table_width, 4);
    layout.indices = place(&end, true, rows * job->k, 4);
    layout.values = place(&end, job->want_values, rows * job->k, 4);
    layout.end = end;
    return layout;
}

/* Everything of one device that bounds a block. */
static enum ctl_exit choose_block(const struct select_job *job,
                                  const struct topkd_client_info *info, uint32_t *block_rows_p)
{
    if (info->device_kind != TOPKD_DEVICE_CPU) {
        return report_failure(
            job->options, CTL_EXIT_FAILED,
            "select: device %s keeps its buffers in its own memory, and files are "
            "read by the CPU: name a CPU device with --device, or use --local",
            info->device);
    }
    uint64_t slack = 6 * ALIGNMENT;
    uint64_t row_bytes = select_row_bytes(job);
    if (job->width > info->width_max || job->k > info->k_max ||
        row_bytes + slack > info->region_bytes_max) {
        return report_failure(job->options, CTL_EXIT_FAILED,
                              "select: one row has %u scores, K %u and %" PRIu64
                              " bytes; device %s takes at most "
                              "%" PRIu64 ", %u and %" PRIu64 ": raise its limits, or use --local",
                              job->width, job->k, row_bytes, info->device, info->width_max,
                              info->k_max, info->region_bytes_max);
    }
    uint64_t bytes_max = info->region_bytes_max - slack;
    bytes_max = bytes_max < SELECT_BLOCK_BYTES ? bytes_max : SELECT_BLOCK_BYTES;
    uint32_t block_rows = select_block_rows(job, row_bytes, bytes_max);
    *block_rows_p = block_rows < info->rows_max ? block_rows : (uint32_t)info->rows_max;
    return CTL_EXIT_OK;
}

static enum ctl_exit daemon_open(const struct select_job *job, void **state_p,
                                 uint32_t *block_rows_p, struct select_summary *summary)
{
    struct daemon *daemon = calloc(1, sizeof(*daemon));
    if (daemon == NULL) {
        return report_failure(job->options, CTL_EXIT_FAILED, "select: out of memory");
    }
    daemon->job = job;
    const struct topkd_client_options options = {
        .url = job->options->url,
        .device = job->options->device,
        .name = "topkctl select",
        .timeout_ms = job->options->timeout_ms,
    };
    struct topkd_client_info info;
    enum ctl_exit code = CTL_EXIT_OK;
    enum topkd_status status = topkd_client_open(&options, &daemon->client);
    if (status != TOPKD_OK) {
        daemon->client = NULL;
        goto err_status;
    }
    status = topkd_client_info(daemon->client, &info);
    if (status != TOPKD_OK) {
        goto err_status;
    }
    code = choose_block(job, &info, block_rows_p);
    if (code != CTL_EXIT_OK) {
        goto err_close;
    }
    daemon->layout = layout_of(job, *block_rows_p);
    status = topkd_buffer_create(daemon->client, daemon->layout.end, &daemon->buffer);
    if (status != TOPKD_OK) {
        daemon->buffer = NULL;
        goto err_status;
    }
    snprintf(summary->where, sizeof(summary->where), "device %s, topkd %s", info.device,
             info.server_version);
    *state_p = daemon;
    return CTL_EXIT_OK;

err_status:
    code = report_status(job->options, "select", status, topkd_detail());
err_close:
    daemon_close(daemon);
    return code;
}

/* Copies the rows of one input file and says where they are. */
static struct topkd_tensor fill(const struct daemon *daemon, const struct npy_file *file,
                                uint64_t offset_bytes, const struct select_block *block,
                                uint64_t columns)
{
    if (file->map == NULL) {
        return (struct topkd_tensor){0};
    }
    uint64_t row_bytes = columns * npy_type_bytes(file->view.type);
    memcpy((char *)topkd_buffer_data(daemon->buffer) + offset_bytes,
           (const char *)file->view.data + block->first_row * row_bytes,
           block->num_rows * row_bytes);
    return (struct topkd_tensor){.region = topkd_buffer_region(daemon->buffer),
                                 .offset_bytes = offset_bytes};
}

static enum ctl_exit daemon_run(void *state, struct select_block *block,
                                struct select_summary *summary)
{
    struct daemon *daemon = state;
    const struct select_job *job = daemon->job;
    const struct layout *layout = &daemon->layout;
    struct topkd_region *region = topkd_buffer_region(daemon->buffer);
    struct topkd_select_request request = {
        .scores = fill(daemon, &job->scores, layout->scores, block, job->width),
        .rows = block->num_rows,
        .width = job->width,
        .k = job->k,
        .order = (enum topkd_order)job->options->order,
        .ties = (enum topkd_ties)job->options->ties,
        .dtype = (enum topkd_dtype)job->dtype,
        .deterministic = job->options->deterministic,
        .lengths_mode = job->lengths.map != NULL ? TOPKD_LENGTHS_REGION : TOPKD_LENGTHS_FULL,
        .lengths = fill(daemon, &job->lengths, layout->lengths, block, 1),
        .indices = {.region = region, .offset_bytes = layout->indices},
        .page_table =
            fill(daemon, &job->page_table, layout->page_table, block, job->page_table_width),
        .page_table_width = job->page_table_width,
        .page_size = job->page_table.map != NULL ? 1u << job->options->page_size_log2 : 0,
        .row_offsets = fill(daemon, &job->row_offsets, layout->row_offsets, block, 1),
    };
    if (job->want_values) {
        request.values = (struct topkd_tensor){.region = region, .offset_bytes = layout->values};
    }
    struct topkd_result result;
    enum topkd_status status = topkd_select(daemon->client, &request, &result);
    if (status != TOPKD_OK) {
        char what[64];
        snprintf(what, sizeof(what), "select: rows %u to %u", block->first_row,
                 block->first_row + block->num_rows - 1);
        return report_status(job->options, what, status, topkd_detail());
    }
    summary->select_ns += result.run_ns;
    summary->num_retries += result.num_retries;
    const char *data = topkd_buffer_data(daemon->buffer);
    block->indices = (const int32_t *)(const void *)(data + layout->indices);
    block->values = job->want_values ? (const float *)(const void *)(data + layout->values) : NULL;
    return CTL_EXIT_OK;
}

const struct select_place select_daemon = {daemon_open, daemon_run, daemon_close};
