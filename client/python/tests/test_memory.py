"""Shared memory of a session: no copies, no growth, and arrays that outlive the client."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topkd
from conftest import Daemon
from inputs import normal
from topkd._buffers import size_class
from topkd.testing import check


def until(condition: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def test_shared_arrays_are_read_and_written_in_place(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((8, 3000))
    scores[:] = normal(rng, 8, 3000)
    lengths = client.empty(8, "int32")
    lengths[:] = rng.integers(0, 3001, 8)
    out = client.empty((8, 32), np.int32)
    offsets = client.empty((8,), np.dtype("int32"))
    offsets[:] = 1000
    assert client.select(scores, lengths, 32, out=out, row_offsets=offsets) is out
    check(scores, out, lengths, row_offsets=offsets)
    part = scores[2:5, 100:2000]
    check(part, client.select(part, k=7))
    assert client.stats()["staged_bytes"] == 0


def test_plain_arrays_are_copied_or_refused(daemon: Daemon, rng: Any) -> None:
    scores = normal(rng, 4, 1000)
    with topkd.Client(daemon.url) as client:
        check(scores, client.select(scores, k=5))
        assert client.stats()["staged_bytes"] == scores.nbytes
        wide = np.zeros((4, 100000), np.float32)
        wide[:, 7:1007] = scores
        check(scores, client.select(wide[:, 7:1007], k=5))  # the gaps are not copied
        assert client.stats()["staged_bytes"] == 2 * scores.nbytes
    with topkd.Client(daemon.url, staging=False) as client:
        with pytest.raises(topkd.errors.NotExportableError, match="scores.*client.empty"):
            client.select(scores, k=5)
        shared = client.empty(scores.shape)
        shared[:] = scores
        with pytest.raises(topkd.errors.NotExportableError, match="out.*client.empty"):
            client.select(shared, k=5, out=np.empty((4, 5), np.int32))
        check(scores, client.select(shared, k=5))
        assert client.stats()["staged_bytes"] == 0


def test_results_come_back_to_the_pool(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((4, 1000))
    scores[:] = normal(rng, 4, 1000)
    first = client.select(scores, k=8)
    pointer = first.ctypes.data
    view = first[1:3, 2:]
    del first
    second = client.select(scores, k=8)
    assert second.ctypes.data != pointer  # the view still holds the memory
    check(scores, second)
    del view
    third = client.select(scores, k=8)
    assert third.ctypes.data == pointer
    check(scores, second)  # and nobody wrote there


def test_many_results_may_be_held(client: topkd.Client, rng: Any) -> None:
    """More than a session has regions: some are then copies, all are right and stay so."""
    scores = normal(rng, 4, 500)
    shared = client.empty(scores.shape)
    shared[:] = scores
    held = [client.select(shared, k=1 + i // 100, values=True) for i in range(400)]
    for indices, values in held:
        check(scores, indices, values=values)
    assert client.stats()["buffers"] <= 70
    del held, indices, values
    gc.collect()
    assert client.stats()["buffers_leased"] == 1


def test_memory_does_not_grow(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((2, 600))
    scores[:] = normal(rng, 2, 600)
    plain = scores.copy()

    def resident_kib() -> int:
        with open("/proc/self/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    before = 0
    for i in range(10_000):
        client.select(scores if i % 2 else plain, 300 if i % 3 else None, 16, values=i % 5 == 0)
        if i == 2000:
            before = resident_kib()
    assert resident_kib() - before < 2048
    stats = client.stats()
    assert stats["buffers"] <= 8 and stats["in_flight"] == 0


def test_idle_buffers_go(daemon: Daemon) -> None:
    most = 0
    with topkd.Client(daemon.url, idle_timeout=0.2) as client:
        for rows in range(1, 20):
            client.select(np.zeros((rows * 100, 50), np.float32), k=3)
            most = max(most, client.stats()["buffers"])
        assert most > 0
        assert until(lambda: client.stats()["buffers"] == 0)
    with topkd.Client(daemon.url, idle_timeout=60) as client:
        client.select(np.zeros((5, 50), np.float32), k=3)
        assert client.stats()["buffers"] == 2
        assert client.trim() == 2 and client.stats()["buffers"] == 0


def test_arrays_outlive_the_client(daemon: Daemon, rng: Any) -> None:
    client = topkd.Client(daemon.url)
    scores = client.empty((4, 1000))
    scores[:] = normal(rng, 4, 1000)
    result = client.select(scores, k=8)
    kept = scores.copy()
    client.close()
    client.close()
    with pytest.raises(topkd.errors.ClosedError):
        client.select(scores, k=8)
    with pytest.raises(topkd.errors.ClosedError):
        client.empty(3)
    assert (scores == kept).all()
    scores[0, 0] = 1.0
    check(kept, result)
    janitor = client._session._janitor
    assert janitor.is_alive()
    del scores, result
    assert until(lambda: not janitor.is_alive())  # the session ended with the last array


def test_a_forgotten_client_ends(daemon: Daemon) -> None:
    client = topkd.Client(daemon.url)
    client.select(np.zeros((2, 10), np.float32), k=3)
    janitor = client._session._janitor
    del client
    gc.collect()
    assert until(lambda: not janitor.is_alive())


def test_size_classes() -> None:
    for size in (1, 4096, 4097, 5000, 65536, 65537, 1 << 20, (1 << 20) + 1, 123456789):
        assert size <= size_class(size) <= max(4096, size * 5 // 4 + 1024)
        assert size_class(size_class(size)) == size_class(size)


def test_empty_refuses_nonsense(client: topkd.Client) -> None:
    with pytest.raises(topkd.errors.InvalidError, match="dtype"):
        client.empty(3, "float64")
    with pytest.raises(topkd.errors.InvalidError, match="below 0"):
        client.empty((3, -1))
    with pytest.raises(topkd.errors.InvalidError, match="framework"):
        client.empty(3, framework="tensorflow")
    assert client.empty((0, 4)).shape == (0, 4)
    with pytest.raises(topkd.Error):
        client.empty(1 << 60)


def test_a_worker_short_of_time_is_asked_again(tmp_path: Path) -> None:
    """It takes only so many registrations a second; a burst waits."""
    settings = tmp_path / "topkd.yaml"
    settings.write_text("limits:\n  registrations_per_s: 40\n")
    daemon = Daemon("--device", "cpu", "--config", str(settings))
    try:
        with topkd.Client(daemon.url) as client:
            arrays = [client.empty(10) for _ in range(100)]
            for array in arrays:
                array[:] = 1
            assert client.stats()["buffers"] == 100
    finally:
        daemon.stop()


def test_shared_arrays_of_16_bits(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((3, 5000), "float16")
    assert scores.dtype == np.float16
    scores[:] = rng.standard_normal(scores.shape).astype(np.float16)
    before = client.stats()["staged_bytes"]
    check(scores, client.select(scores, k=100))
    check(scores[1:, 3:999], client.select(scores[1:, 3:999], k=100))
    assert client.stats()["staged_bytes"] == before
    brains = client.empty((2, 300), "bfloat16")
    assert isinstance(brains, topkd.Array) and brains.dtype == "bfloat16"
    assert client.select(brains, 0, k=3, values=False).shape == (2, 3)
    with pytest.raises(topkd.errors.InvalidError, match="NumPy has no bfloat16"):
        client.empty((2, 300), "bfloat16", framework="numpy")
