/* The page for people and what it loads, in the executable: made from server/page/ by the build. */
#ifndef TOPKD_SERVER_PAGE_H
#define TOPKD_SERVER_PAGE_H

#include <stddef.h>
#include <stdint.h>

struct page_file {
    const char *path, *content_type;
    const unsigned char *bytes;
    size_t size;
};

extern const struct page_file page_files[];
extern const uint32_t page_num_files;

#endif
