"""The HTTP port under those who mean no good: nothing that comes through it harms the daemon."""

import os
import random
import re
import socket
import threading
import time
import unittest

from web import WebTest, until

LINE = b"GET /livez HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"


class Refusals(WebTest):
    def test_what_is_not_a_request_of_ours(self):
        cases = [
            (b"POST /livez HTTP/1.1\r\n" + HOST + b"\r\n", 405),
            (b"DELETE / HTTP/1.1\r\n" + HOST + b"\r\n", 405),
            (b"get /livez HTTP/1.1\r\n" + HOST + b"\r\n", 405),
            (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
            (b"PRI * HTTP/2.0\r\n\r\n", 505),
            (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505),
            (b"GET /\r\n\r\n", 400),
            (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
            (b" GET / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"GET http://127.0.0.1/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (LINE + b"\r\n", 400),  # no host
            (LINE + HOST + HOST + b"\r\n", 400),
            (LINE + HOST + b" folded\r\n\r\n", 400),
            (LINE + HOST + b"Bad Name: x\r\n\r\n", 400),
            (LINE + HOST + b": x\r\n\r\n", 400),
            (LINE + HOST + b"a\r\n\r\n", 400),
            (LINE + HOST + b"a: b\x00c\r\n\r\n", 400),
            (LINE + HOST + b"a: \xff\r\n\r\n", 400),
            (b"GET /livez HTTP/1.1\nHost: 127.0.0.1\n\nx\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),  # a TLS greeting
            (LINE + b"Host: evil.example\r\n\r\n", 421),
            (LINE + b"Host: 127.0.0.1.evil.example\r\n\r\n", 421),
            (LINE + b"Host: localhost:80x\r\n\r\n", 421),
            (LINE + b"Host:\r\n\r\n", 421),
            (LINE + HOST + b"Content-Length: 5\r\n\r\nhello", 413),
            (LINE + HOST + b"Content-Length: -1\r\n\r\n", 413),
            (LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
            (LINE + HOST + b"a: b\r\n" * 64 + b"\r\n", 431),
            (LINE + HOST + b"a: " + b"b" * 9000 + b"\r\n\r\n", 431),
            (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
            (b"GET /" + b"a" * 4000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 404),
            (LINE + b"Host: localhost\r\n\r\n", 200),
            (LINE + b"Host:   LOCALHOST:8080  \r\n\r\n", 200),
            (LINE + b"Host: [::1]:65535\r\n\r\n", 200),
            (LINE + HOST + b"Content-Length: 0\r\n\r\n", 200),
            (LINE + HOST + b"a: b\r\n" * 63 + b"\r\n", 200),
            (b"GET /livez HTTP/1.0\r\n\r\n", 200),
            (b"HEAD /livez HTTP/1.0\r\n\r\n", 200),
        ]
        for data, code in cases:
            self.assertEqual((data[:90], self.raw_code(data)), (data[:90], code))
        self.assertIn(b"\r\nAllow: GET, HEAD\r\n", self.raw(cases[0][0]))
        for head in (b"HEAD /nowhere HTTP/1.0\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n", b"HEAD / HTTP/3.0\r\n\r\n"):
            answer = self.raw(head)
            self.assertRegex(answer, rb"^HTTP/1\.1 (404|400|505) ")
            self.assertTrue(answer.endswith(b"\r\n\r\n"), answer)  # no body

    def test_there_is_no_way_to_a_file(self):
        for path in (
            "/../../../../etc/passwd",
            "/..%2f..%2fetc/passwd",
            "/%2e%2e/etc/passwd",
            "/./metrics",
            "//metrics",
            "/metrics/",
            "/page.js/../metrics",
            "/page/index.html",
            "/METRICS",
            "/metrics%00",
            "/%6detrics",
        ):
            answer = self.raw(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
            self.assertRegex(answer, rb"^HTTP/1\.1 404 Not Found\r\n", path)
            self.assertNotIn(b"root:", answer)
            self.assertIn(b"X-Content-Type-Options: nosniff", answer)

    def test_a_second_request_in_one_connection_is_not_read(self):
        answer = self.raw((LINE + HOST + b"\r\n") * 50)
        self.assertEqual(answer.count(b"HTTP/1.1 "), 1)

    def test_garbage(self):
        seed = int(os.environ.get("TOPKD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
        draw = random.Random(seed)
        good = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"
        for number in range(300):
            data = bytearray(good)
            for _ in range(draw.randrange(1, 6)):
                place = draw.randrange(len(data))
                kind = draw.randrange(3)
                if kind == 0:
                    data[place] = draw.randrange(256)
                elif kind == 1:
                    data.insert(place, draw.choice(b"\r\n \0:/%H\xff"))
                elif len(data) > 20:
                    del data[place]
            connection = self.connect()
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)  # what is not whole will not be
            answer = b""
            try:
                while chunk := connection.recv(65536):
                    answer += chunk
            except ConnectionResetError:
                pass
            connection.close()
            self.assertTrue(
                answer == b"" or re.match(rb"HTTP/1\.1 [2345]\d\d ", answer),
                f"seed {seed}, number {number}: {bytes(data)!r} -> {answer[:80]!r}",
            )
        self.assertEqual(self.code("/readyz"), 200)
        self.assertEqual(self.status()["devices"][0]["restarts"], 0)


class Slow(WebTest):
    http_settings = {"connections_max": 8, "request_ms": 1000}

    def test_a_request_that_does_not_come_is_ended(self):
        begun = self.connect()
        begun.sendall(LINE)
        silent, dripping = self.connect(), self.connect()
        start = time.monotonic()
        for byte in LINE * 10:
            try:
                dripping.sendall(bytes([byte]))
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.05)
            if time.monotonic() - start > 2:
                break
        self.assertEqual(silent.recv(100), b"")
        self.assertRegex(begun.recv(4096), rb"^HTTP/1\.1 408 ")
        try:
            self.assertRegex(dripping.recv(4096), rb"^(HTTP/1\.1 408 |$)")
        except ConnectionResetError:  # bytes were on their way when it was ended
            pass
        self.assertEqual(self.code("/livez"), 200)

    def test_an_answer_that_is_not_taken_is_ended(self):
        before = self.num_descriptors()
        connections = []
        for _ in range(6):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(60)
            connection.connect(("127.0.0.1", self.port))
            self.addCleanup(connection.close)
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            connections.append(connection)
        until(lambda: self.num_descriptors() <= before, "the connections closed")

    def test_a_crowd_of_connections(self):
        before = self.num_descriptors()
        crowd = [self.connect() for _ in range(60)]
        for connection in crowd:
            connection.sendall(b"GET / HT")
        until(lambda: self.metrics()["topkd_http_evicted_total"] >= 50, "evictions")
        self.assertLessEqual(self.num_descriptors(), before + 8 + 2)
        self.assertEqual(self.code("/readyz"), 200)
        ended = 0
        for connection in crowd:
            connection.setblocking(False)
            try:
                ended += connection.recv(100) == b""
            except BlockingIOError:
                pass
            except ConnectionResetError:
                ended += 1
        self.assertGreaterEqual(ended, 50)
        until(lambda: self.num_descriptors() <= before, "all closed")


class Flood(WebTest):
    def memory_kb(self):
        with open(f"/proc/{self.daemon.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1))

    def test_a_flood_is_slowed_down_and_harms_nobody(self):
        for _ in range(50):
            self.get("/metrics")
        before_kb = self.memory_kb()
        start = time.monotonic()
        counts, is_over = [0] * 4, threading.Event()

        def ask(place):
            while not is_over.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
                        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                        while connection.recv(65536):
                            pass
                    counts[place] += 1
                except OSError:
                    pass

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(counts))]
        for thread in threads:
            thread.start()
        try:  # three seconds, longer on a machine that serves few in them
            while (took := time.monotonic() - start) < 3 or (sum(counts) <= 20 and took < 60):
                self.good("devices", *self.url)  # within the ten seconds that it gives itself
        finally:
            is_over.set()
        for thread in threads:
            thread.join()
        took = time.monotonic() - start  # with what was late
        self.assertGreater(sum(counts), 20)
        self.assertLess(sum(counts), took * 200 + 64 + 60)  # the rate and its burst
        # A sanitizer keeps memory that was freed, to notice its use.
        allowed_kb = 8192 if os.environ["SANITIZE"] == "" else 1 << 19
        self.assertLess(self.memory_kb() - before_kb, allowed_kb)
        (device,) = self.status()["devices"]
        self.assertEqual((device["restarts"], device["ready"]), (0, True))


if __name__ == "__main__":
    unittest.main()
