#!/bin/bash
# Runs every test that needs a GPU, on a GPU host:  tests/gpu/run.sh BUILD_FOLDER [SECONDS_A_TEST]
# Programs are found by their prefix gpu_ in BUILD_FOLDER/bin. Then lanes of selections replay
# beside another process that holds all multiprocessors but one: without CUDA's Multi-Process
# Service the two take turns, with it they run side by side. service/run_service.sh comes last, if
# its client was built. Closes with "N passed, N failed".
set -u

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

bin=${1:?usage: run.sh BUILD_FOLDER [SECONDS_A_TEST]}/bin
limit=${2:-300}
shopt -s nullglob
programs=("$bin"/gpu_*)
if [ ${#programs[@]} -eq 0 ]; then
    echo "no gpu_* program in $bin: configure with -DTOPKD_CUDA=ON and build" >&2
    exit 2
fi
passed=0 failed=0

# run NAME SECONDS COMMAND...: runs one test within a limit and counts it.
run() {
    local name=$1 seconds=$2 begin=$SECONDS log code why
    shift 2
    log=$(mktemp)
    timeout --kill-after=30 "$seconds" "$@" >"$log" 2>&1
    code=$?
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok     $name: $(tail -n 1 "$log") ($((SECONDS - begin)) s)"
    else
        failed=$((failed + 1))
        why="exit status $code"
        [ "$code" -eq 124 ] || [ "$code" -eq 137 ] && why="ran past $seconds s"
        echo "FAILED $name: $why"
        grep -vE '^ok ' "$log" | tail -n 20
    fi
    rm -f "$log"
}

# beside NAME LANES: lanes beside a neighbour, which must hold its multiprocessors to the end.
beside() {
    local name=$1 lanes=$2 line="" before=$failed
    coproc NEIGHBOUR { exec timeout --kill-after=10 "$limit" "$bin/hold_gpu" 1; }
    local pid=$NEIGHBOUR_PID in=${NEIGHBOUR[1]}
    if ! read -r -t 60 line <&"${NEIGHBOUR[0]}" || [[ $line != holding* ]]; then
        failed=$((failed + 1))
        echo "FAILED $name: the neighbour did not start"
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        return
    fi
    run "$name" "$limit" "$bin/gpu_select_replay" "$lanes"
    exec {in}>&-
    if ! wait "$pid" && [ "$failed" -eq "$before" ]; then
        failed=$((failed + 1)) passed=$((passed - 1))
        echo "FAILED $name: the neighbour had gone before the lanes were done"
    fi
}

for program in "${programs[@]}"; do
    run "$(basename "$program")" "$limit" "$program"
done

if [ -x "$bin/gpu_select_replay" ] && [ -x "$bin/hold_gpu" ]; then
    beside "lanes beside a process, in turns" --lanes
    mps=$(PATH=$PATH:/usr/local/nvidia/bin command -v nvidia-cuda-mps-control)
    if [ -n "$mps" ]; then
        CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
        CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
        export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
        if "$mps" -d >/dev/null 2>&1; then
            beside "lanes beside a process, side by side (MPS)" --lanes-without-clusters
            echo quit | timeout 20 "$mps" >/dev/null 2>&1
        else
            echo "not run: lanes beside a process with MPS, its server did not start"
        fi
        rm -rf "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    else
        echo "not run: lanes beside a process with MPS, there is no nvidia-cuda-mps-control"
    fi
fi
if [ -x "$bin/service_client" ]; then
    service=$(dirname "$(realpath "$0")")/service/run_service.sh
    run run_service.sh $((2 * limit)) "$service" "$bin"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
