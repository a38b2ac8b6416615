/*
 * doctor.h - what the files of `topkctl doctor` share: the list of findings.
 */
#ifndef TOPKCTL_DOCTOR_H
#define TOPKCTL_DOCTOR_H

#include "ctl.h"
#include "topkd_wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DOCTOR_FINDINGS_MAX 160u /* choice: a machine of 16 GPUs has some 100 */
#define DOCTOR_TEXT_SIZE 320u

enum doctor_level { DOCTOR_OK = 0, DOCTOR_WARN = 1, DOCTOR_FAIL = 2 };

struct doctor_finding {
    enum doctor_level level;
    char subject[40];
    char text[DOCTOR_TEXT_SIZE];
    char fix[DOCTOR_TEXT_SIZE]; /* "" when the level is OK */
};

struct doctor {
    const struct ctl_options *options;
    uint32_t num_findings;
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
    /* Of the daemon, when one answers. */
    bool has_daemon;
    struct wire_devices_reply devices;
};

/* Notes a finding; `fix` may be NULL when the level is OK. Beyond the room the last is kept. */
void doctor_note(struct doctor *doctor, enum doctor_level level, const char *subject,
                 const char *fix, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Driver, devices by NVML, MPS, environment. Makes no CUDA context in this process. */
void doctor_gpus(struct doctor *doctor);

/* Errors that the driver reported: in the kernel's log, and by NVML (nvmlDevice_t each) now. */
void doctor_xid(struct doctor *doctor, void *const *devices, unsigned count);

/* Two fresh processes share memory of each device in each way that regions use. The calling
 * process has not started CUDA. */
void doctor_share(struct doctor *doctor);

#endif
