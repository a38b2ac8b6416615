"""Other frameworks, allocators, processes and the examples, on a GPU."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topkd
from conftest import Daemon
from topkd.testing import check, oracle

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_cupy(gpu_client: topkd.Client) -> None:
    import cupy

    scores = cupy.random.standard_normal((8, 3000), dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    for select in (gpu_client.select, topkd.select):
        indices = select(scores, k=20)
        assert isinstance(indices, cupy.ndarray) and indices.dtype == cupy.int32
        check(scores.get(), indices.get())
        with stream:
            mine = scores * 2
            check(mine.get(), select(mine, k=20).get())
        check(scores.get(), select(scores, k=20, stream=cupy.cuda.Stream()).get())
    gpu_client.synchronize()


def test_jax(gpu_daemon: Daemon) -> None:
    """JAX's memory is sharable or not, as its allocator is set: both are said."""
    done = program(
        """
        import jax, numpy, topkd
        from topkd.testing import check
        scores = jax.random.normal(jax.random.key(1), (8, 3000))
        client = topkd.Client(staging=True)
        for select in (client.select, topkd.select):
            indices = select(scores, k=20)
            assert isinstance(indices, jax.Array), type(indices)
            check(numpy.asarray(scores), numpy.asarray(indices))
        print("staged", client.stats()["staged_bytes"])
        """,
        gpu_daemon, XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    assert done.startswith("staged")


def test_numba(gpu_client: topkd.Client) -> None:
    from numba import cuda

    plain = np.random.default_rng(1).standard_normal((8, 3000), dtype=np.float32)
    scores = cuda.to_device(plain)
    for select in (gpu_client.select, topkd.select):
        indices = select(scores, k=20)
        gpu_client.synchronize()
        check(plain, indices.copy_to_host())


def program(text: str, daemon: Daemon, **environment: str) -> str:
    package = str(Path(topkd.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "TOPKD_URL": daemon.url, "PYTHONPATH": package, **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_expandable_segments(gpu_daemon: Daemon) -> None:
    out = program(
        """
        import gc, time, torch, topkd
        from topkd.testing import check
        client = topkd.Client()
        for rows in (8, 64, 16):       # 64 MiB and more: several pieces of 20 MiB
            scores = torch.randn(rows, 500_000, device="cuda")
            indices = client.select(scores, 400_000, 64)
            check(scores.cpu().numpy()[:4], indices.cpu().numpy()[:4], 400_000)
            view = scores[1:, 1000:]
            check(view.cpu().numpy()[:2], client.select(view, k=9).cpu().numpy()[:2])
        del scores, indices, view
        torch.cuda.empty_cache()        # pieces are unmapped, and mapped anew
        scores = torch.randn(32, 500_000, device="cuda")
        check(scores.cpu().numpy()[:4], client.select(scores, k=64).cpu().numpy()[:4])
        client.synchronize()
        print(client.stats()["staged_bytes"])
        """,
        gpu_daemon,
        PYTORCH_ALLOC_CONF="expandable_segments:True",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert out == "0\n"


def test_stream_ordered_pools_are_named_or_staged(gpu_daemon: Daemon) -> None:
    program(
        """
        import torch, topkd
        from topkd.testing import check
        scores = torch.randn(8, 50_000, device="cuda")
        client = topkd.Client()
        try:
            client.select(scores, k=5)
            raise SystemExit("it was not refused")
        except topkd.errors.NotExportableError as error:
            assert "cudaMallocAsync" in error.message and "stage it" in error.hint, error
        with topkd.Client(staging=True) as client:
            indices = client.select(scores, k=64)
            assert isinstance(indices, torch.Tensor) and indices.is_cuda
            check(scores.cpu().numpy(), indices.cpu().numpy())
            client.synchronize()
        """,
        gpu_daemon,
        PYTORCH_ALLOC_CONF="backend:cudaMallocAsync",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )


class Raw:
    """CUDA memory without a framework."""

    def __init__(self, pointer: int, shape: tuple[int, int]) -> None:
        self.__cuda_array_interface__ = {
            "version": 3, "shape": shape, "typestr": "<f4", "strides": None,
            "data": (pointer, False), "stream": None,
        }


@pytest.mark.parametrize(
    ("kind", "words"), [("managed", "managed memory"), ("pinned", "pinned host memory")]
)
def test_other_kinds_are_named(gpu_client: topkd.Client, torch: Any, kind: str, words: str) -> None:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_uint64()
    if kind == "managed":
        result = cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(1 << 20), 1)
    else:
        result = cuda.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20), 0)
    assert result == 0
    with pytest.raises(topkd.errors.NotExportableError, match=f"scores: .*{words}"):
        gpu_client.select(Raw(pointer.value, (4, 100)), k=5)


def in_process(seed: int, url: str, said: Any) -> None:
    import torch

    torch.manual_seed(seed)
    with topkd.Client(url) as client:
        for turn in range(100):
            scores = torch.randn(1 + turn % 16, 20_000, device="cuda")
            indices = client.select(scores, 19_000 - turn, 256)
            if turn % 10 == 0:
                check(scores.cpu().numpy(), indices.cpu().numpy(), 19_000 - turn)
        client.synchronize()
    said.put(seed)


def test_several_processes(gpu_daemon: Daemon) -> None:
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    processes = [
        context.Process(target=in_process, args=(seed, gpu_daemon.url, said)) for seed in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(said.get(timeout=5) for _ in processes) == [0, 1, 2]


def test_a_fork_is_noticed(gpu_client: topkd.Client, torch: Any) -> None:
    scores = torch.randn(4, 1000, device="cuda")
    gpu_client.select(scores, k=5)
    gpu_client.synchronize()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            gpu_client.check()
            os.write(writer, b"nothing was raised")
        except topkd.errors.ClosedError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"before a fork" in pipe.read()
    os.waitpid(pid, 0)
    check(scores.cpu().numpy(), gpu_client.select(scores, k=5).cpu().numpy())


# ---- The examples --------------------------------------------------------------------------------


def run_example(name: str, url: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        env={**os.environ, "TOPKD_URL": url, "PYTHONPATH": str(Path(topkd.__file__).parents[1])},
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_servers(gpu_daemon: Daemon, daemon: Daemon) -> None:
    text = run_example("two_servers.py", gpu_daemon.url)
    assert text.count("steps exact") == 2
    print(text)
    options = ("--device", "cpu", "--rows", "4", "--tokens", "4096", "--k", "256", "--steps", "10")
    assert run_example("two_servers.py", daemon.url, *options).count("steps exact") == 2


def test_graph_of_indexer_selection_gather(gpu_daemon: Daemon) -> None:
    text = run_example("graph.py", gpu_daemon.url)
    assert "100 replays exact" in text
    print(text)


@pytest.fixture(params=["gpu", "cpu"])
def adapter(request: pytest.FixtureRequest) -> Any:
    import serving_adapter

    which = "gpu_client" if request.param == "gpu" else "client"
    made: Any = serving_adapter.IndexerTopk(request.getfixturevalue(which))
    made.place = "cuda" if request.param == "gpu" else "cpu"
    return made


def windows(scores: Any, starts: list[int], lengths: list[int], k: int) -> Any:
    """The right sets, row by row."""
    rows = [
        oracle(scores[i : i + 1, start : start + length], k=k)[0]
        for i, (start, length) in enumerate(zip(starts, lengths))
    ]
    return np.stack(rows)


def ascending(indices: Any) -> Any:
    """-1 last."""
    array = indices.cpu().numpy().astype(np.int64)
    return np.sort(np.where(array < 0, 1 << 40, array), axis=1)


def test_adapter_has_the_shapes_of_sglang(adapter: Any, torch: Any) -> None:
    k, place = 64, adapter.place
    score = torch.randn(6, 900, device=place)
    plain = score.cpu().numpy()
    lengths, starts = [900, 10, 0, 64, 65, 500], [0, 0, 7, 7, 300, 400]
    gpu_lengths = torch.tensor(lengths, dtype=torch.int32, device=place)
    full = windows(plain, [0] * 6, lengths, k)
    assert (ascending(adapter.fast_topk_v2(score, gpu_lengths, k)) == big(full)).all()
    wanted = windows(plain, starts, lengths, k)
    gpu_starts = torch.tensor(starts, dtype=torch.int32, device=place)
    for given in (gpu_starts, starts):
        got = adapter.fast_topk_v2(score, gpu_lengths, k, given)
        assert (ascending(got) == big(wanted)).all()
    # Three requests of 1, 3 and 2 queries.
    cu_seqlens = torch.tensor([0, 1, 4, 6], dtype=torch.int32, device=place)
    table = torch.stack([torch.randperm(5000, device=place)[:900] for _ in range(3)]).to(torch.int32)
    got = adapter.fast_topk_transform_fused(score, gpu_lengths, table, cu_seqlens, k)
    pages = table.cpu().numpy()[[0, 1, 1, 1, 2, 2]]
    assert (ascending(got) == big(mapped(full, pages))).all()
    got = adapter.fast_topk_transform_fused(score, gpu_lengths, table, cu_seqlens, k, gpu_starts)
    assert (ascending(got) == big(mapped(wanted, pages))).all()
    offsets = torch.arange(6, dtype=torch.int32, device=place) * 10_000
    shifted = np.where(full < 0, -1, full + np.arange(6)[:, None] * 10_000)
    got = adapter.fast_topk_transform_ragged_fused(score, gpu_lengths, offsets, k)
    assert (ascending(got) == big(shifted)).all()


def big(indices: Any) -> Any:
    return np.sort(np.where(indices < 0, 1 << 40, indices.astype(np.int64)), axis=1)


def mapped(indices: Any, pages: Any) -> Any:
    return np.where(indices < 0, -1, np.take_along_axis(pages, np.maximum(indices, 0), 1))


def test_adapter_has_the_shapes_of_vllm(adapter: Any, torch: Any) -> None:
    k, place = 64, adapter.place
    logits = torch.randn(6, 1000, device=place)[:, :900]
    plain = logits.cpu().numpy()
    starts, ends = [0, 0, 7, 7, 300, 400], [900, 10, 7, 71, 365, 900]
    lengths = [end - start for start, end in zip(starts, ends)]
    out = torch.full((8, 128), -9, dtype=torch.int32, device=place)
    gpu = [torch.tensor(one, dtype=torch.int32, device=place) for one in (starts, ends)]
    adapter.top_k_per_row_prefill(logits, *gpu, out, 6, logits.stride(0), logits.stride(1), k)
    assert (ascending(out[:6, :k]) == big(windows(plain, starts, lengths, k))).all()
    assert bool((out[6:] == -9).all()) and bool((out[:, k:] == -9).all())
    seq_lens = torch.tensor([900, 3, 70], dtype=torch.int32, device=place)
    adapter.top_k_per_row_decode(logits, 2, seq_lens, out, 6, 1000, 1, k)
    lengths = [899, 900, 2, 3, 69, 70]
    assert (ascending(out[:6, :k]) == big(windows(plain, [0] * 6, lengths, k))).all()


def test_adapter_in_a_capture(gpu_client: topkd.Client, torch: Any) -> None:
    import serving_adapter

    adapter = serving_adapter.IndexerTopk(gpu_client)
    score = torch.randn(5, 900, device="cuda")
    lengths = torch.tensor([900, 3, 0, 64, 500], dtype=torch.int32, device="cuda")
    with pytest.raises(topkd.errors.UnsupportedError, match="prepare_capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            adapter.fast_topk_v2(score, lengths, 64)
    adapter.prepare_capture(8, 1000, 64)
    adapter.fast_topk_v2(score, lengths, 64)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = adapter.fast_topk_v2(score, lengths, 64)
    for _ in range(5):
        score.normal_()
        lengths.random_(0, 901)
        graph.replay()
        torch.cuda.synchronize()
        check(score.cpu().numpy(), out.cpu().numpy(), lengths.cpu().numpy())


def test_adapter_is_put_in_place(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import serving_adapter

    for name, install, functions in (
        ("sgl_kernel", serving_adapter.install_sglang, ["fast_topk_v2", "fast_topk_transform_fused",
                                                        "fast_topk_transform_ragged_fused"]),
        ("vllm._custom_ops", serving_adapter.install_vllm, ["top_k_per_row_prefill",
                                                            "top_k_per_row_decode"]),
    ):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        with pytest.raises(RuntimeError, match=functions[0]):
            install(adapter)
        for function in functions:
            setattr(module, function, None)
        install(adapter)
        assert all(getattr(module, function) == getattr(adapter, function) for function in functions)
