"""The hooks of a broker: what clients send and consume, for tracing, metering, audits and checks.

They run in the broker's process, on the thread of its event loop, without isolation: all clients wait meanwhile.
A broker without hooks pays nothing for them. `reput serve` loads those that the setting ``broker_hooks`` names, from
the entry-point group ``reput.broker_hooks``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from reput_hooks.dispatcher import hookspec
from reput_hooks.record import Record

__all__ = [
    "ConsumeContext",
    "ConsumeOutcome",
    "SendContext",
    "SendOutcome",
    "SentMessage",
    "TraceContext",
    "reput_after_consume",
    "reput_after_send",
    "reput_before_consume",
    "reput_before_send",
    "trace_context",
]

TRACE_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True)
class TraceContext:
    """Where a message comes from, as W3C's Trace Context says it in the properties ``traceparent`` and ``tracestate``.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: 16 hexadecimal digits.
        flags: bit 0: sampled.
        state: ``tracestate`` as it is.
    """

    trace_id: str
    parent_id: str
    flags: int
    state: str = ""


def trace_context(properties: Mapping[str, str]) -> TraceContext | None:
    """Return the trace context of a message; None: it has none, or none that W3C's recommendation allows.

    Source: W3C Trace Context, 3.2 Traceparent Header.
    """
    found = TRACE_PARENT.fullmatch(properties.get("traceparent", ""))
    if found is None:
        return None
    version, trace_id, parent_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return TraceContext(trace_id, parent_id, int(flags, 16), properties.get("tracestate", ""))


@dataclass(frozen=True)
class SentMessage:
    """One message that a client sends.

    Attributes:
        properties: as the client sends them.
        trace: None: it has no trace context.
    """

    properties: Mapping[str, str]
    body_size: int
    trace: TraceContext | None


@dataclass(frozen=True)
class SendContext:
    """One request of a producer.

    Attributes:
        queue_id: below 0: the broker chooses.
        client_address: ``host:port``; "": a program on this machine.
        messages: one, or those of a batch.
        state: yours: what you keep here before the send is here after it.
    """

    topic: str
    queue_id: int
    producer_group: str
    client_address: str
    messages: tuple[SentMessage, ...]
    state: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class SendOutcome:
    """The answer to a producer.

    Attributes:
        code: RocketMQ's response code; 0: stored.
        message_ids: of what was stored.
        queue_offset: of the first message; None: nothing was stored.
        remark: why not.
    """

    code: int
    message_ids: tuple[str, ...]
    queue_offset: int | None
    remark: str


@dataclass(frozen=True)
class ConsumeContext:
    """Messages on their way to a consumer.

    Attributes:
        records: in the order of the queue; `trace_context` of their properties gives their traces.
    """

    group: str
    topic: str
    queue_id: int
    client_address: str
    records: tuple[Record, ...]


@dataclass(frozen=True)
class ConsumeOutcome:
    """What a consumer says of the messages that it has got.

    Attributes:
        topic: "": the consumer names the message by its place in the log alone.
        queue_offset: up to here the group has consumed the queue; None: one message has failed.
        commit_log_offset: of the message that is to come again; None: the group has consumed.
    """

    group: str
    topic: str
    queue_id: int
    client_address: str
    queue_offset: int | None
    commit_log_offset: int | None


@hookspec
def reput_before_send(context: SendContext) -> None:
    """Look at what a producer sends, before any of it is stored.

    Called on the thread of the broker's loop, once for each request. An exception refuses the request: the client gets
    its text, with code 16 for a `PermissionError` and with code 1 for any other, which is logged.

    Source: RocketMQ broker, SendMessageHook.sendMessageBefore.
    """


@hookspec
def reput_after_send(context: SendContext, outcome: SendOutcome) -> None:
    """Look at the answer to a producer.

    Called on the thread of the broker's loop, before the answer is sent, and also if the request was refused.
    The host logs an exception, and the answer is sent.

    Source: RocketMQ broker, SendMessageHook.sendMessageAfter.
    """


@hookspec
def reput_before_consume(context: ConsumeContext) -> None:
    """Look at messages before they are sent to a consumer.

    Called on the thread of the broker's loop, once for each pull that has found messages. An exception refuses the pull
    as in `reput_before_send`; the consumer asks again.

    Source: RocketMQ broker, ConsumeMessageHook.consumeMessageBefore.
    """


@hookspec
def reput_after_consume(outcome: ConsumeOutcome) -> None:
    """Look at what a consumer says: that it has consumed a queue up to an offset, or that a message has failed.

    Called on the thread of the broker's loop, when the broker has taken it in. The host logs an exception.

    Source: RocketMQ broker, ConsumeMessageHook.consumeMessageAfter.
    """
