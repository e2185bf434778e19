"""DebuggedDispatcher: runs one dispatcher on the caller's own thread, for use with a debugger.

The loop and the contract are the same as in a dispatcher's process. But the plugin is not isolated, not restarted, and
not ended by a time limit: its exceptions are raised from `step` or `run`. It works on a copy of its view, or on an
empty one, below a separate directory. The store is only read, whether another process writes it or not; the dispatcher
does not wait for dispatchers that it comes ``after``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reput.argument_checks import require_path, require_text
from reput.errors import ConfigError, DispatcherError
from reput.process.control.control_socket import Observed, connect_observer, group_status
from reput.process.dispatcher.hosted_loop import HostedLoop
from reput.process.dispatcher.states import ABSENT, State, StopMode
from reput.process.frames.frame_publisher import FramePublisher
from reput.process.group.group_context import GroupContext
from reput.process.owner.inline_ring import InlineCell, InlineReader, InlineRing
from reput.process.plugin.catalogue import select_dispatchers
from reput.process.plugin.description import lies_elsewhere, portable_description
from reput.process.plugin.external_views import refuse_elsewhere
from reput.process.plugin.plugin import check_instance, convert_options, load_plugin
from reput.process.views.view_folders import ViewFolders
from reput.settings import Settings
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id, require_store
from reput.store.state.recorded_settings import building_settings, load_store_settings
from reput.store.writer.publisher import AppendedRecords
from reput_hooks import CommitLogDispatcher, Cursor

__all__ = ["DebuggedDispatcher", "debug"]

RING_CAPACITY = 64 << 20
FOLLOW_WAIT_S = 0.1


def debug(
    path: str | os.PathLike[str],
    dispatcher: str,
    *,
    empty: bool = False,
    target: str | os.PathLike[str] | None = None,
    force: bool = False,
    config: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> DebuggedDispatcher:
    """Return *dispatcher* of the store in *path*, ready to run on this thread, where a debugger can follow it.

    Args:
        empty: begin with an empty view, at the beginning of the log, instead of a copy of the store's view.
        target: directory in which the view is built and kept; None: a temporary directory, removed by `close`.
        force: allow a dispatcher whose view lies outside the store. It is told that this is a rehearsal, but may send
            records to that view.
        config: the configuration file, as in `reput.open`; it holds the dispatcher's options.
        settings: settings by name, as in `reput.open`.

    Raises:
        NotAStore: there is no store.
        ConfigError: the dispatcher is not installed, an option is wrong, the view lies outside the store, or *target*
            already holds it.
        DispatcherError: its view is being written, so it cannot be copied.
    """
    directory = require_path("path", path)
    config_path = None if config is None else require_path("config", config)
    target_path = None if target is None else require_path("target", target)
    require_text("dispatcher", dispatcher)
    require_store(directory)
    settings["dispatchers"] = (dispatcher,)
    loaded = load_store_settings(directory, config_path, **settings)
    return DebuggedDispatcher(directory, dispatcher, loaded.settings, target_path, empty, force=force)


class DebuggedDispatcher:
    """See `debug`. Use it from one thread, and close it like a file.

    Attributes:
        root: directory of the view, laid out like a store.
        batch_count: number of dispatched batches.
    """

    def __init__(
        self, directory: Path, name: str, settings: Settings, target: Path | None, empty: bool, *, force: bool = False
    ) -> None:
        (entry,) = select_dispatchers([name], settings.dispatcher_plugins)
        plugin = load_plugin(name, entry.module)
        description = plugin.describe()
        check_instance(entry, description.store_folders)
        options = convert_options(name, settings.dispatcher_options.get(name, {}), description.options)
        elsewhere = lies_elsewhere(description, options)
        refuse_elsewhere({name: portable_description(description, view_elsewhere=elsewhere)}, force=force)
        self.directory = directory
        self.temporary = tempfile.TemporaryDirectory(prefix="reput-debug-") if target is None else None
        self.root = Path(self.temporary.name) if self.temporary is not None else target or directory
        folders = ViewFolders(self.root, name, description.store_folders)
        try:
            if folders.directory.exists():
                raise ConfigError(f"the target already holds this view: view={name} target={target}", "Name another.")
            if not empty:
                copy_view(directory, folders)
            self.observed: Observed | None = connect_observer(directory)
        except BaseException:
            self.remove()
            raise
        store_id = read_store_id(directory)
        end = self.log_end()
        self.ring = InlineRing(
            capacity=RING_CAPACITY,
            appended=end,
            durable=end,
            commit_log_offset_min=Segments(directory / "commitlog").offset_min,
            epoch=read_epochs(directory, store_id).epoch,
            ordinal=0,
        )
        self.publisher = FramePublisher(self.ring, self.ring.epoch or 0)
        self.cell = InlineCell(name, 0, self.ring)
        self.hosted = HostedLoop(
            GroupContext(directory, store_id, building_settings(directory, settings), self.root),
            plugin,
            description,
            options,
            root=self.root,
            reader=InlineReader(self.ring, self.cell),
            cell=self.cell,
        )
        self.closed = False

    @property
    def dispatcher(self) -> CommitLogDispatcher | None:
        """The plugin's dispatcher; None before the first step."""
        return self.hosted.loop.dispatcher

    @property
    def cursor(self) -> Cursor:
        """Position up to which the view is dispatched."""
        return self.hosted.loop.cursor

    @property
    def batch_count(self) -> int:
        """Number of dispatched batches."""
        return self.cell.batch_count

    @property
    def rejected_count(self) -> int:
        """Number of dead letters."""
        return self.cell.rejected_count

    def log_end(self) -> int:
        """Return the current end of the log, for dispatchers that read only durable records."""
        if self.observed is not None and not self.observed.memory.header.closed:
            return self.observed.memory.header.durable or 0
        return find_log_end(self.directory, Segments(self.directory / "commitlog"))

    def step(self) -> bool:
        """Do one piece of work, at most one batch; return False if there is none.

        Raises:
            Exception: raised by the plugin; the dispatcher keeps its state for inspection.
        """
        return bool(self.hosted.loop.do_work())

    def run(self, *, follow: bool = False) -> None:
        """Take in the log up to its end; with *follow*, continue with new records until an exception is raised.

        Raises:
            Exception: raised by the plugin.
            DispatcherError: the log is damaged at the view's position.
        """
        pause = threading.Event()
        while True:
            while self.step():
                pass
            loop = self.hosted.loop
            if loop.reading.damage is not None:
                raise DispatcherError(loop.reading.damage, "See `reput check STORE`.")
            if self.take_growth():
                continue
            if loop.retry is None and loop.shortage.reason is None and not loop.flushing.preparing and not follow:
                return
            pause.wait(min(FOLLOW_WAIT_S, loop.waiting().timeout))

    def take_growth(self) -> bool:
        """Pass on newly appended records; return whether there are any."""
        begin, end = self.ring.appended or 0, self.log_end()
        if end <= begin:
            return False
        # The ring only tells how far the log reaches: beyond its hole the loop reads the log itself.
        self.publisher.publish(AppendedRecords(end, end, 0, 0, [], b"", b""))
        self.publisher.durable(end)
        return True

    def flush(self) -> None:
        """Make the view durable now."""
        if self.dispatcher is not None:
            self.hosted.loop.force(self.dispatcher)

    def close(self) -> None:
        """Flush the view, close the dispatcher, and remove a temporary directory.

        Raises:
            Exception: raised by the plugin.
        """
        if self.closed:
            return
        self.closed = True
        try:
            if self.dispatcher is not None:
                self.hosted.loop.request_stop(StopMode.NOW)
                self.step()
        finally:
            self.release()

    def release(self) -> None:
        """Release everything except the plugin, as when a failed dispatcher's process ends."""
        self.closed = True
        self.hosted.close()
        if self.observed is not None:
            self.observed.memory.close()
        self.remove()

    def remove(self) -> None:
        """Remove a temporary directory."""
        if self.temporary is not None:
            self.temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.release()


def copy_view(directory: Path, folders: ViewFolders) -> None:
    """Copy the store's view into the empty *folders*.

    Raises:
        DispatcherError: a dispatcher works on it now, or may do so.
    """
    status = group_status(directory)
    for row in status.dispatchers if status is not None else ():
        if row.name == folders.name and State[row.state] not in ABSENT:
            raise DispatcherError(
                f"the view is being written, so a copy would be inconsistent: dispatcher={row.name} state={row.state}",
                f"Pause it (reput dispatcher pause STORE {row.name}), or begin with an empty view.",
            )
    own = ViewFolders(directory, folders.name, folders.store_folders)
    pairs = [(own.directory, folders.directory)]
    pairs += [(own.folder(name), folders.folder(name)) for name in folders.store_folders]
    for source, target in pairs:
        if source.exists():
            shutil.copytree(source, target)
