"""Message: what a producer puts, and PutMessageResult: where it was stored.

Source of the limits: RocketMQ client, Validators and TopicValidator; RocketMQ store, HookUtils.checkBeforePutMessage.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

import msgspec

from reput.errors import MessageIllegal
from reput.filter.tags import can_be_selected
from reput.store.record.properties import PROPERTIES_SIZE_MAX
from reput.store.record.record import CRC_NAME, CRC_PROPERTY_NAME, CRC_PROPERTY_SIZE, encode_message_id

__all__ = [
    "Message",
    "MessageExtBrokerInner",
    "PutMessageResult",
    "PutMessageStatus",
    "check_properties",
    "check_topic",
    "message_properties",
]

TOPIC_SIZE_MAX = 127
RETRY_TOPIC_SIZE_MAX = 255
RETRY_TOPIC_PREFIX = "%RETRY%"
# RocketMQ's alphabet of topics and groups; it keeps every path trick out.
LEGAL_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")


class Message(msgspec.Struct, gc=False):
    """One message to be put.

    Attributes:
        topic: letters, digits and ``% | _ -``, at most 127 bytes (``%RETRY%`` topics 255).
        body: any bytes, at most ``max_message_size``; it may be empty.
        tags: one word that consumers filter by.
        keys: what the message can be queried by; a string counts as keys separated by spaces.
        properties: further names and values; they may not contain the separators 0x01 and 0x02. ``__CRC32#``, the
            checksum that records of RocketMQ 5 carry, is dropped.
        flag: 32 bits for the program's own use, as a signed number.
        queue_id: the queue of the topic; None: the topic's write queues in turn, if ``topics.json`` describes it, else
            queue 0.
        delay_level: number of the delay in ``message_delay_level``, from 1 on; 0: no delay. The property ``DELAY`` does
            the same.
        sharding_key: messages with the same key go to the same queue, which keeps their order; instead of *queue_id*.
            The queue is the one that RocketMQ's SelectMessageQueueByHash picks. The key itself is not stored.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0
    queue_id: int | None = None
    delay_level: int = 0
    sharding_key: str | None = None


class MessageExtBrokerInner(Message, gc=False):
    """A message that was born elsewhere, or stored before: with the fields that the writer otherwise fills in.

    For callers that put on behalf of others: a broker for its clients, the services that deliver, retry and commit.
    The properties are complete and include tags and keys. Only `delay_level` delays the message: after a late delivery
    ``DELAY`` stays among its properties.

    Attributes:
        born_timestamp: ms since 1970; None: the store time.
        born_host, store_host: in their stored form, see `encode_host`; None: those of the store.
        sys_flag: RocketMQ's bits, but for those that say how large the hosts are. The transaction types "prepared" and
            "rollback" are refused: since 4.3 no record is stored with them.
        reconsume_times: deliveries to a consumer that sent the message back.
        prepared_transaction_offset: of a committed message, where its half message lies in the log.

    Source: RocketMQ store, MessageExtBrokerInner.
    """

    born_timestamp: int | None = None
    born_host: bytes | None = None
    store_host: bytes | None = None
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class PutMessageStatus(enum.Enum):
    """The outcome of a put, in RocketMQ's words. Every value means that the message is stored.

    Attributes:
        PUT_OK: stored as the settings demand.
        FLUSH_DISK_TIMEOUT: not known to be on disk after ``sync_flush_timeout``.
        FLUSH_SLAVE_TIMEOUT: not known to be on enough followers after ``slave_timeout``.
        SLAVE_NOT_AVAILABLE: there are not enough followers.
    """

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class PutMessageResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored.

    Attributes:
        commit_log_offset: where the record begins, in bytes from the start of the log.
        next_commit_log_offset: where the record ends; a view whose progress has reached it contains the message.
        record_size: bytes.
        queue_offset: number of the message in its queue.
        store_timestamp: ms since 1970 UTC.
        store_host: address and port of the store, packed.
    """

    status: PutMessageStatus
    commit_log_offset: int
    next_commit_log_offset: int
    record_size: int
    queue_id: int
    queue_offset: int
    store_timestamp: int
    store_host: bytes

    @property
    def message_id(self) -> str:
        """The store's own id of the record, upper-case hex."""
        return encode_message_id(self.store_host, self.commit_log_offset)


def check_topic(topic: str) -> bytes:
    """Return the stored form of a topic.

    Raises:
        MessageIllegal: RocketMQ would refuse it.
    """
    if not isinstance(topic, str) or not topic.strip():
        raise MessageIllegal(f"topic is blank: topic={topic!r}")
    if not LEGAL_TOPIC.fullmatch(topic):
        raise MessageIllegal(
            f"topic has an illegal character: topic={topic!r} legal=letters, digits, '%', '|', '_', '-'"
        )
    size_max = RETRY_TOPIC_SIZE_MAX if topic.startswith(RETRY_TOPIC_PREFIX) else TOPIC_SIZE_MAX
    if len(topic) > size_max:
        raise MessageIllegal(f"topic is too long: topic_size={len(topic)} topic_size_max={size_max}")
    return topic.encode("ascii")


def check_properties(properties: object) -> None:
    """Refuse properties that are not a mapping.

    Raises:
        MessageIllegal: they are not.
    """
    if properties is not None and not isinstance(properties, Mapping):
        raise MessageIllegal(f"properties must map names to values: type={type(properties).__name__}")


def message_properties(message: Message) -> tuple[bytes, str | None, str | None, str | None]:
    """Return the properties string of *message*, and its tags, keys and unique key.

    Raises:
        MessageIllegal: a name or value contains a separator, a name is empty, or all are too long together. Or their
            end would be taken for the CRC of the record.
    """
    tags = message.tags
    keys = message.keys
    properties = message.properties
    try:
        if keys is not None and not isinstance(keys, str):
            keys = " ".join(keys)
        if not properties:
            # The most frequent case, without a dictionary.
            text = "" if keys is None else "KEYS\x01" + keys + "\x02"
            if tags is not None:
                text += "TAGS\x01" + tags + "\x02"
            if (keys and "\x02" in keys) or (tags and "\x02" in tags):
                refuse_separator({"KEYS": keys or "", "TAGS": tags or ""})
            uniq_key = None
        else:
            merged = dict(properties)
            merged.pop(CRC_NAME, None)
            if keys is not None:
                merged["KEYS"] = keys
            if tags is not None:
                merged["TAGS"] = tags
            # Added up, not formatted, so that a value that is no text is refused.
            text = "".join([name + "\x01" + value + "\x02" for name, value in merged.items()])
            if text.count("\x02") != len(merged) or any("\x01" in name or not name for name in merged):
                refuse_separator(merged)
            tags, keys, uniq_key = merged.get("TAGS"), merged.get("KEYS"), merged.get("UNIQ_KEY")
    except TypeError:
        raise MessageIllegal(
            "tags, keys, and names and values of properties must be text: "
            f"tags={tags!r} keys={keys!r} properties={properties!r}"
        ) from None
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MessageIllegal(f"properties have a lone surrogate: position={error.start}") from None
    if 0 in data:
        # After a crash a zero byte there is the mark of a record that did not wholly reach the disk.
        raise MessageIllegal(f"tags, keys and properties must not contain a zero byte: position={data.index(0)}")
    if data.startswith(CRC_PROPERTY_NAME, len(data) - CRC_PROPERTY_SIZE) and len(data) >= CRC_PROPERTY_SIZE:
        raise MessageIllegal(f"the last property ends like a record's CRC: properties_end={data[-20:]!r}")
    if len(data) > PROPERTIES_SIZE_MAX:
        raise MessageIllegal(
            f"properties are too long: properties_size={len(data)} properties_size_max={PROPERTIES_SIZE_MAX}"
        )
    if type(message) is Message:
        require_findable(message.tags, message.keys)
    return data, tags, keys, uniq_key


def require_findable(tags: str | None, keys: Sequence[str] | None) -> None:
    """Refuse tags that no subscription can name, and a key that would be stored as several.

    Messages that were stored or sent by others keep what they have: see `MessageExtBrokerInner`.

    Raises:
        MessageIllegal: one is given.
    """
    if tags and not can_be_selected(tags):
        raise MessageIllegal(
            f"no consumer can select a message with these tags: tags={tags!r}",
            "A message has one tag, without blanks around it and without '||'; put the rest into keys or properties.",
        )
    if keys is not None and not isinstance(keys, str):
        for key in keys:
            if " " in key:
                raise MessageIllegal(
                    f"a key has a blank, and would be stored as several keys: key={key!r}",
                    "Give each word as a separate key, or replace the blank.",
                )


def refuse_separator(properties: Mapping[str, str]) -> None:
    """Name the property that would fall apart when read."""
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name:
            raise MessageIllegal(f"property name is empty or has a separator: name={name!r}")
        if "\x02" in value:
            raise MessageIllegal(f"property value has a separator: name={name!r} value={value!r}")
