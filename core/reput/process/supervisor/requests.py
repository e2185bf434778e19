"""RequestDesk: carries out the requests of the owner and of the control socket's clients."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from reput.errors import DispatcherError, ReputError
from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import Notice, RebuiltView, Reply, Request, Verb
from reput.process.control.dispatcher_row import dispatcher_row
from reput.process.control.group_status import GroupStatus, WriterRow, status_of_group
from reput.process.dispatcher.states import State
from reput.process.plugin.describe import Answer
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.member import Member
from reput.process.supervisor.membership import Membership
from reput.process.supervisor.questions import Questions
from reput.process.supervisor.rebuilds import Rebuilds

__all__ = ["RequestDesk"]

Reporter = Callable[[Reply], None]


class RequestDesk:
    """Carries out requests on one group.

    Args:
        drain, hurry: end the group; see `Supervisor`.

    Attributes:
        writer_state: state and reason, as last reported by the owner.
    """

    def __init__(
        self,
        group: DispatcherGroup,
        membership: Membership,
        questions: Questions,
        rebuilds: Rebuilds,
        *,
        drain: Callable[[], None],
        hurry: Callable[[], None],
    ) -> None:
        self.group = group
        self.membership = membership
        self.questions = questions
        self.rebuilds = rebuilds
        self.drain = drain
        self.hurry = hurry
        # Requests that the owner will answer, by verb.
        self.asked_owner: dict[Verb, list[tuple[Request, Reporter]]] = {"clean": [], "statistics": []}
        self.writer_state: tuple[str, str | None] = ("RUNNING", None)
        self.rebuild_client: JsonChannel | None = None

    def handle(self, line: bytes, report: Reporter, client: JsonChannel | None) -> None:
        """Carry out the request in *line*; calls *report* with the outcome, now or later."""
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
        """Carry out one request.

        Raises:
            DispatcherError: it cannot be carried out now.
            ConfigError: the dispatcher's name or options are wrong.
        """
        match request.verb:
            case "status":
                report(result(request, self.status()))
            case "observe":
                self.hand_over(request, client)
            case "drain":
                report(result(request, None))
                self.drain()
            case "hurry":
                report(result(request, None))
                self.hurry()
            case "writer_state":
                self.writer_state = (request.state, request.reason)
                report(result(request, None))
            case "clean" | "statistics":
                waiting = self.asked_owner[request.verb]
                waiting.append((request, report))
                if len(waiting) == 1:
                    # All waiting clients get the same answer, so one question to the owner is enough.
                    self.group.channel.send(Notice(request.verb))
            case "cleaned":
                self.pass_on("clean", request)
            case "counted":
                self.pass_on("statistics", request)
            case "configure":
                self.membership.configure(request.change)
                report(result(request, None))
            case "attach":
                self.membership.attach_installed(
                    request.name,
                    self.group.settings.dispatcher_plugins,
                    self.group.context.options(request.name),
                    lambda error: report(outcome(request, error)),
                )
            case "rebuild":
                self.rebuild(request, report, client)
            case "pause":
                self.pause(self.membership.member(request.name))
                report(result(request, None))
            case "resume":
                self.resume(self.membership.member(request.name), request, report)
            case "restart":
                self.restart(self.membership.member(request.name), request, report)
            case "detach":
                self.membership.detach(self.membership.member(request.name))
                report(result(request, None))

    def pass_on(self, verb: Verb, request: Request) -> None:
        """Pass the owner's answer to *verb* on to the clients that asked."""
        waiting, self.asked_owner[verb] = self.asked_owner[verb], []
        for asked, report in waiting:
            report(Reply(asked.id, result=request.answer, error=request.reason))

    def hand_over(self, request: Request, client: JsonChannel | None) -> None:
        """Hand a client the descriptors of ring and cells.

        Raises:
            DispatcherError: the client has not read the reply to an earlier request, or it is the owner.
        """
        if client is None or client.unsent:
            raise DispatcherError("descriptors need a separate connection")
        members = [member.info for member in self.group.members.values()]
        descriptors = self.group.memory.open_observer_descriptors()
        client.send_descriptors(result(request, members), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def status(self) -> GroupStatus:
        """Return the group as `reput status` shows it."""
        # Import here: every dispatcher would inherit its modules.
        from reput.store.state.recorded_settings import meaning_of

        header = self.group.memory.header
        state, reason = self.writer_state
        return status_of_group(
            self.group.context.store_directory,
            self.group.context.store_id,
            WriterRow(
                pid=os.getppid(),
                appended=header.appended,
                durable=header.durable,
                commit_log_offset_min=header.commit_log_offset_min,
                epoch=header.epoch,
                state=state,
                reason=reason,
            ),
            [
                dispatcher_row(
                    member.entry, member.cell, header, self.group.context.store_directory, member.rebuild_progress
                )
                for member in self.group.members.values()
            ],
            meaning_of(self.group.context.settings),
            started=self.group.setup.started,
            supervisor_pid=self.group.pid,
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
                # Another request has started it since.
                report(result(request, None))
                return
            answer = self.membership.checked_for_circles(member, answer)
            self.membership.take_description(member, answer)
            if answer.description is not None:
                self.group.start(member)
                self.group.announce()
                report(result(request, None))
            else:
                report(Reply(request.id, error=f"dispatcher is broken: dispatcher={member.name}"))

        self.questions.ask(member.question, described)

    def restart(self, member: Member, request: Request, report: Reporter) -> None:
        """Stop the process, if there is one, and start another."""
        if member.pid is None:
            self.resume(member, request, report)
            return
        self.group.stop(member, State.STARTING)
        report(result(request, None))

    def rebuild(self, request: Request, report: Reporter, client: JsonChannel | None) -> None:
        """Rebuild views beside the running ones; the reply comes when they are swapped in.

        Raises:
            DispatcherError: another rebuild is under way, or a view cannot be built.
        """
        self.membership.refuse_when_ending()

        def done(outcome: list[RebuiltView] | ReputError) -> None:
            self.rebuild_client = None
            if isinstance(outcome, ReputError):
                report(Reply.refusal(request.id, outcome))
            else:
                report(result(request, outcome))

        is_new = self.rebuilds.current is None
        self.rebuilds.request(request.names, done, force=request.force)
        if is_new:
            self.rebuild_client = client

    def on_gone(self, client: JsonChannel) -> None:
        """Give up the rebuild that *client* asked for: it no longer waits for it."""
        if client is self.rebuild_client:
            self.rebuild_client = None
            self.rebuilds.cancel("the client that asked for it has gone")


def outcome(request: Request, error: ReputError | None) -> Reply:
    """Return the reply that *request* succeeded, or the error."""
    return result(request, None) if error is None else Reply.refusal(request.id, error)


def result(request: Request, value: object) -> Reply:
    """Return the reply that *request* succeeded, with *value* as its result."""
    return Reply(request.id, result=msgspec.Raw(msgspec.json.encode(value)))
