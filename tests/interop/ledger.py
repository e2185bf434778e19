"""Ledger: every message that either program has stored, recorded separately, and the expected answers about it.

Queue offsets are counted here, so that a program that continues with a wrong number is detected.
"""

from __future__ import annotations

import base64
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from interop.put_questions import put_question
from interop.rocketmq_store import RocketMQStore
from reput.settings import Settings
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import Message, PutMessageResult
from reput.store.record.properties import decode_properties
from reput_hooks import Record

__all__ = [
    "Ledger",
    "assert_read_by_reput",
    "assert_read_by_rocketmq",
    "comparable",
    "put_by_reput",
    "put_by_rocketmq",
    "random_messages",
]

QUERY_COUNT_MAX = 64
V6_FLAGS = {"born_host": 0x10, "store_host": 0x20}
NEVER_DUE_LEVEL = 18


class Ledger:
    """All records, in log order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.records: list[Record] = []
        self.next_offsets: dict[tuple[str, int], int] = defaultdict(int)

    @property
    def end(self) -> int:
        """Commit-log offset after the last record."""
        return self.records[-1].commit_log_offset + self.records[-1].record_size if self.records else 0

    def add_put(self, message: Message, result: PutMessageResult) -> None:
        """Record a message stored by reput."""
        properties = dict(message.properties or {})
        if message.keys is not None:
            properties["KEYS"] = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        if message.tags is not None:
            properties["TAGS"] = message.tags
        topic, queue_id = message.topic, message.queue_id or 0
        if message.delay_level:
            properties |= {"DELAY": str(message.delay_level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
            topic, queue_id = SCHEDULE_TOPIC, message.delay_level - 1
        self.add(
            commit_log_offset=result.commit_log_offset,
            record_size=result.record_size,
            topic=topic,
            queue_id=queue_id,
            flag=message.flag,
            body=message.body,
            properties=properties,
            born_timestamp=result.store_timestamp,
            store_timestamp=result.store_timestamp,
            message_id=result.message_id,
        )
        assert result.queue_offset == self.records[-1].queue_offset

    def add_answer(self, question: dict[str, Any], answer: dict[str, Any]) -> None:
        """Record a message stored by RocketMQ."""
        assert answer["status"] == "PUT_OK", answer
        self.add(
            commit_log_offset=answer["physicalOffset"],
            record_size=answer["size"],
            topic=question["topic"],
            queue_id=question["queueId"],
            flag=question["flag"],
            body=base64.b64decode(question["body"]),
            properties=decode_properties(question["properties"].encode()),
            born_timestamp=question["bornTimestamp"],
            store_timestamp=answer["storeTimestamp"],
            message_id=answer["msgId"],
        )
        assert answer["queueOffset"] == self.records[-1].queue_offset

    def add(self, *, topic: str, queue_id: int, body: bytes, **fields: Any) -> None:
        """Record one message; it begins where the previous one ended, or in the next segment."""
        segment_size = self.settings.mapped_file_size_commit_log
        next_segment = self.end - self.end % segment_size + segment_size
        assert fields["commit_log_offset"] in (self.end, next_segment), (
            f"a record does not begin where the one before ended, nor in the next segment: fields={fields} "
            f"topic={topic} queue_id={queue_id} end={self.end} next_segment={next_segment} "
            f"count={len(self.records)} last={self.records[-3:]}"
        )
        hosts = {"born_host": self.settings.born_host, "store_host": self.settings.store_host}
        self.records.append(
            Record(
                topic=topic,
                queue_id=queue_id,
                queue_offset=self.next_offsets[topic, queue_id],
                sys_flag=sum(flag for name, flag in V6_FLAGS.items() if hosts[name].startswith("[")),
                magic_code=0,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body_crc=zlib.crc32(body) & 0x7FFFFFFF,
                body=body,
                **hosts,
                **fields,
            )
        )
        self.next_offsets[topic, queue_id] += 1

    def take_over(self, record: Record) -> None:
        """Record a message whose writer was killed before it could acknowledge it."""
        assert record.queue_offset == self.next_offsets[record.topic, record.queue_id]
        self.records.append(record)
        self.next_offsets[record.topic, record.queue_id] += 1

    def take_back(self) -> Record:
        """Remove the last record, which the store has lost."""
        record = self.records.pop()
        self.next_offsets[record.topic, record.queue_id] -= 1
        return record

    def queues(self) -> dict[tuple[str, int], list[Record]]:
        """Return the records of every queue."""
        queues: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in self.records:
            queues[record.topic, record.queue_id].append(record)
        return queues

    def keys(self) -> dict[tuple[str, str], list[Record]]:
        """Return the records of every key of a topic, including unique keys."""
        keys: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in self.records:
            for key in [*record.keys, *([record.uniq_key] if record.uniq_key else [])]:
                keys[record.topic, key].append(record)
        assert max(map(len, keys.values()), default=0) <= QUERY_COUNT_MAX
        return keys


def comparable(records: Iterable[Record]) -> list[Record]:
    """Return *records* without fields that RocketMQ's decoder lacks: magic codes, and properties without a value."""
    return [
        replace(record, magic_code=0, properties={name: value for name, value in record.properties.items() if value})
        for record in records
    ]


def assert_read_by_rocketmq(
    store: RocketMQStore, ledger: Ledger, *, by_time: bool = False, by_key: bool = True
) -> None:
    """RocketMQ finds every message in the log and in its queue; with *by_key* by each key, with *by_time* by its time.

    Version 4 chooses a queue's file by its modification time, so *by_time* then only covers queues of one file. After a
    crash of its own, RocketMQ may miss keys.
    """
    assert store.records() == ledger.records
    assert store.queues() == {queue: (0, next_offset) for queue, next_offset in ledger.next_offsets.items()}
    for (topic, queue_id), expected in ledger.queues().items():
        assert store.read_queue(topic, queue_id) == expected
        if by_time:
            for record in expected:
                found = expected[store.offset_by_time(topic, queue_id, record.store_timestamp)]
                assert found.store_timestamp == record.store_timestamp
    for (topic, key), expected in ledger.keys().items() if by_key else ():
        # RocketMQ may put the last record before a restart into its index twice.
        assert without_repetitions(store.query(topic, key)) == expected


def without_repetitions(records: list[Record]) -> list[Record]:
    """Return *records* without immediate repetitions."""
    return [record for at, record in enumerate(records) if at == 0 or record != records[at - 1]]


def assert_read_by_reput(store: Any, ledger: Ledger) -> None:
    """reput finds every message in the log, in its queue, and by each of its keys."""
    for view in ("consume_queue", "index"):
        store.wait_for(view, store.appended, timeout=60)
    assert comparable(store.records()) == ledger.records
    for (topic, queue_id), expected in ledger.queues().items():
        found = store.get(topic, queue_id, 0, len(expected) + 1)
        assert comparable(found.records) == expected
        assert (found.queue_offset_min, found.queue_offset_max) == (0, len(expected))
    for (topic, key), expected in ledger.keys().items():
        assert comparable(store.query(topic, key)) == expected


def put_by_reput(store: Any, ledger: Ledger, messages: list[Message]) -> None:
    """Let reput put *messages*, a third of them in one batch, and record them."""
    batch, alone = messages[: len(messages) // 3], messages[len(messages) // 3 :]
    for message, result in zip(batch, store.put_batch(batch), strict=True):
        ledger.add_put(message, result)
    for message in alone:
        ledger.add_put(message, store.put(message))


def put_by_rocketmq(store: RocketMQStore, ledger: Ledger, messages: list[Message], clock_ms: int | None = None) -> None:
    """Let RocketMQ put *messages* except delayed ones, which it would change in its own way; record them.

    Args:
        clock_ms: store time of the first; each further one is stored a minute later. None: the machine's clock.
    """
    for number, message in enumerate(message for message in messages if not message.delay_level):
        if clock_ms is not None:
            store.set_clock(clock_ms + 60_000 * number)
        question = put_question(message, ledger.settings, time.time_ns() // 1_000_000)
        ledger.add_answer(question, store.ask(**question))


def random_messages(rng: random.Random, count: int) -> list[Message]:
    """Return messages of several queues, sizes, tags and keys, one in twenty delayed for hours."""
    messages = []
    for _ in range(count):
        number = rng.randrange(1_000_000)
        message = Message(
            rng.choice(["orders", "orders", "payments", "%RETRY%group"]),
            rng.randbytes(rng.choice([0, 10, 100, 700])),
            tags=rng.choice([None, "paid", "größer"]),
            keys=rng.choice([None, [f"k{number % 41}"], [f"k{number % 41}", f"m{number % 43}"]]),
            properties=rng.choice([None, {"UNIQ_KEY": f"7F000001{number:016X}"}, {"a": "1", "名": "値"}]),
            flag=rng.randrange(-5, 5),
            queue_id=rng.randrange(3),
            delay_level=rng.choice([0] * 19 + [NEVER_DUE_LEVEL]),
        )
        messages.append(message)
    return messages
