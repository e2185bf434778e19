"""Supervisor: starts, watches, restarts and stops the dispatchers of one store.

The supervisor is started by exec, with one thread and in its own session: it inherits no state of the program that
opened the store, and a Ctrl-C in that program's terminal does not reach it. It imports neither a plugin nor numpy:
each dispatcher is forked from it and would have them in memory, too. It waits in one place, a poll over

    the owner's pidfd       → the owner is dead: the group ends at once
    the owner's channel     → requests of the owner
    pidfds of dispatchers   → one has ended
    pipes of dispatchers    → log lines, and what plugins print
    the control socket      → requests of other processes
    describe processes      → what a plugin declares
    the signal descriptor   → SIGTERM: drain and end; SIGHUP: look for new and changed plugins

and its timeout is the next deadline: a restart, or the end of a phase's time limit. `DispatcherGroup` manages the
dispatchers; `Membership`, `Rebuilds` and `RequestDesk` direct it; this module begins and ends the group.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from reput.errors import ConfigError, DamagedStore, DispatcherError, ReputError
from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import Notice, Reply, Setup
from reput.process.control.control_socket import ControlSocket
from reput.process.dispatcher.states import State
from reput.process.group.group_lock import GroupLock
from reput.process.plugin.describe import Answer
from reput.process.plugin.dispatcher_order import in_order
from reput.process.supervisor.clients import Clients
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.live_rebuild import LOOK_S
from reput.process.supervisor.member import Member
from reput.process.supervisor.membership import Membership
from reput.process.supervisor.questions import Questions
from reput.process.supervisor.rebuilds import Rebuilds
from reput.process.supervisor.requests import RequestDesk
from reput.process.system.command import SIGNALS_HELD_AT_START
from reput.process.system.reactor import Reactor
from reput.process.views.shadow_folders import ShadowFolders
from reput.ring import RingMemory

__all__ = ["Supervisor", "main"]

LOCK_RETRY_S = 0.01
POLL_S_MAX = 60.0
# How long the group's beginning waits for one more plugin to be imported, since the last one was.
DESCRIBE_PATIENCE_S = 5.0
# How long the group's end waits for dispatchers without which it has begun. A program may close its store right away.
DRAIN_PATIENCE_S = 15.0


class Supervisor:
    """The beginning and the end of one store's group, and the loop in between."""

    def __init__(self, channel: JsonChannel, setup: Setup, owner_pid: int, owner_pidfd: int) -> None:
        self.channel = channel
        self.setup = setup
        self.context = setup.context
        self.owner_pid = owner_pid
        self.owner_pidfd = owner_pidfd
        self.lock = GroupLock(self.context.view_directory)
        self.reactor = Reactor()
        self.memory = RingMemory.from_descriptors(channel.descriptors)
        channel.descriptors = []
        self.group = DispatcherGroup(setup, channel, self.memory, self.reactor, self.lock)
        self.questions = Questions(self.reactor, setup.path, self.context.settings.dispatcher_start_time_max)
        self.membership = Membership(self.group, self.questions)
        self.rebuilds = Rebuilds(self.group)
        desk = RequestDesk(
            self.group, self.membership, self.questions, self.rebuilds, drain=self.drain, hurry=self.hurry
        )
        self.clients = Clients(self.reactor, channel, desk)
        self.signals: list[int] = []
        # All dispatchers were described and started, or need a person's attention.
        self.begun = False
        # When the group begins without the dispatchers whose plugin is still being imported; None: it waits for all.
        self.begin_by: float | None = None
        # When a drain stops waiting for late dispatchers; None: no drain waits for them.
        self.late_until: float | None = None
        self.drain_when_begun = False

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
                # The store can be written without it; only other processes cannot ask or command.
                self.group.merger.say("WARNING", f"there is no control socket: {error}")
        try:
            self.begin()
        except DamagedStore as error:
            self.refuse(error)
        except OSError as error:
            self.refuse(DispatcherError(f"an earlier rebuild cannot be removed: error={error}"))
        while not self.group.finished:
            self.do_work()

    def do_work(self) -> int:
        """Wait for the next event or deadline, and handle it; return the number of descriptors that were ready."""
        ready_count = self.reactor.wait(self.seconds_to_next())
        self.take_signals()
        now = time.monotonic()
        self.group.start_due(now)
        self.questions.end_overdue(now)
        self.end_patience(now)
        self.group.enforce_time_limits()
        self.group.enforce_memory_limit()
        self.rebuilds.look()
        self.go_on_draining()
        self.clients.flush()
        return ready_count

    def seconds_to_next(self) -> float:
        """Return the seconds until the next deadline."""
        now = time.monotonic()
        due = [LOOK_S if self.rebuilds.is_busy else POLL_S_MAX, *self.group.seconds_to_next(now)]
        due += [deadline - now for deadline in self.questions.deadlines()]
        if self.begin_by is not None and not self.begun:
            due.append(self.begin_by - now)
        if self.late_until is not None and not self.group.ending:
            due.append(self.late_until - now if self.has_late else 0.0)
        return max(0.0, min(due))

    def install_signals(self) -> None:
        """Let SIGTERM and SIGHUP end the poll."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.reactor.watch(reader, lambda: drain_pipe(reader))
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGHUP, self.on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        # The owner blocked these signals while it created this process.
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
        """Take the group's lock, which a killed group soon gives up; return False if the group cannot start."""
        deadline = time.monotonic() + self.setup.lock_timeout
        while not self.lock.try_take():
            if self.group.finished:
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

    # The beginning.

    def begin(self) -> None:
        """Ask all enabled dispatchers for their declarations; `ready` follows when all have answered.

        Raises:
            DamagedStore: what a killed rebuild left is not what was written.
            OSError: the remains of a killed rebuild cannot be removed.
        """
        swapped = ShadowFolders(self.context.view_directory).settle()
        for cell_slot in range(self.memory.slot_count):
            name = self.memory.view(cell_slot).name
            if name is not None and name not in [entry.name for entry in self.setup.entries]:
                self.memory.open_cell(cell_slot).clear(None)
        try:
            for entry in self.setup.entries:
                member = self.group.add_member(entry, self.context.options(entry.name))
                member.awaited = True
                if entry.name in swapped:
                    member.cell.raise_generation()
        except ConfigError as error:
            self.refuse(error)
            return
        self.be_patient()
        # A copy: a refusal ends the group while kept descriptions answer at once.
        for member in list(self.group.members.values()):
            self.questions.ask(member.question, partial(self.on_described, member))
        if not self.group.members:
            self.ready()

    def on_described(self, member: Member, answer: Answer) -> None:
        """Handle an answer that the group's start waits for."""
        if self.group.finished:
            return
        if self.begun:
            self.on_described_late(member, answer)
            return
        if answer.refused is not None and not self.setup.again:
            self.refuse(ConfigError(answer.refused, answer.advice))
            return
        member.awaited = False
        # A request to resume it may have described and started it meanwhile.
        if member.pid is None and self.group.members.get(member.name) is member:
            self.membership.take_description(member, answer)
        self.be_patient()
        if not any(other.awaited for other in self.group.members.values()):
            self.ready()

    def be_patient(self) -> None:
        """Wait a while for the next plugin to be imported. A rebuild elsewhere needs all plugins and waits for them."""
        if self.context.target is None:
            self.begin_by = time.monotonic() + DESCRIBE_PATIENCE_S

    def begin_without_the_late(self) -> None:
        """Begin without dispatchers whose plugin is still being imported; each joins when it is described."""
        for member in self.group.members.values():
            if member.awaited:
                text = (
                    f"the plugin is still being imported, and the group goes on without it: dispatcher={member.name} "
                    f"module={member.entry.module} time_max_ms={self.group.settings.dispatcher_start_time_max}"
                )
                member.cell.set_error(text)
                self.group.merger.say("WARNING", text)
                member.awaited, member.late = False, True
        self.ready()

    @property
    def has_late(self) -> bool:
        """Whether the group has begun without a dispatcher that is still being imported."""
        return any(member.late for member in self.group.members.values())

    def on_described_late(self, member: Member, answer: Answer) -> None:
        """Add a late dispatcher to the running group."""
        member.late = False
        if self.group.ending or self.group.members.get(member.name) is not member:
            return
        if member.pid is None:
            self.membership.take_description(member, self.membership.checked_for_circles(member, answer))
        # Tell the owner first: its frames must carry what the new dispatcher needs.
        self.group.announce()
        if member.description is not None:
            member.cell.set_error(None)
            if member.state is State.STOPPED:
                self.group.start(member)
        self.group.wake_all()

    def ready(self) -> None:
        """Start all dispatchers, and announce them to the owner."""
        try:
            in_order(self.group.after())
        except ConfigError as error:
            self.refuse(error)
            return
        for member in self.group.members.values():
            if member.state is State.STOPPED and member.description is not None:
                self.group.start(member)
        self.begun = True
        self.group.announce()
        if self.drain_when_begun:
            self.drain()

    def refuse(self, error: ReputError) -> None:
        """Tell the owner why there will be no group, and end."""
        self.group.merger.say("ERROR", str(error))
        self.channel.send(Notice("refused", reply=Reply.refusal(0, error)))
        self.kill_all()

    def end_patience(self, now: float) -> None:
        """Begin, or drain, without late dispatchers once their time is over."""
        if self.begin_by is not None and now > self.begin_by and not self.begun and not self.group.finished:
            self.begin_without_the_late()
        if self.late_until is not None and not self.group.ending and (not self.has_late or now > self.late_until):
            self.forget_late()
            self.drain()

    def forget_late(self) -> None:
        """Stop waiting for late dispatchers."""
        for member in self.group.members.values():
            member.late = False

    # The end.

    def drain(self) -> None:
        """Make all dispatchers drain the log, predecessors first, and end the group."""
        if not self.begun:
            # No dispatcher has started yet. A second request to drain changes nothing.
            self.drain_when_begun = True
            return
        if self.has_late and not self.group.ending:
            if self.late_until is None:
                self.late_until = time.monotonic() + DRAIN_PATIENCE_S
            return
        if not self.group.ending:
            self.rebuilds.cancel_requested("the group is ending")
            self.group.begin_ending()
        self.go_on_draining()

    def go_on_draining(self) -> None:
        """Drain the dispatchers whose turn it is, once no rebuild is under way."""
        if self.group.ending and not self.group.finished and not self.rebuilds.is_busy:
            self.group.go_on_draining()

    def hurry(self) -> None:
        """Make all dispatchers flush and end, whether they have caught up or not."""
        if not self.begun:
            # There is nothing to flush yet; the owner ends the group by itself.
            return
        self.forget_late()
        self.rebuilds.give_up()
        self.drain()
        for member in self.group.members.values():
            if member.pid is not None:
                self.group.stop(member, State.STOPPED)

    def on_owner_says(self) -> None:
        self.clients.owner_says()
        if self.channel.closed:
            # Whether or not the owner is dead, it cannot be served without a channel.
            self.on_owner_death()

    def on_owner_death(self) -> None:
        """End at once: the log has no writer any more, and another may come."""
        if not self.group.finished:
            self.group.merger.say("WARNING", f"the owner is gone, the group ends: owner_pid={self.owner_pid}")
            self.kill_all()

    def kill_all(self) -> None:
        """Kill every process of the group."""
        self.group.kill_all()
        self.questions.end_all()

    def close(self) -> None:
        """Close the clients and release the lock."""
        self.clients.close()
        self.lock.release()

    def rescan(self) -> None:
        """Adopt changed plugins, and ask the owner to read its configuration again, which may attach others."""
        self.membership.rescan_installed()
        self.channel.send(Notice("reread"))


def drain_pipe(descriptor: int) -> None:
    """Empty a non-blocking pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def decode_path(kind: type, value: object) -> object:
    """Return *value* as *kind*: paths travel as texts, a dispatcher's options as they are."""
    return Path(str(value)) if kind is Path else value


def receive_setup(channel: JsonChannel, owner_pidfd: int) -> Setup | None:
    """Wait for the owner's first line; return None if the owner is gone first.

    The owner recovers its log meanwhile. If it dies, a process that it has forked may keep the channel open.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(owner_pidfd, select.POLLIN)
    while not channel.closed:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if owner_pidfd in ready:
            return None
        lines = channel.receive()
        if lines:
            return msgspec.json.decode(lines[0], type=Setup, dec_hook=decode_path)
    return None


def main(arguments: Sequence[str]) -> None:
    """Run the supervisor; the arguments are the descriptor of the channel to the owner, and the owner's process id."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    channel = JsonChannel(connection)
    owner_pid = int(arguments[1])
    try:
        owner_pidfd = os.pidfd_open(owner_pid)
    except ProcessLookupError:
        # The owner died meanwhile.
        return
    if os.getppid() != owner_pid:
        # The owner died, and another process now has its id.
        return
    setup = receive_setup(channel, owner_pidfd)
    if setup is None:
        return
    for name in setup.path:
        if name not in sys.path:
            sys.path.append(name)
    supervisor = Supervisor(channel, setup, owner_pid, owner_pidfd)
    # All dispatchers share the memory loaded so far, as long as no process writes to it.
    gc.collect()
    gc.freeze()
    try:
        supervisor.run()
    finally:
        supervisor.kill_all()
        supervisor.close()
