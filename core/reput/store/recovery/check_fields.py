"""Checking the fields that no CRC covers: whether each record is consistent with its neighbours.

    queue offset     one more than that of the record before it in its queue
    store time       not an hour or more before, or after, both the record before it and the one behind
    texts            topic and properties are UTF-8, and the topic has no character that RocketMQ refuses
    hosts            the ports are ports

A record is reported only if others contradict it: a recreated queue begins with 0 again, the first queue offset of a
log whose head is gone may be any, and a clock that was set back stays back. The walk checks the record's own offset and
its sizes, for every reader.

Source: RocketMQ store, CommitLog.DefaultAppendMessageCallback, which gives a queue consecutive offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from reput.filter.java_numbers import int_or
from reput.store.log.bad_range import BadRange
from reput.store.record.layout import (
    BORN_HOST_AT,
    BORN_HOST_V6_FLAG,
    HOST_PORT_AT,
    INNER_BATCH_FLAG,
    IPV6_EXTRA_SIZE,
    PORT,
    STORE_HOST_V6_FLAG,
    STORE_TIMESTAMP,
    STORE_TIMESTAMP_AT,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from reput.store.record.record import INNER_NUM
from reput.store.record.record_columns import RecordColumns

__all__ = ["TIMESTAMP_MAX", "FieldsCheck", "out_of_sequence"]

Array = np.ndarray[Any, Any]
Queue = tuple[bytes, int]
JUMP_MS = 3_600_000
DAY_MS = 24 * JUMP_MS
# The year 2200: no clock of a computer that works has come so far.
TIMESTAMP_MAX = 7_258_118_400_000
PORT_MAX = 65535
NOT_ASCII = 0x80
# Where the ports lie if both hosts are IPv4.
BORN_PORT_AT = BORN_HOST_AT + HOST_PORT_AT
STORE_PORT_AT = STORE_TIMESTAMP_AT[0] + STORE_TIMESTAMP.size + HOST_PORT_AT
# Impossible in a topic: control characters, and characters that would lead to another directory.
ILLEGAL_IN_TOPIC = frozenset(range(32)) | frozenset(b"\x7f/")


class Place(NamedTuple):
    """A record: its bytes in the log, its queue offset and store time."""

    begin: int
    end: int
    queue_offset: int
    store_timestamp: int


class Doubt(NamedTuple):
    """A record that broke the sequence of its queue; the queue's next record tells which number is right."""

    expected: int
    place: Place


class FieldsCheck:
    """Takes the records of a log in its order and keeps the ranges of those that contradict the others.

    Attributes:
        damage: the bad ranges found, in no order.
        restarts: commit-log offset of each record with which a queue begins with 0 again, uncontradicted → whether the
            queue's next record continues from it.
    """

    def __init__(
        self, log_begin: int, now_ms: int, next_offsets: Mapping[str, Mapping[int, int]] | None = None
    ) -> None:
        """
        Args:
            log_begin: where the log, or the checked part of it, begins.
            now_ms: the present, by a clock that may not be the writer's.
            next_offsets: topic → queue id → queue offset of the next record, where that is known already.
        """
        self.log_begin = log_begin
        self.present = now_ms + DAY_MS
        self.damage: list[BadRange] = []
        self.restarts: dict[int, bool] = {}
        self.expected: dict[Queue, int] = {
            (topic.encode(), queue_id): queue_offset
            for topic, queues in (next_offsets or {}).items()
            for queue_id, queue_offset in queues.items()
        }
        self.doubts: dict[Queue, Doubt] = {}
        # The last record met of each queue. Records before damage prove nothing about records behind it.
        self.met_at: dict[Queue, int] = {}
        self.damaged_at = -1
        # Queue offsets that begin or leave out what none should, until it is known which belong together.
        self.strays: list[tuple[Queue, Doubt]] = []
        self.holes: list[tuple[Queue, Doubt]] = []
        # Queue offsets of records whose topic is invalid.
        self.nameless: set[int] = set()
        # The last record so far, and the store time of the one before it.
        self.held: Place | None = None
        self.time_before_held: int | None = None
        self.known_texts: set[bytes] = set()

    def pass_damage(self, commit_log_offset: int) -> None:
        """Note that the bytes before *commit_log_offset* are no record."""
        self.damaged_at = commit_log_offset

    def take(self, columns: RecordColumns, *, telling: bool = False) -> None:
        """Take in the records of one extent. *telling*: they are its `telling_records`, and the others fit in."""
        if len(columns):
            self.take_queue_offsets(columns, telling=telling)
            self.take_timestamps(columns)
            self.take_texts(columns)
            self.take_ports(columns)

    def finish(self) -> list[BadRange]:
        """Judge the records that nothing followed, and return all bad ranges, in the order of the log."""
        for queue, doubt in self.doubts.items():
            self.judge(queue, doubt, goes_on=False)
        self.doubts.clear()
        elsewhere = self.nameless | {doubt.place.queue_offset for _, doubt in self.strays}
        for queue, doubt in self.holes:
            # The missing record is elsewhere, under another topic or queue id.
            one_missing = doubt.place.queue_offset == doubt.expected + 1
            if not (one_missing and doubt.expected in elsewhere):
                self.add_offset(queue, doubt)
        for queue, doubt in self.strays:
            self.add_offset(queue, doubt)
        held = self.held
        if held is not None:
            impossible = not 0 < held.store_timestamp <= TIMESTAMP_MAX
            if impossible or held.store_timestamp > self.present >= (self.time_before_held or 0):
                self.add_time(held, f"before={self.time_before_held}")
        found: dict[tuple[int, int], str] = {}
        for part in self.damage:
            key = (part.begin, part.end)
            found[key] = f"{found[key]}; {part.reason}" if key in found else part.reason
        return [BadRange(begin, end, reason) for (begin, end), reason in sorted(found.items())]

    # Queue offsets.

    def take_queue_offsets(self, columns: RecordColumns, *, telling: bool) -> None:
        """Compare the queue offsets of each queue with the sequence so far. Only what breaks it is looked at alone."""
        header = columns.header
        sys_flag = header["sys_flag"].astype(np.int64)
        kind = sys_flag & TRANSACTION_ROLLBACK_TYPE
        counted = (kind != TRANSACTION_PREPARED_TYPE) & (kind != TRANSACTION_ROLLBACK_TYPE)
        queues, queue_index = columns.queues()
        chosen = np.flatnonzero(counted)
        # Stable: within a queue, the order of the log.
        order = chosen[np.argsort(queue_index[chosen], kind="stable")]
        if not len(order):
            return
        of_queue = queue_index[order]
        offsets = header["queue_offset"].astype(np.int64)[order]
        breaks = np.ones(len(order), bool)
        breaks[1:] = of_queue[1:] != of_queue[:-1]
        if not telling:
            breaks[1:] |= offsets[1:] != offsets[:-1] + 1
        # An inner batch takes as many offsets as it has messages.
        batch = (sys_flag[order] & INNER_BATCH_FLAG) != 0
        breaks[1:] |= batch[1:] | batch[:-1]
        begins = np.flatnonzero(breaks)
        lasts = np.append(begins[1:], len(order)) - 1
        for begin, last in zip(begins.tolist(), lasts.tolist(), strict=True):
            queue = queues[int(of_queue[begin])]
            first = int(order[begin])
            self.meet(queue, self.place(columns, first))
            count = 1
            if batch[begin]:
                count = max(int_or(columns.properties(first).get(INNER_NUM), 1), 1)
            if last > begin:
                # The second record of a run represents it: the following records continue it.
                self.meet(queue, self.place(columns, int(order[begin + 1])))
                self.expected[queue] = int(offsets[last]) + 1
            elif queue not in self.doubts:
                self.expected[queue] = int(offsets[begin]) + count
            self.met_at[queue] = int(header["commit_log_offset"][int(order[last])])

    def meet(self, queue: Queue, place: Place) -> None:
        """Take in the next record of a queue."""
        doubt = self.doubts.pop(queue, None)
        expected = self.expected.get(queue)
        if doubt is not None:
            if place.queue_offset == doubt.expected + 1:
                self.add_offset(queue, doubt)
                self.expected[queue] = place.queue_offset + 1
                return
            self.judge(queue, doubt, goes_on=place.queue_offset == doubt.place.queue_offset + 1)
            expected = doubt.place.queue_offset + 1
        if expected is None:
            # Where the log has its head, each queue begins with 0.
            expected = 0 if self.log_begin == 0 and self.damaged_at < 0 else place.queue_offset
        elif self.damaged_at >= self.met_at.get(queue, -1) and place.queue_offset >= expected:
            expected = place.queue_offset
        if place.queue_offset != expected:
            self.doubts[queue] = Doubt(expected, place)
        self.expected[queue] = place.queue_offset + 1

    def judge(self, queue: Queue, doubt: Doubt, *, goes_on: bool) -> None:
        """Judge a record that broke the sequence of its queue. *goes_on*: the queue's next record continues from it."""
        if doubt.expected == 0 and not goes_on:
            self.strays.append((queue, doubt))
        elif doubt.place.queue_offset != 0:
            self.holes.append((queue, doubt))
        else:
            # A topic that was deleted begins anew.
            self.restarts[doubt.place.begin] = goes_on

    def add_offset(self, queue: Queue, doubt: Doubt) -> None:
        """Note a queue offset that does not follow."""
        topic = queue[0].decode("utf-8", "backslashreplace")
        place = doubt.place
        self.damage.append(out_of_sequence(place.begin, place.end, topic, queue[1], place.queue_offset, doubt.expected))

    # Store times.

    def take_timestamps(self, columns: RecordColumns) -> None:
        """Look for store times that neither neighbour confirms. The last record waits for the one behind it."""
        times = columns.store_timestamp.astype(np.int64)
        held = self.held
        if held is not None:
            times = np.concatenate(([held.store_timestamp], times))
        before = int(times[0]) if self.time_before_held is None else self.time_before_held
        former = np.concatenate(([before], times[:-1]))
        latter = np.append(times[1:], times[-1])
        wrong = (times < np.minimum(former, latter) - JUMP_MS) | (times > np.maximum(former, latter) + JUMP_MS)
        wrong |= (times <= 0) | (times > TIMESTAMP_MAX)
        if self.held is None and len(times) > 1:
            # The log's first and last records have only one neighbour; the present time replaces the other.
            wrong[0] |= times[0] > self.present >= times[1]
        wrong[-1] = False
        for number in np.flatnonzero(wrong).tolist():
            in_columns = number - (held is not None)
            place = held if held is not None and in_columns < 0 else self.place(columns, in_columns)
            self.add_time(place, f"before={int(former[number])} after={int(latter[number])}")
        self.held = self.place(columns, len(columns) - 1)
        self.time_before_held = int(former[-1])

    def add_time(self, place: Place, beside: str) -> None:
        """Note an impossible store time."""
        self.damage.append(
            BadRange(place.begin, place.end, f"impossible store time: store_timestamp={place.store_timestamp} {beside}")
        )

    # Texts and ports.

    def take_texts(self, columns: RecordColumns) -> None:
        """Look for topics and properties that no program writes."""
        queues, queue_index = columns.queues()
        for number, (topic, _) in enumerate(queues):
            if topic not in self.known_texts:
                fault = fault_of_topic(topic)
                if fault is None:
                    self.known_texts.add(topic)
                    continue
                for record in np.flatnonzero(queue_index == number).tolist():
                    self.nameless.add(int(columns.header["queue_offset"][record]))
                    self.add_text(columns, record, f"the topic {fault}: topic={topic!r}")
        # Usually all properties are ASCII: one copy and one look at them, without an object per record.
        if not (columns.all_properties() & NOT_ASCII).any():
            return
        for number in range(len(columns)):
            properties = columns.properties_bytes(number)
            try:
                properties.decode()
            except UnicodeDecodeError as error:
                place = f"at byte {error.start} of {len(properties)}"
                self.add_text(columns, number, f"the properties are no UTF-8: {place}")

    def take_ports(self, columns: RecordColumns) -> None:
        """Look for impossible ports."""
        buffer = np.frombuffer(columns.data, np.uint8)
        sys_flag = columns.header["sys_flag"].astype(np.int64)
        born_more = np.where(sys_flag & BORN_HOST_V6_FLAG, IPV6_EXTRA_SIZE, 0)
        store_more = np.where(sys_flag & STORE_HOST_V6_FLAG, IPV6_EXTRA_SIZE, 0)
        for name, at in (
            ("born_host", columns.position + BORN_PORT_AT + born_more),
            ("store_host", columns.position + STORE_PORT_AT + born_more + store_more),
        ):
            # The high half of the port's four bytes.
            wrong = (buffer[at] | buffer[at + 1]) != 0
            for number in np.flatnonzero(wrong).tolist():
                first = int(at[number])
                port = int.from_bytes(bytes(columns.data[first : first + PORT.size]), "big", signed=True)
                self.add_text(columns, number, f"no port: {name} port={port} port_max={PORT_MAX}")

    def add_text(self, columns: RecordColumns, number: int, reason: str) -> None:
        """Note a fault of one record by itself."""
        place = self.place(columns, number)
        self.damage.append(BadRange(place.begin, place.end, reason))

    @staticmethod
    def place(columns: RecordColumns, number: int) -> Place:
        """Return where one record lies, with its queue offset and store time."""
        header = columns.header
        begin = int(header["commit_log_offset"][number])
        return Place(
            begin,
            begin + int(header["record_size"][number]),
            int(header["queue_offset"][number]),
            int(columns.store_timestamp[number]),
        )


def out_of_sequence(begin: int, end: int, topic: str, queue_id: int, queue_offset: int, expected: int) -> BadRange:
    """Return the range of a record whose queue offset does not follow."""
    reason = (
        f"the queue offset is out of sequence: topic={topic} queue_id={queue_id} queue_offset={queue_offset} "
        f"expected={expected}"
    )
    return BadRange(begin, end, reason)


def fault_of_topic(topic: bytes) -> str | None:
    """Return why a topic is invalid, None if it is valid."""
    try:
        topic.decode()
    except UnicodeDecodeError:
        return "is no UTF-8"
    return "has an illegal character" if ILLEGAL_IN_TOPIC.intersection(topic) else None
