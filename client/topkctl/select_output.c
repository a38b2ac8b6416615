/* The files that a selection writes, and what is kept of it for the report. */
#include "cleanup.h"
#include "select.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PREVIEW_ROWS 4u           /* choice: what fits a screen when no file is asked for */
#define JSON_POSITIONS_MAX 65536u /* choice: a JSON value that a program still reads with ease */

static enum ctl_exit open_writer(const struct select_job *job, const char *path, enum npy_type type,
                                 unsigned slot, struct npy_writer **writer_p)
{
    const struct npy_view shape = {
        .type = type, .num_dims = 2, .rows = job->rows, .columns = job->k};
    char detail[NPY_DETAIL_SIZE];
    if (path == NULL) {
        return CTL_EXIT_OK;
    }
    cleanup_hold(); /* no other thread runs yet */
    enum npy_status status = npy_writer_create(path, &shape, writer_p, detail);
    if (status == NPY_OK) {
        cleanup_watch(slot, npy_writer_temporary(*writer_p));
    }
    cleanup_release();
    if (status != NPY_OK) {
        return report_failure(job->options, CTL_EXIT_FAILED, "%s", detail);
    }
    return CTL_EXIT_OK;
}

/* Writing over an input would be a mistake that cannot be taken back. */
static enum ctl_exit refuse_inputs(const struct ctl_options *options, const char *path)
{
    const char *const inputs[] = {options->operand, options->lengths, options->page_table,
                                  options->row_offsets};
    struct stat target;
    if (path == NULL || stat(path, &target) != 0) {
        return CTL_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        struct stat input;
        if (inputs[i] != NULL && stat(inputs[i], &input) == 0 && input.st_dev == target.st_dev &&
            input.st_ino == target.st_ino) {
            return report_failure(options, CTL_EXIT_FAILED,
                                  "%s is an input; name another file for the result", path);
        }
    }
    return CTL_EXIT_OK;
}

enum ctl_exit select_output_open(const struct select_job *job, struct select_output *output)
{
    const struct ctl_options *options = job->options;
    enum ctl_exit code = refuse_inputs(options, options->out);
    if (code == CTL_EXIT_OK) {
        code = refuse_inputs(options, options->values);
    }
    if (code == CTL_EXIT_OK && options->out != NULL && options->values != NULL &&
        strcmp(options->out, options->values) == 0) {
        code = report_failure(options, CTL_EXIT_FAILED, "--out and --values are the same file, %s",
                              options->out);
    }
    if (code == CTL_EXIT_OK) {
        code = open_writer(job, options->out, NPY_INT32, 0, &output->indices);
    }
    if (code == CTL_EXIT_OK) {
        code = open_writer(job, options->values, NPY_FLOAT32, 1, &output->values);
    }
    if (code == CTL_EXIT_OK && options->out == NULL) {
        bool all = options->json && (uint64_t)job->rows * job->k <= JSON_POSITIONS_MAX;
        uint32_t preview = options->json ? 0 : PREVIEW_ROWS;
        output->kept_rows = all ? job->rows : preview < job->rows ? preview : job->rows;
        output->kept = calloc((size_t)output->kept_rows * job->k + 1, sizeof(*output->kept));
        if (output->kept == NULL) {
            code = report_failure(options, CTL_EXIT_FAILED, "select: out of memory");
        }
    }
    return code;
}

void select_output_close(struct select_output *output)
{
    npy_writer_destroy(output->indices);
    npy_writer_destroy(output->values);
    for (unsigned slot = 0; slot < CLEANUP_FILES_MAX; slot++) {
        cleanup_watch(slot, NULL);
    }
    free(output->kept);
}

enum ctl_exit select_output_write(const struct select_job *job, struct select_output *output,
                                  const struct select_block *block)
{
    char detail[NPY_DETAIL_SIZE];
    uint64_t bytes = (uint64_t)block->num_rows * job->k * 4;
    if ((output->indices != NULL &&
         npy_writer_append(output->indices, block->indices, bytes, detail) != NPY_OK) ||
        (output->values != NULL &&
         npy_writer_append(output->values, block->values, bytes, detail) != NPY_OK)) {
        return report_failure(job->options, CTL_EXIT_FAILED, "%s", detail);
    }
    if (block->first_row < output->kept_rows) {
        uint32_t left = output->kept_rows - block->first_row;
        uint32_t rows = left < block->num_rows ? left : block->num_rows;
        memcpy(output->kept + (size_t)block->first_row * job->k, block->indices,
               (size_t)rows * job->k * sizeof(*output->kept));
    }
    return CTL_EXIT_OK;
}

enum ctl_exit select_output_commit(const struct select_job *job, struct select_output *output)
{
    char detail[NPY_DETAIL_SIZE];
    if ((output->indices != NULL && npy_writer_commit(output->indices, detail) != NPY_OK) ||
        (output->values != NULL && npy_writer_commit(output->values, detail) != NPY_OK)) {
        return report_failure(job->options, CTL_EXIT_FAILED, "%s", detail);
    }
    return CTL_EXIT_OK;
}
