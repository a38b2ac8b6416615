#!/usr/bin/env bash
# Looks for faults along the paths of the C sources, without running them:
#
#   tests/analyse/run.sh
#
#   gcc -fanalyzer   the daemon, but for its CUDA files, which need the toolkit's headers
#   cppcheck         daemon, client library, topkctl, wire
#
# Findings are errors. What is left out, and why, is here and in cppcheck.suppress.
# Exit code: 0 nothing was found, 1 something was.
set -euo pipefail

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

# malloc-leak: an object whose first member is handed over (device_memory in memory_cpu, a watch in
#   an orphan) is taken for lost, and so is what an object of unknown origin keeps. LeakSanitizer
#   sees every test instead.
# too-complex: says that it gave up on a function; nothing was found in it.
gcc_analyse() {
    printf '%s\0' "$@" |
        xargs -0 -P "$(nproc)" -I{} gcc -std=gnu11 -O1 -fanalyzer -Wno-analyzer-malloc-leak \
            -Wno-analyzer-too-complex -Werror -D_GNU_SOURCE -DTOPKD_WITH_SYSTEMD \
            -DTOPKD_VERSION_TEXT='""' -I. -Iproto/include -Ikernels/include -c {} -o /dev/null
}

cppcheck_all() {
    cppcheck -j "$(nproc)" --quiet --std=c11 --enable=warning,performance,portability \
        --error-exitcode=1 --library="$here/cppcheck.cfg" --inline-suppr \
        --suppressions-list="$here/cppcheck.suppress" -D_GNU_SOURCE -DTOPKD_VERSION_TEXT='""' \
        -I. -Iproto/include -Ikernels/include -Iclient/include "$@"
}

result=0
mapfile -t files < <(git ls-files 'server/*.c' | grep -v '^server/device_cuda')
echo "gcc -fanalyzer: ${#files[@]} files"
gcc_analyse "${files[@]}" || result=1
mapfile -t files < <(git ls-files 'server/*.c' 'client/lib/*.c' 'client/topkctl/*.c' 'proto/*.c')
echo "cppcheck: ${#files[@]} files"
cppcheck_all "${files[@]}" || result=1
exit $result
