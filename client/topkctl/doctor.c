/* topkctl doctor: what stands in the way of the daemon and its clients on this machine, and what to
 * do about it. */
#include "doctor.h"

#include "clock.h"
#include "discover.h"
#include "json.h"
#include "rpc.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ASK_MS 2000u /* choice: a daemon that lives answers in far less */

static const char *const level_names[] = {"OK", "WARN", "FAIL"};

void doctor_note(struct doctor *doctor, enum doctor_level level, const char *subject,
                 const char *fix, const char *format, ...)
{
    uint32_t last = DOCTOR_FINDINGS_MAX - 1;
    struct doctor_finding *finding =
        &doctor->findings[doctor->num_findings < last ? doctor->num_findings : last];
    if (doctor->num_findings < DOCTOR_FINDINGS_MAX) {
        doctor->num_findings++;
    }
    memset(finding, 0, sizeof(*finding));
    finding->level = level;
    (void)snprintf(finding->subject, sizeof(finding->subject), "%s", subject);
    (void)snprintf(finding->fix, sizeof(finding->fix), "%s", fix ? fix : "");
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(finding->text, sizeof(finding->text), format, arguments);
    va_end(arguments);
}

/* ---- The daemon ------------------------------------------------------------------------------ */

/* False when this user cannot reach the socket, so that asking there says nothing more. */
static bool check_socket(struct doctor *doctor, const char *url)
{
    const char *path = strncmp(url, "ipc://", 6) == 0 ? url + 6 : url;
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno == EACCES) {
            doctor_note(doctor, DOCTOR_FAIL, "socket",
                        "add this user to the folder's group (counts from the next login), or set "
                        "socket.group and socket.directory_mode",
                        "%s: this user (uid %u) may not enter its folder", path, geteuid());
            return false;
        }
        doctor_note(doctor, DOCTOR_WARN, "socket",
                    "start topkd; if it runs elsewhere, give --url or set TOPKD_URL", "%s: %s",
                    path, strerror(errno));
        return true;
    }
    if (access(path, W_OK) != 0) {
        doctor_note(doctor, DOCTOR_FAIL, "socket",
                    "add this user to the socket's group (counts from the next login), or set "
                    "socket.group and socket.mode",
                    "%s: mode %04o, uid %u, gid %u: this user (uid %u) may not connect", path,
                    info.st_mode & 07777u, info.st_uid, info.st_gid, geteuid());
        return false;
    }
    doctor_note(doctor, DOCTOR_OK, "socket", NULL, "%s: mode %04o, uid %u, gid %u", path,
                info.st_mode & 07777u, info.st_uid, info.st_gid);
    return true;
}

static void check_devices(struct doctor *doctor)
{
    for (uint32_t i = 0; i < doctor->devices.num_devices; i++) {
        const struct wire_device *device = &doctor->devices.devices[i];
        if (device->state != WIRE_DEVICE_READY) {
            doctor_note(doctor, DOCTOR_FAIL, "worker", "read the daemon's log for worker_exit",
                        "%s is not ready (%u restarts)", device->device, device->restarts);
        } else if (device->restarts > 0) {
            doctor_note(doctor, DOCTOR_WARN, "worker", "read the daemon's log for worker_exit",
                        "%s is ready, but was restarted %u time%s", device->device,
                        device->restarts, device->restarts == 1 ? "" : "s");
        } else {
            doctor_note(doctor, DOCTOR_OK, "worker", NULL, "%s is ready: %s, pid %d",
                        device->device, device->name, device->pid);
        }
    }
}

/* Whether the device has as many lanes as its settings want. */
static void check_lanes(struct doctor *doctor, const struct wire_device *device,
                        uint64_t deadline_ns)
{
    static struct wire_reply reply;
    char detail[WIRE_DETAIL_SIZE] = "";
    struct rpc *rpc;
    struct wire_request request = {.kind = WIRE_STATS};
    enum topkd_status status = rpc_open(device->url, deadline_ns, &rpc, detail);
    if (status == TOPKD_OK) {
        status = rpc_exchange(rpc, &request, deadline_ns, &reply, detail);
        rpc_close(rpc);
    }
    const struct wire_stats_reply *stats = &reply.u.stats;
    if (status != TOPKD_OK) {
        doctor_note(doctor, DOCTOR_WARN, "lanes", topkd_strhint(status), "%s: %s: %s",
                    device->device, topkd_strerror(status), detail);
    } else if (stats->lanes_max < stats->lanes_wanted) {
        doctor_note(doctor, DOCTOR_WARN, "lanes",
                    "run one daemon a GPU, and MPS; or lower limits.client_lanes_max",
                    "%s: %u of %u lanes may be open: at the worker's start the GPU's hardware "
                    "queues held no more that wait",
                    device->device, stats->lanes_max, stats->lanes_wanted);
    } else {
        doctor_note(doctor, DOCTOR_OK, "lanes", NULL, "%s: %u may be open", device->device,
                    stats->lanes_max);
    }
}

/* Whether memory of the CPU device is seen on both sides: a session's page here, a buffer there. */
static void check_memory(struct doctor *doctor, const struct wire_device *device)
{
    const struct topkd_client_options options = {
        .url = doctor->options->url,
        .device = device->device,
        .name = "topkctl doctor",
        .timeout_ms = doctor->options->timeout_ms,
    };
    struct topkd_client *client = NULL; /* set only on success */
    struct topkd_buffer *buffer;
    enum topkd_status status = topkd_client_open(&options, &client);
    if (status == TOPKD_OK) {
        status = topkd_buffer_create(client, sizeof(float), &buffer);
    }
    if (status == TOPKD_OK) {
        doctor_note(doctor, DOCTOR_OK, "memory", NULL,
                    "%s: shared memory of either side was mapped by the other", device->device);
        topkd_buffer_destroy(buffer);
    } else {
        doctor_note(doctor, DOCTOR_FAIL, "memory",
                    status == TOPKD_E_MAP_FAILED
                        ? "give both the host's /dev/shm (ipc: host, or a shared mount)"
                        : topkd_strhint(status),
                    "%s: %s: %s", device->device, topkd_strerror(status), topkd_detail());
    }
    topkd_client_close(client);
}

static void check_daemon(struct doctor *doctor)
{
    static struct wire_reply reply;
    char url[WIRE_URL_SIZE], detail[WIRE_DETAIL_SIZE] = "";
    enum topkd_status status = discover_url(doctor->options->url, url, detail);
    if (status != TOPKD_OK) {
        doctor_note(doctor, DOCTOR_FAIL, "daemon", "give a shorter --url", "%s", detail);
        return;
    }
    if (!check_socket(doctor, url)) {
        return;
    }
    struct rpc *rpc;
    uint64_t deadline_ns =
        clock_after_ms(doctor->options->timeout_given ? doctor->options->timeout_ms : ASK_MS);
    status = rpc_open(url, deadline_ns, &rpc, detail);
    if (status == TOPKD_OK) {
        struct wire_request request = {.kind = WIRE_DEVICES};
        status = rpc_exchange(rpc, &request, deadline_ns, &reply, detail);
        rpc_close(rpc);
    }
    if (status != TOPKD_OK) {
        doctor_note(doctor, status == TOPKD_E_NOT_PERMITTED ? DOCTOR_FAIL : DOCTOR_WARN, "daemon",
                    topkd_strhint(status), "no answer: %s: %s", topkd_strerror(status), detail);
        return;
    }
    doctor->has_daemon = true;
    doctor->devices = reply.u.devices;
    doctor_note(doctor, DOCTOR_OK, "daemon", NULL, "%s answers, %u device%s", url,
                doctor->devices.num_devices, doctor->devices.num_devices == 1 ? "" : "s");
    check_devices(doctor);
    for (uint32_t i = 0; i < doctor->devices.num_devices; i++) {
        const struct wire_device *device = &doctor->devices.devices[i];
        if (device->kind == WIRE_DEVICE_CUDA && device->state == WIRE_DEVICE_READY) {
            check_lanes(doctor, device, deadline_ns);
        } else if (device->state == WIRE_DEVICE_READY) {
            check_memory(doctor, device);
        }
    }
}

/* ---- Namespaces ------------------------------------------------------------------------------ */

/* 1 the same, 0 another, -1 cannot be read. */
static int same_namespace(int pid, const char *name)
{
    char path[64];
    struct stat own, other;
    (void)snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
    if (stat(path, &own) != 0) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
    if (stat(path, &other) != 0) {
        return -1;
    }
    return own.st_ino == other.st_ino && own.st_dev == other.st_dev;
}

static const char *const namespaces[] = {"pid", "ipc", "mnt"};
enum { NUM_NAMESPACES = 3 };

/* One that is not known to be the worker's. */
static void note_namespace(struct doctor *doctor, const struct wire_device *device, int which,
                           bool differs)
{
    doctor_note(doctor, DOCTOR_OK, "namespace", NULL, "%s: the %s namespace %s: %s", device->device,
                namespaces[which], differs ? "differs from the worker's" : "cannot be compared",
                device->kind == WIRE_DEVICE_CUDA ? "handles and descriptors reach across"
                                                 : "no matter where /dev/shm is the same");
}

static void check_namespaces(struct doctor *doctor)
{
    for (uint32_t i = 0; i < doctor->devices.num_devices; i++) {
        const struct wire_device *device = &doctor->devices.devices[i];
        int num_same = 0;
        for (int which = 0; which < NUM_NAMESPACES && device->pid > 0; which++) {
            int same = same_namespace(device->pid, namespaces[which]);
            num_same += same == 1;
            if (same != 1) {
                note_namespace(doctor, device, which, same == 0);
            }
        }
        if (num_same == NUM_NAMESPACES) {
            doctor_note(doctor, DOCTOR_OK, "namespace", NULL,
                        "%s: pid, ipc and mnt namespace are the worker's too", device->device);
        }
    }
}

/* ---- Output ---------------------------------------------------------------------------------- */

static void print_json(const struct doctor *doctor, enum doctor_level worst)
{
    struct json json = json_of(stdout);
    json_open_object(&json, NULL);
    json_string(&json, "worst", level_names[worst]);
    json_open_array(&json, "findings");
    for (uint32_t i = 0; i < doctor->num_findings; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        json_open_object(&json, NULL);
        json_string(&json, "level", level_names[finding->level]);
        json_string(&json, "subject", finding->subject);
        json_string(&json, "text", finding->text);
        if (finding->fix[0] != '\0') {
            json_string(&json, "fix", finding->fix);
        }
        json_close_object(&json);
    }
    json_close_array(&json);
    json_close_object(&json);
    json_end(&json);
}

static void print_text(const struct doctor *doctor)
{
    for (uint32_t i = 0; i < doctor->num_findings; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        printf("%-4s  %-14s  %s\n", level_names[finding->level], finding->subject, finding->text);
        if (finding->fix[0] != '\0') {
            printf("      %-14s  fix: %s\n", "", finding->fix);
        }
    }
}

enum ctl_exit command_doctor(const struct ctl_options *options)
{
    static struct doctor doctor; /* large */
    doctor.options = options;
    check_daemon(&doctor);
    check_namespaces(&doctor);
    doctor_gpus(&doctor);
    doctor_share(&doctor);
    enum doctor_level worst = DOCTOR_OK;
    for (uint32_t i = 0; i < doctor.num_findings; i++) {
        worst = doctor.findings[i].level > worst ? doctor.findings[i].level : worst;
    }
    if (options->json) {
        print_json(&doctor, worst);
    } else {
        print_text(&doctor);
    }
    return worst == DOCTOR_FAIL ? CTL_EXIT_FAILED : CTL_EXIT_OK;
}
