/* The job: input files opened and checked against each other, and how many rows make a block. */
#include "select.h"

#include <inttypes.h>

static enum ctl_exit refuse_type(const struct select_job *job, const char *path, enum npy_type is,
                                 enum npy_type needed)
{
    return report_failure(
        job->options, CTL_EXIT_FAILED,
        "%s holds %s, %s is needed here: a = np.load(FILE); np.save(FILE, a.astype('%s'))", path,
        npy_type_name(is), npy_type_name(needed), npy_type_descr(needed));
}

static enum ctl_exit open_any(const struct select_job *job, const char *path, struct npy_file *file)
{
    char detail[NPY_DETAIL_SIZE];
    return npy_open(path, file, detail) == NPY_OK
               ? CTL_EXIT_OK
               : report_failure(job->options, CTL_EXIT_FAILED, "%s", detail);
}

/* A file of int32; none without a path. */
static enum ctl_exit open_file(const struct select_job *job, const char *path,
                               struct npy_file *file)
{
    enum ctl_exit code = path == NULL ? CTL_EXIT_OK : open_any(job, path, file);
    if (code == CTL_EXIT_OK && path != NULL && file->view.type != NPY_INT32) {
        code = refuse_type(job, path, file->view.type, NPY_INT32);
    }
    return code;
}

/* The type of the scores: what the file says, or --dtype where it has unnamed elements. */
static enum ctl_exit open_scores(struct select_job *job)
{
    const struct ctl_options *options = job->options;
    enum ctl_exit code = open_any(job, options->operand, &job->scores);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    enum npy_type type = job->scores.view.type;
    if (type == NPY_INT32) {
        return refuse_type(job, options->operand, type, NPY_FLOAT32);
    }
    job->dtype = options->dtype_given  ? options->dtype
                 : type == NPY_FLOAT16 ? TOPK_DTYPE_FLOAT16
                                       : TOPK_DTYPE_FLOAT32;
    if (type == NPY_BYTES2 && job->dtype == TOPK_DTYPE_FLOAT32) {
        return report_failure(options, CTL_EXIT_FAILED,
                              "%s holds %s: say what they are with --dtype bfloat16 or float16",
                              options->operand, npy_type_name(type));
    }
    if ((type == NPY_FLOAT32 && job->dtype != TOPK_DTYPE_FLOAT32) ||
        (type == NPY_FLOAT16 && job->dtype != TOPK_DTYPE_FLOAT16)) {
        return report_failure(options, CTL_EXIT_FAILED,
                              "%s holds %s, and --dtype says %s; leave --dtype out",
                              options->operand, npy_type_name(type), topk_dtype_name(job->dtype));
    }
    return CTL_EXIT_OK;
}

/* One number a score row, as (rows,), (rows, 1) or (1, rows). */
static enum ctl_exit check_vector(const struct select_job *job, const char *path,
                                  const struct npy_file *file)
{
    const struct npy_view *view = &file->view;
    uint64_t count = view->rows * view->columns;
    if (file->map == NULL || (count == job->rows && (view->rows == 1 || view->columns == 1))) {
        return CTL_EXIT_OK;
    }
    return report_failure(job->options, CTL_EXIT_FAILED,
                          "%s holds %" PRIu64 " x %" PRIu64
                          " numbers; one for each of the %u score "
                          "rows is needed",
                          path, view->rows, view->columns, job->rows);
}

static enum ctl_exit check_page_table(struct select_job *job)
{
    const struct npy_view *view = &job->page_table.view;
    if (job->page_table.map == NULL) {
        return CTL_EXIT_OK;
    }
    uint64_t page_size = UINT64_C(1) << job->options->page_size_log2;
    uint64_t needed = (job->width + page_size - 1) / page_size;
    if (view->rows != job->rows || view->columns < needed || view->columns > INT32_MAX) {
        return report_failure(job->options, CTL_EXIT_FAILED,
                              "%s is %" PRIu64 " x %" PRIu64 "; %u rows of at least %" PRIu64
                              " pages (width %u, page size %" PRIu64 ") are needed",
                              job->options->page_table, view->rows, view->columns, job->rows,
                              needed, job->width, page_size);
    }
    job->page_table_width = (uint32_t)view->columns;
    return CTL_EXIT_OK;
}

static enum ctl_exit check_scores(struct select_job *job)
{
    const struct npy_view *view = &job->scores.view;
    if (view->rows > TOPK_ROWS_MAX || view->columns > TOPK_WIDTH_MAX) {
        return report_failure(job->options, CTL_EXIT_FAILED,
                              "%s is %" PRIu64 " x %" PRIu64 "; at most %d rows of %d scores are "
                              "accepted",
                              job->options->operand, view->rows, view->columns, TOPK_ROWS_MAX,
                              TOPK_WIDTH_MAX);
    }
    job->rows = (uint32_t)view->rows;
    job->width = (uint32_t)view->columns;
    return CTL_EXIT_OK;
}

enum ctl_exit select_job_open(const struct ctl_options *options, struct select_job *job)
{
    *job = (struct select_job){.options = options};
    job->k = options->k;
    job->want_values = options->values != NULL;
    enum ctl_exit code = open_scores(job);
    if (code == CTL_EXIT_OK) {
        code = check_scores(job);
    }
    if (code == CTL_EXIT_OK) {
        code = open_file(job, options->lengths, &job->lengths);
    }
    if (code == CTL_EXIT_OK) {
        code = check_vector(job, options->lengths, &job->lengths);
    }
    if (code == CTL_EXIT_OK) {
        code = open_file(job, options->row_offsets, &job->row_offsets);
    }
    if (code == CTL_EXIT_OK) {
        code = check_vector(job, options->row_offsets, &job->row_offsets);
    }
    if (code == CTL_EXIT_OK) {
        code = open_file(job, options->page_table, &job->page_table);
    }
    if (code == CTL_EXIT_OK) {
        code = check_page_table(job);
    }
    return code;
}

void select_job_close(struct select_job *job)
{
    npy_close(&job->scores);
    npy_close(&job->lengths);
    npy_close(&job->row_offsets);
    npy_close(&job->page_table);
}

uint64_t select_row_bytes(const struct select_job *job)
{
    uint64_t numbers =
        (uint64_t)job->page_table_width + (uint64_t)job->k * (job->want_values ? 2 : 1) + 2;
    return numbers * 4 + (uint64_t)job->width * topk_dtype_bytes(job->dtype);
}

uint32_t select_block_rows(const struct select_job *job, uint64_t row_bytes, uint64_t bytes_max)
{
    uint64_t rows = bytes_max / row_bytes;
    rows = rows < 1 ? 1 : rows;
    return rows < job->rows ? (uint32_t)rows : job->rows;
}
