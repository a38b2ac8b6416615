"""A PyTorch CUDA graph with a selection of the daemon inside: captured once, replayed with other
scores each time, every answer compared with torch.topk's set of scores.

usage: torch_lane.py LIBTOPKD URL [REPLAYS]
"""
import ctypes as c
import sys

import torch

from topkd_ctypes import LaneOptions, Options, Request, check, lib, register

ROWS, WIDTH, K = 16, 65536, 512

num_replays = int(sys.argv[3]) if len(sys.argv) > 3 else 200
source = torch.randn(ROWS, WIDTH, device="cuda")
scale = torch.ones(1, device="cuda")
scores = torch.empty(ROWS, WIDTH, device="cuda")
indices = torch.empty(ROWS, K, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
client = c.c_void_p()
options = Options(url=sys.argv[2].encode(), name=b"torch_lane")
check(lib.topkd_client_open(c.byref(options), c.byref(client)))
request = Request(rows=ROWS, width=WIDTH, k=K)
request.scores.region = register(client, scores, 1)
request.indices.region = register(client, indices, 3)
for device_mailbox, poll_us in ((False, 0), (True, 0), (True, 1000)):
    lane = c.c_void_p()
    lane_options = LaneOptions(device_mailbox=device_mailbox, poll_us=poll_us)
    check(lib.topkd_lane_open(client, c.byref(request), c.byref(lane_options), c.byref(lane)))
    # Each kernel once outside of the capture: loading one waits for the device.
    torch.mul(source, scale, out=scores)
    chosen = scores.gather(1, indices.clamp(0, WIDTH - 1).long()).sort(1, True).values
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        torch.mul(source, scale, out=scores)
        stream = torch.cuda.current_stream().cuda_stream
        check(lib.topkd_lane_enqueue(lane, c.c_void_p(stream)))
        chosen = scores.gather(1, indices.long()).sort(1, True).values
    for replay in range(num_replays):
        source.normal_()
        scale.fill_(float(replay % 7 - 3))  # 0 makes every score equal, a negative turns them over
        graph.replay()
        wanted = torch.topk(scores, K, 1).values
        if not torch.equal(chosen, wanted):
            sys.exit(f"FAIL replay {replay}: not the highest scores")
        if (indices.sort(1).values.diff(1) == 0).any():
            sys.exit(f"FAIL replay {replay}: a position twice")
    check(lib.topkd_lane_check(lane))
    torch.cuda.synchronize()
    lib.topkd_lane_close(lane)
lib.topkd_client_close(client)
print(f"ok torch_lane, {3 * num_replays} replays")
