"""Notices a fork: threads, connections and CUDA stay with the parent."""

from __future__ import annotations

import os

generation = 0


def _after_in_child() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_after_in_child)
