/*
 * supervisor.h - the parent of the workers: starts, watches and restarts them, serves discovery.
 */
#ifndef TOPKD_SERVER_SUPERVISOR_H
#define TOPKD_SERVER_SUPERVISOR_H

#include "options.h"
#include "settings.h"

/*
 * Runs until a signal or an operator ends it. `options` are read again at SIGHUP and must live as
 * long as the call; `settings` come from them, with the runtime folder resolved. Returns the exit
 * code of the process (see options_help). Creates no CUDA context. log_init has been called.
 */
int supervisor_main(const struct options *options, const struct settings *settings);

#endif
