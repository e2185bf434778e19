"""Fixtures for the process group: a log, and a distribution of test dispatchers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from process.log_writer import STORE_ID, LogWriter
from process.probe_plugin import PluginFolder
from reput.process.control.dispatcher_row import DispatcherRow
from reput.process.frames.frame_publisher import FramePublisher
from reput.process.group.group_context import GroupContext
from reput.process.owner.inline_group import InlineGroup
from reput.process.owner.inline_ring import InlineRing
from reput.process.owner.process_group import ProcessGroup
from reput.ring import RingMemory, RingWriter
from reput.settings import load_settings

TIMEOUT = 60.0


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginFolder:
    """A folder on `sys.path` with dispatchers that are found like installed ones; descriptions are cached apart."""
    folder = PluginFolder(tmp_path / "plugins")
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    """An empty log of one segment."""
    writer = LogWriter(tmp_path / "store")
    yield writer
    writer.close()


@pytest.fixture
def context(log: LogWriter) -> Callable[..., GroupContext]:
    """Return a function that makes a context with given dispatchers, settings and options."""

    def make(*dispatchers: str, options: dict[str, dict[str, object]] | None = None, **settings: Any) -> GroupContext:
        """*options* of each dispatcher, including its ``plugin``."""
        for name, values in (options or {}).items():
            settings.update({f"dispatchers.{name}.{option}": value for option, value in values.items()})
        loaded = load_settings(dispatchers=list(dispatchers), **settings)
        return GroupContext(log.store_directory, STORE_ID, loaded.settings)

    return make


@pytest.fixture
def inline(log: LogWriter) -> Iterator[Callable[..., InlineGroup]]:
    """Return a function that starts an inline group on the log; all groups are stopped afterwards."""
    groups: list[InlineGroup] = []

    def start(context: GroupContext, capacity: int = 1 << 20, **header: int) -> InlineGroup:
        group = InlineGroup(context, InlineRing(capacity=capacity, **(log.header() | header)))
        log.publisher = group.publisher()
        groups.append(group)
        group.start()
        return group

    yield start
    for group in groups:
        group.drain_and_stop()


@pytest.fixture
def events(log: LogWriter) -> Callable[..., list[Any]]:
    """Return a function that reads the recorded calls of a probe, without process ids, optionally of one kind."""

    def read(name: str, kind: str | None = None) -> list[Any]:
        path = log.store_directory / f"{name}.events"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line)[1:] for line in lines]
        return [event[1:] for event in found if event[0] == kind] if kind else found

    return read


@pytest.fixture
def saved(log: LogWriter) -> Callable[[str], dict[str, Any]]:
    """Return a function that reads a probe's data on disk."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((log.store_directory / "reput/views" / name / "probe.json").read_bytes())
        return found

    return read


class Running:
    """A process group on a test log, with the writing end of its ring."""

    def __init__(
        self, log: LogWriter, context: GroupContext, capacity: int = 1 << 20, slot_count: int = 32, **header: int
    ) -> None:
        self.memory = RingMemory.create(capacity, slot_count)
        self.writer = RingWriter(self.memory, **(log.header() | header))
        log.publisher = FramePublisher(self.writer, header.get("epoch", 1))
        self.group = ProcessGroup(context, self.memory)

    def row(self, name: str) -> DispatcherRow:
        """Return the status of one dispatcher."""
        return next(row for row in self.group.status() if row.name == name)

    def wait_until(self, holds: Callable[[], object], what: str = "") -> None:
        """Check a condition until it holds, not so often that the checks take time from those that are waited for."""
        deadline = time.monotonic() + TIMEOUT
        pause = threading.Event()
        while not holds():
            assert time.monotonic() < deadline, f"{what} {self.group.status()}"
            pause.wait(0.02)

    def wait_for_state(self, name: str, *states: str) -> None:
        """Wait until a dispatcher is in one of *states*."""
        self.wait_until(lambda: self.row(name).state in states, f"awaited={states}")

    def stop(self) -> None:
        """Drain, and release everything."""
        self.group.drain_and_stop()
        self.writer.close()
        self.memory.close()


@pytest.fixture
def processes(log: LogWriter) -> Iterator[Callable[..., Running]]:
    """Return a function that starts a process group on the log; all groups are stopped afterwards."""
    running: list[Running] = []

    def start(context: GroupContext, **header: int) -> Running:
        started = Running(log, context, **header)
        try:
            started.group.start()
        except BaseException:
            started.memory.close()
            raise
        running.append(started)
        return started

    yield start
    for started in running:
        if not started.memory.closed:
            if started.group.stop_event < 0:
                # The test itself has ended the group.
                started.writer.close()
                started.memory.close()
            else:
                started.stop()
