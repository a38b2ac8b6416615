# shellcheck shell=bash
# What the cases of supervisor_test.sh stand on, to be sourced with BIN_DIR as $1: a folder with
# settings, processes that end with the test, waits with an end, and what the daemon says of itself.
# shellcheck disable=SC2034 # topkd and others are for the cases

bin=$1
topkd=$bin/topkd
wait_s=${TOPKD_TEST_WAIT_S:-60} # choice: far above any time under test, also with sanitizers

dir=
run=
log=
config=
daemon=
helpers=()

fail() {
    echo "FAILED: $*" >&2
    if [[ -s $log ]]; then
        sed 's/^/  log: /' "$log" >&2
    fi
    exit 1
}

skip() {
    echo "NOT POSSIBLE HERE: $*"
    exit 125
}

clean_up() {
    local pid
    trap - EXIT
    for pid in ${daemon:+"$daemon"} "${helpers[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    chmod -R u+rwx "$dir"
    rm -rf "$dir"
}

set_up() {
    [[ -x $bin/topkd && -x $bin/supervisor_probe ]] || fail "topkd or supervisor_probe is not in $bin"
    dir=$(mktemp -d /tmp/topkd-it.XXXXXX)
    trap clean_up EXIT
    run=$dir/run
    log=$dir/log
    config=$dir/config.yaml
    : >"$log"
    write_config
}

# write_config [LINE...]: quick limits first, then the lines, at the top level of the file.
write_config() {
    {
        echo "socket: {directory: $run}"
        echo "devices: [{device: cpu, threads: 1}]"
        echo "buckets: [{rows: 1, width: 64, k: 8}]"
        printf '%s\n' "$@"
    } >"$config"
}

# ---- Processes ---------------------------------------------------------------------------------

# Whether a process runs; a zombie that nobody reaps does not.
alive() {
    local state
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 1
    [[ -n $state && $state != Z ]]
}

# wait_until WHAT COMMAND...: until the command succeeds.
wait_until() {
    local what=$1 end=$((SECONDS + wait_s))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "waited $wait_s s for $what"
        sleep 0.02
    done
}

gone() { ! alive "$1"; }

start() {
    "$topkd" --config "$config" >>"$log" 2>&1 &
    daemon=$!
}

logged() { grep -q -- "$1" "$log"; }

# lines PATTERN: how many lines of the log have it.
lines() { grep -c -- "$1" "$log" || true; }

start_ready() {
    local before
    before=$(lines ' ready devices=')
    start
    wait_until "the daemon to be ready or dead" ready_or_dead "$before"
    alive "$daemon" || fail "the daemon died before it was ready"
}

ready_or_dead() { more_lines ' ready devices=' "$1" || gone "$daemon"; }

more_lines() { (($(lines "$1") > $2)); }

# stop CODE [SIGNAL]: ends the daemon and expects this exit code.
stop() {
    local code=0
    [[ -n $daemon ]] || fail "there is no daemon to stop"
    kill "-${2:-TERM}" "$daemon"
    wait_until "the daemon to end" gone "$daemon"
    wait "$daemon" || code=$?
    daemon=
    ((code == $1)) || fail "the daemon ended with $code, expected $1"
}

# refuse CODE PATTERN [ARGUMENT...]: a start that must fail so.
refuse() {
    local code=0 expected=$1 pattern=$2
    shift 2
    timeout "$wait_s" "$@" >"$dir/refused" 2>&1 || code=$?
    ((code == expected)) || fail "$*: exit code $code, expected $expected: $(cat "$dir/refused")"
    grep -q -- "$pattern" "$dir/refused" || fail "no '$pattern' in: $(cat "$dir/refused")"
}

probe() { timeout "$wait_s" "$bin/supervisor_probe" "ipc://$run/topkd.sock" "$@"; }

# field NAME TEXT: the value behind NAME= in a text.
field() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" <<<"$2" | head -n 1; }

device() { field "$1" "$(probe devices)"; }

# expect_status STATUS PROBE-ARGUMENT...: and prints the answer.
expect_status() {
    local answer status
    answer=$(probe "${@:2}") || fail "no answer to ${*:2}"
    status=$(field status "$answer")
    [[ $status == "$1" ]] || fail "${*:2}: $status, expected $1: $answer"
    printf '%s\n' "$answer"
}

# Objects in shared memory of an instance: names and all.
shm_objects() { find /dev/shm -maxdepth 1 -name "topkd-$1-*" | wc -l; }

# The instance of the running daemon's worker, from its command line.
instance() {
    tr '\0' '\n' <"/proc/$(device worker_pid)/cmdline" |
        sed -n 's/^\/topkd-\([0-9a-f]\{16\}\)-.*/\1/p'
}

other_user=(setpriv --reuid=65534 --regid=65534 --clear-groups --)

need_other_user() {
    ((EUID == 0)) || skip "changing the user needs root"
    "${other_user[@]}" "$bin/topkd" --version >/dev/null || skip "user 65534 cannot run $bin/topkd"
}

# set_acl FILE UID: owner and this user may, nobody else. In the kernel's form, so that no package is
# needed: version 2, then tag, permissions and id of each entry.
set_acl() {
    python3 - "$@" <<'PYTHON'
import os, struct, sys
entries = [(1, 6, -1), (2, 6, int(sys.argv[2])), (4, 0, -1), (16, 6, -1), (32, 0, -1)]
value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
os.setxattr(sys.argv[1], "system.posix_acl_access", value)
PYTHON
}

answers_other_user() {
    "${other_user[@]}" timeout "$wait_s" "$bin/supervisor_probe" "ipc://$run/$1" ping |
        grep -q 'status=TOPKD_OK'
}

refuses_other_user() { ! answers_other_user "$1"; }

new_epoch() { [[ $(device state) == 1 && $(device device_epoch) -gt $1 ]]; }

# end_held LIFE: ends this life of the daemon that hold_socket started, which must end with 0.
end_held() {
    wait_until "the pid of life $1" test -s "$dir/pid.$1"
    kill -TERM "$(cat "$dir/pid.$1")"
    wait_until "the end of life $1" test -s "$dir/code.$1"
    [[ $(cat "$dir/code.$1") == 0 ]] || fail "life $1: exit code $(cat "$dir/code.$1")"
}

# doctor_says CODE PATTERN: what topkctl doctor finds as another user.
doctor_says() {
    local said code=0
    said=$("${other_user[@]}" "$bin/topkctl" doctor --timeout "${wait_s}s" \
        --url "ipc://$run/topkd.sock") || code=$?
    ((code == $1)) || fail "doctor: exit code $code, expected $1: $said"
    grep -q -- "$2" <<<"$said" || fail "doctor: no '$2' in: $said"
}

# fake BEHAVIOUR [LIMIT...]: from now on the real supervisor with workers that behave so. It is quick
# to start them again, and patient with them but for the limits given, each as `start_ms: 1000`.
fake() {
    topkd=$bin/fake_topkd
    export TOPKD_FAKE=$dir/behaviour
    behave "$1"
    shift
    local limits="heartbeat_ms: 20, restart_max_ms: 400"
    [[ "$*" == *start_ms* ]] || limits+=", start_ms: 60000"
    [[ "$*" == *hang_ms* ]] || limits+=", hang_ms: 60000"
    write_config "worker: {$limits$(printf ', %s' "$@")}" 'drain: {deadline_ms: 200}'
}

behave() { echo "$1" >"$TOPKD_FAKE"; }

# A worker that misbehaves may be ready for a moment.
ready_and_good() {
    local devices
    devices=$(probe devices)
    [[ $(field state "$devices") == 1 && $devices == *'name="fake "good""'* ]]
}

# expect_replaced REASON: the worker is killed for this, twice, and one that behaves serves again.
expect_replaced() {
    start
    wait_until "the worker to be killed" more_lines "worker_kill .*reason=$1\$" 1
    behave good
    wait_until "the daemon to recover" ready_and_good
    stop 0
}

num_watchdog=0 # when it was counted last

# Whether none came for ten times as long as usual; the listener may write those before it late.
no_more_watchdog() {
    num_watchdog=$(grep -cx 'WATCHDOG=1' "$dir/notices")
    sleep 0.5
    (($(grep -cx 'WATCHDOG=1' "$dir/notices") == num_watchdog))
}

# Neither at work nor dead and unburied.
orphans_are_gone() {
    ! nsenter --target "$1" --pid --mount ps -A -o comm= | grep -q '^sleep'
}

# hold_socket PATH COMMAND...: holds a listening socket there and starts the daemon with it, as
# systemd does with topkd.socket: again each time that the file $dir/start is there, until $dir/end
# is. The pid of life N of the daemon is in $dir/pid.N, its exit code in $dir/code.N.
hold_socket() {
    python3 - "$dir" "$@" >>"$log" 2>&1 <<'PYTHON' &
import os, socket, sys, time
folder, path, *command = sys.argv[1:]
life = 0

def say(name, number):  # whole or not at all
    with open(f"{folder}/said", "w") as file:
        file.write(str(number))
    os.rename(f"{folder}/said", f"{folder}/{name}.{life}")

held = socket.socket(socket.AF_UNIX)
held.bind(path)
os.chmod(path, 0o660)
held.listen(64)
while not os.path.exists(f"{folder}/end"):
    if not os.path.exists(f"{folder}/start"):
        time.sleep(0.01)
        continue
    os.unlink(f"{folder}/start")
    life += 1
    pid = os.fork()
    if pid == 0:
        os.dup2(held.fileno(), 3)
        os.set_inheritable(3, True)  # also where it was 3 already
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
        os.execv(command[0], command)
    say("pid", pid)
    _, status = os.waitpid(pid, 0)
    say("code", os.waitstatus_to_exitcode(status))
PYTHON
    helpers+=($!)
    wait_until "the holder of the socket" test -S "$1"
}
