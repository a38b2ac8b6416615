#!/bin/bash
# Runs every test that needs a GPU, on a GPU host:  tests/gpu/run.sh BUILD_FOLDER [SECONDS_A_TEST]
# Programs are found by their prefix gpu_ in BUILD_FOLDER/bin; service/run_service.sh comes last, if
# its client was built. Closes with "N passed, N failed".
set -u
bin=${1:?usage: run.sh BUILD_FOLDER [SECONDS_A_TEST]}/bin
limit=${2:-300}
shopt -s nullglob
programs=("$bin"/gpu_*)
if [ ${#programs[@]} -eq 0 ]; then
    echo "no gpu_* program in $bin: configure with -DTOPKD_CUDA=ON and build" >&2
    exit 2
fi
passed=0 failed=0
service=$(dirname "$(realpath "$0")")/service/run_service.sh
[ -x "$bin/service_client" ] && programs+=("$service")
for program in "${programs[@]}"; do
    begin=$SECONDS
    log=$(mktemp)
    if [ "$program" = "$service" ]; then
        timeout --kill-after=30 $((2 * limit)) "$program" "$bin" >"$log" 2>&1
    else
        timeout --kill-after=10 "$limit" "$program" >"$log" 2>&1
    fi
    code=$?
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok     $(basename "$program"): $(tail -n 1 "$log") ($((SECONDS - begin)) s)"
    else
        failed=$((failed + 1))
        [ "$code" -eq 124 ] && why="ran past $limit s" || why="exit status $code"
        echo "FAILED $(basename "$program"): $why"
        grep -vE '^ok ' "$log" | tail -n 20
    fi
    rm -f "$log"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
