"""The short way of PyTorch's tensors, over the stand-in for the driver."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fake_torch
import gpu
import topkd
from conftest import Daemon
from fake_torch import Storage, Tensor, empty
from inputs import normal
from topkd import _tensors
from topkd.testing import check


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    made = Daemon("--device", gpu.UUID)
    yield made
    made.stop()


class Counted:
    """A client, and how many of its selections took the long way."""

    def __init__(self, client: topkd.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.num_long = client, 0
        prepare = client._selections.prepare

        def counting(*arguments: Any, **named: Any) -> Any:
            self.num_long += 1
            return prepare(*arguments, **named)

        monkeypatch.setattr(client._selections, "prepare", counting)

    def select(self, *arguments: Any, **named: Any) -> Any:
        result = self.client.select(*arguments, **named)
        self.client.synchronize()
        return result


@pytest.fixture
def counted(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    gpu.enter()
    stream = gpu.Stream()
    monkeypatch.setitem(sys.modules, "torch", fake_torch.module(stream.ptr))
    _tensors.torch_stream.cache_clear()
    with topkd.Client(daemon.url, idle_timeout=60) as client:
        yield Counted(client, monkeypatch)
    _tensors.torch_stream.cache_clear()
    _tensors._readers.pop(Tensor, None)


def scores_of(rng: Any, rows: int, width: int) -> Tensor:
    made = empty((rows, width), "float32")
    made.host[:] = normal(rng, rows, width)
    return made


def test_the_second_of_a_kind_goes_the_short_way(counted: Counted, rng: Any) -> None:
    scores = scores_of(rng, 7, 3000)
    lengths = empty((7,), "int32")
    lengths.host[:] = rng.integers(-1, 3002, 7)
    table = empty((7, 300), "int32")
    table.host[:] = [rng.permutation(900)[:300] for _ in range(7)]
    offsets = empty((7,), "int32")
    offsets.host[:] = np.arange(7) * 100_000
    out, values = empty((7, 80), "int32"), empty((7, 64), "float32")
    wanted = scores.host.copy()
    kinds: list[dict[str, Any]] = [
        {}, {"lengths": 1000}, {"lengths": lengths}, {"lengths": lengths, "values": True},
        {"order": "value"}, {"deterministic": True}, {"timeout": 20.0},
        {"page_table": table, "page_size": 16}, {"row_offsets": offsets},
        {"out": out.part(slice(7), slice(9, 73))},
        {"out": (out.part(slice(7), slice(9, 73)), values), "values": True},
    ]
    for number, kind in enumerate(kinds):
        counted.num_long = 0
        for turn in range(3):
            rows = 7 - 3 * turn  # sizes have no part in it
            part = {name: _first(value, rows) for name, value in kind.items()}
            result = counted.select(scores.part(slice(rows), slice(3000)), k=64, **part)
            indices, got = result if isinstance(result, tuple) else (result, None)
            given = part.get("lengths")
            asked = given.host if isinstance(given, Tensor) else given
            known: dict[str, Any] = {
                name: part[name] for name in ("order", "deterministic") if name in part
            }
            if "page_table" in part:
                known |= {"page_table": part["page_table"].host, "page_size": 16}
            if "row_offsets" in part:
                known["row_offsets"] = part["row_offsets"].host
            read = None if got is None else got.host
            check(wanted[:rows], indices.host, asked, values=read, **known)
            if "out" in part:
                assert result is part["out"] or result == part["out"]
        # New outputs lie in memory that is registered first, by the long way.
        assert counted.num_long == (1 if "out" in kind else 3), f"kind {number}: {kind}"


def test_new_outputs_of_an_event_loop(counted: Counted, rng: Any) -> None:
    """Each lies in an allocation of its own, which another thread registers; nothing is made twice."""
    scores = scores_of(rng, 5, 2000)

    async def run() -> None:
        for _ in range(3):
            indices, values = await counted.client.aselect(scores, k=32, values=True)
            check(scores.host, indices.host, values=values.host)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert counted.client.stats()["registrations"] == 1 + 3 * 2


def _first(value: Any, rows: int) -> Any:
    """The first rows of an argument."""
    if isinstance(value, tuple):
        return tuple(_first(one, rows) for one in value)
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 1:
        return Tensor(value._storage, 0, (rows,), (1,), value.dtype)
    return value.part(slice(rows), slice(value.shape[1]))


def test_memory_made_again_at_its_address_goes_the_long_way(counted: Counted, rng: Any) -> None:
    """The stale mapping shows other bytes: it must never be used."""
    out = empty((4, 32), "int32")
    scores = scores_of(rng, 4, 5000)
    for _ in range(2):
        counted.select(scores, k=32, out=out)
    assert counted.num_long == 1
    num_same = 0
    for _ in range(6):
        before = scores.data_ptr()
        scores._storage.free()
        scores = scores_of(rng, 4, 5000)
        num_same += scores.data_ptr() == before
        wanted = scores.host.copy()
        counted.num_long = 0
        for _ in range(2):
            check(wanted, counted.select(scores, k=32, out=out).host)
        assert counted.num_long == 1
    assert num_same > 0, "the stand-in gave no address again: the case was not met"


def test_what_is_unusual_goes_the_long_way(counted: Counted, rng: Any) -> None:
    scores, out = scores_of(rng, 4, 5000), empty((4, 32), "int32")
    for _ in range(2):
        counted.select(scores, k=32, out=out)
    assert counted.num_long == 1
    row = Tensor(scores._storage, 0, (5000,), (1,), "float32")
    one = Tensor(out._storage, 0, (32,), (1,), "int32")
    assert counted.select(row, k=32, out=one) is one and counted.num_long == 2
    stream = gpu.Stream()
    assert counted.select(scores, k=32, out=out, stream=stream) is out and counted.num_long == 3
    assert counted.select(scores, [5000] * 4, 32, out=out) is out and counted.num_long == 4
    turned = Tensor(scores._storage, 0, (4, 50), (1, 4), "float32")
    short = Tensor(out._storage, 0, (3, 32), (32, 1), "int32")
    for bad, words in (
        ({"scores": turned}, "dense"), ({"out": short}, "shape"), ({"k": 31}, "shape"),
        ({"lengths": short}, "lengths"), ({"row_offsets": short}, "row_offsets"),
        ({"page_table": short, "page_size": 16}, "page_table"), ({"order": ["value"]}, "order"),
    ):
        counted.num_long = 0
        with pytest.raises(topkd.errors.InvalidError, match=words):
            counted.select(**{"scores": scores, "k": 32, "out": out, **bad})
        assert counted.num_long == 1
    counted.client.close()
    with pytest.raises(topkd.errors.ClosedError):
        counted.client.select(scores, k=32, out=out)


def test_a_region_goes_with_the_storage(counted: Counted, rng: Any) -> None:
    out = empty((4, 32), "int32")
    scores = scores_of(rng, 4, 5000)
    counted.select(scores, k=32, out=out)
    before = counted.client.stats()["regions"]
    assert counted.client.trim() == 0  # both storages live
    storage: Storage = scores._storage
    pointer = storage.pointer
    del scores, storage
    assert counted.client.trim() == 1 and counted.client.stats()["regions"] == before - 1
    gpu.free(pointer)
