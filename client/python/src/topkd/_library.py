"""Finds and loads libtopkd and libtopksel.

In this order, and nothing else is tried once one of them applies:

1. ``TOPKD_LIBRARY``: the path of ``libtopkd.so...`` or of the folder that holds it;
2. the libraries that the wheel carries, in ``topkd/lib``;
3. an installed topkd, by the name ``libtopkd.so.0``, as the dynamic loader finds it.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from . import _abi
from ._version import __version__

CLIENT, SELECTOR = "libtopkd.so.0", "libtopksel.so.0"
VARIABLE = "TOPKD_LIBRARY"
BUNDLED = Path(__file__).parent / "lib"


def _chosen() -> tuple[Path | None, str]:
    """The folder or file to load from, or None for the loader's search; and why."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named), f"{VARIABLE}={named}"
    if (BUNDLED / CLIENT).is_file():
        return BUNDLED, f"the wheel's own folder {BUNDLED}"
    return None, "the dynamic loader (no library in the wheel, no TOPKD_LIBRARY)"


def _open(name: str) -> ctypes.CDLL:
    place, why = _chosen()
    try:
        if place is None:
            return ctypes.CDLL(name)
        if place.is_file():
            if name == CLIENT:
                return ctypes.CDLL(str(place))
            place = place.parent
        if not place.is_dir():
            raise OSError(f"{place} does not exist")
        path = place / name
        if not path.is_file():
            raise OSError(f"{place} holds no {name}")
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"topkd {__version__} needs {name} and could not load it from {why}: {error}. Install "
            f"a wheel that carries it, install topkd on this machine (cmake --install, then "
            f"ldconfig), or set {VARIABLE} to the folder that holds {name}"
        ) from error


def _declare(
    library: ctypes.CDLL, functions: dict[str, tuple[object, list[object]]], name: str
) -> None:
    for function, (result, parameters) in functions.items():
        try:
            symbol = getattr(library, function)
        except AttributeError:
            raise ImportError(
                f"{name} has no function {function}: it is older than this package "
                f"({__version__}); install a matching topkd"
            ) from None
        symbol.restype = result
        symbol.argtypes = parameters


@lru_cache(maxsize=None)
def client_library() -> ctypes.CDLL:
    """libtopkd, loaded once."""
    library = _open(CLIENT)
    _declare(library, _abi.CLIENT_FUNCTIONS, CLIENT)
    found = library.topkd_version().decode()
    # Before 1.0 a change of the minor number may change the interface (client/CMakeLists.txt).
    if found.split(".")[:2] != __version__.split(".")[:2]:
        raise ImportError(
            f"libtopkd is version {found}, this package is {__version__}: their first two numbers "
            f"must agree. Loaded from {_chosen()[1]}"
        )
    return library


@lru_cache(maxsize=None)
def selector_library() -> ctypes.CDLL:
    """libtopksel, loaded at the first selection in process."""
    library = _open(SELECTOR)
    _declare(library, _abi.SELECTOR_FUNCTIONS, SELECTOR)
    return library
