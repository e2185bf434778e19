"""RequestDesk: carries out what the owner and the clients of the control socket ask the supervisor for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

import reput
from reput.errors import DispatcherError, ReputError
from reput.process.control.channel import JsonChannel
from reput.process.control.configuration import ConfigurationChange
from reput.process.control.control_messages import GroupStatus, Notice, RebuiltView, Reply, Request, Verb, WriterRow
from reput.process.control.control_socket import ControlSocket
from reput.process.control.dispatcher_row import dispatcher_row
from reput.process.dispatcher.states import State
from reput.process.plugin.catalogue import CatalogueEntry, installed_dispatchers, select_dispatchers
from reput.process.plugin.describe import Answer, Question
from reput.process.plugin.dispatcher_order import in_order
from reput.process.supervisor.live_rebuild import LiveRebuild
from reput.process.supervisor.member import Member
from reput.process.system.reactor import Reactor
from reput.store.recovery.found_damage import known_damage
from reput.store.state.recorded_settings import meaning_of

if TYPE_CHECKING:
    from reput.process.supervisor.supervisor import Supervisor

__all__ = ["Clients", "RequestDesk"]

Reporter = Callable[[Reply], None]


class Clients:
    """The connections to the control socket, and the owner's channel."""

    def __init__(self, reactor: Reactor, channel: JsonChannel, desk: RequestDesk) -> None:
        self.reactor = reactor
        self.channel = channel
        self.desk = desk
        self.control: ControlSocket | None = None
        self.connected: dict[int, JsonChannel] = {}

    def listen(self, control: ControlSocket) -> None:
        """Take clients on *control*."""
        self.control = control
        self.reactor.watch(control.fileno(), self.accept)

    def owner_says(self) -> None:
        """Carry out what the owner asks for."""
        for line in self.channel.receive():
            self.desk.handle(line, lambda reply: self.channel.send(Notice("reply", reply=reply)), None)

    def accept(self) -> None:
        """Take up a client that has come."""
        assert self.control is not None
        client = self.control.accept()
        if client is not None:
            descriptor = client.fileno()
            self.connected[descriptor] = client
            self.reactor.watch(descriptor, lambda: self.client_says(descriptor, client))

    def client_says(self, descriptor: int, client: JsonChannel) -> None:
        """Carry out what a client asks for."""
        for line in client.receive():
            self.desk.handle(line, client.send, client)
        if client.closed:
            self.drop(descriptor, client)

    def drop(self, descriptor: int, client: JsonChannel) -> None:
        """Let go of a client that is gone, and of the rebuild that it was waiting for."""
        self.desk.on_gone(client)
        self.reactor.unwatch(descriptor)
        del self.connected[descriptor]
        client.close()

    def flush(self) -> None:
        """Send on what a receiver did not take at once."""
        self.channel.flush()
        self.reactor.want_room(self.channel.fileno(), bool(self.channel.unsent))
        for descriptor, client in list(self.connected.items()):
            client.flush()
            if client.closed:
                self.drop(descriptor, client)
            else:
                self.reactor.want_room(descriptor, bool(client.unsent))

    def close(self) -> None:
        """Send what can be sent, and stop listening."""
        self.flush()
        for client in self.connected.values():
            client.close()
        if self.control is not None:
            self.control.close()


class RequestDesk:
    """Carries out requests on a supervisor's group.

    Attributes:
        writer_state: state and reason, as the owner last said.
    """

    def __init__(self, group: Supervisor) -> None:
        self.group = group
        # Who waits for what the owner answers, by what was asked for.
        self.asked_owner: dict[Verb, list[tuple[Request, Reporter]]] = {"clean": [], "statistics": []}
        self.writer_state: tuple[str, str | None] = ("RUNNING", None)
        self.rebuild_client: JsonChannel | None = None

    def handle(self, line: bytes, report: Reporter, client: JsonChannel | None) -> None:
        """Do what a line asks for, and have *report* called with the outcome, now or later."""
        request_id = 0
        try:
            request = msgspec.json.decode(line, type=Request)
            request_id = request.id
            self.carry_out(request, report, client)
        except msgspec.MsgspecError as error:
            report(Reply(request_id, error=f"no request: reason={error}"))
        except ReputError as error:
            report(Reply.refusal(request_id, error))

    def carry_out(self, request: Request, report: Reporter, client: JsonChannel | None) -> None:
        """Do one request.

        Raises:
            DispatcherError: it cannot be done now.
            ConfigError: the dispatcher's name or options are wrong.
        """
        match request.verb:
            case "status":
                report(result(request, self.status()))
            case "observe":
                self.hand_over(request, client)
            case "drain":
                report(result(request, None))
                self.group.drain()
            case "hurry":
                report(result(request, None))
                self.group.hurry()
            case "writer_state":
                self.writer_state = (request.state, request.reason)
                report(result(request, None))
            case "clean" | "statistics":
                waiting = self.asked_owner[request.verb]
                waiting.append((request, report))
                if len(waiting) == 1:
                    # The others get the same answer: however many ask, one is under way.
                    self.group.channel.send(Notice(request.verb))
            case "cleaned":
                self.pass_on("clean", request)
            case "counted":
                self.pass_on("statistics", request)
            case "configure":
                self.configure(request.change)
                report(result(request, None))
            case "attach":
                (entry,) = self.select(request.name, self.group.settings.dispatcher_plugins)
                options = self.group.context.options(request.name)
                self.attach(entry, options, lambda error: report(outcome(request, error)))
            case "rebuild":
                self.rebuild(request, report, client)
            case "pause":
                self.pause(self.member(request.name))
                report(result(request, None))
            case "resume":
                self.resume(self.member(request.name), request, report)
            case "restart":
                self.restart(self.member(request.name), request, report)
            case "detach":
                self.detach(self.member(request.name))
                report(result(request, None))

    def pass_on(self, verb: Verb, request: Request) -> None:
        """Tell those who asked the owner for *verb* what it says."""
        waiting, self.asked_owner[verb] = self.asked_owner[verb], []
        for asked, report in waiting:
            report(Reply(asked.id, result=request.answer, error=request.reason))

    def hand_over(self, request: Request, client: JsonChannel | None) -> None:
        """Give a client what it needs to look at ring and cells.

        Raises:
            DispatcherError: it asked for something else before, and has not taken that.
        """
        if client is None or client.unsent:
            raise DispatcherError("descriptors are handed over on a connection of their own")
        members = [member.info for member in self.group.members.values()]
        descriptors = self.group.memory.open_observer_descriptors()
        client.send_descriptors(result(request, members), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def member(self, name: str) -> Member:
        """Return one dispatcher.

        Raises:
            DispatcherError: it is not in the group, is coming or going, or the group is ending.
        """
        if self.group.ending:
            raise DispatcherError("the group is ending")
        members = self.group.members
        if name not in members:
            raise DispatcherError(f"dispatcher is not enabled: dispatcher={name} enabled={','.join(members)}")
        if members[name].joining:
            raise DispatcherError(f"dispatcher is being attached: dispatcher={name}", "Try again in a moment.")
        if members[name].leaving:
            raise DispatcherError(f"dispatcher is leaving the group: dispatcher={name}", "Attach it again to have it.")
        rebuild = members[name].rebuild
        if rebuild is not None and rebuild.swaps:
            raise DispatcherError(f"the view is being swapped: dispatcher={name}", "Try again in a moment.")
        return members[name]

    def status(self) -> GroupStatus:
        """Return the group as `reput status` shows it."""
        header = self.group.memory.header
        state, reason = self.writer_state
        return GroupStatus(
            store=str(self.group.context.store_directory),
            store_id=self.group.context.store_id,
            version=reput.__version__,
            started=self.group.setup.started,
            writer=WriterRow(
                pid=self.group.setup.owner_pid,
                appended=header.appended,
                durable=header.durable,
                commit_log_offset_min=header.commit_log_offset_min,
                epoch=header.epoch,
                state=state,
                reason=reason,
            ),
            dispatchers=[
                dispatcher_row(
                    member.entry,
                    member.cell,
                    header,
                    self.group.context.store_directory,
                    member.rebuild_progress,
                )
                for member in self.group.members.values()
            ],
            supervisor_pid=self.group.pid,
            damage=known_damage(self.group.context.store_directory, header.appended),
            settings=meaning_of(self.group.context.settings),
        )

    def pause(self, member: Member) -> None:
        """Stop a dispatcher until it is resumed. Its view stays as it is."""
        if member.pid is not None:
            self.group.stop(member, State.PAUSED)
        elif member.state is not State.PAUSED:
            member.set_state(State.PAUSED)
        self.group.wake_all()

    def resume(self, member: Member, request: Request, report: Reporter) -> None:
        """Start a dispatcher that does not run, whatever the reason; describe it again if it was broken."""
        if member.pid is not None:
            if member.state is State.STOPPING:
                member.following_state = State.STARTING
            report(result(request, None))
            return
        member.backoff.forgive()
        if member.description is not None:
            self.group.start(member)
            report(result(request, None))
            return

        def described(answer: Answer) -> None:
            if self.group.ending or self.group.members.get(member.name) is not member:
                report(Reply(request.id, error=f"dispatcher has left the group: dispatcher={member.name}"))
                return
            if member.pid is not None:
                # Somebody else has had it started since.
                report(result(request, None))
                return
            answer = self.group.checked_for_circles(member, answer)
            self.group.take_description(member, answer)
            if answer.description is not None:
                self.group.start(member)
                self.group.announce()
                report(result(request, None))
            else:
                report(Reply(request.id, error=f"dispatcher is broken: dispatcher={member.name}"))

        self.group.describe(member.question, described)

    def restart(self, member: Member, request: Request, report: Reporter) -> None:
        """End the process, if there is one, and start another."""
        if member.pid is None:
            self.resume(member, request, report)
            return
        self.group.stop(member, State.STARTING)
        report(result(request, None))

    def rebuild(self, request: Request, report: Reporter, client: JsonChannel | None) -> None:
        """Build views anew beside those that run; the reply comes when they are swapped in.

        Raises:
            DispatcherError: another rebuild is under way, or a view cannot be built.
        """
        if self.group.ending:
            raise DispatcherError("the group is ending")
        present = self.group.rebuild
        renewed = present is not None and set(request.names) <= present.renews
        if present is not None and not renewed:
            views = ",".join(present.members)
            raise DispatcherError(f"another rebuild is under way: views={views}", "Wait for its end.")

        def done(outcome: list[RebuiltView] | ReputError) -> None:
            self.rebuild_client = None
            if isinstance(outcome, ReputError):
                report(Reply.refusal(request.id, outcome))
            else:
                report(result(request, outcome))

        if present is not None:
            # It is under way for its new format already.
            present.done.append(done)
            return
        self.group.rebuild = LiveRebuild(self.group, request.names, done, force=request.force)
        self.rebuild_client = client
        self.group.rebuild.begin()

    def on_gone(self, client: JsonChannel) -> None:
        """Give up a rebuild that nobody waits for any more."""
        if client is self.rebuild_client and self.group.rebuild is not None:
            self.rebuild_client = None
            self.group.rebuild.cancel("who asked for it has gone")

    def configure(self, change: ConfigurationChange) -> None:
        """Take up what was changed in the configuration; what cannot be is said in the log."""
        say = self.group.merger.say
        if change.refused is not None:
            say("ERROR", f"the configuration is not taken up: {change.refused}")
            return
        for name in change.removed:
            if name in self.group.members:
                try:
                    self.detach(self.member(name))
                except DispatcherError as error:
                    say("ERROR", f"the dispatcher stays: {error}", dispatcher=name)
        for name in change.added:
            if name not in self.group.members or self.group.members[name].leaving:
                try:
                    (entry,) = self.select(name, change.plugins)
                    self.attach(entry, change.options.get(name, {}), partial(self.say_attached, name))
                except ReputError as error:
                    self.say_attached(name, error)
        for name, options in change.options.items():
            member = self.group.members.get(name)
            if member is not None and member.options != options:
                # Whoever upgrades a plugin may give it other options in one go, which are the new one's to judge.
                installed = installed_dispatchers().get(member.entry.plugin, member.entry)
                question = Question(installed.named(name), options)
                done = partial(self.group.on_described_again, member, question, "the changed options are")
                self.group.describe(question, done)
        if change.waiting:
            say("WARNING", f"changed settings hold when the store is opened next: settings={','.join(change.waiting)}")

    def say_attached(self, name: str, error: ReputError | None) -> None:
        """Say in the log what came of a dispatcher that is enabled now."""
        if error is None:
            self.group.merger.say("INFO", "the dispatcher was attached", dispatcher=name)
        else:
            self.group.merger.say("ERROR", f"the dispatcher is not attached: {error}", dispatcher=name)

    def detach(self, member: Member) -> None:
        """Have a dispatcher leave the group.

        Raises:
            DispatcherError: its view is being rebuilt.
        """
        if member.rebuild is not None:
            raise DispatcherError(f"the view is being rebuilt: dispatcher={member.name}")
        self.group.detach(member)

    def select(self, name: str, plugins: Mapping[str, str]) -> list[CatalogueEntry]:
        """Return one dispatcher as it is installed now.

        Raises:
            ConfigError: it is not installed.
        """
        importlib.invalidate_caches()
        return select_dispatchers([name], plugins)

    def attach(
        self, entry: CatalogueEntry, options: dict[str, object], done: Callable[[ReputError | None], None]
    ) -> None:
        """Take an installed dispatcher into the group; *done* is told what came of it.

        Raises:
            ConfigError: all slots are taken.
            DispatcherError: it is in the group already.
        """
        name = entry.name
        if self.group.ending:
            raise DispatcherError("the group is ending")
        present = self.group.members.get(name)
        if present is not None and present.leaving:

            def come_back() -> None:
                try:
                    self.attach(entry, options, done)
                except ReputError as error:
                    done(error)

            present.when_left.append(come_back)
            return
        if present is not None:
            raise DispatcherError(f"dispatcher is attached already: dispatcher={name}")
        member = self.group.add_member(entry, options)
        member.joining = True

        def described(answer: Answer) -> None:
            member.joining = False
            try:
                if self.group.ending:
                    raise DispatcherError("the group is ending")
                answer.declared()
                member.description = answer.description
                in_order(self.group.after())
            except ReputError as error:
                self.group.forget_member(member)
                done(error)
                return
            # The owner first: its frames must carry what the newcomer needs.
            self.group.announce()
            self.group.start(member)
            self.group.restart_successors(member.name)
            done(None)

        self.group.describe(member.question, described)


def outcome(request: Request, error: ReputError | None) -> Reply:
    """Return the reply that *request* was done, or why not."""
    return result(request, None) if error is None else Reply.refusal(request.id, error)


def result(request: Request, value: object) -> Reply:
    """Return the reply that *request* was done."""
    return Reply(request.id, result=msgspec.Raw(msgspec.json.encode(value)))
