/*
 * region_guard.h - survive client memory that vanishes.
 *
 * A client can shrink a shared memory object that this process has mapped, or its tmpfs can run
 * full; touching such a page raises SIGBUS. The handler looks the address up in a fixed table of
 * live mappings, puts anonymous zero pages over the whole mapping and marks it, so that the work
 * goes on (its result is worthless) and is answered TOPKD_E_REGION_FAULT. A SIGBUS anywhere else
 * ends the process as before.
 *
 * Functions are for any thread. A mapping is removed only when nothing touches it any more.
 */
#ifndef TOPKD_SERVER_REGION_GUARD_H
#define TOPKD_SERVER_REGION_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Choice: a quarter of the kernel's default limit of mappings a process (vm.max_map_count). */
#define REGION_GUARD_SLOTS 16384u

/* Installs the handler, once a process. */
void region_guard_install(void);

/* Watches a mapping of whole pages; `protection` as for mmap. False when the table is full. */
bool region_guard_add(void *base, size_t size_bytes, int protection, uint32_t *slot_p);
void region_guard_remove(uint32_t slot);

/* Whether memory of the mapping vanished since it was added. */
bool region_guard_faulted(uint32_t slot);

#endif
