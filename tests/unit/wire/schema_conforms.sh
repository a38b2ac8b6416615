#!/bin/sh
# Is the schema an evolution of its first version? And would this test notice if it were not?
#
# usage: schema_conforms.sh FLATC CURRENT_SCHEMA FIRST_SCHEMA
set -eu
flatc=$1 current=$2 first=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$flatc" --conform "$first" "$current" || {
    echo "proto/topkd.fbs breaks peers of the first version: only append (see the top of that file)"
    exit 1
}

# refuses WHAT SED_SCRIPT: a copy of the current schema edited so must not conform to it.
refuses() {
    sed "$2" "$current" >"$work/edited.fbs"
    if cmp -s "$current" "$work/edited.fbs"; then
        echo "the edit '$1' changed nothing: bring this test up to date with the schema"
        exit 1
    fi
    if "$flatc" --conform "$current" "$work/edited.fbs" >"$work/out" 2>&1; then
        echo "'$1' was not noticed"
        exit 1
    fi
    grep -q "don't conform" "$work/out" || {
        echo "'$1' failed for another reason: $(cat "$work/out")"
        exit 1
    }
}

# accepts WHAT SED_SCRIPT: the same, but the edit is allowed.
accepts() {
    sed "$2" "$current" >"$work/edited.fbs"
    cmp -s "$current" "$work/edited.fbs" && {
        echo "the edit '$1' changed nothing: bring this test up to date with the schema"
        exit 1
    }
    "$flatc" --conform "$current" "$work/edited.fbs" || {
        echo "'$1' was refused"
        exit 1
    }
}

refuses "a field removed" '/^table SelectReply/,/^}/{/indices_offset:/d}'
refuses "a field inserted" '/^table SelectReply/,/^}/s/^  queued_ns:.*/  inserted:ulong;\n&/'
refuses "a field of another type" '/^table UnregisterRequest/,/^}/s/generation:uint/generation:ulong/'
refuses "a field of another default" '/^table RegisterRequest/,/^}/s/buffer_id:ulong/& = 3/'
refuses "an enum renumbered" 's/^  Ping = 2,/  Ping = 20,/'
refuses "union members swapped" \
    '/^union ReplyBody/,/^}/{s/HelloReply/Swap/;s/DevicesReply/HelloReply/;s/Swap/DevicesReply/}'
refuses "a union member removed" '/^union RequestBody/,/^}/{/HelloRequest/d}'
accepts "a field appended" '/^table ReleaseRequest/,/^}/s/^}/  appended:ulong;\n}/'
accepts "an enum value appended" 's/CudaFd = 3 }/CudaFd = 3, Future = 4 }/'
accepts "a union member appended" '/^union RequestBody/,/^}/s/  SelectBatchRequest/&, UnregisterRequest2/
    s/^table UnregisterRequest {/table UnregisterRequest2 { region:ulong; }\n&/'
echo "the schema is an evolution of its first version"
