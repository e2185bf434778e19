"""MetricsListener: answers GET /metrics on a socket, on threads of its own."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

__all__ = ["MetricsListener"]

# A scraper that sends nothing, or reads nothing, must not keep a thread.
PEER_TIMEOUT_S = 10.0
# Further connections are closed: each has a thread, and a slow one may last.
CONNECTIONS_MAX = 16
POLL_S = 0.5


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves each connection on a thread that ends with the process."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.free = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread, if there are not too many."""
        if not self.free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()


class SilentHandler(WSGIRequestHandler):
    """Logs no requests, and gives up a silent peer."""

    timeout = PEER_TIMEOUT_S

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a scrape comes every few seconds."""


class MetricsListener:
    """One HTTP listener. Any path answers with the metrics, as prometheus_client's own server does."""

    def __init__(self, listener: socket.socket, collector: Collector) -> None:
        """Answer on *listener*, which is bound, with what *collector* says."""
        registry = CollectorRegistry()
        registry.register(collector)
        host, port = listener.getsockname()[:2]
        self.server = MetricsServer((host, port), SilentHandler, bind_and_activate=False)
        self.server.socket.close()
        self.server.socket = listener
        self.server.server_name, self.server.server_port = host, port
        self.server.setup_environ()
        self.server.set_app(make_wsgi_app(registry))
        self.thread = threading.Thread(
            target=self.server.serve_forever, args=(POLL_S,), name="reput-metrics", daemon=True
        )
        self.thread.start()

    def close(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
