"""Console: the application, which joins target, pages, live feed and guard."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from reput.console.accounts import Accounts
from reput.console.audit_log import AuditLog
from reput.console.broker_pages import BrokerPages
from reput.console.console_context import FOLDER, ConsoleContext
from reput.console.console_target import ConsoleStore, ConsoleTarget
from reput.console.guard import COOKIE, Guard, refuse
from reput.console.pages import Pages
from reput.console.store_pages import StorePages
from reput.errors import ConfigError, ReputError, RequestRefused
from reput.metrics.store_collector import ShownSeries, StoreCollector

__all__ = ["LOOPBACK_HOSTS", "Console"]

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})

logger = logging.getLogger("reput.console")


class Console(ConsoleContext):
    """One console. `guard` is its ASGI application."""

    def __init__(
        self,
        target: ConsoleTarget,
        *,
        accounts: Accounts | None = None,
        hosts: frozenset[str] = LOOPBACK_HOSTS,
        cookie: str = COOKIE,
        audit: AuditLog | None = None,
    ) -> None:
        """Show *target* to those who log in with *accounts*; None: to every client.

        Args:
            hosts: names under which it may be asked; empty: any.
            cookie: name of the one that holds a browser's session.
        """
        super().__init__(target, accounts, audit or AuditLog(None))
        self.shown = ShownSeries()
        routes = [
            *Pages(self).routes(),
            *BrokerPages(self).routes(),
            *(StorePages(self, target).routes() if isinstance(target, ConsoleStore) else ()),
            Route("/events", self.events),
            Route("/metrics", self.metrics),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ]
        application = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers={ReputError: self.failed, HTTPException: self.missing, OSError: self.failed},
        )
        self.guard = Guard(application, audit=self.audit, hosts=hosts, accounts=accounts, cookie=cookie)

    @contextlib.asynccontextmanager
    async def lifespan(self, application: Starlette) -> AsyncIterator[None]:
        """Stop reading when the server ends."""
        del application
        yield
        await self.feed.close()

    # Answers.

    def failed(self, request: Request, error: Exception) -> Response:
        """Return the page of an error: what is wrong, and what to do."""
        if isinstance(error, RequestRefused):
            status = 404
        elif isinstance(error, ConfigError):
            status = 400
        else:
            status = 503
            logger.warning("a page failed: path=%s error=%s", request.url.path, error)
        advice = error.advice if isinstance(error, ReputError) else ""
        return self.page(request, "error.html", "This did not work", status, error=str(error), advice=advice)

    def missing(self, request: Request, error: Exception) -> Response:
        """Return the page for a path that there is not."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return self.page(request, "error.html", "There is no such page", 404, error=request.url.path, advice="")
        return refuse(error.status_code, error.detail)

    async def events(self, request: Request) -> Response:
        """Stream the readings to a page."""
        del request
        # nginx would hold the readings back until its buffer is full.
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self.feed.events(), headers=headers, media_type="text/event-stream")

    def metrics(self, request: Request) -> Response:
        """Return the metrics of a store; brokers have their own."""
        del request
        if not isinstance(self.target, ConsoleStore):
            return refuse(404, "brokers give their metrics themselves: reput serve --metrics H:P")
        registry = CollectorRegistry()
        with self.target.open() as engine:
            registry.register(StoreCollector(engine, shown=self.shown))
            return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
