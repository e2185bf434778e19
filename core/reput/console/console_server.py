"""run_console: serves a console on a socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import uvicorn

from reput.console.application import Console
from reput.errors import ConfigError

__all__ = ["run_console"]

# Pages that stay open are streams without an end.
SHUTDOWN_S = 1
CONNECTIONS_MAX = 200


def run_console(console: Console, listener: socket.socket, cert: Path | None, key: Path | None) -> None:
    """Serve *console* on *listener*, which is bound; over TLS if there is a certificate.

    Raises:
        ConfigError: the certificate cannot be used.
    """
    config = uvicorn.Config(
        console.guard,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=None if cert is None else str(cert),
        ssl_keyfile=None if key is None else str(key),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate cannot be used: cert={cert} key={key} error={error}") from None
    server = uvicorn.Server(config)

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    # The server takes signals while it runs, and raises them again at its end: then this has been asked for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[listener])
