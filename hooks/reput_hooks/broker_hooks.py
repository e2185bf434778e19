"""The hooks of a broker: what clients send and consume, for tracing, metering, audits and checks.

Hooks run in the broker's process, on the thread of its event loop, without isolation: all clients wait while a hook
runs. A broker without hooks has no cost. `reput serve` loads the hooks that the setting ``broker_hooks`` names, from
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
    """The trace that a message belongs to: W3C Trace Context in the properties ``traceparent`` and ``tracestate``.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: 16 hexadecimal digits.
        flags: bit 0: sampled.
        state: the unchanged ``tracestate``.
    """

    trace_id: str
    parent_id: str
    flags: int
    state: str = ""


def trace_context(properties: Mapping[str, str]) -> TraceContext | None:
    """Return the trace context of a message; None: it has none, or one that W3C's recommendation does not allow.

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
        properties: the properties that the client sends.
        trace: the trace context; None: the message has none.
    """

    properties: Mapping[str, str]
    body_size: int
    trace: TraceContext | None


@dataclass(frozen=True)
class SendContext:
    """One request of a producer.

    Attributes:
        queue_id: if negative, the broker chooses the queue.
        client_address: ``host:port``; "" for a program on this machine.
        messages: one message, or the messages of a batch.
        state: for your own use; what you store here before the send is still here after it.
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
        message_ids: ids of the stored messages.
        queue_offset: queue offset of the first message; None: nothing was stored.
        remark: why nothing was stored.
    """

    code: int
    message_ids: tuple[str, ...]
    queue_offset: int | None
    remark: str


@dataclass(frozen=True)
class ConsumeContext:
    """Messages on their way to a consumer.

    Attributes:
        records: in the order of the queue. Call `trace_context` with a record's properties for its trace.
    """

    group: str
    topic: str
    queue_id: int
    client_address: str
    records: tuple[Record, ...]


@dataclass(frozen=True)
class ConsumeOutcome:
    """The progress that a consumer reports.

    Attributes:
        topic: "" if the consumer identifies the message only by its commit-log offset.
        queue_offset: offset up to which the group has consumed the queue; None: one message has failed.
        commit_log_offset: offset of the failed message, which comes again; None: the group has consumed.
    """

    group: str
    topic: str
    queue_id: int
    client_address: str
    queue_offset: int | None
    commit_log_offset: int | None


@hookspec
def reput_before_send(context: SendContext) -> None:
    """Inspect a producer's messages before they are stored.

    Called on the thread of the broker's loop, once for each request. An exception refuses the request: the client gets
    the exception's text, with code 16 for a `PermissionError`, and with code 1 for others, which are logged.

    Source: RocketMQ broker, SendMessageHook.sendMessageBefore.
    """


@hookspec
def reput_after_send(context: SendContext, outcome: SendOutcome) -> None:
    """Inspect the answer to a producer.

    Called on the thread of the broker's loop, before the answer is sent, and also if the request was refused.
    The host logs an exception, and the answer is sent.

    Source: RocketMQ broker, SendMessageHook.sendMessageAfter.
    """


@hookspec
def reput_before_consume(context: ConsumeContext) -> None:
    """Inspect messages before they are sent to a consumer.

    Called on the thread of the broker's loop, once for each pull that has found messages. An exception refuses the pull
    as in `reput_before_send`; the consumer asks again.

    Source: RocketMQ broker, ConsumeMessageHook.consumeMessageBefore.
    """


@hookspec
def reput_after_consume(outcome: ConsumeOutcome) -> None:
    """Inspect a consumer's report: it has consumed a queue up to an offset, or a message has failed.

    Called on the thread of the broker's loop, after the broker has processed the report. The host logs an exception.

    Source: RocketMQ broker, ConsumeMessageHook.consumeMessageAfter.
    """
