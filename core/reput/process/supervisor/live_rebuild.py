"""LiveRebuild: rebuilds views beside the running ones and swaps them in; the supervisor drives it.

    BUILDING   a second process for each view reads the log from its beginning into the shadow and then follows the
               ring; the running dispatchers continue
       │       all shadows are close to the end of what they may read
    STOPPING   the running dispatchers flush and end; readers still see everything below their published progress
       │
    DRAINING   the shadows drain the log, predecessors first, flush and end
       │       each is durable at least as far as readers may read in the old one
    swap       intent, folders exchanged, generation raised, intent removed (`ShadowFolders`)
       │
    RESUMING   the dispatchers that were running start in the new views; the old views are removed

A failure before the swap ends the rebuild: the old views stay in use, and the shadow is removed. After a kill the next
start does that.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Sequence

from reput.errors import DispatcherError, ReputError
from reput.process.control.control_messages import RebuiltView
from reput.process.dispatcher.dispatcher_process import DRAIN_SIGNAL
from reput.process.dispatcher.states import ABSENT, State
from reput.process.logs.exception_text import exception_message
from reput.process.plugin.external_views import refuse_elsewhere
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.member import Member
from reput.process.system.parent_death import die_with_parent
from reput.process.views.shadow_folders import ShadowFolders

__all__ = ["LOOK_S", "Done", "LiveRebuild"]

# Bytes of the log that a new view may lag when the running dispatcher is stopped: some ten milliseconds of work.
NEAR = 1 << 20
LOOK_S = 0.02

Done = Callable[[list[RebuiltView] | ReputError], None]


class Step(enum.Enum):
    """The event that the rebuild waits for."""

    BUILDING = "building"
    STOPPING = "stopping"
    DRAINING = "draining"
    RESUMING = "resuming"


class LiveRebuild:
    """One rebuild of one or more views.

    Args:
        names: the requested views; views that declare to be rebuilt with one of them are added.
        force: rebuild views that lie elsewhere too, which sends all their records again.
        renews: dispatchers that do not run until they have a view in a new format; a group that ends waits for it.
        done: called once, with the rebuilt views or with the error.

    Attributes:
        members: the dispatchers whose views are rebuilt, by name.
        shadows: the members that build the new views, by the same names.
        finished: `done` was called, and the shadow is removed.
    """

    def __init__(
        self,
        group: DispatcherGroup,
        names: Sequence[str],
        done: Done,
        *,
        force: bool = False,
        renews: Sequence[str] = (),
    ) -> None:
        """Prepare the shadow; `begin` starts its processes.

        Raises:
            DispatcherError: a dispatcher is not enabled or cannot be imported, or the shadow cannot be created.
            ConfigError: a view lies elsewhere, and *force* is not set.
        """
        self.group = group
        self.done = [done]
        self.renews = frozenset(renews)
        self.step = Step.BUILDING
        self.finished = False
        self.started = time.monotonic()
        self.stopped: set[str] = set()
        self.removal: int | None = None
        self.outcome: list[RebuiltView] | ReputError | None = None
        self.members = self.select(names)
        refuse_elsewhere({name: member.description for name, member in self.members.items()}, force=force)
        self.shadows: dict[str, Member] = {}
        self.goals: dict[str, int] = {}
        self.folders = ShadowFolders(group.context.view_directory)
        try:
            self.folders.prepare(self.linked())
        except OSError as error:
            self.folders.remove()
            raise DispatcherError(f"the views cannot be built beside the running ones: error={error}") from None
        except ReputError:
            self.folders.remove()
            raise
        try:
            for name, member in self.members.items():
                self.shadows[name] = group.add_shadow(member, self.folders.root)
        except ReputError:
            self.forget_shadows()
            self.folders.remove()
            raise

    def begin(self) -> None:
        """Start the processes that build the new views."""
        for shadow in self.shadows.values():
            self.group.start(shadow)
        self.group.announce()

    def select(self, names: Sequence[str]) -> dict[str, Member]:
        """Return the dispatchers whose views must be rebuilt.

        Raises:
            DispatcherError: one is not enabled, or not described.
        """
        enabled = self.group.members
        for name in names:
            if name not in enabled:
                raise DispatcherError(f"dispatcher is not enabled: dispatcher={name} enabled={','.join(enabled)}")
        chosen = list(names)
        # Each round may add a dispatcher that others are rebuilt with.
        for _ in enabled:
            for name, member in enabled.items():
                if name not in chosen and member.description and set(member.description.rebuilt_with) & set(chosen):
                    chosen.append(name)
        for name in chosen:
            if enabled[name].description is None:
                raise DispatcherError(
                    f"dispatcher is broken: dispatcher={name} error={exception_message(enabled[name].cell.error)}",
                    f"Repair its plugin, then `reput dispatcher resume STORE {name}`.",
                )
        return {name: enabled[name] for name in chosen}

    def linked(self) -> dict[str, tuple[str, ...]]:
        """Return the views that the new views read and that are not rebuilt themselves."""
        linked = {}
        for member in self.members.values():
            assert member.description is not None
            for name in (*member.description.after, *member.description.rebuilt_with):
                other = self.group.members.get(name)
                if other is not None and name not in self.members and other.description is not None:
                    linked[name] = other.description.store_folders
        return linked

    # Progress.

    def look(self) -> None:
        """Advance to the next step if it is possible; called whenever something may have changed."""
        if self.finished or self.outcome is not None:
            return
        if self.step is Step.BUILDING:
            self.look_at_building()
        elif self.step is Step.STOPPING and all(member.pid is None for member in self.members.values()):
            self.step = Step.DRAINING
        if self.step is Step.DRAINING:
            self.drain()

    def look_at_building(self) -> None:
        """Stop the running dispatchers when the new views have nearly caught up."""
        for name, shadow in self.shadows.items():
            # A group that is ending restarts no dispatcher.
            given_up = shadow.state is State.BACKOFF and self.group.ending
            if (
                given_up
                or shadow.state in (State.FATAL, State.BROKEN)
                or (shadow.state is State.RUNNING and shadow.cell.error is not None and not shadow.killed_for)
            ):
                self.fail(f"the view could not be built: view={name} error={exception_message(shadow.cell.error)}")
                return
        if not all(self.is_near(name) for name in self.shadows):
            return
        self.step = Step.STOPPING
        for member in [*self.members.values(), *self.shadows.values()]:
            member.on_stopped_for_swap = self.on_stopped
        for name, member in self.members.items():
            if member.pid is not None or member.state is State.BACKOFF:
                self.stopped.add(name)
            if member.pid is not None and member.state is not State.STOPPING:
                self.group.stop(member, State.STARTING)

    def is_near(self, name: str) -> bool:
        """Whether the new view of *name* has reached its goal, and little has been appended since."""
        shadow = self.shadows[name]
        if shadow.state is not State.RUNNING:
            return False
        progress, reach = shadow.cell.progress or 0, self.reach(name)
        if reach is None or progress < (self.members[name].cell.progress or 0):
            return False
        near = progress >= self.goals.setdefault(name, reach) and progress >= reach - NEAR
        if progress >= self.goals[name] and not near:
            self.goals[name] = reach
        return near

    def reach(self, name: str) -> int | None:
        """Return how far the new view of *name* may read; None: a predecessor has not published its progress yet."""
        shadow = self.shadows[name]
        assert shadow.description is not None
        header = self.group.memory.header
        reach = (header.durable if shadow.description.reads == "durable" else header.appended) or 0
        for other in self.group.predecessors(self.shadows[name]):
            if shadow.description.after_failed == "wait" or other.state not in ABSENT:
                progress = other.cell.progress
                if progress is None:
                    return None
                reach = min(reach, progress)
        return reach

    def drain(self) -> None:
        """Stop the shadows whose predecessors have ended; swap when all have ended."""
        shadows = list(self.shadows.values())
        for shadow in shadows:
            waits = any(other.pid is not None for other in self.group.predecessors(shadow) if other in shadows)
            if shadow.pid is not None and shadow.state is not State.STOPPING and not waits:
                self.group.stop(shadow, State.STOPPED, DRAIN_SIGNAL)
        if all(shadow.pid is None for shadow in self.shadows.values()):
            self.swap()

    def on_stopped(self, member: Member, code: int) -> None:
        """Handle the end of a process that the rebuild stopped."""
        if member in self.members.values():
            # It counts as stopping until it starts again, so that its successors do not pass over it meanwhile.
            pass
        elif code != 0:
            member.show_state(State.STOPPED)
            self.fail(
                f"the new view could not be flushed: view={member.name} error={exception_message(member.cell.error)}"
            )
        else:
            member.set_state(State.STOPPED)
        self.look()

    def swap(self) -> None:
        """Replace the old views with the new ones, and start the dispatchers in them."""
        durable = {name: shadow.cell.durable_cursor for name, shadow in self.shadows.items()}
        for name, member in self.members.items():
            cursor, progress = durable[name], member.cell.progress
            if progress is not None and (cursor is None or cursor.commit_log_offset < progress):
                # Readers have already seen more than the new view holds.
                error = exception_message(self.shadows[name].cell.error)
                self.fail(
                    f"the new view did not come as far as the old one: view={name} progress={progress} "
                    f"durable={cursor and cursor.commit_log_offset} error={error}"
                )
                return
        descriptions = {name: member.description for name, member in self.members.items()}
        try:
            self.folders.check(list(self.members))
            self.folders.begin_swap({name: found.store_folders for name, found in descriptions.items() if found})
        except OSError as error:
            self.fail(f"the views cannot be exchanged: error={error}")
            return
        except ReputError as error:
            self.fail(str(error), error.advice)
            return
        self.stopped |= self.renews
        # From here on the new views are valid. A failure ends this process, and the next one completes the swap.
        self.folders.complete()
        for name, member in self.members.items():
            cursor = durable[name]
            if cursor is not None:
                # Below this cursor readers see the same in both views. The dispatcher publishes progress once started.
                member.cell.set_durable_cursor(cursor.commit_log_offset, cursor.epoch, cursor.store_timestamp)
            member.cell.raise_generation()
        self.folders.forget_intent()
        begin = self.group.memory.header.commit_log_offset_min or 0
        seconds = time.monotonic() - self.started
        self.outcome = [
            RebuiltView(
                view=name,
                records=shadow.cell.ordinal_dispatched if begin == 0 else None,
                bytes=(shadow.cell.progress or begin) - begin,
                seconds=seconds,
            )
            for name, shadow in self.shadows.items()
        ]
        self.group.merger.say("INFO", f"views were rebuilt and swapped: views={','.join(self.members)}")
        self.resume()

    def fail(self, text: str, advice: str = "") -> None:
        """Give up; the old views stay in use."""
        if self.outcome is not None:
            return
        self.outcome = DispatcherError(text, advice)
        self.group.merger.say("ERROR", f"the rebuild is given up: {text}")
        self.resume()

    def resume(self) -> None:
        """Restart the dispatchers that were running, and remove the shadow."""
        self.step = Step.RESUMING
        self.forget_shadows()
        for name, member in self.members.items():
            member.on_stopped_for_swap = None
            if name in self.stopped or (member.state is State.FATAL and not isinstance(self.outcome, ReputError)):
                member.backoff.forgive()
                if member.pid is None:
                    self.group.start(member)
                else:
                    # It has not ended yet; it restarts when it has.
                    member.following_state = State.STARTING
        self.group.wake_all()
        self.group.announce()
        self.remove_shadow()

    def cancel(self, why: str) -> None:
        """Give up, unless the outcome is already decided."""
        if self.outcome is None:
            self.fail(why)

    def forget_shadows(self) -> None:
        """Kill the shadows' remaining processes, and free their slots."""
        for member in self.members.values():
            self.group.forget_shadow(member)

    # Removing the shadow: gigabytes of files take time.

    def remove_shadow(self) -> None:
        """Remove the shadow in a child process, so that the supervisor can serve the group meanwhile."""
        supervisor = os.getpid()
        self.removal = os.fork()
        if self.removal == 0:
            status = 1
            try:
                die_with_parent(supervisor)
                self.folders.remove()
                status = 0
            finally:
                os._exit(status)
        pidfd = os.pidfd_open(self.removal)
        self.group.reactor.watch(pidfd, lambda: self.on_removed(pidfd))

    def on_removed(self, pidfd: int) -> None:
        """Handle the end of the child; the next start removes what the child could not."""
        assert self.removal is not None
        self.group.reactor.unwatch(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(self.removal, 0)
        self.removal = None
        if status != 0:
            self.group.merger.say("WARNING", f"the shadow could not be removed: directory={self.folders.root}")
        self.finished = True
        assert self.outcome is not None
        for done in self.done:
            done(self.outcome)
