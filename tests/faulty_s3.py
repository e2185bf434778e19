"""An object store that fails on demand: a proxy in front of the local S3 server, in a process of its own.

Requests that change something (PUT, POST, DELETE) are counted. A fault is given to those with the chosen numbers:

    refused     403, and nothing changes
    busy        503, and nothing changes
    failed      500, and nothing changes
    lost        the change is made; the connection ends without an answer
    late        the change is made; the answer is 500
    slow        the change is made; the answer comes after the client has given up
    reset       the connection is reset in the middle of the request; nothing changes
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from local_s3 import local_s3

__all__ = ["FAULTS", "FaultyS3", "faulty_s3"]

FAULTS = ("refused", "busy", "failed", "lost", "late", "slow", "reset")
STATUSES = {"refused": (403, "AccessDenied"), "busy": (503, "SlowDown"), "failed": (500, "InternalError")}
# The client tries twice more, a few ms later.
CLIENT = {
    "max_retries": "2",
    "backoff_config.init_backoff": "5ms",
    "backoff_config.max_backoff": "10ms",
}
# The client gives up after the first; the answer would come after the second.
PATIENCE_SECONDS, SLOW_SECONDS = 2, 3
# The system refuses to wait for the rest: it sends a reset.
RESET = struct.pack("ii", 1, 0)


class FaultyS3:
    """The proxy, as the test sees it."""

    def __init__(self, storage_options: dict[str, str], process: subprocess.Popen[str]) -> None:
        self.storage_options = storage_options
        self.process = process

    def ask(self, **asked: Any) -> list[str]:
        """Send the proxy an order, and return the changes that it has seen since the last one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        found: list[str] = json.loads(self.process.stdout.readline())
        return found

    def impatient(self) -> dict[str, str]:
        """Return the settings for a client that does not wait for slow answers."""
        return {**self.storage_options, "timeout": f"{PATIENCE_SECONDS}s"}

    def fail(self, fault: str, first: int = 0, count: int = 1 << 30, within: str = "") -> None:
        """Give *fault* to *count* of the changes whose address has *within*, from the one with number *first* on."""
        self.ask(fault=fault, first=first, count=count, within=within)

    def work(self) -> list[str]:
        """Give no more faults, and return the changes that were asked for since the last order."""
        return self.ask()


@contextlib.contextmanager
def faulty_s3(bucket: str) -> Iterator[FaultyS3]:
    """Yield an S3 with one bucket, without any fault at first."""
    with local_s3(bucket) as options:
        address = options["AWS_ENDPOINT_URL"]
        # Not in this process: the Delta library may hold the interpreter lock while it waits for an answer.
        command = [sys.executable, __file__, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            try:
                found = f"http://127.0.0.1:{int(proxy.stdout.readline())}"
                yield FaultyS3({**options, **CLIENT, "AWS_ENDPOINT_URL": found}, proxy)
            finally:
                proxy.kill()


class Proxy(ThreadingHTTPServer):
    """The server, with the fault that it gives now."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        found = urlsplit(behind)
        self.behind = (found.hostname or "", found.port or 0)
        self.lock = threading.Lock()
        self.order: dict[str, Any] = {}
        self.changes: list[str] = []

    def fault_of(self, change: str) -> str | None:
        """Count a change, and return its fault."""
        with self.lock:
            self.changes.append(change)
            within, first = self.order.get("within", ""), self.order.get("first", 0)
            if within not in change:
                return None
            number = sum(within in seen for seen in self.changes) - 1
            return self.order.get("fault") if first <= number < first + self.order.get("count", 0) else None

    def obey(self, order: dict[str, Any]) -> list[str]:
        """Take an order, and return the changes before it."""
        with self.lock:
            changes, self.changes, self.order = self.changes, [], order
            return changes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a client may end its connection at any time."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        """Pass a request on, unless it has a fault."""
        size = int(self.headers.get("Content-Length") or 0)
        fault = None if self.command in ("GET", "HEAD") else self.server.fault_of(f"{self.command} {self.path}")
        if fault == "reset":
            self.rfile.read(size // 2)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.end()
            return
        body = self.rfile.read(size)
        if fault in STATUSES:
            self.answer(*error(*STATUSES[fault]))
            return
        answer = self.passed_on(body)
        if fault == "lost":
            self.end()
        elif fault == "late":
            self.answer(*error(*STATUSES["failed"]))
        elif fault == "slow":
            time.sleep(SLOW_SECONDS)
            self.end()
        else:
            self.answer(*answer)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the answer of the server behind."""
        connection = http.client.HTTPConnection(*self.server.behind)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            found = connection.getresponse()
            data = found.read()
            return found.status, found.getheaders(), data
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer."""
        own = ("connection", "transfer-encoding", "date", "server")
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in own and (name.lower() != "content-length" or self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end(self) -> None:
        """End the connection without an answer."""
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def error(status: int, code: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return an answer that refuses."""
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>a fault</Message></Error>'
    return status, [("Content-Type", "application/xml")], text.encode()


def main() -> None:
    """Serve, and take orders from the test until it ends."""
    proxy = Proxy(sys.argv[1])
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    print(proxy.server_address[1], flush=True)
    for line in sys.stdin:
        print(json.dumps(proxy.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
