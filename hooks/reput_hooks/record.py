"""Record: one message as it lies in the commit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Record", "UndecodedRecord"]


class UndecodedRecord:
    """A writable record for decoders, which turn it into a `Record` by setting its ``__class__``.

    Attributes:
        _data: the bytes of the record; where *body* was set, its body may be missing, with a body size of 0.
        _decode: ``decode(data, name)`` returns values of fields by name, including *name*. The record calls it for a
            field that was not set; it cannot fail.
    """

    __slots__ = (
        "_data",
        "_decode",
        "body",
        "body_crc",
        "born_host",
        "born_timestamp",
        "commit_log_offset",
        "flag",
        "magic_code",
        "message_id",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "record_size",
        "store_host",
        "store_timestamp",
        "sys_flag",
        "topic",
    )


FIELDS = frozenset(name for name in UndecodedRecord.__slots__ if not name.startswith("_"))


@dataclass(frozen=True)
class Record(UndecodedRecord):
    """One message of the commit log with all seventeen fields, named as in RocketMQ.

    A record that was read decodes most fields at their first use. It owns a copy of its bytes.

    Attributes:
        commit_log_offset: bytes from the birth of the log to the record's first byte.
        record_size: bytes of the whole record.
        queue_offset: unit number in (topic, queue_id).
        magic_code: ``0xDAA320A7`` (V1) or ``0xDAA320AB`` (V2, topics of more than 127 bytes).
        born_timestamp, store_timestamp: milliseconds since 1970 UTC.
        born_host, store_host: ``127.0.0.1:5000`` or ``[::1]:5000``.
        body_crc: of the body as stored, unsigned.
        body: unpacked if the producer's client has compressed it. If it does not unpack, or in a dispatcher: as stored,
            with bit 0 of *sys_flag* set.
        properties: in stored order, empty values kept.
        message_id: the id of the store, upper-case hex of store host and commit-log offset.

    Source: RocketMQ, MessageExt and CommitLog.checkMessageAndReturnSize.
    """

    __slots__ = ()

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

    def __getattr__(self, name: str) -> Any:
        """Decode a field at its first use."""
        if name not in FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        values: dict[str, Any] = self._decode(self._data, name)
        for field, value in values.items():
            object.__setattr__(self, field, value)
        return values[name]

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, field) for field in self.__match_args__)

    @property
    def tags(self) -> str | None:
        """The tag, None without one."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The keys that the producer gave, without the client's unique id."""
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def uniq_key(self) -> str | None:
        """The message id that the client generated, None without one."""
        return self.properties.get("UNIQ_KEY")
