#!/usr/bin/env bash
# Runs every example against a daemon.
#
#   examples_test.sh PROGRAM_DIR
set -euo pipefail

bin=$1
work=$(mktemp -d /tmp/topkd-examples-XXXXXX)
"$bin/topkd" --socket-dir "$work/run" --device cpu --log-level error --allow-shared-pid1 &
daemon=$!
trap 'kill -TERM "$daemon" 2>/dev/null || true; wait "$daemon" || true; rm -rf -- "$work"' EXIT
export TOPKD_URL=ipc://$work/run/topkd.sock
"$bin/topkctl" ping --timeout 60s >"$work/ping" || {
    cat "$work/ping" >&2
    exit 1
}

# name, what its output must contain, arguments
run() {
    local name=$1 pattern=$2 output
    shift 2
    output=$("$bin/$name" "$@") || {
        printf '%s failed: %s\n' "$name" "$output" >&2
        exit 1
    }
    grep -Eq "$pattern" <<<"$output" || {
        printf '%s printed: %s\n' "$name" "$output" >&2
        exit 1
    }
    printf '%s: ok\n' "$name"
}

run first_client '^row 3: [0-9]+ \(0\.99'
run async_client '^requests=500 .* requests_per_s=[1-9]'
run indexer_loop '^steps=24 .* exact=48 of 48 '
run indexer_client ' exact=yes ' --rows 8 --width 4096 --k 256 --repeats 5
for type in float32 float16; do
    /usr/bin/python3 -c "import sys, numpy as np
np.save(sys.argv[1], np.random.default_rng(1).standard_normal((5, 4001)).astype(sys.argv[2]))" \
        "$work/$type.npy" $type
    run indexer_client '^rows=5 width=4001 k=256 exact=yes ' --scores "$work/$type.npy" --k 256 \
        --repeats 3
done

# And without a daemon they say so and fail.
export TOPKD_URL=ipc://$work/nobody.sock
if timeout 30 "$bin/first_client" 2>"$work/error"; then
    echo "first_client succeeded without a daemon" >&2
    exit 1
fi
grep -q 'the daemon cannot be reached' "$work/error"
printf 'without a daemon: ok\n'
