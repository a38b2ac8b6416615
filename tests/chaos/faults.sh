#!/usr/bin/env bash
# Measures what each fault does: tests/chaos/faults.sh [--build DIR] [FAULT...]
#
# Prints the table of tests/README.md; some two minutes. DIR is a build, build/dev without it. Exit
# code: 0 measured, 1 something did not come to pass.
set -euo pipefail

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../../build/dev
if [[ ${1:-} == --build ]]; then
    build=$2
    shift 2
fi
build=$(cd "$build" && pwd)
work=$(mktemp -d /tmp/topkd-faults.XXXXXX)
trap 'rm -rf "$work"' EXIT
if unshare --mount true 2>/dev/null; then
    # shellcheck disable=SC2016
    unshare --mount --propagation private bash -c '
        set -e
        mount -t tmpfs -o size=256m,mode=1777 tmpfs /dev/shm
        exec python3 "$@"
    ' _ "$here/faults.py" --bin "$build/bin" --work "$work" --small-disks "$@"
else
    python3 "$here/faults.py" --bin "$build/bin" --work "$work" "$@"
fi
