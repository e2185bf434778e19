"""InlineGroup: runs the dispatchers' loops on one thread of the program, instead of in processes over a ring.

For tests, notebooks and debuggers, and for machines that the ring does not support. The loops and frames are the same;
`inline_ring.py` replaces shared memory. Plugins are not isolated here: a plugin that hangs delays the others, and one
that crashes the interpreter ends the program.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from reput.errors import ConfigError, DispatcherError, WaitTimeout
from reput.in_thread import in_thread
from reput.process.control.control_messages import RebuiltView
from reput.process.control.dispatcher_row import DispatcherRow, dispatcher_row
from reput.process.dispatcher.cursor_checks import StartRefused
from reput.process.dispatcher.dispatcher_loop import DispatcherLoop
from reput.process.dispatcher.hosted_loop import HostedLoop
from reput.process.dispatcher.states import State, StopMode
from reput.process.frames.frame_publisher import FramePublisher
from reput.process.group.group_context import GroupContext
from reput.process.group.group_lock import LOCK_TIMEOUT_S, GroupLock
from reput.process.group.group_place import remove_place
from reput.process.logs.exception_text import exception_text
from reput.process.owner.drain import await_drain, laggards
from reput.process.owner.inline_ring import InlineCell, InlineReader, InlineRing
from reput.process.plugin.catalogue import CatalogueEntry, select_dispatchers
from reput.process.plugin.dispatcher_order import enabled_predecessors, in_order
from reput.process.plugin.plugin import Plugin, check_instance, convert_options, load_plugin
from reput.process.supervisor.backoff import Backoff
from reput.process.views.shadow_folders import ShadowFolders
from reput.store.service.threads import DEATH_ADVICE, StartedThread, Threads
from reput_hooks import DispatcherDescription

__all__ = ["InlineGroup"]

logger = logging.getLogger("reput.process")


class InlineMember:
    """One dispatcher of the group, running or not."""

    def __init__(self, entry: CatalogueEntry, cell: InlineCell, backoff: Backoff) -> None:
        self.entry = entry
        self.name = entry.name
        self.cell = cell
        self.backoff = backoff
        self.description = DispatcherDescription()
        self.plugin: Plugin | None = None
        self.options: object = None
        self.hosted: HostedLoop | None = None
        self.start_at = 0.0

    @property
    def loop(self) -> DispatcherLoop | None:
        """The running loop, None if there is none."""
        return self.hosted.loop if self.hosted is not None else None


class InlineGroup:
    """The dispatchers of one store, on one thread. It has the methods of `ProcessGroup`, but no processes."""

    def __init__(
        self,
        context: GroupContext,
        ring: InlineRing,
        *,
        now: Callable[[], float] = time.monotonic,
        lock_timeout: float = LOCK_TIMEOUT_S,
        on_durable_awaited: Callable[[], None] = lambda: None,
        threads: Threads | None = None,
    ) -> None:
        """*on_durable_awaited* is called when a dispatcher waits for more of the log to become durable."""
        self.on_durable_awaited = on_durable_awaited
        self.context = context
        self.ring = ring
        self.now = now
        self.lock_timeout = lock_timeout
        self.lock = GroupLock(context.view_directory)
        self.members: dict[str, InlineMember] = {}
        self.order: list[str] = []
        self.stop: StopMode | None = None
        self.threads = threads or Threads()
        self.thread: StartedThread | None = None
        # Why the thread died.
        self.death: str | None = None

    @property
    def plugins(self) -> dict[str, str]:
        """The plugin of each enabled dispatcher, by the dispatcher's name."""
        return {name: member.entry.plugin for name, member in self.members.items()}

    @property
    def needs_properties(self) -> bool:
        """Whether an enabled dispatcher wants the raw properties in its requests."""
        return any(member.description.needs_properties for member in self.members.values())

    @property
    def reads_durable(self) -> bool:
        """Whether an enabled dispatcher reads only durable records, and therefore waits for each force."""
        return any(member.description.reads == "durable" for member in self.members.values())

    def publisher(self) -> FramePublisher:
        """Return the publisher for the writer's progress."""
        return FramePublisher(self.ring, self.ring.epoch or 0)

    def start(self) -> None:
        """Import all enabled dispatchers and begin to run them.

        Raises:
            ConfigError: a dispatcher is unknown, its options are wrong, or the order of dispatchers has a cycle.
            DispatcherError: another process group works on the store's views.
        """
        settings = self.context.settings
        for slot, entry in enumerate(select_dispatchers(settings.dispatchers, settings.dispatcher_plugins)):
            cell = InlineCell(entry.name, slot, self.ring)
            member = self.members[entry.name] = InlineMember(entry, cell, Backoff(entry.name, settings))
            self.load(member)
        self.order = in_order({name: member.description.after for name, member in self.members.items()})
        self.take_lock()
        try:
            for name in ShadowFolders(self.context.view_directory).settle():
                if name in self.members:
                    self.members[name].cell.raise_generation()
            # Before the thread runs: a group that drains at once still takes in existing records.
            for name in self.order:
                self.start_when_due(self.members[name])
            self.thread = self.threads.start("reput-dispatchers", self.run, self.thread_died)
        except BaseException:
            self.lock.release()
            raise

    def load(self, member: InlineMember) -> None:
        """Import one plugin; BROKEN if that fails."""
        try:
            member.plugin = load_plugin(member.name, member.entry.module)
            member.description = member.plugin.describe()
            check_instance(member.entry, member.description.store_folders)
            member.options = convert_options(member.name, self.context.options(member.name), member.description.options)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            member.cell.set_error(exception_text(error))
            member.cell.set_state(State.BROKEN)
            logger.exception("dispatcher cannot be imported: dispatcher=%s", member.name)

    def take_lock(self) -> None:
        """Take the group's lock; a killed group releases it when its last process has ended."""
        deadline = self.now() + self.lock_timeout
        pause = threading.Event()
        while not self.lock.try_take():
            if self.now() > deadline:
                raise DispatcherError(
                    f"another process group works on the views of this store: store={self.context.store_directory}",
                    "It ends within a second of its owner; if it does not, see `reput status`.",
                )
            pause.wait(0.02)
        self.lock.withhold()
        # A killed group leaves its socket behind, on which no process listens any more.
        remove_place(self.context.view_directory)

    def run(self) -> None:
        """Run the loops until all are finished; the group's thread."""
        while True:
            version = self.ring.version
            if sum([self.work(self.members[name]) for name in self.order]):
                continue
            if self.stop is not None and all(member.loop is None for member in self.members.values()):
                return
            timeout = min([self.patience(member) for member in self.members.values()], default=0.1)
            with self.ring.lock:
                if self.ring.version == version:
                    self.ring.changed.wait(timeout)

    def thread_died(self, reason: str) -> None:
        """End all waits, since the thread has died. Its loops are lost."""
        with self.ring.lock:
            self.death = reason
            self.ring.notify()

    def patience(self, member: InlineMember) -> float:
        """Return for how many seconds *member* has no work unless the ring changes."""
        if member.loop is not None:
            wait = member.loop.waiting()
            if wait.durable is not None and (self.ring.durable or 0) < wait.durable <= (self.ring.appended or 0):
                self.on_durable_awaited()
            return wait.timeout
        if member.cell.state == State.BACKOFF:
            return max(0.0, member.start_at - self.now())
        return 0.1

    def work(self, member: InlineMember) -> int:
        """Let one dispatcher do a piece of work; return how much it did."""
        loop = member.loop
        if loop is None:
            return self.start_when_due(member)
        if self.stop is StopMode.NOW or (self.stop and loop.stop is None and self.predecessors_finished(member)):
            loop.request_stop(self.stop)
            # A drain that takes too long is cut short, by NOW after DRAIN.
            if member.cell.state != State.STOPPING:
                member.cell.set_state(State.STOPPING)
        try:
            work = loop.do_work()
        except (Exception, SystemExit) as error:
            self.fail(member, loop, error)
            return 1
        if loop.finished:
            self.end(member)
            member.cell.set_state(State.STOPPED)
        elif member.cell.state == State.STARTING:
            member.cell.set_state(State.RUNNING)
        return work

    def start_when_due(self, member: InlineMember) -> int:
        """Start or restart a loop when it is due."""
        state = member.cell.state
        if self.stop is not None:
            if state == State.BACKOFF:
                member.cell.set_state(State.STOPPED)
            return 0
        if state not in (State.STOPPED, State.BACKOFF) or self.now() < member.start_at:
            return 0
        member.cell.set_state(State.STARTING)
        member.hosted = self.host(member)
        return 1

    def host(self, member: InlineMember) -> HostedLoop:
        """Return a loop that begins at the durable cursor."""
        assert member.plugin is not None
        predecessors = enabled_predecessors({name: other.description.after for name, other in self.members.items()})
        return HostedLoop(
            self.context,
            member.plugin,
            member.description,
            member.options,
            root=self.context.view_directory,
            reader=InlineReader(self.ring, member.cell),
            cell=member.cell,
            predecessors=[self.members[name].cell for name in predecessors[member.name]],
            now=self.now,
        )

    def predecessors_finished(self, member: InlineMember) -> bool:
        return all(self.members[name].loop is None for name in member.description.after if name in self.members)

    def fail(self, member: InlineMember, loop: DispatcherLoop, error: BaseException) -> None:
        """Handle an exception of the plugin: restart later, or give up."""
        logger.exception(
            "dispatcher failed: dispatcher=%s distribution=%s version=%s commit_log_offset=%d",
            member.name,
            member.entry.distribution,
            member.entry.version,
            loop.cursor.commit_log_offset,
        )
        member.cell.set_error(exception_text(error))
        self.end(member)
        pause = None if isinstance(error, StartRefused) else member.backoff.failed(member.cell.progress)
        if member.cell.state == State.STOPPING:
            member.cell.set_state(State.STOPPED)
        elif pause is None:
            member.cell.set_state(State.FATAL)
        else:
            member.cell.restart_count += 1
            member.start_at = self.now() + pause
            member.cell.set_state(State.BACKOFF)

    def end(self, member: InlineMember) -> None:
        """Release the resources of *member*'s loop."""
        if member.hosted is not None:
            member.hosted.close()
        member.hosted = None

    # Called by the owner's threads.

    def member(self, name: str) -> InlineMember:
        """Return one dispatcher.

        Raises:
            DispatcherError: it is not enabled.
        """
        if name not in self.members:
            raise DispatcherError(f"dispatcher is not enabled: dispatcher={name} enabled={','.join(self.members)}")
        return self.members[name]

    def progress(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view is readable, None if unknown."""
        return self.member(name).cell.progress

    def durable_timestamp(self, name: str) -> int | None:
        """Return the store time (ms) of the last record that the view has on disk, None if unknown."""
        cursor = self.member(name).cell.durable_cursor
        return None if cursor is None else cursor.store_timestamp

    def durable_cursor(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view survives a power cut, None if unknown."""
        cursor = self.member(name).cell.durable_cursor
        return None if cursor is None else cursor.commit_log_offset

    def needed_from(self, name: str) -> int | None:
        """Return the commit-log offset from which on the dispatcher still needs the log, None if unknown."""
        return self.durable_cursor(name)

    def generation(self, name: str) -> int:
        """Return the number of the view, which grows with each rebuild."""
        return self.member(name).cell.generation

    def rebuild(self, views: Sequence[str], *, force: bool = False) -> list[RebuiltView]:
        """Refuse: no second process could build the view beside the thread.

        Raises:
            DispatcherError: always.
        """
        raise DispatcherError(
            f"a store in inline mode cannot rebuild views: views={','.join(views)}",
            'Open it with mode="processes", or close it and use `reput rebuild`.',
        )

    def wait_for(self, name: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when the view of *name* is readable up to *commit_log_offset*.

        Raises:
            WaitTimeout: it is not within *timeout* seconds.
            DispatcherError: it is not enabled, or has stopped for good.
        """
        cell = self.member(name).cell

        def over() -> bool:
            ended = self.stop is not None and cell.state == State.STOPPED
            return ended or self.death is not None or cell.state in (State.FATAL, State.BROKEN) or reached()

        def reached() -> bool:
            return cell.progress is not None and cell.progress >= commit_log_offset

        with self.ring.lock:
            self.ring.changed.wait_for(over, timeout)
        if reached():
            return
        if self.death is not None:
            raise DispatcherError(self.death, DEATH_ADVICE)
        if over():
            raise DispatcherError(f"dispatcher does not run: dispatcher={name} state={State(cell.state or 0).name}")
        raise WaitTimeout(
            f"dispatcher did not reach the offset in time: dispatcher={name} commit_log_offset={commit_log_offset} "
            f"progress={cell.progress} timeout={timeout}"
        )

    async def await_for(self, name: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Like `wait_for`, for a task of any event loop."""
        await in_thread(self.wait_for, name, commit_log_offset, timeout)

    def status(self) -> list[DispatcherRow]:
        """Return a row per enabled dispatcher."""
        return [
            dispatcher_row(
                member.entry,
                member.cell,
                self.ring,
                self.context.store_directory,
            )
            for member in self.members.values()
        ]

    def drain_and_stop(self, timeout: float = math.inf) -> None:
        """Let all dispatchers take in the existing records, predecessors first, then flush and end.

        After *timeout* seconds they stop where they are. If a plugin still does not return, it keeps its thread and the
        group's lock, so no other group can work on the views.
        """
        self.tell(StopMode.DRAIN)
        if await_drain(self.join, lambda: self.tell(StopMode.NOW), lambda: laggards(self.status()), timeout):
            self.lock.release()
        else:
            logger.error(
                "a dispatcher does not return, and its thread still runs: bytes_behind=%s", laggards(self.status())
            )

    def tell(self, stop: StopMode) -> None:
        """Ask the thread to end."""
        self.stop = stop
        with self.ring.lock:
            self.ring.notify()

    def join(self, seconds: float) -> bool:
        """Wait up to this many seconds for the thread's end; return whether it has ended."""
        if self.thread is not None:
            self.thread.join(seconds)
        return self.thread is None or not self.thread.is_alive()

    def forget(self) -> None:
        """Called in a forked child of the program: the thread does not exist here, and the lock is the parent's."""
        self.lock.release()
