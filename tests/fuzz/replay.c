/*
 * replay.c - runs a fuzz target over files and folders, in builds without libFuzzer: every corpus
 * is a regression test for every compiler and sanitizer.
 *
 * usage: replay_TARGET PATH...
 */
#include "fuzz_check.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_SIZE_MAX (1u << 20) /* choice: far above any corpus file */

static unsigned num_inputs;

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file, "%s: %s", path, strerror(errno));
    /* exactly as large as the input, so that a sanitizer sees one byte too far */
    uint8_t *scratch = malloc(INPUT_SIZE_MAX);
    FUZZ_CHECK(scratch, "no memory");
    const size_t size = fread(scratch, 1, INPUT_SIZE_MAX, file);
    FUZZ_CHECK(!ferror(file) && feof(file), "%s: unreadable, or above %u bytes", path,
               INPUT_SIZE_MAX);
    fclose(file);
    uint8_t *exact = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(exact, "no memory");
    memcpy(exact, scratch, size);
    free(scratch);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    num_inputs++;
}

static void replay_path(const char *path)
{
    struct stat status;
    FUZZ_CHECK(stat(path, &status) == 0, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(status.st_mode)) {
        replay_file(path);
        return;
    }
    DIR *folder = opendir(path);
    FUZZ_CHECK(folder, "%s: %s", path, strerror(errno));
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        char inner[4096];
        if (entry->d_name[0] == '.')
            continue;
        FUZZ_CHECK(snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name) <
                       (int)sizeof(inner),
                   "%s: a path too long", path);
        replay_path(inner);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        replay_path(argv[i]);
    FUZZ_CHECK(num_inputs > 0, "no inputs");
    printf("%u inputs\n", num_inputs);
    return 0;
}
