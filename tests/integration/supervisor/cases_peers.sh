# shellcheck shell=bash
# Cases of supervisor_test.sh: who may come, and what becomes of what they send.
# shellcheck disable=SC2154,SC2034 # bin, dir, run, daemon and others are supervisor_lib.sh's

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

# Folder, socket, access list: each is named as what is shut.
doctor_names_the_door_that_is_shut() {
    need_other_user
    chmod 755 "$dir"
    write_config 'access: {uids: [1234]}'
    start_ready
    doctor_says 1 '^FAIL  socket .*this user (uid 65534) may not enter its folder'
    chmod 755 "$run"
    doctor_says 1 '^FAIL  socket .*mode 0660.*this user (uid 65534) may not connect'
    chmod 666 "$run"/*.sock
    doctor_says 1 '^FAIL  daemon .*neither user 65534 nor group 65534'
    write_config 'access: {uids: [65534]}'
    kill -HUP "$daemon"
    wait_until "the reload" logged 'reload applied=1'
    doctor_says 0 '^OK    memory .*mapped by the other'
    stop 0
    wait_s=2 doctor_says 0 '^WARN  socket .*No such file' # nothing comes, so all of it is waited for
}

# Memory of a client in a container of its own does not reach the CPU device: doctor says so.
doctor_sees_another_dev_shm() {
    local said code=0
    unshare --mount true 2>/dev/null || skip "unshare --mount needs root"
    start_ready
    said=$(unshare --mount bash -c 'mount -t tmpfs none /dev/shm && exec "$@"' _ \
        "$bin/topkctl" doctor --timeout "${wait_s}s" --url "ipc://$run/topkd.sock") || code=$?
    ((code == 1)) || fail "exit code $code, expected 1: $said"
    grep -A 1 '^FAIL  memory ' <<<"$said" | grep -q "fix: give both the host's /dev/shm" ||
        fail "no word of /dev/shm in: $said"
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

# What the operator gives at topkd.sock holds at the workers' sockets, now and when one starts anew.
access_list_of_the_socket_counts_for_all() {
    local epoch
    need_other_user
    chmod 755 "$dir"
    sed -i "s|^socket:.*|socket: {directory: $run, directory_mode: 0755, mode: 0600}|" "$config"
    start_ready
    set_acl "$run/topkd.sock" 65534 || skip "no access lists in $run"
    answers_other_user topkd.sock || fail "the kernel does not honour the list"
    wait_until "the worker's socket to take it over" answers_other_user cpu.sock
    logged "socket_acl path=$run/cpu.sock" || fail "nothing in the log"
    epoch=$(device device_epoch)
    kill -KILL "$(device worker_pid)"
    wait_until "a worker with a new epoch" new_epoch "$epoch"
    answers_other_user cpu.sock || fail "the new worker's socket has no access list"
    set_acl "$run/topkd.sock" 1234
    wait_until "the list to be taken back" refuses_other_user cpu.sock
    expect_status TOPKD_OK ping >/dev/null
    stop 0
}
