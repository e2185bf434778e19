"""MemberProgress: what the cells of a group's dispatchers say of their views, and waits for it.

Each dispatcher writes its cell; the owner reads it, without a request to the supervisor.
"""

from __future__ import annotations

import time

from reput.errors import DispatcherError, WaitTimeout
from reput.process.control.control_messages import MemberInfo
from reput.process.control.dispatcher_row import DispatcherRow, dispatcher_row
from reput.process.dispatcher.states import State
from reput.process.group.group_context import GroupContext
from reput.ring import CellView, ProgressWaiter, RingMemory, WaitOutcome

__all__ = ["MemberProgress"]

# How often a wait for progress checks the dispatcher's state: only an operator ends FATAL and BROKEN.
STATE_LOOK_S = 1.0


class MemberProgress:
    """The views of one group's dispatchers. Any thread may call.

    Attributes:
        members: the enabled dispatchers, by name; replaced as a whole.
    """

    def __init__(self, context: GroupContext, memory: RingMemory) -> None:
        self.context = context
        self.memory = memory
        self.progress_waiter = ProgressWaiter(memory)
        self.members: dict[str, MemberInfo] = {}

    def require_watch(self) -> None:
        """Refuse a call that needs the group to be watched if it is watched no more.

        Raises:
            DispatcherError: the watching thread has died.
        """
        raise NotImplementedError

    @property
    def plugins(self) -> dict[str, str]:
        """The plugin of each enabled dispatcher, by the dispatcher's name."""
        return {name: member.entry.plugin for name, member in list(self.members.items())}

    @property
    def needs_properties(self) -> bool:
        """Whether an enabled dispatcher wants the raw properties in its requests."""
        return any(
            member.description.needs_properties for member in self.members.values() if member.description is not None
        )

    @property
    def reads_durable(self) -> bool:
        """Whether an enabled dispatcher reads only durable bytes, and so waits for each flush of the log."""
        return any(
            member.description.reads == "durable" for member in self.members.values() if member.description is not None
        )

    def cell(self, name: str) -> CellView:
        """Return the cell of one dispatcher.

        Raises:
            DispatcherError: the dispatcher is not enabled.
        """
        member = self.members.get(name)
        if member is None:
            raise DispatcherError(f"dispatcher is not enabled: dispatcher={name} enabled={','.join(self.members)}")
        return self.memory.view(member.slot)

    def progress(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view is readable, or None if unknown."""
        cell = self.cell(name)
        self.progress_waiter.note(cell.slot)
        return cell.progress

    def durable_timestamp(self, name: str) -> int | None:
        """Return the store time (ms) of the last record that the view has on disk, or None if unknown."""
        cursor = self.cell(name).durable_cursor
        return None if cursor is None else cursor.store_timestamp

    def durable_cursor(self, name: str) -> int | None:
        """Return the commit-log offset up to which the view survives a power cut, or None if unknown."""
        cursor = self.cell(name).durable_cursor
        return None if cursor is None else cursor.commit_log_offset

    def generation(self, name: str) -> int:
        """Return the generation of the view; it grows each time another view replaces this one."""
        return self.cell(name).generation

    def needed_from(self, name: str) -> int | None:
        """Return the first commit-log offset that the dispatcher still needs, or None if unknown.

        A view that is being rebuilt needs the whole log.
        """
        member = self.members.get(name)
        durable = self.durable_cursor(name)
        if member is None or member.shadow_slot is None or durable is None:
            return durable
        cursor = self.memory.view(member.shadow_slot).durable_cursor
        return 0 if cursor is None else min(durable, cursor.commit_log_offset)

    def wait_for(self, name: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Return when the view of *name* is readable up to *commit_log_offset*.

        Raises:
            WaitTimeout: the view was not readable so far within *timeout* seconds.
            DispatcherError: the dispatcher is not enabled, or it is FATAL or BROKEN, or the group was stopped.
        """
        cell = self.cell(name)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = STATE_LOOK_S if deadline is None else min(STATE_LOOK_S, deadline - time.monotonic())
            outcome = self.progress_waiter.wait(cell.slot, commit_log_offset, max(0.0, remaining))
            if outcome is WaitOutcome.REACHED:
                return
            self.check_wait(name, cell, commit_log_offset, timeout, deadline, outcome)

    async def await_for(self, name: str, commit_log_offset: int, timeout: float | None = None) -> None:
        """Like `wait_for`, for a task of any event loop."""
        cell = self.cell(name)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = STATE_LOOK_S if deadline is None else min(STATE_LOOK_S, deadline - time.monotonic())
            outcome = await self.progress_waiter.wait_async(cell.slot, commit_log_offset, max(0.0, remaining))
            if outcome is WaitOutcome.REACHED:
                return
            self.check_wait(name, cell, commit_log_offset, timeout, deadline, outcome)

    def check_wait(
        self,
        name: str,
        cell: CellView,
        commit_log_offset: int,
        timeout: float | None,
        deadline: float | None,
        outcome: WaitOutcome,
    ) -> None:
        """Raise if further waiting is useless."""
        if outcome is WaitOutcome.CLOSED:
            self.require_watch()
            raise DispatcherError(f"the process group was stopped: dispatcher={name}")
        state = State(cell.state or 0)
        if state in (State.FATAL, State.BROKEN):
            raise DispatcherError(
                f"dispatcher does not run: dispatcher={name} state={state.name}",
                f"See its error in `reput status`; then `reput dispatcher resume STORE {name}`.",
            )
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(
                f"dispatcher did not come so far in time: dispatcher={name} commit_log_offset={commit_log_offset} "
                f"progress={cell.progress} state={state.name} timeout={timeout}"
            )

    def status(self) -> list[DispatcherRow]:
        """Return a row per enabled dispatcher."""
        return [
            dispatcher_row(
                member.entry,
                self.memory.view(member.slot),
                self.memory.header,
                self.context.store_directory,
                None if member.shadow_slot is None else self.memory.view(member.shadow_slot).progress,
            )
            for member in self.members.values()
        ]
