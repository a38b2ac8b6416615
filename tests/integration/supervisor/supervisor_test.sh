#!/usr/bin/env bash
# Tests of the supervisor with real processes, each in a folder of its own:
#
#   supervisor_test.sh BIN_DIR CASE     runs one case
#   supervisor_test.sh BIN_DIR --list   names all cases
#
# BIN_DIR holds topkd, supervisor_probe and fake_topkd (the supervisor with workers that misbehave).
# Every wait has an end. Exit code: 0 passed, 1 failed (the log of the daemon follows), 125 not
# possible here (the reason is printed).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=supervisor_lib.sh
source "$here/supervisor_lib.sh"

# ---- Cases -------------------------------------------------------------------------------------

starts_serves_and_stops() {
    local answer objects
    start_ready
    [[ $(stat -c %a "$run") == 750 ]] || fail "mode of the folder: $(stat -c %a "$run")"
    [[ $(stat -c %a "$run/topkd.sock") == 660 ]] || fail "mode of topkd.sock"
    [[ $(stat -c %a "$run/cpu.sock") == 660 ]] || fail "mode of cpu.sock"
    expect_status TOPKD_OK ping >/dev/null
    answer=$(expect_status TOPKD_OK hello)
    grep -q "device=cpu" <<<"$answer" || fail "hello: $answer"
    answer=$(expect_status TOPKD_OK devices)
    [[ $(field state "$answer") == 1 && $(field restarts "$answer") == 0 ]] || fail "$answer"
    [[ $(field url "$answer") == "ipc://$run/cpu.sock" ]] || fail "$answer"
    alive "$(field worker_pid "$answer")" || fail "the worker's pid is wrong: $answer"
    answer=$(expect_status TOPKD_OK stats)
    [[ $(field worker_restarts "$answer") == 0 && $(field requests_failed "$answer") == 0 ]] ||
        fail "$answer"
    objects=$(instance)
    (($(shm_objects "$objects") >= 1)) || fail "the owner object is missing"
    stop 0
    [[ ! -e $run/topkd.sock && ! -e $run/cpu.sock ]] || fail "sockets are left: $(ls "$run")"
    (($(shm_objects "$objects") == 0)) || fail "shared memory is left"
    if logged ' error '; then fail "errors in the log of a quiet life"; fi
}

stops_at_sigint() {
    start_ready
    stop 0 INT
    logged 'drain reason=SIGINT' || fail "no drain"
}

second_daemon_is_refused_and_first_unharmed() {
    local before
    start_ready
    before=$(device device_epoch)
    refuse 75 "another topkd (pid $daemon) serves this folder" "$bin/topkd" --config "$config"
    refuse 75 "another topkd (pid $daemon) serves this folder" \
        "$bin/topkd" --device cpu --socket-dir "$run"
    [[ $(device device_epoch) == "$before" && $(device state) == 1 ]] || fail "the first was harmed"
    stop 0
}

# The lock file is gone (someone cleaned up), but the socket is served: it is not stolen.
live_socket_without_lock_is_not_stolen() {
    local before
    start_ready
    before=$(device device_epoch)
    rm "$run/topkd.lock"
    refuse 75 "another process listens there" "$bin/topkd" --config "$config"
    [[ $(device device_epoch) == "$before" ]] || fail "the first was harmed"
    stop 0
}

leftover_sockets_are_replaced() {
    local worker
    start_ready
    worker=$(device worker_pid)
    kill -KILL "$daemon"
    wait_until "the worker to end" gone "$worker"
    wait "$daemon" || true
    [[ -S $run/topkd.sock && -S $run/cpu.sock ]] || fail "no leftover to test with"
    start_ready
    expect_status TOPKD_OK ping >/dev/null
    stop 0
}

folder_without_permission() {
    need_other_user
    chmod 755 "$dir"
    mkdir -m 755 "$run"
    refuse 77 "Permission denied" "${other_user[@]}" "$bin/topkd" --device cpu --socket-dir "$run"
    refuse 77 "run as a user that may write there" \
        "${other_user[@]}" "$bin/topkd" --device cpu --socket-dir "$run/deeper"
    chown 65534 "$run"
    refuse 77 "belongs to user 65534" "$bin/topkd" --device cpu --socket-dir "$run"
    refuse 73 "its parent folder must exist" "$bin/topkd" --device cpu --socket-dir "$dir/no/run"
    refuse 77 "shared by many programs" "$bin/topkd" --device cpu --socket-dir /tmp
}

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

killed_supervisor_takes_its_workers_along() {
    local worker epoch objects
    start_ready
    worker=$(device worker_pid)
    epoch=$(device device_epoch)
    objects=$(instance)
    kill -KILL "$daemon"
    wait_until "the worker to end" gone "$worker"
    wait "$daemon" || true
    start_ready
    (($(device device_epoch) > epoch)) || fail "the epoch did not grow over daemons"
    (($(shm_objects "$objects") == 0)) || fail "shared memory of the dead daemon is left"
    stop 0
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

# A supervisor that was stopped itself must not take its own absence for the worker's, neither when
# the worker went on (its heartbeats wait in the channel) nor when it stood still as well.
stopped_supervisor_kills_nobody() {
    local epoch worker
    write_config 'worker: {heartbeat_ms: 50, hang_ms: 2000}'
    start_ready
    epoch=$(device device_epoch)
    worker=$(device worker_pid)
    kill -STOP "$daemon"
    sleep 3
    kill -CONT "$daemon"
    sleep 2.2
    [[ $(device device_epoch) == "$epoch" && $(device state) == 1 ]] || fail "the worker was killed"
    kill -STOP "$worker"
    kill -STOP "$daemon"
    sleep 3
    kill -CONT "$daemon"
    sleep 0.1
    kill -CONT "$worker"
    sleep 2.2
    [[ $(device device_epoch) == "$epoch" && $(device state) == 1 ]] ||
        fail "the worker was killed after both had been stopped"
    logged 'supervisor_late device=cpu' || fail "nothing in the log"
    stop 0
}

drain_ends_at_its_deadline() {
    local begin
    write_config 'worker: {hang_ms: 60000}' 'drain: {deadline_ms: 300}'
    start_ready
    kill -STOP "$(device worker_pid)"
    begin=$(date +%s%3N)
    stop 0
    (($(date +%s%3N) - begin >= 300)) || fail "it did not wait for the deadline"
    logged 'reason=drain_deadline' || fail "the worker was not killed at the deadline"
}

second_sigterm_ends_at_once() {
    local begin
    write_config 'worker: {hang_ms: 600000}' 'drain: {deadline_ms: 600000}'
    start_ready
    kill -STOP "$(device worker_pid)"
    begin=$SECONDS
    kill -TERM "$daemon"
    wait_until "the drain" logged 'drain reason=SIGTERM deadline_ms=600000'
    [[ $(device state) == 2 ]] || fail "state $(device state), expected draining"
    expect_status TOPKD_E_DRAINING hello >/dev/null
    stop 0
    ((SECONDS - begin < 15)) || fail "it took $((SECONDS - begin)) s"
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

reload_takes_live_settings_and_names_the_others() {
    local epoch
    start_ready
    epoch=$(device device_epoch)
    write_config 'log: {level: debug}' 'limits: {sessions_max: 7, lanes: 3}'
    kill -HUP "$daemon"
    wait_until "the reload" logged 'reload applied=2 need_restart=1'
    logged 'reload_settings applies=now paths=limits.sessions_max,log.level$' || fail "live"
    logged 'reload_settings applies=restart paths=limits.lanes$' || fail "restart"
    kill -HUP "$daemon"
    wait_until "the second reload" logged 'reload applied=0 need_restart=1'
    [[ $(device device_epoch) == "$epoch" ]] || fail "the worker was restarted"
    # A worker that starts later has what its elders have.
    kill -KILL "$(device worker_pid)"
    wait_until "a worker with a new epoch" new_epoch "$epoch"
    stop 0
}

reload_of_a_wrong_file_changes_nothing() {
    local epoch
    start_ready
    epoch=$(device device_epoch)
    write_config 'log: {level: debug}' 'limits: {lanes: 0}'
    kill -HUP "$daemon"
    wait_until "the refusal" logged 'reload_failed errors=1'
    logged 'reload_error error=".*limits.lanes: 0 is below 1' || fail "the error is not named"
    rm "$config"
    kill -HUP "$daemon"
    wait_until "the second refusal" more_lines 'reload_failed' 1
    logged 'cannot be opened: No such file' || fail "the missing file is not named"
    [[ $(device device_epoch) == "$epoch" && $(device state) == 1 ]] || fail "the worker was harmed"
    if logged ' debug '; then fail "the level changed"; fi
    stop 0
}

operator_drains() {
    local code=0
    start_ready
    expect_status TOPKD_OK drain 5000 >/dev/null
    wait_until "the daemon to end" gone "$daemon"
    wait "$daemon" || code=$?
    daemon=
    ((code == 0)) || fail "exit code $code"
    logged 'drain reason=operator deadline_ms=5000' || fail "no drain in the log"
}

# Whom the modes let in and the lists do not.
strangers_are_answered_not_permitted() {
    local answer
    need_other_user
    chmod 755 "$dir"
    write_config 'access: {uids: [1234]}'
    sed -i "s|^socket:.*|socket: {directory: $run, directory_mode: 0755, mode: 0666}|" "$config"
    start_ready
    answer=$("${other_user[@]}" "$bin/supervisor_probe" "ipc://$run/topkd.sock" ping) || fail "no answer"
    grep -q 'status=TOPKD_E_NOT_PERMITTED' <<<"$answer" || fail "$answer"
    grep -q 'neither user 65534 nor group 65534' <<<"$answer" || fail "$answer"
    expect_status TOPKD_OK ping >/dev/null
    sed -i 's/uids: \[1234\]/gids: [65534]/' "$config"
    kill -HUP "$daemon"
    wait_until "the reload" logged 'reload applied=2'
    answer=$("${other_user[@]}" "$bin/supervisor_probe" "ipc://$run/topkd.sock" ping) || fail "no answer"
    grep -q 'status=TOPKD_OK' <<<"$answer" || fail "after the reload: $answer"
    answer=$("${other_user[@]}" "$bin/supervisor_probe" "ipc://$run/topkd.sock" drain 1) || fail "none"
    grep -q 'status=TOPKD_E_NOT_PERMITTED' <<<"$answer" || fail "a client drained: $answer"
    grep -q 'user 65534 may not drain' <<<"$answer" || fail "$answer"
    expect_status TOPKD_OK ping >/dev/null
    stop 0
}

# Membership by a supplementary group counts, on both sockets, and only that of the list.
supplementary_groups_count() {
    local groups status url
    need_other_user
    chmod 755 "$dir"
    write_config 'access: {gids: [4242]}'
    sed -i "s|^socket:.*|socket: {directory: $run, directory_mode: 0755, mode: 0666}|" "$config"
    start_ready
    for url in "ipc://$run/topkd.sock" "ipc://$run/cpu.sock"; do
        for groups in --clear-groups --groups=4241,4243 --groups=4241,4242,4243; do
            status=$(field status "$(setpriv --reuid=65534 --regid=65534 "$groups" -- \
                "$bin/supervisor_probe" "$url" ping)")
            if [[ $groups == *4242* ]]; then
                [[ $status == TOPKD_OK ]] || fail "$url $groups: $status"
            else
                [[ $status == TOPKD_E_NOT_PERMITTED ]] || fail "$url $groups: $status"
            fi
        done
    done
    # A group more than a page can hold.
    status=$(field status "$(setpriv --reuid=65534 --regid=65534 \
        --groups="$(seq -s, 10000 13000),4242" -- "$bin/supervisor_probe" "$url" ping)")
    [[ $status == TOPKD_OK ]] || fail "3002 groups: $status"
    stop 0
}

# What is no message is answered or cut off, and the next one is served.
hostile_bytes_are_answered() {
    local bytes
    start_ready
    for bytes in - 00 ffffffffffffffff 10000000544f504b 544f504b44000000ffffffff00000000; do
        expect_status TOPKD_E_PROTOCOL raw "$bytes" >/dev/null
    done
    expect_status TOPKD_E_PROTOCOL size 65536 >/dev/null
    if probe size 65537 >/dev/null 2>&1; then fail "65537 bytes were answered"; fi
    expect_status TOPKD_E_UNSUPPORTED select >/dev/null
    expect_status TOPKD_E_UNSUPPORTED sessions >/dev/null
    expect_status TOPKD_E_VERSION hello '' 99 >/dev/null
    expect_status TOPKD_E_NO_DEVICE hello GPU-00000000-0000-0000-0000-000000000000 >/dev/null
    [[ $(field messages_rejected "$(expect_status TOPKD_OK stats)") == 6 ]] || fail "$(probe stats)"
    stop 0
}

# On both sockets: a listener of NNG would never accept again.
hanging_up_in_the_greeting_deafens_nobody() {
    local url i
    start_ready
    for url in "ipc://$run/topkd.sock" "ipc://$run/cpu.sock"; do
        for i in 1 2 3; do
            timeout "$wait_s" "$bin/supervisor_probe" "$url" hangup 20 || fail "cannot connect"
            timeout "$wait_s" "$bin/supervisor_probe" "$url" ping >/dev/null ||
                fail "$url does not answer after round $i"
        done
    done
    stop 0
}

systemd_hears_of_every_step() {
    local epoch
    "$bin/supervisor_probe" --notify "$dir/notify" >"$dir/notices" &
    helpers+=($!)
    wait_until "the listener" test -S "$dir/notify"
    export NOTIFY_SOCKET=$dir/notify
    [[ $(ldd "$bin/topkd") == *libsystemd* ]] || skip "topkd was built without libsystemd"
    # WATCHDOG_PID must be the daemon's own, which exec keeps.
    WATCHDOG_USEC=200000 bash -c 'export WATCHDOG_PID=$$; exec "$@"' _ \
        "$bin/topkd" --config "$config" >>"$log" 2>&1 &
    daemon=$!
    wait_until "READY" grep -qx 'READY=1' "$dir/notices"
    grep -qx 'STATUS=0 of 1 devices ready, 0 restarts; cpu starting' "$dir/notices" ||
        fail "no STATUS while starting: $(cat "$dir/notices")"
    wait_until "WATCHDOG" grep -qx 'WATCHDOG=1' "$dir/notices"
    grep -qx 'STATUS=1 of 1 devices ready, 0 restarts' "$dir/notices" || fail "no STATUS"
    epoch=$(device device_epoch)
    kill -KILL "$(device worker_pid)"
    wait_until "a new worker" new_epoch "$epoch"
    wait_until "STATUS after it" \
        grep -qx 'STATUS=1 of 1 devices ready, 1 restarts' "$dir/notices"
    [[ $(grep -cx 'READY=1' "$dir/notices") == 1 ]] || fail "READY came twice"
    kill -HUP "$daemon"
    wait_until "RELOADING" grep -qx 'RELOADING=1' "$dir/notices"
    wait_until "READY after it" eval "[[ \$(grep -cx 'READY=1' '$dir/notices') == 2 ]]"
    stop 0
    wait_until "STOPPING" grep -qx 'STOPPING=1' "$dir/notices"
}

# The socket outlives the daemon: who comes between two lives of it waits, and is answered.
socket_of_somebody_else() {
    local inode asked code=0
    mkdir -m 750 "$run"
    hold_socket "$run/topkd.sock" "$bin/topkd" --config "$config"
    inode=$(stat -c %i "$run/topkd.sock")
    touch "$dir/start"
    wait_until "the daemon to be ready" logged ' ready devices='
    logged "activated socket=ipc://$run/topkd.sock" || fail "the socket was not taken over"
    expect_status TOPKD_OK ping >/dev/null
    kill -TERM "$(cat "$dir/pid")"
    wait_until "the daemon to end" test -s "$dir/code"
    [[ $(cat "$dir/code") == 0 ]] || fail "exit code $(cat "$dir/code")"
    [[ $(stat -c %i "$run/topkd.sock") == "$inode" ]] || fail "the socket is another one"
    probe ping >"$dir/answer" &
    asked=$!
    helpers+=("$asked")
    sleep 0.3
    alive "$asked" || fail "it did not wait: $(cat "$dir/answer")"
    touch "$dir/start"
    wait "$asked" || code=$?
    grep -q 'status=TOPKD_OK' "$dir/answer" || fail "exit code $code: $(cat "$dir/answer")"
    wait_until "the second life to be ready" more_lines ' ready devices=' 1
    kill -TERM "$(cat "$dir/pid")"
    touch "$dir/end"
    wait_until "both to end" gone "${helpers[0]}"
    [[ $(cat "$dir/code") == 0 ]] || fail "exit code $(cat "$dir/code")"
}

socket_of_somebody_else_at_another_place() {
    hold_socket "$dir/other.sock" "$bin/topkd" --config "$config"
    touch "$dir/start"
    wait_until "the refusal" test -s "$dir/code"
    touch "$dir/end"
    [[ $(cat "$dir/code") == 78 ]] || fail "exit code $(cat "$dir/code"), expected 78"
    logged "want one stream socket that listens at $run/topkd.sock" || fail "no reason"
}

command_line_and_configuration_errors() {
    refuse 64 'unknown option' "$bin/topkd" --nonsense
    refuse 64 'is how topkd starts its own workers' "$bin/topkd" --worker
    refuse 78 'is not a device' "$bin/topkd" --device gpu7
    refuse 66 'cannot be opened' "$bin/topkd" --config "$dir/none.yaml"
    refuse 0 ': ok$' "$bin/topkd" --check-config --config "$config"
    refuse 0 '"ok": true' "$bin/topkd" --check-config --json --config "$config"
    write_config 'limits: {lanes: 0}'
    refuse 78 "config.yaml:4:17: limits.lanes: 0 is below 1; accepted is 1 to 64, default 4" \
        "$bin/topkd" --check-config --config "$config"
    refuse 78 '"ok": false, "num_errors": 1' "$bin/topkd" --check-config --json --config "$config"
    refuse 78 "limits.lanes: 0 is below 1" "$bin/topkd" --config "$config"
    refuse 0 '^topkd [0-9]' "$bin/topkd" --version
    refuse 0 '"wire_version": ' "$bin/topkd" --version --json
    refuse 0 '^Usage: topkd' "$bin/topkd" --help
    [[ ! -e $run ]] || fail "a refused start left $run"
    "$bin/topkd" --print-config --log-level debug --device cpu >"$dir/printed.yaml"
    refuse 0 ': ok$' "$bin/topkd" --check-config --config "$dir/printed.yaml"
    grep -q '^  level: debug$' "$dir/printed.yaml" || fail "the command line is not in print-config"
    refuse 74 'cannot write the output' bash -c "'$bin/topkd' --print-config >/dev/full"
}

worker_that_is_never_ready() {
    fake never_ready 'start_ms: 1000'
    expect_replaced start_timeout
}

worker_whose_canary_is_wrong() {
    fake wrong_canary
    expect_replaced canary_wrong
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

# As PID 1 of a namespace of its own it warns, and reaps orphans that are not its children.
pid_1_reaps_orphans() {
    local inside
    unshare --pid --fork --mount-proc true 2>/dev/null || skip "unshare --pid needs root"
    unshare --pid --fork --mount-proc --kill-child "$bin/topkd" --config "$config" >>"$log" 2>&1 &
    daemon=$!
    wait_until "the daemon to be ready" logged ' ready devices='
    logged 'pid_1 consequence=' || fail "no warning"
    inside=$(pgrep -P "$daemon")
    nsenter --target "$inside" --pid --mount bash -c '(sleep 0.2 &) ; (sleep 0.2 &)'
    wait_until "the end of the orphans" orphans_are_gone "$inside"
    expect_status TOPKD_OK ping >/dev/null
    kill -TERM "$inside"
    wait_until "the daemon to end" gone "$daemon"
    wait "$daemon" || fail "exit code $?"
    daemon=
}

pid_1_of_a_shared_namespace_is_refused() {
    local script='sleep 60 & exec "$@"'
    unshare --pid --fork --mount-proc true 2>/dev/null || skip "unshare --pid needs root"
    refuse 78 'refusing to run as PID 1 of a PID namespace with other processes' \
        unshare --pid --fork --mount-proc --kill-child bash -c "$script" _ \
        "$bin/topkd" --config "$config"
    unshare --pid --fork --mount-proc --kill-child bash -c "$script" _ \
        "$bin/topkd" --config "$config" --allow-shared-pid1 >>"$log" 2>&1 &
    daemon=$!
    wait_until "the daemon to be ready" logged ' ready devices='
    kill -TERM "$(pgrep -P "$daemon")"
    wait_until "the daemon to end" gone "$daemon"
    daemon=
}

cases() { sed -n '/^# ---- Cases/,$s/^\([a-z_0-9]*\)() {$/\1/p' "$0" | grep -vx 'cases'; }

if [[ ${2:-} == --list ]]; then
    cases
    exit 0
fi
if [[ $'\n'$(cases)$'\n' != *$'\n'${2:-}$'\n'* ]]; then
    echo "no such case: ${2:-}; supervisor_test.sh BIN_DIR --list names them" >&2
    exit 1
fi
set_up
"$2"
echo "passed: $2"
