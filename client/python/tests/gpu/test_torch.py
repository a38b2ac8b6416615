"""PyTorch on a GPU, through a daemon and in process."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import numpy as np
import pytest

import topkd
from conftest import Daemon, in_threads
from inputs import FAMILIES
from topkd.testing import check, oracle

pytestmark = pytest.mark.gpu


def host(*tensors: Any) -> Any:
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    return arrays if len(arrays) > 1 else arrays[0]


@pytest.fixture(params=["daemon", "process"])
def select(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("gpu_client").select if request.param == "daemon" else topkd.select


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact(select: Any, torch: Any, family: str, rng: Any) -> None:
    for rows, width, k in ((1, 1, 1), (5, 300, 7), (33, 4099, 512), (7, 70_000, 2048), (2, 9000, 4096)):
        scores = FAMILIES[family](rng, rows, width)
        lengths = rng.integers(-2, width + 3, rows).astype(np.int32)
        on_gpu, gpu_lengths = torch.from_numpy(scores).cuda(), torch.from_numpy(lengths).cuda()
        result = select(on_gpu, gpu_lengths, k)
        assert result.device == on_gpu.device and result.dtype is torch.int32
        check(scores, host(result), lengths)
        best = select(on_gpu, gpu_lengths, k, order="value", ties="lowest")
        assert (host(best) == oracle(scores, lengths, k, order="value")).all()
        same = [host(select(on_gpu, gpu_lengths, k, deterministic=True)) for _ in range(3)]
        assert all((one == oracle(scores, lengths, k)).all() for one in same)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_scores_of_16_bits_are_exact(select: Any, torch: Any, rng: Any, kind: str) -> None:
    for rows, width, k in ((1, 1, 1), (5, 300, 7), (33, 4099, 512), (3, 70_001, 2048)):
        numbers = rng.standard_normal((rows, width)).astype(np.float32)
        scores = torch.from_numpy(numbers).cuda().to(getattr(torch, kind))
        lengths = rng.integers(-2, width + 3, rows).astype(np.int32)
        as_read = host(scores.float())  # what the rounding left, ties in plenty
        indices, values = select(scores, torch.from_numpy(lengths).cuda(), k, values=True)
        assert indices.dtype is torch.int32 and values.dtype is torch.float32
        check(as_read, host(indices), lengths, values=host(values))
        same = select(scores, torch.from_numpy(lengths).cuda(), k, deterministic=True)
        assert (host(same) == oracle(as_read, lengths, k)).all()


def test_options_and_layouts(select: Any, torch: Any, rng: Any) -> None:
    scores = torch.randn(16, 5000, device="cuda")
    plain = host(scores)
    indices, values = select(scores, k=64, values=True)
    check(plain, host(indices), values=host(values))
    part = scores[2:9, 3:4000]
    check(plain[2:9, 3:4000], host(select(part, 3000, 64)), 3000)
    check(plain[:1], host(select(scores[0], k=9))[None])
    assert select(scores[:0], k=3).shape == (0, 3)
    out = torch.full((16, 100), -7, dtype=torch.int32, device="cuda")
    assert select(scores, k=64, out=out[:, 5:69]).shape == (16, 64)
    check(plain, host(out[:, 5:69]))
    assert bool((out[:, :5] == -7).all()) and bool((out[:, 69:] == -7).all())
    table = np.stack([rng.permutation(900)[:313] for _ in range(16)]).astype(np.int32)
    offsets = np.arange(16, dtype=np.int32) * 1000
    got = select(scores, k=64, page_table=torch.from_numpy(table).cuda(), page_size=16)
    check(plain, host(got), page_table=table, page_size=16)
    got = select(scores, k=64, row_offsets=torch.from_numpy(offsets).cuda())
    check(plain, host(got), row_offsets=offsets)


def test_the_short_way_is_the_same(
    gpu_client: topkd.Client, torch: Any, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a request of the usual kind takes from its second time on: other tensors, other sizes."""
    table = torch.from_numpy(np.stack([rng.permutation(900)[:313] for _ in range(9)])).int().cuda()
    offsets = torch.arange(9, dtype=torch.int32, device="cuda") * 1000
    spare = torch.full((9, 70), -7, dtype=torch.int32, device="cuda")

    def step(rows: int, width: int, kind: str) -> None:
        scores = torch.randn(rows, width + 3, device="cuda").to(getattr(torch, kind))[:, 3:]
        lengths = torch.randint(0, width + 1, (rows,), dtype=torch.int32, device="cuda")
        as_read, counts = host(scores.float()), host(lengths)
        select = gpu_client.select
        check(as_read, host(select(scores, k=64)))
        check(as_read, host(select(scores, 50, 64)), 50)
        check(as_read, host(select(scores, lengths, 64)), counts)
        indices, values = select(scores, lengths, 64, values=True)
        check(as_read, host(indices), counts, values=host(values))
        best = select(scores, lengths, 64, order="value", ties="lowest")
        assert (host(best) == oracle(as_read, counts, 64, order="value")).all()
        same = select(scores, lengths, 64, deterministic=True)
        assert (host(same) == oracle(as_read, counts, 64)).all()
        out = spare[:rows, 3:67]
        assert select(scores, lengths, 64, out=out) is out
        check(as_read, host(out), counts)
        assert bool((spare[:, :3] == -7).all()) and bool((spare[:, 67:] == -7).all())
        pages = select(scores, lengths, 64, page_table=table[:rows], page_size=16)
        check(as_read, host(pages), counts, page_table=host(table[:rows]), page_size=16)
        moved = select(scores, lengths, 64, row_offsets=offsets[:rows])
        check(as_read, host(moved), counts, row_offsets=host(offsets[:rows]))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this request took the long way")

    for kind in ("float32", "bfloat16"):
        step(9, 5000, kind)
        gpu_client.synchronize()
        with monkeypatch.context() as patch:
            patch.setattr(gpu_client._selections, "prepare", refuse)
            step(9, 5000, kind)
            step(1, 3000, kind)
            step(4, 777, kind)


def test_bad_arguments_are_named(select: Any, torch: Any) -> None:
    scores = torch.randn(4, 100, device="cuda")
    for bad, words in (
        ({"scores": scores.double()}, "float64"), ({"scores": scores.t()}, "contiguous"),
        ({"lengths": torch.zeros(4, dtype=torch.int64, device="cuda")}, "int64"),
        ({"out": torch.zeros(4, 5, dtype=torch.int64, device="cuda")}, "int64"),
        ({"k": 0}, "k"), ({"k": 20000}, "16384"), ({"stream": "x"}, "stream"),
    ):
        with pytest.raises(topkd.errors.InvalidError, match=words):
            select(**{"scores": scores, "k": 5, **bad})


def test_order_of_streams_under_load(select: Any, torch: Any) -> None:
    """Four streams, each a chain of slow producers, selections and consumers, started without
    waiting: every consumer must see what its own producer made."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    big = torch.randn(4096, 4096, device="cuda")
    checks = []
    torch.cuda.synchronize()
    for turn in range(25):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                scores = torch.full((8, 20_000), -1.0, device="cuda")
                torch.mm(big, big)  # the producer is slow
                begin = turn * 131 + number * 17
                scores[:, begin : begin + 100] = torch.arange(1.0, 101.0, device="cuda")
                indices = select(scores, k=100)
                checks.append((begin, indices.sort(1).values))
                del scores, indices  # their memory is handed out again at once
    torch.cuda.synchronize()
    for begin, indices in checks:
        wanted = torch.arange(begin, begin + 100, device="cuda", dtype=torch.int32)
        assert bool((indices == wanted).all())


@pytest.mark.alone
def test_nothing_is_synchronised(gpu_client: topkd.Client, torch: Any) -> None:
    """The call returns while the stream is still busy with what comes before."""
    scores = torch.randn(8, 20_000, device="cuda")
    gpu_client.select(scores, k=100)
    gpu_client.synchronize()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(400_000_000)  # some 0.2 s of the GPU's clock
    indices = gpu_client.select(scores, k=100)
    returned = time.perf_counter() - begin
    assert gpu_client.stats()["in_flight"] == 1
    torch.cuda.synchronize()
    taken = time.perf_counter() - begin
    assert returned < taken / 4, f"returned after {returned:.4f} s of {taken:.4f} s"
    gpu_client.synchronize()
    check(host(scores), host(indices))


def test_an_explicit_stream(select: Any, torch: Any) -> None:
    scores = torch.randn(8, 20_000, device="cuda")
    out = torch.empty(8, 64, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for given in (stream, stream.cuda_stream):
        out.fill_(-7)
        stream.wait_stream(torch.cuda.current_stream())
        select(scores, k=64, out=out, stream=given)
        stream.synchronize()
        check(host(scores), host(out))


def test_segments_are_registered_once(gpu_daemon: Daemon, torch: Any) -> None:
    with topkd.Client(gpu_daemon.url) as client:
        torch.cuda.empty_cache()
        for _ in range(300):  # new tensors every time, as a model's
            scores = torch.randn(16, 30_000, device="cuda")
            client.select(scores, 29_000, 64)
        client.synchronize()
        assert client.stats()["registrations"] <= 6
        check(host(scores), host(client.select(scores, k=64)))


@pytest.mark.alone
def test_ten_thousand_calls(gpu_client: topkd.Client, torch: Any) -> None:
    def one(rows: int) -> None:
        gpu_client.select(torch.rand(rows, 3000, device="cuda"), 2999, 128)

    for i in range(2000):
        one(1 + i % 8)
    gpu_client.synchronize()
    allocated, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    registrations = gpu_client.stats()["registrations"]
    for i in range(8000):
        one(1 + i % 8)
    gpu_client.synchronize()
    gc.collect()
    stats = gpu_client.stats()
    assert torch.cuda.memory_allocated() <= allocated
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20
    assert stats["registrations"] - registrations <= 4 and stats["in_flight"] == 0


@pytest.mark.alone
def test_memory_returns_with_the_storage(gpu_daemon: Daemon, torch: Any) -> None:
    """Freed by torch, it is the GPU's again once the registration has gone."""
    with topkd.Client(gpu_daemon.url, idle_timeout=600) as client:
        scores = torch.randn(64, 4_000_000, device="cuda")  # 1 GB: a segment of its own
        client.select(scores, k=16)
        client.synchronize()
        regions = client.stats()["regions"]
        assert client.trim() < regions  # the storage lives: its region stays
        size = scores.numel() * 4
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        del scores  # tells the janitor, which may have let go before torch does
        gc.collect()
        torch.cuda.empty_cache()
        deadline = time.monotonic() + 20
        while torch.cuda.mem_get_info()[0] - free <= size * 0.9:
            assert time.monotonic() < deadline, "the memory does not come back"
            client.trim()
            time.sleep(0.01)
        fresh = torch.randn(64, 4_000_000, device="cuda")  # perhaps at the same address
        check(host(fresh[:2]), host(client.select(fresh, k=16)[:2]))


def test_asyncio(gpu_client: topkd.Client, torch: Any) -> None:
    scores = torch.randn(8, 50_000, device="cuda")

    async def run() -> None:
        for result in await asyncio.gather(*(gpu_client.aselect(scores, k=50) for _ in range(80))):
            check(host(scores), host(result))

    asyncio.run(run())


def test_threads(gpu_client: topkd.Client, torch: Any) -> None:
    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(60):
                scores = torch.randn(1 + turn % 9, 9000, device="cuda")
                indices = gpu_client.select(scores, k=100)
                check(host(scores), host(indices))

    in_threads(4, work)


def test_host_tensors_are_refused_and_read(gpu_client: topkd.Client, daemon: Daemon, torch: Any) -> None:
    scores = torch.randn(4, 1000)
    for wrong in (scores, scores.pin_memory()):
        with pytest.raises(topkd.errors.NotVisibleError, match="host memory"):
            gpu_client.select(wrong, k=5)
    with topkd.Client(daemon.url) as client:  # the CPU device
        result, values = client.select(scores, k=5, values=True)
        assert isinstance(result, torch.Tensor) and result.dtype is torch.int32
        check(scores.numpy(), result.numpy(), values=values.numpy())
        shared = client.empty((4, 1000), torch.float32, framework="torch")
        shared.copy_(scores)
        staged = client.stats()["staged_bytes"]
        check(scores.numpy(), client.select(shared, k=5).numpy())
        assert client.stats()["staged_bytes"] == staged
        with pytest.raises(topkd.errors.NotVisibleError, match="the CPU"):
            client.select(scores.cuda(), k=5)
    check(scores.numpy(), topkd.select(scores, k=5).numpy())


def test_a_captured_stream_is_refused(gpu_client: topkd.Client, torch: Any) -> None:
    scores = torch.randn(4, 1000, device="cuda")
    out = torch.empty(4, 5, dtype=torch.int32, device="cuda")
    for select in (gpu_client.select, topkd.select):
        select(scores, k=5, out=out)
        torch.cuda.synchronize()
        with pytest.raises(topkd.errors.UnsupportedError, match="captured"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                select(scores, k=5, out=out)
        torch.cuda.synchronize()
        select(scores, k=5, out=out)
        check(host(scores), host(out))


def test_a_worker_that_dies_is_told(torch: Any) -> None:
    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    daemon = Daemon("--device", f"GPU-{uuid}")
    try:
        with topkd.Client(daemon.url) as client:
            scores = torch.randn(8, 20_000, device="cuda")
            client.select(scores, k=9)
            client.synchronize()
            torch.cuda._sleep(1_000_000_000)
            client.select(scores, k=9)
            daemon.kill_worker()
            torch.cuda.synchronize()  # the stream goes on
            with pytest.raises(topkd.Error, match="earlier selection"):
                client.synchronize()
            check(host(scores), host(client.select(scores, k=9)))
            client.synchronize()
    finally:
        daemon.stop()


# ---- Lanes ---------------------------------------------------------------------------------------


def test_a_lane_in_a_graph(gpu_client: topkd.Client, torch: Any) -> None:
    """Captured once; replayed with other scores, lengths and live rows, none among them."""
    rows, width, k = 16, 30_000, 256
    source = torch.randn(rows, width, device="cuda")
    scores = torch.empty_like(source)
    lengths = torch.full((rows,), width, dtype=torch.int32, device="cuda")
    live = torch.full((1,), rows, dtype=torch.int32, device="cuda")
    with gpu_client.lane(scores, lengths, k, values=True, live_rows=live) as lane:

        def step() -> Any:
            scores.copy_(source).mul_(2)
            indices, values = lane()
            return torch.where(indices >= 0, values, 0).sum(1), indices + 0

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _, copied = step()
        for turn in range(40):
            source.normal_()
            lengths.random_(-2, width + 3)
            num = rows if turn % 4 else turn % 3
            live.fill_(num)
            graph.replay()
            torch.cuda.synchronize()
            plain, plain_lengths = host(scores, lengths)
            check(plain[:num], host(copied)[:num], plain_lengths[:num],
                  values=host(lane.values)[:num])
        lane.check()
        assert lane.info()["is_served"] == 1 and lane.info()["num_failed"] == 0
        del graph
    lane.close()
    with pytest.raises(topkd.errors.ClosedError):
        lane()


@pytest.mark.alone  # as many waiting streams as may be: beside other daemons a worker hung
def test_lanes_refuse_what_they_cannot(gpu_client: topkd.Client, client: topkd.Client, torch: Any) -> None:
    scores = torch.randn(4, 1000, device="cuda")
    with pytest.raises(topkd.errors.InvalidError, match="on the device"):
        gpu_client.lane(scores, [1, 2, 3, 4], 5)
    with pytest.raises(topkd.errors.InvalidError, match="at least 1 row"):
        gpu_client.lane(scores[:0], k=5)
    with pytest.raises(topkd.errors.InvalidError, match="live_rows"):
        gpu_client.lane(scores, k=5, live_rows=torch.zeros(2, dtype=torch.int32, device="cuda"))
    with pytest.raises(topkd.errors.UnsupportedError, match="the CPU"):
        client.lane(scores.cpu(), k=5)
    held = []
    with pytest.raises(topkd.errors.LimitError, match="lanes open.*close one"):
        for _ in range(100):
            held.append(gpu_client.lane(scores, k=5))
    assert len(held) >= 4
    check(host(scores), host(held[0]()))
    del held
    gc.collect()
    time.sleep(0.5)  # the janitor closes them
    with gpu_client.lane(scores, k=5) as lane:
        check(host(scores), host(lane()))
