"""DispatcherGroup: the dispatchers of one store and their processes: start, stop, deaths, time and memory limits.

The decisions are made above: in `Membership` (joining and leaving), `Rebuilds`, `RequestDesk`, `Supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reput.errors import ConfigError
from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import Notice, Setup
from reput.process.dispatcher.dispatcher_process import (
    BROKEN_STATUS,
    DRAIN_SIGNAL,
    EXCEPTION_STATUS,
    REFUSED_STATUS,
    STOP_SIGNAL,
    ProcessTask,
    run_dispatcher,
)
from reput.process.dispatcher.states import State
from reput.process.group.group_lock import GroupLock
from reput.process.logs.log_merger import LinePipe, LogMerger, RubbishPipe
from reput.process.plugin.catalogue import CatalogueEntry
from reput.process.plugin.dispatcher_order import enabled_predecessors, names_readers_wait_for
from reput.process.supervisor.member import Member
from reput.process.supervisor.memory_limit import MemoryLimit
from reput.process.supervisor.stale_views import StaleViews
from reput.process.system.reactor import Reactor
from reput.ring import Cell, RingMemory
from reput.ring.layout import NAME_SIZE_MAX

__all__ = ["DispatcherGroup"]

# Heartbeat checks per shortest time limit: a phase overruns its limit by one check interval at most.
LOOKS_PER_TIME_LIMIT = 8


class DispatcherGroup:
    """The members of one group, by name, and the control of their processes.

    Args:
        channel: to the owner.
        lock: the group's; each process inherits it.

    Attributes:
        stale: views that must be rebuilt before their dispatchers start.
        ending: the group drains and ends; nothing starts again.
        finished: all processes have ended, or were killed.
    """

    def __init__(
        self, setup: Setup, channel: JsonChannel, memory: RingMemory, reactor: Reactor, lock: GroupLock
    ) -> None:
        self.context = setup.context
        settings = self.settings = setup.context.settings
        self.setup = setup
        self.channel = channel
        self.memory = memory
        self.reactor = reactor
        self.lock = lock
        self.pid = os.getpid()
        # A rebuild into another directory reports its own error; stderr would repeat it.
        stderr = 2 if self.context.target is None else None
        log_directory = self.context.view_directory / "reput" / "log"
        self.merger = LogMerger(log_directory, settings.dispatcher_log_format, stderr)
        self.members: dict[str, Member] = {}
        self.stale = StaleViews(self.context.view_directory, self.merger)
        self.memory_limit = MemoryLimit(settings.dispatcher_memory_max)
        shortest_ms = min(
            settings.dispatcher_start_time_max,
            settings.dispatcher_dispatch_time_max,
            settings.dispatcher_flush_time_max,
            settings.dispatcher_expire_time_max,
        )
        self.look_interval_s = shortest_ms / 1000 / LOOKS_PER_TIME_LIMIT
        self.ending = False
        self.finished = False

    def everyone(self) -> list[Member]:
        """Return all that may have a process: the members, and the shadows that rebuild views."""
        shadows = [member.shadow for member in self.members.values() if member.shadow is not None]
        return [*self.members.values(), *shadows]

    def after(self) -> dict[str, tuple[str, ...]]:
        """Return the ``after`` declaration of each dispatcher."""
        return {name: member.description.after if member.description else () for name, member in self.members.items()}

    def announce(self) -> None:
        """Tell the owner which dispatchers are in the group."""
        self.channel.send(Notice("members", [member.info for member in self.members.values()]))

    def wake_all(self) -> None:
        """Wake all dispatchers: the state of a predecessor may have changed."""
        for member in self.everyone():
            os.eventfd_write(self.memory.wake_descriptors[member.cell.slot], 1)

    # Slots.

    def add_member(self, entry: CatalogueEntry, options: dict[str, object]) -> Member:
        """Add a dispatcher in its former slot, or in a free one.

        Raises:
            ConfigError: all slots are taken.
        """
        cell = self.take_cell(entry.name)
        member = Member(entry, cell, self.settings, options)
        if self.setup.again and cell.state == State.PAUSED:
            member.state = State.PAUSED
        else:
            member.show_state(State.STOPPED)
        cell.set_pid(None)
        self.members[entry.name] = member
        return member

    def forget_member(self, member: Member) -> None:
        """Free the slot of a dispatcher that leaves the group."""
        del self.members[member.name]
        self.stale.waiting.discard(member.name)
        member.cell.clear(None)

    def take_cell(self, name: str) -> Cell:
        """Return the cell of that name, or a free one, which gets the name.

        Raises:
            ConfigError: all slots are taken.
        """
        names = [self.memory.view(slot).name for slot in range(self.memory.slot_count)]
        for wanted in (name, None):
            if wanted in names:
                cell = self.memory.open_cell(names.index(wanted))
                break
        else:
            raise ConfigError(
                f"too many dispatchers: dispatcher={name} dispatcher_count_max={self.memory.slot_count}",
                "Enable fewer, or raise dispatcher_count_max, up to 64. A view that is being rebuilt counts twice.",
            )
        if cell.name is None:
            cell.clear(name)
        return cell

    def add_shadow(self, member: Member, root: Path) -> Member:
        """Return a new shadow of *member*, which builds its view below *root* in a slot of its own.

        Raises:
            ConfigError: all slots are taken.
        """
        cell = self.take_cell(shadow_name(member.name))
        shadow = member.shadow = Member(member.entry, cell, self.settings, member.options, root)
        shadow.description = member.description
        shadow.show_state(State.STOPPED)
        shadow.cell.set_pid(None)
        return shadow

    def forget_shadow(self, member: Member) -> None:
        """Kill the process of the shadow of *member* if there is one, and free the slot."""
        shadow, member.shadow = member.shadow, None
        if shadow is None:
            return
        if shadow.pid is not None:
            self.unwatch_process(shadow)
            signal.pidfd_send_signal(shadow.pidfd, signal.SIGKILL)
            os.waitpid(shadow.pid, 0)
            shadow.release_process()
        shadow.cell.clear(None)

    # Starting.

    def start(self, member: Member) -> None:
        """Fork the process of a dispatcher, unless its view has to be rebuilt first."""
        if self.stale.hold(member):
            return
        predecessors = self.predecessors(member)
        member.set_state(State.STARTING)
        try:
            self.fork(member, predecessors)
        except OSError as error:
            # Out of descriptors, memory or processes: the shortage may be temporary.
            self.fail(member, f"dispatcher cannot be started: dispatcher={member.name} error={error.strerror}")

    def predecessors(self, member: Member) -> list[Member]:
        """Return the members that *member* comes after; for a shadow, their shadows where there are any."""
        found = [self.members[name] for name in enabled_predecessors(self.after())[member.name]]
        return found if member.root is None else [other.shadow or other for other in found]

    def fork(self, member: Member, predecessors: Sequence[Member]) -> None:
        """Fork the process.

        Raises:
            OSError: a system resource is exhausted; no process was created.
        """
        log_reader, log_writer, print_reader, print_writer = descriptors = make_pipes(2)
        task = ProcessTask(
            member.entry,
            member.cell.slot,
            tuple(predecessor.cell.slot for predecessor in predecessors),
            member.options,
            member.root or self.context.view_directory,
            log_writer,
            print_writer,
            member.first_batch,
            0 if self.is_waited_for(member) else self.settings.dispatcher_nice,
        )
        member.spawned_ns = time.monotonic_ns()
        member.killed_for = member.stopped_for = ""
        # A signal must not meet the supervisor's handler in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, {DRAIN_SIGNAL, STOP_SIGNAL})
        try:
            pid = os.fork()
            if pid == 0:
                run_dispatcher(self.context, self.memory, self.lock, task, self.pid)
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {DRAIN_SIGNAL, STOP_SIGNAL})
        os.close(log_writer)
        os.close(print_writer)
        member.pid, member.pidfd = pid, os.pidfd_open(pid)
        member.cell.set_pid(pid)
        lines = member.lines = LinePipe(log_reader, self.merger, member.title, partial(self.on_event, member))
        rubbish = member.rubbish = RubbishPipe(print_reader, self.merger, member.title, pid)
        self.reactor.watch(member.pidfd, lambda: self.on_end(member))
        self.reactor.watch(log_reader, lambda: self.read_pipe(lines))
        self.reactor.watch(print_reader, lambda: self.read_pipe(rubbish))

    def read_pipe(self, pipe: LinePipe | RubbishPipe) -> None:
        if pipe.read() is None:
            self.reactor.unwatch(pipe.descriptor)

    def on_event(self, member: Member, event: str) -> None:
        if event == "running" and member.state is State.STARTING:
            member.set_state(State.RUNNING)
            self.wake_all()

    def start_due(self, now: float) -> None:
        """Restart the dispatchers whose pause after a death is over."""
        for member in self.everyone():
            due = member.state is State.BACKOFF and now >= member.start_at
            if due and not self.ending and not member.is_swapping:
                member.cell.set_restart_count(member.cell.restart_count + 1)
                self.start(member)

    def is_waited_for(self, member: Member) -> bool:
        """Tell whether RocketMQ's readers wait for this view, or for one that comes after it."""
        return member.root is None and member.name in names_readers_wait_for(self.after())

    def seconds_to_next(self, now: float) -> list[float]:
        """Return the seconds until each coming deadline."""
        now_ns = time.monotonic_ns()
        due: list[float] = []
        for member in self.everyone():
            if member.state is State.BACKOFF:
                due.append(member.start_at - now)
            elif member.pid is not None and not member.killed_for:
                # The phase may change meanwhile, and the next one may have a shorter limit.
                due += [self.look_interval_s, (member.time_limit_ns() - now_ns) / 1e9 + 0.001]
        patience = self.memory_limit.patience
        return due if patience is None else [*due, patience]

    # Ends of processes.

    def on_end(self, member: Member) -> None:
        """Handle the end of a dispatcher's process."""
        assert member.pid is not None
        pid, status = os.waitpid(member.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.unwatch_process(member)
        member.release_process()
        member.learn_from_end(code)
        if member.state is State.STOPPING and member.following_state is not State.BACKOFF:
            self.on_stopped(member, code)
        else:
            self.on_death(member, pid, code)
        self.wake_all()

    def unwatch_process(self, member: Member) -> None:
        """Stop watching a process and its pipes."""
        assert member.lines is not None
        assert member.rubbish is not None
        for descriptor in (member.pidfd, member.lines.descriptor, member.rubbish.descriptor):
            self.reactor.unwatch(descriptor)

    def on_stopped(self, member: Member, code: int) -> None:
        """Handle the end of a process that was told to stop."""
        if code != 0:
            self.merger.say("WARNING", f"dispatcher ended while stopping: {exit_text(code)}", dispatcher=member.title)
        if member.on_stopped_for_swap is not None:
            member.on_stopped_for_swap(member, code)
        elif self.ending:
            member.set_state(State.STOPPED)
        elif member.leaving:
            self.detach(member)
        elif member.following_state is State.STARTING:
            self.start(member)
        else:
            member.set_state(member.following_state)

    def on_death(self, member: Member, pid: int, code: int) -> None:
        """Handle the end of a process that was not told to stop."""
        reason = member.killed_for or member.stopped_for or exit_text(code)
        text = f"dispatcher died: dispatcher={member.title} pid={pid} {reason}"
        if code not in (EXCEPTION_STATUS, REFUSED_STATUS, BROKEN_STATUS) or member.cell.error is None:
            # Neither a signal nor os._exit leaves an error; an exception has written its own into the cell.
            member.cell.set_error(text)
        if code == BROKEN_STATUS and member.state is State.STARTING:
            member.set_state(State.BROKEN)
            self.merger.say("ERROR", f"{text} state=BROKEN")
        elif code == REFUSED_STATUS:
            member.set_state(State.FATAL)
            self.merger.say("ERROR", f"{text} state=FATAL")
        else:
            self.fail(member, text)

    def fail(self, member: Member, text: str) -> None:
        """Try again after a pause, or give up."""
        pause = member.backoff.failed(member.cell.progress)
        if pause is None:
            member.set_state(State.FATAL)
            text += f" restarts={member.backoff.failure_count - 1} state=FATAL"
        else:
            member.start_at = time.monotonic() + pause
            member.set_state(State.BACKOFF)
            text += f" restart_in_ms={round(pause * 1000)}"
        self.merger.say("ERROR", text)

    # Limits.

    def enforce_time_limits(self) -> None:
        """Kill processes whose heartbeat is older than the time limit of their phase."""
        now_ns = time.monotonic_ns()
        for member in self.everyone():
            if member.pid is not None and not member.killed_for and now_ns > member.time_limit_ns():
                member.killed_for = f"phase exceeded its time limit: phase={member.phase_name()}"
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
                # Set the error now: a process that waits for a disk does not die before the disk answers.
                member.cell.set_error(
                    f"dispatcher was killed and has not ended yet: dispatcher={member.title} pid={member.pid} "
                    f"{member.killed_for}"
                )
                if member.state in (State.STARTING, State.RUNNING) and not member.in_rebuild:
                    member.following_state = State.BACKOFF
                    member.set_state(State.STOPPING)
                    self.wake_all()

    def enforce_memory_limit(self) -> None:
        """Restart processes that use too much memory, as after a death; kill those that keep growing meanwhile."""
        if self.ending or not self.memory_limit.is_due():
            return
        for member in self.everyone():
            if member.pid is None or member.killed_for or self.is_waited_for(member):
                continue
            excess = self.memory_limit.excess(member.pid)
            if excess is None:
                continue
            if member.state in (State.STARTING, State.RUNNING) and not member.in_rebuild:
                member.stopped_for = excess
                self.stop(member, State.BACKOFF)
                member.cell.set_error(
                    f"dispatcher flushes and restarts: dispatcher={member.title} pid={member.pid} {excess}"
                )
                self.wake_all()
            if self.memory_limit.is_hopeless(member.pid):
                member.killed_for = excess
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)

    # Stopping.

    def stop(self, member: Member, following_state: State, number: int = STOP_SIGNAL) -> None:
        """Ask a process to flush and end; *following_state* is the dispatcher's state after that."""
        member.following_state = following_state
        if member.state is not State.STOPPING:
            member.set_state(State.STOPPING)
        signal.pidfd_send_signal(member.pidfd, number)
        # A process stopped by SIGSTOP would not react before its time limit, and a close would wait that long.
        signal.pidfd_send_signal(member.pidfd, signal.SIGCONT)

    def begin_ending(self) -> None:
        """Drain from now on: a dispatcher in BACKOFF gets one last start, and no other starts."""
        self.ending = True
        for member in self.members.values():
            if member.state is State.BACKOFF:
                self.start(member)
            elif member.pid is None and member.state is not State.STOPPED:
                member.set_state(State.STOPPED)

    def go_on_draining(self) -> None:
        """Drain the dispatchers whose predecessors have ended; the group is finished when all have."""
        predecessors = enabled_predecessors(self.after())
        for name, member in self.members.items():
            running = [other for other in predecessors[name] if self.members[other].pid is not None]
            if member.pid is not None and member.state is not State.STOPPING and not running:
                self.stop(member, State.STOPPED, DRAIN_SIGNAL)
        if all(member.pid is None for member in self.members.values()):
            for member in self.members.values():
                if member.state is not State.STOPPED:
                    member.set_state(State.STOPPED)
            self.channel.send(Notice("drained"))
            self.finished = True

    def detach(self, member: Member) -> None:
        """Take a dispatcher out of the group when its process has ended; its view stays as it is."""
        if member.pid is not None:
            member.leaving = True
            self.stop(member, State.STOPPED)
            return
        self.forget_member(member)
        self.announce()
        self.restart_successors(member.name)
        for come_back in member.when_left:
            come_back()

    def restart_successors(self, name: str) -> None:
        """Restart the dispatchers that come after *name*, which has joined or left."""
        for member in self.members.values():
            if member.description and name in member.description.after and member.pid is not None:
                self.stop(member, State.STARTING)

    def kill_all(self) -> None:
        """Kill every process of the group."""
        for member in self.everyone():
            if member.pid is not None:
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
        for member in self.everyone():
            if member.pid is not None:
                os.waitpid(member.pid, 0)
                # Its pipes may be ready in the same poll that reported the owner's death.
                self.unwatch_process(member)
                member.release_process()
                member.show_state(State.STOPPED)
        self.finished = True


def shadow_name(name: str) -> str:
    """Return the name of the cell of *name*'s shadow; no dispatcher can have that name."""
    return f"~{name}"[:NAME_SIZE_MAX]


def make_pipes(count: int) -> list[int]:
    """Return reading and writing ends of *count* pipes.

    Raises:
        OSError: there are not enough descriptors; none stays open.
    """
    descriptors: list[int] = []
    try:
        for _ in range(count):
            descriptors += os.pipe2(os.O_CLOEXEC)
    except OSError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return descriptors


def exit_text(code: int) -> str:
    """Return how a process ended."""
    if code >= 0:
        return f"exit_status={code}"
    with contextlib.suppress(ValueError):
        return f"signal={signal.Signals(-code).name}"
    return f"signal={-code}"
