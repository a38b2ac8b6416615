/*
 * names.c - names and texts of kinds and statuses, from the tables of the public headers.
 */
#include "wire_internal.h"

struct status_entry {
    enum topkd_status status;
    const char *name, *text, *hint;
};

static const struct status_entry statuses[] = {
#define STATUS_ENTRY(name, number, text, hint) {name, #name, text, hint},
    TOPKD_STATUS_TABLE(STATUS_ENTRY)
#undef STATUS_ENTRY
};

/* A number that another version of topkd may have sent. */
static const struct status_entry unknown_status = {
    TOPKD_E_VERSION, "TOPKD_E_?", "a status that this version does not know",
    "compare the versions of both sides (topkctl version)"};

#define NUM_STATUSES (sizeof(statuses) / sizeof(statuses[0]))

static const struct status_entry *find_status(uint32_t status)
{
    for (size_t i = 0; i < NUM_STATUSES; i++) {
        if ((uint32_t)statuses[i].status == status)
            return &statuses[i];
    }
    return &unknown_status;
}

bool wire_status_known(uint32_t status)
{
    return find_status(status) != &unknown_status;
}

const char *wire_status_name(enum topkd_status status)
{
    return find_status((uint32_t)status)->name;
}

const char *wire_status_text(enum topkd_status status)
{
    return find_status((uint32_t)status)->text;
}

const char *wire_status_hint(enum topkd_status status)
{
    return find_status((uint32_t)status)->hint;
}

bool wire_kind_known(uint32_t kind)
{
    switch (kind) {
#define KIND_CASE(name, number, text) case number:
        WIRE_KIND_TABLE(KIND_CASE)
#undef KIND_CASE
        return true;
    default:
        return false;
    }
}

const char *wire_kind_name(enum wire_kind kind)
{
    switch ((uint32_t)kind) {
#define KIND_NAME(name, number, text)                                                              \
    case number:                                                                                   \
        return text;
        WIRE_KIND_TABLE(KIND_NAME)
#undef KIND_NAME
    default:
        return "unknown";
    }
}
