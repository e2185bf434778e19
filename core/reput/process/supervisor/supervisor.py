"""Supervisor: starts, watches, restarts and stops the dispatchers of one store.

A fresh process of one thread and a session of its own, started by exec, so that it inherits nothing of the program that
opened the store and a Ctrl-C in that program's terminal does not reach it. It imports no plugin and no numpy: it forks,
and what it has loaded every dispatcher pays for. It waits in one place, a poll over

    the owner's pidfd       → the owner is dead: the group ends at once
    the owner's channel     → requests of the owner's
    pidfds of dispatchers   → one has ended
    pipes of dispatchers    → log lines, and what plugins print
    the control socket      → requests of other processes
    describe processes      → what a plugin declares
    the signal descriptor   → SIGTERM: drain and end; SIGHUP: look for new and changed plugins

and its timeout is the next thing that is due: a restart, or the end of a phase's time limit.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from reput.errors import ConfigError, DamagedStore, DispatcherError, ReputError
from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import Notice, Reply, Setup
from reput.process.control.control_socket import ControlSocket
from reput.process.dispatcher.dispatcher_process import (
    BROKEN_STATUS,
    DRAIN_SIGNAL,
    EXCEPTION_STATUS,
    REFUSED_STATUS,
    STOP_SIGNAL,
    Assignment,
    run_dispatcher,
)
from reput.process.dispatcher.states import State
from reput.process.group.group_lock import GroupLock
from reput.process.logs.log_merger import LinePipe, LogMerger, RubbishPipe
from reput.process.plugin.catalogue import CatalogueEntry, installed_dispatchers
from reput.process.plugin.describe import Answer, DescribeProcess, Question
from reput.process.plugin.dispatcher_order import enabled_predecessors, in_order, names_readers_wait_for
from reput.process.supervisor.live_rebuild import LOOK_S, LiveRebuild
from reput.process.supervisor.member import Member
from reput.process.supervisor.memory_limit import MemoryLimit
from reput.process.supervisor.renewals import Renewals
from reput.process.supervisor.requests import Clients, RequestDesk
from reput.process.system.command import SIGNALS_HELD_AT_START
from reput.process.system.reactor import Reactor
from reput.process.views.shadow_folders import ShadowFolders
from reput.ring import Cell, RingMemory
from reput.ring.layout import NAME_SIZE_MAX

__all__ = ["Supervisor", "main"]

LOCK_RETRY_S = 0.01
POLL_S_MAX = 60.0
# How long the group's beginning waits for one more plugin to be imported, since the last one was.
DESCRIBE_PATIENCE_S = 5.0
# How long the group's end waits for those that it has begun without. A program may close its store soon after it began.
DRAIN_PATIENCE_S = 15.0
# How often the dispatchers' signs of life are looked at: a phase is ended at most so much later than it should be.
LOOKS_PER_TIME_LIMIT = 8


class Supervisor:
    """The supervisor of one store's group."""

    def __init__(self, channel: JsonChannel, setup: Setup, owner_pidfd: int) -> None:
        self.channel = channel
        self.setup = setup
        self.context = setup.context
        self.settings = setup.context.settings
        self.pid = os.getpid()
        self.owner_pidfd = owner_pidfd
        self.memory = RingMemory.from_descriptors(setup.descriptors)
        self.lock = GroupLock(self.context.view_directory)
        # Whoever rebuilds into a directory of his own is told by the error itself, in one place.
        stderr = 2 if self.context.target is None else None
        log_directory = self.context.view_directory / "reput" / "log"
        self.merger = LogMerger(log_directory, self.settings.dispatcher_log_format, stderr)
        self.members: dict[str, Member] = {}
        self.rebuild: LiveRebuild | None = None
        self.renewals = Renewals(self)
        # By the descriptor of the answer: one plugin may be asked by several at a time.
        self.describing: dict[int, tuple[DescribeProcess, Callable[[Answer], None], float]] = {}
        self.reactor = Reactor()
        self.clients = Clients(self.reactor, channel, RequestDesk(self))
        self.signals: list[int] = []
        settings = self.settings
        shortest_ms = min(
            settings.dispatcher_start_time_max,
            settings.dispatcher_dispatch_time_max,
            settings.dispatcher_flush_time_max,
            settings.dispatcher_expire_time_max,
        )
        self.memory_limit = MemoryLimit(settings.dispatcher_memory_max)
        self.look_interval_s = shortest_ms / 1000 / LOOKS_PER_TIME_LIMIT
        # All dispatchers were described and started, or are what a person has to look at.
        self.begun = False
        # When the group begins without those whose plugin is still being imported; None: it waits for all.
        self.begin_by: float | None = None
        # Those that it has begun without, and until when a drain waits for them; None: nobody drains.
        self.late: set[str] = set()
        # Those that the group's beginning waits for.
        self.awaited: set[str] = set()
        self.late_until: float | None = None
        self.drain_when_begun = False
        self.ending = False
        self.finished = False

    def run(self) -> None:
        """Run until the group has ended."""
        self.install_signals()
        self.reactor.watch(self.owner_pidfd, self.on_owner_death)
        self.reactor.watch(self.channel.fileno(), self.on_owner_says)
        if not self.take_lock():
            return
        if self.context.target is None:
            try:
                self.clients.listen(ControlSocket(self.context.store_directory))
            except OSError as error:
                # The store can be written without it; only others cannot ask or command.
                self.merger.say("WARNING", f"there is no control socket: {error}")
        try:
            self.begin()
        except (OSError, DamagedStore) as error:
            self.refuse(DispatcherError(f"an earlier rebuild cannot be cleared away: error={error}"))
        while not self.finished:
            self.do_work()

    def do_work(self) -> int:
        """Wait for what is due next, and do it; return the number of things that were ready."""
        ready_count = self.reactor.wait(self.seconds_to_next())
        self.take_signals()
        self.start_due()
        self.enforce_time_limits()
        self.enforce_memory_limit()
        self.look_at_rebuild()
        self.clients.flush()
        return ready_count

    def seconds_to_next(self) -> float:
        """Return how long nothing is due."""
        now, now_ns = time.monotonic(), time.monotonic_ns()
        due = [LOOK_S if self.rebuild is not None or self.renewals.waiting else POLL_S_MAX]
        for member in self.everyone():
            if member.state is State.BACKOFF:
                due.append(member.start_at - now)
            elif member.pid is not None and not member.killed_for:
                # The phase may change meanwhile, and another one have less time.
                due += [self.look_interval_s, (member.time_limit_ns() - now_ns) / 1e9 + 0.001]
        patience = self.memory_limit.patience
        if patience is not None:
            due.append(patience)
        due += [deadline - now for _, _, deadline in self.describing.values()]
        if self.begin_by is not None and not self.begun:
            due.append(self.begin_by - now)
        if self.late_until is not None and not self.ending:
            due.append(self.late_until - now if self.late else 0.0)
        return max(0.0, min(due))

    def everyone(self) -> list[Member]:
        """Return all dispatchers that may have a process: those of the group, and those that build views anew."""
        shadows = () if self.rebuild is None else self.rebuild.shadows.values()
        return [*self.members.values(), *shadows]

    def install_signals(self) -> None:
        """Have SIGTERM and SIGHUP end the poll."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.reactor.watch(reader, lambda: drain_pipe(reader))
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGHUP, self.on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        # Those that came since the process was made are taken up now; the owner had them wait.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_HELD_AT_START)

    def on_signal(self, number: int, _: FrameType | None) -> None:
        self.signals.append(number)

    def take_signals(self) -> None:
        while self.signals:
            if self.signals.pop(0) == signal.SIGTERM:
                self.drain()
            else:
                self.rescan()

    def take_lock(self) -> bool:
        """Take the group's lock, which a group that was killed gives up in a moment; False: the owner is gone, too."""
        deadline = time.monotonic() + self.setup.lock_timeout
        while not self.lock.try_take():
            if self.finished:
                return False
            if time.monotonic() > deadline:
                self.refuse(
                    DispatcherError(
                        "another process group works on the views of this store: "
                        f"store={self.context.view_directory} timeout={self.setup.lock_timeout}",
                        "It ends within a second of its owner; end it by hand if it does not.",
                    )
                )
                return False
            self.reactor.wait(LOCK_RETRY_S)
        return True

    # The group's beginning.

    def begin(self) -> None:
        """Describe all enabled dispatchers; `ready` goes on when all are.

        Raises:
            OSError, DamagedStore: what a killed rebuild has left cannot be cleared away.
        """
        swapped = ShadowFolders(self.context.view_directory).settle()
        for cell_slot in range(self.memory.slot_count):
            name = self.memory.view(cell_slot).name
            if name is not None and name not in [entry.name for entry in self.setup.entries]:
                self.memory.open_cell(cell_slot).clear(None)
        try:
            for entry in self.setup.entries:
                member = self.add_member(entry, self.context.options(entry.name))
                if entry.name in swapped:
                    member.cell.raise_generation()
        except ConfigError as error:
            self.refuse(error)
            return
        self.awaited = set(self.members)
        self.be_patient()
        # A refusal ends the loop over those that are described at once.
        for member in list(self.members.values()):
            self.describe(member.question, partial(self.on_described_first, member))
        if not self.members:
            self.ready()

    def add_member(self, entry: CatalogueEntry, options: dict[str, object]) -> Member:
        """Give a dispatcher a slot: its former one, or a free one.

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

    def take_cell(self, name: str) -> Cell:
        """Return the cell of that name, or a free one that gets it.

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
        """Return one that builds the view of *member* below *root*, in a slot of its own.

        Raises:
            ConfigError: all slots are taken.
        """
        shadow = Member(member.entry, self.take_cell(shadow_name(member.name)), self.settings, member.options, root)
        shadow.description = member.description
        shadow.show_state(State.STOPPED)
        shadow.cell.set_pid(None)
        return shadow

    def forget_shadow(self, shadow: Member) -> None:
        """Kill the process if there is one, and free the slot."""
        if shadow.pid is not None:
            self.unwatch_process(shadow)
            signal.pidfd_send_signal(shadow.pidfd, signal.SIGKILL)
            os.waitpid(shadow.pid, 0)
            shadow.release_process()
        shadow.cell.clear(None)

    def look_at_rebuild(self) -> None:
        """Have a rebuild go on, and let go of one that is over."""
        if self.rebuild is not None:
            self.rebuild.look()
            if self.rebuild.finished:
                self.rebuild = None
                self.go_on_draining()
        self.renewals.begin()

    def describe(self, question: Question, done: Callable[[Answer], None]) -> None:
        """Ask a plugin what it declares, and whether it takes the options.

        *done* is called with the answer, possibly at once. Much may have happened to the dispatcher meanwhile.
        """
        asked = DescribeProcess(question, self.setup.path)
        if asked.answer is not None:
            done(asked.answer)
            return
        deadline = time.monotonic() + self.settings.dispatcher_start_time_max / 1000
        self.describing[asked.descriptor] = (asked, done, deadline)
        self.reactor.watch(asked.descriptor, partial(self.on_describe_readable, asked.descriptor))

    def on_describe_readable(self, descriptor: int, reason: str = "") -> None:
        if descriptor not in self.describing:
            # What became of another answer has ended the group.
            return
        asked, done, _ = self.describing[descriptor]
        if reason:
            self.reactor.unwatch(descriptor)
            asked.end(reason)
        elif asked.receive():
            self.reactor.unwatch(descriptor)
        if asked.answer is not None:
            del self.describing[descriptor]
            done(asked.answer)

    def on_described_first(self, member: Member, answer: Answer) -> None:
        """Take up one of the answers that the group's beginning waits for."""
        if self.finished:
            return
        if self.begun:
            self.on_described_late(member, answer)
            return
        if answer.refused is not None and not self.setup.again:
            self.refuse(ConfigError(answer.refused, answer.advice))
            return
        self.awaited.discard(member.name)
        # Who resumed it meanwhile has asked, too.
        if member.pid is None and self.members.get(member.name) is member:
            self.take_description(member, answer)
        self.be_patient()
        if not self.awaited:
            self.ready()

    def be_patient(self) -> None:
        """Wait a while for the next plugin to be imported. Who builds views apart has nothing to do without them."""
        if self.context.target is None:
            self.begin_by = time.monotonic() + DESCRIBE_PATIENCE_S

    def begin_without_the_late(self) -> None:
        """Begin without those whose plugin is still being imported; they come in when they are described."""
        for name in self.awaited:
            member = self.members[name]
            text = (
                f"the plugin is still being imported, and the group goes on without it: dispatcher={name} "
                f"module={member.entry.module} time_max_ms={self.settings.dispatcher_start_time_max}"
            )
            member.cell.set_error(text)
            self.merger.say("WARNING", text)
        self.late, self.awaited = self.awaited, set()
        self.ready()

    def on_described_late(self, member: Member, answer: Answer) -> None:
        """Take a dispatcher into the group that has begun without it."""
        self.late.discard(member.name)
        if self.ending or self.finished or self.members.get(member.name) is not member:
            return
        if member.pid is None:
            self.take_description(member, self.checked_for_circles(member, answer))
        # The owner first: its frames must carry what the newcomer needs.
        self.announce()
        if member.description is not None:
            member.cell.set_error(None)
            if member.state is State.STOPPED:
                self.start(member)
        self.wake_all()

    def checked_for_circles(self, member: Member, answer: Answer) -> Answer:
        """Return *answer*, or a refusal if it has dispatchers come after each other in a circle."""
        if answer.description is not None:
            after = self.after() | {member.name: answer.description.after}
            try:
                in_order(after)
            except ConfigError as error:
                return Answer(refused=str(error), advice=error.advice)
        return answer

    def take_description(self, member: Member, answer: Answer) -> None:
        """Keep what a plugin declared, or BROKEN."""
        member.description = answer.description
        if answer.description is None:
            text = answer.broken or answer.refused or ""
            member.cell.set_error(text)
            if member.state is not State.PAUSED:
                member.set_state(State.BROKEN)
            self.merger.say("ERROR", f"dispatcher is broken: {text}", dispatcher=member.name)

    def ready(self) -> None:
        """Start all dispatchers, and tell the owner who they are."""
        try:
            in_order(self.after())
        except ConfigError as error:
            self.refuse(error)
            return
        for member in self.members.values():
            if member.state is State.STOPPED and member.description is not None:
                self.start(member)
        self.begun = True
        self.announce()
        if self.drain_when_begun:
            self.drain()

    def after(self) -> dict[str, tuple[str, ...]]:
        """Return of each dispatcher those it declares to come after."""
        return {name: member.description.after if member.description else () for name, member in self.members.items()}

    def announce(self) -> None:
        """Tell the owner who is in the group."""
        self.channel.send(Notice("members", [member.info for member in self.members.values()]))

    def refuse(self, error: ReputError) -> None:
        """Tell the owner why there will be no group, and end."""
        self.merger.say("ERROR", str(error))
        self.channel.send(Notice("refused", reply=Reply.refusal(0, error)))
        self.kill_all()

    # Processes.

    def start(self, member: Member) -> None:
        """Fork the process of a dispatcher, unless its view has to be built again first."""
        if self.renewals.take(member):
            return
        predecessors = self.predecessors(member)
        member.set_state(State.STARTING)
        try:
            self.fork(member, predecessors)
        except OSError as error:
            # No descriptors, no memory, no processes: what has them may end.
            self.fail(member, f"dispatcher cannot be started: dispatcher={member.name} error={error.strerror}")

    def predecessors(self, member: Member) -> list[Member]:
        """Return whom a process of *member* comes after."""
        if member.root is not None and member.rebuild is not None:
            return member.rebuild.predecessors(member.name)
        return [self.members[name] for name in enabled_predecessors(self.after())[member.name]]

    def fork(self, member: Member, predecessors: Sequence[Member]) -> None:
        """Make the process.

        Raises:
            OSError: the system has not enough of something; nothing was made.
        """
        log_reader, log_writer, print_reader, print_writer = descriptors = make_pipes(2)
        assignment = Assignment(
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
                run_dispatcher(self.context, self.memory, self.lock, assignment, self.pid)
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
        lines = member.lines = LinePipe(
            log_reader, self.merger, member.title, lambda event: self.on_event(member, event)
        )
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

    def wake_all(self) -> None:
        """Have all dispatchers look up: what they come after may have changed its state."""
        for member in self.everyone():
            os.eventfd_write(self.memory.wake_descriptors[member.cell.slot], 1)

    def on_end(self, member: Member) -> None:
        """Take up the end of a dispatcher's process."""
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
        self.go_on_draining()

    def unwatch_process(self, member: Member) -> None:
        """Listen no more to a process and its pipes."""
        assert member.lines is not None
        assert member.rubbish is not None
        for descriptor in (member.pidfd, member.lines.descriptor, member.rubbish.descriptor):
            self.reactor.unwatch(descriptor)

    def on_stopped(self, member: Member, code: int) -> None:
        """A process that was told to stop has ended."""
        if code != 0:
            self.merger.say("WARNING", f"dispatcher ended while stopping: {exit_text(code)}", dispatcher=member.title)
        if member.rebuild is not None and member.rebuild.swaps:
            member.rebuild.on_stopped(member, code)
        elif self.ending:
            member.set_state(State.STOPPED)
        elif member.leaving:
            self.detach(member)
        elif member.following_state is State.STARTING:
            self.start(member)
        else:
            member.set_state(member.following_state)

    def on_death(self, member: Member, pid: int, code: int) -> None:
        """A process that was not told to stop has ended."""
        reason = member.killed_for or member.stopped_for or exit_text(code)
        text = f"dispatcher died: dispatcher={member.title} pid={pid} {reason}"
        if code not in (EXCEPTION_STATUS, REFUSED_STATUS, BROKEN_STATUS) or member.cell.error is None:
            # A signal leaves no last words, nor does os._exit; those of an exception stand in the cell already.
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
        """Try again later, or give up."""
        pause = member.backoff.failed(member.cell.progress)
        if pause is None:
            member.set_state(State.FATAL)
            text += f" restarts={member.backoff.failure_count - 1} state=FATAL"
        else:
            member.start_at = time.monotonic() + pause
            member.set_state(State.BACKOFF)
            text += f" restart_in_ms={round(pause * 1000)}"
        self.merger.say("ERROR", text)

    def start_due(self) -> None:
        """Start again what has waited long enough; ask no longer whom nobody answers."""
        now = time.monotonic()
        for member in self.everyone():
            if member.rebuild is not None and member.rebuild.swaps:
                continue
            if member.state is State.BACKOFF and not self.ending and now >= member.start_at:
                member.cell.set_restart_count(member.cell.restart_count + 1)
                self.start(member)
        for descriptor in [descriptor for descriptor, (_, _, deadline) in self.describing.items() if now > deadline]:
            self.on_describe_readable(descriptor, f"start_time_max_ms={self.settings.dispatcher_start_time_max}")
        if self.begin_by is not None and now > self.begin_by and not self.begun and not self.finished:
            self.begin_without_the_late()
        if self.late_until is not None and not self.ending and (not self.late or now > self.late_until):
            self.late.clear()
            self.drain()

    def enforce_time_limits(self) -> None:
        """Kill what gives no sign of life for longer than its phase may take."""
        now_ns = time.monotonic_ns()
        for member in self.everyone():
            if member.pid is not None and not member.killed_for and now_ns > member.time_limit_ns():
                member.killed_for = f"phase exceeded its time limit: phase={member.phase_name()}"
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
                # Now, because one that waits for a disk does not even die before the disk answers.
                member.cell.set_error(
                    f"dispatcher is killed, and its end awaited: dispatcher={member.title} pid={member.pid} "
                    f"{member.killed_for}"
                )
                if member.state in (State.STARTING, State.RUNNING) and member.rebuild is None:
                    member.following_state = State.BACKOFF
                    member.set_state(State.STOPPING)
                    self.wake_all()

    def is_waited_for(self, member: Member) -> bool:
        """Tell whether RocketMQ's readers wait for this view, or for one that comes after it."""
        return member.root is None and member.name in names_readers_wait_for(self.after())

    def enforce_memory_limit(self) -> None:
        """Have what takes too much memory flush and be started anew, as after a death; kill what grows on meanwhile."""
        if self.ending or not self.memory_limit.is_due():
            return
        for member in self.everyone():
            if member.pid is None or member.killed_for or self.is_waited_for(member):
                continue
            excess = self.memory_limit.excess(member.pid)
            if excess is None:
                continue
            if member.state in (State.STARTING, State.RUNNING) and member.rebuild is None:
                member.stopped_for = excess
                self.stop(member, State.BACKOFF)
                member.cell.set_error(
                    f"dispatcher is to flush and be started anew: dispatcher={member.title} pid={member.pid} {excess}"
                )
                self.wake_all()
            if self.memory_limit.is_hopeless(member.pid):
                member.killed_for = excess
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)

    # Stopping.

    def stop(self, member: Member, following_state: State, number: int = STOP_SIGNAL) -> None:
        """Have a process flush and end."""
        member.following_state = following_state
        if member.state is not State.STOPPING:
            member.set_state(State.STOPPING)
        signal.pidfd_send_signal(member.pidfd, number)
        # One that somebody stopped would not hear of it before its time limit, and whoever closes would wait so long.
        signal.pidfd_send_signal(member.pidfd, signal.SIGCONT)

    def drain(self) -> None:
        """Have all dispatchers take in what there is, those that others come after first, and end the group."""
        if not self.begun:
            # Nobody could take in anything yet. Whoever is asked twice to end is drained once.
            self.drain_when_begun = True
            return
        if self.late and not self.ending:
            if self.late_until is None:
                self.late_until = time.monotonic() + DRAIN_PATIENCE_S
            return
        if not self.ending:
            if self.rebuild is not None and not self.rebuild.renews:
                self.rebuild.cancel("the group is ending")
            self.ending = True
            for member in self.members.values():
                if member.state is State.BACKOFF:
                    # Its last chance to take in what there is.
                    self.start(member)
                elif member.pid is None and member.state is not State.STOPPED:
                    member.set_state(State.STOPPED)
        self.go_on_draining()

    def go_on_draining(self) -> None:
        """Tell those to drain whose predecessors have ended; finish when all have."""
        if not self.ending or self.finished or self.rebuild is not None or self.renewals.waiting:
            # What a rebuild has left is removed first.
            return
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

    def hurry(self) -> None:
        """Have all dispatchers flush what they have and end, whether they have caught up or not."""
        if not self.begun:
            # Nobody has taken in anything that could be flushed; the owner ends the group by itself.
            return
        self.late.clear()
        self.renewals.give_up()
        self.drain()
        for member in self.members.values():
            if member.pid is not None:
                self.stop(member, State.STOPPED)

    def on_owner_death(self) -> None:
        """Nobody appends any more, and another writer may come: end at once."""
        if not self.finished:
            self.merger.say("WARNING", f"the owner is gone, the group ends: owner_pid={self.setup.owner_pid}")
            self.kill_all()

    def kill_all(self) -> None:
        """End every process of the group without asking."""
        for member in self.everyone():
            if member.pid is not None:
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
        for member in self.everyone():
            if member.pid is not None:
                os.waitpid(member.pid, 0)
                # What they said last may be ready to be read in the very round in which the owner was found gone.
                self.unwatch_process(member)
                member.release_process()
                member.show_state(State.STOPPED)
        for asked, _, _ in self.describing.values():
            self.reactor.unwatch(asked.descriptor)
            asked.end("the group ends")
        self.describing.clear()
        self.finished = True

    def close(self) -> None:
        """Leave nothing behind."""
        self.clients.close()
        self.lock.release()

    # Coming and going.

    def on_owner_says(self) -> None:
        self.clients.owner_says()
        if self.channel.closed:
            # Its pidfd says whether the owner is dead; without a channel it cannot be served either way.
            self.on_owner_death()

    def detach(self, member: Member) -> None:
        """Take a dispatcher out of the group, when its process has ended; its view stays as it is."""
        if member.pid is not None:
            member.leaving = True
            self.stop(member, State.STOPPED)
            return
        self.forget_member(member)
        self.announce()
        self.restart_successors(member.name)
        for come_back in member.when_left:
            come_back()

    def forget_member(self, member: Member) -> None:
        del self.members[member.name]
        self.renewals.waiting.discard(member.name)
        self.late.discard(member.name)
        self.awaited.discard(member.name)
        member.cell.clear(None)

    def restart_successors(self, name: str) -> None:
        """Have those that come after *name* learn that it has come or gone."""
        for member in self.members.values():
            if member.description and name in member.description.after and member.pid is not None:
                self.stop(member, State.STARTING)

    def rescan(self) -> None:
        """Look at the installed plugins again: what was changed is started anew, what was broken is tried again.

        Then the owner reads its configuration again: what is enabled in it since is attached.
        """
        self.rescan_installed()
        self.channel.send(Notice("reread"))

    def rescan_installed(self) -> None:
        """Find out which plugins are others than before."""
        importlib.invalidate_caches()
        installed = installed_dispatchers()
        for member in list(self.members.values()):
            found = installed.get(member.entry.plugin)
            if found is None:
                self.merger.say("WARNING", "the dispatcher was uninstalled", dispatcher=member.name)
                continue
            entry = found.named(member.name)
            try:
                entry.check()
            except ConfigError as error:
                self.merger.say("ERROR", str(error), dispatcher=member.name)
                continue
            if entry == member.entry and member.state is not State.BROKEN and not entry.editable:
                continue
            question = Question(entry, member.options)
            self.describe(question, partial(self.on_described_again, member, question, "the changed plugin is"))

    def on_described_again(self, member: Member, question: Question, what: str, answer: Answer) -> None:
        """Go on with what a changed plugin declares now, or with other options."""
        if self.ending or self.members.get(member.name) is not member:
            return
        answer = self.checked_for_circles(member, answer)
        if answer.description is None:
            text = answer.broken or answer.refused or ""
            self.merger.say("ERROR", f"{what} not used: {text}", dispatcher=member.name)
            # A process has the old one in its memory and goes on with it.
            if member.pid is None:
                member.cell.set_error(text)
                member.entry = question.entry
            return
        member.description = answer.description
        member.entry = question.entry
        member.options = question.options
        self.announce()
        if member.pid is not None:
            self.stop(member, State.STARTING)
        elif member.state in (State.BROKEN, State.FATAL):
            member.backoff.forgive()
            self.start(member)


def shadow_name(name: str) -> str:
    """Return what the cell is named in which the new view of *name* is built; no dispatcher can have that name."""
    return f"~{name}"[:NAME_SIZE_MAX]


def make_pipes(count: int) -> list[int]:
    """Return reading and writing ends of *count* pipes.

    Raises:
        OSError: there are not enough descriptors; none is open.
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


def drain_pipe(descriptor: int) -> None:
    """Empty a non-blocking pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def decode_path(kind: type, value: object) -> object:
    """Return *value* as *kind*: paths travel as texts, a dispatcher's options as they are."""
    return Path(str(value)) if kind is Path else value


def receive_setup(channel: JsonChannel) -> Setup | None:
    """Wait for the owner's first line, behind which it waits for an answer; None if it is gone before."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not channel.closed:
        poll.poll()
        lines = channel.receive()
        if lines:
            return msgspec.json.decode(lines[0], type=Setup, dec_hook=decode_path)
    return None


def main(arguments: Sequence[str]) -> None:
    """Be the supervisor; the argument is the descriptor of the channel to the owner."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    channel = JsonChannel(connection)
    setup = receive_setup(channel)
    if setup is None:
        return
    for name in setup.path:
        if name not in sys.path:
            sys.path.append(name)
    try:
        owner_pidfd = os.pidfd_open(setup.owner_pid)
    except ProcessLookupError:
        # The owner died meanwhile.
        return
    if os.getppid() != setup.owner_pid:
        # It did, and another process has its id now.
        return
    supervisor = Supervisor(channel, setup, owner_pidfd)
    # What was loaded so far is shared by all dispatchers as long as nobody writes to it.
    gc.collect()
    gc.freeze()
    try:
        supervisor.run()
    finally:
        supervisor.kill_all()
        supervisor.close()
