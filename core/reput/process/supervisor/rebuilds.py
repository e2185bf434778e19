"""Rebuilds: the current rebuild, and the stale views that wait for one."""

from __future__ import annotations

from collections.abc import Sequence

from reput.errors import DispatcherError, ReputError
from reput.process.control.control_messages import RebuiltView
from reput.process.dispatcher.states import State
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.live_rebuild import Done, LiveRebuild

__all__ = ["Rebuilds"]


class Rebuilds:
    """The rebuilds of one group, one at a time.

    Attributes:
        current: the rebuild that is under way, until its shadow is removed.
    """

    def __init__(self, group: DispatcherGroup) -> None:
        self.group = group
        self.current: LiveRebuild | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a rebuild is under way, or a stale view waits for one."""
        return self.current is not None or bool(self.group.stale.waiting)

    def request(self, names: Sequence[str], done: Done, *, force: bool) -> None:
        """Begin a requested rebuild; calls *done* with the rebuilt views, or with the error.

        Raises:
            DispatcherError: another rebuild is under way, or a view cannot be rebuilt.
            ConfigError: a view lies elsewhere, and *force* is not set.
        """
        if self.current is None:
            self.current = LiveRebuild(self.group, names, done, force=force)
            self.current.begin()
        elif set(names) <= self.current.renews:
            # These views are being rebuilt already, for their new format.
            self.current.done.append(done)
        else:
            views = ",".join(self.current.members)
            raise DispatcherError(f"another rebuild is running: views={views}", "Wait for its end.")

    def look(self) -> None:
        """Advance the current rebuild, forget it if it is over, and begin the next."""
        if self.current is not None:
            self.current.look()
            if self.current.finished:
                self.current = None
        self.begin_waiting()

    def begin_waiting(self) -> None:
        """Rebuild the stale views that wait, unless another rebuild is under way."""
        stale = self.group.stale
        names = [name for name in self.group.members if name in stale.waiting]
        if not names or self.current is not None or self.group.finished:
            return
        stale.waiting.clear()
        try:
            self.current = LiveRebuild(self.group, names, lambda outcome: self.on_renewed(names, outcome), renews=names)
        except ReputError as error:
            for name in names:
                self.group.merger.say("WARNING", f"the view is rebuilt in its place: {error}", dispatcher=name)
                stale.in_place.add(name)
                self.group.start(self.group.members[name])
            return
        self.current.begin()

    def on_renewed(self, names: Sequence[str], outcome: list[RebuiltView] | ReputError) -> None:
        """Handle the end of a rebuild of stale views. After a failure the old views stay, without dispatchers."""
        if not isinstance(outcome, ReputError) or self.group.ending:
            return
        for name in names:
            member = self.group.members.get(name)
            if member is not None and member.pid is None and member.state is State.STOPPED:
                member.set_state(State.STARTING)
                member.set_state(State.FATAL)
                member.cell.set_error(f"the view could not be built in its new format: {outcome}")

    def cancel(self, why: str) -> None:
        """Give up the current rebuild, unless its views are in use already."""
        if self.current is not None:
            self.current.cancel(why)

    def cancel_requested(self, why: str) -> None:
        """Give up the current rebuild if it was asked for, and not begun for stale views."""
        if self.current is not None and not self.current.renews:
            self.current.cancel(why)

    def give_up(self) -> None:
        """Leave stale views as they are; the next start tries again."""
        self.group.stale.waiting.clear()
        self.cancel("the group is ending")
