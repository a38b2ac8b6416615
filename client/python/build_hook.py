"""Puts libtopkd and libtopksel into the wheel.

TOPKD_WHEEL_LIBRARIES names a folder with both, a build's ``lib``. They go to ``topkd/lib``, and the
wheel gets this platform's tag. Without the variable the wheel is pure Python, for machines where
topkd is installed.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OURS = ("libtopkd.so.0", "libtopksel.so.0")
# Part of the system, or of the driver: the wheel carries nothing else that these need.
SYSTEM = (
    "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "ld-linux", "linux-vdso",
    "libgcc_s.so", "libstdc++.so", "libcuda.so",
)


def check_needs(library: Path) -> None:
    """Raises when a library needs one that is neither ours nor the system's."""
    text = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        name, arrow, _ = line.strip().partition(" => ")
        if arrow and not name.startswith(SYSTEM) and name not in OURS:
            raise RuntimeError(f"{library} needs {name}, which not every Linux has: link it in")


class BuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("TOPKD_WHEEL_LIBRARIES")
        if not folder or version == "editable":
            return
        include: dict[str, str] = {}
        for name in OURS:
            path = Path(folder) / name
            if not path.is_file():
                raise FileNotFoundError(f"TOPKD_WHEEL_LIBRARIES={folder} holds no {name}")
            check_needs(path)
            include[str(path.resolve())] = f"topkd/lib/{name}"
        ours = Path(self.root).parents[1] / "LICENSE"
        if ours.is_file():
            include[str(ours)] = "topkd/lib/licences/topkd"
        build_data["force_include"].update(include)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
