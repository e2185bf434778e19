"""The page about brokers: who follows them, and where quotas bite. Of a store, the broker that serves it is asked."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reput.client.administration import BrokerReplication, BrokerRow
from reput.console.console_context import ConsoleContext

__all__ = ["BrokerPages"]


class BrokerPages:
    """The handlers of one console."""

    def __init__(self, console: ConsoleContext) -> None:
        self.console = console

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/brokers", self.brokers)]

    def brokers(self, request: Request) -> Response:
        """Show the brokers with their followers and quotas."""
        client = self.console.target.broker()
        rows: list[BrokerRow] = []
        replication: list[BrokerReplication] = []
        if client is not None:
            rows = client.administration.brokers()
            replication = client.administration.replication()
        return self.console.page(
            request,
            "brokers.html",
            "Brokers",
            rows=rows,
            replication=replication,
            quotas=[(row, refused_of(row)) for row in rows if "quotaRefusedNums" in (row.runtime or {})],
        )


def refused_of(row: BrokerRow) -> list[tuple[str, str, int]]:
    """Return kind, name and refused requests of what a broker's quotas refused most often."""
    found = []
    for word in (row.runtime or {}).get("quotaRefused", "").split():
        subject, _, count = word.rpartition(":")
        kind, _, name = subject.partition("=")
        found.append((kind, name, int(count) if count.isdigit() else 0))
    return found
