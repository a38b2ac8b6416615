/*
 * xid_log.h - errors of GPUs that the driver wrote into the kernel's log. Pure.
 */
#ifndef TOPKCTL_XID_LOG_H
#define TOPKCTL_XID_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xid_summary {
    uint32_t num_hardware; /* lines with a number that stands for broken hardware or driver */
    uint32_t num_other;    /* lines of programs that faulted, and of numbers not known here */
    uint32_t last_hardware, last_other; /* their numbers */
    char hardware_at[32], other_at[32]; /* of which GPU: "PCI:0000:3b:00" */
};

/* Whether this Xid stands for the GPU, its memory, its links or its firmware, not for a program. */
bool xid_is_hardware(uint32_t xid);

/* Counts the lines "... NVRM: Xid (<where>): <number>, ..." of the text into a summary, which is
 * zero at first. */
void xid_scan(const char *text, size_t size, struct xid_summary *summary);

#endif
