"""Processes under chaos: what /proc says of one, and a client with what it has said."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path


def now():
    return time.monotonic()


class Broken(Exception):
    """Something did not hold."""


def status_of(pid):
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        fields[key] = value.strip()
    return fields


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid):
    try:
        return status_of(pid)["State"][0] not in "ZX"
    except (OSError, KeyError):
        return False


def num_threads(pid):
    """0 when the process has gone."""
    try:
        return int(status_of(pid)["Threads"])
    except (OSError, KeyError):
        return 0


def num_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def anonymous_kib(pid):
    return int(status_of(pid)["RssAnon"].split()[0])


def num_client_mappings(pid):
    return Path(f"/proc/{pid}/maps").read_text().count("/topkd-held-")


def instance_of(worker):
    """What names of its daemon's objects in shared memory have behind "topkd-"; "": it is gone, or
    so young that it is not itself yet."""
    try:
        words = Path(f"/proc/{worker}/cmdline").read_bytes()
    except OSError:
        words = b""
    found = re.search(rb"/topkd-([0-9a-f]{16})-", words)
    return found.group(1).decode() if found else ""


def fill(path):
    """Takes all the room of a file system."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 18, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


class Client:
    """A chaos_client under way, and what it has said."""

    def __init__(self, chaos, mode, life_ms):
        self.mode = mode
        self.said = open(chaos.work / f"client-{chaos.num_clients}", "w+b")
        seed = chaos.rng.getrandbits(48)
        self.name = f"{mode} client {chaos.num_clients} (seed {seed})"
        self.process = subprocess.Popen(
            [chaos.bin / "chaos_client", mode, chaos.url, str(seed), str(life_ms)],
            stdin=subprocess.DEVNULL, stdout=self.said, stderr=subprocess.STDOUT,
            env=chaos.environment())
        self.at = 0
        self.stats = {}
        chaos.names.add(str(self.process.pid))
        chaos.num_clients += 1

    def new_lines(self):
        self.said.seek(self.at)
        data = self.said.read()
        end = data.rfind(b"\n") + 1
        self.at += end
        return data[:end].decode(errors="replace").splitlines()

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def forget(self):
        self.said.close()
        os.unlink(self.said.name)
