/*
 * cleanup.h - unfinished output files are removed when a signal ends the program, and a mapped file
 * that shrinks while it is read (SIGBUS) is reported instead of a silent death.
 */
#ifndef TOPKCTL_CLEANUP_H
#define TOPKCTL_CLEANUP_H

#define CLEANUP_FILES_MAX 2u /* the positions and the scores of a selection */

/* Installs the handlers; once. */
void cleanup_install(void);

/* Has the signal handler remove `path` (NULL: nothing any more). The string must live until it is
 * replaced. */
void cleanup_watch(unsigned slot, const char *path);

#endif
