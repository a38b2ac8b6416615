# shellcheck shell=bash
# Cases of supervisor_test.sh: workers that die, hang, lie and start anew.
# shellcheck disable=SC2154,SC2034 # bin, dir, run, daemon and others are supervisor_lib.sh's

killed_worker_is_replaced() {
    local epoch pid objects
    start_ready
    epoch=$(device device_epoch)
    pid=$(device worker_pid)
    objects=$(instance)
    touch "$run/cpu.fds" # as the side socket of a GPU's worker
    kill -KILL "$pid"
    wait_until "a worker with a new epoch" new_epoch "$epoch"
    [[ ! -e $run/cpu.fds ]] || fail "the side socket of the dead worker is left"
    [[ $(device restarts) == 1 ]] || fail "restarts: $(device restarts)"
    [[ $(device worker_pid) != "$pid" ]] || fail "the pid is the same"
    [[ -z $(find /dev/shm -maxdepth 1 -name "topkd-$objects-$(printf %016x "$epoch")-*") ]] ||
        fail "shared memory of the dead worker is left"
    logged "worker_exit device=cpu epoch=$epoch pid=$pid code=0 signal=9" || fail "no worker_exit"
    stop 0
}

# Milliseconds of the time that begins a line of the log.
line_ms() { date -d "${1%% *}" +%s%3N; }

# A worker that cannot even start: each wait doubles from min to max. Once it can, all is well.
waits_before_restarts_grow() {
    local i exits starts wait_ms expected
    write_config 'worker: {restart_min_ms: 100, restart_max_ms: 400}'
    mkdir -m 750 "$run"
    mkdir "$run/cpu.sock"
    start
    wait_until "four restarts" more_lines ' worker_start ' 4
    expect_status TOPKD_OK ping >/dev/null
    [[ $(device state) != 1 ]] || fail "it is ready without a socket"
    rmdir "$run/cpu.sock"
    wait_until "the daemon to be ready" logged ' ready devices='
    stop 0
    mapfile -t exits < <(grep ' worker_exit .*signal=0' "$log")
    mapfile -t starts < <(grep ' worker_start .*restarts=[1-9]' "$log")
    for i in 0 1 2 3; do
        wait_ms=$(($(line_ms "${starts[i]}") - $(line_ms "${exits[i]}")))
        expected=$((i == 0 ? 100 : i == 1 ? 200 : 400))
        ((wait_ms >= expected - 2)) || fail "wait $i was $wait_ms ms, expected $expected"
        ((wait_ms < expected + wait_s * 1000)) || fail "wait $i was $wait_ms ms"
    done
}

# A death after a good life counts as a first one.
wait_starts_anew_after_a_good_life() {
    local i epoch
    write_config 'worker: {restart_min_ms: 50, restart_max_ms: 300}'
    start_ready
    for i in 1 2 3; do
        sleep 0.5
        epoch=$(device device_epoch)
        kill -KILL "$(device worker_pid)"
        wait_until "restart $i" new_epoch "$epoch"
    done
    stop 0
    (($(lines 'worker_wait .*wait_ms=50$') == 3)) || fail "the waits grew"
}

stopped_worker_is_killed_and_replaced() {
    local epoch pid
    write_config 'worker: {heartbeat_ms: 50, hang_ms: 2000}' # a busy machine is silent for a second
    start_ready
    epoch=$(device device_epoch)
    pid=$(device worker_pid)
    kill -STOP "$pid"
    wait_until "a worker with a new epoch" new_epoch "$epoch"
    gone "$pid" || fail "the stopped worker is still there"
    logged "worker_kill device=cpu epoch=$epoch pid=$pid reason=silent" || fail "wrong reason"
    stop 0
}

# SIGTERM to the whole process group, as a terminal or systemd may send it.
workers_leave_signals_to_the_supervisor() {
    local worker
    start_ready
    worker=$(device worker_pid)
    kill -TERM "$worker"
    kill -INT "$worker"
    kill -HUP "$worker"
    sleep 0.3
    alive "$worker" || fail "the worker ended"
    [[ $(device restarts) == 0 ]] || fail "the worker was restarted"
    stop 0
}

worker_that_is_never_ready() {
    fake never_ready 'start_ms: 1000'
    expect_replaced start_timeout
}

worker_whose_canary_is_wrong() {
    fake wrong_canary
    expect_replaced canary_wrong
}

worker_whose_canary_is_wrong_while_it_drains() {
    fake wrong_in_drain
    write_config 'worker: {heartbeat_ms: 20, hang_ms: 60000}' 'drain: {deadline_ms: 600000}'
    start_ready
    stop 0
    logged 'worker_kill .*reason=canary_wrong' || fail "it was not killed"
}

worker_of_another_epoch() {
    fake wrong_epoch
    expect_replaced wrong_epoch
}

worker_that_sends_garbage() {
    fake garbage
    expect_replaced control_failed
}

worker_that_sends_what_only_a_supervisor_may() {
    fake unknown
    expect_replaced unknown_message
}

worker_that_hangs_up_and_stays() {
    fake hangs_up
    expect_replaced does_not_end
}

worker_that_ignores_a_drain() {
    local begin
    fake ignores_drain
    start_ready
    begin=$(date +%s%3N)
    stop 0
    logged 'reason=drain_deadline' || fail "it was not killed at the deadline"
    (($(date +%s%3N) - begin >= 200)) || fail "it was killed before the deadline"
}

# A worker that is still starting has no clients to wait for.
drain_while_starting() {
    fake never_ready
    start
    wait_until "the worker to start" logged 'worker_start'
    stop 0
    logged 'worker_kill .*reason=drain$' || fail "no kill"
    if logged ' error '; then fail "errors in the log of a quiet end"; fi
}

drain_while_waiting_to_restart() {
    fake fails
    sed -i 's/restart_max_ms: 400/restart_min_ms: 60000, restart_max_ms: 60000/' "$config"
    start
    wait_until "the worker to fail" logged 'worker_wait device=cpu wait_ms=60000'
    expect_status TOPKD_OK ping >/dev/null
    stop 0
}

# The death of one device's worker is invisible on the other.
devices_die_apart() {
    local gpu=GPU-00000000-0000-0000-0000-000000000001 cpu_line gpu_line before
    fake good
    sed -i "s/^devices:.*/devices: [{device: cpu}, {device: $gpu}]/" "$config"
    start_ready
    logged ' ready devices=2' || fail "READY before both devices were"
    before=$(probe devices | grep "^device=$gpu")
    cpu_line=$(probe devices | grep '^device=cpu')
    kill -KILL "$(field worker_pid "$cpu_line")"
    wait_until "the other device" new_epoch "$(field device_epoch "$cpu_line")"
    gpu_line=$(probe devices | grep "^device=$gpu")
    [[ $gpu_line == "$before" ]] || fail "before: $before, after: $gpu_line"
    [[ $(field worker_restarts "$(probe stats)") == 1 ]] || fail "$(probe stats)"
    stop 0
}

# systemd is left to start the daemon again only when no device was healthy for very long.
watchdog_is_withheld_when_nothing_recovers() {
    fake never_ready 'start_ms: 1000' 'hang_ms: 500'
    "$bin/supervisor_probe" --notify "$dir/notify" >"$dir/notices" &
    helpers+=($!)
    wait_until "the listener" test -S "$dir/notify"
    [[ $(ldd "$topkd") == *libsystemd* ]] || skip "topkd was built without libsystemd"
    NOTIFY_SOCKET=$dir/notify WATCHDOG_USEC=100000 \
        bash -c 'export WATCHDOG_PID=$$; exec "$@"' _ "$topkd" --config "$config" >>"$log" 2>&1 &
    daemon=$!
    wait_until "WATCHDOG" grep -qx 'WATCHDOG=1' "$dir/notices"
    wait_until "the end of patience" logged 'watchdog_withheld no_healthy_device_ms='
    wait_until "an end of WATCHDOG" no_more_watchdog
    behave good
    wait_until "READY" grep -qx 'READY=1' "$dir/notices"
    wait_until "WATCHDOG again" eval "((\$(grep -cx 'WATCHDOG=1' '$dir/notices') > num_watchdog))"
    stop 0
}

# A device that never gets ready keeps the service manager waiting no longer than it may take.
one_dead_device_does_not_hold_up_the_others() {
    local gpu=GPU-00000000-0000-0000-0000-000000000001 given_up in_part
    fake "never_ready $gpu" 'start_ms: 2000'
    sed -i "s/^devices: .*/devices: [{device: cpu, threads: 1}, {device: $gpu}]/" "$config"
    "$bin/supervisor_probe" --notify "$dir/notify" >"$dir/notices" &
    helpers+=($!)
    wait_until "the listener" test -S "$dir/notify"
    [[ $(ldd "$topkd") == *libsystemd* ]] || skip "topkd was built without libsystemd"
    NOTIFY_SOCKET=$dir/notify "$topkd" --config "$config" >>"$log" 2>&1 &
    daemon=$!
    wait_until "the first device" logged 'worker_ready device=cpu'
    wait_until "READY" grep -qx 'READY=1' "$dir/notices"
    in_part=$(grep -n 'ready_in_part missing=1' "$log" | head -n 1) || fail "nothing in the log"
    given_up=$(grep -n "worker_kill .*device=$gpu" "$log" | head -n 1) || fail "no kill in the log"
    ((${given_up%%:*} < ${in_part%%:*})) || fail "READY before the other had its time"
    behave good
    wait_until "the other device" logged "worker_ready device=$gpu"
    [[ $(grep -cx 'READY=1' "$dir/notices") == 1 ]] || fail "READY came twice"
    stop 0
}
