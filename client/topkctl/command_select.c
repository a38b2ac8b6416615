/* topkctl select: files in, positions out, a block of rows at a time. */
#include "cleanup.h"
#include "progress.h"
#include "select.h"

/* Blocks of rows, one after the other: select, verify, write. */
static enum ctl_exit run_blocks(const struct select_job *job, const struct select_place *place,
                                void *state, uint32_t block_rows, struct select_output *output,
                                struct select_summary *summary)
{
    struct select_verifier *verifier = job->options->verify ? select_verifier_create(job) : NULL;
    if (job->options->verify && verifier == NULL) {
        return report_failure(job->options, CTL_EXIT_FAILED, "select: out of memory to verify");
    }
    struct progress progress =
        progress_of("selecting", job->rows, (uint64_t)job->width * topk_dtype_bytes(job->dtype));
    enum ctl_exit code = CTL_EXIT_OK;
    for (uint32_t row = 0; row < job->rows && code == CTL_EXIT_OK; row += block_rows) {
        uint32_t left = job->rows - row;
        struct select_block block = {.first_row = row,
                                     .num_rows = left < block_rows ? left : block_rows};
        code = place->run(state, &block, summary);
        if (code == CTL_EXIT_OK && verifier != NULL) {
            code = select_verify(verifier, &block);
            summary->rows_verified += code == CTL_EXIT_OK ? block.num_rows : 0;
        }
        if (code == CTL_EXIT_OK) {
            code = select_output_write(job, output, &block);
        }
        summary->num_blocks++;
        progress_update(&progress, row + block.num_rows);
    }
    progress_wipe();
    select_verifier_destroy(verifier);
    return code;
}

static enum ctl_exit run_job(const struct select_job *job, struct select_output *output,
                             struct select_summary *summary)
{
    const struct select_place *place = job->options->local ? &select_local : &select_daemon;
    void *state;
    uint32_t block_rows;
    enum ctl_exit code = place->open(job, &state, &block_rows, summary);
    if (code != CTL_EXIT_OK) {
        return code;
    }
    uint64_t start_ns = progress_now_ns();
    code = run_blocks(job, place, state, block_rows, output, summary);
    summary->total_ns = progress_now_ns() - start_ns;
    place->close(state);
    return code == CTL_EXIT_OK ? select_output_commit(job, output) : code;
}

enum ctl_exit command_select(const struct ctl_options *options)
{
    struct select_job job;
    struct select_output output = {0};
    struct select_summary summary = {0};
    cleanup_install();
    enum ctl_exit code = select_job_open(options, &job);
    if (code == CTL_EXIT_OK) {
        code = select_output_open(&job, &output);
    }
    if (code == CTL_EXIT_OK) {
        code = run_job(&job, &output, &summary);
    }
    if (code == CTL_EXIT_OK && options->json) {
        select_report_json(&job, &output, &summary);
    } else if (code == CTL_EXIT_OK) {
        select_report_text(&job, &output, &summary);
    }
    select_output_close(&output);
    select_job_close(&job);
    return code;
}
