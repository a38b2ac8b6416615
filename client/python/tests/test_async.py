"""Selections in flight under asyncio."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topkd
from conftest import Daemon
from inputs import normal
from topkd.testing import check


def test_many_in_flight(client: topkd.Client, rng: Any) -> None:
    """More than the session takes at once: the rest waits its turn."""
    scores = client.empty((4, 3000))
    scores[:] = normal(rng, 4, 3000)

    async def run() -> None:
        results = await asyncio.gather(
            *(client.aselect(scores, 3000 - i, 1 + i, order="value") for i in range(200))
        )
        for i, result in enumerate(results):
            check(scores, result, 3000 - i, order="value")
        empty = await client.aselect(scores[:0], k=3)
        assert empty.shape == (0, 3)

    asyncio.run(run())
    assert client.stats()["in_flight"] == 0
    asyncio.run(run())  # another loop


def test_the_loop_is_not_blocked(rng: Any, tmp_path: Path) -> None:
    """A worker that is stopped answers nothing. The loop turns all the same: while selections are on
    their way, while others wait for their turn, and when some of either are cancelled."""
    num = 60  # nearly twice what the session takes at once
    settings = tmp_path / "topkd.yaml"
    settings.write_text("worker: {hang_ms: 600000}\n")  # its supervisor leaves it alone
    daemon = Daemon("--device", "cpu", "--config", str(settings))
    has_turned, was_let_go = threading.Event(), threading.Event()

    def let_go() -> None:
        """Whoever waits for the worker in the loop's thread is freed, late, to fail below."""
        if not has_turned.wait(20):
            was_let_go.set()
            daemon.continue_worker()

    async def run(client: topkd.Client) -> None:
        scores, out = client.empty((4, 1000)), client.empty((num, 4, 20), "int32")
        scores[:] = normal(rng, 4, 1000)
        # Every memory is known to the worker before it is stopped.
        check(scores, await client.aselect(scores, k=20, out=out[0]))
        daemon.stop_worker()
        freer = threading.Thread(target=let_go)
        freer.start()
        try:
            tasks = [
                asyncio.create_task(client.aselect(scores, k=20, out=out[i], timeout=60))
                for i in range(num)
            ]
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert not was_let_go.is_set(), "the loop stood still until the worker went on"
            assert client.stats()["in_flight"] == client.info()["outstanding_max"] < num
            assert not any(task.done() for task in tasks)
            for task in tasks[::3]:
                task.cancel()
            ended, _ = await asyncio.wait(tasks[::3])
            assert all(task.cancelled() for task in ended)
            assert not was_let_go.is_set(), "a cancelled task waited for the worker"
        finally:
            has_turned.set()
            freer.join()
            daemon.continue_worker()
        for i, task in enumerate(tasks):
            if i % 3 != 0:
                check(scores, await task)

    try:
        with topkd.Client(daemon.url) as client:
            asyncio.run(run(client))
    finally:
        daemon.stop()


def test_errors_and_timeouts_are_raised(client: topkd.Client, rng: Any) -> None:
    scores = normal(rng, 2, 100)

    async def run() -> None:
        with pytest.raises(topkd.errors.InvalidError, match="16384"):
            await client.aselect(scores, k=20000)
        with pytest.raises(topkd.errors.OutOfRangeError):
            await client.aselect(scores, k=2, page_table=np.zeros((2, 1), np.int32), page_size=2)
        check(scores, await client.aselect(scores, k=2))

    asyncio.run(run())


def test_a_cancelled_task_cancels_its_selection(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((64, 200_000))
    scores[:] = normal(rng, 64, 200_000)

    async def run() -> None:
        tasks = [asyncio.create_task(client.aselect(scores, k=2048)) for _ in range(8)]
        await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        first = results[0]
        assert not isinstance(first, BaseException)
        check(scores[:2], first[:2])
        assert all(isinstance(result, asyncio.CancelledError) for result in results[1:])
        check(scores[:2], (await client.aselect(scores, k=100))[:2])

    asyncio.run(run())
    assert client.stats()["in_flight"] == 0


def test_loops_in_several_threads(client: topkd.Client, rng: Any) -> None:
    scores = client.empty((3, 2000))
    scores[:] = normal(rng, 3, 2000)
    errors: list[BaseException] = []

    async def several(k: int) -> None:
        for _ in range(20):
            for result in await asyncio.gather(*(client.aselect(scores, k=k) for _ in range(5))):
                check(scores, result)

    def thread(k: int) -> None:
        try:
            asyncio.run(several(k))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(k,)) for k in (3, 5, 7)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors


def test_close_ends_what_is_awaited(daemon: Daemon, rng: Any) -> None:
    async def run() -> None:
        client = topkd.Client(daemon.url)
        scores = normal(rng, 64, 200_000)
        tasks = [asyncio.create_task(client.aselect(scores, k=2048)) for _ in range(4)]
        await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        closing = loop.run_in_executor(None, client.close)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, (np.ndarray, topkd.errors.CancelledError))
        await closing
        # From the loop's own thread, which can then not look after the tasks.
        client = topkd.Client(daemon.url)
        tasks = [asyncio.create_task(client.aselect(scores, k=2048)) for _ in range(4)]
        await asyncio.sleep(0.001)
        client.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, (np.ndarray, topkd.errors.CancelledError))
        # While some wait for their turn.
        client = topkd.Client(daemon.url)
        shared = client.empty(scores.shape)
        shared[:] = scores
        tasks = [asyncio.create_task(client.aselect(shared, k=2048)) for _ in range(60)]
        await asyncio.sleep(0)
        client.close()
        kinds = (np.ndarray, topkd.errors.CancelledError, topkd.errors.ClosedError)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, kinds)

    asyncio.run(run())
