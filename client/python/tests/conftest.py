"""Fixtures: a daemon on its CPU device for the whole run, and a client of it for each test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topkd

# The folder with topkd and topkctl: TOPKD_BIN, or that of the development build.
BIN = Path(os.environ.get("TOPKD_BIN") or Path(__file__).parents[3] / "build/dev/bin")
SEED = int(os.environ.get("TOPKD_TEST_SEED") or time.time_ns() % 2**31)


def pytest_report_header() -> str:
    return f"topkd: {BIN}, package in {Path(topkd.__file__).parent}, TOPKD_TEST_SEED={SEED}"


def in_threads(num: int, work: Callable[[int], None]) -> None:
    """Runs ``work(0)`` ... ``work(num - 1)`` side by side; raises the first error of any."""
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Daemon:
    """A topkd in a folder of its own."""

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.folder = tempfile.mkdtemp(prefix="topkd-py-")  # short: it is part of a socket's path
        self.url = f"ipc://{self.folder}/topkd.sock"
        program = BIN / "topkd"
        assert program.is_file(), f"no {program}: build topkd, or set TOPKD_BIN to its folder"
        with open(Path(self.folder) / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(program), "--socket-dir", self.folder, *options],
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        for _ in range(300):
            ping = subprocess.run(
                [str(BIN / "topkctl"), "ping", "--url", self.url, "--timeout", "2s"],
                capture_output=True, check=False,
            )
            if ping.returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        log_text = (Path(self.folder) / "log").read_text()
        self.stop()
        raise AssertionError(f"the daemon is not ready: {ping.stderr.decode()}{log_text}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
            raise
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def worker(self) -> int:
        """The process number of the only worker: the only child of the supervisor."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def kill_worker(self) -> None:
        os.kill(self.worker(), signal.SIGKILL)

    def stop_worker(self) -> None:
        """Returns when no thread of it runs any more."""
        self._halt(self.worker())

    def stop_supervisor(self) -> None:
        """The same: no worker that dies is replaced."""
        self._halt(self.process.pid)

    def _halt(self, pid: int) -> None:
        threads = Path(f"/proc/{pid}/task")
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + 30
        while any(
            (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T"
            for thread in threads.iterdir()
        ):
            assert time.monotonic() < end, f"process {pid} does not stop"
            time.sleep(0.001)

    def continue_worker(self) -> None:
        os.kill(self.worker(), signal.SIGCONT)

    def continue_supervisor(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    made = Daemon("--device", "cpu")
    yield made
    made.stop()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[topkd.Client]:
    with topkd.Client(daemon.url) as made:
        yield made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


# ---- On a GPU host (tests/gpu) -------------------------------------------------------------------


@pytest.fixture(scope="session")
def gpu_daemon() -> Iterator[Daemon]:
    import torch

    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    made = Daemon("--device", f"GPU-{uuid}")
    yield made
    made.stop()


@pytest.fixture
def gpu_client(gpu_daemon: Daemon) -> Iterator[topkd.Client]:
    with topkd.Client(gpu_daemon.url) as made:
        assert made.is_cuda
        yield made


@pytest.fixture
def torch() -> Any:
    import torch

    torch.manual_seed(1)
    return torch
