"""One client, many threads; and the daemon's deaths."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import topkd
from conftest import Daemon, in_threads
from inputs import normal
from topkd.testing import check


def test_threads_share_a_client(client: topkd.Client) -> None:
    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        for turn in range(40):
            width = int(rng.integers(1, 3000))
            scores = normal(rng, int(rng.integers(1, 9)), width)
            if turn % 2:
                shared = client.empty(scores.shape)
                shared[:] = scores
                scores = shared
            indices, values = client.select(scores, k=int(rng.integers(1, 99)), values=True)
            check(scores, indices, values=values)
            if turn % 10 == 0:
                client.trim()
                client.stats()

    in_threads(8, work)
    assert client.stats()["in_flight"] == 0


def test_threads_share_the_selector() -> None:
    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        for _ in range(30):
            scores = normal(rng, 5, 2000)
            check(scores, topkd.select(scores, k=64))
            if i == 0:
                topkd.set_threads(1 + i % 2)

    in_threads(6, work)
    topkd.set_threads(0)


def test_close_waits_for_other_threads(daemon: Daemon) -> None:
    client = topkd.Client(daemon.url)
    scores = client.empty((64, 100_000))
    scores[:] = 1.5
    num = [0]

    def work(i: int) -> None:
        if i == 0:
            while num[0] < 5:
                time.sleep(0.001)
            client.close()
            return
        with pytest.raises(topkd.errors.ClosedError):
            while True:
                client.select(scores, k=2048)
                num[0] += 1

    in_threads(4, work)


def test_a_call_that_meets_a_close_is_refused(daemon: Daemon) -> None:
    """It has begun, and gets the session's lock only when the session has ended."""
    client = topkd.Client(daemon.url)
    session = client._session
    lock, waits = session.lock, threading.Event()

    class Late:
        def __enter__(self) -> None:
            if threading.current_thread() is caller:
                waits.set()
                assert session._ended.wait(60)
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()

    errors: list[BaseException | None] = []

    def call() -> None:
        try:
            client.ping()
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    session.lock = Late()  # type: ignore[assignment]
    caller.start()
    assert waits.wait(60)
    client.close()
    caller.join()
    assert isinstance(errors[0], topkd.errors.ClosedError), errors
    assert errors[0].message == "the client is closed"  # said here, and not by what was freed


def test_the_worker_dies_and_comes_back(rng: Any) -> None:
    daemon = Daemon("--device", "cpu")
    try:
        with topkd.Client(daemon.url) as client:
            scores = client.empty((4, 2000))
            scores[:] = normal(rng, 4, 2000)
            kept = client.select(scores, k=9)
            daemon.kill_worker()
            again = client.select(scores, k=9)
            check(scores, kept)
            check(scores, again)
            assert client.info()["num_renewals"] == 1
        with topkd.Client(daemon.url, renew=False) as client:
            client.select(scores, k=9)
            daemon.kill_worker()
            end = time.monotonic() + 30
            with pytest.raises(topkd.errors.StaleSessionError):
                while time.monotonic() < end:
                    client.select(scores, k=9)
                    time.sleep(0.01)
    finally:
        daemon.stop()


def test_a_timeout_is_a_timeout(rng: Any) -> None:
    """No worker takes so large a selection in a millisecond."""
    daemon = Daemon("--device", "cpu")
    try:
        with topkd.Client(daemon.url) as client:
            scores = client.empty((512, 50_000))
            scores[:] = 0.5
            with pytest.raises(topkd.errors.TimeoutError) as caught:
                client.select(scores, k=2048, order="value", timeout=0.001)
            assert isinstance(caught.value, TimeoutError)
            check(scores[:1], client.select(scores[:1], k=8))
            for bad in (0, -1, 1e9, float("nan")):
                with pytest.raises(topkd.errors.InvalidError, match="timeout"):
                    client.select(scores, timeout=bad)
    finally:
        daemon.stop()
