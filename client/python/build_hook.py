"""Puts libtopkd and libtopksel into the wheel.

TOPKD_WHEEL_LIBRARIES names a folder with both, a build's ``lib``. They go to ``topkd/lib`` together
with what they need that not every Linux has (NNG and what NNG needs), and the wheel gets this
platform's tag. Without the variable the wheel is pure Python, for machines where topkd is installed.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OURS = ("libtopkd.so.0", "libtopksel.so.0")
# Part of the system, or of the driver: never carried.
SYSTEM = (
    "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "ld-linux", "linux-vdso",
    "libgcc_s.so", "libstdc++.so", "libcuda.so",
)


def needed(library: Path) -> dict[str, Path]:
    """Name and place of all libraries that one needs, directly or not, beside the system's."""
    text = subprocess.run(
        ["ldd", str(library)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, Path] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if not rest or name.startswith(SYSTEM) or name in OURS:
            continue
        if "not found" in rest:
            raise RuntimeError(f"{library} needs {name}, which is not here")
        found[name] = Path(rest.split(" (")[0])
    return found


def in_load_order(libraries: dict[str, Path]) -> list[str]:
    """Each after those it needs."""
    depends = {name: set(needed(path)) & set(libraries) for name, path in libraries.items()}
    return sorted(libraries, key=lambda name: (len(depends[name]), name))


def licence(library: Path) -> tuple[str, Path] | None:
    """Package and licence text of a library that a Debian package brought."""
    try:
        owner = subprocess.run(
            ["dpkg", "-S", str(library.resolve())], capture_output=True, text=True, check=True
        ).stdout.partition(":")[0]
    except (OSError, subprocess.CalledProcessError):
        return None
    text = Path("/usr/share/doc") / owner / "copyright"
    return (owner, text.resolve()) if text.is_file() else None


class BuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("TOPKD_WHEEL_LIBRARIES")
        if not folder or version == "editable":
            return
        libraries: dict[str, Path] = {}
        include: dict[str, str] = {}
        for name in OURS:
            path = Path(folder) / name
            if not path.is_file():
                raise FileNotFoundError(f"TOPKD_WHEEL_LIBRARIES={folder} holds no {name}")
            include[str(path.resolve())] = f"topkd/lib/{name}"
            libraries.update(needed(path))
        for name, path in libraries.items():
            include[str(path.resolve())] = f"topkd/lib/{name}"
            found = licence(path)
            if found is not None:
                include[str(found[1])] = f"topkd/lib/licences/{found[0]}"
        ours = Path(self.root).parents[1] / "LICENSE"
        if ours.is_file():
            include[str(ours)] = "topkd/lib/licences/topkd"
        self._list = tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8")
        self._list.write("".join(name + "\n" for name in in_load_order(libraries)))
        self._list.flush()
        include[self._list.name] = "topkd/lib/dependencies.txt"
        build_data["force_include"].update(include)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_list"):
            self._list.close()
