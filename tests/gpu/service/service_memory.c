/* service_memory.c - cases about memory: which can be registered, how, and what is refused. */
#include "service_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Registration must fail so, with this word in its text. */
static void refuse(struct topkd_client *client, uint64_t pointer, uint64_t length,
                   enum topkd_status status, const char *word)
{
    struct topkd_region *region;
    enum topkd_status got = topkd_region_register_cuda(client, (void *)(uintptr_t)pointer, length,
                                                       TOPKD_ACCESS_READ, &region);
    CHECK(got == status && strstr(topkd_detail(), word), "%s: %s (wanted %s, \"%s\")",
          topkd_status_name(got), topkd_detail(), topkd_status_name(status), word);
}

/* Virtual memory of two pieces, each of its own allocation, and a gap behind. */
static CUdeviceptr virtual_alloc(size_t piece_bytes, bool exportable)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = service_gpu_device()}};
    CUmemAccessDesc access = {.location = properties.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address;
    if (exportable)
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CU(cuMemAddressReserve(&address, 3 * piece_bytes, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle handle;
        CU(cuMemCreate(&handle, piece_bytes, &properties, 0));
        CU(cuMemMap(address + i * piece_bytes, piece_bytes, 0, handle, 0));
        CU(cuMemRelease(handle));
    }
    CU(cuMemSetAccess(address, 2 * piece_bytes, &access, 1));
    return address;
}

void service_case_refusals(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "refusals");
    CUdeviceptr memory, pool, managed;
    void *pinned;
    int on_stack = 0;
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&memory, 1 << 20));
    CU(cuMemAllocAsync(&pool, 4 << 20, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemHostAlloc(&pinned, 4096, 0));
    refuse(client, (uintptr_t)&on_stack, 4, TOPKD_E_NOT_EXPORTABLE, "ordinary host memory");
    refuse(client, (uintptr_t)pinned, 4096, TOPKD_E_NOT_EXPORTABLE, "pinned host memory");
    refuse(client, managed, 4096, TOPKD_E_NOT_EXPORTABLE, "managed memory");
    refuse(client, pool, 4096, TOPKD_E_NOT_EXPORTABLE, "cudaMallocAsync");
    refuse(client, virtual_alloc(2 << 20, false), 4096, TOPKD_E_NOT_EXPORTABLE,
           "without an exportable handle");
    refuse(client, memory, (1 << 20) + 1, TOPKD_E_OUT_OF_RANGE, "beyond the allocation");
    refuse(client, memory + 4096, 1 << 20, TOPKD_E_OUT_OF_RANGE, "beyond the allocation");
    refuse(client, virtual_alloc(2 << 20, true), (4 << 20) + 4, TOPKD_E_OUT_OF_RANGE,
           "beyond the allocation");
    refuse(client, memory, 0, TOPKD_E_INVALID, "empty");
    refuse(client, 0, 4, TOPKD_E_INVALID, "empty");
    refuse(client, memory, UINT64_MAX, TOPKD_E_INVALID, "2^64");
    /* What the refusal of the pool offers: a copy. */
    struct topkd_buffer *buffer;
    struct service_request request;
    service_request_open(client, 4, 16384, 512, &request);
    service_request_draw(&request, options->seed);
    service_request_upload(&request);
    CU(cuMemcpyDtoDAsync(pool, request.d_scores, request.scores_bytes, stream));
    EXPECT(TOPKD_OK, topkd_buffer_create(client, request.scores_bytes, &buffer));
    EXPECT(TOPKD_OK,
           topkd_buffer_copy(buffer, 0, (void *)(uintptr_t)pool, request.scores_bytes, stream));
    EXPECT(TOPKD_E_OUT_OF_RANGE,
           topkd_buffer_copy(buffer, 4, (void *)(uintptr_t)pool, request.scores_bytes, stream));
    struct topkd_op *op;
    request.request.scores.region = topkd_buffer_region(buffer);
    EXPECT(TOPKD_OK, topkd_select_stream(client, &request.request, stream, &op));
    CU(cuStreamSynchronize(stream));
    EXPECT(TOPKD_OK, topkd_op_wait(op, 0));
    EXPECT(TOPKD_OK, topkd_op_finish(op, NULL));
    service_request_check(&request, 0);
    topkd_buffer_destroy(buffer);
    service_request_close(&request);
    topkd_client_close(client);
}

/* Selects from scores at `from`, which lies in `region` at `offset`. */
static void select_at(struct topkd_client *client, struct service_request *request,
                      struct topkd_region *region, CUdeviceptr from, uint64_t offset, uint64_t seed)
{
    struct topkd_result result;
    service_request_draw(request, seed);
    CU(cuMemcpyHtoDAsync(from, request->h_scores, request->scores_bytes, NULL));
    CU(cuStreamSynchronize(NULL));
    struct topkd_select_request asked = request->request;
    asked.scores = (struct topkd_tensor){.region = region, .offset_bytes = offset};
    EXPECT(TOPKD_OK, topkd_select(client, &asked, &result));
    service_request_check(request, 0);
}

/* What holds these bytes must begin at `base` and have this size. Returns its id. */
static uint64_t expect_allocation(struct topkd_client *client, CUdeviceptr pointer, uint64_t length,
                                  CUdeviceptr base, uint64_t size)
{
    struct topkd_allocation allocation;
    EXPECT(TOPKD_OK,
           topkd_cuda_allocation(client, (void *)(uintptr_t)pointer, length, &allocation));
    CHECK((uintptr_t)allocation.base == base && allocation.size_bytes == size,
          "base %p, %llu bytes, wanted 0x%llx, %llu", allocation.base,
          (unsigned long long)allocation.size_bytes, (unsigned long long)base,
          (unsigned long long)size);
    return allocation.id;
}

static void refuse_allocation(struct topkd_client *client, uint64_t pointer, uint64_t length,
                              enum topkd_status status, const char *word)
{
    struct topkd_allocation allocation;
    enum topkd_status got =
        topkd_cuda_allocation(client, (void *)(uintptr_t)pointer, length, &allocation);
    CHECK(got == status && strstr(topkd_detail(), word), "%s: %s (wanted %s, \"%s\")",
          topkd_status_name(got), topkd_detail(), topkd_status_name(status), word);
}

void service_case_kinds(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "kinds");
    struct service_request request;
    struct topkd_region *regions[3];
    CUdeviceptr segment;
    service_request_open(client, 8, 65536, 2048, &request); /* 2 MiB of scores */
    /* A caching allocator's segment: tensors in its middle, the same one registered twice. */
    CU(cuMemAlloc(&segment, 20 << 20));
    uint64_t id = expect_allocation(client, segment + 1028, 3 << 20, segment, 20 << 20);
    CHECK(expect_allocation(client, segment + (19 << 20), 4, segment, 20 << 20) == id, "same id");
    int on_stack = 0;
    refuse_allocation(client, segment + 4, 20 << 20, TOPKD_E_OUT_OF_RANGE, "beyond the allocation");
    refuse_allocation(client, (uintptr_t)&on_stack, 4, TOPKD_E_NOT_EXPORTABLE, "host memory");
    refuse_allocation(client, segment, 0, TOPKD_E_INVALID, "empty");
    for (int i = 0; i < 3; i++)
        EXPECT(TOPKD_OK, topkd_region_register_cuda(
                             client, (void *)(uintptr_t)(segment + (i ? 5u << 20 : 1028u)), 3 << 20,
                             TOPKD_ACCESS_READ, &regions[i]));
    select_at(client, &request, regions[0], segment + 1028, 0, options->seed + 1);
    select_at(client, &request, regions[1], segment + (5 << 20) + 512, 512, options->seed + 2);
    EXPECT(TOPKD_OK, topkd_region_unregister(regions[1])); /* the mapping stays for the other */
    select_at(client, &request, regions[2], segment + (5 << 20), 0, options->seed + 3);
    EXPECT(TOPKD_OK, topkd_region_unregister(regions[0]));
    EXPECT(TOPKD_OK, topkd_region_unregister(regions[2]));
    CU(cuMemFree(segment));
    /* Expandable segments: scores across the border of two allocations, without a copy. */
    CUdeviceptr pieces = virtual_alloc(2 << 20, true);
    id = expect_allocation(client, pieces + 4, 4, pieces, 2 << 20);
    CHECK(expect_allocation(client, pieces + 4, 3 << 20, pieces, 4 << 20) != id, "other pieces");
    refuse_allocation(client, pieces + 4, 4 << 20, TOPKD_E_OUT_OF_RANGE, "beyond the allocation");
    EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)(pieces + (1 << 20)),
                                                3 << 20, TOPKD_ACCESS_READ, &regions[0]));
    select_at(client, &request, regions[0], pieces + (1 << 20) + 4096, 4096, options->seed + 4);
    /* Registered for reading, it is no place for a result. */
    struct topkd_select_request asked = request.request;
    struct topkd_result result;
    asked.indices = (struct topkd_tensor){.region = regions[0]};
    EXPECT(TOPKD_E_READ_ONLY, topkd_select(client, &asked, &result));
    EXPECT(TOPKD_OK, topkd_region_unregister(regions[0]));
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_stale(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "stale");
    struct service_request request;
    service_request_open(client, 16, 65536, 1024, &request);
    uint32_t num_same = 0;
    for (uint64_t round = 0; round < 6; round++) {
        CUdeviceptr before = request.d_scores;
        struct topkd_region *old = request.scores;
        if (round % 2) /* in order: unregister, then free */
            EXPECT(TOPKD_OK, topkd_region_unregister(old));
        struct topkd_allocation was, is;
        EXPECT(TOPKD_OK, topkd_cuda_allocation(client, (void *)(uintptr_t)before, 4, &was));
        CU(cuMemFree(request.d_scores));
        CU(cuMemAlloc(&request.d_scores, request.scores_bytes));
        EXPECT(TOPKD_OK,
               topkd_cuda_allocation(client, (void *)(uintptr_t)request.d_scores, 4, &is));
        CHECK(is.id != was.id, "freed and made again, the id is still %llu",
              (unsigned long long)is.id);
        num_same += before == request.d_scores;
        EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)request.d_scores,
                                                    request.scores_bytes, TOPKD_ACCESS_READ,
                                                    &request.scores));
        request.request.scores.region = request.scores;
        select_at(client, &request, request.scores, request.d_scores, 0, options->seed + round);
        if (round % 2 == 0) /* too late, as a careless program does it */
            EXPECT(TOPKD_OK, topkd_region_unregister(old));
    }
    printf("same_address=%u of 6\n", num_same);
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_ranges(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "ranges");
    struct service_request request;
    struct topkd_result result;
    service_request_open(client, 8, 4096, 128, &request);
    const struct topkd_select_request good = request.request;
#define REFUSED(status, ...)                                                                       \
    do {                                                                                           \
        struct topkd_select_request asked = good;                                                  \
        __VA_ARGS__;                                                                               \
        EXPECT(status, topkd_select(client, &asked, &result));                                     \
    } while (0)
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.rows = 9);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.width = 4097);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.scores.offset_bytes = 4);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.scores.stride = 4097);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.scores.stride = INT64_MAX / 4);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.scores.offset_bytes = UINT64_MAX - 3);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.k = 129);
    REFUSED(TOPKD_E_OUT_OF_RANGE, asked.indices.offset_bytes = 8);
    REFUSED(TOPKD_E_READ_ONLY, asked.indices.region = request.scores);
    REFUSED(TOPKD_E_INVALID, asked.k = 0);
    REFUSED(TOPKD_E_INVALID, asked.scores.stride = 4095);
#undef REFUSED
    EXPECT(TOPKD_OK, topkd_region_unregister(request.scores));
    service_request_draw(&request, options->seed);
    EXPECT(TOPKD_OK, topkd_region_register_cuda(client, (void *)(uintptr_t)request.d_scores,
                                                request.scores_bytes, TOPKD_ACCESS_READ_WRITE,
                                                &request.scores));
    request.request.scores.region = request.scores;
    struct topkd_select_request overlap = request.request;
    overlap.indices = (struct topkd_tensor){.region = request.scores, .offset_bytes = 4096};
    EXPECT(TOPKD_E_OVERLAP, topkd_select(client, &overlap, &result));
    service_request_upload(&request);
    EXPECT(TOPKD_OK, topkd_select(client, &request.request, &result));
    service_request_check(&request, 0);
    service_request_close(&request);
    topkd_client_close(client);
}

void service_case_other_device(const struct service_options *options)
{
    struct topkd_client *client = service_open(options, "other_device");
    int count = 0;
    CU(cuDeviceGetCount(&count));
    CHECK(count >= 2, "%d devices in this process", count);
    for (int i = 0; i < count; i++) {
        CUdevice other;
        CUcontext context;
        CUdeviceptr memory;
        CU(cuDeviceGet(&other, i));
        if (other == service_gpu_device())
            continue;
        CU(cuDevicePrimaryCtxRetain(&context, other));
        CU(cuCtxPushCurrent(context));
        CU(cuMemAlloc(&memory, 1 << 20));
        CU(cuCtxPopCurrent(&context));
        refuse(client, memory, 4096, TOPKD_E_NOT_VISIBLE, "open a session with that device");
    }
    topkd_client_close(client);
}
