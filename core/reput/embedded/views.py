"""StoreViews: the dispatchers of a store that this process writes, and how far their views reach.

writer ── publisher ──▶ ring ──▶ ProcessGroup      each dispatcher in a process of its own
                   └──▶ InlineGroup                all on one thread of this program
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reput.embedded.open_ring import OpenRing, positions
from reput.errors import DispatcherError, WaitTimeout
from reput.kernel import ViewWords, kernel
from reput.process.control.configuration import Configuration
from reput.process.dispatcher.states import BEGIN_WAIT_S, WILL_NOT_START, State
from reput.process.group.group_context import GroupContext
from reput.process.owner.process_group import ProcessGroup
from reput.ring.layout import ASKED_NS, CELL_WORDS, GENERATION, PROGRESS
from reput.store.disk.shortages import go_back
from reput.store.message_store import MessageStore
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors, keep_dispatcher_plugins, noted_progress

if TYPE_CHECKING:
    from reput.process.frames.frame_publisher import FramePublisher
    from reput.process.owner.inline_group import InlineGroup
    from reput.process.owner.supervisor_process import SupervisorProcess

__all__ = ["CONSUME_QUEUE", "INDEX", "Mode", "StoreViews"]

Mode = Literal["processes", "inline"]
CONSUME_QUEUE = "consume_queue"
INDEX = "index"
# RocketMQ reads these views: a store is cleanly shut down only if they are durable up to the log's end.
ROCKETMQ_VIEWS = (CONSUME_QUEUE, "consume_queue_ext", INDEX)
# How often the wait for a dispatcher's start looks for trouble.
TROUBLE_LOOK_S = 0.2


class StoreViews:
    """The group of dispatchers of one writer.

    Attributes:
        group: the dispatchers, in processes or on a thread.
        ring: the ring that the group's processes read; None for a group on a thread.
        publisher: receives the writer's notifications.
    """

    def __init__(
        self,
        directory: Path,
        writer: MessageStore,
        mode: Mode,
        configuration: Configuration | None,
        on_members: Callable[[], None],
        supervisor: SupervisorProcess | None,
    ) -> None:
        """Create the ring at the log's current end; *on_members* is called when dispatchers join or leave.

        *supervisor* has begun for the group's processes; None: *mode* has none.
        """
        self.directory = directory
        self.writer = writer
        settings = writer.settings
        # Views whose progress was not requested yet. The views of an empty log have nothing to catch up with.
        self.was_empty = writer.appended == writer.commit_log_offset_min
        self.not_begun = set() if self.was_empty else set(settings.dispatchers)
        self.ring: OpenRing | None = None
        self.words_of: dict[str, ViewWords] = {}
        context = GroupContext(directory, writer.store_id, settings)
        if mode == "processes":
            self.ring = OpenRing(writer, settings)
            self.group: ProcessGroup | InlineGroup = ProcessGroup(
                context,
                self.ring.memory,
                configuration=configuration,
                on_members=on_members,
                threads=writer.threads,
                supervisor=supervisor,
            )
            self.publisher: FramePublisher = self.ring.start_publisher(writer, self.tell_read_only)
        else:
            from reput.process.owner.inline_group import InlineGroup
            from reput.process.owner.inline_ring import InlineRing

            inline_ring = InlineRing(capacity=settings.ring_size, **positions(writer))
            self.group = InlineGroup(context, inline_ring, on_durable_awaited=writer.force_soon, threads=writer.threads)
            self.publisher = self.group.publisher()

    def start(self) -> None:
        """Start the dispatchers.

        Raises:
            ConfigError: a dispatcher is unknown, or its options are wrong.
            DispatcherError: the group cannot be started.
        """
        try:
            self.group.start()
        except BaseException as error:
            go_back(error, self.close_ring)
            raise

    def tell_read_only(self, reason: str | None) -> None:
        """Report to `reput status` of other processes whether the store accepts messages, and why not."""
        if isinstance(self.group, ProcessGroup):
            self.group.tell_writer_state(self.writer.state, reason or self.writer.notice)

    # Positions of the views.

    @property
    def loops_wait_for_progress(self) -> bool:
        """Whether an event loop waits for a dispatcher itself, without a thread."""
        return isinstance(self.group, ProcessGroup)

    def readable_up_to(self, view: str) -> int:
        """Return the progress of a view; 0 if no dispatcher builds it.

        After an opening, the progress of views of an older log is known a moment later. The first question waits for
        it: "there is nothing" would be a wrong answer. If the dispatcher cannot start, the view reaches as far as it
        was noted when the store was closed.

        Raises:
            DispatcherError: the dispatcher cannot start, and has noted nothing.
        """
        try:
            if view in self.not_begun:
                self.await_begin(view)
            progress = self.group.progress(view)
        except DispatcherError:
            progress = None
        self.not_begun.discard(view)
        if progress is not None:
            return progress
        if self.was_empty or view not in self.group.members:
            return 0
        return noted_progress(self.directory, view, self.writer.appended)

    def has_begun(self, view: str) -> bool:
        """Whether `readable_up_to` answers at once."""
        return view not in self.not_begun

    def await_begin(self, view: str) -> None:
        """Wait until a dispatcher has said how far its view reaches, or is in trouble.

        Raises:
            DispatcherError: it is not enabled, or it has not started.
        """
        end = time.monotonic() + BEGIN_WAIT_S
        while True:
            try:
                self.group.wait_for(view, 0, TROUBLE_LOOK_S)
                return
            except WaitTimeout:
                states = (State[row.state] for row in self.group.status() if row.name == view)
                if time.monotonic() > end or not WILL_NOT_START.isdisjoint(states):
                    raise

    def generation(self, view: str) -> int:
        """Return the generation number of a view, which rises when a rebuilt view takes its place; 0 without one."""
        try:
            return self.group.generation(view)
        except DispatcherError:
            return 0

    def words(self, view: str) -> ViewWords | None:
        """Return where progress and generation of a view stand in the group's memory; None: not there, or not yet."""
        group, found = self.group, self.words_of.get(view)
        if found is not None and found.members is group.members:
            return found
        used = kernel()
        if view in self.not_begun or not isinstance(group, ProcessGroup) or used is None:
            return None
        members = group.members
        member = members.get(view)
        if member is None:
            return None
        memory, slot = group.memory, member.slot
        first = slot * CELL_WORDS
        found = memory.keep(
            used.ViewWords(
                group, members, memory.cell_words, first + PROGRESS, first + GENERATION, memory.words, ASKED_NS + slot
            )
        )
        self.words_of[view] = found
        return found

    def durable_cursors(self) -> dict[str, int | None]:
        """Return the commit-log offset up to which the view of each enabled dispatcher is durable; None: not known."""
        return {name: self.group.durable_cursor(name) for name in list(self.group.members)}

    def keep_cursors(self, cursors: Mapping[str, int | None]) -> None:
        """Record the enabled dispatchers and the positions of their views, for use while the store is closed."""
        keep_dispatcher_cursors(self.directory, cursors, self.writer.files)
        keep_dispatcher_plugins(self.directory, self.group.plugins, self.writer.files)

    def durable_views(self) -> tuple[int, int]:
        """Return the store time up to which RocketMQ's views are on disk, and the offset that the index has reached."""
        enabled = [view for view in ROCKETMQ_VIEWS if view in self.group.members]
        if CONSUME_QUEUE not in enabled:
            return 0, 0
        timestamps = [self.group.durable_timestamp(view) or 0 for view in enabled]
        return min(timestamps), (self.group.durable_cursor(INDEX) or 0) if INDEX in enabled else 0

    def cursors_needed(self) -> dict[str, int | None]:
        """Return the offset from which each enabled dispatcher still needs the log, including that of a rebuild."""
        return {name: self.group.needed_from(name) for name in list(self.group.members)}

    def are_complete(self) -> bool:
        """Tell whether the views that RocketMQ reads are durable up to the log's end.

        An enabled view whose dispatcher has left the group is not complete.
        """
        end, durable = self.writer.appended, self.durable_cursors()
        enabled = [view for view in ROCKETMQ_VIEWS if view in self.writer.settings.dispatchers or view in durable]
        return all((durable.get(view) or 0) >= end for view in enabled)

    def pids(self) -> list[int]:
        """Return the processes of the group: this one, the supervisor, and those of the dispatchers."""
        others = [self.group.process.pid] if isinstance(self.group, ProcessGroup) and self.group.process else []
        return [os.getpid(), *others, *(row.pid for row in self.group.status() if row.pid is not None)]

    # Life.

    def end_release(self) -> None:
        """Publish all records that are held for a batch."""
        if self.ring is not None:
            self.ring.end_release()

    def close_ring(self) -> None:
        """Release the shared memory."""
        if self.ring is not None:
            self.ring.close()
