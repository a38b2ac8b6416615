"""The chaos test: a daemon, clients, faults drawn from a seed, and what must hold all the while.

Started by run.sh, in a mount namespace of its own where that can be had. README.md says what
happens and what is checked.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from events import Events
from processes import (Broken, Client, anonymous_kib, children_of, instance_of, is_alive,
                       num_client_mappings, num_fds, now)

# Choices. A busy machine may hold up anything for a second or two.
SETTLE_S = 30.0  # after the last fault, all that clients and dead workers held is back
CALM_EVERY_S = 20.0  # between two looks at what is held
GRACE_S = 10.0  # a call that began under a fault may report it so much later
READY_S = 60.0  # a daemon is ready
GROWTH_KIB = {"supervisor": 16 << 10, "worker": 64 << 10}  # over the first calm moment
GROWTH_GPU_KIB = 512 << 10  # of a GPU's worker: the driver's part of each shape's graph
DEVICE_GROWTH_BYTES = 256 << 20  # graphs and workspaces of new shapes stay with the worker

# What a call may report while a fault lasts; nothing is to be seen of the others.
WEATHER = {
    "shm_full": {"TOPKD_E_NO_MEMORY", "TOPKD_E_UNREACHABLE", "TOPKD_E_STALE_SESSION",
                 "TOPKD_E_TIMEOUT", "TOPKD_E_MAP_FAILED", "TOPKD_E_SYSTEM"},
    "few_descriptors": {"TOPKD_E_NO_MEMORY", "TOPKD_E_UNREACHABLE", "TOPKD_E_STALE_SESSION",
                        "TOPKD_E_TIMEOUT", "TOPKD_E_MAP_FAILED", "TOPKD_E_SYSTEM",
                        "TOPKD_E_LIMIT"},
    "device_fault": {"TOPKD_E_DEVICE_FAULT", "TOPKD_E_SYSTEM", "TOPKD_E_NOT_VISIBLE"},
}
# The witness does nothing but wait for its answers: a queue that others fill is no error of its
# own, and any restart ends within its deadline.
WITNESS_ALWAYS = {"TOPKD_E_BUSY"}
# The others have short deadlines, and meet each other.
RANDOM_ALWAYS = {"TOPKD_E_BUSY", "TOPKD_E_TIMEOUT", "TOPKD_E_STALE_SESSION", "TOPKD_E_DRAINING",
                 "TOPKD_E_UNREACHABLE", "TOPKD_E_LIMIT", "TOPKD_E_CANCELLED",
                 "TOPKD_E_DEVICE_FAULT"}


class Chaos(Events):
    """A daemon, its clients, and what must hold while faults come."""

    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        self.bin = Path(options.bin)
        self.work = Path(options.work)
        self.shm = Path("/dev/shm")
        self.folder = self.work / "run"
        self.url = f"ipc://{self.folder}/topkd.sock"
        self.config = self.work / "topkd.yaml"
        self.log_folder = self.work / "log"  # small, when it could be mounted
        self.log = None
        self.num_clients = 0
        self.clients = []
        self.witness = None
        self.daemon = None
        self.base = None  # of the first calm moment
        self.peak = {"supervisor_kib": 0, "worker_kib": 0}
        self.device_free = 0
        self.weather = []  # (kind, begin, end or None)
        self.counts = {}
        self.errors = {}
        self.totals = {"calls": 0, "right": 0, "errors": 0}
        self.worker_pid = 0
        self.expected_deaths = 0  # of workers, by our hand, since the last look
        self.num_worker_lives = 0
        self.names = set()  # whose objects in shared memory are of this run: daemons and clients
        self.filler = None
        self.lowered = []
        self.raw_sockets = []
        self.num_calm = 0

    # ---- Processes -----------------------------------------------------------------------------

    def environment(self, with_clock=True):
        result = dict(os.environ, TOPKD_CHAOS_RUN=self.options.mark,
                      TOPKD_CHAOS_CLOCK=str(self.work / "clock"))
        preload = [str(self.options.clock)] if with_clock and self.options.clock else []
        if self.options.preload:
            preload.append(self.options.preload)
        if preload:
            result["LD_PRELOAD"] = ":".join(preload)
        return result

    def write_config(self, **changes):
        limits = {"sessions_max": 24, "connections_max": 96, "hello_ms": 1000,
                  "registrations_per_s": 2000}
        limits.update(changes.get("limits", {}))
        lines = [
            f"socket: {{directory: {self.folder}}}",
            f"devices: [{{device: {self.options.device}}}]",
            "buckets: [{rows: 1, width: 1024, k: 64}]",
            "worker: {heartbeat_ms: 100, hang_ms: 3000, canary_interval_ms: 500, "
            "restart_min_ms: 20, restart_max_ms: 500}",
            "drain: {deadline_ms: 2000}",
            "log: {level: %s, rate_per_s: 100}" % changes.get("level", "info"),
            "limits: {%s}" % ", ".join(f"{key}: {value}" for key, value in limits.items()),
        ]
        lines += changes.get("extra", [])
        self.config.write_text("\n".join(lines) + "\n")

    def start_daemon(self):
        self.log = open(self.log_folder / "daemon.log", "ab")
        self.daemon = subprocess.Popen(
            [self.bin / "topkd", "--config", self.config, "--allow-shared-pid1"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.environment())
        self.worker_pid = 0
        self.expected_deaths = 0

    def end_daemon(self, number, expected):
        self.daemon.send_signal(number)
        try:
            code = self.daemon.wait(READY_S)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"the daemon did not end within {READY_S:.0f} s of signal {number}") \
                from error
        if code != expected:
            raise Broken(f"the daemon ended with {code} at signal {number}, expected {expected}")
        self.log.close()
        self.daemon = None

    def worker(self):
        """The pid of the present worker, 0 while there is none."""
        workers = [pid for pid in children_of(self.daemon.pid) if is_alive(pid)]
        return workers[0] if workers else 0

    def devices(self):
        done = subprocess.run(
            [self.bin / "topkctl", "--url", self.url, "--timeout", "5", "devices", "--json"],
            capture_output=True, timeout=30, check=False, env=self.environment(False))
        if done.returncode != 0:
            return None
        return json.loads(done.stdout)["devices"]

    def wait_ready(self):
        end = now() + READY_S
        while now() < end:
            if self.daemon.poll() is not None:
                raise Broken(f"the daemon ended with {self.daemon.returncode} by itself")
            devices = self.devices()
            if devices and all(device["state"] == "ready" for device in devices):
                return
            time.sleep(0.1)
        raise Broken(f"no ready device within {READY_S:.0f} s")

    def sweep_stand_in(self):
        """The stand-in for the driver leaves the device memory of processes that were killed."""
        for name in os.listdir(self.shm):
            if name.startswith("fakecuda-") and not os.path.exists(f"/proc/{name.split('-')[1]}"):
                (self.shm / name).unlink(missing_ok=True)

    def note_worker(self):
        """Counts lives of workers; one that died by itself is a failure."""
        pid = self.worker()
        if pid in (0, self.worker_pid):
            return
        if self.worker_pid != 0 and self.expected_deaths == 0 and not self.is_bad_weather(
                "shm_full", "few_descriptors", "device_fault"):
            raise Broken(f"worker {self.worker_pid} died of itself")
        self.expected_deaths = 0
        self.worker_pid = pid
        self.num_worker_lives += 1
        self.names.add(instance_of(pid))

    # ---- Weather -------------------------------------------------------------------------------

    def begin_weather(self, kind):
        self.weather.append([kind, now(), None])

    def end_weather(self, kind):
        for entry in self.weather:
            if entry[0] == kind and entry[2] is None:
                entry[2] = now()

    def is_bad_weather(self, *kinds):
        return any(entry[0] in kinds and (entry[2] is None or now() - entry[2] < GRACE_S)
                   for entry in self.weather)

    def is_excused(self, status, at, always):
        if status in always:
            return True
        return any(status in WEATHER.get(kind, ()) and begin <= at and
                   (end is None or at <= end + GRACE_S + 60)
                   for kind, begin, end in self.weather)

    # ---- Clients -------------------------------------------------------------------------------

    def hear(self, client):
        always = WITNESS_ALWAYS if client is self.witness else RANDOM_ALWAYS
        for line in client.new_lines():
            word, _, rest = line.partition(" ")
            if word == "STATS":
                client.stats = dict(item.split("=") for item in rest.split())
            elif word == "ERROR":
                at, status, detail = (rest.split(" ", 2) + [""])[:3]
                self.errors[status] = self.errors.get(status, 0) + 1
                if not self.is_excused(status, int(at) / 1000, always):
                    raise Broken(f"{client.name}: {status}: {detail}")
            elif word == "WRONG":
                raise Broken(f"{client.name}: {line}")
            elif word != "NOTE":
                raise Broken(f"{client.name} says: {line}")

    def close_book(self, client):
        """The client has ended: what it counted, and how it ended."""
        self.hear(client)
        for key in self.totals:
            self.totals[key] += int(client.stats.get(key, 0))
        code = client.process.returncode
        if code not in (0, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM):
            raise Broken(f"{client.name} ended with {code}")
        client.forget()

    def tend_clients(self):
        self.hear(self.witness)
        if self.witness.process.poll() is not None:
            raise Broken(f"the witness ended with {self.witness.process.returncode}")
        for client in list(self.clients):
            self.hear(client)
            if client.process.poll() is not None:
                self.close_book(client)
                self.clients.remove(client)

    def end_clients(self):
        for client in self.clients:
            client.kill()
        for client in self.clients:
            client.process.wait()
        self.tend_clients()
        for raw in self.raw_sockets:
            raw.close()
        self.raw_sockets.clear()

    # ---- The course of a run --------------------------------------------------------------------

    def step(self):
        names = [name for name, _ in self.EVENTS if name not in self.options.without]
        weights = [weight for name, weight in self.EVENTS if name not in self.options.without]
        name = self.rng.choices(names, weights)[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        getattr(self, f"event_{name}")()
        time.sleep(self.rng.uniform(0, 0.3))
        if self.daemon.poll() is not None:
            raise Broken(f"the daemon ended with {self.daemon.returncode} by itself")
        self.note_worker()
        self.tend_clients()
        if self.options.preload:
            self.sweep_stand_in()

    # ---- What must hold ------------------------------------------------------------------------

    def look(self):
        """What daemon and machine hold now, as far as it must return."""
        worker = self.worker()
        stats = self.worker_stats()
        self.names.add(instance_of(worker))
        return {
            "supervisor_fds": num_fds(self.daemon.pid),
            "worker_fds": num_fds(worker),
            "supervisor_children": len(children_of(self.daemon.pid)),
            "client_mappings": num_client_mappings(worker),
            "shm_objects": self.shm_objects(),
            "sockets": sorted(os.listdir(self.folder)),
            "sessions": stats["sessions"],
            "regions": stats["regions"],
            "mapped_bytes": stats["mapped_bytes"],
            "in_flight_of_others": max(0, stats["queued"] + stats["running"] - 1),
            "leases_of_others": max(0, stats["leases"] - 1),
        }

    def worker_stats(self):
        done = subprocess.run(
            [self.bin / "topkctl", "--url", self.url, "--timeout", "5", "stats", "--json"],
            capture_output=True, timeout=30, check=False, env=self.environment(False))
        if done.returncode != 0:
            raise OSError(done.stderr.decode(errors="replace"))
        return json.loads(done.stdout)["devices"][0]

    def shm_objects(self):
        """By kind, since names have random parts. Where /dev/shm is not of this run alone, others
        come and go there, too."""
        kinds = {}
        for name in os.listdir(self.shm):
            owner = name.removeprefix("topkd-held-").removeprefix("topkd-").partition("-")[0]
            if name.startswith("topkd-") and (self.options.small_disks or owner in self.names):
                kind = "held" if name.startswith("topkd-held-") else name.rsplit("-", 1)[-1]
                kinds[kind] = kinds.get(kind, 0) + 1
        return kinds

    def calm(self):
        """No client but the witness, no fault: everything that was taken is back."""
        self.undo_shm_full()
        self.undo_few_descriptors()
        self.end_clients()
        self.write_config()
        self.wait_ready()  # it may be so young that the signal would end it
        self.daemon.send_signal(signal.SIGHUP)
        self.wait_ready()
        self.note_worker()
        end = now() + SETTLE_S
        found = {}
        while True:
            self.tend_clients()
            try:
                found = self.look()
                if self.base is None and found["sessions"] == 1 and found["regions"] == 1:
                    time.sleep(1)
                    self.base = self.look()
            except (OSError, KeyError) as error:
                found = {"unreadable": str(error)}
            if self.base is not None and "kib" not in self.base:
                self.base["kib"] = {"supervisor": anonymous_kib(self.daemon.pid),
                                    "worker": anonymous_kib(self.worker())}
                break
            if self.base and all(self.holds(key, value) for key, value in found.items()):
                break
            if now() > end:
                want = {key: value for key, value in (self.base or {}).items() if key != "kib"}
                bad = {key: (value, want.get(key)) for key, value in found.items()
                       if not self.base or not self.holds(key, value)}
                raise Broken(f"not all is back after {SETTLE_S:.0f} s (found, wanted): {bad}")
            time.sleep(0.2)
        self.check_memory()
        self.num_calm += 1

    def holds(self, key, value):
        want = self.base.get(key)
        if key in ("supervisor_fds", "worker_fds"):
            return value <= want
        return value == want

    def check_memory(self):
        for name, pid in (("supervisor", self.daemon.pid), ("worker", self.worker())):
            kib = anonymous_kib(pid)
            self.peak[f"{name}_kib"] = max(self.peak[f"{name}_kib"], kib)
            growth = GROWTH_KIB[name]
            if name == "worker" and self.options.device != "cpu":
                growth = GROWTH_GPU_KIB
            limit = self.base["kib"][name] + growth
            if kib > limit:
                raise Broken(f"the {name} has {kib} KiB of its own, {limit} are allowed")
        free = int(self.witness.stats.get("device_free_bytes", 0))
        if free:
            if self.device_free and free < self.device_free - DEVICE_GROWTH_BYTES:
                raise Broken(f"device memory: {free} bytes free, at first {self.device_free}")
            self.device_free = self.device_free or free

    def check_nothing_left(self):
        if self.folder.exists():
            left = [name for name in os.listdir(self.folder) if name != "topkd.lock"]
            if left:
                raise Broken(f"left in the runtime folder: {left}")
        if self.shm_objects():
            raise Broken(f"left in shared memory: {self.shm_objects()}")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                name = (entry / "comm").read_text().strip()
            except OSError:
                continue
            if f"TOPKD_CHAOS_RUN={self.options.mark}".encode() in environment and is_alive(
                    int(entry.name)):
                raise Broken(f"process {entry.name} ({name}) is left")

    # ---- The run -------------------------------------------------------------------------------

    def run(self):
        begin = now()
        end = begin + self.options.minutes * 60
        self.log_folder.mkdir(exist_ok=True)
        (self.work / "clock").write_bytes(bytes(8))
        self.write_config()
        self.start_daemon()
        self.wait_ready()
        self.witness = Client(self, "steady", 0)
        self.calm()
        while now() < end:
            calm_at = min(end, now() + CALM_EVERY_S)
            while now() < calm_at:
                self.step()
            self.calm()
            if not self.options.quiet:
                print(f"chaos: {now() - begin:.0f} s, {sum(self.counts.values())} events, "
                      f"{self.num_worker_lives} worker lives, "
                      f"witness {self.witness.stats.get('right', 0)} right, "
                      f"p99 {self.witness.stats.get('p99_us', 0)} us", flush=True)
        self.witness.kill(signal.SIGTERM)
        if self.witness.process.wait(60) != 0:
            raise Broken(f"the witness ended with {self.witness.process.returncode}")
        witness = dict(self.witness.stats)
        self.close_book(self.witness)
        self.end_daemon(signal.SIGTERM, 0)
        self.check_nothing_left()
        return witness

    def clean_up(self):
        self.undo_few_descriptors()
        self.undo_shm_full()
        for client in self.clients + ([self.witness] if self.witness else []):
            client.kill(signal.SIGKILL)
            client.process.wait()
        if self.daemon and self.daemon.poll() is None:
            self.daemon.terminate()
            try:
                self.daemon.wait(20)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()

    def summary(self, witness, failure, seconds):
        return {
            "ok": failure is None,
            "failure": failure,
            "seed": self.options.seed,
            "device": self.options.device,
            "seconds": round(seconds),
            "small_disks": self.options.small_disks,
            "clock": bool(self.options.clock),
            "events": dict(sorted(self.counts.items())),
            "clients": self.num_clients,
            "worker_lives": self.num_worker_lives,
            "calm_moments": self.num_calm,
            "calls": self.totals["calls"],
            "right": self.totals["right"],
            "refused": dict(sorted(self.errors.items())),
            "witness": witness,
            "memory_kib": {"first": (self.base or {}).get("kib"), "peak_when_calm": self.peak},
        }


def main():
    parser = argparse.ArgumentParser(prog="chaos.py")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--mark", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--clock")
    parser.add_argument("--preload")
    parser.add_argument("--small-disks", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.quiet = options.json
    chaos = Chaos(options)
    begin = now()
    failure, witness = None, {}
    try:
        witness = chaos.run()
    except (Broken, OSError, ValueError, subprocess.SubprocessError) as error:
        failure = f"{type(error).__name__}: {error}"
    finally:
        chaos.clean_up()
    summary = chaos.summary(witness, failure, now() - begin)
    if options.json:
        print(json.dumps(summary))
    else:
        for key, value in summary.items():
            print(f"chaos: {key}: {value}")
    if failure is not None:
        print(f"chaos: FAILED (repeat with --seed {options.seed}): {failure}", file=sys.stderr)
        log = chaos.log_folder / "daemon.log"
        if log.exists():
            print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
