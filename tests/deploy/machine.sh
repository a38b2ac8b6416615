# shellcheck shell=bash
# A machine for tests: a Debian 12 root folder booted with its own systemd (systemd-nspawn), to be
# sourced. What happens in it is written to a layer in memory and is gone afterwards.
#
#   machine_start ROOT        boots; returns when its systemd has finished starting
#   machine_run COMMAND...    runs a command in it as root
#   machine_copy FILE... DIR  copies files into it
#   machine_stop              ends it and removes what it left
#
# Needs root, with the rights to mount and to make namespaces and control groups.

machine_pid= # of the boot as seen from here
machine_init= # of its systemd
machine_folder=

machine_log() {
    [[ ! -r $machine_folder/console ]] || tail -n 40 "$machine_folder/console" >&2
    [[ -z $machine_init ]] || machine_run journalctl --no-pager -u topkd -n 80 >&2 || true
}

machine_stop() {
    if [[ -n $machine_init ]]; then
        machine_run systemctl --no-block poweroff >/dev/null 2>&1 || true
    fi
    if [[ -n $machine_pid ]]; then
        local deadline=$((SECONDS + 20))
        while kill -0 "$machine_pid" 2>/dev/null && ((SECONDS < deadline)); do
            sleep 0.1
        done
        # Init is the first of its process namespace: when it goes, all go.
        [[ -z $machine_init ]] || kill -KILL "$machine_init" 2>/dev/null || true
        kill -KILL "$machine_pid" 2>/dev/null || true
        wait "$machine_pid" 2>/dev/null || true
    fi
    machine_pid='' machine_init=''
    [[ -z $machine_folder ]] || rm -rf -- "$machine_folder"
    machine_folder=
}

# The mounts are made in a mount namespace of their own, and go with it. Where the machine itself has
# no systemd, /run is no tmpfs, which nspawn insists on, and there is nobody to register with.
machine_boot() {
    local root=$1 options=(--register=no)
    mount --make-rprivate /
    if [[ ! -d /run/systemd/system ]]; then
        mount -t tmpfs tmpfs /run
        options+=(--keep-unit)
    fi
    mount -t tmpfs tmpfs "$machine_folder/layer"
    mkdir "$machine_folder/layer/upper" "$machine_folder/layer/work"
    mount -t overlay overlay -o \
        "lowerdir=$root,upperdir=$machine_folder/layer/upper,workdir=$machine_folder/layer/work" \
        "$machine_folder/root"
    # --kill-signal asks its systemd to power off. The network is its own, with a loopback only.
    exec systemd-nspawn --quiet --directory "$machine_folder/root" --machine "topkd-test-$$" \
        --private-network --console=pipe --kill-signal=SIGRTMIN+4 --boot "${options[@]}"
}

machine_start() {
    local root=$1 state deadline=$((SECONDS + 180))
    machine_folder=$(mktemp -d /var/tmp/topkd-machine.XXXXXX)
    mkdir "$machine_folder/layer" "$machine_folder/root"
    export -f machine_boot
    export machine_folder
    unshare --mount bash -euc 'machine_boot "$@"' boot "$root" \
        </dev/null >"$machine_folder/console" 2>&1 &
    machine_pid=$!
    until machine_init=$(pgrep -o -P "$machine_pid" -f '/systemd( |$)|/init( |$)') &&
        state=$(machine_run systemctl is-system-running 2>/dev/null || true) &&
        [[ $state == running || $state == degraded ]]; do
        if ! kill -0 "$machine_pid" 2>/dev/null || ((SECONDS >= deadline)); then
            machine_log
            echo "machine: no systemd could be booted here (state '${state:-none}'); it needs root" \
                "with the rights to mount and to make namespaces and control groups" >&2
            return 1
        fi
        sleep 0.2
    done
}

machine_run() {
    nsenter --target "$machine_init" --all --wdns=/ -- \
        env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}

machine_copy() {
    local target=${*: -1}
    machine_run mkdir -p "$target"
    tar -cP --transform 's,.*/,,' -- "${@:1:$#-1}" | machine_run tar -C "$target" -x
}
