"""One fault after the other, measured: who notices within what time, what another client sees of it,
and when the memory is back. Prints the table of tests/README.md.

    tests/chaos/faults.sh [--build DIR]
"""

import argparse
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

import chaos

ROUNDS = 3  # the median of so many is printed
POLL_S = 0.001
LIMIT_S = 30.0


def ms_until(condition):
    """Milliseconds until the condition holds, which is looked at each millisecond."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > LIMIT_S:
            raise chaos.Broken(f"{condition.__doc__ or condition} did not come to pass")
        time.sleep(POLL_S)
    return (time.monotonic() - begin) * 1000


class Faults(chaos.Chaos):
    """A daemon with a witness; each fault gets a fresh witness, and for some a fresh daemon."""

    def __init__(self, options):
        super().__init__(options)
        self.log_folder.mkdir(exist_ok=True)
        (self.work / "clock").write_bytes(bytes(8))
        self.extra_environment = {}

    def environment(self, with_clock=True):
        return dict(super().environment(with_clock), **self.extra_environment)

    def held(self, pid):
        """Objects in shared memory of a client."""
        return [name for name in os.listdir(self.shm) if name.startswith(f"topkd-held-{pid}-")]

    def of_epoch(self, epoch):
        return [name for name in os.listdir(self.shm) if f"-{epoch:016x}-" in name]

    def client_with_memory(self):
        """A client at work that has registered something."""
        client = chaos.Client(self, "random", 600000)
        ms_until(lambda: len(self.held(client.process.pid)) >= 2)
        return client

    def begin(self):
        self.witness = chaos.Client(self, "steady", 0)
        ms_until(lambda: len(self.held(self.witness.process.pid)) == 1)
        time.sleep(1.0)

    def end(self):
        """What the witness saw: its longest call and its errors."""
        time.sleep(1.5)
        self.witness.kill(signal.SIGTERM)
        self.witness.process.wait(60)
        self.witness.said.seek(0)
        lines = self.witness.said.read().decode(errors="replace").splitlines()
        stats = dict(item.split("=") for item in
                     [line for line in lines if line.startswith("STATS")][-1].split()[1:])
        statuses = sorted({line.split()[2] for line in lines if line.startswith("ERROR")})
        self.witness.forget()
        self.witness = None
        return int(stats["longest_ms"]), int(stats["errors"]), statuses

    # ---- Faults: each returns milliseconds until it was noticed and until the memory was back -----

    def fault_client_killed(self):
        client = self.client_with_memory()
        pid = client.process.pid
        worker = self.worker()
        text = f"/topkd-held-{pid}-"
        client.kill()
        noticed = ms_until(lambda: text not in Path(f"/proc/{worker}/maps").read_text())
        back = noticed + ms_until(lambda: not self.held(pid))
        client.process.wait()
        client.forget()
        return noticed, back

    def restart_of_worker(self, number):
        worker = self.worker()
        epoch = self.devices()[0]["epoch"]
        os.kill(worker, number)
        noticed = ms_until(lambda: not chaos.is_alive(worker))
        back = noticed + ms_until(lambda: not self.of_epoch(epoch))
        return noticed, back

    def fault_worker_killed(self):
        return self.restart_of_worker(signal.SIGKILL)

    def fault_worker_aborted(self):
        return self.restart_of_worker(signal.SIGABRT)

    def fault_worker_stopped(self):
        return self.restart_of_worker(signal.SIGSTOP)

    def fault_client_and_worker_killed(self):
        client = self.client_with_memory()
        pid = client.process.pid
        os.kill(self.worker(), signal.SIGSTOP)
        client.kill()
        noticed = self.restart_of_worker(signal.SIGKILL)[0]
        back = noticed + ms_until(lambda: not self.held(pid))
        client.process.wait()
        client.forget()
        return noticed, back

    def fault_daemon_killed(self):
        worker = self.worker()
        epoch = self.devices()[0]["epoch"]
        self.end_daemon(signal.SIGKILL, -signal.SIGKILL)
        noticed = ms_until(lambda: not chaos.is_alive(worker))
        self.start_daemon()  # as systemd does
        back = noticed + ms_until(lambda: not self.of_epoch(epoch))
        self.wait_ready()
        return noticed, back

    def fault_daemon_restarted(self):
        begin = time.monotonic()
        epoch = self.devices()[0]["epoch"]
        self.end_daemon(signal.SIGTERM, 0)
        noticed = (time.monotonic() - begin) * 1000
        back = noticed if not self.of_epoch(epoch) else noticed + ms_until(
            lambda: not self.of_epoch(epoch))
        self.start_daemon()
        self.wait_ready()
        return noticed, back

    def fault_client_that_never_reads(self):
        import socket
        import struct
        worker = self.worker()
        num_fds = chaos.num_fds(worker)
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(self.folder / f"{self.options.device}.sock"))
        raw.settimeout(0.2)
        raw.send(b"\0SP\0\0\x30\0\0")
        message = struct.pack(">IQ", 1 << 31, 0) + bytes(52)
        try:
            while True:
                raw.send(b"\1" + struct.pack(">Q", len(message)) + message)
        except OSError:
            pass
        noticed = ms_until(lambda: chaos.num_fds(worker) <= num_fds)
        raw.close()
        return noticed, noticed

    def fault_shm_full(self):
        client = self.client_with_memory()
        self.filler = self.shm / "chaos-filler"
        chaos.fill(self.filler)
        begin = time.monotonic()
        while b"NO_MEMORY" not in Path(client.said.name).read_bytes():
            time.sleep(POLL_S)
            if time.monotonic() - begin > LIMIT_S:
                raise chaos.Broken("nobody noticed that /dev/shm is full")
        noticed = (time.monotonic() - begin) * 1000
        self.undo_shm_full()
        client.kill()
        back = noticed + ms_until(lambda: not self.held(client.process.pid))
        client.process.wait()
        client.forget()
        return noticed, back

    def by_environment(self, text):
        """A daemon whose worker meets this fault; later ones do too, so that only one is let live."""
        self.end_daemon(signal.SIGTERM, 0)
        self.extra_environment = {"TOPKD_TEST_FAULT": text}
        self.start_daemon()
        self.extra_environment = {}
        self.wait_ready()
        worker = self.worker()
        epoch = self.devices()[0]["epoch"]
        self.witness.kill()
        self.witness.process.wait()
        self.witness.forget()
        self.witness = chaos.Client(self, "steady", 0)
        log = self.log_folder / "daemon.log"
        size = log.stat().st_size
        mark = b" test_fault " if not text.startswith("canary") else b" canary_wrong "
        ms_until(lambda: mark in log.read_bytes()[size:])
        noticed = ms_until(lambda: not chaos.is_alive(worker))
        back = noticed + ms_until(lambda: not self.of_epoch(epoch))
        self.end_daemon(signal.SIGTERM, 0)
        self.start_daemon()
        self.wait_ready()
        return noticed, back

    def fault_device(self):
        return self.by_environment("device@300")

    def fault_loop_hangs(self):
        return self.by_environment("hang@300")

    def fault_canary_wrong(self):
        return self.by_environment("canary@4")

    FAULTS = [
        ("client_killed", "a client is killed, with regions and requests in flight"),
        ("client_that_never_reads", "a client floods and reads no reply (no session: `hello_ms`)"),
        ("client_and_worker_killed", "a client and its worker are killed together"),
        ("worker_killed", "the worker is killed"),
        ("worker_aborted", "the worker aborts"),
        ("worker_stopped", "the worker stands still (SIGSTOP)"),
        ("loop_hangs", "the worker's loop hangs"),
        ("device", "the device reports a sticky error"),
        ("canary_wrong", "selections come out wrong (from the canary that sees it)"),
        ("daemon_killed", "the supervisor is killed; a new one starts at once"),
        ("daemon_restarted", "SIGTERM, then a new daemon: an upgrade"),
        ("shm_full", "/dev/shm is full"),
    ]

    def measure(self, name):
        noticed, back, longest, errors, statuses = [], [], [], 0, set()
        for _ in range(ROUNDS):
            self.begin()
            one = getattr(self, f"fault_{name}")()
            self.wait_ready()
            seen = self.end()
            noticed.append(one[0])
            back.append(one[1])
            longest.append(seen[0])
            errors += seen[1]
            statuses.update(seen[2])
        text = f"{errors} errors ({', '.join(sorted(statuses))})" if errors else "no error"
        return (statistics.median(noticed), statistics.median(back), statistics.median(longest),
                text)

    def print_table(self, only):
        print("| fault | noticed | another client: longest call, errors | memory back |")
        print("|---|---|---|---|")
        self.write_config()
        self.start_daemon()
        self.wait_ready()
        for name, text in self.FAULTS:
            if only and name not in only:
                continue
            if name == "shm_full" and not self.options.small_disks:
                print(f"| {text} | not measured: needs a mount namespace | | |")
                continue
            noticed, back, longest, errors = self.measure(name)
            print(f"| {text} | {noticed:.0f} ms | {longest:.0f} ms, {errors} | {back:.0f} ms |",
                  flush=True)
        self.end_daemon(signal.SIGTERM, 0)


def main():
    parser = argparse.ArgumentParser(prog="faults.py")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small-disks", action="store_true")
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    options.mark, options.seed, options.clock, options.preload = "faults", 1, None, None
    options.quiet = True
    faults = Faults(options)
    faults.rng = random.Random(1)
    try:
        faults.print_table(options.only)
    finally:
        faults.clean_up()
    return 0


if __name__ == "__main__":
    sys.exit(main())
