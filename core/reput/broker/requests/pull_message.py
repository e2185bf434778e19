"""PullMessageProcessor: answers pulls, or holds them until a message arrives.

    header ──▶ PullRequest ──▶ HoldService ──┬─▶ records at once: the bytes of the log, as they are
                                             └─▶ held; answered from the service's thread through the loop

Reads of messages that are too old to be in memory may wait for the disk, so they run in threads. So do all reads until
the dispatcher of the consume queues has started.

Source: RocketMQ broker, PullMessageProcessor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TypeAlias

from reput.broker.state.broker_statistics import BrokerStatistics
from reput.broker.state.expressions import EXPRESSION_SIZE_MAX, Expressions
from reput.consume.pull.arrival_service import CONSUME_QUEUE
from reput.consume.pull.hold_service import HeldPull
from reput.consume.pull.loop_arrivals import running_loop
from reput.consume.pull.pull_service import PullRequest, PullResult
from reput.consume.registry.subscription import Subscription
from reput.embedded.store_engine import StoreEngine
from reput.errors import ReputError, RequestRefused, StoreClosed
from reput.filter.errors import FilterSyntaxError
from reput.remoting.connection import Connection
from reput.remoting.custom_header import optional_whole, text, whole
from reput.remoting.remoting_command import FrameError, RemotingCommand
from reput.remoting.remoting_server import refusal
from reput.remoting.response_code import ResponseCode

__all__ = ["PullMessageProcessor"]

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION, CLASS_FILTER = 1, 2, 4, 8
# The longest hold, even if a client asks for more; clients give up after 30 s.
SUSPEND_MAX_S = 60.0
HELD = "held_pulls"
SUBSCRIPTIONS_MAX = 1000
# Maximum number of held pulls: of one connection, and of all. A client has one for each queue that it consumes.
HELD_MAX = 8192
HELD_OF_ALL_MAX = 200_000
# Maximum number of disk reads that wait for a thread.
COLD_MAX = 10_000
RECORDS_MAX = 32
# The fields that a pull needs for its answer, and hooks for what they are told.
KEPT_FIELDS = ("consumerGroup", "topic", "queueId", "queueOffset", "sysFlag", "commitOffset")

Answer: TypeAlias = PullResult | ReputError | OSError


class PullMessageProcessor:
    """Used in the thread of the broker's loop only; held pulls are answered through it."""

    def __init__(self, engine: StoreEngine, statistics: BrokerStatistics, expressions: Expressions) -> None:
        services = engine.services
        self.engine = engine
        self.pull_service = services.pull_service
        self.hold_service = services.hold_service
        self.statistics = statistics
        self.expressions = expressions
        self.loop = asyncio.get_running_loop()
        self.hold_service.serve_in(self.loop)
        # Answers of held pulls that the loop has not sent yet. One wake-up, a system call, serves many answers.
        self.answers: deque[tuple[RemotingCommand, Connection, Answer]] = deque()
        self.subscriptions: dict[tuple[str, str, str], Subscription] = {}
        self.held_count = self.cold_count = 0

    def pull(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Answer PULL_MESSAGE and LITE_PULL_MESSAGE."""
        fields = request.ext_fields
        sys_flag = whole(fields, "sysFlag")
        pull = self.pull_request(request, connection, sys_flag)
        timeout = whole(fields, "suspendTimeoutMillis", is_long=True) / 1000
        holds = bool(sys_flag & SUSPEND) and timeout > 0
        if self.is_cold(pull):
            if self.cold_count >= COLD_MAX:
                raise busy(f"too many pulls wait for the disk: cold_max={COLD_MAX}")
            self.cold_count += 1
            lighten(request)
            self.loop.run_in_executor(None, self.pull_cold, request, connection, pull).add_done_callback(self.was_cold)
            return None
        if not holds:
            return self.response(request, self.pull_service.pull(pull))
        held = connection.attachments.setdefault(HELD, {})
        assert isinstance(held, dict)
        if len(held) >= HELD_MAX or self.held_count >= HELD_OF_ALL_MAX:
            raise busy(f"too many pulls are held: held_max={HELD_MAX} held_of_all_max={HELD_OF_ALL_MAX}")
        done = partial(self.done, request, connection)
        result = self.hold_service.pull_or_hold(pull, min(timeout, SUSPEND_MAX_S), done)
        if isinstance(result, HeldPull):
            lighten(request)
            # Clients choose the numbers of their requests, which may repeat.
            held[id(request)] = result
            self.held_count += 1
            if connection.closed:
                self.connection_lost(connection)
            return None
        return self.response(request, result)

    def pull_request(self, request: RemotingCommand, connection: Connection, sys_flag: int) -> PullRequest:
        """Return the pull that a client asks for.

        Raises:
            RequestRefused: SYSTEM_ERROR; a field is missing or not a number. SUBSCRIPTION_PARSE_FAILED; the pull's
                expression does not compile.
        """
        fields = request.ext_fields
        topic = text(fields, "topic")
        sub_version = whole(fields, "subVersion", is_long=True)
        subscription = None
        if sys_flag & SUBSCRIPTION:
            subscription = self.subscription(
                connection, topic, fields.get("subscription", ""), fields.get("expressionType", ""), sub_version
            )
        bytes_max = optional_whole(fields, "maxMsgBytes", 0)
        return PullRequest(
            group=text(fields, "consumerGroup"),
            topic=topic,
            queue_id=whole(fields, "queueId"),
            queue_offset=whole(fields, "queueOffset", is_long=True),
            count_max=whole(fields, "maxMsgNums"),
            bytes_max=bytes_max if bytes_max > 0 else None,
            commit_offset=whole(fields, "commitOffset", is_long=True) if sys_flag & COMMIT_OFFSET else None,
            subscription=subscription,
            sub_version=sub_version,
            as_tags_only=bool(sys_flag & CLASS_FILTER),
        )

    def subscription(
        self, connection: Connection, topic: str, expression: str, expression_type: str, sub_version: int
    ) -> Subscription:
        """Return the subscription that a pull carries. Recent subscriptions are cached.

        Raises:
            RequestRefused: SUBSCRIPTION_PARSE_FAILED.
        """
        key = (topic, expression, expression_type)
        found = self.subscriptions.get(key)
        if found is None:
            if len(expression) > EXPRESSION_SIZE_MAX:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"the expression is too long: expression_size={len(expression)} "
                    f"expression_size_max={EXPRESSION_SIZE_MAX}",
                )
            try:
                found = self.expressions.subscribe(connection, topic, expression or None, expression_type, sub_version)
            except FilterSyntaxError as error:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
                ) from None
            if found.is_sql:
                # Its filter takes much memory, and is kept elsewhere.
                return found
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
                self.subscriptions.clear()
            self.subscriptions[key] = found
        return found

    def is_cold(self, pull: PullRequest) -> bool:
        """Return whether the read may wait: for the disk, or for the consume queue's dispatcher to start."""
        if not self.engine.has_begun(CONSUME_QUEUE):
            return True
        memory_size = self.pull_service.limits.memory_size
        writer = self.engine.writer
        end = writer.appended
        if end - writer.commit_log_offset_min <= memory_size or pull.queue_offset < 0:
            return False
        config = self.engine.services.topics.find(pull.topic)
        if config is None or not 0 <= pull.queue_id < config.read_queue_nums:
            return False
        with self.engine.read_lock:
            unit = self.engine.reader.queue(pull.topic, pull.queue_id).units.unit(pull.queue_offset)
        return unit is not None and end - unit[0] > memory_size

    def pull_cold(self, request: RemotingCommand, connection: Connection, pull: PullRequest) -> None:
        """Read in a thread, and answer through the loop."""
        try:
            answer: Answer = self.pull_service.pull(pull)
        except (ReputError, OSError) as error:
            answer = error
        self.done(request, connection, answer)

    def was_cold(self, done: object) -> None:
        """Count a read from the disk that has ended."""
        del done
        self.cold_count -= 1

    # Answers.

    def done(self, request: RemotingCommand, connection: Connection, answer: Answer) -> None:
        """Answer a pull, from the loop or from another thread."""
        if running_loop() is self.loop:
            self.answer(request, connection, answer)
            return
        is_first = not self.answers
        self.answers.append((request, connection, answer))
        if is_first and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.answer_all)

    def answer_all(self) -> None:
        """Answer the pulls whose answers have come."""
        answers = self.answers
        while answers:
            self.answer(*answers.popleft())

    def answer(self, request: RemotingCommand, connection: Connection, answer: Answer) -> None:
        """Answer a pull that was held, or read in a thread."""
        held = connection.attachments.get(HELD)
        if isinstance(held, dict) and held.pop(id(request), None) is not None:
            self.held_count -= 1
        try:
            if isinstance(answer, PullResult):
                connection.respond(request, self.response(request, answer))
            elif not isinstance(answer, StoreClosed):
                # A closing store ends its connections, and the clients ask another broker.
                connection.respond(request, refusal(answer))
        except FrameError as error:
            connection.respond(request, refusal(error))

    def response(self, request: RemotingCommand, result: PullResult) -> RemotingCommand:
        """Return the response for the result of a pull, and count it."""
        records = result.records
        self.statistics.pulled(request.ext_fields["consumerGroup"], request.ext_fields["topic"], records)
        fields = {
            "suggestWhichBrokerId": str(result.suggest_which_broker_id),
            "nextBeginOffset": str(result.next_begin_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        return RemotingCommand(result.code, fields, records.data, result.status.value)

    def connection_lost(self, connection: Connection) -> None:
        """Give up the pulls of a connection that has ended."""
        held = connection.attachments.pop(HELD, None)
        if isinstance(held, dict):
            self.held_count -= len(held)
            for pull in held.values():
                self.hold_service.take_out(pull, expired=False)


def lighten(request: RemotingCommand) -> None:
    """Drop what a pull does not need while it waits: many wait at once, and clients choose their sizes."""
    fields = request.ext_fields
    request.ext_fields = {name: fields[name] for name in KEPT_FIELDS if name in fields}
    request.body = b""


def busy(text: str) -> RequestRefused:
    """Return the refusal of a pull that the client may repeat."""
    return RequestRefused(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy, start flow control for a while: {text}")
