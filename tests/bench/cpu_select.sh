#!/usr/bin/env bash
# Runs bench_cpu_select over the shapes, families and options that tests/bench/README.md reports, and
# writes one CSV. With --torch, PyTorch's topk is timed on the same scores where it is compared.
#
# usage: cpu_select.sh BUILD_DIR [--out FILE] [--threads N] [--passes N] [--torch PYTHON]
set -euo pipefail

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

# Every line gets the date, the commit and the processor in front.
line() { sed "s|^|$date,$commit,$cpu,|" | tee -a "$scratch/csv"; }
run() { "$bench" --threads "$threads" --rounds 9 --repeats 12 --csv "$@" | line; }

echo "date,commit,cpu,family,isa,threads,rows,width,k,lengths,order,ties,select_us,floor_us,\
x_floor,reads,certified,direct,band,recovery,spill,exact" | tee "$scratch/csv"

one_pass() {
    run --save "$scratch/scores.npy"
    if [ -n "$python" ]; then
        "$python" "$here/torch_topk.py" "$scratch/scores.npy" --threads "$(nproc)" | line
    fi
    rm -f "$scratch/scores.npy"
    run --family all
    for isa in portable avx2 avx512; do # the ones this processor lacks are said and left out
        run --isa $isa || echo "cpu_select.sh: no figures for $isa" >&2
    done
    run --ties lowest --order index
    run --order value
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
if grep -q ',NO$' "$scratch/merged"; then
    die "a result was wrong: see the lines that end with NO"
fi
mkdir -p "$(dirname "$out")"
cp "$scratch/merged" "$out"
echo "wrote $out" >&2
