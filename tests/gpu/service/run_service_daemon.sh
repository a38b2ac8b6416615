# shellcheck shell=bash
# Of run_service.sh: the daemon under test and MPS; both begin and end with a group of tests.
# shellcheck disable=SC2154,SC2034 # work, bin, url and others are run_service.sh's

config() {
    cat >"$work/topkd.yaml" <<YAML
socket:
  directory: $work/run
devices: $devices
limits:
  registrations_per_s: 100000
${more_limits:-}
buckets:
  - {rows: 64, width: 131072, k: 2048}
  - {rows: 4, width: 16384, k: 512}
YAML
}

start() { # environment...
    config
    "${under[@]}" "$@" "$bin/topkd" --config "$work/topkd.yaml" >>"$work/log" 2>&1 </dev/null &
    daemon=$!
    for _ in $(seq 300); do
        ctl devices 2>/dev/null | awk '/^GPU-/ {n++; r += $2 == "ready"} END {exit !(n && n == r)}' &&
            return 0
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    echo "the daemon did not get ready"; tail -5 "$work/log"
    return 1
}

stop() {
    [ -n "$daemon" ] || return 0
    kill -TERM "$daemon" 2>/dev/null
    for _ in $(seq 300); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$daemon" 2>/dev/null && echo "the daemon had to be killed"
    wait "$daemon" 2>/dev/null
    daemon=
}

worker_pid() { ctl devices | awk '/^GPU-/ {print $5; exit}'; }
worker_kib() { awk '/VmRSS/ {print $2}' "/proc/$(worker_pid)/status"; }
num_sessions_of() { ctl sessions --json | grep -o "\"client\":\"$1\"" | wc -l; }

# The stand-in's memory of processes that were killed.
sweep() {
    local file pid
    for file in /dev/shm/fakecuda-*; do
        pid=${file#/dev/shm/fakecuda-}; pid=${pid%%-*}
        [ -e "$file" ] && [ ! -e "/proc/$pid" ] && rm -f "$file"
    done
}

finish() { stop; mps_stop; [ -z "$stand_in" ] || sweep; rm -rf "$work"; }

# ---- MPS ----------------------------------------------------------------------------------------

mps_start() {
    PATH=$PATH:/usr/local/nvidia/bin command -v nvidia-cuda-mps-control >/dev/null || return 1
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
    mkdir -p "$work/mps" "$work/mps-log"
    PATH=$PATH:/usr/local/nvidia/bin nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1
}

mps_stop() {
    [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
    echo quit | PATH=$PATH:/usr/local/nvidia/bin timeout 20 nvidia-cuda-mps-control \
        >/dev/null 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
