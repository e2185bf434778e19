"""Traces: spans of put, dispatch and receive, which W3C's ``traceparent`` in a message's properties joins."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from reput.embedded.store import Store
from reput.errors import ReputError
from reput.store.record.message import Message, PutMessageResult
from reput.telemetry.opentelemetry_api import require_opentelemetry
from reput_hooks import Record

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["MessageTarget", "Traces"]

SYSTEM = "reput"
# The view that makes a message readable.
VIEW = "consume_queue"
# Sampled puts that wait for the view; further ones have no span of their dispatch.
WAITING_MAX = 1000
# A thread that waits for a view wakes its dispatcher for each put; looking costs neither of them anything.
POLL_S = 0.005
# A view that does not come that far ends its spans with an error.
DISPATCH_S = 30.0


class MessageTarget(Protocol):
    """An open store, or a client of brokers."""

    def put(self, message: Message) -> PutMessageResult:
        """Store a message."""

    async def aput(self, message: Message) -> PutMessageResult:
        """Store a message."""

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store messages."""


class WaitingSpan(NamedTuple):
    """The span of a dispatch that has not ended."""

    end: int
    begun_at: float
    span: Span


class Traces:
    """Puts and receives with spans. Any thread may put and receive.

    A put costs a span and the properties ``traceparent`` and ``tracestate``. For puts that the SDK samples, a thread
    looks every few milliseconds how far the view is; the writer and the dispatcher do nothing for it. While 1,000 puts
    wait, further ones have no span of their dispatch.
    """

    def __init__(self, target: MessageTarget, tracer_provider: TracerProvider | None = None) -> None:
        """Put to *target*, an open store or a client.

        Args:
            tracer_provider: None: the program's own.

        Raises:
            ConfigError: the extra ``otel`` is not installed.
        """
        require_opentelemetry()
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        import reput

        self.target = target
        self.tracer: Tracer = trace.get_tracer("reput", reput.__version__, tracer_provider)
        self.propagator = TraceContextTextMapPropagator()
        self.condition = threading.Condition()
        self.waiting: deque[WaitingSpan] = deque()
        self.is_closed = False
        self.thread: threading.Thread | None = None

    # Puts.

    def put(self, message: Message) -> PutMessageResult:
        """Store a message; its span is the parent of what becomes of it."""
        with self.sending([message]) as (span, (traced,)):
            result = self.target.put(traced)
            self.sent(span, result)
        return result

    async def aput(self, message: Message) -> PutMessageResult:
        """Store a message, from a coroutine."""
        with self.sending([message]) as (span, (traced,)):
            result = await self.target.aput(traced)
            self.sent(span, result)
        return result

    def put_batch(self, messages: Iterable[Message]) -> list[PutMessageResult]:
        """Store messages; one span is the parent of all."""
        given = list(messages)
        with self.sending(given) as (span, traced):
            results = self.target.put_batch(traced)
            if results:
                self.sent(span, results[-1])
        return results

    @contextmanager
    def sending(self, messages: list[Message]) -> Iterator[tuple[Span, list[Message]]]:
        """Yield the span of a put and its messages with the trace context; an exception is recorded in the span."""
        from opentelemetry.trace import SpanKind

        topics = list(dict.fromkeys(message.topic for message in messages))
        attributes: dict[str, str | int] = {"messaging.system": SYSTEM, "messaging.operation.name": "send"}
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topics[0]
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        name = f"send {topics[0]}" if len(topics) == 1 else "send"
        with self.tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            self.propagator.inject(carrier)
            yield (
                span,
                [
                    msgspec.structs.replace(message, properties={**(message.properties or {}), **carrier})
                    for message in messages
                ],
            )

    def sent(self, span: Span, result: PutMessageResult) -> None:
        """Note the result of a put, and let a thread wait for the view."""
        from opentelemetry.trace import SpanKind

        if not span.is_recording():
            return
        span.set_attribute("messaging.message.id", result.message_id or "")
        if not isinstance(self.target, Store):
            return
        end = result.next_commit_log_offset
        with self.condition:
            if self.is_closed or len(self.waiting) >= WAITING_MAX:
                return
            waiting = self.tracer.start_span(
                f"dispatch {VIEW}", kind=SpanKind.INTERNAL, attributes={"reput.dispatcher": VIEW}
            )
            self.waiting.append(WaitingSpan(end, time.monotonic(), waiting))
            if self.thread is None:
                self.thread = threading.Thread(target=self.watch, name="reput-traces", daemon=True)
                self.thread.start()
            self.condition.notify()

    def watch(self) -> None:
        """End the spans of dispatches as the view comes on. Runs in a thread of its own until the end."""
        store = self.target
        assert isinstance(store, Store)
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.waiting or self.is_closed)
                self.condition.wait_for(lambda: self.is_closed, POLL_S)
                if self.is_closed:
                    return
            try:
                progress = store.progress(VIEW) or 0
            except ReputError as error:
                self.end_spans(sys.maxsize, 0.0, str(error))
                continue
            # Puts of several threads wait nearly in the order of the log; one that is done waits for those before it.
            self.end_spans(progress, 0.0, None)
            self.end_spans(-1, time.monotonic() - DISPATCH_S, f"{VIEW} is not there in time")

    def end_spans(self, progress: int, begun_before: float, problem: str | None) -> None:
        """End the spans that have waited longest: those up to *progress*, or begun before a time."""
        while True:
            with self.condition:
                if not self.waiting:
                    return
                first = self.waiting[0]
                if first.end > progress and first.begun_at > begun_before:
                    return
                due = self.waiting.popleft()
            end_span(due.span, problem)

    # Receives.

    @contextmanager
    def receive(self, record: Record, group: str) -> Iterator[Span]:
        """A block that handles a record: its span is linked to that of the put. An exception is recorded in it."""
        from opentelemetry import trace
        from opentelemetry.trace import Link, SpanKind

        put = trace.get_current_span(self.propagator.extract(dict(record.properties))).get_span_context()
        with self.tracer.start_as_current_span(
            f"process {record.topic}",
            kind=SpanKind.CONSUMER,
            links=[Link(put)] if put.is_valid else [],
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.destination.name": record.topic,
                "messaging.consumer.group.name": group,
                "messaging.message.id": record.message_id,
                "messaging.destination.partition.id": str(record.queue_id),
                "reput.queue_offset": record.queue_offset,
                "reput.retries": record.reconsume_times,
            },
        ) as span:
            yield span

    def close(self) -> None:
        """End the spans that wait. The target stays open."""
        with self.condition:
            self.is_closed = True
            left = list(self.waiting)
            self.waiting.clear()
            self.condition.notify()
        for waiting in left:
            end_span(waiting.span, "the program has ended its traces")
        if self.thread is not None:
            self.thread.join()

    def __enter__(self) -> Traces:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end_span(span: Span, problem: str | None) -> None:
    """End a span, with an error if there is one."""
    from opentelemetry.trace import Status, StatusCode

    if problem is not None:
        span.set_status(Status(StatusCode.ERROR, problem))
    span.end()
