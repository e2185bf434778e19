"""MessagePreparer: checks a message and encodes it as far as that is possible without the put lock.

Nearly every message takes the short way through `prepare`: no more than keys, and a topic and tags that the store has
seen before. Everything else takes `prepare_any`.

Source: RocketMQ store, HookUtils.checkBeforePutMessage and CommitLog.asyncPutMessage.
"""

from __future__ import annotations

import msgspec
from isal.isal_zlib import crc32

from reput.errors import ConfigError, MessageIllegal
from reput.filter.string_hash import string_hash
from reput.filter.tags import can_be_selected
from reput.settings import Settings
from reput.store.record.delay_level import SCHEDULE_TOPIC, DelayLevels
from reput.store.record.layout import (
    BLANK_SIZE_MIN,
    INNER_BATCH_FLAG,
    PROPERTIES_SIZE,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from reput.store.record.message import Message, MessageExtBrokerInner, check_properties, check_topic, message_properties
from reput.store.record.message_encoder import EncodedMessage, RecordHead, record_head
from reput.store.record.multi_dispatch import QUEUE_OFFSETS_NAME, named_queues, offsets_size_max
from reput.store.record.properties import PROPERTIES_SIZE_MAX
from reput.store.record.record import CRC_PROPERTY_SIZE, INNER_NUM, encode_address
from reput.store.writer.topic_table import Topic, TopicTable

__all__ = ["MessagePreparer", "Prepared", "stored_host"]

# The result of `MessagePreparer.prepare`.
Prepared = EncodedMessage[Topic]

pack_properties_size = PROPERTIES_SIZE.pack
INT_MAX = 2**31 - 1
INT_MIN = -(2**31)
TAGS_KNOWN_MAX = 20_000
KEYS_BEGIN, KEYS_END = b"KEYS\x01", b"\x02"
KEYS_OVERHEAD = len(KEYS_BEGIN + KEYS_END)
# Characters, of four bytes at most. Longer texts take `prepare_any`.
PLAIN_KEYS_MAX = 4096
PLAIN_TAGS_MAX = 1024
assert 4 * (PLAIN_KEYS_MAX + PLAIN_TAGS_MAX) + 16 < PROPERTIES_SIZE_MAX
# RocketMQ allows a record this much beyond the largest body.
RECORD_OVERHEAD_MAX = 65536


class TagsField(msgspec.Struct, frozen=True, gc=False):
    """The parts of a record made from its tags: their code, the stored property, and the text for dispatchers."""

    code: int
    data: bytes
    text: bytes


NO_TAGS = TagsField(0, b"", b"")


class MessagePreparer:
    """Any thread may call it.

    Attributes:
        needs_properties: dispatch rows carry the raw properties.
        is_plain: the preparer adds nothing to a message.
    """

    # The kernel reads the slots at each put.
    __slots__ = ("__dict__", "is_plain", "known_tags", "needs_properties")

    def __init__(
        self,
        settings: Settings,
        topic_table: TopicTable,
        delay_levels: DelayLevels,
        born_host: bytes,
        store_host: bytes,
    ) -> None:
        """*born_host*, *store_host*: in their stored form."""
        self.topic_table = topic_table
        self.topics = topic_table.topics
        self.delay_levels = delay_levels
        self.body_size_max = settings.max_message_size
        self.record_size_max = min(
            settings.max_message_size + RECORD_OVERHEAD_MAX, settings.mapped_file_size_commit_log - BLANK_SIZE_MIN
        )
        self.appends_crc = settings.enabled_append_prop_crc
        self.multi_dispatch = settings.enable_multi_dispatch
        self.born_host = born_host
        self.store_host = store_host
        self.head = record_head(0, None, self.born_host, self.store_host, appends_crc=self.appends_crc)
        # Tags that were checked: they have no control character.
        self.known_tags: dict[str | None, TagsField] = {None: NO_TAGS}
        self.needs_properties = False
        self.is_plain = False
        self.carry_properties(False)

    def carry_properties(self, needs_properties: bool) -> None:
        """Put the raw properties into the rows of messages from now on, or no longer."""
        self.needs_properties = needs_properties
        self.is_plain = not (needs_properties or self.appends_crc or self.multi_dispatch)

    def prepare(self, message: Message) -> Prepared:
        """Encode and check *message* as far as that is possible without the put lock.

        Raises:
            MessageIllegal: it breaks a limit.
        """
        flag, queue_id = message.flag, message.queue_id
        if type(flag) is not int or not INT_MIN <= flag <= INT_MAX:
            raise MessageIllegal(f"flag is not a number of 32 bits: flag={flag!r}")
        topic = self.topics.get(message.topic)
        if queue_id is None:
            if topic is not None and topic.write_queue_nums == 1 and message.sharding_key is None:
                queue_id = 0
            else:
                queue_id = self.topic_table.choose_queue(message)
        elif type(queue_id) is not int or not 0 <= queue_id <= INT_MAX:
            raise MessageIllegal(f"queue_id is not a number from 0 to {INT_MAX}: queue_id={queue_id!r}")
        elif message.sharding_key is not None:
            raise MessageIllegal(
                f"a message cannot have both a queue id and a sharding key: queue_id={queue_id} "
                f"sharding_key={message.sharding_key!r}",
                "Omit one of them.",
            )
        # The short way: no more than keys, and a topic and tags that were seen before.
        body, keys = message.body, message.keys
        is_plain = self.is_plain and message.properties is None and not message.delay_level
        if topic is None or not is_plain or type(message) is not Message or type(body) is not bytes:
            return self.prepare_any(message, queue_id)
        try:
            tags = self.known_tags[message.tags]
            data = tags.data
            if keys is None:
                texts, keys_size = tags.text, -1 if data else 0
                after_body = b"".join((topic.field, pack_properties_size(len(data)), data))
            else:
                text = keys
                if type(keys) is list or type(keys) is tuple:
                    text = " ".join(keys)
                    if " " in text and text.count(" ") >= len(keys):
                        # A key contains a blank; `prepare_any` refuses it.
                        return self.prepare_any(message, queue_id)
                # Printable text contains no separator, no zero byte and no lone surrogate.
                if type(text) is not str or not text.isprintable() or not 0 < len(text) <= PLAIN_KEYS_MAX:
                    return self.prepare_any(message, queue_id)
                stored_keys = text.encode()
                keys_size = len(stored_keys)
                properties_size = pack_properties_size(keys_size + KEYS_OVERHEAD + len(data))
                after_body = b"".join((topic.field, properties_size, KEYS_BEGIN, stored_keys, KEYS_END, data))
                texts = stored_keys + tags.text
        except (KeyError, TypeError):
            # The tags are new, or are not text.
            return self.prepare_any(message, queue_id)
        head = self.head
        record_size = head.record_size_min + len(body) + len(after_body)
        if len(body) > self.body_size_max or record_size > self.record_size_max:
            return self.prepare_any(message, queue_id)
        crc = crc32(body) & 0x7FFFFFFF
        return EncodedMessage(
            topic, head, queue_id, body, crc, flag, after_body, record_size, tags.code, texts, keys_size
        )

    def prepare_sent(
        self,
        topic_name: str,
        queue_id: int,
        body: bytes,
        flag: int,
        head: RecordHead,
        properties: bytes,
        *,
        tags: str | None,
        keys: bytes,
        uniq_key: bytes,
    ) -> Prepared:
        """Encode a message whose properties are encoded already, as a broker gets it from a client.

        Args:
            properties: complete, with the last separator; none asks for a service of the store.
            tags, keys, uniq_key: what the properties say; b"": nothing.

        Raises:
            MessageIllegal: it breaks a limit.
        """
        topic = self.topics.get(topic_name) or self.topic_table.topic(topic_name)
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise MessageIllegal(
                f"properties are too long: properties_size={len(properties)} properties_size_max={PROPERTIES_SIZE_MAX}"
            )
        if 0 in properties:
            raise MessageIllegal(f"properties have no zero byte: position={properties.index(0)}")
        if len(body) > self.body_size_max:
            raise MessageIllegal(f"body is too long: body_size={len(body)} max_message_size={self.body_size_max}")
        known = self.known_tags.get(tags) or self.learn_tags(tags or "")
        after_body = b"".join((topic.field, pack_properties_size(len(properties)), properties))
        record_size = head.record_size_min + len(body) + len(after_body)
        if record_size > self.record_size_max:
            raise MessageIllegal(
                f"record is too long: record_size={record_size} record_size_max={self.record_size_max}"
            )
        carried, carried_size = (properties, len(properties)) if self.needs_properties else (b"", -1)
        return EncodedMessage(
            topic,
            head,
            queue_id,
            body,
            crc32(body) & 0x7FFFFFFF,
            flag,
            after_body,
            record_size,
            known.code,
            b"".join((uniq_key, keys, carried, known.text)),
            len(keys) or -1,
            len(uniq_key) or -1,
            -1,
            carried_size,
        )

    def sent_head(self, sys_flag: int, born_timestamp: int, born_host: bytes, reconsume_times: int) -> RecordHead:
        """Return the head of records that a client sends, for `prepare_sent`."""
        return record_head(
            sys_flag, born_timestamp, born_host, self.store_host, reconsume_times=reconsume_times, appends_crc=False
        )

    def prepare_any(self, message: Message, queue_id: int) -> Prepared:
        """As `prepare`, for a message of any kind whose queue is chosen and whose numbers are checked."""
        given = message.properties
        if given is not None or message.delay_level:
            message, queue_id = self.as_stored(message, queue_id)
            given = message.properties
        topic = self.topics.get(message.topic) or self.topic_table.topic(message.topic)
        head = self.head if type(message) is Message else self.head_of(message)
        body = message.body
        if type(body) is not bytes:
            body = plain_bytes(body)
        properties, tags, texts, uniq_key_size, keys_size = self.properties_of(message)
        size = len(body)
        if size > self.body_size_max:
            raise MessageIllegal(f"body is too long: body_size={size} max_message_size={self.body_size_max}")
        if self.appends_crc:
            # Room for the CRC of the record; its digits are known once the offsets are.
            properties += bytes(CRC_PROPERTY_SIZE)
            if len(properties) > PROPERTIES_SIZE_MAX:
                raise MessageIllegal(f"properties are too long with their CRC: properties_size={len(properties)}")
        further: tuple[str, ...] = ()
        if self.multi_dispatch:
            further = named_queues(topic.name, given, len(properties))
        after_body = b"".join((topic.field, pack_properties_size(len(properties)), properties))
        record_size = head.record_size_min + size + len(after_body)
        if record_size + (offsets_size_max(further) if further else 0) > self.record_size_max:
            raise MessageIllegal(
                f"record is too long: record_size={record_size} record_size_max={self.record_size_max}"
            )
        properties_size = -1
        if self.needs_properties:
            texts += properties
            properties_size = len(properties)
        texts += tags.text
        return EncodedMessage(
            topic,
            head,
            queue_id,
            body,
            crc32(body) & 0x7FFFFFFF,
            message.flag,
            after_body,
            record_size,
            tags.code,
            texts,
            keys_size,
            uniq_key_size,
            self.delay_of_scheduled(message) if topic.is_scheduled else -1,
            properties_size,
            further,
        )

    def as_stored(self, message: Message, queue_id: int) -> tuple[Message, int]:
        """Return *message*, which has properties or a delay, as it will be stored, and its queue.

        Raises:
            MessageIllegal: the properties or the delay are not valid.
        """
        given = message.properties
        if given is not None and type(given) is not dict:
            check_properties(given)
        if message.delay_level or (given and "DELAY" in given):
            level = self.delay_levels.level_of(message)
            if level:
                message, queue_id = self.delayed(message, queue_id, level), level - 1
                given = message.properties
        if given and INNER_NUM in given:
            raise MessageIllegal(
                f"the property is reserved for records with several messages: name={INNER_NUM} "
                f"value={given[INNER_NUM]!r} "
                f"topic={message.topic}"
            )
        if given and QUEUE_OFFSETS_NAME in given:
            # The message is put again: its offsets are different now, and without multi-dispatch it has none.
            given = {name: text for name, text in given.items() if name != QUEUE_OFFSETS_NAME}
            message = msgspec.structs.replace(message, properties=given)
        return message, queue_id

    def properties_of(self, message: Message) -> tuple[bytes, TagsField, bytes, int, int]:
        """Return the properties string of *message*; its tags, its unique key and keys, and the sizes of these.

        Raises:
            MessageIllegal: as `message_properties`.
        """
        properties, tags, keys, uniq_key = message_properties(message)
        texts = b""
        uniq_key_size = keys_size = -1
        if uniq_key:
            texts = uniq_key.encode()
            uniq_key_size = len(texts)
        if keys:
            data = keys.encode()
            keys_size = len(data)
            texts += data
        elif not properties:
            keys_size = 0
        known = self.known_tags.get(tags) or self.learn_tags(tags or "")
        return properties, known, texts, uniq_key_size, keys_size

    def learn_tags(self, tags: str) -> TagsField:
        """Return what these checked tags make of a record; keep it if they are ordinary."""
        if len(self.known_tags) > TAGS_KNOWN_MAX:
            self.known_tags = {None: NO_TAGS}
        text = tags.encode()
        field = TagsField(string_hash(tags), b"TAGS\x01" + text + b"\x02", text)
        if len(tags) <= PLAIN_TAGS_MAX and tags.isprintable() and can_be_selected(tags):
            self.known_tags[tags] = field
        return field

    def delayed(self, message: Message, queue_id: int, level: int) -> Message:
        """Return *message*, whose real queue is *queue_id*, as the schedule topic holds it until its delivery.

        Source: RocketMQ store, 4.9 CommitLog.asyncPutMessage and 5.x HookUtils.transformDelayLevelMessage.
        """
        check_topic(message.topic)
        return msgspec.structs.replace(
            message,
            topic=SCHEDULE_TOPIC,
            delay_level=level,
            properties={
                **(message.properties or {}),
                "DELAY": str(level),
                "REAL_TOPIC": message.topic,
                "REAL_QID": str(queue_id),
            },
        )

    def delay_of_scheduled(self, message: Message) -> int:
        """Return the delay of a message that is put to the schedule topic directly, ms; -1: it names none.

        Raises:
            MessageIllegal: its delay is not a number. RocketMQ would read no record there, and end its log.

        Source: RocketMQ store, CommitLog.checkMessageAndReturnSize.
        """
        level = (message.properties or {}).get("DELAY")
        if not level:
            return -1
        try:
            delay_ms = self.delay_levels.delay_of(level)
        except ConfigError:
            raise MessageIllegal(f"the delay level is not a number: topic={message.topic} DELAY={level!r}") from None
        return -1 if delay_ms is None else delay_ms

    def head_of(self, message: Message) -> RecordHead:
        """Return the head of the record of *message*.

        Raises:
            MessageIllegal: a number does not fit its field, or no record is stored with this transaction type.
        """
        if not isinstance(message, MessageExtBrokerInner):
            return self.head
        for name, bits in (
            ("born_timestamp", 64),
            ("sys_flag", 32),
            ("reconsume_times", 32),
            ("prepared_transaction_offset", 64),
        ):
            value = getattr(message, name)
            if value is None and name == "born_timestamp":
                continue
            if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
                raise MessageIllegal(f"{name} is not a number of {bits} bits: {name}={value!r}")
        if message.sys_flag & TRANSACTION_ROLLBACK_TYPE not in (0, TRANSACTION_COMMIT_TYPE):
            raise MessageIllegal(f"the transaction type is neither none nor committed: sys_flag={message.sys_flag:#x}")
        if message.sys_flag & INNER_BATCH_FLAG:
            # Its queue offset would have to move on by the number of messages in it.
            raise MessageIllegal(
                f"only topics with batch queues take several messages in one record: sys_flag={message.sys_flag:#x} "
                f"topic={message.topic}"
            )
        return record_head(
            message.sys_flag,
            message.born_timestamp,
            self.born_host if message.born_host is None else message.born_host,
            self.store_host if message.store_host is None else message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            appends_crc=self.appends_crc,
        )


def plain_bytes(body: object) -> bytes:
    """Return *body* as bytes.

    Raises:
        MessageIllegal: it is not bytes.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise MessageIllegal(f"body is not bytes: type={type(body).__name__}")


def stored_host(address: str) -> bytes:
    """Return the stored form of ``host:port``.

    Raises:
        ConfigError: it is not a numeric address with a port.
    """
    try:
        return encode_address(address)
    except ValueError:
        raise ConfigError(f"the host is not a numeric address and a port: address={address!r}") from None
