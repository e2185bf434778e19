"""Member: one dispatcher of the supervisor's group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from reput.process.control.control_messages import MemberInfo
from reput.process.dispatcher.batch_bound import BatchSize, smaller_batch
from reput.process.dispatcher.states import Phase, State, check_transition
from reput.process.logs.log_merger import LinePipe, RubbishPipe
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.describe import Question
from reput.process.plugin.description import PluginDescription
from reput.process.supervisor.backoff import Backoff
from reput.ring import Cell
from reput.settings import Settings

__all__ = ["Member"]


class Member:
    """One dispatcher: its description, its process if there is one, and its next state.

    Attributes:
        options: the options it was given.
        description: None: it was not described yet, or could not be.
        following_state: its state after STOPPING; BACKOFF, or FATAL: it was killed for taking too long.
        start_at: monotonic seconds, when the next process starts.
        killed_for: why the supervisor killed the process.
        stopped_for: why the supervisor asked the process to end; its end still counts as a death.
        first_batch: bound of the next process's first batch; None: no process was killed in the middle of one.
        awaited: the group's start waits for its description.
        late: the group started without its description.
        joining: its plugin is being described; it was not started yet.
        leaving: it leaves the group when it has stopped.
        when_left: called when it has left.
        root: the directory below which it builds its view; None: the group's. A member with a root is a shadow.
        shadow: rebuilds the view of this member; None: no rebuild is under way.
        on_stopped_for_swap: called with the exit code when the process, which was stopped for a swap of views, has
            ended; the rebuild starts the next one. None: no swap is under way.
    """

    def __init__(
        self,
        entry: CatalogueEntry,
        cell: Cell,
        settings: Settings,
        options: dict[str, object],
        root: Path | None = None,
    ) -> None:
        self.entry = entry
        self.options = options
        self.name = entry.name
        self.root = root
        self.shadow: Member | None = None
        self.on_stopped_for_swap: Callable[[Member, int], None] | None = None
        self.cell = cell
        self.settings = settings
        # The title of a shadow is in no list of essential dispatchers, so each rebuild has a restart limit.
        self.backoff = Backoff(self.title, settings)
        self.description: PluginDescription | None = None
        self.state = State.STOPPED
        self.following_state = State.STOPPED
        self.start_at = 0.0
        self.awaited = False
        self.late = False
        self.joining = False
        self.leaving = False
        self.when_left: list[Callable[[], None]] = []
        self.killed_for = self.stopped_for = ""
        self.first_batch: BatchSize | None = None
        self.pid: int | None = None
        self.pidfd = -1
        self.spawned_ns = 0
        self.lines: LinePipe | None = None
        self.rubbish: RubbishPipe | None = None

    @property
    def question(self) -> Question:
        """Return the question for its plugin."""
        return Question(self.entry, self.options)

    @property
    def info(self) -> MemberInfo:
        """Return what other processes learn about it."""
        shadow_slot = None if self.shadow is None else self.shadow.cell.slot
        return MemberInfo(self.entry, self.cell.slot, self.description, shadow_slot, self.options)

    @property
    def in_rebuild(self) -> bool:
        """Whether its view is being rebuilt, or it is the shadow that rebuilds one."""
        return self.shadow is not None or self.root is not None

    @property
    def is_swapping(self) -> bool:
        """Whether it is stopped for a swap of views; the rebuild starts it again afterwards."""
        return self.on_stopped_for_swap is not None

    @property
    def rebuild_progress(self) -> int | None:
        """Return the progress of the view that is being rebuilt beside this one, or None without a rebuild."""
        return None if self.shadow is None else self.shadow.cell.progress

    @property
    def title(self) -> str:
        """Its name in the group's log."""
        return self.name if self.root is None else f"{self.name}(rebuild)"

    def set_state(self, state: State) -> None:
        """Go to *state*, a step that `TRANSITIONS` allows, and show it in the cell."""
        check_transition(self.name, self.state, state)
        self.show_state(state)

    def show_state(self, state: State) -> None:
        """Show *state* in the cell."""
        self.state = state
        self.cell.set_state(state, time.time_ns() // 1_000_000)

    def time_limit_ns(self) -> int:
        """Return the end of the current phase's time limit, monotonic nanoseconds."""
        settings = self.settings
        heartbeat = self.cell.heartbeat_ns
        if heartbeat is None or heartbeat < self.spawned_ns:
            # The process has not sent a heartbeat yet; the one in the cell is its predecessor's.
            return self.spawned_ns + settings.dispatcher_start_time_max * 1_000_000
        limit_ms = {
            Phase.START: settings.dispatcher_start_time_max,
            Phase.FLUSH: settings.dispatcher_flush_time_max,
            Phase.EXPIRE: settings.dispatcher_expire_time_max,
        }.get(Phase(self.cell.phase or 0), settings.dispatcher_dispatch_time_max)
        return heartbeat + limit_ms * 1_000_000

    def learn_from_end(self, code: int) -> None:
        """Start the next process with a smaller batch if a signal ended this one within a batch."""
        in_batch = code < 0 and self.phase_name() == Phase.DISPATCH.name
        killed = BatchSize(self.cell.batch_record_count, self.cell.batch_size)
        self.first_batch = smaller_batch(killed) if in_batch else None

    def phase_name(self) -> str:
        """Return what the process is doing."""
        heartbeat = self.cell.heartbeat_ns
        if heartbeat is None or heartbeat < self.spawned_ns:
            return Phase.START.name
        return Phase(self.cell.phase or 0).name

    def release_process(self) -> None:
        """Read the last lines of a process that has ended, and close its descriptors."""
        if self.lines is not None:
            self.lines.close()
        if self.rubbish is not None:
            self.rubbish.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.lines = self.rubbish = None
        self.pid, self.pidfd = None, -1
        self.cell.set_pid(None)
