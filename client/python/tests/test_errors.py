"""Exceptions: one class for each status of the library that is loaded."""

from __future__ import annotations

import builtins
import copy
import pickle
import re
from pathlib import Path

import pytest

import topkd

TABLE = Path(__file__).parents[3] / "proto/include/topkd_status.h"


def test_there_is_a_class_for_every_status() -> None:
    entries = re.findall(r"X\((TOPKD_\w+), (\d+), ", TABLE.read_text(encoding="utf-8"))
    by_name = {cls.name: cls for cls in topkd.errors.all().values()}
    assert len(entries) > 20
    for name, code in entries:
        if name == "TOPKD_OK":
            continue
        cls = by_name.pop(name)
        words = name.removeprefix("TOPKD_E_").split("_")
        assert cls.__name__ == "".join(word.capitalize() for word in words) + "Error"
        assert cls.code == int(code) and cls.hint and issubclass(cls, topkd.Error)
        assert getattr(topkd.errors, cls.__name__) is cls and cls.__name__ in dir(topkd.errors)
    assert not by_name


def test_builtin_relatives() -> None:
    assert issubclass(topkd.errors.InvalidError, ValueError)
    assert issubclass(topkd.errors.TimeoutError, builtins.TimeoutError)
    assert issubclass(topkd.errors.NoMemoryError, MemoryError)


def test_an_error_carries_code_message_and_hint(daemon: object) -> None:
    with pytest.raises(topkd.errors.UnreachableError) as caught:
        topkd.Client("ipc:///nowhere/topkd.sock", timeout=0.2)
    error = caught.value
    assert error.code == 24 and error.name == "TOPKD_E_UNREACHABLE"
    assert "/nowhere/topkd.sock" in error.message and "start topkd" in error.hint
    assert error.message in str(error) and error.hint in str(error)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error) and other.message == error.message


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(AttributeError, match="no NoSuchError.*TimeoutError"):
        topkd.errors.NoSuchError  # noqa: B018
