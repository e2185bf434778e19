"""Renewals: views whose format is not that of their plugin any more, built again beside the old ones.

A plugin declares the format of its view, ``view_version``, and the host keeps in the view's folder which one it was
written in. Where they differ the dispatcher does not start: its view is rebuilt in the shadow, and readers have the old
one until then. A group that ends waits for that as for all that is dispatched. Where no shadow can be made, the view is
emptied and built in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.errors import ReputError
from reput.process.control.control_messages import RebuiltView
from reput.process.dispatcher.states import State
from reput.process.supervisor.live_rebuild import LiveRebuild
from reput.process.supervisor.member import Member
from reput.process.views.view_folders import ViewFolders

if TYPE_CHECKING:
    from reput.process.supervisor.supervisor import Supervisor

__all__ = ["Renewals"]


class Renewals:
    """The renewals of one group.

    Attributes:
        waiting: names of those whose views are to be built again, once no other rebuild is under way.
    """

    def __init__(self, group: Supervisor) -> None:
        self.group = group
        self.waiting: set[str] = set()
        # Those that start all the same: the loop empties their views.
        self.in_place: set[str] = set()

    def take(self, member: Member) -> bool:
        """Take *member*, which is to start, and return True, if its view has to be built again first."""
        description = member.description
        assert description is not None
        if member.root is not None or description.view_elsewhere:
            return False
        if member.name in self.in_place:
            self.in_place.discard(member.name)
            return False
        folders = ViewFolders(self.group.context.view_directory, member.name, ())
        if not folders.is_stale(description.view_version):
            return False
        if member.state is not State.STOPPED:
            member.set_state(State.STOPPED)
        text = f"the view is built again beside the old one: {folders.format_changed(description.view_version)}"
        member.cell.set_error(text)
        self.group.merger.say("WARNING", text, dispatcher=member.name)
        if member.rebuild is None:
            self.waiting.add(member.name)
        return True

    def begin(self) -> None:
        """Begin the rebuild of those that wait, unless another one is under way."""
        names = [name for name in self.group.members if name in self.waiting]
        if not names or self.group.rebuild is not None or self.group.finished:
            return
        self.waiting.clear()
        try:
            self.group.rebuild = LiveRebuild(self.group, names, lambda outcome: self.end(names, outcome), renews=names)
        except ReputError as error:
            for name in names:
                member = self.group.members[name]
                self.group.merger.say("WARNING", f"the view is built again in its place: {error}", dispatcher=name)
                self.in_place.add(name)
                self.group.start(member)
            return
        self.group.rebuild.begin()

    def give_up(self) -> None:
        """Let the old views be; the next start tries again."""
        self.waiting.clear()
        if self.group.rebuild is not None:
            self.group.rebuild.cancel("the group is ending")

    def end(self, names: list[str], outcome: list[RebuiltView] | ReputError) -> None:
        """Take up what came of a rebuild: without a new view the dispatcher cannot run, and the old one stays."""
        if not isinstance(outcome, ReputError) or self.group.ending:
            return
        for name in names:
            member = self.group.members.get(name)
            if member is not None and member.pid is None and member.state is State.STOPPED:
                member.set_state(State.STARTING)
                member.set_state(State.FATAL)
                member.cell.set_error(f"the view could not be built in its new format: {outcome}")
