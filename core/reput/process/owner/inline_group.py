"""InlineGroup: the dispatchers' loops on one thread of the program, instead of processes over a ring.

For tests, notebooks and debuggers, and for machines that the ring does not cover. The loops are the same, and so are
their frames; `InlineRing` and `InlineCell` stand in for shared memory. Nothing isolates a plugin here: one that hangs
holds up the others, one that crashes the interpreter takes the program along.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reput.errors import ConfigError, DispatcherError, RingClosed, RingLapped, WaitTimeout
from reput.process.control.control_messages import RebuiltView
from reput.process.control.dispatcher_row import DispatcherRow, dispatcher_row
from reput.process.dispatcher.cursor_checks import StartRefused
from reput.process.dispatcher.dispatcher_loop import DispatcherLoop
from reput.process.dispatcher.hosted_loop import HostedLoop
from reput.process.dispatcher.states import State, StopMode, check_transition
from reput.process.frames.frame_publisher import FramePublisher
from reput.process.group.group_context import GroupContext
from reput.process.group.group_lock import LOCK_TIMEOUT_S, GroupLock
from reput.process.group.group_place import remove_place
from reput.process.owner.drain import await_drain, laggards
from reput.process.plugin.catalogue import CatalogueEntry, select_dispatchers
from reput.process.plugin.dispatcher_order import enabled_predecessors, in_order
from reput.process.plugin.plugin import Plugin, check_instance, convert_options, load_plugin
from reput.process.supervisor.backoff import Backoff
from reput.process.views.shadow_folders import ShadowFolders
from reput.store.service.threads import DEATH_ADVICE, StartedThread, Threads
from reput_hooks import DispatcherDescription

__all__ = ["InlineCell", "InlineGroup", "InlineRing"]

logger = logging.getLogger("reput.process")


class InlineCounter:
    """A named number."""

    def __init__(self) -> None:
        self.value = 0


class InlineCursor(NamedTuple):
    """The numbers of a durable cursor."""

    commit_log_offset: int
    epoch: int
    store_timestamp: int


class InlineRing:
    """The frames of the last while, for any number of readers. Reader and writer as `reput.ring` has them.

    Attributes:
        changed: notified at every publication and every progress.
        version: raised with it, so that nobody sleeps over a change.
    """

    def __init__(
        self, *, capacity: int, appended: int, durable: int, commit_log_offset_min: int, epoch: int, ordinal: int
    ) -> None:
        self.capacity = capacity
        self.frame_size_max = capacity // 4
        self.appended: int | None = appended
        self.durable: int | None = durable
        self.commit_log_offset_min: int | None = commit_log_offset_min
        self.epoch: int | None = epoch
        self.ordinal: int | None = ordinal
        self.closed = False
        self.changed = threading.Condition()
        self.version = 0
        self.frames: deque[bytes] = deque()
        self.first = 0
        self.size = 0

    def publish(self, frame: bytes, appended: int, ordinal: int) -> None:
        """Hand *frame* to all readers; the oldest go when there are more than `capacity` bytes."""
        with self.changed:
            self.frames.append(frame)
            self.size += len(frame)
            while self.size > self.capacity:
                self.size -= len(self.frames.popleft())
                self.first += 1
            self.appended = appended
            self.ordinal = ordinal
            self.notify()

    def notify(self) -> None:
        """Wake all who wait; the caller holds `changed`."""
        self.version += 1
        self.changed.notify_all()

    def set_durable(self, durable: int) -> None:
        """Say that the log is forced to disk up to *durable*."""
        with self.changed:
            self.durable = durable
            self.notify()

    def set_commit_log_offset_min(self, commit_log_offset_min: int) -> None:
        """Say that the log was trimmed."""
        self.commit_log_offset_min = commit_log_offset_min

    def set_epoch(self, epoch: int) -> None:
        """Say that another epoch has begun."""
        self.epoch = epoch

    def close(self) -> None:
        """Say that no frame will follow."""
        with self.changed:
            self.closed = True
            self.notify()


class InlineJoined(NamedTuple):
    """Up to *appended* the commit log has to be read."""

    appended: int


class InlineReader:
    """The reading end of an `InlineRing` for one loop."""

    def __init__(self, ring: InlineRing, cell: InlineCell) -> None:
        self.ring = ring
        self.cell = cell
        self.position = 0
        self.header = ring

    def join(self) -> InlineJoined:
        """Go to the present end."""
        with self.ring.changed:
            self.position = self.ring.first + len(self.ring.frames)
            return InlineJoined(self.ring.appended or 0)

    def read(self, size_max: int = 1 << 20) -> list[bytes]:
        """Return the frames from the present position on, up to *size_max* bytes but at least one.

        Raises:
            RingLapped: some of them are gone.
            RingClosed: all was read, and no frame will follow.
        """
        ring = self.ring
        with ring.changed:
            index = self.position - ring.first
            if index < 0:
                self.cell.lapped_count += 1
                raise RingLapped(f"the writer lapped this reader: position={self.position} first={ring.first}")
            taken: list[bytes] = []
            size = 0
            while index < len(ring.frames) and (not taken or size + len(ring.frames[index]) <= size_max):
                taken.append(ring.frames[index])
                size += len(ring.frames[index])
                index += 1
            self.position = ring.first + index
            if not taken and ring.closed:
                raise RingClosed("the ring was closed by its writer, and all of it was read")
            return taken


class InlineCell:
    """The numbers of one dispatcher, as `reput.ring.cell.Cell` has them; written by the group's thread."""

    def __init__(self, name: str, slot: int, ring: InlineRing) -> None:
        self.name = name
        self.slot = slot
        self.ring = ring
        self.state: int | None = State.STOPPED
        self.pid: int | None = None
        self.restart_count = 0
        self.generation = 0
        self.progress: int | None = None
        self.ordinal_dispatched: int | None = None
        self.durable_cursor: InlineCursor | None = None
        self.heartbeat_ns: int | None = None
        self.phase: int | None = None
        self.batch_count = self.batch_record_count = self.batch_size = 0
        self.lapped_count = 0
        self.gap_bytes = 0
        self.rejected_count = 0
        # The group's thread is woken by every change and has no back-stop that anything could hide behind.
        self.backstop_count = 0
        self.error: str | None = None
        self._counters: dict[str, InlineCounter] = {}

    @property
    def counters(self) -> dict[str, int]:
        """The plugin's own numbers."""
        return {name: counter.value for name, counter in self._counters.items()}

    def set_progress(self, commit_log_offset: int, ordinal: int | None) -> None:
        with self.ring.changed:
            self.ordinal_dispatched = ordinal
            self.progress = commit_log_offset
            self.ring.notify()

    def forget_progress(self) -> None:
        self.progress = self.ordinal_dispatched = None

    def is_asked_for(self) -> bool:
        """Return True: this loop need not be woken, so there is nothing to be gained from letting frames gather."""
        return True

    def raise_generation(self) -> int:
        self.generation += 1
        return self.generation

    def set_durable_cursor(self, commit_log_offset: int, epoch: int, store_timestamp: int) -> None:
        self.durable_cursor = InlineCursor(commit_log_offset, epoch, store_timestamp)

    def beat(self) -> None:
        self.heartbeat_ns = time.monotonic_ns()

    def set_phase(self, phase: int | None) -> None:
        self.heartbeat_ns = time.monotonic_ns()
        self.phase = phase

    def set_batch(self, record_count: int, size: int) -> None:
        self.batch_record_count, self.batch_size = record_count, size

    def add_batch(self) -> None:
        self.batch_count += 1

    def set_gap_bytes(self, gap_bytes: int) -> None:
        self.gap_bytes = gap_bytes

    def set_rejected_count(self, rejected_count: int) -> None:
        self.rejected_count = rejected_count

    def set_error(self, text: str | None) -> None:
        self.error = text

    def set_state(self, state: State) -> None:
        """Go to *state*, which must be a step of the picture."""
        check_transition(self.name, State(self.state or 0), state)
        with self.ring.changed:
            self.state = state
            self.ring.notify()

    def counter(self, name: str) -> InlineCounter:
        return self._counters.setdefault(name, InlineCounter())


class Member:
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
        """What runs now, if anything does."""
        return self.hosted.loop if self.hosted is not None else None


class InlineGroup:
    """The dispatchers of one store, on one thread. It has the methods of `ProcessGroup`, and no processes."""

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
        """*on_durable_awaited* is called when a dispatcher has nothing to do until more of the log is durable."""
        self.on_durable_awaited = on_durable_awaited
        self.context = context
        self.ring = ring
        self.now = now
        self.lock_timeout = lock_timeout
        self.lock = GroupLock(context.view_directory)
        self.members: dict[str, Member] = {}
        self.order: list[str] = []
        self.stop: StopMode | None = None
        self.threads = threads or Threads()
        self.thread: StartedThread | None = None
        # Why the thread has died.
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
        """Whether an enabled dispatcher is shown only what is durable, and so waits for each force."""
        return any(member.description.reads == "durable" for member in self.members.values())

    def publisher(self) -> FramePublisher:
        """Return what the writer is to tell its progress to."""
        return FramePublisher(self.ring, self.ring.epoch or 0)

    def start(self) -> None:
        """Import all enabled dispatchers and begin to run them.

        Raises:
            ConfigError: a dispatcher is unknown, its options are wrong, or some come after each other in a circle.
            DispatcherError: another process group works on the store's views.
        """
        settings = self.context.settings
        for slot, entry in enumerate(select_dispatchers(settings.dispatchers, settings.dispatcher_plugins)):
            cell = InlineCell(entry.name, slot, self.ring)
            member = self.members[entry.name] = Member(entry, cell, Backoff(entry.name, settings))
            self.load(member)
        self.order = in_order({name: member.description.after for name, member in self.members.items()})
        self.take_lock()
        try:
            for name in ShadowFolders(self.context.view_directory).settle():
                if name in self.members:
                    self.members[name].cell.raise_generation()
            # Before the thread comes to run: a group that is drained at once takes in what is there, too.
            for name in self.order:
                self.start_when_due(self.members[name])
            self.thread = self.threads.start("reput-dispatchers", self.run, self.thread_died)
        except BaseException:
            self.lock.release()
            raise

    def load(self, member: Member) -> None:
        """Import one plugin; BROKEN if that fails."""
        try:
            member.plugin = load_plugin(member.name, member.entry.module)
            member.description = member.plugin.describe()
            check_instance(member.entry, member.description.store_folders)
            member.options = convert_options(member.name, self.context.options(member.name), member.description.options)
        except ConfigError:
            raise
        except (Exception, SystemExit):
            member.cell.set_error(traceback.format_exc())
            member.cell.set_state(State.BROKEN)
            logger.exception("dispatcher cannot be imported: dispatcher=%s", member.name)

    def take_lock(self) -> None:
        """Take the group's lock; a group that was killed gives it up when its last process has ended."""
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
        # What a killed group has left: nobody listens there.
        remove_place(self.context.view_directory)

    def run(self) -> None:
        """Run the loops until they are all finished; the group's thread."""
        while True:
            version = self.ring.version
            if sum([self.work(self.members[name]) for name in self.order]):
                continue
            if self.stop is not None and all(member.loop is None for member in self.members.values()):
                return
            timeout = min([self.patience(member) for member in self.members.values()], default=0.1)
            with self.ring.changed:
                if self.ring.version == version:
                    self.ring.changed.wait(timeout)

    def thread_died(self, reason: str) -> None:
        """End all waits: the thread has died. What its loops hold goes with them."""
        with self.ring.changed:
            self.death = reason
            self.ring.notify()

    def patience(self, member: Member) -> float:
        """Return for how many seconds nothing can be due for *member* unless the ring changes."""
        if member.loop is not None:
            wait = member.loop.waiting()
            if wait.durable is not None and (self.ring.durable or 0) < wait.durable <= (self.ring.appended or 0):
                self.on_durable_awaited()
            return wait.timeout
        if member.cell.state == State.BACKOFF:
            return max(0.0, member.start_at - self.now())
        return 0.1

    def work(self, member: Member) -> int:
        """Let one dispatcher do a piece of work; return how much it did."""
        loop = member.loop
        if loop is None:
            return self.start_when_due(member)
        if self.stop is StopMode.NOW or (self.stop and loop.stop is None and self.predecessors_finished(member)):
            loop.request_stop(self.stop)
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

    def start_when_due(self, member: Member) -> int:
        """Begin a loop, for the first time or again."""
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

    def host(self, member: Member) -> HostedLoop:
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

    def predecessors_finished(self, member: Member) -> bool:
        return all(self.members[name].loop is None for name in member.description.after if name in self.members)

    def fail(self, member: Member, loop: DispatcherLoop, error: BaseException) -> None:
        """Take up an exception of the plugin: start again later, or not at all."""
        text = traceback.format_exc()
        logger.exception(
            "dispatcher failed: dispatcher=%s distribution=%s version=%s commit_log_offset=%d",
            member.name,
            member.entry.distribution,
            member.entry.version,
            loop.cursor.commit_log_offset,
        )
        member.cell.set_error(text)
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

    def end(self, member: Member) -> None:
        """Release what the loop of *member* held."""
        if member.hosted is not None:
            member.hosted.close()
        member.hosted = None

    # Of the owner's threads.

    def member(self, name: str) -> Member:
        """Return one dispatcher.

        Raises:
            DispatcherError: it is not enabled.
        """
        if name not in self.members:
            raise DispatcherError(f"dispatcher is not enabled: dispatcher={name} enabled={','.join(self.members)}")
        return self.members[name]

    def progress(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view is readable, None if that is not known."""
        return self.member(name).cell.progress

    def durable_timestamp(self, name: str) -> int | None:
        """Return the store time (ms) of the last record that the view has on disk, None if that is not known."""
        cursor = self.member(name).cell.durable_cursor
        return None if cursor is None else cursor.store_timestamp

    def durable_cursor(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view survives a power cut, None if that is not known."""
        cursor = self.member(name).cell.durable_cursor
        return None if cursor is None else cursor.commit_log_offset

    def needed_from(self, name: str) -> int | None:
        """Return the commit-log offset from which on the dispatcher still needs the log, None if that is not known."""
        return self.durable_cursor(name)

    def generation(self, name: str) -> int:
        """Return the number of the view, which is raised whenever it is made anew."""
        return self.member(name).cell.generation

    def rebuild(self, views: Sequence[str], *, force: bool = False) -> list[RebuiltView]:
        """Refuse: there is no second process that could build beside the thread.

        Raises:
            DispatcherError: always.
        """
        raise DispatcherError(
            f"a store that is open inline rebuilds no view: views={','.join(views)}",
            'Open it with mode="processes", or close it and use `reput rebuild`.',
        )

    def wait_for(self, name: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when the view of *name* is readable up to *commit_log_offset*.

        Raises:
            WaitTimeout: it was not in *timeout* seconds.
            DispatcherError: it is not enabled, or does not run and never will by itself.
        """
        cell = self.member(name).cell

        def over() -> bool:
            ended = self.stop is not None and cell.state == State.STOPPED
            return ended or self.death is not None or cell.state in (State.FATAL, State.BROKEN) or reached()

        def reached() -> bool:
            return cell.progress is not None and cell.progress >= commit_log_offset

        with self.ring.changed:
            self.ring.changed.wait_for(over, timeout)
        if reached():
            return
        if self.death is not None:
            raise DispatcherError(self.death, DEATH_ADVICE)
        if over():
            raise DispatcherError(f"dispatcher does not run: dispatcher={name} state={State(cell.state or 0).name}")
        raise WaitTimeout(
            f"dispatcher did not come so far in time: dispatcher={name} commit_log_offset={commit_log_offset} "
            f"progress={cell.progress} timeout={timeout}"
        )

    async def await_for(self, name: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """As `wait_for`, for a task of any event loop."""
        await asyncio.to_thread(self.wait_for, name, commit_log_offset, timeout)

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
        """Have all dispatchers take in what is there, those that others come after first, flush, and end.

        After *timeout* seconds they end where they are. A plugin that does not return even then keeps its thread, and
        with it the group's lock: no other group works on the views meanwhile.
        """
        self.tell(StopMode.DRAIN)
        if await_drain(self.join, lambda: self.tell(StopMode.NOW), lambda: laggards(self.status()), timeout):
            self.lock.release()
        else:
            logger.error(
                "a dispatcher does not return, and its thread goes on: bytes_behind=%s", laggards(self.status())
            )

    def tell(self, stop: StopMode) -> None:
        """Have the thread end."""
        self.stop = stop
        with self.ring.changed:
            self.ring.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end at most for so long; return whether it has ended."""
        if self.thread is not None:
            self.thread.join(seconds)
        return self.thread is None or not self.thread.is_alive()

    def forget(self) -> None:
        """In a forked child of the program: there is no thread here, and the lock is the parent's."""
        self.lock.release()
