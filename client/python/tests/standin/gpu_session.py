"""A daemon of the stand-in's GPU and a client of it, for the tests that import these fixtures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import gpu
import topkd
from conftest import Daemon
from inputs import normal


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    made = Daemon("--device", gpu.UUID)
    yield made
    made.stop()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[topkd.Client]:
    gpu.enter()
    with topkd.Client(daemon.url, idle_timeout=60) as made:
        assert made.is_cuda and made.device.startswith("GPU-")
        yield made


def draw(rng: Any, tensor: gpu.Tensor) -> Any:
    tensor.host[:] = normal(rng, *tensor.shape)
    return tensor.host


def until(condition: Any) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())
