/*
 * far_rows_test - rows, results and page tables that lie more than 2^31 elements apart, on every
 * policy; wide ones of which little is valid. A product of a row and a stride in 32 bits would land
 * elsewhere: where no memory is.
 */
#include "emulate.h"
#include "select_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define APART ((int64_t)1 << 31) /* elements */
#define K 300
#define PAGE_SIZE_LOG2 4
#define ROWS_MAX 8

/* A matrix of which only the rows are accessible. */
struct matrix {
    char *memory;
    size_t size_bytes, element_bytes;
    int64_t stride; /* elements */
};

static void matrix_init(int32_t rows, int64_t stride, int32_t width, size_t element_bytes,
                        struct matrix *matrix)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    matrix->size_bytes = (size_t)rows * (size_t)stride * element_bytes;
    matrix->element_bytes = element_bytes;
    matrix->stride = stride;
    matrix->memory = mmap(NULL, matrix->size_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (matrix->memory == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    for (int32_t row = 0; row < rows; row++) {
        const size_t first = (size_t)row * (size_t)stride * element_bytes;
        const size_t begin = first / page * page, end = first + (size_t)width * element_bytes;
        if (mprotect(matrix->memory + begin, end - begin, PROT_READ | PROT_WRITE) != 0) {
            perror("mprotect");
            exit(2);
        }
    }
    emulate_lend(matrix->memory, matrix->size_bytes);
}

static void matrix_fini(struct matrix *matrix)
{
    emulate_take_back(matrix->memory);
    munmap(matrix->memory, matrix->size_bytes);
}

static void *row_at(const struct matrix *matrix, int32_t row)
{
    return matrix->memory + (size_t)row * (size_t)matrix->stride * matrix->element_bytes;
}

/* What the device reads of a request beside its matrices. */
struct described {
    struct topk_args args;
    int32_t lengths[ROWS_MAX];
};

/* A request whose rows are far from each other, as are those of its result. */
struct far {
    struct matrix scores, indices, values, pages;
    struct topk_options options;
    struct described *d_described;
};

static void far_init(enum topk_dtype dtype, int32_t rows, int32_t valid, int32_t width,
                     struct far *far)
{
    const int32_t num_pages = (valid >> PAGE_SIZE_LOG2) + 1;
    const struct inputs_spec inputs = {.family = INPUTS_MIXED,
                                       .seed = inputs_run_seed(),
                                       .num_rows = rows,
                                       .width = valid,
                                       .row_stride = valid,
                                       .k = K};
    matrix_init(rows, APART + 11, valid, topk_dtype_bytes(dtype), &far->scores);
    matrix_init(rows, APART + 5, K, sizeof(int32_t), &far->indices);
    matrix_init(rows, APART + 9, K, sizeof(float), &far->values);
    matrix_init(rows, APART + 3, num_pages, sizeof(int32_t), &far->pages);
    char *scores = malloc(inputs_elements(&inputs) * topk_dtype_bytes(dtype));
    if (scores == NULL) {
        printf("out of memory\n");
        exit(2);
    }
    inputs_fill_typed(&inputs, dtype, NULL, scores);
    CHECK_CUDA(cudaMalloc((void **)&far->d_described, sizeof(*far->d_described)));
    for (int32_t row = 0; row < rows; row++) {
        const size_t bytes = (size_t)valid * topk_dtype_bytes(dtype);
        memcpy(row_at(&far->scores, row), scores + (size_t)row * bytes, bytes);
        inputs_fill_pages(inputs.seed + (uint64_t)row, 1, num_pages, num_pages,
                          row_at(&far->pages, row));
        far->d_described->lengths[row] = row == 1 ? K - 1 : valid - 37 * row;
    }
    free(scores);
    far->options = (struct topk_options){.order = TOPK_ORDER_VALUE, .dtype = dtype};
    far->d_described->args =
        (struct topk_args){.scores = far->scores.memory,
                           .row_stride = far->scores.stride,
                           .lengths = far->d_described->lengths,
                           .indices = (int32_t *)(void *)far->indices.memory,
                           .index_stride = far->indices.stride,
                           .values = (float *)(void *)far->values.memory,
                           .value_stride = far->values.stride,
                           .page_table = (const int32_t *)(void *)far->pages.memory,
                           .page_table_stride = far->pages.stride,
                           .page_table_width = num_pages,
                           .page_size_log2 = PAGE_SIZE_LOG2,
                           .num_rows = rows,
                           .width = width,
                           .k = K};
}

static void far_fini(struct far *far)
{
    matrix_fini(&far->scores);
    matrix_fini(&far->indices);
    matrix_fini(&far->values);
    matrix_fini(&far->pages);
    CHECK_CUDA(cudaFree(far->d_described));
}

/* False when the policy does not serve rows of this width. */
static bool test_policy(enum topk_family family, int32_t variant, enum topk_dtype dtype,
                        int32_t width)
{
    /* More rows than blocks, where blocks share them. */
    const int32_t rows = family == TOPK_FAMILY_TILES ? gpu_device()->num_multiprocessors + 2 : 3;
    const int32_t valid = width < 9001 ? width : 9001;
    const struct topk_shape shape = {.k = K,
                                     .rows = rows,
                                     .width = width,
                                     .alignment_bytes = (int32_t)topk_dtype_bytes(dtype),
                                     .options = {.order = TOPK_ORDER_VALUE, .dtype = dtype}};
    struct gpu_plan plan;
    struct far far;
    if (rows > ROWS_MAX || !gpu_plan_init(&shape, family, variant, &plan)) {
        return false;
    }
    far_init(dtype, rows, valid, width, &far);
    struct gpu_request request = {.d_args = &far.d_described->args};
    gpu_enqueue(&plan, &request, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    char name[96], detail[ORACLE_DETAIL_SIZE] = "";
    snprintf(name, sizeof(name), "it_15_%s:%d_%s_rows_of_%d_far_apart", topk_family_name(family),
             variant, topk_dtype_name(dtype), width);
    gpu_report(name, oracle_check(&far.d_described->args, &far.options, detail), detail);
    far_fini(&far);
    gpu_plan_fini(&plan);
    return true;
}

int main(void)
{
    for (int family = 0; family < TOPK_FAMILY_COUNT; family++) {
        for (int32_t variant = 0; variant < GPU_VARIANTS_MAX; variant++) {
            for (int dtype = 0; dtype < TOPK_DTYPE_COUNT; dtype++) {
                if (!test_policy((enum topk_family)family, variant, (enum topk_dtype)dtype,
                                 TOPK_WIDTH_MAX)) {
                    test_policy((enum topk_family)family, variant, (enum topk_dtype)dtype, 4001);
                }
            }
        }
    }
    return gpu_summary();
}
