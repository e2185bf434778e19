"""A host for tests of the dispatcher that keeps a lake, in the test's own process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from reput.store.state.epochs import read_epochs
from reput.table import LogTable
from reput_hooks import Cursor, DispatchBatch, DispatcherContext
from written_log import WrittenLog

__all__ = ["Host"]


class Number:
    """A counter."""

    value = 0


class Context(DispatcherContext):
    """The context of a dispatcher without a host."""

    def __init__(self, store: Path, options: Any) -> None:
        self.name = "spark_export"
        self.directory = store / "reput" / "views" / self.name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.options = options
        self.store_directory = store
        self.store_id = LogTable(store).store_id
        self.settings = {"spark_options": {}}
        self.logger = logging.getLogger("test")
        self.counters: dict[str, Number] = {}

    def counter(self, name: str) -> Number:
        return self.counters.setdefault(name, Number())

    def alive(self) -> None:
        pass


class Host:
    """Runs the dispatcher of a store like a host."""

    def __init__(self, log: WrittenLog, **options: Any) -> None:
        from reput_plugins.spark_export import SparkExportOptions, reput_create_dispatcher

        self.log = log
        self.context = Context(log.save(), SparkExportOptions(**{"interval_ms": 50, **options}))
        self.lake = self.context.directory / "lake"
        self.dispatcher: Any = reput_create_dispatcher(self.context)
        self.position = 0

    def cursor(self, commit_log_offset: int, store_timestamp: int = 7) -> Cursor:
        """Return a cursor of the store's current epoch."""
        epoch = read_epochs(self.context.store_directory, self.context.store_id).epoch
        return Cursor(self.context.store_id, epoch, commit_log_offset, store_timestamp)

    def start(self) -> Cursor | None:
        """Start the dispatcher."""
        found: Cursor | None = self.dispatcher.start()
        self.position = found.commit_log_offset if found else 0
        return found

    def dispatch(self) -> None:
        """Bring the lake up to the log's end."""
        self.log.save()
        self.dispatcher.dispatch(DispatchBatch(self.position, self.cursor(self.log.end), []))
        self.position = self.log.end
