/* What is printed when a kernel does what it must not. */
#include "machine.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulate
{

namespace
{

constexpr size_t LINES_MAX = 60;

const char *base_name(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash != nullptr ? slash + 1 : file;
}

/* "block 3: 31 threads, the first 32, wait for a barrier at rank.cuh:120", one line a place. */
void print_block(const struct block &block, size_t &lines)
{
    std::map<std::string, std::pair<uint32_t, uint32_t>> places; /* count, first */
    for (uint32_t i = 0; i < block.num_threads; i++) {
        const struct thread &thread = block.threads[i];
        std::string text = thread.wait == wait::ended  ? "ended"
                           : thread.wait == wait::none ? std::string("can go on, ") + thread.what
                                                       : std::string("waits in ") + thread.what;
        if (thread.where.file != nullptr && thread.wait != wait::ended) {
            text += std::string(" at ") + base_name(thread.where.file) + ":" +
                    std::to_string(thread.where.line);
        }
        auto found = places.emplace(text, std::make_pair(0u, i)).first;
        found->second.first++;
    }
    for (const auto &place : places) {
        if (lines++ < LINES_MAX) {
            fprintf(stderr, "  block %u: %u threads (first %u): %s\n", block.index.x,
                    place.second.first, place.second.second, place.first.c_str());
        }
    }
}

} // namespace

void fail(struct site here, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "emulate: ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (here.file != nullptr) {
        fprintf(stderr, "\n  at %s:%d", base_name(here.file), here.line);
    }
    if (machine.current != nullptr) {
        fprintf(stderr, ", thread %u of block %u", machine.current->index,
                machine.current->block->index.x);
    }
    fprintf(stderr, "\n");
    size_t lines = 0;
    for (const struct grid *grid : machine.grids) {
        for (const auto &cluster : grid->clusters) {
            for (size_t i = 0; cluster != nullptr && i < cluster->blocks.size(); i++) {
                print_block(*cluster->blocks[i], lines);
            }
        }
    }
    if (lines > LINES_MAX) {
        fprintf(stderr, "  and %zu lines more\n", lines - LINES_MAX);
    }
    fprintf(stderr, "emulate: case %llu, device %s, seed 0x%llx\n",
            (unsigned long long)machine.case_number, machine.device.name,
            (unsigned long long)machine.seed);
    fflush(stderr);
    _Exit(3);
}

} // namespace emulate
