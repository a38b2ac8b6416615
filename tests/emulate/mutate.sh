#!/usr/bin/env bash
# Do the tests on the model see faults in the kernels? Makes each fault below in a copy of the
# kernels, compiles and runs emulate_random with it, and tells who saw it: the oracle (a wrong
# answer), the model (an error that it reports) or a signal. For developers: minutes of computing.
#
#   tests/emulate/mutate.sh [--cases N] [NAME...]
#
# Exit code: 0 all faults were seen, 1 one was not, 2 usage, or a fault that can no longer be made.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cases=200

# name | family, and "misled" where rows are to mislead the sample | file | what stands there (a basic regular expression, in one line) | in its place
faults=$(cat <<'END'
barrier_after_counts|row|rank.cuh|        count_keys(source, low, high, shift, bins);\n        block_sync<THREADS>();|        count_keys(source, low, high, shift, bins);
barrier_in_find_rank|row|rank.cuh|shared.totals\[warp_index()\] = own;\n    }\n    block_sync<THREADS>();|shared.totals[warp_index()] = own;\n    }
barrier_before_write|row|row_write.cuh|        block_sync<THREADS>();\n        sink_put_staged|        sink_put_staged
take_one_less|row|row_write.cuh|(uint32_t)__popc(lanes \& lanes_below()) < take|(uint32_t)__popc(lanes \& lanes_below()) + 1 < take
cut_one_higher|plain|plain.cu|key > cut.key ?|key > cut.key + 1 ?
bin_above_lost|plain|rank.cuh|            need -= found.above;|            need -= found.above + 1;
length_one_more|plain|plain.cu|THREADS < length ? key_of|THREADS <= length ? key_of
no_wait_for_full|tiles misled|stream_scan.cuh|    return __all_sync(WARP_ALL, full);|    return __all_sync(WARP_ALL, true);
wait_gives_up|tiles misled|stream_scan.cuh|while (!full \&\& |while (false \&\& !full \&\& 
no_wait_for_empty|tiles|stream_scan.cuh|            ring_wait(\&shared.ring.empty\[place.stage\], place.phase ^ 1);\n|
no_fence_before_copy|tiles|stream_scan.cuh|    fence_before_copies();[^\n]*\n|
no_arrival_at_empty|tiles|stream_scan.cuh|            mbarrier_arrive(\&shared.ring.empty\[place.stage\]);|
edge_one_short|tiles|stream_scan.cuh|chunk + CHUNK <= end;|chunk + CHUNK <= end + 4;
resumes_too_soon|tiles misled|stream_scan.cuh|                ring_wait(\&hand.resumed\[buffer\], phase);\n|
no_arrival_for_others|tiles misled|stream.cu|            for (uint32_t i = stuck; i < Roles::SCAN_WARPS; i++) {|            for (uint32_t i = stuck + 1; i < Roles::SCAN_WARPS; i++) {
buffer_not_waited_for|tiles|stream_scan.cuh|            wait_for(hand.freed, n - Roles::BUFFERS);\n|
boundary_not_waited_for|tiles|stream_scan.cuh|        wait_for(hand.ready, n);\n|
candidates_not_waited_for|tiles|stream.cu|        ring_wait(\&hand.scanned\[n % JOBS\], phases >> n % JOBS \& 1);\n|
job_reused_too_soon|tiles|stream_state.cuh|        mbarrier_init(\&hand.freed\[i\], 2);|        mbarrier_init(\&hand.freed[i], 1);
stage_released_too_soon|tiles|stream_scan.cuh|        score_t \*scores = stage_at\(.*\)        __syncwarp();\n        if (lane_index() == 0) {\n            mbarrier_arrive(\&shared.ring.empty\[place.stage\]);\n        }\n|        if (lane_index() == 0) {\n            mbarrier_arrive(\&shared.ring.empty[place.stage]);\n        }\n        score_t *scores = stage_at\1
arrival_of_a_scanner_lost|tiles|stream_scan.cuh|        if (lane_index() == 0) {\n            mbarrier_arrive(\&hand.scanned\[n % JOBS\]);\n        }\n    }|        if (lane_index() == 0 \&\& n != 2) {\n            mbarrier_arrive(\&hand.scanned[n % JOBS]);\n        }\n    }
arrival_of_the_producer_lost|tiles|stream_scan.cuh|        mbarrier_arrive(\&shared.hand_over.freed\[n % JOBS\]);\n|
arrival_of_the_finishers_lost|tiles|stream.cu|            mbarrier_arrive(\&shared.hand_over.freed\[n % JOBS\]);\n|
candidates_of_the_row_before|tiles|stream.cu|scanned\[n % JOBS\], phases >>|scanned[n % JOBS], ~phases >>
count_of_the_row_before|tiles|stream.cu|            shared.written = 0;\n|
boundary_of_the_row_before|tiles|stream_scan.cuh|admission admission = job_at<Roles>(n).admission;\n    const uint32_t begin|admission admission = job_at<Roles>(n > 0 ? n - 1 : n).admission;\n    const uint32_t begin
boundary_for_the_row_behind|tiles|stream_sample.cuh|job.boundary = boundary;|job_at<Roles>(n + 1).boundary = boundary;
segment_posted_too_soon|tiles|stream_sample.cuh|        ring_wait(\&shared.hand_over.freed\[n % JOBS\], (n / JOBS - 1) \& 1);\n|
edge_read_beside|tiles|stream_sample.cuh|row_of<Roles>(job.segment)\[at\];|row_of<Roles>(job.segment)[at ^ 1];
plateau_too_short|tiles|frontier.cuh|part ? selection.position + 1 :|part ? selection.position :
bound_too_high|tiles|frontier.cuh|key_floor_bits(low + 1)|key_floor_bits(low + 2)
bucket_one_behind|tiles|stream_write.cuh|slot += dealt\[other\] < position|slot += dealt[other] <= position
slots_of_rows_meet|tiles|stream_parts.cuh|return part == 0 ? 2 \* first_block + 1|return part == 0 ? 2 * first_block
parts_miscounted|tiles|share.cuh|- segment.first_block + 1;|- segment.first_block;
arrivals_not_reset|split|stream_parts.cuh|            workspace.arrivals\[first_block\] = 0;[^\n]*\n|
equal_ones_from_the_front|split|stream_parts.cuh|equal ? CANDIDATES - 1 - rank : rank|rank
plateau_a_part_short|split|stream_parts.cuh|k - bounds.num_above - 1) + 1;|k - bounds.num_above - 1);
half_row_not_waited_for|row|row_half.cuh|        copies_wait();\n|
half_row_there_in_part|row|row_half.cuh|        block_sync<THREADS>(); /\* the row is there[^\n]*\n|
half_next_row_too_soon|row|row_half.cuh|    block_sync<THREADS>(); /\* the list is complete, the row read \*/\n|
cluster_no_exchange_wait|cluster|cluster_finish.cuh|    ring_wait(\&shared.met, phase);|
cluster_leaves_early|cluster|cluster.cu|    cluster_wait();\n    block_sync<THREADS>();|    block_sync<THREADS>();
cluster_no_last_barrier|cluster|cluster.cu|    cluster_wait();\n    block_sync<THREADS>();[^\n]*|    cluster_wait();
cluster_no_mend|cluster|cluster_admit.cuh|        mend_run<RUN>(row, run);|
cluster_equal_once_more|cluster|cluster_finish.cuh|merged\[i + before\] = make_uint2|merged[i + before + 1] = make_uint2
push_one_less|cluster|cluster_finish.cuh|i < count; i += THREADS) {\n        remote_send|i + 1 < count; i += THREADS) {\n        remote_send
END
)

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
}

# one_fault NAME FAMILY FILE FROM TO: prints what saw it.
one_fault() {
    local name=$1 file=$work/kernels/cuda/$3 status=0 options
    options=(--family "${2% misled}" --cases "$cases")
    [[ $2 != *misled ]] || options+=(--misled yes)
    sed -z "s@$4@$5@" "$root/kernels/cuda/$3" >"$file"
    if cmp -s "$root/kernels/cuda/$3" "$file"; then
        echo "$name: $3 has changed, so that this fault cannot be made; look at mutate.sh" >&2
        return 2
    fi
    cmake --build "$work/build" --target emulate_random_sm90 >"$work/log" 2>&1 || {
        echo "$name: does not compile:" >&2
        tail -20 "$work/log" >&2
        return 2
    }
    # In a shell of its own, which says there what signal ended it.
    (TOPKD_EMULATE_DEVICE=$device "$work/build/bin/emulate_random_sm90" "${options[@]}" || exit $?) \
        >"$work/log" 2>&1 || status=$?
    cp "$root/kernels/cuda/$3" "$file"
    case $status in
    0) echo "NOT SEEN $name ($2, $cases cases)" && return 1 ;;
    1) echo "seen     $name by the oracle: $(grep -m1 FAILED "$work/log" | cut -c1-90)" ;;
    3) echo "seen     $name by the model: $(grep -m1 emulate: "$work/log" | cut -c1-90)" ;;
    2) echo "$name: $(tail -1 "$work/log")" >&2 && return 2 ;;
    *) echo "seen     $name by a signal, exit code $status" ;;
    esac
}

main() {
    local wanted=() name family file from to failed=0 result
    while (($# > 0)); do
        case $1 in
        --cases) cases=$2 && shift ;;
        -h | --help) usage && return ;;
        -*) usage >&2 && return 2 ;;
        *) wanted+=("$1") ;;
        esac
        shift
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$root" && git ls-files -z | xargs -0 cp --parents -t "$work")
    # Half of the time is the compiler's.
    cmake -S "$work" -B "$work/build" -G Ninja -DTOPKD_CUDA=OFF -DTOPKD_BENCH=OFF \
        -DTOPKD_EMULATE_OPTIMISATION=-O0 >"$work/log"
    while IFS='|' read -r name family file from to; do
        if ((${#wanted[@]} > 0)) && [[ " ${wanted[*]} " != *" $name "* ]]; then
            continue
        fi
        device=sm90
        [[ $family != cluster* ]] || device=sm90-18
        result=0
        one_fault "$name" "$family" "$file" "$from" "$to" || result=$?
        ((result <= failed)) || failed=$result
    done <<<"$faults"
    return "$failed"
}

main "$@"
