#!/bin/bash
# Runs the selection kernels under compute-sanitizer, each of its tools, on small shapes of every
# family. On a GPU host:  tests/gpu/sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL]
#
# racecheck reports every stage of the ring as a race: of the bulk copy into it with the reads of
# the warps that scan it. A warp's reads are ordered before the next copy by __syncwarp and one
# lane's arrival at the stage's barrier; the tool does not see that this lane stands for its warp.
# These reports, and no others, are counted apart.
set -u
bin=${1:?usage: sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL]}/bin
limit=${2:-300}
command -v compute-sanitizer >/dev/null || {
    echo "compute-sanitizer is not on PATH: it comes with the CUDA toolkit" >&2
    exit 2
}
passed=0 failed=0

# Prints "RING OTHER": how many races of a log are the ring's, and how many are not.
count_races() {
    awk '
        / Race reported between / { close_report(); open = 1
                                    ring = /Write access at .*stream_kernel</ }
        open && /^=========     and / && !/Read access at .*scan_chunks</ { ring = 0 }
        function close_report() { if (open) { if (ring) rings++; else others++ } open = 0 }
        END { close_report(); print rings + 0, others + 0 }' "$1"
}

for tool in memcheck racecheck synccheck initcheck; do
    log=$(mktemp)
    timeout --kill-after=10 "$limit" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$bin/gpu_select_families" --sanitize >"$log" 2>&1
    code=$?
    note=""
    if [ "$tool" = racecheck ] && [ "$code" -eq 9 ] && grep -q ' passed, 0 failed$' "$log"; then
        read -r ring other < <(count_races "$log")
        if [ "$ring" -gt 0 ] && [ "$other" -eq 0 ]; then
            code=0 note=" (all $ring of the ring)"
        fi
    fi
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok     $tool: $(grep -E '^========= (ERROR|RACECHECK) SUMMARY' "$log")$note"
    else
        failed=$((failed + 1))
        echo "FAILED $tool (exit $code):"
        grep -vE '^ok ' "$log" | head -n 20
    fi
    rm -f "$log"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
