"""run_console: serves a console on a socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ipaddress
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from reput.console.application import Console
from reput.errors import ConfigError

__all__ = ["require_network", "run_console", "uvicorn_config"]

# Pages that stay open are streams without an end.
SHUTDOWN_S = 1
CONNECTIONS_MAX = 200


def run_console(
    console: Console,
    listener: socket.socket,
    cert: Path | None,
    key: Path | None,
    proxy: str | None = None,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve *console* on *listener*, which is bound; over TLS if there is a certificate.

    Args:
        proxy: address or network whose ``X-Forwarded-For`` is believed; None: no proxy is in front of the console.
        on_ready: is called when clients are answered, and a signal ends the console in good order.

    Raises:
        ConfigError: the certificate cannot be used, or *proxy* is no address.
    """
    config = uvicorn_config(console.guard, cert, key, proxy)
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate cannot be used: cert={cert} key={key} error={error}") from None
    server = ReadyServer(config, on_ready)

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    # The server takes signals while it runs, and raises them again at its end: then this has been asked for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[listener])


class ReadyServer(uvicorn.Server):
    """A server that says when it answers clients, and a signal ends it in good order."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self.on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_ready is not None:
            self.on_ready()


def uvicorn_config(
    application: Callable[..., Any], cert: Path | None, key: Path | None, proxy: str | None
) -> uvicorn.Config:
    """Return the server's configuration.

    Raises:
        ConfigError: *proxy* is neither an address nor a network.
    """
    if proxy is not None:
        require_network(proxy)
    return uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy or "",
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=None if cert is None else str(cert),
        ssl_keyfile=None if key is None else str(key),
    )


def require_network(proxy: str) -> None:
    """Raise ConfigError unless *proxy* is an address or a network."""
    try:
        ipaddress.ip_network(proxy)
    except ValueError:
        raise ConfigError(
            f"the proxy is neither an address nor a network: proxy={proxy}", "Write it like 10.0.0.7 or 10.0.0.0/24."
        ) from None
