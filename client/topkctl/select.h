/*
 * select.h - the parts of `topkctl select`: a job (files and options), two places that can do it
 * (this process or a daemon), block by block, and the check of what comes back.
 */
#ifndef TOPKCTL_SELECT_H
#define TOPKCTL_SELECT_H

#include "ctl.h"
#include "npy.h"

/* What is to be selected. The files stay mapped until the job is closed. */
struct select_job {
    const struct ctl_options *options;
    struct npy_file scores, lengths, page_table, row_offsets; /* zeroed: not given */
    uint32_t rows, width, k;
    enum topk_dtype dtype; /* of the scores */
    uint32_t page_table_width;
    bool want_values;
};

/* Maps and checks every input. Reports its own failure; close in every case. */
enum ctl_exit select_job_open(const struct ctl_options *options, struct select_job *job);
void select_job_close(struct select_job *job);

/* A few rows with their result, [num_rows, k] dense. */
struct select_block {
    uint32_t first_row, num_rows;
    const int32_t *indices;
    const float *values; /* NULL unless wanted */
};

/* What happened, for the report. */
struct select_summary {
    char where[160]; /* "device cpu of ipc://..." or "this process, 2 threads, avx2" */
    uint64_t num_blocks, select_ns, total_ns;
    uint64_t rows_verified;
    uint64_t num_retries; /* by the library, after a renewed session */
    bool has_routes;      /* counted in this process only */
    struct topk_routes routes;
};

/* A place where selections are made. */
struct select_place {
    /* Prepares; *block_rows_p says how many rows it takes at a time. Reports its own failure. */
    enum ctl_exit (*open)(const struct select_job *job, void **state_p, uint32_t *block_rows_p,
                          struct select_summary *summary);
    /* Selects block->num_rows rows from block->first_row on and sets the results, which stay until
     * the next call. Adds to the summary. Reports its own failure. */
    enum ctl_exit (*run)(void *state, struct select_block *block, struct select_summary *summary);
    void (*close)(void *state);
};

extern const struct select_place select_local;  /* libtopksel in this process */
extern const struct select_place select_daemon; /* libtopkd */

/* Rows a block so that `row_bytes` each fit `bytes_max`: at least 1, at most job->rows. */
uint32_t select_block_rows(const struct select_job *job, uint64_t row_bytes, uint64_t bytes_max);

/* Bytes that one row takes in a block: scores, result and what belongs to it. */
uint64_t select_row_bytes(const struct select_job *job);

/* Memory of a block unless a device says less. Choice: small enough for any machine, and one block
 * takes tens of milliseconds, so that progress moves. */
#define SELECT_BLOCK_BYTES (UINT64_C(64) << 20)

/* The files to write, and the positions kept for the report when there is none. */
struct select_output {
    struct npy_writer *indices, *values;
    int32_t *kept; /* [kept_rows, k] */
    uint32_t kept_rows;
};

/* A zeroed output is opened (while the process has one thread), written block by block, committed,
 * closed. Each reports its own failure; close in every case: what was not committed is removed. */
enum ctl_exit select_output_open(const struct select_job *job, struct select_output *output);
enum ctl_exit select_output_write(const struct select_job *job, struct select_output *output,
                                  const struct select_block *block);
enum ctl_exit select_output_commit(const struct select_job *job, struct select_output *output);
void select_output_close(struct select_output *output);

/* To stdout. */
void select_report_json(const struct select_job *job, const struct select_output *output,
                        const struct select_summary *summary);
void select_report_text(const struct select_job *job, const struct select_output *output,
                        const struct select_summary *summary);

/* The checker with its scratch. */
struct select_verifier;

/* NULL when memory is out. */
struct select_verifier *select_verifier_create(const struct select_job *job);
void select_verifier_destroy(struct select_verifier *verifier);

/* Checks every row of a block against the contract. Reports the first wrong row. */
enum ctl_exit select_verify(struct select_verifier *verifier, const struct select_block *block);

#endif
