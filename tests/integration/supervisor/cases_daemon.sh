# shellcheck shell=bash
# Cases of supervisor_test.sh: the daemon as a whole, from start to end.
# shellcheck disable=SC2154,SC2034 # bin, dir, run, daemon and others are supervisor_lib.sh's

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

# A supervisor that was stopped itself must not take its own absence for the worker's, neither when
# the worker went on (its heartbeats wait in the channel) nor when it stood still as well.
stopped_supervisor_kills_nobody() {
    local epoch worker
    write_config 'worker: {heartbeat_ms: 50, hang_ms: 3000}'
    start_ready
    epoch=$(device device_epoch)
    worker=$(device worker_pid)
    kill -STOP "$daemon"
    sleep 4 # longer than the worker may be silent
    kill -CONT "$daemon"
    # It judges the silence at once, and says so.
    wait_until "its first look" logged 'supervisor_late device=cpu'
    [[ $(device device_epoch) == "$epoch" && $(device state) == 1 ]] || fail "the worker was killed"
    kill -STOP "$worker"
    kill -STOP "$daemon"
    sleep 4
    kill -CONT "$daemon"
    wait_until "its second look" more_lines 'supervisor_late device=cpu' 1
    kill -CONT "$worker"
    [[ $(device device_epoch) == "$epoch" && $(device state) == 1 ]] ||
        fail "the worker was killed after both had been stopped"
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

reload_while_the_file_is_read_is_answered() {
    local settings
    settings=$(<"$config")
    rm "$config"
    mkfifo "$config"
    start
    exec 9>"$config" # returns once the daemon has opened it, and keeps it reading
    rm "$config"
    write_config 'log: {level: debug}'
    kill -HUP "$daemon"
    echo "$settings" >&9
    exec 9>&-
    wait_until "the daemon to be ready or dead" ready_or_dead 0
    wait_until "the reload" logged 'reload applied=1 need_restart=0'
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
    end_held 1
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
    end_held 2
    touch "$dir/end"
    wait_until "both to end" gone "${helpers[0]}"
}

socket_of_somebody_else_at_another_place() {
    hold_socket "$dir/other.sock" "$bin/topkd" --config "$config"
    touch "$dir/start"
    wait_until "the refusal" test -s "$dir/code.1"
    touch "$dir/end"
    [[ $(cat "$dir/code.1") == 78 ]] || fail "exit code $(cat "$dir/code.1"), expected 78"
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
