#!/usr/bin/env bash
# Tests of the supervisor with real processes, each in a folder of its own:
#
#   supervisor_test.sh BIN_DIR CASE     runs one case
#   supervisor_test.sh BIN_DIR --list   names all cases
#
# BIN_DIR holds topkd, supervisor_probe and fake_topkd (the supervisor with workers that misbehave).
# Every wait has an end. Exit code: 0 passed, 1 failed (the log of the daemon follows), 125 not
# possible here (the reason is printed).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=supervisor_lib.sh
source "$here/supervisor_lib.sh"
# shellcheck source-path=SCRIPTDIR source=cases_daemon.sh
source "$here/cases_daemon.sh"
# shellcheck source-path=SCRIPTDIR source=cases_peers.sh
source "$here/cases_peers.sh"
# shellcheck source-path=SCRIPTDIR source=cases_workers.sh
source "$here/cases_workers.sh"

# Every function of several lines in those files.
cases() { sed -n 's/^\([a-z_0-9]*\)() {$/\1/p' "$here"/cases_*.sh; }

if [[ ${2:-} == --list ]]; then
    cases
    exit 0
fi
if [[ $'\n'$(cases)$'\n' != *$'\n'${2:-}$'\n'* ]]; then
    echo "no such case: ${2:-}; supervisor_test.sh BIN_DIR --list names them" >&2
    exit 1
fi
set_up
"$2"
echo "passed: $2"
