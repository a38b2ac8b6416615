#!/usr/bin/env bash
# The one list of the Debian packages that topkd is built and tested with, in groups, and the way to
# install those that are missing.
#
#   deploy/packages.sh list    [GROUP...]   prints the names, one a line
#   deploy/packages.sh missing [GROUP...]   prints those that are not installed
#   deploy/packages.sh install [GROUP...]   installs those that are not installed (sudo unless root)
#
# Groups: build (compile and run), test (run the tests), check (what CI uses besides), package (make
# Debian packages), deploy (check packages, service, completions, monitoring and containers). Without
# a group: build. Exit code 0 done, 1 failed, 2 usage.
set -euo pipefail

packages_of() {
    case $1 in
    build)
        # compiler and build system, then the libraries the daemon and the client stand on
        echo gcc g++ libc6-dev cmake ninja-build pkg-config
        echo libuv1-dev libyaml-dev libsystemd-dev
        echo libflatbuffers-dev flatbuffers-compiler
        ;;
    test)
        # cmocka: unit tests; NNG: the other implementation of the protocol, to speak to; NumPy: reads
        # and writes the .npy files that topkctl must understand; Boost.Context: the threads of CUDA
        # kernels that run on the host
        echo libcmocka-dev libnng-dev python3 python3-numpy libboost-context-dev
        ;;
    check)
        # clang: fuzz targets (libFuzzer is in libclang-rt), formatter, static checks
        echo clang libclang-rt-dev clang-format clang-tidy cppcheck
        # prometheus: promtool reads the metrics; chromium: a browser looks at the page
        # python3-venv: the Python package in a clean environment
        echo git mandoc shellcheck prometheus chromium python3-venv
        ;;
    package)
        # dpkg-dev: Depends from the libraries used; chrpath: no library search path in packages
        echo chrpath dpkg-dev file
        ;;
    deploy)
        # mmdebstrap, systemd-container: a fresh Debian 12, booted; prometheus: promtool
        echo lintian mmdebstrap systemd-container prometheus
        echo zsh fish mandoc python3 python3-venv docker-compose
        # any kubectl will do; Debian's cannot be installed beside that of other archives
        command -v kubectl >/dev/null || echo kubernetes-client
        ;;
    *)
        echo "packages.sh: no group '$1'; groups are build, test, check, package and deploy" >&2
        exit 2
        ;;
    esac
}

list() {
    local group
    for group in "$@"; do
        packages_of "$group" | tr ' ' '\n'
    done
}

missing() {
    local package
    list "$@" | while read -r package; do
        if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
            echo "$package"
        fi
    done
}

# apt COMMAND...: apt-get, up to three times: what fails of it is most often a download.
apt() {
    local try
    for try in 1 2 3; do
        if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 \
            -o Acquire::Retries=3 -o Acquire::http::Timeout=60 "$@"; then
            return 0
        fi
        echo "packages.sh: apt-get $1 failed, try $try of 3" >&2
        sleep $((5 * try))
    done
    return 1
}

install_missing() {
    local wanted as_root=()
    wanted=$(missing "$@")
    if [[ -z $wanted ]]; then
        return 0
    fi
    wanted=$(tr '\n' ' ' <<<"$wanted")
    if [[ $EUID -ne 0 ]]; then
        if ! command -v sudo >/dev/null; then
            echo "packages.sh: not root and no sudo; have these packages installed: $wanted" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    echo "packages.sh: installing $wanted" >&2
    apt update -qq
    # shellcheck disable=SC2086 # one word a package
    apt install -y -qq --no-install-recommends $wanted >/dev/null
}

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
}

main() {
    local verb=${1:-}
    if [[ $# -gt 0 ]]; then
        shift
    fi
    if [[ $# -eq 0 ]]; then
        set -- build
    fi
    if [[ $verb != --help && $verb != -h ]] && ! command -v dpkg-query >/dev/null; then
        echo "packages.sh: no dpkg here; the names are Debian 12's, install their equivalents:" \
            "$(list "$@" | tr '\n' ' ')" >&2
        exit 1
    fi
    case $verb in
    list) list "$@" ;;
    missing) missing "$@" ;;
    install) install_missing "$@" ;;
    -h | --help) usage ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
}

main "$@"
