"""SendMessageProcessor: single messages, batches and retries that clients send.

    header ──▶ checks in RocketMQ's order ──▶ topic, created if need be ──▶ message ──▶ PendingPuts ──▶ answer

Most messages are stored with their properties unchanged, followed by those that the broker adds. If the properties ask
for more, such as a delay or a transaction, they are decoded first.

Source: RocketMQ broker, SendMessageProcessor and AbstractSendMessageProcessor.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from reput.broker.requests.pending_puts import Outcome, PendingPuts
from reput.broker.requests.sent_message import (
    SendHeader,
    batch_messages,
    delay_level,
    parse_properties,
    plain_properties,
)
from reput.broker.state.broker_topics import NOT_SENT_TO, BrokerTopics
from reput.broker.state.rebalance_locks import RebalanceLocks
from reput.consume.delivery.send_back import dead_letter_when_exhausted
from reput.consume.delivery.uniq_key import new_uniq_key
from reput.consume.registry.topics import RETRY_PREFIX
from reput.embedded.store_engine import StoreEngine
from reput.errors import MessageIllegal, RequestRefused, StoreBusy, StoreClosed, StoreError, StoreFull, StoreReadOnly
from reput.kernel import kernel
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import LANGUAGE, RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.config.topic_config_manager import PERM_WRITE, TopicConfig
from reput.store.record.layout import INNER_BATCH_FLAG, TRANSACTION_ROLLBACK_TYPE
from reput.store.record.message import MessageExtBrokerInner, PutMessageResult, PutMessageStatus, check_topic
from reput.store.record.message_encoder import RecordHead
from reput.store.record.properties import encode_properties
from reput.store.record.record import encode_host
from reput.store.writer.appender import Appender
from reput.store.writer.message_preparer import Prepared

__all__ = ["SendMessageProcessor", "put_refusal"]

# Maximum number of half messages that wait for a thread.
HALVES_MAX = 10_000
TOPIC_SIZE_MAX = 127
# From this client version on, the broker respects the maximum number of deliveries that the client names.
MAX_RECONSUME_VERSION = 121
TIMERS = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
STATUS_CODES = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
DOES_NOT_WAIT = b"false"


class SendMessageProcessor:
    """Used in the thread of the broker's loop only.

    Attributes:
        is_draining: refuse every message, because the broker is stopping.
        common_fields: the header fields of every response.
    """

    def __init__(
        self,
        engine: StoreEngine,
        puts: PendingPuts,
        topics: BrokerTopics,
        locks: RebalanceLocks,
        half_stored: Callable[[str], None],
        region_id: str = "DefaultRegion",
    ) -> None:
        """*half_stored* is called, in a thread, with the producer group of a half message."""
        self.engine = engine
        self.settings = settings = engine.settings
        self.puts = puts
        self.topics = topics
        self.locks = locks
        self.half_stored = half_stored
        self.is_draining = False
        self.common_fields = {"MSG_REGION": region_id, "TRACE_ON": "true"}
        self.added = {**self.common_fields, "CLUSTER": settings.broker_cluster_name}
        self.added_data = encode_properties(self.added)
        self.store_host = engine.writer.store_host
        self.preparer = engine.writer.preparer
        self.appender = engine.writer.appender
        # Joins the message ids of an answer.
        found = kernel()
        self.message_ids = joined_ids if found is None else found.message_ids
        # Put hooks need each message decoded, and these settings change each record.
        self.half_count = 0
        self.takes_plain = type(self.appender) is Appender and not (
            settings.enable_multi_dispatch or settings.enabled_append_prop_crc
        )

    def send(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Answer SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        try:
            return self.put(request, connection)
        except StoreError as error:
            return put_refusal(error)

    def put(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Store the messages of a request; return the response, or None if it comes later.

        Raises:
            RequestRefused: the request is wrong.
            StoreError: the store does not accept the messages.
        """
        if self.is_draining:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker stops")
        if not self.engine.delivers:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker is a slave, and takes no messages",
                "Send to its master.",
            )
        self.appender.refuse_when_stuck()
        header = SendHeader.of(request)
        config = self.checked_topic(header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(config.write_queue_nums, 1))
        body = request.body_bytes
        if not body:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the message has no body")
        if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            return self.send_batch(request, connection, header, queue_id, body)
        if self.takes_plain and self.send_plain(request, connection, header, queue_id, body):
            return None
        properties = self.complete(parse_properties(header.properties), connection)
        message = self.message(connection, header, queue_id, body, properties)
        if header.topic.startswith(RETRY_PREFIX):
            message = self.dead_letter(request, header, message)
        is_delayed_retry = message.reconsume_times > 0 and message.delay_level > 0
        if properties.get("TRAN_MSG", "").lower() == "true" and not is_delayed_retry:
            return self.send_half(request, connection, header, message)
        answer = partial(self.answer, request, connection, queue_id, properties["UNIQ_KEY"])
        self.puts.put(message, answer, waits=properties.get("WAIT") != "false")
        return None

    def checked_topic(self, header: SendHeader) -> TopicConfig:
        """Return the description of the topic that a message is for.

        Raises:
            RequestRefused: the topic is not writable, is unknown and cannot be created, or has no such queue.
        """
        topic = header.topic
        config = self.topics.topics.manager.table.get(topic)
        if config is not None and config.order and not self.settings.broker_permission & PERM_WRITE:
            # Messages of other topics are stored: their producers leave once the route shows the broker's permission.
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker takes no messages of ordered topics: topic={topic} "
                f"broker_permission={self.settings.broker_permission}",
            )
        if config is None:
            try:
                check_topic(topic)
            except MessageIllegal as error:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topic in NOT_SENT_TO:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if config is None:
            config = self.topics.found_or_created(
                topic, header.default_topic, header.default_topic_queue_nums, is_unit=header.unit_mode
            )
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!", "Create the topic."
            )
        queue_nums = max(config.write_queue_nums, config.read_queue_nums)
        if header.queue_id >= queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal: topic={topic} queues={queue_nums}",
            )
        return config

    # Messages whose properties are stored as they come.

    def send_plain(
        self, request: RemotingCommand, connection: Connection, header: SendHeader, queue_id: int, body: bytes
    ) -> bool:
        """Store a message without decoding its properties; return False if they must be decoded."""
        if header.topic.startswith(RETRY_PREFIX) or header.sys_flag & INNER_BATCH_FLAG:
            return False
        data = encoded(header.properties)
        found = plain_properties(data)
        if found is None:
            return False
        head = self.head(connection, header)
        added = self.added_data
        uniq_key = found.get(b"UNIQ_KEY")
        if uniq_key is None:
            uniq_key = found[b"UNIQ_KEY"] = new_uniq_key(head.born_host).encode()
            added = b"UNIQ_KEY\x01%b\x02%b" % (uniq_key, added)
        prepared = self.prepared(header, queue_id, body, header.flag, head, data, found, added)
        answer = partial(self.answer, request, connection, queue_id, uniq_key.decode())
        self.puts.add(None, prepared, answer, waits=found.get(b"WAIT") != DOES_NOT_WAIT)
        return True

    def head(self, connection: Connection, header: SendHeader) -> RecordHead:
        """Return the head of the records for a request's messages."""
        return self.preparer.sent_head(
            header.sys_flag & ~TRANSACTION_ROLLBACK_TYPE,
            header.born_timestamp,
            born_host(connection, self.store_host),
            header.reconsume_times,
        )

    def prepared(
        self,
        header: SendHeader,
        queue_id: int,
        body: bytes,
        flag: int,
        head: RecordHead,
        data: bytes,
        found: dict[bytes, bytes],
        added: bytes,
    ) -> Prepared:
        """Return an encoded message. Its properties are *data*, whose parsed form is *found*, followed by *added*.

        Raises:
            MessageIllegal: it breaks a limit.
        """
        if data and not data.endswith(b"\x02"):
            data += b"\x02"
        tags = found.get(b"TAGS")
        return self.preparer.prepare_sent(
            header.topic,
            queue_id,
            body,
            flag,
            head,
            data + added,
            tags=None if tags is None else tags.decode(),
            keys=found.get(b"KEYS", b""),
            uniq_key=found.get(b"UNIQ_KEY", b""),
        )

    # Messages whose properties are decoded.

    def complete(self, properties: dict[str, str], connection: Connection) -> dict[str, str]:
        """Return the properties of a message with those that a broker adds.

        Raises:
            RequestRefused: SYSTEM_ERROR; the properties ask for delivery at a given time.
        """
        properties.pop("POP_CK", None)
        if any(name in properties for name in TIMERS) and not delay_level(properties.get("DELAY")):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled: reput delivers by delay levels alone",
                "Set a delay level instead of a time.",
            )
        if not properties.get("UNIQ_KEY"):
            properties["UNIQ_KEY"] = new_uniq_key(born_host(connection, self.store_host))
        return properties | self.added

    def message(
        self, connection: Connection, header: SendHeader, queue_id: int, body: bytes, properties: dict[str, str]
    ) -> MessageExtBrokerInner:
        """Return the message to store.

        Raises:
            RequestRefused: SYSTEM_ERROR; the delay is not a number.
        """
        return MessageExtBrokerInner(
            header.topic,
            body,
            properties=properties,
            flag=header.flag,
            queue_id=queue_id,
            delay_level=delay_level(properties.get("DELAY")),
            born_timestamp=header.born_timestamp,
            born_host=born_host(connection, self.store_host),
            sys_flag=header.sys_flag & ~TRANSACTION_ROLLBACK_TYPE,
            reconsume_times=header.reconsume_times,
        )

    def dead_letter(
        self, request: RemotingCommand, header: SendHeader, message: MessageExtBrokerInner
    ) -> MessageExtBrokerInner:
        """Return the message to store for one that a consumer sends to its retry topic.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        times_max = header.max_reconsume_times if request.version >= MAX_RECONSUME_VERSION else None
        if self.locks.is_locked(header.topic.removeprefix(RETRY_PREFIX)):
            # An orderly consumer has given up on the message, so it is not delivered again.
            times_max = -1
        return dead_letter_when_exhausted(self.engine, message, times_max)

    def send_half(
        self, request: RemotingCommand, connection: Connection, header: SendHeader, message: MessageExtBrokerInner
    ) -> RemotingCommand | None:
        """Store the half message of a transaction, in a thread."""
        properties, queue_id = message.properties, message.queue_id
        assert properties is not None
        assert queue_id is not None
        group = properties.get("PGROUP") or header.producer_group
        if self.half_count >= HALVES_MAX:
            raise StoreBusy(f"too many half messages wait for a thread: halves_max={HALVES_MAX}")

        def put() -> RemotingCommand:
            try:
                stored = self.engine.transactions.put_half(group, message).result
                waits = properties.get("WAIT") != "false"
                result = self.puts.confirmed_in_thread(stored) if waits else stored
                self.half_stored(group)
            except RequestRefused as error:
                return RemotingCommand(error.response_code, remark=str(error))
            except StoreError as error:
                return put_refusal(error)
            except OSError as error:
                return put_refusal(StoreError(f"the message is not stored: error={error}"))
            response = self.stored(result, result.message_id, queue_id, properties["UNIQ_KEY"])
            return with_sizes(request, response, [result])

        def done(answer: asyncio.Future[RemotingCommand]) -> None:
            self.half_count -= 1
            connection.respond(request, answer.result())

        self.half_count += 1
        self.puts.loop.run_in_executor(None, put).add_done_callback(done)
        return None

    # Batches.

    def send_batch(
        self, request: RemotingCommand, connection: Connection, header: SendHeader, queue_id: int, body: bytes
    ) -> RemotingCommand | None:
        """Answer a send of several messages of one topic. Each also gets the properties of the batch.

        A message without a unique key gets none: the Go client sends such messages, and RocketMQ stores them unchanged.

        Raises:
            RequestRefused: MESSAGE_ILLEGAL; the topic accepts no batches, the body is not a batch, or it is too long.
            StoreError: some of the messages could not be stored.
        """
        if header.topic.startswith(RETRY_PREFIX) or len(header.topic) > TOPIC_SIZE_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        if header.sys_flag & INNER_BATCH_FLAG:
            # The consume queue would leave out each record.
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"only topics with batch queues take several messages in one record: sys_flag={header.sys_flag:#x} "
                f"topic={header.topic}",
            )
        if len(body) > self.settings.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch is too long: body_size={len(body)} max_message_size={self.settings.max_message_size}",
                "Send fewer messages at once.",
            )
        of_batch = parse_properties(header.properties)
        waits = of_batch.get("WAIT") != "false"

        def answer(results: list[PutMessageResult]) -> None:
            response = self.stored(results[0], self.message_ids(results), queue_id, of_batch.get("UNIQ_KEY", ""))
            connection.respond(request, with_sizes(request, response, results))

        self.puts.append_earlier()
        results = self.stored_batch(connection, header, queue_id, body, of_batch)
        self.puts.answer_batch(results, answer, waits=waits)
        return None

    def stored_batch(
        self, connection: Connection, header: SendHeader, queue_id: int, body: bytes, of_batch: dict[str, str]
    ) -> list[PutMessageResult]:
        """Store the messages of a batch as one unit.

        Raises:
            RequestRefused: MESSAGE_ILLEGAL; the body is not a batch.
            StoreError: some of the messages could not be stored.
        """
        added = of_batch | self.added
        added_data = encode_properties(added)
        of_batch_data = encode_properties(of_batch)
        head = self.head(connection, header)
        if self.takes_plain and self.appender.kernel is not None:
            results = self.appender.kernel.put_sent_batch(header.topic, queue_id, body, head, of_batch_data, added_data)
            if results is not None:
                return results
        # The batch's properties follow the message's own, as in RocketMQ; of two with one name, the last counts.
        of_all = plain_properties(of_batch_data) if of_batch else {}
        prepared: list[Prepared] = []
        for flag, part, data in batch_messages(body):
            found = plain_properties(data) if self.takes_plain and of_all is not None else None
            if found is None or of_all is None:
                # The batch is stored as one unit, so if one message must be decoded, all are.
                return self.appender.append_batch(self.decoded_batch(connection, header, queue_id, body, added))
            prepared.append(self.prepared(header, queue_id, part, flag, head, data, found | of_all, added_data))
        return self.appender.append_prepared_batch(prepared)

    def decoded_batch(
        self, connection: Connection, header: SendHeader, queue_id: int, body: bytes, added: dict[str, str]
    ) -> list[MessageExtBrokerInner]:
        """Return the messages of a batch with their properties decoded."""
        messages = []
        for flag, part, data in batch_messages(body):
            properties = parse_properties(data.decode("utf-8", "replace"))
            message = self.message(connection, header, queue_id, part, properties | added)
            messages.append(msgspec.structs.replace(message, flag=flag, delay_level=0))
        return messages

    # Answers.

    def answer(
        self, request: RemotingCommand, connection: Connection, queue_id: int, uniq_key: str, outcome: Outcome
    ) -> None:
        """Answer a send whose message was stored or refused."""
        if isinstance(outcome, PutMessageResult):
            response = with_sizes(request, self.stored(outcome, outcome.message_id, queue_id, uniq_key), [outcome])
        else:
            response = put_refusal(outcome)
            response.ext_fields = self.common_fields
        connection.respond(request, response)

    def stored(self, result: PutMessageResult, message_id: str, queue_id: int, uniq_key: str) -> RemotingCommand:
        """Return the response for a message that is stored."""
        return RemotingCommand(
            STATUS_CODES[result.status],
            {
                "msgId": message_id,
                "queueId": str(queue_id),
                "queueOffset": str(result.queue_offset),
                "transactionId": uniq_key,
                **self.common_fields,
            },
        )


def joined_ids(results: Sequence[PutMessageResult]) -> str:
    """Return the ids of stored messages, joined by commas."""
    return ",".join([result.message_id for result in results])


def with_sizes(
    request: RemotingCommand, response: RemotingCommand, results: Sequence[PutMessageResult]
) -> RemotingCommand:
    """Return the answer to a send; reput's client also gets sizes and store time, which RocketMQ does not send."""
    if request.language == LANGUAGE:
        response.ext_fields = {
            **response.ext_fields,
            "recordSizes": ",".join([str(result.record_size) for result in results]),
            "storeTimestamp": str(results[0].store_timestamp),
        }
    return response


def put_refusal(error: StoreError) -> RemotingCommand:
    """Return the response for a message that was not stored."""
    if isinstance(error, MessageIllegal):
        code, remark = ResponseCode.MESSAGE_ILLEGAL, str(error)
    elif isinstance(error, StoreBusy):
        code, remark = (
            ResponseCode.SYSTEM_BUSY,
            f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}",
        )
    elif isinstance(error, (StoreFull, StoreReadOnly, StoreClosed)):
        code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
    else:
        code, remark = ResponseCode.SYSTEM_ERROR, str(error)
    return RemotingCommand(code, remark=remark)


def encoded(properties: str) -> bytes:
    """Return properties as they are stored.

    Raises:
        RequestRefused: MESSAGE_ILLEGAL; the text cannot be stored.
    """
    try:
        return properties.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"properties have a lone surrogate: position={error.start}"
        ) from None


def born_host(connection: Connection, otherwise: bytes) -> bytes:
    """Return a client's address in the form of records; for a Unix socket, *otherwise*."""
    host = connection.attachments.get("born_host")
    if host is None:
        address, _, port = connection.peer.rpartition(":")
        host = encode_host(address.strip("[]"), int(port)) if address and port.isdigit() else otherwise
        connection.attachments["born_host"] = host
    assert isinstance(host, bytes)
    return host
