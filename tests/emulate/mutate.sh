#!/usr/bin/env bash
# Do the tests on the model see faults in the kernels? Makes each fault of faults.txt in a copy of
# the kernels, compiles it and runs what ctest runs, as far as it concerns the fault's family; then,
# if that saw nothing, a longer run. Tells who saw the fault: the oracle (a wrong answer), the model
# (an error that it reports) or a signal. For developers: a minute of computing a fault.
#
#   tests/emulate/mutate.sh [--cases N] [--jobs N] [NAME...]
#
# --cases: of the longer run (200). --jobs: compilers at once (1). NAME: only these faults; a
# pattern of the shell. TMPDIR is where the copy is made.
#
# Exit code: 0 all faults were seen as faults.txt says, 1 one was not, 2 usage, or a fault that can
# no longer be made.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cases=200
jobs=1
limit_s=900 # of one program; a case of random ones that does not end is found before

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
}

# Sets command and device: those of a test as ctest runs it.
find_test() {
    local file=$work/build/tests/emulate/CTestTestfile.cmake
    command=$(sed -n "s/^add_test(\[*=*\[*emulate_$1\]*=*\]* \(.*\))\$/\1/p" "$file")
    device=$(sed -n "/^set_tests_properties(\[*=*\[*emulate_$1\]/s/.*TOPKD_EMULATE_DEVICE=\([^\"]*\)\".*/\1/p" "$file")
    eval "command=($command)"
    if [[ ${#command[@]} -eq 0 || -z $device ]]; then
        echo "mutate: ctest knows of no test emulate_$1" >&2
        return 2
    fi
}

# Compiles a program of the build.
compile() {
    cmake --build "$work/build" --target "$1" -j "$jobs" >"$work/log" 2>&1 || {
        echo "$name: does not compile:" >&2
        tail -20 "$work/log" >&2
        return 2
    }
}

# Runs `command`, a program of the build, on `device`; its exit code, 124 when it ran past the limit.
run_command() {
    compile "$(basename "${command[0]}")" || exit 2
    # In a shell of its own, which says there what signal ended it.
    (TOPKD_EMULATE_DEVICE=$device timeout "$limit_s" "${command[@]}" || exit $?) >"$work/log" 2>&1
}

# seen_by WHAT: runs `command`; true when it saw a fault, with a line about it.
seen_by() {
    local status=0 who detail
    run_command || status=$?
    case $status in
    0) return 1 ;;
    1) who=oracle detail=$(grep -m1 FAILED "$work/log" || true) ;;
    2) echo "$name: $(tail -1 "$work/log")" >&2 && exit 2 ;;
    3) who=model detail=$(grep -m1 emulate: "$work/log" || true) ;;
    124) who=limit detail="does not end in $limit_s s" ;;
    *) who=signal detail="exit code $status" ;;
    esac
    printf '%-30s %-7s %-15s %-6s %s\n' "$name" "$family" "$1" "$who" "$(cut -c1-100 <<<"$detail")"
}

# The tests of ctest that have cases of a family, with what restricts them to it.
seen_by_ctest() {
    local among=(--among "$family")
    [[ $family != any ]] || among=()
    if [[ $tests == *hostile* ]]; then
        find_test "hostile_$family"
        seen_by "hostile_$family"
        return
    fi
    find_test random_sm90 && command+=("${among[@]}")
    seen_by random_sm90 && return
    local more test
    case $family in
    row) more=(bin_edges) ;;
    tiles) more=(random_misled) ;;
    cluster) more=(random_clusters) ;;
    wide) more=(random_wide bin_edges full_bin) ;;
    *) more=() ;;
    esac
    for test in "${more[@]}"; do
        find_test "$test"
        seen_by "$test" && return
    done
    find_test families && command+=(--family "$family")
    seen_by families
}

# The longer run.
seen_by_longer() {
    local program=random options=(--family "$family" --cases "$cases")
    [[ $family != any ]] || options=(--cases "$cases")
    [[ $tests != *misled* ]] || options+=(--misled yes)
    [[ $tests != *hostile* ]] || program=hostile
    device=sm90
    [[ $family != cluster && $family != wide ]] || device=sm90-18
    command=("$work/build/bin/emulate_${program}_sm90" "${options[@]}")
    longer_runs[$device ${command[*]}]=1
    seen_by "longer run"
}
declare -A longer_runs

# What the longer runs saw is nothing if the kernels as they are fail in them.
check_longer_runs() {
    local run failed=0
    for run in "${!longer_runs[@]}"; do
        read -r -a command <<<"$run"
        device=${command[0]} command=("${command[@]:1}")
        run_command || {
            echo "the longer run fails without a fault as well: $run" >&2
            failed=2
        }
    done
    return "$failed"
}

# Sets the build back to that of the kernels as they are.
restore() {
    cp -p "$root/kernels/cuda/$file" "$work/kernels/cuda/$file"
    rm -rf "$work/build"
    cp -a "$work/base" "$work/build"
}

# Makes the fault at hand.
make_fault() {
    sed -z "s@$from@$to@" "$root/kernels/cuda/$file" >"$work/kernels/cuda/$file"
    if cmp -s "$root/kernels/cuda/$file" "$work/kernels/cuda/$file"; then
        echo "$name: $file has changed, so that this fault cannot be made; look at faults.txt" >&2
        return 2
    fi
}

# The fault at hand: counts who saw it.
one_fault() {
    local family=${tests%% *} device command=()
    make_fault || return
    if seen_by_ctest; then
        num_seen=$((num_seen + 1))
    elif seen_by_longer; then
        num_longer=$((num_longer + 1))
        [[ $tests == *longer* ]] || {
            echo "$name: what ctest runs does not see it, and faults.txt does not say so" >&2
            return 1
        }
    else
        printf '%-30s %-7s NOT SEEN\n' "$name" "$family"
        return 1
    fi
}

is_wanted() {
    local pattern
    for pattern in "${wanted[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        [[ $1 != $pattern ]] || return 0
    done
    ((${#wanted[@]} == 0))
}

main() {
    local wanted=() name tests file from to failed=0 result num=0 num_seen=0 num_longer=0
    while (($# > 0)); do
        case $1 in
        --cases | --jobs) printf -v "${1#--}" %s "${2:?}" && shift ;;
        -h | --help) usage && return ;;
        -*) usage >&2 && return 2 ;;
        *) wanted+=("$1") ;;
        esac
        shift
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$root" && git ls-files -z | xargs -0 cp -p --parents -t "$work")
    # Half of the time is the compiler's.
    cmake -S "$work" -B "$work/build" -G Ninja -DTOPKD_CUDA=OFF -DTOPKD_BENCH=OFF \
        -DTOPKD_EMULATE_OPTIMISATION=-O0 >"$work/log"
    for name in random families hostile bin_edges; do
        compile "emulate_${name}_sm90"
    done
    cp -a "$work/build" "$work/base"
    while IFS='|' read -r name tests file from to; do
        if [[ $name == \#* ]] || ! is_wanted "$name"; then
            continue
        fi
        num=$((num + 1)) result=0
        one_fault || result=$?
        restore
        ((result <= failed)) || failed=$result
    done <"$here/faults.txt"
    check_longer_runs || failed=$?
    echo "$num faults: $num_seen seen by what ctest runs, $num_longer by a longer run," \
        "$((num - num_seen - num_longer)) not"
    return "$failed"
}

main "$@"
