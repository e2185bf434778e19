"""CommitLogDispatcher: the plugin that derives one view from the commit log, and what its host promises it."""

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
    """Raised by a `CommitLogDispatcher` that cannot go on for a reason that passes. Its text is shown in the status.

    From `dispatch`, when nothing was changed: the same batch comes again after a while. From `flush`: so does the
    flush. From anything else: the dispatcher is closed, and after a while another one is made and started.

    Attributes:
        until: from `dispatch` alone: the view was brought up to this cursor, and what lies behind comes again.
            `DispatchBatch.cursor_behind` makes one. None: nothing was changed.
        after: seconds until then, as a server says with ``Retry-After``; None: as the host has it, which waits longer
            each time, up to five seconds.
    """

    def __init__(self, *arguments: object, until: Cursor | None = None, after: float | None = None) -> None:
        super().__init__(*arguments)
        self.until = until
        self.after = after


class RebuildNeeded(Exception):
    """Raised when a view cannot be brought back to an earlier position: the host builds it again from the log.

    Its text, or that of the error it comes from, stands in the dispatcher's status until the view has caught up.
    """


class DispatcherDescription(msgspec.Struct, frozen=True):
    """What a dispatcher declares before it runs. It is asked in a process apart, and kept per installed version.

    Attributes:
        api_version: version of `reput_hooks` that the plugin was written for.
        after: names of dispatchers whose progress must be ahead; names that are not enabled are ignored.
        after_failed: what to do when one of them is paused, failed or off.
        reads: "durable": only what a power cut cannot take back; "appended": at once, `truncate` may follow.
        feeds: "requests", or "positions": batches without requests, for a plugin that reads the log itself.
        needs_properties: requests carry the raw properties string.
        options: msgspec struct of the options, which is checked before the process starts; None: it has no options.
        store_folders: folders of RocketMQ's in the store's root that are this view. A stranger's plugin has none.
        rebuilt_with: dispatchers whose views this one leads into: when one of them is rebuilt, so is this one, and both
            are swapped in at once.
        view_version: number of the view's format; where a view was written in another one, the host builds it again
            beside the old one, which readers have until then. Raise it when a release cannot go on with older views.
        view_elsewhere: what it takes in leaves the store, for a server or another program. Building the view again
            would send it there once more, and needs an operator's word. Or a function of the options that says so.
        batch_record_count_max: records that a batch has at most; None: as many as the host gives.
        batch_size_max: bytes of the log that a batch covers at most, but one record always goes; None: as the host has
            it.
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
    """A number in the dispatcher's cell that every process can read, also after the dispatcher's death."""

    value: int


class LogReader(Protocol):
    """The commit log, for whoever needs bodies or properties."""

    def read(self, request: DispatchRequest) -> Record:
        """Return the record of *request*."""

    def read_many(self, batch: Iterable[DispatchRequest]) -> list[Record]:
        """Return the records of all requests of *batch*, in its order."""


class DispatcherContext(Protocol):
    """What the host gives to a dispatcher.

    Attributes:
        name: of the dispatcher, as in the configuration.
        directory: the view's own folder, which exists; the plugin keeps its data and its cursor there.
        options: instance of the declared options struct, or None.
        settings: the store's settings, RocketMQ's names in snake case.
        store_directory: the store's root, to read.
        store_id: as in every cursor of this store.
        log: whole records, bodies included.
        logger: its lines come out in the group's log with the dispatcher's name.
        rehearsal: this is not the store's own view: it is built apart, debugged or tried. A dispatcher whose view lies
            elsewhere should send nothing there.
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
        """Return the place of one of the declared ``store_folders``, which may not exist yet."""

    def counter(self, name: str) -> Counter:
        """Return the number of that name in the dispatcher's cell; at most 32 names of at most 24 bytes."""

    def reject(self, request: DispatchRequest, reason: str) -> None:
        """Put one record into the dispatcher's dead-letter file, durably, and go on."""

    def alive(self) -> None:
        """Say that a long piece of work goes on: the time limit of the present phase begins again.

        So does that of a flush that is being prepared; the thread that works on it may call this.
        """


class CommitLogDispatcher:
    """Base of every dispatcher. All methods are called by one thread of the dispatcher's own process.

    An exception that is not named here ends the process; it starts again from the cursor that `start` returns.
    """

    def start(self) -> Cursor | None:
        """Return up to where the view is durable, None to begin with the log. Called once, before any batch."""
        return None

    def dispatch(self, batch: DispatchBatch) -> None:
        """Bring the view up to ``batch.end``.

        Batches come in commit-log order, without gaps, at least once: after a crash those behind the durable cursor
        come again. When it returns, readers may see the batch.

        Raises:
            RetryLater: nothing was changed, and the same batch is to come again; or the view was brought up to
                ``until``, and what lies behind is to come.
        """
        raise NotImplementedError

    def replay(self, batch: DispatchBatch) -> None:
        """Take in records that were rejected before, because an operator wants to try them again.

        The batch covers no range of the log: it begins and ends where the view stands, and its requests lie further
        back, in the order of the log. What is rejected once more stays a dead letter. `flush` follows at once. By
        default it is dispatched as any other; a view that depends on the order of the log does better to take such
        records in another way.

        Raises:
            RetryLater: nothing was changed; the same records are to come again.
        """
        self.dispatch(batch)

    def prepare_flush(self) -> bool:
        """Do a part of the work of a flush that takes long; return whether there is more to do before it.

        Called before `flush`, again and again while it returns True, with batches in between, so that readers need not
        wait for the whole. The `flush` that follows has to make durable only what was dispatched before the first of
        these calls. Not called at the end, nor before a flush that the host wants at once: that one takes in all.
        From the first to the last of them the time limit of a flush holds, as `DispatcherContext.alive` renews it:
        what takes longer is given up, and the dispatcher starts again from its durable cursor.

        Raises:
            RetryLater: as `flush`.
        """
        return False

    def flush(self) -> Cursor | None:
        """Make durable what was dispatched and say up to where. Called when idle, at an interval, and at the end.

        Raises:
            RetryLater: it is not durable yet; `flush` comes again.
        """
        return None

    def truncate(self, cursor: Cursor) -> None:
        """Forget everything from ``cursor.commit_log_offset`` on: from there the log has another history.

        Keep what lies below. The offset is never lower than the log's minimum at this moment: what retention has taken
        the log cannot contradict, and your view may be the only place that still has it. Where it is not known where
        the histories part, the offset is that minimum.

        Raises:
            RebuildNeeded: the view cannot be cut. It is emptied and built again from what the log still has, so a view
                that outlives its log must not raise it.
        """
        raise RebuildNeeded

    def expire(self, commit_log_offset_min: int) -> None:
        """The log was trimmed below this offset; what the view says of it may go."""

    def delete_topic(self, topic: str) -> None:
        """The topic was deleted; what the view says of its records so far may go."""

    def close(self) -> None:
        """Release files. Called after the last `flush`; never promised."""


@hookspec(firstresult=True)
def reput_create_dispatcher(context: DispatcherContext) -> CommitLogDispatcher:
    """Return the dispatcher. Called once, in the dispatcher's own process; an exception counts as a failed start."""
    raise NotImplementedError


@hookspec(firstresult=True)
def reput_describe_dispatcher() -> DispatcherDescription:
    """Return what the dispatcher declares; without it, `DispatcherDescription()` holds.

    Called in a short-lived process that imports the plugin. It must not touch files or the network. An exception
    makes the dispatcher ``BROKEN``.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def reput_read_view(folders: Sequence[Path]) -> object:
    """Return what a view holds, in a form in which equal views are equal: for tests, which compare views.

    Without it every file of *folders* counts: JSON and SQLite by what they say, others by their bytes. A plugin whose
    equal views may differ in their bytes, or lie elsewhere, needs it. Called by the contract suite, with the plugin's
    own folder and the declared ``store_folders``, while no dispatcher works on them.
    """
    raise NotImplementedError
