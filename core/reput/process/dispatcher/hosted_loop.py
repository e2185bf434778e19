"""HostedLoop: a plugin's loop with its host context, run by a dispatcher's process or a program's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reput.process.dispatcher.batch_bound import BatchSize
from reput.process.dispatcher.dispatcher_loop import DispatcherLoop
from reput.process.dispatcher.host_context import HostContext
from reput.process.frames.log_feed import LogFeed
from reput.process.frames.protocols import FrameReader, LoopCell, Predecessor
from reput.process.group.group_context import GroupContext
from reput.process.plugin.description import lies_elsewhere
from reput.process.plugin.plugin import Plugin
from reput.process.views.dead_letters import DeadLetters
from reput.process.views.view_folders import ViewFolders
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors
from reput.store.state.epochs import read_epochs
from reput_hooks import CommitLogDispatcher, DispatcherDescription

__all__ = ["HostedLoop"]

FLUSHES_LEFT_OUT = 60


class HostedLoop:
    """One run of a dispatcher, from its durable cursor on. Used by one thread.

    Args:
        root: the directory below which the view is built.
        builds_anew: the view is built from the log's beginning, in empty folders.
        first_batch: bound of the first batch, if an earlier process was killed in the middle of one.

    Attributes:
        loop: run it until it is finished, or the plugin raises.
    """

    def __init__(
        self,
        context: GroupContext,
        plugin: Plugin,
        description: DispatcherDescription,
        options: object,
        *,
        root: Path,
        reader: FrameReader,
        cell: LoopCell,
        predecessors: Sequence[Predecessor] = (),
        builds_anew: bool = False,
        first_batch: BatchSize | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context = context
        self.plugin = plugin
        self.options = options
        self.cell = cell
        self.folders = ViewFolders(root, plugin.name, description.store_folders)
        self.dead_letters = DeadLetters(root, plugin.name)
        self.host_context: HostContext | None = None
        elsewhere = lies_elsewhere(description, options)
        self.loop = DispatcherLoop(
            name=plugin.name,
            description=description,
            create=self.create,
            folders=self.folders,
            dead_letters=self.dead_letters,
            reader=reader,
            cell=cell,
            predecessors=predecessors,
            log_feed=LogFeed(
                context.store_directory,
                context.settings,
                needs_properties=description.needs_properties,
                positions=description.feeds == "positions",
                # Records in a view are not checked again, so a rebuild must not copy garbage silently, and a plugin
                # that may pass bodies on must not get any. A plugin that gets only positions reads the log itself.
                verify=builds_anew or not (description.store_folders or description.feeds == "positions"),
            ),
            load_epochs=lambda: read_epochs(context.store_directory, context.store_id),
            count_from_first=context.target is not None,
            builds_anew=builds_anew,
            # A view built outside its store starts from scratch after a crash, so frequent flushes are useless.
            flush_interval_s=context.settings.dispatcher_flush_interval
            / 1000
            * (1 if context.target is None else FLUSHES_LEFT_OUT),
            flush_time_max_s=context.settings.dispatcher_flush_time_max / 1000,
            dispatch_time_max_s=context.settings.dispatcher_dispatch_time_max / 1000,
            first_batch=first_batch,
            view_elsewhere=elsewhere,
            came_to=read_dispatcher_cursors(root).get(plugin.name) if elsewhere and context.target is None else None,
            now=now,
        )

    def create(self) -> CommitLogDispatcher:
        """Create the plugin's dispatcher; called again after its view was emptied."""
        if self.host_context is not None:
            self.host_context.close()
        self.host_context = HostContext(
            name=self.plugin.name,
            options=self.options,
            settings=self.context.settings,
            store_directory=self.context.store_directory,
            store_id=self.context.store_id,
            folders=self.folders,
            dead_letters=self.dead_letters,
            cell=self.cell,
            epoch=lambda: self.loop.cursor.epoch,
            alive=self.loop.alive,
            rehearsal=self.context.target is not None,
        )
        return self.plugin.create(self.host_context)

    def close(self) -> None:
        """Close all open files of the log."""
        self.loop.log_feed.close()
        if self.host_context is not None:
            self.host_context.close()
