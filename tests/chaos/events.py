"""What happens to daemon and clients: EVENTS has each with its weight.

An event returns nothing; what it began is undone by itself or by `undo_...`.
"""

import os
import resource
import signal
import socket
import struct
import time

from processes import Broken, Client, fill, is_alive, now, num_fds, num_threads

LIVE_CLIENTS = 4  # choice


class Events:
    """Of a class that has the daemon, the clients and the random numbers: Chaos."""

    def event_client(self):
        mode = "flood" if self.rng.random() < 0.2 else "random"
        if len(self.clients) < LIVE_CLIENTS:
            self.clients.append(Client(self, mode, self.rng.randint(50, 4000)))

    def event_client_killed(self):
        if self.clients:
            self.rng.choice(self.clients).kill()

    def event_client_stopped(self):
        if self.clients:
            self.rng.choice(self.clients).kill(signal.SIGSTOP)

    def event_worker_killed(self):
        self.strike(signal.SIGKILL)

    def event_worker_aborted(self):
        self.strike(signal.SIGABRT)

    def event_worker_stopped(self):
        """Only one that has begun to work. Before it has asked the kernel to end with its
        supervisor nobody would end it, stopped, should that be killed next."""
        pid = self.worker()
        if pid and num_threads(pid) > 1:
            self.strike(signal.SIGSTOP)

    def event_client_and_worker_killed(self):
        pid = self.worker()
        if pid and self.clients:
            os.kill(pid, signal.SIGSTOP)
            self.rng.choice(self.clients).kill()
            self.strike(signal.SIGKILL)

    def strike(self, number):
        pid = self.worker()
        if not pid:
            return
        self.note_worker()
        self.expected_deaths += 1
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def event_reload(self):
        if not self.worker():  # so young that it does not look for signals yet
            return
        kind = self.rng.randrange(4)
        if kind == 0:  # refused as a whole
            self.write_config(extra=["nonsense: {of: 1}"])
        elif kind == 1:
            self.config.write_bytes(self.rng.randbytes(200))
        else:
            self.write_config(level=self.rng.choice(["info", "debug"]),
                              limits={"sessions_max": self.rng.randint(16, 40),
                                      "queue_max": self.rng.choice([8, 64, 1024])})
        self.daemon.send_signal(signal.SIGHUP)
        time.sleep(0.05)
        self.write_config()

    def event_daemon_restarted(self):
        if not self.worker():  # so young that it does not look for signals yet
            return
        self.end_daemon(signal.SIGTERM, 0)
        self.start_daemon()

    def event_daemon_killed(self):
        worker = self.worker()
        self.end_daemon(signal.SIGKILL, -signal.SIGKILL)
        end = now() + 10
        while worker and is_alive(worker):
            if now() > end:
                raise Broken(f"worker {worker} outlives its supervisor")
            time.sleep(0.01)
        self.start_daemon()

    def event_disk_full(self):
        """Where the log goes."""
        if not self.options.small_disks:
            return
        fill(self.log_folder / "filler")
        time.sleep(self.rng.uniform(0.2, 2))
        os.unlink(self.log_folder / "filler")
        self.log.truncate(0)

    def event_shm_full(self):
        if not self.options.small_disks or self.filler:
            return
        self.begin_weather("shm_full")
        self.filler = self.shm / "chaos-filler"
        fill(self.filler)
        time.sleep(self.rng.uniform(0.2, 3))
        self.undo_shm_full()

    def undo_shm_full(self):
        if self.filler:
            self.filler.unlink(missing_ok=True)
            self.filler = None
            self.end_weather("shm_full")

    def event_few_descriptors(self):
        """A few more than are open now; the next lives have their usual limit again."""
        pid = self.rng.choice([self.daemon.pid, self.worker()])
        if not pid or self.lowered:
            return
        self.begin_weather("few_descriptors")
        try:
            hard = self.prlimit(pid)[1]
            self.lowered = [pid, hard]
            self.prlimit(pid, (num_fds(pid) + self.rng.randint(0, 4), hard))
        except (OSError, ValueError):
            pass
        time.sleep(self.rng.uniform(0.5, 3))
        self.undo_few_descriptors()

    def undo_few_descriptors(self):
        if not self.lowered:
            return
        pid, hard = self.lowered
        self.lowered = []
        try:
            self.prlimit(pid, (hard, hard))
        except (OSError, ValueError):
            pass
        self.end_weather("few_descriptors")

    @staticmethod
    def prlimit(pid, limits=None):
        if limits is None:
            return resource.prlimit(pid, resource.RLIMIT_NOFILE)
        return resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    def event_clock_jumps(self):
        years = self.rng.choice([-30, -1, 0, 1, 100])
        seconds = years * 365 * 86400 + self.rng.randint(-7200, 7200)
        with open(self.work / "clock", "r+b") as file:
            file.write(struct.pack("=q", seconds * 10**9))

    def event_hostile_bytes(self):
        """Connections that say nonsense, half of something, or a flood whose answers nobody reads."""
        name = self.rng.choice(["topkd.sock", f"{self.options.device}.sock"])
        for _ in range(self.rng.randint(1, 20)):
            raw = socket.socket(socket.AF_UNIX)
            raw.setblocking(False)
            try:
                raw.connect(str(self.folder / name))
                greeting = b"\0SP\0\0\x30\0\0"
                what = self.rng.randrange(5)
                if what == 0:
                    raw.send(self.rng.randbytes(self.rng.randint(1, 5000)))
                elif what == 1:
                    raw.send(greeting[: self.rng.randint(0, 8)])
                else:
                    raw.send(greeting)
                    for _ in range(1 if what < 4 else 500):
                        body = struct.pack(">I", 1 << 31) + self.rng.randbytes(60)
                        size = len(body) + (self.rng.randint(1, 1000) if what == 2 else 0)
                        raw.send(b"\1" + struct.pack(">Q", size) + body)
            except OSError:
                pass
            if self.rng.random() < 0.5:
                raw.close()
            else:
                self.raw_sockets.append(raw)

    EVENTS = [
        ("client", 40), ("client_killed", 10), ("client_stopped", 4), ("worker_killed", 4),
        ("worker_aborted", 1), ("worker_stopped", 1), ("client_and_worker_killed", 2),
        ("reload", 6), ("daemon_restarted", 1.5), ("daemon_killed", 1.5), ("disk_full", 2),
        ("shm_full", 2), ("few_descriptors", 2), ("clock_jumps", 4), ("hostile_bytes", 6),
    ]
