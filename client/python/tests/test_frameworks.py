"""Tensors of other frameworks, by their protocols: small stand-ins with DLPack or the array
interfaces, so that no framework need be installed. tests/gpu runs the real ones on a GPU."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import topkd
from inputs import normal
from topkd import _array, _dlpack, _tensors
from topkd.testing import check


class DlpackOnly:
    """What JAX and others look like: nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OnDevice:
    """A tensor that claims a place where this machine has none."""

    def __init__(self, device_type: int) -> None:
        self.device_type = device_type
        self.memory = np.zeros((2, 8), np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        layout = (self.memory.ctypes.data, (2, 8), (8, 1), "f4", self.device_type, 0)
        return _dlpack.make(layout, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device_type, 0)


@pytest.mark.parametrize("how", ["daemon", "process"])
def test_dlpack_in_array_out(how: str, client: topkd.Client, rng: Any) -> None:
    select = client.select if how == "daemon" else topkd.select
    scores = normal(rng, 5, 700)
    lengths = np.array([700, 3, 0, 699, 64], np.int32)
    indices, values = select(DlpackOnly(scores), DlpackOnly(lengths), 64, values=True)
    assert isinstance(indices, topkd.Array) and indices.shape == (5, 64)
    assert indices.dtype == "int32" and values.dtype == "float32"
    check(scores, np.from_dlpack(indices), lengths, values=np.asarray(values))
    check(scores[:, 9:99], np.asarray(select(DlpackOnly(scores[:, 9:99]), k=4)))
    out = np.empty((5, 64), np.int32)
    given = DlpackOnly(out)
    assert select(scores, lengths, 64, out=given) is given
    check(scores, out, lengths)


def test_array_hands_out_its_memory_and_keeps_it(client: topkd.Client) -> None:
    array = client.empty((3, 4), "int32", framework="topkd")
    assert repr(array) == "topkd.Array(shape=(3, 4), dtype=int32, shared memory)"
    one, two = np.from_dlpack(array), np.asarray(array)
    two[:] = np.arange(12).reshape(3, 4)
    assert (one == two).all() and one.ctypes.data == array.pointer
    assert array.__dlpack_device__() == (1, 0)
    with pytest.raises(AttributeError):
        array.__cuda_array_interface__
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True)
    alive = weakref.ref(array)
    del array, two
    gc.collect()
    assert alive() is not None  # `one` holds it
    del one
    gc.collect()
    assert alive() is None and not _dlpack._held


def test_an_unused_capsule_lets_go(client: topkd.Client) -> None:
    array = client.empty(4, framework="topkd")
    alive = weakref.ref(array)
    capsule = array.__dlpack__()
    del array
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None and not _dlpack._held


class Interface:
    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, "strides": None, **interface}


def test_cuda_array_interface_is_read() -> None:
    class CuPyLike(Interface):
        pass

    CuPyLike.__module__ = "cupy._core.core"
    tensor = _tensors.read(
        CuPyLike(data=(4096, False), shape=(2, 8), typestr="<f4", stream=7), "scores"
    )
    assert (tensor.pointer, tensor.shape, tensor.strides) == (4096, (2, 8), (8, 1))
    assert (tensor.kind, tensor.cuda, tensor.framework, tensor.stream) == ("f4", 0, "cupy", 7)
    assert tensor.span() == 64 and _tensors.current_stream(tensor) == 7
    strided = Interface(data=(64, False), shape=(2, 8), typestr="<f4", strides=(400, 4))
    assert _tensors.read(strided, "scores").strides == (100, 1)
    assert _tensors.read(strided, "scores").span() == 432
    masked = Interface(data=(64, False), shape=(2, 8), typestr="<f4", mask=object())
    with pytest.raises(topkd.errors.InvalidError, match="lengths: .*mask"):
        _tensors.read(masked, "lengths")


def test_wrong_places_are_named(client: topkd.Client) -> None:
    cuda = Interface(data=(4096, False), shape=(2, 8), typestr="<f4")
    with pytest.raises(topkd.errors.NotVisibleError, match="GPU 0, but .* the CPU"):
        client.select(cuda, k=2)
    host = np.zeros((2, 8), np.float32)
    with pytest.raises(topkd.errors.NotVisibleError, match="lengths"):
        topkd.select(host, Interface(data=(4096, False), shape=(2,), typestr="<i4"), 2)
    for device_type, name, words in (
        (3, "NotExportableError", "pinned"), (13, "NotExportableError", "managed"),
        (10, "UnsupportedError", "type 10"),
    ):
        with pytest.raises(getattr(topkd.errors, name), match=f"scores: .*{words}"):
            client.select(OnDevice(device_type), k=2)


class Handle:
    value = 11


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (5, 5),
        (type("Torch", (), {"cuda_stream": 7})(), 7),
        (type("CuPy", (), {"ptr": 9})(), 9),
        (type("Numba", (), {"handle": Handle()})(), 11),
        (type("Protocol", (), {"__cuda_stream__": lambda self: (0, 13)})(), 13),
    ],
)
def test_streams_of_all_kinds(stream: Any, handle: int) -> None:
    assert _tensors.stream_handle(stream) == handle


def test_no_stream_is_refused() -> None:
    with pytest.raises(topkd.errors.InvalidError, match="a str is no CUDA stream"):
        _tensors.stream_handle("stream")


def test_dtypes_by_any_name() -> None:
    class TorchLike:
        def __str__(self) -> str:
            return "torch.int32"

    for dtype in ("int32", np.int32, np.dtype("int32"), TorchLike()):
        assert _array.kind_of(dtype) == "i4"
