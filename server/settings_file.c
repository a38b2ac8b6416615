/* Settings from files and descriptors. */
#include "settings_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads at most one byte more than a configuration may have, so that the parser sees the excess.
 * With `positioned` the descriptor's own position is neither used nor moved. 0, or errno. */
static int read_all(int fd, bool positioned, char *text, size_t *size_p)
{
    size_t size = 0;
    while (size < SETTINGS_TEXT_SIZE_MAX + 1) {
        size_t room = SETTINGS_TEXT_SIZE_MAX + 1 - size;
        ssize_t n =
            positioned ? pread(fd, text + size, room, (off_t)size) : read(fd, text + size, room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            break;
        size += (size_t)n;
    }
    *size_p = size;
    return 0;
}

static enum topkd_status load(int fd, bool positioned, const char *name,
                              struct settings *settings_p, struct settings_report *report)
{
    struct settings_mark nowhere = {0, 0};
    enum topkd_status status;
    size_t size = 0;
    char *text = malloc(SETTINGS_TEXT_SIZE_MAX + 1);
    if (text == NULL) {
        settings_report_add(report, name, nowhere, "", "out of memory");
        return TOPKD_E_NO_MEMORY;
    }
    int error = read_all(fd, positioned, text, &size);
    if (error != 0) {
        settings_report_add(report, name, nowhere, "", "cannot be read: %s", strerror(error));
        status = TOPKD_E_SYSTEM;
    } else {
        status = settings_parse(text, size, name, settings_p, report);
    }
    free(text);
    return status;
}

enum topkd_status settings_load_fd(int fd, const char *name, struct settings *settings_p,
                                   struct settings_report *report)
{
    return load(fd, true, name, settings_p, report);
}

enum topkd_status settings_load_file(const char *path, struct settings *settings_p,
                                     struct settings_report *report)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        settings_report_add(report, path, (struct settings_mark){0, 0}, "", "cannot be opened: %s",
                            strerror(errno));
        return TOPKD_E_SYSTEM;
    }
    enum topkd_status status = load(fd, false, path, settings_p, report);
    close(fd);
    return status;
}
