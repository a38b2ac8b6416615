#include "figures.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS ((sizeof(struct figures) + sizeof(uint64_t) - 1) / sizeof(uint64_t))
/* Choice: a write takes about a microsecond and comes a few times a second. */
#define READ_TRIES 100

/* The sequence is odd while a writer is at work and grows by two with each write. */
struct figures_page {
    uint64_t sequence;
    uint64_t words[WORDS];
};

/* The same bytes as struct and as words, each of which is copied in one piece. */
union figures_words {
    struct figures figures;
    uint64_t words[WORDS];
};

void figures_count(struct figures_tally *tally, enum topkd_status status)
{
    if ((uint32_t)status < FIGURES_STATUSES)
        tally->by_status[status]++;
}

static struct figures_page *map(int fd, int protection)
{
    void *address = mmap(NULL, sizeof(struct figures_page), protection, MAP_SHARED, fd, 0);
    return address == MAP_FAILED ? NULL : address;
}

int figures_create(struct figures_page **page_p, int *fd_p)
{
    int error;
    int fd = memfd_create("topkd-figures", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)sizeof(struct figures_page)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
        goto err_close;
    struct figures_page *page = map(fd, PROT_READ);
    if (page == NULL)
        goto err_close;
    *page_p = page;
    *fd_p = fd;
    return 0;

err_close:
    error = errno;
    close(fd);
    return -error;
}

struct figures_page *figures_open(int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size != (off_t)sizeof(struct figures_page))
        return NULL;
    return map(fd, PROT_READ | PROT_WRITE);
}

void figures_close(struct figures_page *page)
{
    if (page != NULL)
        munmap(page, sizeof *page);
}

void figures_publish(struct figures_page *page, const struct figures *figures)
{
    union figures_words from = {.words = {0}};
    from.figures = *figures;
    uint64_t sequence = page->sequence | 1; /* an earlier life may have left it odd */
    __atomic_store_n(&page->sequence, sequence, __ATOMIC_RELAXED);
    for (size_t i = 0; i < WORDS; i++) /* who sees a new word sees the odd number too */
        __atomic_store_n(&page->words[i], from.words[i], __ATOMIC_RELEASE);
    __atomic_store_n(&page->sequence, sequence + 1, __ATOMIC_RELEASE);
}

bool figures_read(const struct figures_page *page, struct figures *figures_p)
{
    union figures_words to;
    for (int i = 0; i < READ_TRIES; i++) {
        uint64_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        if (before == 0)
            return false;
        if (before % 2 != 0)
            continue;
        for (size_t j = 0; j < WORDS; j++)
            to.words[j] = __atomic_load_n(&page->words[j], __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) != before)
            continue;
        /* What comes from another process indexes arrays here. */
        if (to.figures.stats.num_buckets > WIRE_BUCKETS_MAX ||
            to.figures.num_sessions > FIGURES_SESSIONS_MAX)
            return false;
        *figures_p = to.figures;
        return true;
    }
    return false;
}
