/* fake_counters.h - what fake_daemon counts: requests by kind (enum wire_kind). */
#ifndef TOPKD_TESTS_FAKE_COUNTERS_H
#define TOPKD_TESTS_FAKE_COUNTERS_H

#define FAKE_COUNTERS 32u

#endif
