"""The exceptions of topkd: one class for every status of the C library.

They are generated from the library that is loaded: ``TOPKD_E_OUT_OF_RANGE`` becomes
``topkd.errors.OutOfRangeError``, ``TOPKD_E_TIMEOUT`` becomes ``topkd.errors.TimeoutError``.
``topkd.errors.all()`` lists them. Every one is a ``topkd.Error``; some are a builtin exception too
(``InvalidError`` a ``ValueError``, ``TimeoutError`` the builtin one, ``NoMemoryError`` a
``MemoryError``).
"""

from __future__ import annotations

import builtins

from ._library import client_library


class Error(Exception):
    """What topkd raises.

    Attributes:
        code: the number of the status (``enum topkd_status``).
        name: its identifier, ``"TOPKD_E_BUSY"``.
        message: what happened, with the value and the limit.
        hint: what to do.
    """

    code: int = 0
    name: str = ""
    hint: str = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.name}: {self.message} (hint: {self.hint})"

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (self.code, self.message)


_BUILTINS: dict[str, type[Exception]] = {
    "TOPKD_E_INVALID": builtins.ValueError,
    "TOPKD_E_TIMEOUT": builtins.TimeoutError,
    "TOPKD_E_NO_MEMORY": builtins.MemoryError,
}


def _class_name(status: str) -> str:
    words = status[len("TOPKD_E_") :].split("_")
    return "".join(word.capitalize() for word in words) + "Error"


def _generate() -> dict[int, type[Error]]:
    library = client_library()
    unknown = library.topkd_status_name(-1)
    classes: dict[int, type[Error]] = {}
    for code in range(1, 256):
        raw = library.topkd_status_name(code)
        if raw == unknown:
            continue
        status = raw.decode()
        bases: tuple[type, ...] = (Error,)
        if status in _BUILTINS:
            bases = (Error, _BUILTINS[status])
        text = library.topkd_strerror(code).decode()
        hint = library.topkd_strhint(code).decode()
        classes[code] = type(
            _class_name(status),
            bases,
            {
                "__doc__": f"{status}: {text}. Hint: {hint}.",
                "__module__": __name__,
                "code": code,
                "name": status,
                "hint": hint,
            },
        )
    return classes


_BY_CODE = _generate()
_BY_CLASS = {cls.__name__: cls for cls in _BY_CODE.values()}
_BY_STATUS = {cls.name: cls for cls in _BY_CODE.values()}


def all() -> dict[str, type[Error]]:
    """Every class by its name."""
    return dict(_BY_CLASS)


def __getattr__(name: str) -> type[Error]:
    try:
        return _BY_CLASS[name]
    except KeyError:
        raise AttributeError(f"topkd.errors has no {name}; it has {', '.join(_BY_CLASS)}") from None


def __dir__() -> list[str]:
    return ["Error", "all", *_BY_CLASS]


def _remake(code: int, message: str) -> Error:
    return _BY_CODE.get(code, Error)(message)


def from_status(code: int) -> Error:
    """The exception of this thread's last failed call, which returned ``code``."""
    library = client_library()
    detail = library.topkd_detail().decode(errors="replace")
    return _remake(code, detail or library.topkd_strerror(code).decode())


def named(status: str, message: str) -> Error:
    """An exception of a status given by its identifier without ``TOPKD_E_``."""
    return _BY_STATUS["TOPKD_E_" + status](message)


def invalid(message: str) -> Error:
    return named("INVALID", message)
