"""Member: one dispatcher, as the supervisor keeps it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from reput.process.supervisor.live_rebuild import LiveRebuild

__all__ = ["Member"]


class Member:
    """One dispatcher: what is known of it, its process if there is one, and what is to come next.

    Attributes:
        options: as they were given to it.
        description: None: it was not described yet, or could not be.
        following_state: where it goes when it has stopped; BACKOFF, or FATAL: it was killed for taking too long.
        start_at: monotonic seconds, when the next process is due.
        killed_for: why the supervisor killed the process.
        stopped_for: why the supervisor asked it to end, which counts as a death all the same.
        first_batch: bound of the next process's first batch; None: none was killed in the middle of one.
        joining: its plugin is asked what it declares; it was not started yet.
        leaving: it leaves the group when it has stopped.
        when_left: called when it has left.
        root: below which it builds its view; None: the group's.
        rebuild: in which it takes part, as the one that runs or as the one that builds anew.
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
        self.rebuild: LiveRebuild | None = None
        self.cell = cell
        self.settings = settings
        # A rebuild is given up at last, whatever it builds.
        self.backoff = Backoff(self.title, settings)
        self.description: PluginDescription | None = None
        self.state = State.STOPPED
        self.following_state = State.STOPPED
        self.start_at = 0.0
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
        """Return what its plugin is asked."""
        return Question(self.entry, self.options)

    @property
    def info(self) -> MemberInfo:
        """Return what others are told of it."""
        shadow = None if self.rebuild is None else self.rebuild.shadows.get(self.name)
        shadow_slot = None if shadow is None else shadow.cell.slot
        return MemberInfo(self.entry, self.cell.slot, self.description, shadow_slot, self.options)

    @property
    def rebuild_progress(self) -> int | None:
        """Return how far the view is that is being built anew beside this one, None if none is."""
        shadow = None if self.rebuild is None else self.rebuild.shadows.get(self.name)
        return None if shadow is None else shadow.cell.progress

    @property
    def title(self) -> str:
        """Return how the group's log names it."""
        return self.name if self.root is None else f"{self.name}(rebuild)"

    def set_state(self, state: State) -> None:
        """Go to *state*, which must be a step of the picture, and say so in the cell."""
        check_transition(self.name, self.state, state)
        self.show_state(state)

    def show_state(self, state: State) -> None:
        """Say in the cell what the state is."""
        self.state = state
        self.cell.set_state(state, time.time_ns() // 1_000_000)

    def time_limit_ns(self) -> int:
        """Return when the present phase has lasted too long, monotonic nanoseconds."""
        settings = self.settings
        heartbeat = self.cell.heartbeat_ns
        if heartbeat is None or heartbeat < self.spawned_ns:
            # The process has not come so far as to give a sign; what stands in the cell is its predecessor's.
            return self.spawned_ns + settings.dispatcher_start_time_max * 1_000_000
        limit_ms = {
            Phase.START: settings.dispatcher_start_time_max,
            Phase.FLUSH: settings.dispatcher_flush_time_max,
            Phase.EXPIRE: settings.dispatcher_expire_time_max,
        }.get(Phase(self.cell.phase or 0), settings.dispatcher_dispatch_time_max)
        return heartbeat + limit_ms * 1_000_000

    def learn_from_end(self, code: int) -> None:
        """Have the next process begin with less, if a signal, ours or the system's, ended this one within a batch."""
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
        """Take up the last lines of a process that has ended, and close what belonged to it."""
        if self.lines is not None:
            self.lines.close()
        if self.rubbish is not None:
            self.rubbish.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.lines = self.rubbish = None
        self.pid, self.pidfd = None, -1
        self.cell.set_pid(None)
