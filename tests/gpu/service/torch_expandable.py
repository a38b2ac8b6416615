"""PyTorch's expandable segments: score tensors that no IPC handle can share are registered and
selected from in place.

usage: torch_expandable.py LIBTOPKD URL
"""
import ctypes as c
import os
import sys

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch  # noqa: E402  (the variable is read at import)

ROWS, WIDTH, K = 64, 131072, 2048


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


class Options(c.Structure):
    _fields_ = [("url", c.c_char_p), ("device", c.c_char_p), ("name", c.c_char_p),
                ("timeout_ms", c.c_uint32), ("no_renew", c.c_bool)]


lib = c.CDLL(sys.argv[1])
lib.topkd_detail.restype = c.c_char_p


def check(status):
    if status != 0:
        sys.exit(f"FAIL status {status}: {lib.topkd_detail().decode()}")


scores = torch.randn(ROWS, WIDTH, device="cuda")
indices = torch.empty(ROWS, K, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
client, read, write, op = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_void_p()
options = Options(url=sys.argv[2].encode(), name=b"torch_expandable")
check(lib.topkd_client_open(c.byref(options), c.byref(client)))
for tensor, access, region in ((scores, 1, read), (indices, 3, write)):
    check(lib.topkd_region_register_cuda(client, c.c_void_p(tensor.data_ptr()),
                                         c.c_uint64(tensor.numel() * 4), c.c_int(access),
                                         c.byref(region)))
request = Request(rows=ROWS, width=WIDTH, k=K)
request.scores.region = read
request.indices.region = write
stream = torch.cuda.Stream()
for round in range(5):
    with torch.cuda.stream(stream):
        scores.normal_()  # the producer, in the stream's order
        check(lib.topkd_select_stream(client, c.byref(request), c.c_void_p(stream.cuda_stream),
                                      c.byref(op)))
        taken = torch.gather(scores, 1, indices.long()).sort(dim=1, descending=True).values
        best = torch.topk(scores, K, dim=1).values
        same = torch.equal(taken, best)
    check(lib.topkd_op_wait(op, 0))
    check(lib.topkd_op_finish(op, None))
    if not same:
        sys.exit(f"FAIL round {round}: the selected scores are not the {K} best")
check(lib.topkd_region_unregister(read))
check(lib.topkd_region_unregister(write))
lib.topkd_client_close(client)
print("ok torch_expandable")
