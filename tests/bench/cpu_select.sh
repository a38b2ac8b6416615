#!/usr/bin/env bash
# Runs bench_cpu_select over the shapes, families and options that tests/bench/README.md reports, and
# writes one CSV. With --torch, PyTorch's topk is timed on the same scores where it is compared.
# The last columns say how busy the machine was otherwise while a line was measured, and at the end
# the script says it of all lines.
#
# usage: cpu_select.sh BUILD_DIR [--out FILE] [--threads N] [--passes N] [--torch PYTHON]
set -euo pipefail

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

die() { echo "cpu_select.sh: $1" >&2; exit 2; }

[ $# -ge 1 ] || die "usage: cpu_select.sh BUILD_DIR [--out FILE] [--threads N] [--passes N] [--torch PYTHON]"
here=$(cd "$(dirname "$0")" && pwd)
bench="$1/bin/bench_cpu_select"
shift
out="$here/results/cpu-select.csv"
threads=0
passes=3
python=
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || die "$1 needs a value"
    case "$1" in
    --out) out=$2 ;;
    --threads) threads=$2 ;;
    --passes) passes=$2 ;;
    --torch) python=$2 ;;
    *) die "unknown option $1" ;;
    esac
    shift 2
done
[ -x "$bench" ] || die "$bench is not there: build the target bench_cpu_select first"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
date=$(date -u +%Y-%m-%d)
commit=$(git -C "$here" rev-parse --short HEAD)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)

# Sets `all`, `busy` and `stolen`: ticks of all processors since the start of the machine, those
# that did something, and those that the hypervisor gave to another machine.
ticks() {
    local user nice system idle waiting irq softirq
    read -r _ user nice system idle waiting irq softirq stolen _ </proc/stat
    busy=$((user + nice + system + irq + softirq))
    all=$((busy + idle + waiting + stolen))
}

# Sets `own` to the ticks that the children of this script have used.
own_ticks() {
    times >"$scratch/times"
    own=$(awk -v hz="$(getconf CLK_TCK)" 'NR == 2 {
        for (i = 1; i <= 2; i++) { split($i, part, "[ms]"); seconds += 60 * part[1] + part[2] }
        printf "%d", seconds * hz }' "$scratch/times")
}

# Runs a command that prints lines of CSV. Each gets the date, the commit and the processor in front,
# and behind: the load, and of the processors' time in percent what was stolen and what others used.
measure() {
    local all busy stolen own all0 busy0 stolen0 own0 result=0
    ticks
    own_ticks
    all0=$all busy0=$busy stolen0=$stolen own0=$own
    "$@" >"$scratch/lines" || result=$?
    ticks
    own_ticks
    awk -v front="$date,$commit,$cpu" -v all=$((all - all0)) -v stolen=$((stolen - stolen0)) \
        -v others=$((busy - busy0 - own + own0)) -v load="$(cut -d ' ' -f 1 /proc/loadavg)" '
        function percent(ticks) { return all > 0 && ticks > 0 ? 100 * ticks / all : 0 }
        { printf "%s,%s,%s,%.1f,%.1f\n", front, $0, load, percent(stolen), percent(others) }' \
        "$scratch/lines" | tee -a "$scratch/csv"
    return "$result"
}
run() { measure "$bench" --threads "$threads" --rounds 9 --repeats 12 --csv "$@"; }

echo "date,commit,cpu,family,isa,threads,rows,width,k,lengths,order,ties,select_us,floor_us,\
x_floor,reads,certified,direct,band,recovery,spill,exact,dtype,load,stolen_percent,\
others_percent" | tee "$scratch/csv"

one_pass() {
    run --save "$scratch/scores.npy"
    if [ -n "$python" ]; then
        measure "$python" "$here/torch_topk.py" "$scratch/scores.npy" --threads "$(nproc)"
    fi
    rm -f "$scratch/scores.npy"
    run --family all
    for isa in portable avx2 avx512; do # the ones this processor lacks are said and left out
        run --isa $isa || echo "cpu_select.sh: no figures for $isa" >&2
    done
    run --ties lowest --order index
    run --order value
    for dtype in float16 bfloat16; do
        run --dtype $dtype
        run --dtype $dtype --isa portable
    done
    run --lengths causal
    run --lengths ragged
    for k in 1 64 512 1024 4096 16384; do
        run --k $k
    done
    for width in 4096 8192 16384 32768 65536 262144 1048576; do
        run --rows $((8388608 / width)) --width $width
    done
    for width in 131072 1048576; do
        run --rows 1 --width $width
    done
}

for ((pass = 1; pass <= passes; pass++)); do
    one_pass
done
awk -f "$here/cpu_merge.awk" "$scratch/csv" >"$scratch/merged"
if cut -d , -f 22 "$scratch/merged" | grep -qx NO; then
    die "a result was wrong: see the lines with NO in the column exact"
fi
mkdir -p "$(dirname "$out")"
cp "$scratch/merged" "$out"
awk -F , 'NR > 1 { load += $23; stolen += $24; others += $25; if ($25 > most) most = $25 }
    END { printf "machine: load %.1f, %.1f %% of the processors stolen, %.1f %% used by others " \
        "(at most %.1f %%)\n", load / (NR - 1), stolen / (NR - 1), others / (NR - 1), most }' "$out" >&2
echo "wrote $out" >&2
