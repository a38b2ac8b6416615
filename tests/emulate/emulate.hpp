/*
 * emulate.hpp - what the stand-ins for CUDA's headers call: the model of a GPU from outside.
 */
#ifndef TOPKD_EMULATE_EMULATE_HPP
#define TOPKD_EMULATE_EMULATE_HPP

#include "cuda_runtime_api.h"

#include <functional>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

namespace emulate
{

/* A place in the source of a kernel. As a default argument it is the caller's. */
struct site {
    const char *file;
    int line;
    constexpr site(const char *file_ = nullptr, int line_ = 0) : file(file_), line(line_)
    {
    }
};
#define EMULATE_HERE emulate::site(__builtin_FILE(), __builtin_LINE())

enum class warp_op : uint8_t {
    sync,
    shuffle,
    shuffle_up,
    shuffle_down,
    shuffle_xor,
    ballot,
    reduce_add,
    reduce_min,
    reduce_max,
    reduce_and,
    reduce_or,
    reduce_xor,
    match_any,
};

/* One lane of a warp's operation: comes, waits for the other lanes of the mask, gets its result. */
uint64_t warp_gather(enum warp_op op, uint32_t mask, uint64_t value, uint32_t argument,
                     uint32_t width, struct site here);

/* bar.sync and bar.red.or; `threads` 0: all of the block. */
bool barrier_sync(uint32_t barrier, uint32_t threads, bool here, struct site where);

/* The current thread touches what others touch too: the schedule may take its turn away. */
void touch(struct site here);

/* Shared memory of the current block: an object by its declaration, the dynamic part. */
void *shared_object(const void *declaration, size_t size_bytes, size_t alignment);
void *shared_dynamic();
uint32_t shared_address(const void *pointer, struct site here);

void mbarrier_init(uint64_t *barrier, uint32_t arrivals, struct site here);
bool mbarrier_try_wait(uint64_t *barrier, uint32_t parity, struct site here);
void mbarrier_arrive(uint64_t *barrier, uint32_t bytes, struct site here);
void copy_bulk(void *shared, const void *global, uint32_t bytes, uint64_t *barrier,
               struct site here);
void prefetch_bulk(const void *global, int32_t bytes, struct site here);
void copy_async(void *shared, const void *global, uint32_t room, uint32_t bytes, struct site here);
void copies_wait(struct site here);

void fence_before_copies();

uint32_t cluster_rank();
uint32_t cluster_size();
void cluster_arrive(struct site here);
void cluster_wait(struct site here);
uint32_t remote_address(const void *local, uint32_t rank, struct site here);
void *remote_pointer(uint32_t address, uint32_t size_bytes, struct site here);
void remote_send(uint32_t address, uint64_t pair, uint32_t barrier, struct site here);

/* Global memory that a bulk access may touch; the others are AddressSanitizer's business. */
void check_global(const void *global, size_t size_bytes, struct site here);

/* A kernel with its parameters, as it is launched. */
struct launch {
    std::function<void()> kernel;
    dim3 grid, block;
    uint32_t dynamic_bytes, cluster_blocks;
};

/* What cudaFuncSetAttribute has set for a kernel. */
struct function {
    int dynamic_bytes_max;
    bool large_clusters;
};
struct function &function_of(const void *kernel);
cudaError_t enqueue(const void *kernel, const struct launch &launch, cudaStream_t stream);

} // namespace emulate

/* The current thread's; the scheduler sets them. */
extern struct uint3 threadIdx, blockIdx;
extern struct dim3 blockDim, gridDim;

#endif
