# shellcheck shell=bash
# Of run_service.sh: tests of lanes, selection inside the clients' graphs.
# shellcheck disable=SC2154,SC2034 # work, bin, url and others are run_service.sh's

lane_stat() { # counter: its sum over the devices
    ctl stats --json | grep -o "\"$1\": *[0-9]*" | awk -F: '{n += $2} END {print n + 0}'
}

it_lanes_count() { # clients batches: each step was one selection, not more and not less
    local before after asked
    before=$(lane_stat lane_steps)
    several "$1" lane_steps "$2" || return 1
    after=$(lane_stat lane_steps)
    asked=$(awk '/^steps/ {n += $2} END {print n}' "$work/out")
    echo "asked $asked, selected $((after - before))"
    [ "$((after - before))" = "$asked" ]
}

wait_lanes() { # number: soon
    for _ in $(seq 200); do
        [ "$(lane_stat lanes)" = "$1" ] && return 0
        sleep 0.05
    done
    echo "$(lane_stat lanes) lanes are open, not $1"
    return 1
}

it_lanes_beside_regions() { # memory is registered and let go while lanes are armed
    background lane_hold || return 1
    local one=$held
    client ranges "$url" 1 3 && client kinds "$url" 1 3 && client lane_churn "$url" $((4 * scale)) 2
    local status=$?
    echo "pauses: $(lane_stat lane_pauses)"
    [ "$(lane_stat lane_pauses)" -gt 0 ] || status=1
    kill -0 "$one" 2>/dev/null || { echo "the client that held a lane has gone"; status=1; }
    held=$one; kill_client
    return $status
}

it_lane_client_dies() { # one with an armed lane, one in the middle of steps: others notice nothing
    local which
    for which in lane_silent lane_hold; do
        background $which || return 1
        wait_lanes 1 || return 1
        kill_client
        wait_lanes 0 || return 1
        client lane_steps "$url" 2 4 || return 1
    done
}

it_lane_client_stops() { # SIGSTOP: its lane waits for nobody after a moment; it goes on later
    background lane_hold || return 1
    local one=$held child status=0
    child=$(cat "/proc/$one/task/$one/children")
    # shellcheck disable=SC2086 # numbers
    kill -STOP $child
    client lane_steps "$url" 4 4 && client ranges "$url" 1 5 && client lane_churn "$url" 2 6 ||
        status=1
    [ "$(lane_stat lanes)" = 1 ] || { echo "its lane is gone"; status=1; }
    # shellcheck disable=SC2086
    kill -CONT $child
    sleep 1
    kill -0 "$one" 2>/dev/null || { echo "it did not go on"; cat "$work/held"; status=1; }
    held=$one; kill_client
    wait_lanes 0 || status=1
    return $status
}

wait_ready() { # every device: a client takes the first ready one, and that worker is killed
    for _ in $(seq 200); do
        ctl devices 2>/dev/null | awk '/^GPU-/ {n++; r += $2 == "ready"} END {exit !(n && n == r)}' &&
            return 0
        sleep 0.1
    done
    echo "not every device is ready"
    return 1
}

it_worker_dies_under_lane() { # seed [case]: while steps run, or beside a lane without one
    wait_ready || return 1
    : >"$work/held"
    "${under[@]}" timeout -k 2 60 "$bin/service_client" "${2:-lane_survive}" "$url" 3 "$1" \
        >"$work/held" 2>&1 &
    held=$!
    await_waiting || return 1
    [ -n "${2:-}" ] || sleep 0.3
    kill -KILL "$(worker_pid)"
    wait "$held"; local status=$?
    cat "$work/held"
    [ $status = 0 ] || echo "exit status $status"
    return $status
}

it_daemon_dies_under_lane() { # for good: steps end all the same, and the client knows
    : >"$work/held"
    "${under[@]}" timeout -k 2 60 "$bin/service_client" lane_survive "$url" 0 2 >"$work/held" 2>&1 &
    held=$!
    await_waiting || return 1
    sleep 0.3
    kill -KILL "$daemon"
    wait "$daemon" 2>/dev/null
    daemon=
    wait "$held"; local status=$?
    cat "$work/held"
    [ $status = 0 ] || echo "exit status $status"
    start || return 1
    return $status
}

it_all_die_in_a_step() { # nobody is left to answer a kernel that looks: the GPU is free all the same
    local child worker
    : >"$work/held"
    "${under[@]}" timeout -k 2 60 "$bin/service_client" lane_survive "$url" 0 3 >"$work/held" 2>&1 &
    held=$!
    await_waiting || return 1
    child=$(cat "/proc/$held/task/$held/children")
    worker=$(worker_pid)
    kill -STOP "$worker" # steps that are asked for from now on are not answered for long
    sleep 0.2
    # shellcheck disable=SC2086 # numbers
    kill -KILL "$daemon" "$worker" $child
    wait "$daemon" "$held" 2>/dev/null
    daemon="" held=""
    start && client lane_steps "$url" 4 3
}

# ---- Hardware queues, and memory that runs out, beside waiting lanes (the stand-in alone) --------

it_limits_lanes() { # number: what the worker found out at its start, and told
    local told
    grep -q "lanes_limited .* lanes=$1 " "$work/log" || { grep lanes_ "$work/log"; return 1; }
    told=$("${under[@]}" "$bin/topkctl" doctor --url "$url" | grep -c "$1 of 16 lanes")
    [ "$told" -gt 0 ] || { echo "doctor says nothing of it"; return 1; }
    [ "$(lane_stat lanes_max)" = "$1" ]
}

it_says_what_lanes_cost() { # without MPS
    grep -q 'mps_missing .*1394 instead of 28' "$work/log"
}

it_lanes_all_idle_but_one() { # 28: as many as there may be, and none disarmed
    client lane_refusals "$url" 1 2 || return 1
    background lane_hold || return 1
    local one=$held status=0
    client lane_refusals "$url" 1 3 || status=1
    held=$one; kill_client
    return $status
}

# A session's lane that cannot be made is undone beside waiting lanes. Four are made ahead.
it_memory_runs_out() {
    local held_all=() status=0 worker
    worker=$(worker_pid)
    for _ in 1 2 3 4; do
        background lane_hold || return 1
        held_all+=("$held")
    done
    for call in cuMemHostAlloc cuMemAlloc cuMemHostRegister; do
        echo $call >"$work/fail"
        client exact "$url" 1 1 >"$work/refused" 2>&1 && { echo "$call: not refused"; status=1; }
        grep -q TOPKD_E_NO_MEMORY "$work/refused" || { cat "$work/refused"; status=1; }
        rm "$work/fail"
    done
    client exact "$url" 2 1 || status=1
    [ "$(worker_pid)" = "$worker" ] || { echo "the worker was replaced"; status=1; }
    for held in "${held_all[@]}"; do
        kill -0 "$held" || { echo "a client that held a lane has gone"; status=1; }
        kill_client
    done
    return $status
}

it_waits_by() { # who poll_us variable=value seed: what a lane's steps are
    local who=$1 poll_us=$2; shift 2
    "${under[@]}" "$1" timeout -k 2 60 "$bin/service_client" lane_steps "$url" 1 "$2" >"$work/waits" 2>&1
    local status=$?
    cat "$work/waits"
    [ $status = 0 ] && grep -qx "waits by the $who, poll_us $poll_us" "$work/waits"
}

it_lanes_wait_as_asked() { # under MPS by a kernel where the word is in device memory, unless asked
    it_waits_by driver 0 FAKE_CUDA_MPS=1 2 && it_waits_by kernel 1000 FAKE_CUDA_MPS=1 3 &&
        it_waits_by driver 0 FAKE_CUDA_MPS=1 5 && it_waits_by kernel 0 FAKE_CUDA_MPS=1 9 || return 1
    it_waits_by driver 1000 FAKE_CUDA_MPS=0 3 || return 1 # the client's process has no MPS
    echo cuModuleLoadData >"$work/no_kernel"
    it_waits_by driver 1000 "FAKE_CUDA_FAIL=$work/no_kernel" 3
}

it_client_dies_opening() { # lanes: whatever it was in the middle of
    local i worker
    worker=$(worker_pid)
    for i in 1 2 3 4 5 6; do
        "${under[@]}" timeout -k 2 60 "$bin/service_client" lane_churn "$url" 1000 "$i" \
            >"$work/held" 2>&1 &
        held=$!
        for _ in $(seq 200); do [ "$(lane_stat lanes)" -gt 0 ] && break; sleep 0.02; done
        sleep "0.0$i"
        kill_client
        wait_lanes 0 || return 1
    done
    [ "$(worker_pid)" = "$worker" ] || { echo "the worker was replaced"; return 1; }
    client lane_steps "$url" 2 2
}
