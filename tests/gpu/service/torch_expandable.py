"""PyTorch's expandable segments: score tensors that no IPC handle can share are registered and
selected from in place.

usage: torch_expandable.py LIBTOPKD URL
"""
import ctypes as c
import os
import sys

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch  # noqa: E402  (the variable is read at import)

from topkd_ctypes import Options, Request, check, lib, register  # noqa: E402

ROWS, WIDTH, K = 64, 131072, 2048

scores = torch.randn(ROWS, WIDTH, device="cuda")
indices = torch.empty(ROWS, K, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
client, op = c.c_void_p(), c.c_void_p()
options = Options(url=sys.argv[2].encode(), name=b"torch_expandable")
check(lib.topkd_client_open(c.byref(options), c.byref(client)))
read, write = register(client, scores, 1), register(client, indices, 3)
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
