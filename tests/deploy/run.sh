#!/usr/bin/env bash
# Checks of everything an operator gets: packages, service, completions, monitoring, containers.
#
#   tests/deploy/run.sh [BUILD]
#
# BUILD is a finished build whose prefix is /usr; build/dev without it. Needs root, the packages of
# the groups package and deploy (deploy/packages.sh), and the package archives of Debian and Python.
# A tool that is missing is a failure. Where the rights to boot a machine lack, the test that needs
# one is named as not run. Exit code: 0 all that could run holds.
set -euo pipefail

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/deploy
build=$(realpath -- "${1:-$root/build/dev}")
work=$(mktemp -d /var/tmp/topkd-deploy.XXXXXX)
making=

clean_up() {
    [[ -z $making ]] || kill "$making" 2>/dev/null || true
    wait
    rm -rf -- "$work"
}
trap clean_up EXIT

need() {
    local tool missing=()
    for tool in "$@"; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    if ((${#missing[@]} > 0)); then
        echo "deploy: missing: ${missing[*]}; deploy/packages.sh install package deploy" >&2
        exit 1
    fi
}

step() {
    local start=$SECONDS
    "$@" || {
        echo "deploy: FAILED: ${*##*/}" >&2
        exit 1
    }
    echo "deploy: ok, $((SECONDS - start)) s: $(basename "$1")"
}

# package FOLDER RELEASE COMPRESSION
package() {
    cpack -G DEB --config "$build/CPackConfig.cmake" -B "$1" -D CPACK_DEBIAN_PACKAGE_RELEASE="$2" \
        -D CPACK_DEBIAN_COMPRESSION_TYPE="$3" >"$work/cpack.log" 2>&1 || {
        cat "$work/cpack.log" >&2
        return 1
    }
}

# What lintian finds in a finished package, warnings too; exceptions with their reasons are in
# deploy/debian/overrides.
lint() {
    lintian --allow-root --tag-display-limit 0 --fail-on error,warning "$work"/debs/*.deb
}

# Why no machine can be booted here, or nothing. A container of CI may lack the rights for it.
no_machine() {
    local probe=/sys/fs/cgroup/topkd-probe-$$
    if ((EUID != 0)); then
        echo "not root"
    elif ! unshare --mount --pid --fork --mount-proc bash -c \
        'mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/m &&
         mount -t overlay overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w /mnt/m' \
        2>/dev/null; then
        echo "no right to make namespaces and to mount"
    elif ! mkdir "$probe" 2>/dev/null; then
        echo "no right to make a control group"
    else
        rmdir "$probe"
    fi
}

main() {
    local hindrance
    need cpack lintian chrpath dpkg-shlibdeps mmdebstrap systemd-nspawn promtool zsh fish python3 \
        docker-compose kubectl cc pkg-config mandoc
    hindrance=$(no_machine)
    if [[ -z $hindrance ]]; then
        # The longest part waits for the package archive: beside the others.
        "$here/make_root.sh" "$work/root" >"$work/root.log" 2>&1 &
        making=$!
    fi
    step "$here/completions_test.sh" "$build/deploy/completions" "$build/bin"
    step "$here/monitoring_test.py" "$root/deploy/monitoring" "$build/bin"
    step "$here/containers_test.sh" "$root" "$build/bin" "$work"
    step package "$work/debs" 1 xz
    step package "$work/newer" 2 gzip
    step lint
    step "$here/dev_package_test.sh" "$root" "$work/debs" "$work"
    if [[ -n $hindrance ]]; then
        echo "deploy: NOT RUN here: service_test.sh, which boots a Debian 12: $hindrance" >&2
        return
    fi
    if ! wait "$making"; then
        cat "$work/root.log" >&2
        echo "deploy: no fresh Debian 12 could be made" >&2
        exit 1
    fi
    making=
    step "$here/service_test.sh" "$work/root" "$work/debs" "$work/newer" "$build/bin"
}

main
