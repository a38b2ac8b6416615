"""Other processes: pickling, spawn, fork, and an interpreter that just ends."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topkd
from conftest import Daemon
from inputs import normal
from topkd.testing import check


def test_pickling_is_refused(client: topkd.Client) -> None:
    array = client.empty((2, 3), framework="topkd")
    for refused, words in ((client, "open a client in the other process"), (array, "send a copy")):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=words):
                way(refused)


def in_child(value: object) -> None:
    raise AssertionError("nothing should have reached the child")


def test_spawn_does_not_take_a_client(client: topkd.Client) -> None:
    process = multiprocessing.get_context("spawn").Process(target=in_child, args=(client,))
    with pytest.raises(TypeError, match="cannot be pickled"):
        process.start()


def child(way: Any) -> str:
    """What a forked child says: 'ok', or what went wrong."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                text = str(way() or "ok")
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def test_a_fork_is_noticed(daemon: Daemon, client: topkd.Client, rng: Any) -> None:
    scores = client.empty((2, 100))
    scores[:] = normal(rng, 2, 100)
    client.select(scores, k=3)
    for way in (
        lambda: client.select(scores, k=3), lambda: client.ping(), lambda: client.empty(3),
        lambda: client.__enter__(), lambda: client.trim(),
    ):
        assert "before a fork" in child(way) and "ClosedError" in child(way)
    assert child(lambda: client.close()) == "ok"
    check(scores, client.select(scores, k=3))  # the parent's is as it was


def test_a_child_opens_its_own(daemon: Daemon, client: topkd.Client, rng: Any) -> None:
    scores = normal(rng, 3, 200)
    check(scores, client.select(scores, k=5))

    def use() -> None:
        with topkd.Client(daemon.url) as own:
            check(scores, own.select(scores, k=5))

    assert child(use) == "ok"
    check(scores, client.select(scores, k=5))


def test_in_process_selection_after_a_fork(rng: Any) -> None:
    """The pool's threads stay with the parent: the child makes its own."""
    scores = normal(rng, 50, 3000)
    check(scores, topkd.select(scores, k=9))
    assert child(lambda: check(scores, topkd.select(scores, k=9))) == "ok"


def script(text: str, daemon: Daemon) -> subprocess.CompletedProcess[str]:
    package = str(Path(topkd.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "TOPKD_URL": daemon.url, "PYTHONPATH": package},
        capture_output=True, text=True, timeout=60, check=False,
    )


def test_an_interpreter_may_just_end(daemon: Daemon) -> None:
    """With a client open, a thread inside of it, and arrays alive."""
    done = script(
        """
        import threading, time, topkd
        client = topkd.Client()
        scores = client.empty((64, 100000))
        scores[:] = 1
        def work():
            while True:
                client.select(scores, k=64)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        print("done")
        """,
        daemon,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_no_numpy_is_needed(daemon: Daemon) -> None:
    """A finder that hides NumPy: topkd.Array and DLPack work without it."""
    done = script(
        """
        import ctypes, sys
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "numpy":
                    raise ImportError("hidden")
        sys.meta_path.insert(0, Hide())
        import topkd
        client = topkd.Client()
        scores = client.empty((1, 5))
        (ctypes.c_float * 5).from_address(scores.pointer)[:] = [3, 1, 4, 1, 5]
        for result in (client.select(scores, k=2, order="value"),
                       topkd.select(scores, k=2, order="value")):
            print(list((ctypes.c_int32 * 2).from_address(result.pointer)))
        assert "numpy" not in sys.modules
        client.close()
        """,
        daemon,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[4, 2]\n[4, 2]\n"


@pytest.mark.parametrize("place", ["/nowhere", "file"])
def test_a_missing_library_is_explained(place: str, daemon: Daemon, tmp_path: Path) -> None:
    if place == "file":
        place = str(tmp_path / "libtopkd.so.0")
        Path(place).write_text("no library")
    done = subprocess.run(
        [sys.executable, "-c", "import topkd"],
        env={**os.environ, "TOPKD_LIBRARY": place, "PYTHONPATH": str(Path(topkd.__file__).parents[1])},
        capture_output=True, text=True, timeout=60, check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError:") and f"TOPKD_LIBRARY={place}" in last
    assert "Install a wheel that carries it" in last


def test_an_older_library_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("const char *topkd_version(void) { return \"0.0.9\"; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "libtopkd.so.0", source], check=True
    )
    done = subprocess.run(
        [sys.executable, "-c", "import topkd"],
        env={**os.environ, "TOPKD_LIBRARY": str(tmp_path),
             "PYTHONPATH": str(Path(topkd.__file__).parents[1])},
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert "older than this package" in done.stderr


def test_results_are_arrays_of_their_own(client: topkd.Client) -> None:
    """Pickling a result, which is a NumPy array, sends a copy."""
    result = client.select(np.arange(10, dtype=np.float32), k=3)
    assert (pickle.loads(pickle.dumps(result)) == result).all()


def test_the_first_example(daemon: Daemon) -> None:
    example = Path(__file__).parents[1] / "examples/first.py"
    done = script(example.read_text(encoding="utf-8"), daemon)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 4
