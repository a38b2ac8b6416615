"""A session of a GPU, with the stand-in for the driver: regions, streams, kinds of memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import socket
import threading
from typing import Any

import numpy as np
import pytest

import gpu
import topkd
from conftest import Daemon, in_threads
from gpu_session import client, daemon, draw, until  # noqa: F401  the first two are fixtures
from inputs import normal
from topkd.testing import check

MIB = 1 << 20


def test_an_allocation_is_registered_once(client: topkd.Client, rng: Any) -> None:
    """Tensors of a caching allocator: any place in a segment, one region."""
    segment = gpu.alloc(20 * MIB)
    for offset in (0, 1028, 5 * MIB, 19 * MIB):
        scores = gpu.Tensor(segment + offset, (8, 3000))
        wanted = draw(rng, scores).copy()
        lengths = gpu.Tensor(segment + offset + 8 * 3000 * 4, (8,), "<i4")
        lengths.host[:] = rng.integers(0, 3001, 8)
        indices, values = client.select(scores, lengths, 64, values=True)
        client.synchronize()
        check(wanted, gpu.host(indices), lengths.host, values=gpu.host(values))
    assert client.stats()["registrations"] == 1
    out = gpu.Tensor(segment + 10 * MIB, (8, 64), "<i4")
    assert client.select(scores, k=64, out=out) is out
    client.synchronize()
    check(wanted, out.host)
    # Written to as well now: the region for reading only has been replaced.
    assert client.stats()["registrations"] == 2 and client.trim() == 2
    client.select(scores, [3000] * 8, 64, out=out)
    client.synchronize()
    check(wanted, out.host)
    gpu.free(segment)


def test_memory_made_again_at_its_address_is_new(client: topkd.Client, rng: Any) -> None:
    """The stale mapping shows other bytes: it must never be used."""
    again = 0
    before = 0
    for _ in range(6):
        pointer = gpu.alloc(4 * MIB)
        again += pointer == before
        before = pointer
        scores = gpu.Tensor(pointer, (4, 5000))
        wanted = draw(rng, scores).copy()
        indices = client.select(scores, k=32)
        client.synchronize()
        check(wanted, gpu.host(indices))
        gpu.free(pointer)
    assert again > 0, "the driver never used an address again: nothing was tested"
    assert client.stats()["registrations"] == 6
    assert client.trim() >= 6 and client.stats()["regions"] == 0


def test_pieces_of_virtual_memory(client: topkd.Client, rng: Any) -> None:
    """Expandable segments: scores across borders; then pieces are unmapped and made anew."""
    address = gpu.reserve(8 * MIB)
    gpu.map_pieces(address, 4, 2 * MIB)
    scores = gpu.Tensor(address + MIB, (16, 50_000))  # 3 MiB over two pieces
    for _ in range(2):
        wanted = draw(rng, scores).copy()
        indices = client.select(scores, k=100)
        client.synchronize()
        check(wanted, gpu.host(indices))
    assert client.stats()["registrations"] == 1
    gpu.call("cuMemUnmap", address + 2 * MIB, 2 * MIB)  # the second piece only
    gpu.map_pieces(address + 2 * MIB, 1, 2 * MIB)
    wanted = draw(rng, scores).copy()
    indices = client.select(scores, k=100)
    client.synchronize()
    check(wanted, gpu.host(indices))
    assert client.stats()["registrations"] == 2


KINDS = {
    "managed": "managed memory", "pool": "cudaMallocAsync", "pinned": "pinned host memory",
    "hidden": "without an exportable handle", "stack": "ordinary host memory",
}


def memory_of(kind: str) -> int:
    if kind == "hidden":
        address = gpu.reserve(2 * MIB)
        gpu.map_pieces(address, 1, 2 * MIB, exportable=False)
        return address
    if kind == "stack":
        held.append(np.zeros(100_000, np.float32))
        return int(held[-1].ctypes.data)
    return gpu.alloc(2 * MIB, kind)


held: list[Any] = []


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_that_cannot_be_shared_are_named(client: topkd.Client, kind: str, rng: Any) -> None:
    scores = gpu.Tensor(memory_of(kind), (2, 1000))
    with pytest.raises(topkd.errors.NotExportableError, match=f"scores: .*{KINDS[kind]}") as caught:
        client.select(scores, k=4)
    assert "stage it" in caught.value.hint
    good = gpu.Tensor(gpu.alloc(MIB), (2, 1000))
    draw(rng, good)
    with pytest.raises(topkd.errors.NotExportableError, match=KINDS[kind]):
        client.select(good, k=4, out=gpu.Tensor(scores.pointer, (2, 4), "<i4"))
    assert client.stats()["staged_bytes"] == 0


def test_staging_copies_in_the_order_of_the_stream(daemon: Daemon, rng: Any) -> None:
    gpu.enter()
    with topkd.Client(daemon.url, staging=True) as client:
        stream = gpu.Stream()
        scores = gpu.Tensor(gpu.alloc(MIB, "pool"), (4, 1000), stream=stream)
        source = gpu.Tensor(gpu.alloc(MIB), (4, 1000))
        wanted = draw(rng, source).copy()
        stream.copy(scores.pointer, source.pointer, source.nbytes)
        indices = client.select(scores, k=16)
        client.synchronize()
        check(wanted, gpu.host(indices))
        assert client.stats()["staged_bytes"] == scores.nbytes


def test_selections_keep_the_order_of_their_stream(client: topkd.Client, rng: Any) -> None:
    """Producer, selection, consumer, a hundred times without waiting in between."""
    stream = gpu.Stream()
    num, shape = 100, (4, 2000)
    sources = [gpu.Tensor(gpu.alloc(32_768), shape) for _ in range(num)]
    results = gpu.Tensor(gpu.alloc(MIB), (num, 4, 8), "<i4")
    scores = gpu.Tensor(gpu.alloc(32_768), shape, stream=stream)
    out = gpu.Tensor(gpu.alloc(4096), (4, 8), "<i4")
    for i, source in enumerate(sources):
        draw(rng, source)
        stream.copy(scores.pointer, source.pointer, source.nbytes)
        client.select(scores, k=8, out=out)
        stream.copy(results.pointer + i * out.nbytes, out.pointer, out.nbytes)
    stream.wait()
    for i, source in enumerate(sources):
        check(source.host, results.host[i])
    client.synchronize()
    stats = client.stats()
    assert stats["in_flight"] == 0 and stats["registrations"] == 2


def test_streams_of_several_threads(client: topkd.Client) -> None:
    def work(seed: int) -> None:
        gpu.enter()
        rng = np.random.default_rng(seed)
        stream = gpu.Stream()
        scores = gpu.Tensor(gpu.alloc(65_536), (3, 4000))
        for _ in range(30):
            wanted = draw(rng, scores).copy()
            indices = client.select(scores, 4000, 16, stream=stream)
            stream.wait()
            check(wanted, gpu.host(indices))

    in_threads(4, work)


def test_asyncio_knows_when_a_stream_is_there(client: topkd.Client, rng: Any) -> None:
    scores = gpu.Tensor(gpu.alloc(65_536), (3, 4000), stream=gpu.Stream())
    wanted = draw(rng, scores)

    async def run() -> None:
        for result in await asyncio.gather(*(client.aselect(scores, k=8) for _ in range(60))):
            check(wanted, gpu.host(result))

    asyncio.run(run())
    assert client.stats()["in_flight"] == 0


def test_the_loop_turns_while_a_session_is_renewed(rng: Any) -> None:
    """A supervisor that stands still brings no new worker. The loop turns all the same: for known
    memory, for memory to be registered and made, beside a thread that waits, and for a task that is
    cancelled."""
    gpu.enter()
    daemon = Daemon("--device", gpu.UUID)
    has_turned, was_let_go = threading.Event(), threading.Event()
    scores = [gpu.Tensor(gpu.alloc(MIB), (2, 500), stream=gpu.Stream()) for _ in range(4)]
    for one in scores:
        draw(rng, one)
    outs = [gpu.Tensor(gpu.alloc(4096), (2, 8), "<i4") for _ in range(3)]

    def let_go() -> None:
        """Whoever waits for the session in the loop's thread is freed, late, to fail below."""
        if not has_turned.wait(20):
            was_let_go.set()
            daemon.continue_supervisor()

    async def lose(client: topkd.Client) -> None:
        """Returns when the client knows that its worker is gone."""
        for one, out in zip(scores, outs):
            await client.aselect(one, k=8, out=out)
        daemon.stop_worker()
        lost = asyncio.create_task(client.aselect(scores[0], k=8, out=outs[0]))
        await asyncio.sleep(0)
        assert client.stats()["in_flight"] == 1
        daemon.stop_supervisor()
        daemon.kill_worker()
        with pytest.raises(topkd.Error):
            await lost

    async def run(client: topkd.Client) -> None:
        await lose(client)
        freer = threading.Thread(target=let_go)
        beside = threading.Thread(target=client.select, args=(scores[1],), kwargs={"k": 8, "out": outs[1]})
        freer.start()
        beside.start()
        try:
            tasks = [
                asyncio.create_task(client.aselect(scores[2], k=8, out=outs[2])),
                asyncio.create_task(client.aselect(scores[3], k=8)),
                asyncio.create_task(client.aselect(gpu.Tensor(gpu.alloc(MIB), (2, 500)), k=8)),
            ]
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert not was_let_go.is_set(), "the loop stood still until the worker came back"
            assert not any(task.done() for task in tasks) and beside.is_alive()
            tasks[2].cancel()
            await asyncio.wait(tasks[2:])
            assert tasks[2].cancelled()
            assert not was_let_go.is_set(), "a cancelled task waited for the worker"
        finally:
            has_turned.set()
            freer.join()
            daemon.continue_supervisor()
        assert await tasks[0] is outs[2]
        check(scores[3].host, gpu.host(await tasks[1]))
        check(scores[2].host, outs[2].host)
        await asyncio.get_running_loop().run_in_executor(None, beside.join)
        client.synchronize()
        check(scores[1].host, outs[1].host)

    try:
        with topkd.Client(daemon.url, timeout=60) as client:
            asyncio.run(run(client))
            client.trim()
            assert client.stats()["regions"] == 0  # nobody holds what was registered beside
    finally:
        daemon.stop()


def test_a_wait_that_meets_another_threads_look(
    client: topkd.Client, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait has run out of time; before it says so the selection ends, and another thread sees it."""
    stream, gate = gpu.Stream(), gpu.Tensor(gpu.alloc(4096), (2,), "<i4")
    gate.host[:] = 0
    stream.await_value(gate.pointer, 1)
    scores = gpu.Tensor(gpu.alloc(MIB), (2, 500), stream=stream)
    out = gpu.Tensor(gpu.alloc(4096), (2, 8), "<i4")
    draw(rng, scores)
    client.select(scores, k=8, out=out, timeout=60)
    session = client._session
    library, ended = session.library, session.library.topkd_client_fd(session.handle)

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def topkd_op_wait(self, op: int, timeout_ms: int) -> int:
            status = library.topkd_op_wait(op, timeout_ms)
            assert status != 0
            gate.host[0] = 1
            assert select.select([ended], [], [], 60)[0]
            in_threads(1, lambda _: client.check())
            return int(status)

    with monkeypatch.context() as patch:
        patch.setattr(session, "library", Late())
        with contextlib.suppress(topkd.errors.TimeoutError):
            client.synchronize(timeout=0.01)
    client.check()
    assert client.stats()["in_flight"] == 0, "a selection that has ended is not known to have"
    check(scores.host, out.host)


def test_results_on_the_device_are_freed(client: topkd.Client, rng: Any) -> None:
    """Neither registrations nor memory of the device grow."""
    scores = gpu.Tensor(gpu.alloc(MIB), (2, 500))
    out = gpu.Tensor(gpu.alloc(4096), (2, 8), "<i4")
    wanted = draw(rng, scores)
    for _ in range(2000):
        client.select(scores, 500, 8, out=out)
    client.synchronize()
    check(wanted, out.host)
    assert client.stats()["registrations"] == 2
    mine = f"fakecuda-{os.getpid()}-"

    def allocations() -> int:
        return sum(name.startswith(mine) for name in os.listdir("/dev/shm"))

    before = allocations()
    for _ in range(300):
        indices = client.select(scores, k=8)
    client.synchronize()
    check(wanted, gpu.host(indices))
    del indices
    gc.collect()
    assert until(lambda: allocations() <= before)


def test_idle_regions_are_bounded_and_expire(daemon: Daemon, rng: Any) -> None:
    gpu.enter()
    out = gpu.Tensor(gpu.alloc(4096), (2, 8), "<i4")
    with topkd.Client(daemon.url, idle_regions=4, idle_timeout=600) as client:
        for _ in range(40):
            scores = gpu.Tensor(gpu.alloc(65_536), (2, 500))
            draw(rng, scores)
            client.select(scores, k=8, out=out)
        client.synchronize()
        assert client.stats()["registrations"] == 41
        assert until(lambda: client.stats()["regions"] <= 4)
    with topkd.Client(daemon.url, idle_timeout=0.5) as client:
        client.select(scores, k=8, out=out)
        client.synchronize()
        assert client.stats()["registrations"] == 2
        # Also in a session in which something comes and goes all the time.
        assert until(lambda: bool(client.empty(16).shape) and client.stats()["regions"] == 0)
        client.select(scores, k=8, out=out)
        client.synchronize()
        check(scores.host, out.host)


def test_a_lost_worker_is_told_once(rng: Any) -> None:
    """A selection that failed in a stream raises at the next call, then all is well again."""
    gpu.enter()
    daemon = Daemon("--device", gpu.UUID)
    try:
        with topkd.Client(daemon.url) as client:
            stream = gpu.Stream()
            scores = gpu.Tensor(gpu.alloc(MIB), (2, 500), stream=stream)
            out = gpu.Tensor(gpu.alloc(4096), (2, 8), "<i4")
            wanted = draw(rng, scores)
            client.select(scores, k=8, out=out)
            client.synchronize()
            os.kill(daemon.worker(), 19)  # SIGSTOP: what follows waits
            client.select(scores, k=8, out=out)
            daemon.kill_worker()
            stream.wait()  # goes on all the same
            with pytest.raises(topkd.Error, match="earlier selection in the order of a stream"):
                client.synchronize()
            client.synchronize()
            client.select(scores, k=8, out=out)
            client.synchronize()
            check(wanted, out.host)
    finally:
        daemon.stop()


def test_memory_is_registered_while_a_worker_comes_back(rng: Any) -> None:
    """Descriptors and lanes go by the worker's side socket, which is gone for a moment."""
    gpu.enter()
    daemon = Daemon("--device", gpu.UUID)
    try:
        with topkd.Client(daemon.url) as client:
            address = gpu.reserve(2 * MIB)
            gpu.map_pieces(address, 1, 2 * MIB)
            scores = gpu.Tensor(address, (4, 2000), stream=gpu.Stream())
            wanted = draw(rng, scores)
            daemon.kill_worker()
            indices = client.select(scores, k=8)
            client.synchronize()
            check(wanted, gpu.host(indices))
            daemon.kill_worker()
            with client.lane(scores, k=8) as lane:
                lane()
                assert scores.stream is not None
                scores.stream.wait()
                check(wanted, gpu.host(lane.indices))
    finally:
        daemon.stop()


def test_a_side_socket_without_a_place_is_tried_again(
    daemon: Daemon, client: topkd.Client, rng: Any
) -> None:
    """Places are counted by process; all of other PID namespaces together have those of one."""
    held = []
    for _ in range(16):
        held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        held[-1].connect(f"{daemon.folder}/{gpu.UUID}.fds")

    def let_go() -> None:
        for connection in held:
            connection.close()

    address = gpu.reserve(2 * MIB)
    gpu.map_pieces(address, 1, 2 * MIB)
    scores = gpu.Tensor(address, (4, 2000))
    wanted = draw(rng, scores)
    timer = threading.Timer(0.8, let_go)
    timer.start()
    indices = client.select(scores, k=8)
    timer.join()
    client.synchronize()
    check(wanted, gpu.host(indices))


def test_more_streams_than_semaphores(client: topkd.Client, rng: Any) -> None:
    """A stream that stands still with what failed in it keeps its semaphores; the others give
    theirs away."""
    stuck, gate = gpu.Stream(), gpu.Tensor(gpu.alloc(4096), (2,), "<i4")
    gate.host[:] = 0
    stuck.await_value(gate.pointer, 1)
    scores = gpu.Tensor(gpu.alloc(MIB), (2, 500), stream=stuck)
    draw(rng, scores)
    for _ in range(2):
        client.select(scores, k=8, timeout=0.05)
        with pytest.raises(topkd.errors.TimeoutError):
            client.synchronize()
    for _ in range(client.info()["semaphores_max"] // 2 + 2):
        other = gpu.Tensor(gpu.alloc(65_536), (2, 500), stream=gpu.Stream())
        draw(rng, other)
        indices = client.select(other, k=8)
        client.synchronize()
        check(other.host, gpu.host(indices))
    gate.host[0] = 1
    assert until(stuck.is_done), "the stream waits for what nobody will write"
    indices = client.select(scores, k=8)
    client.synchronize()
    check(scores.host, gpu.host(indices))


def test_wrong_places_are_named(client: topkd.Client) -> None:
    host = np.zeros((2, 8), np.float32)
    with pytest.raises(topkd.errors.NotVisibleError, match="scores: .* host memory"):
        client.select(host, k=2)
    scores = gpu.Tensor(gpu.alloc(4096), (2, 8))
    with pytest.raises(topkd.errors.NotVisibleError, match="page_table"):
        client.select(scores, k=2, page_table=np.zeros((2, 8), np.int32), page_size=1)
    beyond = gpu.Tensor(scores.pointer, (2, 4096))
    with pytest.raises(topkd.errors.OutOfRangeError, match="scores: .*beyond the allocation"):
        client.select(beyond, k=2)


def test_empty_is_device_memory(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((3, 100))
    assert scores.__dlpack_device__() == (2, 0) and "GPU 0" in repr(scores)
    with pytest.raises(AttributeError):
        scores.__array_interface__
    view = gpu.host(scores)
    view[:] = normal(rng, 3, 100)
    indices = client.select(scores, [100, 5, 0], 8)
    client.synchronize()
    check(view, gpu.host(indices), [100, 5, 0])
