"""ConsumerFilters: the SQL92 filters of all groups, compiled once, and whether their bit maps can be trusted.

    registered ──▶ consumerFilter.json ──▶ dispatcher consume_queue_ext ──▶ its `FiltersInUse` ──▶ born
                   (not born yet)          reads it with its next batch     (that version)

A filter is born once the dispatcher has reported that it uses the version of the file that introduced the filter. Its
birth is not before the store time of the last record dispatched without it. Until then the filter's bits mean nothing,
and records are checked instead. In the file, such a filter has a birth in the far future, so that no other reader,
RocketMQ included, trusts its bits either.

Source: RocketMQ broker, ConsumerFilterManager.register, unRegister and ConsumerFilterData.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from reput.consume.registry.subscription import SQL92, Subscription
from reput.errors import DamagedStore
from reput.filter import BloomFilter, ConsumerFilter, FilterSyntaxError, SqlFilter, parse
from reput.store.config.consumer_filter_manager import ConsumerFilterData, ConsumerFilterManager, StoredBits
from reput.store.ext.filters_in_use import filters_in_use_path, read_filters_in_use

__all__ = ["NOT_BORN", "ConsumerFilters"]

NOT_BORN = 2**63 - 1
# RocketMQ believes that a filter without a birth died at the same moment.
BORN_MIN = 1


class ConsumerFilters:
    """The filters of one store that is open for writing. Any thread may call.

    Args:
        bit_maps_are_made: the store's dispatchers calculate bit maps.
    """

    def __init__(
        self,
        manager: ConsumerFilterManager,
        bloom_filter: BloomFilter,
        store_directory: Path,
        *,
        bit_maps_are_made: bool,
    ) -> None:
        self.manager = manager
        self.bloom_filter = bloom_filter
        self.directory = store_directory
        self.bit_maps_are_made = bit_maps_are_made
        self.acknowledged_path = filters_in_use_path(store_directory)
        self.lock = threading.RLock()
        self.compiled: dict[tuple[str, str], ConsumerFilter] = {}
        # Filters that the dispatcher has not acknowledged, and the stamp of its last report.
        self.unborn: set[tuple[str, str]] = set()
        self.seen: tuple[int, int] | None = None
        # The program that registered them ended before they were acknowledged; they will be registered again.
        for filters in manager.table.values():
            for group in [group for group, data in filters.items() if data.born_time == NOT_BORN]:
                del filters[group]

    def find(self, group: str, topic: str) -> ConsumerFilterData | None:
        """Return the registered filter of a group on a topic."""
        return self.manager.table.get(topic, {}).get(group)

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Register the filters of *subscriptions* for *group*, except those of which a newer one is registered."""
        with self.lock:
            has_changed = [self.register_one(group, subscription) for subscription in subscriptions]
            if any(has_changed):
                # The dispatcher reads the file, which is written as a whole.
                self.manager.persist()

    def register_one(self, group: str, subscription: Subscription) -> bool:
        """Register one filter; return whether the file has to be written."""
        assert isinstance(subscription.compiled, SqlFilter)
        topic = subscription.topic
        former = self.find(group, topic)
        if former is not None and subscription.sub_version < former.client_version:
            return False
        if former is not None and former.expression == subscription.expression and former.bits is not None:
            # The filter continues with the bits that it has had all along.
            data = msgspec.structs.replace(former, dead_time=0, client_version=subscription.sub_version)
        elif former is not None and subscription.sub_version == former.client_version and not former.is_dead:
            return False
        else:
            data = self.new_data(group, subscription)
        self.manager.put(data)
        self.compiled[group, topic] = self.as_filter(data, subscription.compiled)
        if former is not None and former.expression == data.expression:
            return False
        if data.born_time == NOT_BORN:
            self.unborn.add((group, topic))
        return True

    def new_data(self, group: str, subscription: Subscription) -> ConsumerFilterData:
        """Return the initial entry of a newly registered filter."""
        bits = self.bloom_filter.calculate_for(group, subscription.topic)
        return ConsumerFilterData(
            consumer_group=group,
            topic=subscription.topic,
            expression=subscription.expression,
            expression_type=SQL92,
            born_time=NOT_BORN if self.bit_maps_are_made else self.manager.clock.now_ms(),
            client_version=subscription.sub_version,
            bloom_filter_data=StoredBits(bit_num=bits.bit_count, bit_pos=bits.bit_positions),
        )

    def unregister(self, group: str, topics: set[str] | None = None) -> None:
        """Mark a group's filters as unused: all of them, or those on *topics*."""
        now_ms = self.manager.clock.now_ms()
        with self.lock:
            for topic, filters in list(self.manager.table.items()):
                data = filters.get(group)
                if data is None or data.is_dead or (topics is not None and topic not in topics):
                    continue
                if (group, topic) in self.unborn:
                    # A filter that is registered again must be acknowledged again.
                    self.unborn.discard((group, topic))
                    del filters[group]
                else:
                    self.manager.put(msgspec.structs.replace(data, dead_time=max(now_ms, data.born_time)))
                self.compiled.pop((group, topic), None)

    def consumer_filter(self, group: str, topic: str) -> ConsumerFilter | None:
        """Return the compiled filter of a group on a topic, None without one."""
        if self.unborn:
            self.acknowledge()
        found = self.compiled.get((group, topic))
        if found is None and (data := self.find(group, topic)) is not None:
            with self.lock:
                found = self.compiled[group, topic] = self.as_filter(data, compiled(data.expression))
        return found

    def as_filter(self, data: ConsumerFilterData, sql_filter: SqlFilter | None) -> ConsumerFilter:
        """Return *data* as the filter that queue readers use."""
        return ConsumerFilter(
            consumer_group=data.consumer_group,
            topic=data.topic,
            sql_filter=sql_filter,
            bloom_filter_data=data.bits,
            born_time=data.born_time,
        )

    def acknowledge(self) -> None:
        """Check whether the dispatcher uses the present filters; if so, waiting filters are born."""
        try:
            status = os.stat(self.acknowledged_path)
        except FileNotFoundError:
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        with self.lock:
            if stamp == self.seen or self.manager.whole_text is None:
                return
            try:
                told = read_filters_in_use(self.directory)
            except DamagedStore:
                # The dispatcher reports again when its filters change; until then records are checked.
                told = None
            if told is None or told.digest != hashlib.sha256(self.manager.whole_text.encode()).hexdigest():
                self.seen = stamp
                return
            self.seen = stamp
            born_time = max(told.store_timestamp, BORN_MIN)
            for group, topic in self.unborn:
                data = self.find(group, topic)
                if data is None:
                    continue
                data = msgspec.structs.replace(data, born_time=born_time)
                self.manager.put(data)
                former = self.compiled.get((group, topic))
                sql_filter = former.sql_filter if former is not None else compiled(data.expression)
                self.compiled[group, topic] = self.as_filter(data, sql_filter)
            self.unborn.clear()


def compiled(expression: str) -> SqlFilter | None:
    """Return the filter of a stored expression; None if RocketMQ would not accept it."""
    try:
        return parse(expression)
    except FilterSyntaxError:
        return None
