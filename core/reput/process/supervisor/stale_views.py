"""StaleViews: views whose format differs from their plugin's; they are rebuilt before their dispatcher starts.

A plugin declares the format of its view as ``view_version``, and the host records the version of each view in its
folder. If they differ, the dispatcher does not start: its view is rebuilt in the shadow, and readers use the old one
until then. A group that ends waits for such a rebuild as for a drain. If no shadow can be created, the dispatcher
starts anyway, and its loop empties the view.
"""

from __future__ import annotations

from pathlib import Path

from reput.errors import DamagedStore
from reput.process.dispatcher.states import State
from reput.process.logs.log_merger import LogMerger
from reput.process.supervisor.member import Member
from reput.process.views.view_folders import ViewFolders

__all__ = ["StaleViews"]


class StaleViews:
    """The stale views of one group.

    Attributes:
        waiting: names of the dispatchers that wait for their views to be rebuilt.
        in_place: names of those that start anyway, without a shadow.
    """

    def __init__(self, view_directory: Path, merger: LogMerger) -> None:
        self.view_directory = view_directory
        self.merger = merger
        self.waiting: set[str] = set()
        self.in_place: set[str] = set()

    def hold(self, member: Member) -> bool:
        """Return True if *member* must not start now because its view is stale; it then waits for a rebuild."""
        description = member.description
        assert description is not None
        if member.root is not None or description.view_elsewhere:
            return False
        if member.name in self.in_place:
            self.in_place.discard(member.name)
            return False
        folders = ViewFolders(self.view_directory, member.name, ())
        try:
            if not folders.is_stale(description.view_version):
                return False
        except DamagedStore:
            # The dispatcher itself says what is in the way, and the others run.
            return False
        if member.state is not State.STOPPED:
            member.set_state(State.STOPPED)
        text = f"the view is rebuilt beside the old one: {folders.format_changed(description.view_version)}"
        member.cell.set_error(text)
        self.merger.say("WARNING", text, dispatcher=member.name)
        if member.shadow is None:
            self.waiting.add(member.name)
        return True
