"""ConsumerFilterManager: ``config/consumerFilter.json``, the SQL92 filters of consumer groups and their bits.

    {"filterDataByTopic":{"orders":{"groupFilterData":{"billing":{"bloomFilterData":{"bitNum":112,"bitPos":[103,61,29]},
     "bornTime":1700000000000, … ,"expression":"a > 5","expressionType":"SQL92","topic":"orders"}},"topic":"orders"}}}

Source: RocketMQ, ConsumerFilterManager and ConsumerFilterData.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reput.filter import BloomFilter, BloomFilterData
from reput.store.config.config_manager import ConfigManager
from reput.store.config.stored_fields import StoredFields
from reput.store.disk.files import Clock, Files

__all__ = ["ConsumerFilterData", "ConsumerFilterManager", "StoredBits"]

# A filter that was alive when the broker stopped died then, but the file does not say when.
DEAD_BEFORE_LOAD_MS = 30_000


class StoredBits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`BloomFilterData` as it is stored."""

    bit_num: int
    bit_pos: tuple[int, ...]


class ConsumerFilterData(StoredFields, frozen=True):
    """The filter of one group on one topic.

    Attributes:
        born_time: ms since 1970 UTC from which on bit maps have the filter's bits.
        dead_time: when its last consumer went; 0: never yet.
        client_version: of the subscription, as the client counts it.
    """

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: int
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: StoredBits | None = None

    @property
    def is_dead(self) -> bool:
        """Whether no consumer uses the filter now."""
        return self.dead_time >= self.born_time

    @property
    def bits(self) -> BloomFilterData | None:
        """The bits that stand for it in a bit map; None if it was registered without."""
        stored = self.bloom_filter_data
        return BloomFilterData(stored.bit_pos, stored.bit_num) if stored else None


class ConsumerFilterManager(ConfigManager):
    """All filters of one broker, by topic and group.

    Args:
        bloom_filter: the sizes that the settings ask for. A file with bits of other sizes says nothing.
        clean_time_span: ms for which a dead filter is kept.
    """

    file_name = "consumerFilter.json"

    def __init__(
        self,
        store_directory: Path,
        bloom_filter: BloomFilter,
        clean_time_span: int,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(store_directory, files, clock)
        self.bloom_filter = bloom_filter
        self.clean_time_span = clean_time_span
        self.table: dict[str, dict[str, ConsumerFilterData]] = {}
        self.unknown: dict[str, Any] = {}

    def filters_of_topic(self, topic: str) -> dict[str, ConsumerFilterData]:
        """Return the filters on *topic* by consumer group."""
        with self.lock:
            return dict(self.table.get(topic, {}))

    def put(self, data: ConsumerFilterData) -> None:
        """Add a filter, or replace the one of its group and topic."""
        with self.lock:
            self.table.setdefault(data.topic, {})[data.consumer_group] = data

    def read_fields(self, fields: dict[str, Any]) -> None:
        unknown = dict(fields)
        topics = msgspec.convert(unknown.pop("filterDataByTopic", None) or {}, dict[str, StoredTopic])
        table = {
            topic: {group: self.read_filter(filter_fields) for group, filter_fields in stored.group_filter_data.items()}
            for topic, stored in topics.items()
        }
        everything = [data for filters in table.values() for data in filters.values()]
        if not all(data.bits and self.bloom_filter.is_valid(data.bits) for data in everything):
            table = {}
        self.table, self.unknown = table, unknown

    def read_filter(self, fields: dict[str, Any]) -> ConsumerFilterData:
        """Return one filter as it is after a start: no consumer uses it yet."""
        # "dead" follows from the two times, whatever the file says.
        data = ConsumerFilterData.from_fields({name: value for name, value in fields.items() if name != "dead"})
        if data.dead_time:
            return data
        return msgspec.structs.replace(data, dead_time=max(data.born_time, self.clock.now_ms() - DEAD_BEFORE_LOAD_MS))

    def write_fields(self) -> dict[str, Any]:
        self.clean()
        topics = {
            topic: {
                "groupFilterData": {
                    group: dict(sorted((data.to_fields() | {"dead": data.is_dead}).items()))
                    for group, data in filters.items()
                },
                "topic": topic,
            }
            for topic, filters in self.table.items()
        }
        return dict(sorted((self.unknown | {"filterDataByTopic": topics}).items()))

    def clean(self) -> None:
        """Forget the filters that have been dead for long, and topics without any."""
        now_ms = self.clock.now_ms()
        for topic, filters in list(self.table.items()):
            for group, data in list(filters.items()):
                if data.is_dead and now_ms - data.dead_time >= self.clean_time_span:
                    del filters[group]
            if not filters:
                del self.table[topic]


class StoredTopic(msgspec.Struct, frozen=True, rename="camel"):
    """The filters of one topic as they are stored; the topic's name is there twice."""

    group_filter_data: dict[str, dict[str, Any]] = {}
