/*
 * supervisor_folder.h - the runtime folder, and the lock that makes its daemon the only one.
 */
#ifndef TOPKD_SERVER_SUPERVISOR_FOLDER_H
#define TOPKD_SERVER_SUPERVISOR_FOLDER_H

#include "settings.h"

struct folder {
    int lock_fd; /* holds the flock; closing it, or death, gives the folder up */
};

/*
 * Makes the folder when it is missing (its parent must exist), gives it group and mode, and locks
 * it. 0, or an exit code with a text that says what to do: EX_CANTCREAT, EX_NOPERM, EX_TEMPFAIL
 * (another topkd holds it; the text names its pid), EX_OSERR.
 */
int folder_open(const struct settings *settings, struct folder *folder_p, char *text,
                size_t text_size);
void folder_close(struct folder *folder);

#endif
