"""The ctypes structures against the C headers, by a program that the compiler lays out."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from topkd import _abi, _library

ROOT = Path(__file__).parents[3]
INCLUDES = ["client/include", "proto/include", "kernels/include"]


def test_structures_are_those_of_the_headers(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "topkd.h"',
             '#include "topk_select.h"', "int main(void) {"]
    wanted = []
    for name, structure in _abi.STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        wanted.append(f"{name} {ctypes.sizeof(structure)}")
        for field in structure._fields_:
            lines.append(
                f'printf("{name}.{field[0]} %zu %zu\\n", offsetof(struct {name}, {field[0]}), '
                f"sizeof(((struct {name} *)0)->{field[0]}));"
            )
            at = getattr(structure, field[0])
            wanted.append(f"{name}.{field[0]} {at.offset} {at.size}")
    lines.append("return 0; }")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join(lines))
    flags = [f"-I{ROOT / folder}" for folder in INCLUDES]
    subprocess.run(["cc", *flags, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == wanted


def test_scripts_without_the_package_have_the_same_structures() -> None:
    """Those for PyTorch in tests/gpu/service, which only a machine with a GPU can run."""
    scripts = ROOT / "tests/gpu/service"
    program = (
        "import ctypes, sys\n"
        f"sys.path.insert(0, {str(scripts)!r})\n"
        "import topkd_ctypes as t\n"
        "for one in (t.Request, t.Options, t.LaneOptions):\n"
        "    print(one.__name__, ctypes.sizeof(one), *(f[0] for f in one._fields_))\n"
        "client = ctypes.c_void_p()\n"
        "t.check(t.lib.topkd_client_open(ctypes.byref(t.Options(url=b'ipc:///nowhere')), "
        "ctypes.byref(client)))\n"
    )
    library = _library.client_library()._name
    run = subprocess.run(
        [sys.executable, "-B", "-c", program, library], capture_output=True, text=True, check=False
    )
    wanted = [
        " ".join([one.__name__, str(ctypes.sizeof(one)), *(f[0] for f in one._fields_)])
        for one in (_abi.SelectRequest, _abi.ClientOptions, _abi.LaneOptions)
    ]
    assert run.stdout.splitlines() == wanted, run.stderr
    assert run.returncode == 1 and "FAIL status" in run.stderr, run.stderr


def test_constants_are_those_of_the_headers() -> None:
    text = "".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in ("client/include/topkd.h", "kernels/include/topk_select.h")
    )
    for words in (
        "TOPKD_ACCESS_READ = 1, TOPKD_ACCESS_READ_WRITE = 3", "TOPKD_LENGTHS_FULL = 0",
        "TOPKD_LENGTHS_ALL = 1", "TOPKD_LENGTHS_HOST = 2", "TOPKD_LENGTHS_REGION = 3",
        "at most 8192 rows", "TOPKD_DEVICE_CPU = 0, TOPKD_DEVICE_CUDA = 1",
        "TOPKD_ORDER_ANY = 0, TOPKD_ORDER_INDEX = 1, TOPKD_ORDER_VALUE = 2",
        "TOPKD_TIES_ANY = 0, TOPKD_TIES_LOWEST = 1", "#define TOPK_DETAIL_SIZE 192u",
    ):
        assert words in text, words
