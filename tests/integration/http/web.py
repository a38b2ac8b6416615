"""A daemon with HTTP pages, and ways to ask them: politely, and byte by byte."""

import http.client
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "topkctl"))
from tool import TOPKCTL, Daemon, ToolTest, until  # noqa: E402, F401


def held_port(test):
    """A port that nobody else is given until the test ends; the daemon, which shares, may listen."""
    holder = socket.socket()
    test.addCleanup(holder.close)
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from now on, and not while it drew
    return holder.getsockname()[1]


class WebTest(ToolTest):
    """A test whose daemon, self.daemon, has its pages at self.port."""

    settings = ""  # further lines of the configuration
    http_settings = {}

    def setUp(self):
        super().setUp()
        self.port = held_port(self)
        self.write_settings()
        self.daemon = Daemon(self, "--config", os.path.abspath("topkd.yaml"))
        self.url = ("--url", self.daemon.url)

    def write_settings(self, **changes):
        values = {"port": self.port, **self.http_settings, **changes}
        inner = ", ".join(f"{key}: {value}" for key, value in values.items())
        with open("topkd.yaml", "w", encoding="utf-8") as file:
            file.write(f"http: {{{inner}}}\n{self.settings}")

    def get(self, path, method="GET", timeout=60):
        """The answer and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def code(self, path):
        return self.get(path)[0].status

    def status(self):
        answer, body = self.get("/status.json")
        self.assertEqual(answer.status, 200)
        return json.loads(body)

    def metrics(self):
        """{'name{labels}': value}"""
        answer, body = self.get("/metrics")
        self.assertEqual(answer.status, 200)
        lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def connect(self, timeout=60):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        self.addCleanup(connection.close)
        return connection

    def raw(self, data, timeout=60):
        """Sends bytes; returns everything that comes until the connection ends."""
        connection = self.connect(timeout)
        received = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                received += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        connection.close()
        return received

    def raw_code(self, data):
        """The status code of the answer, 0 when there is none."""
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", self.raw(data))
        return int(found.group(1)) if found else 0

    def num_descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))

    def worker_pid(self):
        (device,) = self.good_json("devices", *self.url)["devices"]
        return device["pid"]

    def stop_worker(self):
        """Stops the worker's process; it goes on when the test ends."""
        pid = self.worker_pid()
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: os.path.exists(f"/proc/{pid}") and os.kill(pid, signal.SIGCONT))
        return pid
