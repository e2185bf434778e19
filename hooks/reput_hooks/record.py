"""Record: one message as it lies in the commit log."""

from __future__ import annotations

import msgspec

__all__ = ["Record"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message of the commit log, all seventeen fields of it, in the words of RocketMQ.

    Attributes:
        commit_log_offset: bytes from the birth of the log to the record's first byte.
        record_size: bytes of the whole record.
        queue_offset: unit number in (topic, queue_id).
        magic_code: ``0xDAA320A7`` (V1) or ``0xDAA320AB`` (V2, topics of more than 127 bytes).
        born_timestamp, store_timestamp: milliseconds since 1970 UTC.
        born_host, store_host: ``127.0.0.1:5000`` or ``[::1]:5000``.
        body_crc: as stored, unsigned.
        body: as stored, never unpacked.
        properties: in stored order, empty values kept.
        message_id: the store's own id, upper-case hex of store host and commit-log offset.

    Source: RocketMQ, MessageExt and CommitLog.checkMessageAndReturnSize.
    """

    commit_log_offset: int
    record_size: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    magic_code: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes
    properties: dict[str, str]
    message_id: str

    @property
    def tags(self) -> str | None:
        """The tag, None without one."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The index keys a user gave, without the client's unique id."""
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def uniq_key(self) -> str | None:
        """The message id that the client made."""
        return self.properties.get("UNIQ_KEY")
