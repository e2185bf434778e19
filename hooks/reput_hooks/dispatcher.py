"""CommitLogDispatcher: the base of plugins that derive a view from the commit log, and the promises of the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import pluggy

from reput_hooks.cursor import Cursor
from reput_hooks.dispatch import DispatchBatch, DispatchRequest
from reput_hooks.record import Record

__all__ = [
    "API_VERSION",
    "CommitLogDispatcher",
    "Counter",
    "DispatcherContext",
    "DispatcherDescription",
    "LogReader",
    "RebuildNeeded",
    "RetryLater",
    "hookimpl",
    "hookspec",
    "reput_create_dispatcher",
    "reput_describe_dispatcher",
    "reput_read_view",
]

API_VERSION = 1

hookspec = pluggy.HookspecMarker("reput")
hookimpl = pluggy.HookimplMarker("reput")


class RetryLater(Exception):
    """Raised by a `CommitLogDispatcher` that has to wait until a problem passes. The status shows its text.

    From `dispatch`, if it has changed nothing: the same batch comes again after a pause. From `flush`: the host flushes
    again after a pause. From any other method: the host closes the dispatcher, and creates and starts it again after a
    pause.

    Attributes:
        until: only from `dispatch`: the view has taken in the batch up to this cursor, and the rest comes again.
            `DispatchBatch.cursor_behind` makes one. None: nothing was changed.
        after: seconds of the pause, for example from ``Retry-After``; None: the host waits longer each time, up to five
            seconds.
    """

    def __init__(self, *arguments: object, until: Cursor | None = None, after: float | None = None) -> None:
        super().__init__(*arguments)
        self.until = until
        self.after = after


class RebuildNeeded(Exception):
    """Raised if a view cannot go back to an earlier position: the host empties it and rebuilds it from the log.

    The status shows its text, or that of its cause, until the view has caught up.
    """


class DispatcherDescription(msgspec.Struct, frozen=True):
    """A dispatcher's declaration before it runs. The host asks in a separate process, and caches the answer by version.

    Attributes:
        api_version: version of `reput_hooks` that you wrote the plugin for.
        after: names of dispatchers that must process each record before this one; others than enabled ones are ignored.
        after_failed: whether to wait or to proceed while one of them is paused, failed or stopped.
        reads: "durable": only records that survive a power cut; "appended": all at once, and `truncate` may follow.
        feeds: "requests", or "positions": batches without requests, for a plugin that reads the log itself.
        needs_properties: requests carry the raw properties string.
        options: msgspec struct of the options, which the host checks before the process starts; None: no options.
        store_folders: RocketMQ's folders in the store's root that belong to the view. Only built-in plugins have them.
        rebuilt_with: dispatchers whose views this one refers to: when one of them is rebuilt, so is this one, and both
            are swapped in at once.
        view_version: number of the view's format. If a view was written in another format, the host rebuilds it beside
            the old one, which readers use until then. Increase it when a release cannot use older views.
        view_elsewhere: records leave the store, for a server or another program. A rebuild would send them again, so
            only an operator may order one. Or a function of the options that returns this.
        batch_record_count_max: most records in a batch; None: the host's limit.
        batch_size_max: most bytes of the log in a batch, though a single record may be larger; None: the host's limit.
    """

    api_version: int = API_VERSION
    after: tuple[str, ...] = ()
    after_failed: Literal["wait", "proceed"] = "wait"
    reads: Literal["durable", "appended"] = "durable"
    feeds: Literal["requests", "positions"] = "requests"
    needs_properties: bool = False
    options: type[msgspec.Struct] | None = None
    store_folders: tuple[str, ...] = ()
    rebuilt_with: tuple[str, ...] = ()
    batch_record_count_max: int | None = None
    batch_size_max: int | None = None
    view_version: int = 0
    view_elsewhere: bool | Callable[[Any], bool] = False


class Counter(Protocol):
    """A number in the dispatcher's cell that every process can read, also after a crash of the dispatcher."""

    value: int


class LogReader(Protocol):
    """The commit log, for dispatchers that need bodies or properties."""

    def read(self, request: DispatchRequest) -> Record:
        """Return the record of *request*."""

    def read_many(self, batch: Iterable[DispatchRequest]) -> list[Record]:
        """Return the records of all requests of *batch*, in its order."""


class DispatcherContext(Protocol):
    """The host's services for a dispatcher.

    Attributes:
        name: the dispatcher's name in the configuration.
        directory: the view's own folder, which exists; keep data and cursor there.
        options: instance of the declared options struct, or None.
        settings: the store's settings, RocketMQ's names in snake case.
        store_directory: the store's root; read it, and do not write to it.
        store_id: as in every cursor of this store.
        log: reads whole records, bodies included.
        logger: logs to the group's log under the dispatcher's name.
        rehearsal: this is not the store's own view: it is built in another directory, debugged or tested. A dispatcher
            whose view lies elsewhere should send nothing.
    """

    name: str
    directory: Path
    options: Any
    settings: Mapping[str, Any]
    store_directory: Path
    store_id: str
    log: LogReader
    logger: logging.Logger
    rehearsal: bool

    def folder(self, name: str) -> Path:
        """Return the path of one of the declared ``store_folders``, which may not exist yet."""

    def counter(self, name: str) -> Counter:
        """Return the number of that name in the dispatcher's cell; at most 32 names of at most 24 bytes."""

    def reject(self, request: DispatchRequest, reason: str) -> None:
        """Write one record to the dispatcher's dead-letter file, durably. Go on with the next record."""

    def alive(self) -> None:
        """Call this during long work: the time limit of the current phase begins again.

        So does that of a flush that is being prepared; a thread that works on it may call this.
        """


class CommitLogDispatcher:
    """Base of every dispatcher. One thread of the dispatcher's own process calls all methods.

    An exception that is not listed here ends the process; a new one goes on from the cursor that `start` returns.
    """

    def start(self) -> Cursor | None:
        """Return the cursor of the durable view, None to begin with the log. Called once, before any batch."""
        return None

    def dispatch(self, batch: DispatchBatch) -> None:
        """Bring the view up to ``batch.end``.

        Batches come in commit-log order, without gaps, at least once: after a crash, batches behind the durable cursor
        come again. When it returns, readers may see the batch.

        Raises:
            RetryLater: nothing was changed, and the same batch has to come again; or the view has taken in the batch up
                to ``until``, and the rest has to come.
        """
        raise NotImplementedError

    def replay(self, batch: DispatchBatch) -> None:
        """Take in records that were rejected before. Called after an operator has asked for a replay.

        The batch covers no range of the log: it begins and ends at the view's position, and its requests lie before
        that, in the order of the log. A record that you reject again stays a dead letter. `flush` follows at once. By
        default the batch is dispatched like any other; override this if your view depends on the order of the log.

        Raises:
            RetryLater: nothing was changed; the same records have to come again.
        """
        self.dispatch(batch)

    def prepare_flush(self) -> bool:
        """Do one part of a long flush; return whether there is another part to do before `flush`.

        Called before `flush`, repeatedly while it returns True, with batches in between, so that readers need not wait
        for the whole flush. The `flush` that follows only has to make durable what was dispatched before the first of
        these calls. Not called at the end, nor before a flush that cannot wait: that flush covers everything.
        All calls together have the time limit of a flush, which `DispatcherContext.alive` renews. If they take longer,
        the host gives up, and the dispatcher starts again from its durable cursor.

        Raises:
            RetryLater: as `flush`.
        """
        return False

    def flush(self) -> Cursor | None:
        """Make the view durable, and return its cursor. Called when idle, at an interval, and at the end.

        Raises:
            RetryLater: it is not durable yet; the host calls `flush` again.
        """
        return None

    def truncate(self, cursor: Cursor) -> None:
        """Forget everything from ``cursor.commit_log_offset`` on: from there the log has another history.

        Keep what lies below. The offset is never below the log's current minimum: the log cannot tell what retention
        has removed, and your view may be the only place that still has it. If it is not known where the histories
        differ, the offset is that minimum.

        Raises:
            RebuildNeeded: the view cannot be truncated. The host empties it and rebuilds it from what the log still
                has, so a view that outlives its log must not raise this.
        """
        raise RebuildNeeded

    def expire(self, commit_log_offset_min: int) -> None:
        """The log was trimmed below this offset; the view may forget those records."""

    def delete_topic(self, topic: str) -> None:
        """The topic was deleted; the view may forget its records so far."""

    def close(self) -> None:
        """Release files. Called after the last `flush`, unless the process is killed."""


@hookspec(firstresult=True)
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    """Return the dispatcher. Called in the dispatcher's own process; an exception counts as a failed start."""
    raise NotImplementedError


@hookspec(firstresult=True)
def reput_describe_dispatcher() -> DispatcherDescription:
    """Return what the dispatcher declares; without this hook, `DispatcherDescription()` holds.

    Called in a short-lived process that imports the plugin. It must not touch files or the network. An exception
    makes the dispatcher ``BROKEN``.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def reput_read_view(folders: Sequence[Path]) -> object:
    """Return the content of a view as a value, so that tests can compare views.

    Without this hook the suite compares all files in *folders*: JSON and SQLite by content, others by bytes. A plugin
    needs it if equal views may have different bytes, or lie elsewhere. The contract suite calls it with the plugin's
    own folder and the declared ``store_folders``, while no dispatcher works on them.
    """
    raise NotImplementedError
