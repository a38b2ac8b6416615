/*
 * cleanup.h - unfinished output files are removed when a signal ends the program, and a mapped file
 * that shrinks while it is read (SIGBUS) is reported instead of a silent death.
 */
#ifndef TOPKCTL_CLEANUP_H
#define TOPKCTL_CLEANUP_H

#define CLEANUP_FILES_MAX 2u /* the positions and the scores of a selection */

/* Installs the handlers; once. */
void cleanup_install(void);

/*
 * Between the two, signals wait, so that a file is made and handed to cleanup_watch in one step.
 * Only while the process has one thread: another one would take the signal.
 */
void cleanup_hold(void);
void cleanup_release(void);

/* Has the handler remove `path`, which is copied; NULL: nothing any more, after the file has got
 * its final name or was removed. Too long a path is not watched. */
void cleanup_watch(unsigned slot, const char *path);

#endif
