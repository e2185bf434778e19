"""Overview: one reading of a store's files and its open group, or of the brokers of a name server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from reput.consume.registry.statistics import StoreStatistics
from reput.embedded.read_only_engine import ReadOnlyEngine
from reput.metrics.store_figures import GroupLag, StoreFigures, read_figures
from reput.process.owner.stopped_status import as_run_last
from reput.settings import LoadedSettings

if TYPE_CHECKING:
    from reput.client.administration import BrokerRow
    from reput.client.client import Client

__all__ = ["BrokersSource", "Counts", "Overview", "StoreSource", "WatchedSource"]


class Counts(msgspec.Struct, frozen=True):
    """What was put and delivered up to one moment; brokers tell rates instead.

    Attributes:
        put: messages by topic; *put_size*: bytes by topic.
        got: messages by group and topic.
    """

    put: dict[str, int]
    put_size: dict[str, int]
    got: dict[tuple[str, str], int]


class Overview(msgspec.Struct, frozen=True):
    """One reading.

    Attributes:
        at: monotonic seconds.
        timestamp: ms since 1970.
        figures: of a store; None: brokers were asked.
        brokers: of a name server; empty: a store was read.
        counts: None: no program has the store open, or brokers were asked.
    """

    target: str
    at: float
    timestamp: int
    figures: StoreFigures | None
    brokers: list[BrokerRow]
    lags: list[GroupLag]
    counts: Counts | None


class WatchedSource(Protocol):
    """Where overviews come from."""

    def read(self) -> Overview:
        """Return the state now.

        Raises:
            ReputError: it cannot be read; it may be able to be later.
        """


class StoreSource:
    """A store's directory. Each reading finds the program that has it open then, if any."""

    def __init__(self, directory: Path, load: Callable[[], LoadedSettings]) -> None:
        """*load* returns the store's settings."""
        self.directory = directory
        self.load = load

    def open(self) -> ReadOnlyEngine:
        """Return the store, opened for reading."""
        return ReadOnlyEngine(self.directory, as_run_last(self.directory, self.load()))

    def read(self) -> Overview:
        """Return the state now."""
        with self.open() as engine:
            figures = read_figures(engine)
        return Overview(
            target=str(self.directory),
            at=time.monotonic(),
            timestamp=time.time_ns() // 1_000_000,
            figures=figures,
            brokers=[],
            lags=figures.lags,
            counts=counts_of(figures.status.statistics),
        )


class BrokersSource:
    """The brokers of a name server, or one broker's socket."""

    def __init__(self, target: str, client: Client) -> None:
        self.target = target
        self.client = client

    def read(self) -> Overview:
        """Return the state now."""
        administration = self.client.administration
        lags = [
            GroupLag(group, topic, sum(row.lag for row in rows if row.topic == topic), None)
            for group, rows in administration.progress_of_groups().items()
            for topic in dict.fromkeys(row.topic for row in rows)
        ]
        return Overview(
            target=self.target,
            at=time.monotonic(),
            timestamp=time.time_ns() // 1_000_000,
            figures=None,
            brokers=administration.brokers(),
            lags=lags,
            counts=None,
        )


def counts_of(statistics: dict[str, Any] | None) -> Counts | None:
    """Return the counts of a status's *statistics*."""
    if statistics is None:
        return None
    read = msgspec.convert({**statistics, "waiting_delays": None, "half_messages": None}, StoreStatistics)
    return Counts(
        put={row.topic: row.put_nums for row in read.topics},
        put_size={row.topic: row.put_size or 0 for row in read.topics},
        got={(row.group, row.topic): row.get_nums for row in read.groups},
    )
