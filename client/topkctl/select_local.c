/* Selecting in this process: libtopksel reads the mapped file in place. */
#include "progress.h"
#include "select.h"

#include <stdio.h>
#include <stdlib.h>

struct local {
    const struct select_job *job;
    struct topk_cpu *cpu;
    int32_t *indices; /* [block_rows, k] */
    float *values;    /* [block_rows, k], NULL unless wanted */
};

static void local_close(void *state)
{
    struct local *local = state;
    topk_cpu_destroy(local->cpu);
    free(local->indices);
    free(local->values);
    free(local);
}

static enum ctl_exit local_open(const struct select_job *job, void **state_p,
                                uint32_t *block_rows_p, struct select_summary *summary)
{
    struct local *local = calloc(1, sizeof(*local));
    if (local == NULL) {
        return report_failure(job->options, CTL_EXIT_FAILED, "select: out of memory");
    }
    local->job = job;
    uint32_t block_rows = select_block_rows(job, select_row_bytes(job), SELECT_BLOCK_BYTES);
    size_t results = (size_t)block_rows * job->k;
    local->indices = malloc(results * sizeof(*local->indices));
    local->values = job->want_values ? malloc(results * sizeof(*local->values)) : NULL;
    if (local->indices == NULL || (job->want_values && local->values == NULL)) {
        local_close(local);
        return report_failure(job->options, CTL_EXIT_FAILED,
                              "select: out of memory for %zu results of %u rows", results,
                              block_rows);
    }
    const struct topk_cpu_config config = {.num_threads = job->options->num_threads};
    char detail[TOPK_DETAIL_SIZE] = "";
    enum topk_status status = topk_cpu_create(&config, &local->cpu, detail);
    if (status != TOPK_OK) {
        local->cpu = NULL;
        local_close(local);
        return report_failure(job->options, CTL_EXIT_FAILED, "select: %s: %s",
                              topk_strerror(status), detail);
    }
    uint32_t num_threads = topk_cpu_num_threads(local->cpu);
    snprintf(summary->where, sizeof(summary->where), "this process, %u thread%s, %s", num_threads,
             num_threads == 1 ? "" : "s", topk_cpu_isa(local->cpu));
    summary->has_routes = true;
    *state_p = local;
    *block_rows_p = block_rows;
    return CTL_EXIT_OK;
}

/* The row `first_row` of a file with one row of `columns` int32 a score row; NULL without one. */
static const int32_t *rows_from(const struct npy_file *file, uint32_t first_row, uint32_t columns)
{
    return file->map == NULL ? NULL
                             : (const int32_t *)file->view.data + (size_t)first_row * columns;
}

static enum ctl_exit local_run(void *state, struct select_block *block,
                               struct select_summary *summary)
{
    struct local *local = state;
    const struct select_job *job = local->job;
    const struct topk_args args = {
        .scores = (const char *)job->scores.view.data +
                  (size_t)block->first_row * job->width * topk_dtype_bytes(job->dtype),
        .row_stride = job->width,
        .lengths = rows_from(&job->lengths, block->first_row, 1),
        .indices = local->indices,
        .index_stride = job->k,
        .values = local->values,
        .value_stride = job->k,
        .page_table = rows_from(&job->page_table, block->first_row, job->page_table_width),
        .page_table_stride = job->page_table_width,
        .row_offsets = rows_from(&job->row_offsets, block->first_row, 1),
        .routes = &summary->routes,
        .num_rows = (int32_t)block->num_rows,
        .width = (int32_t)job->width,
        .length_all = (int32_t)job->width,
        .k = (int32_t)job->k,
        .page_table_width = (int32_t)job->page_table_width,
        .page_size_log2 = job->options->page_size_log2,
    };
    const struct topk_options options = {
        .order = job->options->order, .ties = job->options->ties, .dtype = job->dtype};
    char detail[TOPK_DETAIL_SIZE] = "";
    uint64_t start_ns = progress_now_ns();
    enum topk_status status = topk_cpu_select(local->cpu, &args, &options, NULL, detail);
    summary->select_ns += progress_now_ns() - start_ns;
    if (status != TOPK_OK) {
        return report_failure(job->options, CTL_EXIT_FAILED, "select: rows %u to %u: %s: %s",
                              block->first_row, block->first_row + block->num_rows - 1,
                              topk_strerror(status), detail);
    }
    block->indices = local->indices;
    block->values = local->values;
    return CTL_EXIT_OK;
}

const struct select_place select_local = {local_open, local_run, local_close};
