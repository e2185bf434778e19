"""The pages that a store has and brokers have not: dispatchers with their actions, and the log itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reput.console.actions import DISPATCHER_ACTIONS
from reput.console.console_context import ConsoleContext
from reput.console.console_target import ConsoleStore
from reput.console.live_feed import live_cells
from reput.console.message_view import body_view
from reput.errors import ConfigError, RequestRefused, StoreError
from reput.process.control.dispatcher_row import DispatcherRow
from reput.process.control.group_status import GroupStatus
from reput.process.views.dead_letters import DeadLetters
from reput.remoting.response_code import ResponseCode
from reput.store.record.record import decode_record
from reput.store.retention.offline_retention import plan_cleaning
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id
from reput.watched.rates import Rates

__all__ = ["StorePages"]

LETTERS_MAX = 50
LOG_LINES_MAX = 60
# Of the end of the group's log, in which the lines of one dispatcher are looked for.
LOG_SIZE_MAX = 256 << 10


class StorePages:
    """The handlers of a console on a store."""

    def __init__(self, console: ConsoleContext, store: ConsoleStore) -> None:
        self.console = console
        self.store = store

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/dispatchers", self.dispatchers),
            Route("/dispatchers/{name}", self.dispatcher),
            Route("/dispatchers/{name}/{action}", self.act, methods=["GET", "POST"]),
            Route("/log", self.log),
        ]

    def dispatchers(self, request: Request) -> Response:
        """Show the process group."""
        overview = self.store.read()
        assert overview.figures is not None
        return self.console.page(
            request,
            "dispatchers.html",
            "Dispatchers",
            status=overview.figures.status,
            cells=live_cells(overview, Rates()),
        )

    def dispatcher(self, request: Request) -> Response:
        """Show one dispatcher: its numbers, its last errors, its dead letters."""
        overview = self.store.read()
        assert overview.figures is not None
        status = overview.figures.status
        row = row_of(status, request.path_params["name"])
        letters = DeadLetters(self.store.directory, row.name)
        shown = [
            (letter, decode_record(letter.record), body_view(decode_record(letter.record)).text[:200])
            for letter, _ in zip(letters.read(), range(LETTERS_MAX), strict=False)
        ]
        return self.console.page(
            request,
            "dispatcher.html",
            f"Dispatcher {row.name}",
            row=row,
            cells=live_cells(overview, Rates()),
            letters=shown,
            lines=list(log_lines(self.store.directory / "reput" / "log" / "group.log", row.name)),
            actions=DISPATCHER_ACTIONS if status.started is not None else {},
            jobs=[job for job in self.console.jobs.newest() if f"dispatcher={row.name}" in job.action.split()][:5],
        )

    def act(self, request: Request) -> Response:
        """Ask whether to do something to a dispatcher, and do it."""
        name = request.path_params["name"]
        action = DISPATCHER_ACTIONS.get(request.path_params["action"])
        if action is None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "there is no such action")
        status = self.console.target.read().figures
        assert status is not None
        row_of(status.status, name)
        if status.status.started is None:
            raise StoreError(
                f"no program has this store open: store={self.store.directory}",
                "There is nothing to act on; `reput rebuild STORE VIEW` rebuilds the view of a closed store.",
            )
        text = f"{request.path_params['action']} dispatcher={name}"
        if request.method == "POST":
            return self.console.begin(request, text, action.work(self.store.directory, name))
        return self.console.page(
            request,
            "confirm.html",
            f"{action.title}: {name}",
            action=text,
            consequence=action.consequence,
            fields={},
            back=f"/dispatchers/{quote(name)}",
        )

    def log(self, request: Request) -> Response:
        """Show the log: segments and when they go, damage, epochs."""
        overview = self.store.read()
        assert overview.figures is not None
        status = overview.figures.status
        cursors = None if status.started is None else {row.name: row.durable_cursor for row in status.dispatchers}
        directory = self.store.directory
        return self.console.page(
            request,
            "log.html",
            "Log",
            figures=overview.figures,
            status=status,
            fates=plan_cleaning(directory, self.store.load().settings, cursors=cursors),
            epochs=read_epochs(directory, read_store_id(directory)).history,
        )


def row_of(status: GroupStatus, name: str) -> DispatcherRow:
    """Return the row of a dispatcher.

    Raises:
        ConfigError: the store has none of that name.
    """
    for row in status.dispatchers:
        if row.name == name:
            return row
    known = ",".join(row.name for row in status.dispatchers)
    raise ConfigError(f"the store has no such dispatcher: dispatcher={name!r} known={known}", "Choose one of these.")


def log_lines(path: Path, name: str) -> Iterator[str]:
    """Yield the last lines of the group's log that name a dispatcher, oldest first."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - LOG_SIZE_MAX, 0))
            lines = file.read(LOG_SIZE_MAX).decode("utf-8", "replace").splitlines()
    except OSError:
        # No group has run yet, or this user may not read it.
        return
    yield from [line for line in lines if name in line][-LOG_LINES_MAX:]
