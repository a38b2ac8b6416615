#!/usr/bin/env bash
# Searches with the fuzz targets for inputs that break what they demand.
#
#   tests/fuzz/run.sh [--build DIR] [--seconds N | --runs N] [--merge] [TARGET...]
#
#   --build DIR   a build made with TOPKD_FUZZ=ON; without it the preset `fuzz` is built (build/fuzz)
#   --seconds N   for each target (default 600)
#   --runs N      so many executions of each target instead
#   --merge       afterwards keep in tests/fuzz/corpus only a smallest set of inputs, old or new, that
#                 covers as much; to be committed. Inputs with a name of their own are always kept
#   TARGET        wire_request, wire_reply, settings, npy, http; without one, all of them
#
# What is found lies in DIR/fuzz/TARGET/found, one file an input; the program run with that file
# repeats it. Inputs that reach new code lie in DIR/fuzz/TARGET/corpus and are used again.
# Exit code: 0 nothing was found, 1 something was, 2 wrong command line.
set -euo pipefail

fuzz=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$fuzz/../.." && pwd)
input_size_max=4096 # bytes; libFuzzer works through small inputs faster, and limits lie below

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
}

# search BUILD LIMIT TARGET; LIMIT is libFuzzer's
search() {
    local build=$1 limit=$2 target=$3
    local work=$build/fuzz/$target options=()
    mkdir -p "$work/corpus" "$work/found"
    if [[ -f $fuzz/$target.dict ]]; then options+=("-dict=$fuzz/$target.dict"); fi
    local inputs=("$work/corpus")
    for folder in "$fuzz/corpus/$target" "$build/fuzz/seeds/$target"; do
        if [[ -d $folder ]]; then inputs+=("$folder"); fi
    done
    echo "== $target: $limit"
    # -timeout: seconds that one input may take, on a busy machine too; all targets need microseconds
    nice -n 19 "$build/bin/fuzz_$target" "$limit" -timeout=60 \
        -rss_limit_mb=2048 "-max_len=$input_size_max" -print_final_stats=1 \
        "-artifact_prefix=$work/found/" "${options[@]}" "${inputs[@]}"
}

# merge BUILD TARGET: what the corpus needs beside the seeds and the inputs with a name of their own
merge() {
    local build=$1 target=$2
    local merged=$build/fuzz/$target/merged seeds=$build/fuzz/seeds/$target
    local corpus=$fuzz/corpus/$target hash
    hash=$(printf '[0-9a-f]%.0s' {1..40}) # names that libFuzzer gives
    rm -rf "$merged"
    mkdir -p "$merged" "$corpus"
    if [[ -d $seeds ]]; then cp "$seeds"/* "$merged/"; fi
    find "$corpus" -type f ! -name "$hash" -exec cp {} "$merged/" ';'
    "$build/bin/fuzz_$target" -set_cover_merge=1 -use_counters=0 -max_len=1024 "$merged" \
        "$corpus" "$build/fuzz/$target/corpus"
    find "$corpus" -type f -name "$hash" -delete
    find "$merged" -type f -name "$hash" -exec cp {} "$corpus/" ';'
    echo "== $target: $(find "$corpus" -type f | wc -l) inputs in the corpus"
}

main() {
    local build='' limit=-max_total_time=600 merging=no targets=()
    while (($# > 0)); do
        case $1 in
        --build | --seconds | --runs)
            if (($# < 2)); then
                usage >&2
                exit 2
            fi
            case $1 in
            --build) build=$2 ;;
            --seconds) limit=-max_total_time=$2 ;;
            --runs) limit=-runs=$2 ;;
            esac
            shift 2
            ;;
        --merge)
            merging=yes
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        -*)
            usage >&2
            exit 2
            ;;
        *)
            if [[ ! -f $fuzz/fuzz_$1.c ]]; then
                echo "run.sh: no fuzz target $1" >&2
                exit 2
            fi
            targets+=("$1")
            shift
            ;;
        esac
    done
    if ((${#targets[@]} == 0)); then targets=(wire_request wire_reply settings npy http); fi
    if [[ -z $build ]]; then
        build=$root/build/fuzz
        (cd "$root" && cmake --preset fuzz && cmake --build --preset fuzz)
    fi
    build=$(cd "$build" && pwd)
    for target in "${targets[@]}"; do
        if [[ ! -x $build/bin/fuzz_$target ]]; then
            echo "run.sh: no $build/bin/fuzz_$target: build it with TOPKD_FUZZ=ON" >&2
            exit 2
        fi
    done
    mkdir -p "$build/fuzz"
    ( # several of these may run at once
        flock 9
        "$build/bin/fuzz_seeds" "$build/fuzz/seeds"
        mkdir -p "$build/fuzz/seeds/settings"
        cp "$root"/config/*.yaml "$build/fuzz/seeds/settings/"
    ) 9>"$build/fuzz/seeds.lock"
    local found=no
    for target in "${targets[@]}"; do
        search "$build" "$limit" "$target" || found=yes
    done
    if [[ $found == yes ]]; then
        echo "something was found: see $build/fuzz/*/found" >&2
        exit 1
    fi
    if [[ $merging == yes ]]; then
        for target in "${targets[@]}"; do merge "$build" "$target"; done
    fi
}

main "$@"
