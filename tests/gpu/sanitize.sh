#!/bin/bash
# Runs the selection kernels under compute-sanitizer, each of its tools or those named, on small
# shapes of every family. On a GPU host:
#
#   tests/gpu/sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL [TOOL...]]
#
# racecheck wants a build of its own, configured with -DTOPKD_RACECHECK=ON: it does not see that one
# thread's arrival at a barrier stands, after __syncwarp or a barrier of theirs, for others; there
# every thread arrives for itself. Two kinds of race are reported all the same that are none. It
# takes no notice of the barrier of the whole block between the warps that share rows out and those
# that read the share. And it does not know that the blocks of a cluster are ordered by what they
# send each other (st.async on a barrier, between two fences) before one reads what another wrote:
# lists that the others send to the first, and what it loads from theirs; counts and entries that
# the blocks of `wide` send each other. These reports, and no others, are counted apart, by the
# files of the write and of the read, so build with line information (RelWithDebInfo); an
# instruction written as PTX is in ptx.cuh. Under racecheck a selection takes a second and more, so
# that it gets the fewest.
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

# Prints "SHARES LISTS OTHER": how many races of a log are of a block's share of rows, of lists read
# by another block, and neither.
count_races() {
    awk '
        / Race reported between / { close_report(); open = 1; write = read = "" }
        open && match($0, / (Write|Read) access at /) {
            where = $0
            sub(/.* in /, "", where)
            sub(/:[0-9]+.*/, "", where)
            sub(/.*\//, "", where)
            if (/ Write access at /) write = write where; else read = read where
        }
        function close_report() {
            if (!open) return
            open = 0
            if (write ~ /^(share[.]cuh)+$/ && read ~ /^((share|stream_sample)[.]cuh)+$/) shares++
            else if (write == "ptx.cuh" && read == "cluster_finish.cuh") lists++
            else if (write == "ptx.cuh" && read ~ /^wide(_state)?\.cuh?$/) lists++
            else if (write == "cluster_admit.cuh" && read == "ptx.cuh") lists++
            else others++
        }
        END { close_report(); print shares + 0, lists + 0, others + 0 }' "$1"
}

for tool in "${tools[@]}"; do
    log=$(mktemp)
    cases=--sanitize
    [ "$tool" != racecheck ] || cases=--once
    timeout --kill-after=10 "$limit" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$bin/gpu_select_families" "$cases" >"$log" 2>&1
    code=$?
    note=""
    if [ "$tool" = racecheck ] && [ "$code" -eq 9 ] && grep -q ' passed, 0 failed$' "$log"; then
        read -r share list other < <(count_races "$log")
        note=" ($share of shares, $list of lists, $other others)"
        if [ $((share + list)) -gt 0 ] && [ "$other" -eq 0 ]; then code=0; fi
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
