"""QuotaGate: holds clients to the quotas of a broker. Only brokers that have some come here.

    send ──▶ over a rate, or too much in flight ──▶ SYSTEM_BUSY, RocketMQ's word for flow control
    pull ──▶ the group is over its rate ──▶ answered when it no longer is: a consumer waits as for a new message
    connection ──▶ one too many of an address ──▶ closed

A refused message was not stored. RocketMQ's producers of version 5 try another broker, if there is one. Then, and in
earlier versions at once, they raise MQBrokerException with that code, so that the program decides when to send again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import TypeAlias, cast

from reput.broker.requests.broker_hooks import PULLS, SENDS, Tapped
from reput.broker.requests.sent_message import SendHeader, batch_messages
from reput.broker.state.quotas import Quotas, QuotaSubject
from reput.errors import ReputError, RequestRefused
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor, refusal
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode

__all__ = ["QuotaGate"]

Process: TypeAlias = Callable[[RemotingCommand, Connection], RemotingCommand | None]
SIZE = Struct(">i")
# Shorter than a client waits for an answer.
PULL_WAIT_MAX_S = 5.0
PULLS_WAITING_MAX = 10_000
# After this time a pull is answered as if there were nothing: its client will soon give it up, and would lose what a
# later answer brings.
PULL_PATIENCE_S = 20.0
CONNECTED = "quota_connection"
IN_FLIGHT = "quota_in_flight"

logger = logging.getLogger(__name__)


class InFlight:
    """A send that is not answered yet."""

    __slots__ = ("size", "subject")

    def __init__(self, subject: QuotaSubject, size: int) -> None:
        self.subject: QuotaSubject | None = subject
        self.size = size
        subject.in_flight += size

    def end(self) -> None:
        """Count it no longer; again does nothing."""
        if self.subject is not None:
            self.subject.in_flight -= self.size
            self.subject = None


class QuotaGate:
    """Used in the thread of the broker's loop only."""

    def __init__(self, quotas: Quotas, monotonic: Callable[[], float]) -> None:
        self.quotas = quotas
        self.monotonic = monotonic
        self.waiting_count = 0

    def around(self, processors: Mapping[int, Processor]) -> Mapping[int, Processor]:
        """Return *processors* with the gate before those that a rule concerns."""
        table = dict(processors)
        rules = self.quotas.rules
        wrapped: list[tuple[tuple[int, ...], Callable[..., RemotingCommand | None]]] = []
        if rules["topic"] or rules["client"]:
            wrapped.append(((*SENDS, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2), self.send))
        if rules["group"]:
            wrapped.append((PULLS, self.pull))
        for codes, gate in wrapped:
            for code in codes:
                table[code] = table[code]._replace(process=partial(gate, table[code].process))
        return table

    # Connections.

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection; return why it is closed again, None if it stays."""
        subject = self.client(connection)
        if subject is None or subject.rule.connections is None:
            return None
        if subject.connections >= subject.rule.connections:
            return f"a quota is exceeded: {subject.refuse('connections', self.monotonic())}"
        subject.connections += 1
        connection.attachments[CONNECTED] = subject
        return None

    def connection_lost(self, connection: Connection) -> None:
        """Count no longer what a connection that has ended used."""
        subject = connection.attachments.pop(CONNECTED, None)
        if isinstance(subject, QuotaSubject):
            subject.connections -= 1
        in_flight = connection.attachments.pop(IN_FLIGHT, None)
        for sent in in_flight if isinstance(in_flight, dict) else ():
            sent.end()

    def client(self, connection: Connection) -> QuotaSubject | None:
        """Return the address of a connection with its rule; None: it has none, or is a Unix socket."""
        host, colon, _ = connection.peer.rpartition(":")
        return self.quotas.subject("client", host.strip("[]"), self.monotonic()) if colon else None

    # Requests.

    def send(self, process: Process, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Let a send pass, or refuse it.

        Raises:
            RequestRefused: SYSTEM_BUSY; a quota is exceeded.
        """
        now = self.monotonic()
        header = SendHeader.of(request)
        size = len(request.body_bytes)
        client = self.client(connection)
        subjects = [found for found in (self.quotas.subject("topic", header.topic, now), client) if found is not None]
        for subject in subjects:
            if (limit := subject.exhausted(now)) is not None:
                raise busy(subject, limit, now)
        if client is not None and client.rule.in_flight is not None and not request.is_oneway:
            # One message always passes, whatever its size.
            if client.in_flight and client.in_flight + size > client.rule.in_flight:
                raise busy(client, "in_flight", now)
            return self.send_counted(process, request, connection, subjects, InFlight(client, size))
        response = process(request, connection)
        take(subjects, request, header)
        return response

    def send_counted(
        self,
        process: Process,
        request: RemotingCommand,
        connection: Connection,
        subjects: list[QuotaSubject],
        sent: InFlight,
    ) -> RemotingCommand | None:
        """Let a send pass, and count it as being in flight until it is answered."""
        in_flight = cast("dict[InFlight, None]", connection.attachments.setdefault(IN_FLIGHT, {}))
        in_flight[sent] = None

        def end(response: RemotingCommand) -> RemotingCommand:
            in_flight.pop(sent, None)
            sent.end()
            return response

        try:
            response = process(request, cast("Connection", Tapped(connection, end)))
        except BaseException:
            in_flight.pop(sent, None)
            sent.end()
            raise
        take(subjects, request, SendHeader.of(request))
        return response if response is None else end(response)

    def pull(
        self, process: Process, request: RemotingCommand, connection: Connection, came_at: float | None = None
    ) -> RemotingCommand | None:
        """Let a pull pass, or answer it later; *came_at*: when it came, if that was earlier.

        Raises:
            RequestRefused: SYSTEM_BUSY; too many pulls wait for their group's quota.
        """
        now = self.monotonic()
        group = request.ext_fields.get("consumerGroup", "")
        subject = self.quotas.subject("group", group, now)
        if subject is None:
            return process(request, connection)
        limit = subject.exhausted(now)
        if limit is None:
            count = partial(given, subject)
            response = process(request, cast("Connection", Tapped(connection, count)))
            return response if response is None else count(response)
        if self.waiting_count >= PULLS_WAITING_MAX:
            raise busy(subject, limit, now)
        came_at = now if came_at is None else came_at
        if now - came_at >= PULL_PATIENCE_S:
            return nothing_found(request)
        subject.refuse(limit, now)
        self.waiting_count += 1
        # A pull has no use for a body.
        request.body = b""
        connection.loop.call_later(
            min(subject.wait(now), PULL_WAIT_MAX_S), self.pull_again, process, request, connection, came_at
        )
        return None

    def pull_again(self, process: Process, request: RemotingCommand, connection: Connection, came_at: float) -> None:
        """Look at a pull once more that has waited."""
        self.waiting_count -= 1
        if connection.closed:
            return
        try:
            response = self.pull(process, request, connection, came_at)
        except Exception as error:
            if not isinstance(error, ReputError):
                logger.exception("a pull failed: peer=%s", connection.peer)
            response = refusal(error)
        if response is not None:
            connection.respond(request, response)


def nothing_found(request: RemotingCommand) -> RemotingCommand:
    """Return the answer to a pull for which there is nothing: the client pulls again from the same offset."""
    offset = request.ext_fields.get("queueOffset", "0")
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": offset, "minOffset": "0", "maxOffset": offset}
    return RemotingCommand(ResponseCode.PULL_NOT_FOUND, fields, remark="the group's quota is used up")


def take(subjects: list[QuotaSubject], request: RemotingCommand, header: SendHeader) -> None:
    """Count what a send brings."""
    body = request.body_bytes
    count = 1
    if header.batch or request.code == Code.SEND_BATCH_MESSAGE:
        count = sum(1 for _ in batch_messages(body))
    for subject in subjects:
        subject.take(count, len(body))


def given(subject: QuotaSubject, response: RemotingCommand) -> RemotingCommand:
    """Count the messages that a group gets, and return the response that has them."""
    if response.code == ResponseCode.SUCCESS:
        data, at, count = response.body_bytes, 0, 0
        while at < len(data):
            at += SIZE.unpack_from(data, at)[0]
            count += 1
        subject.take(count, len(data))
    return response


def busy(subject: QuotaSubject, limit: str, now: float) -> RequestRefused:
    """Return the refusal of a request."""
    return RequestRefused(
        ResponseCode.SYSTEM_BUSY,
        f"[QUOTA]system busy, start flow control for a while: {subject.refuse(limit, now)}",
        "Send less, or later; the broker's setting broker_quotas has the limits.",
    )
