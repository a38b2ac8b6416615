/*
 * topk_select.h - exact top-K selection of ragged rows of float32, float16 or bfloat16 scores.
 *
 * This header is all that others may include of the kernels room. It has no CUDA type in it: a
 * CUDA stream travels as `void *` (a cudaStream_t) and a device pointer as an ordinary pointer.
 *
 * The contract, for a row of valid length L (lengths below 0 count as 0, above width as width):
 *   L >  K : K distinct positions in [0, L), min(selected score) >= max(score not selected).
 *   L <= K : the positions 0 ... L-1 in ascending order, then -1 up to K. (With order by value the
 *            L positions are sorted by value; the -1 stay at the end.)
 * Order of scores: +inf > finite > -inf > NaN (either sign, all NaN equal); -0 equals +0.
 * Scores of 16 bits rank by the float32 numbers that they are, and a written value is that number.
 *
 * Every result is exact. Sampling (the idea of "Sample-Guided Exact Top-K Selection for
 * Long-Context Sparse Attention", arXiv:2609.08450) only changes the time a row takes.
 */
#ifndef TOPK_SELECT_H
#define TOPK_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOPK_API __attribute__((visibility("default")))

/* Limits of the library. A request beyond one of them is answered with a status, never guessed. */
#define TOPK_K_MAX 16384u         /* choice: the largest K any published sparse attention asks */
#define TOPK_K_FAST_MAX 2048u     /* up to here the fast paths apply; above, the plain exact one */
#define TOPK_WIDTH_MAX 0x7fffffff /* positions are int32 */
#define TOPK_ROWS_MAX 0x7fffffff  /* row numbers are int32; rows * width may pass 2^32 */
#define TOPK_PAGE_SIZE_LOG2_MAX 30u /* page sizes are powers of two that fit int32 */
#define TOPK_DETAIL_SIZE 192u       /* bytes of an error text, terminator included */

/* Status codes: name, text. */
#define TOPK_STATUS_TABLE(X)                                                                       \
    X(TOPK_OK, "ok")                                                                               \
    X(TOPK_E_INVALID, "an argument is outside its limits")                                         \
    X(TOPK_E_UNSUPPORTED, "no selection path supports this combination")                           \
    X(TOPK_E_NO_MEMORY, "out of memory")                                                           \
    X(TOPK_E_WORKSPACE, "workspace is missing, misaligned or too small")                           \
    X(TOPK_E_NO_DEVICE, "no usable CUDA device, or built without CUDA")                            \
    X(TOPK_E_CUDA, "a CUDA call failed")                                                           \
    X(TOPK_E_CANCELLED, "the selection was cancelled before it finished")

enum topk_status {
#define TOPK_STATUS_ENUM(name, text) name,
    TOPK_STATUS_TABLE(TOPK_STATUS_ENUM)
#undef TOPK_STATUS_ENUM
};

/* The text of a status; never NULL. Any thread. */
TOPK_API const char *topk_strerror(enum topk_status status);

/* In which order the K positions of a row are written. */
enum topk_order {
    TOPK_ORDER_ANY = 0,   /* whatever is fastest */
    TOPK_ORDER_INDEX = 1, /* position ascending (-1 last) */
    TOPK_ORDER_VALUE = 2, /* score descending; equal scores by position ascending */
};

/* Which of equal scores at the boundary are taken. */
enum topk_ties {
    TOPK_TIES_ANY = 0,
    TOPK_TIES_LOWEST = 1, /* the lowest positions: the selected set is unique */
};

/*
 * What a score is: name, text, bytes. Each is exactly a float32 number, which is what a written
 * value holds: the sign of a zero, and sign and payload of a NaN (its upper bits in float32) are
 * kept. A signalling NaN of float16 becomes quiet, as processors convert it; those of float32 and
 * bfloat16 stay as they are.
 */
#define TOPK_DTYPE_TABLE(X)                                                                        \
    X(TOPK_DTYPE_FLOAT32, "float32", 4)   /* IEEE 754 single precision */                          \
    X(TOPK_DTYPE_FLOAT16, "float16", 2)   /* IEEE 754 half precision */                            \
    X(TOPK_DTYPE_BFLOAT16, "bfloat16", 2) /* the upper half of a float32 */

enum topk_dtype {
#define TOPK_DTYPE_ENUM(name, short_name, bytes) name,
    TOPK_DTYPE_TABLE(TOPK_DTYPE_ENUM) TOPK_DTYPE_COUNT
#undef TOPK_DTYPE_ENUM
};

/* The bytes of a score and the name of its type; 0 and "unknown" for no type of the table. Pure. */
TOPK_API uint32_t topk_dtype_bytes(enum topk_dtype dtype);
TOPK_API const char *topk_dtype_name(enum topk_dtype dtype);

/* All that is known of a selection before its rows are; zeroed for the defaults. `deterministic` is
 * TOPK_TIES_LOWEST with TOPK_ORDER_INDEX: the same bytes whatever the batch, the plan, the load or
 * the run. */
struct topk_options {
    enum topk_order order;
    enum topk_ties ties;
    enum topk_dtype dtype; /* of the scores; values are float32 whatever it is */
};

/* How many rows took which route; counters only grow. For CUDA this lives in device memory. */
struct topk_routes {
    uint64_t copied;      /* L <= K: nothing to select */
    uint64_t direct;      /* exact without a sample (short rows, or the plain exact path) */
    uint64_t certified;   /* the sampled boundary admitted at least K scores: one read of the row */
    uint64_t band;        /* underfill repaired by a second, lower boundary */
    uint64_t recovery;    /* boundary rebuilt exactly from the whole row */
    uint64_t spill;       /* more admitted than the candidate buffer holds; resolved exactly */
    uint64_t clamped;     /* lengths that were below 0 or above width */
    uint64_t scores_read; /* scores read from rows, samples and repeated passes included */
};

/*
 * One selection. Pointers are host pointers for topk_cpu_select and device pointers for CUDA; the
 * struct itself is host memory for the CPU and for topk_args_check, and device memory (a
 * descriptor that a captured graph reads on every replay) for topk_cuda_enqueue. The caller owns
 * everything and keeps it unchanged until the selection has finished. Layout is fixed: 64-bit
 * fields first, no padding holes.
 */
struct topk_args {
    const void *scores;         /* [num_rows, width] of options.dtype, base aligned to one score */
    int64_t row_stride;         /* elements from row to row, >= width; any when num_rows < 2 */
    const int32_t *lengths;     /* [num_rows] valid lengths, or NULL: length_all for every row */
    int32_t *indices;           /* [num_rows, k] result */
    int64_t index_stride;       /* elements, >= k; any when num_rows < 2 */
    float *values;              /* [num_rows, k] scores of the result, or NULL; -inf beside a -1;
                                 * float32 whatever the scores are */
    int64_t value_stride;       /* elements, >= k; any when num_rows < 2; ignored without values */
    const int32_t *page_table;  /* [num_rows, page_table_width], or NULL: no transform. A result
                                 * position p becomes table[row, p >> log2] << log2 | p & mask */
    int64_t page_table_stride;  /* elements, >= page_table_width; ignored without page_table */
    const int32_t *row_offsets; /* [num_rows] added to every position but -1, or NULL */
    struct topk_routes *routes; /* counters to add to, or NULL */
    int32_t num_rows;           /* live rows, 0 ... rows of the plan */
    int32_t width;              /* scores a row, 0 ... width of the plan */
    int32_t length_all;         /* valid length of every row when lengths is NULL */
    int32_t k;                  /* 1 ... k of the plan */
    int32_t page_table_width;   /* entries a row; entries << page_size_log2 must reach width */
    uint32_t page_size_log2;    /* 0 ... TOPK_PAGE_SIZE_LOG2_MAX */
};

/*
 * Checks everything about `args` that can be checked without reading through its pointers: limits,
 * strides, alignment, a page table that is too short, options. Writes a text that names the value,
 * the limit and what to do to detail[TOPK_DETAIL_SIZE] (may be NULL). Pure; any thread.
 */
TOPK_API enum topk_status topk_args_check(const struct topk_args *args,
                                          const struct topk_options *options, char *detail);

/* ---- CPU ---------------------------------------------------------------------------------- */

/* A bounded pool of threads with their scratch. Its memory does not depend on the rows. */
struct topk_cpu;

struct topk_cpu_config {
    uint32_t num_threads; /* 0: one for each processor the process may use; at most 256 */
    const char *isa;      /* NULL: best available; "portable", "avx2", "avx512" to force one */
};

/* Creates the pool. The caller destroys it when no selection is running. Any thread. */
TOPK_API enum topk_status topk_cpu_create(const struct topk_cpu_config *config,
                                          struct topk_cpu **cpu_p, char *detail);
TOPK_API void topk_cpu_destroy(struct topk_cpu *cpu);

/* The name of the instruction set in use ("portable", "avx2", "avx512") and the threads. */
TOPK_API const char *topk_cpu_isa(const struct topk_cpu *cpu);
TOPK_API uint32_t topk_cpu_num_threads(const struct topk_cpu *cpu);

/*
 * Selects; blocks until done. Any number of threads may call at once on one pool: their rows share
 * the pool's threads fairly (a short call does not wait for a long one to end). `cancel`, when not
 * NULL, is polled between rows: once it reads true the call returns TOPK_E_CANCELLED soon, with
 * the output undefined. args->routes counts are added atomically. No allocation for k up to
 * TOPK_K_FAST_MAX; scratch for larger k is allocated once a thread and kept.
 */
TOPK_API enum topk_status topk_cpu_select(struct topk_cpu *cpu, const struct topk_args *args,
                                          const struct topk_options *options, const bool *cancel,
                                          char *detail);

/* ---- Planning (pure host code, present in every build) --------------------------------------- */

/* What the planner may know of a device; filled by topk_cuda_device or by a test. */
struct topk_device {
    int32_t num_multiprocessors;
    int32_t compute_major, compute_minor;
    int32_t shared_bytes_per_block;          /* opt-in limit, bytes */
    int32_t shared_bytes_per_multiprocessor; /* bytes */
    int64_t l2_bytes;
};

/* The largest problem a plan must serve. Live rows, width, k and lengths may be smaller. */
struct topk_shape {
    int32_t k;               /* 1 ... TOPK_K_MAX */
    int32_t rows;            /* row capacity, >= 1 */
    int32_t width;           /* column capacity, >= 1 */
    int32_t alignment_bytes; /* guaranteed of every row start: a power of two, from the bytes of a
                              * score to 128 */
    struct topk_options options;
};

/* Kernel families; the names are stable (they appear in statistics and benchmarks). */
#define TOPK_FAMILY_TABLE(X)                                                                       \
    X(TOPK_FAMILY_PLAIN, "plain", "plain exact: any K, any device, several reads of a row")        \
    X(TOPK_FAMILY_ROW, "row", "row-local exact: a row in registers or shared memory, one read")    \
    X(TOPK_FAMILY_TILES, "tiles", "sampled boundary, rows end to end in equal shares of a block")  \
    X(TOPK_FAMILY_SPLIT, "split", "sampled boundary, few long rows over the whole device")         \
    X(TOPK_FAMILY_CLUSTER, "cluster", "sampled boundary, few rows, a cluster of blocks each")      \
    X(TOPK_FAMILY_WIDE, "wide", "row-local exact, few rows, in the registers of a cluster each")

enum topk_family {
#define TOPK_FAMILY_ENUM(name, short_name, text) name,
    TOPK_FAMILY_TABLE(TOPK_FAMILY_ENUM) TOPK_FAMILY_COUNT
#undef TOPK_FAMILY_ENUM
};

TOPK_API const char *topk_family_name(enum topk_family family);

/* The planner's choice: plain data, printable, comparable with memcmp after topk_plan_make. */
struct topk_plan {
    struct topk_shape shape;
    enum topk_family family;
    int32_t variant;         /* index into the family's policy table */
    int32_t num_blocks;      /* blocks of the launch */
    int32_t cluster_blocks;  /* blocks a cluster; 1: no cluster; num_blocks is a multiple */
    int32_t threads;         /* threads a block */
    int32_t sample_stride;   /* 0: no sample; s: about 1/s of a row is sampled */
    int32_t tile_scores;     /* scores a tile, 0 where the family has no tiles */
    int64_t shared_bytes;    /* dynamic shared memory a block */
    int64_t workspace_bytes; /* device memory the caller provides; <= 64 MiB up to 2^20 columns */
    int64_t parameters[8];   /* family-specific; named in kernels/README.md */
};

/* Chooses from shape and device alone. Pure: same input, same plan. */
TOPK_API enum topk_status topk_plan_make(const struct topk_shape *shape,
                                         const struct topk_device *device, struct topk_plan *plan_p,
                                         char *detail);

/* As topk_plan_make, but with this family and this policy of it (-1: the planner's choice), or
 * TOPK_E_UNSUPPORTED when it cannot serve the shape. For tests and measurement. */
TOPK_API enum topk_status topk_plan_make_family(const struct topk_shape *shape,
                                                const struct topk_device *device,
                                                enum topk_family family, int32_t variant,
                                                struct topk_plan *plan_p, char *detail);

/* One line "family=tiles blocks=132 ..."; always terminated. */
TOPK_API void topk_plan_describe(const struct topk_plan *plan, char *text, size_t text_size);

/* ---- CUDA (TOPK_E_NO_DEVICE in a build without it) ------------------------------------------- */

/* Reads the properties of a CUDA device ordinal of this process. Creates no context. */
TOPK_API enum topk_status topk_cuda_device(int ordinal, struct topk_device *device_p, char *detail);

/*
 * Loads every kernel a plan needs into the current context, so that a later launch behind a
 * waiting stream cannot deadlock on lazy loading. May block and allocate; call before `ready`. Any
 * thread, also several at once.
 */
TOPK_API enum topk_status topk_cuda_load(const struct topk_plan *plan, char *detail);

/*
 * Prepares a workspace of plan->workspace_bytes (256-byte aligned device memory) once, in stream
 * order. Afterwards every selection leaves it ready for the next; one whose lengths changed while
 * it ran may not: prepare the workspace again then. A workspace serves one selection at a time:
 * selections that share it must be ordered (one stream, or events).
 */
TOPK_API enum topk_status topk_cuda_workspace_init(const struct topk_plan *plan, void *d_workspace,
                                                   void *stream, char *detail);

/*
 * Enqueues one selection. d_args is a struct topk_args in device memory (aligned to 16 bytes), read
 * when the kernels run, so that a captured graph serves other rows, lengths and pointers on replay.
 * Values in d_args beyond the plan are clamped to it (num_rows, width, k) and counted, never
 * followed. topk_cuda_load must have succeeded for a plan of this family and policy before.
 * Neither allocates, synchronises nor reads back; may be captured. Any thread; the caller orders
 * the use of the workspace.
 */
TOPK_API enum topk_status topk_cuda_enqueue(const struct topk_plan *plan,
                                            const struct topk_args *d_args, void *d_workspace,
                                            void *stream, char *detail);

#ifdef __cplusplus
}
#endif

#endif
