#!/bin/bash
# Runs the selection kernels under compute-sanitizer, each of its tools, on small shapes of every
# family. On a GPU host:  tests/gpu/sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL]
set -u
bin=${1:?usage: sanitize.sh BUILD_FOLDER [SECONDS_A_TOOL]}/bin
limit=${2:-300}
command -v compute-sanitizer >/dev/null || {
    echo "compute-sanitizer is not on PATH: it comes with the CUDA toolkit" >&2
    exit 2
}
passed=0 failed=0
for tool in memcheck racecheck synccheck initcheck; do
    log=$(mktemp)
    if timeout "$limit" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$bin/gpu_select_families" --sanitize >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok     $tool: $(grep -E '^========= (ERROR|RACECHECK) SUMMARY' "$log")"
    else
        failed=$((failed + 1))
        echo "FAILED $tool (exit $?):"
        grep -vE '^ok ' "$log" | head -n 20
    fi
    rm -f "$log"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
