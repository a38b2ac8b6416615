#!/bin/bash
# Runs the selection kernels under compute-sanitizer, each of its tools or those named, on small
# shapes of every family. On a GPU host:
#
#   tests/gpu/sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL [TOOL...]]
#
# racecheck reports two kinds of race that are none. It sees neither that one lane's arrival at a
# barrier of the ring stands, after __syncwarp, for the reads of its whole warp; nor that the blocks
# of a cluster are ordered by what they send each other (st.async on a barrier, between two fences)
# before one reads the lists of the others. These reports, and no others, are counted apart; the
# second kind is told by the line of the read, so build with line information (RelWithDebInfo).
set -u

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
bin=${1:?usage: sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL [TOOL...]]}/bin
limit=${2:-300}
tools=("${@:3}")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck synccheck initcheck)
command -v compute-sanitizer >/dev/null || {
    echo "compute-sanitizer is not on PATH: it comes with the CUDA toolkit" >&2
    exit 2
}
passed=0 failed=0

# Prints "RING LISTS OTHER": how many races of a log are of the ring's stages, of lists read by
# another block, and neither.
count_races() {
    awk '
        / Race reported between / { close_report(); open = ring = list = 1 }
        open && / (Write|Read) access at / {
            if (!/Write access at .*(stream_kernel<| in ring\.cuh:)/ &&
                !/Read access at .*(scan_chunks<| in stream_scan\.cuh:)/) ring = 0
            if (!/Write access at .* in cluster_admit\.cuh:/ &&
                !/Read access at .* in cluster_state\.cuh:/) list = 0
        }
        function close_report() {
            if (open) { if (ring) rings++; else if (list) lists++; else others++ }
            open = 0
        }
        END { close_report(); print rings + 0, lists + 0, others + 0 }' "$1"
}

for tool in "${tools[@]}"; do
    log=$(mktemp)
    timeout --kill-after=10 "$limit" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$bin/gpu_select_families" --sanitize >"$log" 2>&1
    code=$?
    note=""
    if [ "$tool" = racecheck ] && [ "$code" -eq 9 ] && grep -q ' passed, 0 failed$' "$log"; then
        read -r ring list other < <(count_races "$log")
        note=" ($ring of the ring, $list of lists, $other others)"
        if [ $((ring + list)) -gt 0 ] && [ "$other" -eq 0 ]; then code=0; fi
    fi
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok     $tool: $(grep -E '^========= (ERROR|RACECHECK) SUMMARY' "$log")$note"
    else
        failed=$((failed + 1))
        echo "FAILED $tool (exit $code)$note:"
        grep -vE '^ok ' "$log" | head -n 20
    fi
    rm -f "$log"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
