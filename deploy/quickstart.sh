#!/usr/bin/env bash
# topkd from nothing, on one machine without a GPU:
#
#   deploy/quickstart.sh [FILE.npy]
#
# installs the packages that are missing (with sudo unless root), builds into build/quickstart,
# starts the daemon on its CPU device in a private folder, lets two client processes select from it
# at once (from generated indexer scores, or from the float32 or float16 matrix in FILE.npy) and
# check every row, prints their lines, and stops the daemon. Nothing stays behind but the build
# folder.
#
# Exit code: 0 all rows exact and a clean end, 1 anything else, 2 wrong command line.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/quickstart
ready_within_s=30
end_within_s=20

say() {
    echo "quickstart: $*"
}

die() {
    echo "quickstart: $*" >&2
    exit 1
}

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
}

daemon_pid=
client_pids=()
folder=

# Ends what this script started and removes what it made, on every way out. The clients first: the
# daemon removes the shared memory of a client that has died.
clean_up() {
    local pid
    trap - EXIT INT TERM HUP
    for pid in "${client_pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    if [[ -n $daemon_pid ]]; then
        kill -TERM "$daemon_pid" 2>/dev/null || true
        wait_for_end "$end_within_s" "$daemon_pid" || kill -KILL "$daemon_pid" 2>/dev/null || true
        wait "$daemon_pid" 2>/dev/null || true
    fi
    if [[ -n $folder ]]; then
        rm -rf -- "$folder"
    fi
}

# Waits up to $1 seconds for process $2 to end. 0 when it has.
wait_for_end() {
    local deadline=$((SECONDS + $1))
    while kill -0 "$2" 2>/dev/null; do
        if ((SECONDS >= deadline)); then
            return 1
        fi
        sleep 0.05
    done
}

build_all() {
    local log=$build.log
    mkdir -p "$root/build"
    say "building into build/quickstart (log: build/quickstart.log)"
    if ! {
        cmake --preset release -S "$root" -B "$build" \
            -DTOPKD_CUDA=OFF -DTOPKD_TESTS=OFF -DTOPKD_BENCH=OFF &&
            cmake --build "$build" --target topkd topkctl indexer_client
    } >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "the build failed; all of its output is in $log"
    fi
}

start_daemon() {
    local deadline=$((SECONDS + ready_within_s))
    "$build/bin/topkd" --device cpu --socket-dir "$folder" >"$folder/log" 2>&1 &
    daemon_pid=$!
    until "$build/bin/topkctl" ping --timeout 1s >"$folder/ping" 2>&1; do
        if ! kill -0 "$daemon_pid" 2>/dev/null; then
            cat "$folder/log" >&2
            die "topkd ended instead of becoming ready; its log is above"
        fi
        if ((SECONDS >= deadline)); then
            cat "$folder/log" "$folder/ping" >&2
            die "topkd is not ready after $ready_within_s s; its log and the last ping are above"
        fi
        sleep 0.1
    done
    say "$(cat "$folder/ping")"
}

run_clients() {
    local client seed status=0
    for seed in 1 2; do
        "$build/bin/indexer_client" --seed "$seed" "$@" >"$folder/client.$seed" 2>&1 &
        client_pids+=("$!")
    done
    for client in "${client_pids[@]}"; do
        wait "$client" || status=1
    done
    client_pids=()
    for seed in 1 2; do
        sed "s/^/client $seed: /" "$folder/client.$seed"
    done
    if ((status != 0)); then
        cat "$folder/log" >&2
        die "a client failed; its line and the daemon's log are above"
    fi
}

stop_daemon() {
    local status=0
    kill -TERM "$daemon_pid"
    if ! wait_for_end "$end_within_s" "$daemon_pid"; then
        cat "$folder/log" >&2
        die "topkd has not ended $end_within_s s after SIGTERM; its log is above"
    fi
    wait "$daemon_pid" || status=$?
    daemon_pid=
    if ((status != 0)); then
        cat "$folder/log" >&2
        die "topkd ended with exit code $status after SIGTERM; its log is above"
    fi
}

main() {
    local scores=()
    case ${1:-} in
    -h | --help)
        usage
        return
        ;;
    -*)
        usage >&2
        exit 2
        ;;
    esac
    if (($# > 1)); then
        usage >&2
        exit 2
    fi
    if (($# == 1)); then
        [[ -r $1 ]] || die "$1 cannot be read"
        scores=(--scores "$(realpath -- "$1")")
    fi

    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    "$root/deploy/packages.sh" install build
    build_all
    # Short, because the path of a Unix socket has at most 107 bytes.
    folder=$(mktemp -d /tmp/topkd-quickstart.XXXXXX)
    export TOPKD_URL=ipc://$folder/topkd.sock
    start_daemon
    run_clients "${scores[@]}"
    stop_daemon
    say "two clients at once, every row exact, and a clean end"
}

main "$@"
