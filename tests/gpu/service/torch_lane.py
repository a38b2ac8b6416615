"""A PyTorch CUDA graph with a selection of the daemon inside: captured once, replayed with other
scores each time, every answer compared with torch.topk's set of scores.

usage: torch_lane.py LIBTOPKD URL [REPLAYS]
"""
import ctypes as c
import sys

import torch

ROWS, WIDTH, K = 16, 65536, 512


class Tensor(c.Structure):
    _fields_ = [("region", c.c_void_p), ("offset_bytes", c.c_uint64), ("stride", c.c_int64)]


class Point(c.Structure):
    _fields_ = [("semaphore", c.c_void_p), ("value", c.c_uint64)]


class Request(c.Structure):
    _fields_ = [("scores", Tensor), ("rows", c.c_uint32), ("width", c.c_uint32), ("k", c.c_uint32),
                ("order", c.c_int), ("ties", c.c_int), ("deterministic", c.c_bool),
                ("lengths_mode", c.c_int), ("length_all", c.c_int32),
                ("lengths_host", c.c_void_p), ("lengths", Tensor), ("indices", Tensor),
                ("values", Tensor), ("want_values", c.c_bool), ("page_table", Tensor),
                ("page_table_width", c.c_uint32), ("page_size", c.c_uint32),
                ("row_offsets", Tensor), ("wait", Point), ("signal", Point),
                ("timeout_ms", c.c_uint32)]


class LaneOptions(c.Structure):
    _fields_ = [("live_rows", Tensor), ("device_mailbox", c.c_bool)]


class Options(c.Structure):
    _fields_ = [("url", c.c_char_p), ("device", c.c_char_p), ("name", c.c_char_p),
                ("timeout_ms", c.c_uint32), ("no_renew", c.c_bool)]


lib = c.CDLL(sys.argv[1])
lib.topkd_detail.restype = c.c_char_p


def check(status):
    if status != 0:
        sys.exit(f"FAIL status {status}: {lib.topkd_detail().decode()}")


def register(tensor, access):
    region = c.c_void_p()
    check(lib.topkd_region_register_cuda(client, c.c_void_p(tensor.data_ptr()),
                                         c.c_uint64(tensor.numel() * 4), c.c_int(access),
                                         c.byref(region)))
    return region


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
request.scores.region = register(scores, 1)
request.indices.region = register(indices, 3)
for device_mailbox in (False, True):
    lane = c.c_void_p()
    lane_options = LaneOptions(device_mailbox=device_mailbox)
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
print(f"ok torch_lane, {2 * num_replays} replays")
