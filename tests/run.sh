#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests that need no GPU:
#
#   tests/run.sh [MODE] [-- CTEST ARGUMENT...]
#
#   (no mode)   all of them, in a development build (build/dev)
#   --quick     the unit tests only
#   --asan      all, with AddressSanitizer and UndefinedBehaviorSanitizer (build/asan)
#   --tsan      all, with ThreadSanitizer (build/tsan)
#   --fuzz      the fuzz targets: their corpora and a short search (build/fuzz)
#   --all       --fuzz, --asan, --tsan, then all in a development build
#
# Closes with ctest's summary. Exit code: 0 all passed, 1 a build or a test failed, 2 wrong command
# line.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
}

# run_preset PRESET [CTEST ARGUMENT...]
run_preset() {
    local preset=$1
    shift
    cmake --preset "$preset"
    cmake --build --preset "$preset"
    # Most tests wait; those that compute count as three (tests/CMakeLists.txt).
    ctest --preset "$preset" --parallel "$((3 * $(nproc)))" --label-exclude '^(gpu|bench)$' "$@"
}

main() {
    local mode=dev
    if (($# > 0)) && [[ $1 != -- ]]; then
        mode=$1
        shift
    fi
    if (($# > 0)); then
        if [[ $1 != -- ]]; then
            usage >&2
            exit 2
        fi
        shift
    fi
    case $mode in
    -h | --help)
        usage
        return
        ;;
    --fuzz | --all) deploy/packages.sh install build test check ;;
    dev | --quick | --asan | --tsan) deploy/packages.sh install build test ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    case $mode in
    --quick) run_preset dev --label-regex '^unit$' "$@" ;;
    --all)
        for preset in fuzz asan tsan dev; do
            run_preset "$preset" "$@"
        done
        ;;
    *) run_preset "${mode#--}" "$@" ;;
    esac
}

main "$@"
