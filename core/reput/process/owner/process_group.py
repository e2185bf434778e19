"""ProcessGroup: the owner's handle on the dispatcher processes of one store. The owner is the writer's program.

The owner starts the supervisor, passes it the ring's descriptors, and watches it from one thread. If the supervisor
dies, the owner starts another over the same ring and cells; puts continue meanwhile, and so does a drain. If the owner
dies, the group ends too.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from reput.errors import ConfigError, DispatcherError, ReputError
from reput.process.control.channel import JsonChannel
from reput.process.control.configuration import Configuration, ConfigurationChange
from reput.process.control.control_messages import Notice, RebuiltView, Reply, Request, Setup, Verb
from reput.process.group.group_context import GroupContext
from reput.process.group.group_lock import LOCK_TIMEOUT_S
from reput.process.owner.drain import await_drain, laggards
from reput.process.owner.member_progress import MemberProgress
from reput.process.owner.supervisor_process import SupervisorProcess
from reput.process.plugin.catalogue import select_dispatchers
from reput.ring import RingMemory
from reput.store.service.threads import DEATH_ADVICE, StartedThread, Threads

__all__ = ["ProcessGroup"]

START_TIMEOUT_S = 120.0
RESTART_MIN_S = 0.05
RESTART_MAX_S = 5.0
# Supervisors started for one drain: a close must end even if something kills each of them.
DRAIN_STARTS_MAX = 5
REQUEST_TIMEOUT_S = 30.0

decode_notice = msgspec.json.Decoder(Notice).decode


class ProcessGroup(MemberProgress):
    """The group of one store.

    Args:
        context: the store, and which dispatchers run.
        memory: the ring; its writer has published the end of the log.
        configuration: what to read again on SIGHUP; None: only the installed plugins.
        lock_timeout: seconds to wait for a former group that still holds the views.
        on_members: called by the watching thread whenever the set of dispatchers changes after `start`;
            `needs_properties` may have changed.
        supervisor: the first one, which has no setup yet; None: `start` begins it.
    """

    def __init__(
        self,
        context: GroupContext,
        memory: RingMemory,
        *,
        configuration: Configuration | None = None,
        lock_timeout: float = LOCK_TIMEOUT_S,
        on_members: Callable[[], None] | None = None,
        threads: Threads | None = None,
        supervisor: SupervisorProcess | None = None,
    ) -> None:
        super().__init__(msgspec.structs.replace(context, store_directory=context.store_directory.resolve()), memory)
        self.configuration = configuration
        self.lock_timeout = lock_timeout
        self.on_members = on_members
        # Removes old segments and returns the fate of each. Set by the part of the store that removes them.
        self.on_clean: Callable[[], Sequence[msgspec.Struct]] | None = None
        # Returns the put and consume statistics. Set by the part of the store that counts them.
        self.on_statistics: Callable[[], msgspec.Struct] | None = None
        self.started = time.time_ns() // 1_000_000
        self.names: list[str] = list(context.settings.dispatchers)
        self.waiting_supervisor = supervisor
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: JsonChannel | None = None
        self.sending = threading.Lock()
        # Wakes the watching thread, which sends the rest of what the socket did not accept at once.
        self.unsent_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.replies: dict[int, Reply | None] = {}
        self.changed = threading.Condition()
        self.request_count = 0
        self.refused: Reply | None = None
        self.described = False
        # The current supervisor has started its dispatchers. Before that, a drain request would reach no dispatcher.
        self.begun = False
        self.draining = False
        self.drain_starts = 0
        self.stopping = False
        self.drained = False
        self.ended = False
        self.exit_status: int | None = None
        self.restart_count = 0
        self.stop_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.threads = threads or Threads()
        self.thread: StartedThread | None = None
        # Why the watching thread died.
        self.death: str | None = None

    # Life.

    def start(self) -> None:
        """Start the group; return when every enabled dispatcher is described, while they still start.

        Raises:
            ConfigError: a dispatcher is unknown, its options are wrong, or the dispatcher order has a cycle.
            DispatcherError: another group works on the store, or the supervisor cannot be started.
            DamagedStore: what an earlier rebuild left is not what was written.
        """
        try:
            self.spawn(again=False)
            self.thread = self.threads.start("reput-group", self.watch, self.fail)
            with self.changed:
                done = self.changed.wait_for(lambda: self.described or self.refused or self.ended, START_TIMEOUT_S)
            if self.refused is not None:
                self.refused.check()
            if not done or not self.described:
                self.require_watch()
                why = f"timeout={START_TIMEOUT_S}" if not done else f"exit_status={self.exit_status}"
                raise DispatcherError(f"the supervisor does not start: {why}")
        except BaseException:
            self.kill()
            raise

    def spawn(self, *, again: bool) -> None:
        """Start a supervisor and send it its setup.

        Raises:
            ConfigError: a dispatcher is unknown.
        """
        # The process boots while the metadata is read.
        supervisor = self.waiting_supervisor or SupervisorProcess()
        self.waiting_supervisor = None
        channel = supervisor.channel
        with self.sending:
            self.process, self.channel = supervisor.process, channel
        setup = Setup(
            context=self.context,
            entries=select_dispatchers(self.names, self.context.settings.dispatcher_plugins),
            path=[os.path.abspath(entry) for entry in sys.path if entry],
            started=self.started,
            again=again,
            lock_timeout=self.lock_timeout,
        )
        with self.sending:
            channel.send_descriptors(setup, self.memory.descriptors)

    def watch(self) -> None:
        """Run the watching thread: handle the supervisor's notices, and start another supervisor when it dies."""
        while True:
            assert self.process is not None
            assert self.channel is not None
            self.watch_supervisor(self.process, self.channel)
            status = self.exit_status = self.process.wait()
            self.channel.close()
            over = self.stopping or self.drained or self.refused is not None or not self.described
            self.end_requests(f"the supervisor ended: exit_status={status}", over=over)
            if over:
                return
            if not self.start_again():
                return

    def fail(self, reason: str) -> None:
        """End the group and all waits: the watching thread has died, so a dead supervisor would not be replaced."""
        with self.changed:
            self.death = reason
        try:
            self.end_supervisor()
        finally:
            self.end_requests(reason, over=True)
            self.progress_waiter.close()

    def end_supervisor(self) -> None:
        """Kill the supervisor; its dispatchers die with it."""
        with self.sending:
            process, channel = self.process, self.channel
        if process is not None:
            process.kill()
            process.wait()
        if channel is not None:
            channel.close()

    def end_requests(self, reason: str, *, over: bool) -> None:
        """Fail all pending requests to the supervisor; *over*: no other supervisor follows."""
        with self.changed:
            self.begun = False
            self.replies = {number: Reply(number, error=reason) for number in self.replies}
            self.ended = over
            self.changed.notify_all()

    def require_watch(self) -> None:
        """Refuse a call that needs the watching thread if that thread is dead.

        Raises:
            DispatcherError: the thread has died.
        """
        if self.death is not None:
            raise DispatcherError(self.death, DEATH_ADVICE)

    def start_again(self) -> bool:
        """Replace a dead supervisor, retrying until that succeeds; return False if the group stops first."""
        pause = RESTART_MIN_S
        poll = select.poll()
        poll.register(self.stop_event, select.POLLIN)
        while not poll.poll(pause * 1000):
            if self.draining:
                self.drain_starts += 1
                if self.drain_starts > DRAIN_STARTS_MAX:
                    break
            pause = min(pause * 2, RESTART_MAX_S)
            self.restart_count += 1
            # Out of memory, out of processes, a plugin uninstalled meanwhile: each of these may be temporary.
            with contextlib.suppress(OSError, ConfigError):
                self.spawn(again=True)
                if self.stopping and self.process is not None:
                    # `kill` may have seen only the previous process.
                    self.process.kill()
                return True
        self.end_requests("the group is stopped", over=True)
        return False

    def watch_supervisor(self, process: subprocess.Popen[bytes], channel: JsonChannel) -> None:
        """Handle the notices of one supervisor until it has ended."""
        pidfd = os.pidfd_open(process.pid)
        poll = select.poll()
        try:
            poll.register(pidfd, select.POLLIN)
            poll.register(self.unsent_event, select.POLLIN)
            while True:
                if channel.fileno() >= 0:
                    poll.register(channel, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
                ready = [descriptor for descriptor, _ in poll.poll()]
                if self.unsent_event in ready:
                    os.eventfd_read(self.unsent_event)
                spoke = channel.fileno() in ready
                if spoke:
                    with self.sending:
                        channel.flush()
                    for line in channel.receive():
                        self.take(decode_notice(line))
                if channel.closed and channel.fileno() >= 0:
                    # End of file, or too much unsent data: the supervisor sees the socket closed and ends.
                    poll.unregister(channel)
                    with self.sending:
                        channel.close()
                if pidfd in ready and not spoke:
                    return
        finally:
            os.close(pidfd)

    def take(self, notice: Notice) -> None:
        """Handle one notice from the supervisor."""
        with self.changed:
            if notice.event == "members":
                self.members = {member.entry.name: member for member in notice.members}
                self.names = list(self.members)
                self.keep_options()
                first, self.described = not self.described, True
                begun_while_draining = self.draining and not self.begun
                self.begun = True
            elif notice.event == "refused":
                self.refused = notice.reply
            elif notice.event == "reply" and notice.reply is not None and notice.reply.id in self.replies:
                self.replies[notice.reply.id] = notice.reply
            elif notice.event == "drained":
                self.drained = True
            self.changed.notify_all()
        if notice.event == "reread":
            self.reread()
        if notice.event == "clean":
            self.clean()
        if notice.event == "statistics":
            self.count()
        if notice.event == "members":
            if begun_while_draining:
                self.send(Request("drain"))
            if not first and self.on_members is not None:
                self.on_members()

    def keep_options(self) -> None:
        """Keep the running dispatchers' plugins and options, so that the next supervisor starts them the same way."""
        settings = self.context.settings
        options = settings.dispatcher_options | {name: member.options for name, member in self.members.items()}
        plugins = settings.dispatcher_plugins | {name: member.entry.plugin for name, member in self.members.items()}
        self.context = msgspec.structs.replace(
            self.context,
            settings=msgspec.structs.replace(settings, dispatcher_options=options, dispatcher_plugins=plugins),
        )

    def clean(self) -> None:
        """Remove old segments, and send the supervisor the fate of each."""
        try:
            if self.on_clean is None:
                raise DispatcherError(f"this store cannot remove segments now: store={self.context.store_directory}")
            fates = msgspec.json.encode(self.on_clean(), enc_hook=str)
            self.send(Request("cleaned", answer=msgspec.Raw(fates)))
        except (ReputError, OSError) as error:
            self.send(Request("cleaned", reason=str(error)))

    def count(self) -> None:
        """Send the supervisor the put and consume statistics."""
        try:
            if self.on_statistics is None:
                raise DispatcherError(f"this store has no statistics: store={self.context.store_directory}")
            self.send(Request("counted", answer=msgspec.Raw(msgspec.json.encode(self.on_statistics()))))
        except ReputError as error:
            self.send(Request("counted", reason=str(error)))

    def reread(self) -> None:
        """Read the configuration again, and send the supervisor the changes."""
        if self.configuration is None:
            return
        try:
            change = self.configuration.reread()
        except ConfigError as error:
            change = ConfigurationChange(refused=str(error))
        self.send(Request("configure", change=change))

    def drain_and_stop(self, timeout: float = math.inf) -> None:
        """Make all dispatchers drain the log, flush, and end; predecessors go first.

        Everything published before the call is dispatched. Records that a dispatcher cannot take in (it is paused, it
        failed, it stopped at damage, *timeout* seconds have passed) stays for its next start. Each phase has its time
        limit. If the supervisor dies meanwhile, or has just died, another one continues the drain.
        """
        try:
            if not self.begin_drain() or not await_drain(
                self.join, lambda: self.send(Request("hurry")), lambda: laggards(self.status()), timeout
            ):
                self.kill()
                return
        except BaseException:
            # For example a second Ctrl-C. Processes still working on the views would block the next `open`.
            self.kill()
            raise
        self.release()

    def join(self, seconds: float) -> bool:
        """Wait up to *seconds* for the group to end; return whether it has."""
        if self.thread is not None:
            self.thread.join(seconds)
        return self.thread is None or not self.thread.is_alive()

    def begin_drain(self) -> bool:
        """Tell the dispatchers to drain and end, without waiting; return False if there is no group to drain."""
        if not self.described or self.ended:
            return False
        with self.changed:
            self.draining = True
            begun = self.begun
        if begun:
            self.send(Request("drain"))
        return True

    def kill(self) -> None:
        """Kill the supervisor; its dispatchers die with it. Further calls do nothing."""
        if self.stop_event < 0:
            return
        with self.changed:
            self.stopping = True
        os.eventfd_write(self.stop_event, 1)
        if self.thread is None:
            self.end_supervisor()
        else:
            if self.process is not None and self.process.returncode is None:
                self.process.kill()
            self.thread.join()
        self.release()

    def release(self) -> None:
        """End all waits. The creator of the memory closes it."""
        self.progress_waiter.close()
        with self.sending:
            os.close(self.stop_event)
            os.close(self.unsent_event)
            self.stop_event = self.unsent_event = -1

    def forget(self) -> None:
        """Drop the group in a forked child of the owner; its processes belong to the parent."""
        if self.process is not None:
            # The supervisor is no child of this process, so `Popen` must not wait for it.
            self.process.returncode = 0
        if self.channel is not None:
            self.channel.close()

    # Requests.

    def send(self, request: Request) -> bool:
        """Send *request*; return False if there is no supervisor at present."""
        with self.sending:
            if self.channel is None or self.channel.closed:
                return False
            self.channel.send(request)
            if self.channel.unsent:
                os.eventfd_write(self.unsent_event, 1)
            return True

    def request(
        self,
        verb: Verb,
        name: str = "",
        *,
        names: Sequence[str] = (),
        force: bool = False,
        timeout: float | None = REQUEST_TIMEOUT_S,
    ) -> msgspec.Raw:
        """Send the supervisor a request, and return its answer as JSON; *timeout* None waits without limit.

        Raises:
            ConfigError: the name or the options of a dispatcher are wrong.
            DispatcherError: the supervisor cannot do that now, or does not answer.
        """
        with self.changed:
            self.request_count += 1
            number = self.request_count
            self.replies[number] = None
        is_sent = self.send(Request(verb, name, number, names=tuple(names), force=force))
        with self.changed:
            # A request that was not sent, between two supervisors, would never be answered.
            if is_sent:
                self.changed.wait_for(lambda: self.replies[number] is not None or self.ended, timeout)
            reply = self.replies.pop(number)
        if reply is None:
            self.require_watch()
            raise DispatcherError(f"the supervisor does not answer: request={verb} dispatcher={name}")
        return reply.check()

    def tell_writer_state(self, state: str, reason: str | None) -> None:
        """Send the supervisor the writer's state, for `reput status` in other processes."""
        self.send(Request("writer_state", state=state, reason=reason))

    def rebuild(self, views: Sequence[str], *, force: bool = False) -> list[RebuiltView]:
        """Rebuild views beside the running ones and swap them in; return when that is done.

        Raises:
            ConfigError: a view lies elsewhere, and *force* is not set.
            DispatcherError: the rebuild was given up; the old views stay in use.
        """
        answer = self.request("rebuild", names=views, force=force, timeout=None)
        return msgspec.json.decode(answer, type=list[RebuiltView])
