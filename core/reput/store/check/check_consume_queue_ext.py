"""Checking the ext units: each address in a queue leads to a unit with the record's tags code and store time.

A filter's bits are compared only if it is still registered, was registered before the record was stored, and matches
the record. All other set bits may belong to filters that are gone or came later.

Source: RocketMQ broker, CommitLogDispatcherCalcBitMap.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from reput.errors import DamagedStore
from reput.filter import FilterSyntaxError, SqlFilter, parse
from reput.store.check.expected_records import ExpectedRecords
from reput.store.config.config_json import parse_config
from reput.store.config.consumer_filter_manager import ConsumerFilterData
from reput.store.disk.file_name import parse_file_name
from reput.store.disk.open_files import OpenFiles
from reput.store.ext.consume_queue_ext import ConsumeQueueExt
from reput.store.queue.consume_queue_builder import names_in, queue_directories
from reput.store.record.properties import filled_properties
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.check_report import Findings, ViewReport

__all__ = ["ConsumeQueueExtCheck"]


class KnownFilter(msgspec.Struct, frozen=True):
    """A filter that is still registered; *mask*: its bits, of *bit_count*."""

    sql_filter: SqlFilter
    born_time: int
    mask: int
    bit_count: int


class ConsumeQueueExtCheck:
    """Compares the units below ``consumequeue_ext/`` with the records whose queue units lead to them."""

    def __init__(self, store_directory: Path, expected_records: ExpectedRecords) -> None:
        self.root = store_directory / "consumequeue_ext"
        self.expected_records = expected_records
        self.findings = Findings(live=expected_records.live)
        self.open_files = OpenFiles()
        self.queues: dict[tuple[str, int], ConsumeQueueExt] = {}
        for topic, queue_id, directory in queue_directories(self.root):
            # A file that was cut short does not show where the next one begins.
            file_size = 0
            for name in names_in(directory):
                # Retention, or the deletion of a topic, may take a file while it is looked at.
                with contextlib.suppress(FileNotFoundError):
                    if parse_file_name(name) is not None:
                        file_size = max(file_size, (directory / name).stat().st_size)
            if file_size:
                self.queues[topic, queue_id] = ConsumeQueueExt(directory, file_size, self.open_files)
        self.absent = not self.queues
        self.filters = {} if self.absent else read_filters(store_directory)
        # Commit-log offset → bits that must be set, for records whose queue unit was not compared yet.
        self.expected_bits: dict[int, int] = {}

    def prepare(self, columns: RecordColumns) -> None:
        """Judge the records of *columns* by the known filters, while their properties are at hand."""
        if not self.filters:
            return
        for number, topic in enumerate(columns.topics()):
            filters = self.filters.get(topic.decode("utf-8", "replace"))
            if filters:
                store_timestamp = int(columns.store_timestamp[number])
                properties = filled_properties(columns.properties(number))
                bits = 0
                for known in filters:
                    if known.born_time < store_timestamp and known.sql_filter.matches(properties):
                        bits |= known.mask
                self.expected_bits[int(columns.header["commit_log_offset"][number])] = bits

    def compared(self) -> None:
        """Forget what was prepared: every queue unit so far was compared."""
        self.expected_bits.clear()

    def take(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        address: int,
        tags_code: int,
        store_timestamp: int,
        commit_log_offset: int,
    ) -> None:
        """Compare the unit at *address*, which the queue has for this record."""
        queue = self.queues.get((topic, queue_id))
        unit = queue.get(address) if queue is not None else None
        where = f"topic={topic} queue_id={queue_id} queue_offset={queue_offset} address={address}"
        if unit is None:
            self.expected_records.refresh()
            if commit_log_offset < self.expected_records.floor(topic, queue_id):
                return
            self.findings.differ(f"address leads to no ext unit: {where}")
        elif (unit.tags_code, unit.store_timestamp) != (tags_code, store_timestamp):
            self.findings.differ(
                f"ext unit is of another record: {where} tags_code={unit.tags_code} "
                f"store_timestamp={unit.store_timestamp} record_tags_code={tags_code} "
                f"record_store_timestamp={store_timestamp}"
            )
        elif unit.filter_bit_map is not None:
            self.compare_bits(topic, unit.filter_bit_map, self.expected_bits.get(commit_log_offset, 0), where)

    def compare_bits(self, topic: str, bit_map: bytes, expected: int, where: str) -> None:
        """Compare a bit map with the bits that must be set, and count those that nothing can be said about."""
        bits = int.from_bytes(bit_map, "little")
        filters = self.filters.get(topic, ())
        if any(known.bit_count != 8 * len(bit_map) for known in filters):
            # It was calculated with other sizes; readers do not look at it either.
            self.findings.unverified_count += bits.bit_count()
        elif expected & ~bits:
            self.findings.differ(f"bit map lacks bits of filters that match: {where} missing={expected & ~bits:x}")
        else:
            self.findings.unverified_count += (bits & ~expected).bit_count()

    def finish(self, log_end: int) -> ViewReport:
        """Return the report."""
        self.open_files.close()
        return ViewReport("absent") if self.absent else self.findings.report(log_end)


def read_filters(store_directory: Path) -> dict[str, list[KnownFilter]]:
    """Return the filters of ``config/consumerFilter.json`` by topic, with the bits that were stored for them.

    Bits of unreadable filters stay unverified: this check is not about that file.
    """
    try:
        fields = parse_config((store_directory / "config" / "consumerFilter.json").read_text("utf-8"))
        topics = msgspec.convert(fields, StoredFilters).filter_data_by_topic
        found: dict[str, list[KnownFilter]] = {}
        for topic, stored in topics.items():
            for group_fields in stored.group_filter_data.values():
                data = ConsumerFilterData.from_fields({**group_fields, "dead": None})
                if data.bits is not None and data.expression:
                    known = KnownFilter(parse(data.expression), data.born_time, data.bits.mask, data.bits.bit_count)
                    found.setdefault(topic, []).append(known)
        return found
    except (OSError, UnicodeDecodeError, DamagedStore, msgspec.ValidationError, FilterSyntaxError):
        return {}


class StoredTopicFilters(msgspec.Struct, rename="camel"):
    """The filters of one topic, as they are stored."""

    group_filter_data: dict[str, dict[str, object]] = {}


class StoredFilters(msgspec.Struct, rename="camel"):
    """The whole file."""

    filter_data_by_topic: dict[str, StoredTopicFilters] = {}
