#!/bin/sh
# Does check_rooms.sh notice? Builds a small tree that obeys the rules, then breaks one at a time.
#
# usage: check_rooms_test.sh CHECK_ROOMS_SH
set -eu
check=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# put FILE LINE...: a source with these lines
put() {
    file=$work/tree/$1
    shift
    mkdir -p "$(dirname "$file")"
    printf '%s\n' "$@" >"$file"
}

lawful_tree() {
    put proto/include/topkd_status.h '#include <stdint.h>'
    put proto/include/topkd_wire.h '#include "topkd_status.h"'
    put proto/check.c '#include "topkd_wire.h"'
    put proto/wire.cpp '#include "topkd_generated.h"' '#include <flatbuffers/base.h>' \
        '#include <cstring>'
    put client/include/topkd.h '#include "topkd_status.h"'
    put client/lib/client.h '#include <sys/un.h>'
    put client/lib/client.c '#include "topkd.h"' '#include "client.h"' \
        '#  include  "topkd_wire.h" /* why */'
    put client/topkctl/select.c '#include "topk_select.h"' '#include "select.h"'
    put client/topkctl/select.h '#include "topkd.h"'
    put client/examples/first.c '#include <topkd.h>' '#include <stdio.h>'
    put kernels/include/topk_select.h '#include <stddef.h>'
    put kernels/cpu/row.c '#include "cpu/row.h"' '#include <immintrin.h>'
    put kernels/cpu/row.h '#include "topk_select.h"'
    put kernels/cuda/row.cu '#include "row.cuh"' '#include <cub/cub.cuh>' '#include <cuda_runtime.h>'
    put kernels/cuda/row.cuh '#include "cpu/row.h"'
    put server/loop.h '#include <uv.h>' '#include <yaml.h>'
    put server/loop.c '#include "loop.h"' '#include "topk_select.h"' '#include "topkd_wire.h"' \
        '#include "topkd_version.h"' '#include <systemd/sd-daemon.h>'
    put server/device_cuda.c '#include "loop.h"' '#include <cuda.h>'
    put cmake/topkd_version.h.in '#include <stdint.h>'
    put tests/unit/loop_test.c '#include "server/loop.h"' '#include <cmocka.h>' '#include "oracle.h"'
    put tests/support/oracle.h '#include <stdbool.h>'
}

lawful_tree
"$check" "$work/tree" || {
    echo "a tree that obeys the rules was refused"
    exit 1
}

num_broken=0
# refuses FILE INCLUDE TEXT: with this line added to FILE the check must fail, naming FILE and TEXT.
refuses() {
    cp "$work/tree/$1" "$work/lawful"
    printf '%s\n' "$2" >>"$work/tree/$1"
    if "$check" "$work/tree" >"$work/out" 2>&1; then
        echo "not noticed in $1: $2"
        exit 1
    fi
    if ! grep -q "^$1:[0-9]*: .*$3" "$work/out"; then
        echo "$1: $2: expected a line with '$3', got:"
        cat "$work/out"
        exit 1
    fi
    mv "$work/lawful" "$work/tree/$1"
    num_broken=$((num_broken + 1))
}

refuses proto/check.c '#include "loop.h"' 'may not include server/loop.h'
refuses proto/check.c '#include <vector>' 'which is the C++ library'
refuses proto/include/topkd_wire.h '#include "../check.h"' 'no source of ours'
refuses proto/include/topkd_wire.h '#include "topk_select.h"' 'may not include kernels/include'
refuses client/include/topkd.h '#include "topkd_wire.h"' 'may not include proto/include/topkd_wire.h'
refuses client/include/topkd.h '#include <cuda_runtime.h>' 'which is CUDA'
refuses client/lib/client.c '#include "../../server/loop.h"' 'may not include server/loop.h'
refuses client/lib/client.c '#include "topk_select.h"' 'may not include kernels/include/topk_select.h'
refuses client/lib/client.c '#include "topkd_generated.h"' 'generated code'
refuses client/lib/client.c '#include "topkctl/select.h"' 'may not include client/topkctl/select.h'
refuses client/lib/client.c '#include <uv.h>' 'which is libuv'
refuses client/lib/client.c '#include <nng/nng.h>' 'which is NNG'
refuses client/topkctl/select.c '#include "cpu/row.h"' 'may not include kernels/cpu/row.h'
refuses client/examples/first.c '#include "topkd_wire.h"' 'may not include proto/include'
refuses client/examples/first.c '#include "client.h"' 'may not include client/lib/client.h'
refuses client/examples/first.c '#include <nng/nng.h>' 'which is NNG'
refuses kernels/include/topk_select.h '#include "topkd_status.h"' 'may not include proto/include'
refuses kernels/cpu/row.c '#include "row.cuh"' 'may not include kernels/cuda/row.cuh'
refuses kernels/cpu/row.c '#include <cuda_runtime.h>' 'which is CUDA'
refuses kernels/cuda/row.cu '#include "topkd_wire.h"' 'may not include proto/include'
refuses server/loop.c '#include "cpu/row.h"' 'may not include kernels/cpu/row.h'
refuses server/loop.c '#include "client.h"' 'may not include client/lib/client.h'
refuses server/loop.c '#include <cuda.h>' 'which is CUDA'
refuses server/loop.c '#include <nng/nng.h>' 'which is NNG'
refuses server/loop.c '#include <flatbuffers/base.h>' 'which is FlatBuffers'
refuses server/loop.c ' # include <immintrin.h>' 'vector intrinsics'
refuses server/loop.c '#include "oracle.h"' 'may not include tests/support/oracle.h'
refuses server/loop.c '#include "../tests/support/oracle.h"' 'may not include tests/support'
refuses server/loop.c '#include <cmocka.h>' 'which is cmocka'
refuses server/loop.c '#include <boost.h>' 'is unknown here'
refuses server/loop.c '#include LOOP_HEADER' 'cannot read'
refuses tests/unit/loop_test.c '#include "nowhere.h"' 'no source of ours is named nowhere.h'

"$check" "$work/tree" >/dev/null || {
    echo "the tree is not what it was"
    exit 1
}
mkdir "$work/empty"
if "$check" "$work/empty" >"$work/out" 2>&1; then
    echo "an empty tree passed"
    exit 1
fi
echo "$num_broken violations were noticed"
