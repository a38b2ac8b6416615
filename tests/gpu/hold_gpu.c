/*
 * hold_gpu - a neighbour: a process that holds multiprocessors until its standard input ends.
 *
 *   hold_gpu LEFT
 *
 * Takes all multiprocessors but LEFT, whole, prints "holding N" once it runs, and ends with status
 * 0 if it still held them when it was told to stop. run.sh runs lanes beside it.
 */
#include "select_hog.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HELD_CYCLES 100000000000ll /* about a minute: a forgotten neighbour ends by itself */

static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "hold_gpu: %s: %s\n", what, cudaGetErrorString(error));
        exit(2);
    }
}

int main(int argc, char **argv)
{
    int left = argc == 2 ? atoi(argv[1]) : -1, multiprocessors = 0, shared_bytes = 0;
    if (left < 0) {
        fprintf(stderr, "usage: hold_gpu LEFT\n");
        return 2;
    }
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "device");
    check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
          "device");
    if (left >= multiprocessors) {
        fprintf(stderr, "hold_gpu: %d left of %d: nothing to hold\n", left, multiprocessors);
        return 2;
    }
    int *words;
    cudaStream_t stream;
    check(cudaHostAlloc((void **)&words, 2 * sizeof(int), cudaHostAllocMapped), "memory");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    volatile int *stop = &words[0], *running = &words[1];
    *stop = *running = 0;
    const int blocks = multiprocessors - left;
    check(hog_start_counted(blocks, shared_bytes, &words[0], &words[1], HELD_CYCLES, stream),
          "start");
    while (*running < blocks && cudaStreamQuery(stream) == cudaErrorNotReady) {
        usleep(1000);
    }
    printf("holding %d\n", *running);
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    int held = cudaStreamQuery(stream) == cudaErrorNotReady && *running == blocks;
    *stop = 1;
    check(cudaStreamSynchronize(stream), "end");
    return held ? 0 : 1;
}
