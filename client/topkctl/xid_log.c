#include "xid_log.h"

#include <string.h>

/* From the vendor's list of Xid errors. */
static const uint32_t hardware_xids[] = {
    48,       /* an uncorrectable memory error */
    61,  62,  /* the micro-controller of the GPU stopped */
    63,  64,  /* rows of memory were, or could not be, remapped */
    74,       /* an error of NVLink */
    79,       /* the GPU has fallen off the bus */
    92,       /* many corrected memory errors */
    94,  95,  /* a memory error, contained or not */
    119, 120, /* the GPU's firmware does not answer, or failed */
    140,      /* uncorrected memory errors */
    154,      /* the GPU wants a recovery action */
};

bool xid_is_hardware(uint32_t xid)
{
    for (size_t i = 0; i < sizeof(hardware_xids) / sizeof(hardware_xids[0]); i++) {
        if (hardware_xids[i] == xid) {
            return true;
        }
    }
    return false;
}

/* "PCI:0000:3b:00): 79, ..." up to `end`. */
static void scan_line(const char *at, const char *end, struct xid_summary *summary)
{
    const char *close = memchr(at, ')', (size_t)(end - at));
    uint32_t xid = 0;
    if (!close || end - close < 4 || close[1] != ':' || close[2] != ' ') {
        return;
    }
    const char *digit = close + 3;
    for (; digit < end && *digit >= '0' && *digit <= '9' && xid < 100000; digit++) {
        xid = xid * 10 + (uint32_t)(*digit - '0');
    }
    if (digit == close + 3) {
        return;
    }
    bool is_hardware = xid_is_hardware(xid);
    char *where = is_hardware ? summary->hardware_at : summary->other_at;
    size_t length = (size_t)(close - at);
    if (length >= sizeof(summary->other_at)) {
        length = sizeof(summary->other_at) - 1;
    }
    memcpy(where, at, length);
    where[length] = '\0';
    *(is_hardware ? &summary->num_hardware : &summary->num_other) += 1;
    *(is_hardware ? &summary->last_hardware : &summary->last_other) = xid;
}

void xid_scan(const char *text, size_t size, struct xid_summary *summary)
{
    static const char mark[] = "NVRM: Xid (";
    const char *end = text + size;
    while (text < end) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        line_end = line_end ? line_end : end;
        const char *found = memmem(text, (size_t)(line_end - text), mark, sizeof(mark) - 1);
        if (found) {
            scan_line(found + sizeof(mark) - 1, line_end, summary);
        }
        text = line_end + 1;
    }
}
