#!/bin/bash
# The CUDA device as a service, with real processes: daemon, workers, clients.
#
# usage: run_service.sh [--stand-in LIBRARY] [--only GROUP[,GROUP...]] BIN
#
# BIN holds topkd, topkctl, service_client and service_stranger. With --stand-in the driver is the one of
# tests/support/fake_cuda and only what needs no device runs. Otherwise the machine has a GPU, and
# each group runs without and, where MPS can be started, with MPS. Every program has a time limit.
# Prints one line a test and closes with "N passed, N failed"; exit 0 when none failed.
set -u

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

stand_in='' only=''
while [ $# -gt 1 ]; do
    case $1 in
    --stand-in) stand_in=$(realpath "$2"); shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) echo "unknown option $1"; exit 64 ;;
    esac
done
bin=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
url=ipc://$work/run/topkd.sock
passed=0 failed=0
daemon=
mode=plain
if [ -n "$stand_in" ]; then scale=1; else scale=20; fi
# Lanes write to regions; eight sessions' arenas are 512 MiB for the stand-in to clear.
more_limits=
[ "$only" != lanes ] || more_limits='  arena_slot_bytes: 65536'

# Programs under test see the stand-in; the shell's own tools do not. env(1) becomes the program.
under=(env)
[ -z "$stand_in" ] || under=(env "LD_PRELOAD=$stand_in")
client() { "${under[@]}" timeout -k 2 "${limit:-60}" "$bin/service_client" "$@"; }
ctl() { timeout -k 2 20 "$bin/topkctl" --url "$url" "$@"; }

note() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1)); echo "ok   $mode $2"
    else
        failed=$((failed + 1)); echo "FAIL $mode $2"
        sed 's/^/     | /' "$work/out" | tail -n "${3:-12}"
    fi
}

check() { # name command...
    local name=$1; shift
    "$@" >"$work/out" 2>&1
    note $? "$name"
}

# shellcheck source-path=SCRIPTDIR source=run_service_daemon.sh
source "$here/run_service_daemon.sh"
# shellcheck source-path=SCRIPTDIR source=run_service_lanes.sh
source "$here/run_service_lanes.sh"
trap finish EXIT

# ---- Tests that are more than one client --------------------------------------------------------

several() { # number case rounds: that many clients at once
    local pids=() status=0 i
    for i in $(seq "$1"); do
        client "$2" "$url" "$3" "$i" >"$work/client-$i" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || status=1; done
    cat "$work"/client-*; rm -f "$work"/client-*
    return $status
}

background() { # case [command...]: starts it, under that command, and waits until it says that it waits
    local one=$1; shift
    : >"$work/held"
    "${under[@]}" timeout -k 2 60 "$@" "$bin/service_client" "$one" "$url" >"$work/held" 2>&1 &
    held=$!
    await_waiting
}

await_waiting() { # until the client that was started says that it waits
    for _ in $(seq 500); do
        grep -q waiting "$work/held" && return 0
        sleep 0.1
    done
    cat "$work/held"
    return 1
}

# timeout(1) passes no SIGKILL on: the client is its child.
kill_client() {
    # shellcheck disable=SC2046 # numbers
    kill -KILL $(cat "/proc/$held/task/$held/children")
    wait "$held" 2>/dev/null
}

it_client_dies() { # with regions and a request in flight: the session goes, others notice nothing
    background idle || return 1
    [ "$(num_sessions_of idle)" = 1 ] || { echo "no session of it"; return 1; }
    kill_client
    for _ in $(seq 200); do
        [ "$(num_sessions_of idle)" = 0 ] && break
        sleep 0.1
    done
    [ "$(num_sessions_of idle)" = 0 ] || { echo "its session is still there"; ctl sessions; return 1; }
    client exact "$url" 8 3
}

it_worker_dies() {
    background survive || return 1
    kill -KILL "$(worker_pid)"
    wait "$held"; local status=$?
    cat "$work/held"
    return $status
}

# Worker and supervisor die at once, and a new daemon comes to the same folder.
it_daemon_dies() {
    local worker
    background survive || return 1
    worker=$(worker_pid)
    kill -KILL "$daemon" "$worker"
    wait "$daemon" 2>/dev/null
    daemon=
    start || return 1
    wait "$held"; local status=$?
    cat "$work/held"
    return $status
}

# The client in its own namespaces sees the worker's death as any other does.
it_worker_dies_outside() {
    # shellcheck disable=SC2016 # for the shell inside
    background survive unshare --pid --fork --mount-proc --ipc --mount \
        sh -c 'mount -t tmpfs tmpfs /dev/shm && exec "$@"' sh || return 1
    kill -KILL "$(worker_pid)"
    wait "$held"; local status=$?
    cat "$work/held"
    return $status
}

# A daemon that keeps six graphs, beside clients with twelve shapes.
it_evicts() {
    local status kept
    stop
    more_limits='  buckets_max: 6' start || return 1
    several 2 evict 6
    status=$?
    kept=$(ctl stats --json | grep -o '"bucket":' | wc -l)
    echo "$kept buckets are kept"
    [ "$kept" -le 12 ] || status=1 # six for each of at most two devices
    stop
    start || return 1
    return $status
}

# Client processes that see other GPUs than the daemon, or none.
it_other_visible_devices() {
    local uuids
    mapfile -t uuids < <(ctl devices | awk '/^GPU-/ {print $1}')
    if [ -n "$stand_in" ]; then # it knows a number of devices only
        FAKE_CUDA_DEVICES=1 client hidden "$url" 1 1 "${uuids[1]}"
        return
    fi
    CUDA_VISIBLE_DEVICES='' client hidden "$url" 1 1 "${uuids[0]}" || return 1
    CUDA_VISIBLE_DEVICES=${uuids[0]} client exact "$url" 8 1 "${uuids[0]}" || return 1
    [ ${#uuids[@]} -lt 2 ] && return 0
    CUDA_VISIBLE_DEVICES=${uuids[1]} client hidden "$url" 1 1 "${uuids[0]}" &&
        CUDA_VISIBLE_DEVICES=${uuids[1]},${uuids[0]} client exact "$url" 8 1 "${uuids[0]}"
}

it_fair() {
    local floods=() status i
    for i in 1 2; do background flood || return 1; floods+=("$held"); done
    client steady "$url" $((25 * scale)); status=$?
    for held in "${floods[@]}"; do kill_client; done
    return $status
}

it_no_growth() {
    client exact "$url" 16 1 || return 1
    client growth "$url" 1000 "$growth_mib" || return 1 # what is made once is there
    local before after
    before=$(worker_kib)
    limit=60 client growth "$url" "$growth_rounds" "$growth_mib" || return 1
    after=$(worker_kib)
    echo "worker resident: $before KiB before, $after KiB after"
    [ "$after" -lt $((before + growth_kib)) ]
}

it_namespaces() { # own PID, IPC and mount namespaces, own /dev/shm
    # shellcheck disable=SC2016 # for the shell inside
    "${under[@]}" timeout -k 2 90 unshare --pid --fork --mount-proc --ipc --mount sh -c '
        mount -t tmpfs tmpfs /dev/shm || exit 1
        for one in exact stream kinds never; do
            "$0/service_client" $one "$1" 8 5 || exit 1
        done' "$bin" "$url"
}

# A sticky error of the device: the request is answered, the worker replaced, the client goes on.
# The 20th selection of each life of a worker meets it. Under MPS the device gives the error to all
# clients of the server, so there the client may end too; the daemon serves the next one.
it_illegal_address() {
    stop
    start TOPKD_TEST_CUDA_FAULT=20 || return 1
    client fault "$url" 30
    local status=$?
    if [ $mode = mps ]; then
        client exact "$url" 8 2
        status=$?
    fi
    stop
    start || return 1
    return $status
}

# ---- Groups -------------------------------------------------------------------------------------

group_cases() {
    local one
    for one in exact stream never late refusals kinds stale ranges wrong_uuid; do
        check "$one" client $one "$url"
    done
    check "doctor" it_doctor
}

it_doctor() { # nothing fails on a machine that just served every case
    "${under[@]}" timeout -k 2 60 "$bin/topkctl" doctor --url "$url" || return 1
    "${under[@]}" timeout -k 2 60 "$bin/topkctl" doctor --json --url "$url" |
        grep -q '"subject":"share by fd","text":"GPU 0: memory reached a second process, read-only"'
}

# Two devices: a client on each, a registration for the other device refused, and one worker's death
# is nothing to the other.
it_two_devices() {
    local uuids pids
    mapfile -t uuids < <(ctl devices | awk '/^GPU-/ {print $1}')
    [ ${#uuids[@]} -ge 2 ] || { echo "only ${#uuids[@]} devices"; return 1; }
    client exact "$url" 16 1 "${uuids[0]}" || return 1
    client exact "$url" 16 2 "${uuids[1]}" || return 1
    client other_device "$url" 1 1 "${uuids[0]}" || return 1
    "${under[@]}" timeout -k 2 60 "$bin/service_client" exact "$url" $((100 * scale)) 3 "${uuids[1]}" \
        >"$work/other" 2>&1 &
    local other=$!
    sleep 3
    pids=$(ctl devices | awk -v uuid="${uuids[0]}" '$1 == uuid {print $5}')
    kill -KILL "$pids"
    wait $other || { cat "$work/other"; return 1; }
    client exact "$url" 16 4 "${uuids[0]}"
}

group_several() {
    check "exact by 2 clients" several 2 exact 16
    check "stream by 4 clients" several 4 stream 8
    check "exact by 8 clients" several 8 exact 16
}

group_lives() {
    check "client dies with regions and a request in flight" it_client_dies
    check "worker dies under a waiting stream" it_worker_dies
    check "worker and supervisor die under a waiting stream" it_daemon_dies
    check "small client beside two floods" it_fair
    check "no growth" it_no_growth
    check "the worker ends in order" stop
    check "and starts again" start
    check "exact afterwards" client exact "$url" 8
}

group_edges() {
    check "more shapes than graphs" it_evicts
    check "another CUDA_VISIBLE_DEVICES" it_other_visible_devices
    check "regions unregistered under load" client crowd "$url" $((2 * scale))
    check "another session's region, hostile geometry" \
        "${under[@]}" timeout -k 2 60 "$bin/service_stranger" "$url" $((100 * scale))
}

group_lanes() {
    check "lane: mailbox in host memory" client lane_steps "$url" $((3 * scale)) 2
    check "lane: mailbox in device memory" client lane_steps "$url" $((3 * scale)) 3
    check "lane: refusals" client lane_refusals "$url" 1 2
    check "lanes of 2 clients, each step once" it_lanes_count 2 $((3 * scale))
    check "lanes of 8 clients, each step once" it_lanes_count 8 $((3 * scale))
    check "lanes opened and closed between steps" client lane_churn "$url" $((5 * scale)) 2
    check "lanes beside regions that come and go" it_lanes_beside_regions
    check "lane: client dies" it_lane_client_dies
    check "lane: client stops" it_lane_client_stops
    check "lane: worker dies, host memory" it_worker_dies_under_lane 2
    check "lane: worker dies, device memory" it_worker_dies_under_lane 3
    check "lane: daemon dies for good" it_daemon_dies_under_lane
    check "lane: client, worker and supervisor die in a step" it_all_die_in_a_step
    check "lane: afterwards" client lane_steps "$url" 2 2
    [ -n "$stand_in" ] && return
    if python3 -c 'import torch' 2>/dev/null; then
        check "lane in a PyTorch CUDA graph" \
            timeout -k 2 90 python3 "$here/torch_lane.py" "$bin/../lib/libtopkd.so.0" "$url"
    else
        echo "skip $mode lane in a PyTorch CUDA graph: no torch in this python3"
    fi
}

group_queues() {
    stop
    devices="[{device: GPU-fafafafa-fafa-fafa-fafa-fafafafafa00}]"
    check "start with few hardware queues" start FAKE_CUDA_QUEUES=8 FAKE_CUDA_MPS=0
    check "lanes are as many as the queues hold" it_limits_lanes 4
    check "no kernel looks without MPS" it_waits_by driver 0 FAKE_CUDA_MPS=0 3
    check "what lanes cost without MPS is said" it_says_what_lanes_cost
    check "few queues: all places" client lane_refusals "$url" 1 2
    check "few queues: lanes of 3 clients, each step once" it_lanes_count 3 1
    check "few queues: lanes beside regions that come and go" it_lanes_beside_regions
    stop
    more_limits+=$'\n  client_lanes_max: 28\n  lane_idle_ms: 10000\n  arena_slot_bytes: 65536'
    check "start with as many lanes as may be" start "FAKE_CUDA_FAIL=$work/fail"
    check "idle lanes beside a busy one" it_lanes_all_idle_but_one
    check "worker dies beside a lane, host memory" it_worker_dies_under_lane 2 lane_replaced
    check "worker dies beside a lane, device memory" it_worker_dies_under_lane 3 lane_replaced
    check "lanes wait as they were asked to" it_lanes_wait_as_asked
    check "memory runs out beside lanes" it_memory_runs_out
    check "clients die while they open lanes" it_client_dies_opening
}

group_two() {
    local num
    num=$(ctl devices | grep -c '^GPU-')
    if [ "$num" -ge 2 ]; then
        check "two devices" it_two_devices
    else
        echo "skip $mode two devices: this machine has $num"
    fi
}

group_device() {
    check "client in its own namespaces" it_namespaces
    check "worker dies, client in its own namespaces" it_worker_dies_outside
    check "illegal address in the worker" it_illegal_address
    if python3 -c 'import torch' 2>/dev/null; then
        check "PyTorch's expandable segments" \
            timeout -k 2 90 python3 "$here/torch_expandable.py" "$bin/../lib/libtopkd.so.0" "$url"
    else
        echo "skip $mode PyTorch's expandable segments: no torch in this python3"
    fi
}

groups() {
    local group
    for group in cases several lives lanes queues edges two device; do
        [ -n "$stand_in" ] && [ $group = device ] && continue
        [ -z "$stand_in" ] && [ $group = queues ] && continue
        # With the stand-in these are a test of their own.
        [[ -n $stand_in && ( $group = lanes || $group = queues ) && -z $only ]] && continue
        [ -n "$only" ] && [[ ",$only," != *",$group,"* ]] && continue
        "group_$group"
    done
}

if [ -n "$stand_in" ]; then
    export FAKE_CUDA_DEVICES=2
    devices="[{device: GPU-fafafafa-fafa-fafa-fafa-fafafafafa00},
          {device: GPU-fafafafa-fafa-fafa-fafa-fafafafafa01}]"
    # The stand-in's device memory is the machine's own, which others use as well.
    growth_rounds=600 growth_kib=16384 growth_mib=65536
else
    devices="[{device: auto}]"
    growth_rounds=100000 growth_kib=2048 growth_mib=2
fi
check "start" start
[ "$failed" = 0 ] && groups
stop
if [ -z "$stand_in" ]; then
    if mps_start; then
        mode=mps
        check "start" start
        groups
        stop
        mps_stop
    else
        echo "skip mps: nvidia-cuda-mps-control is not there or does not start"
    fi
fi
if [ "$failed" != 0 ]; then
    echo "the daemon's log ends:"; tail -20 "$work/log"
    grep -E "error|fake_cuda" "$work/log" | head -20
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
