#!/usr/bin/env bash
# Chaos: a daemon with clients that do everything, and faults without end.
#
#   tests/chaos/run.sh [--minutes N] [--seed N] [--build DIR] [--device DEVICE] [--json]
#                      [--preload LIBRARY] [--without EVENT]
#
#   --minutes N        how long (default 5; fractions are fine)
#   --seed N           of what is drawn; without it a new one, printed
#   --build DIR        a build (default build/dev, which is made when it is missing)
#   --device DEVICE    cpu (default) or the UUID of a GPU
#   --preload LIBRARY  loaded into daemon and clients (a stand-in for the CUDA driver, whose device
#                      memory lies in /dev/shm: that gets 4 GiB then and is never filled)
#   --without EVENT    leaves a kind of event out; may be repeated
#   --json             the summary as one line of JSON, and nothing else on stdout
#
# Where a mount namespace can be had (root), /dev/shm and the place of the log are small file
# systems of this run alone, and get full at times; elsewhere the summary says small_disks: False.
# Exit code: 0 everything held, 1 something did not (stderr says what), 2 wrong command line.
set -euo pipefail

chaos=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$chaos/../.." && pwd)

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
}

main() {
    local minutes=5 seed='' build='' device=cpu json='' shm=256m arguments=() option
    while (($# > 0)); do
        option=$1
        case $option in
        --json)
            json=--json
            shift
            continue
            ;;
        -h | --help)
            usage
            return
            ;;
        esac
        if (($# < 2)); then
            usage >&2
            exit 2
        fi
        case $option in
        --minutes) minutes=$2 ;;
        --seed) seed=$2 ;;
        --build) build=$2 ;;
        --device) device=$2 ;;
        --without) arguments+=("$option" "$2") ;;
        --preload)
            arguments+=("$option" "$2" --without shm_full)
            shm=4g
            ;;
        *)
            usage >&2
            exit 2
            ;;
        esac
        shift 2
    done
    if [[ -z $build ]]; then
        build=$root/build/dev
        if [[ ! -x $build/bin/chaos_client ]]; then
            (cd "$root" && cmake --preset dev && cmake --build --preset dev) >&2
        fi
    fi
    build=$(cd "$build" && pwd)
    [[ -n $seed ]] || seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    echo "chaos: seed $seed, $minutes minutes, device $device" >&2

    work=$(mktemp -d /tmp/topkd-chaos.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    arguments+=(--bin "$build/bin" --work "$work" --mark "$$-$seed" --seed "$seed"
        --minutes "$minutes" --device "$device")
    if [[ -n $json ]]; then arguments+=("$json"); fi
    if [[ -f $build/lib/chaos_clock.so && -z ${TOPKD_CHAOS_NO_CLOCK:-} ]]; then
        arguments+=(--clock "$build/lib/chaos_clock.so")
    fi
    if unshare --mount true 2>/dev/null; then
        mkdir "$work/log"
        # shellcheck disable=SC2016
        unshare --mount --propagation private bash -c '
            set -e
            work=$1
            shm=$2
            shift 2
            mount -t tmpfs -o "size=$shm,mode=1777" tmpfs /dev/shm
            mount -t tmpfs -o size=4m tmpfs "$work/log"
            exec python3 "$@"
        ' _ "$work" "$shm" "$chaos/chaos.py" --small-disks "${arguments[@]}"
    else
        python3 "$chaos/chaos.py" "${arguments[@]}"
    fi
}

main "$@"
