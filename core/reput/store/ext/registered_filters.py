"""RegisteredFilters: the consumers' filters of a store, and which of them a record passes.

They come from ``config/consumerFilter.json``, which is read again whenever it has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from reput.filter import BloomFilter, ConsumerFilter, FilterBitMap, FilterSyntaxError, SqlFilter, parse
from reput.store.config.consumer_filter_manager import ConsumerFilterManager
from reput.store.record.properties import decode_properties, filled_properties
from reput_hooks import DispatchRequest

__all__ = ["RegisteredFilters"]


class RegisteredFilters:
    """The filters of ``config/consumerFilter.json``, as they were read last.

    Attributes:
        bit_maps: by topic.
        digest: of the file's content.
    """

    def __init__(self, store_directory: Path, bloom_filter: BloomFilter, clean_time_span: int) -> None:
        self.manager = ConsumerFilterManager(store_directory, bloom_filter, clean_time_span)
        self.bloom_filter = bloom_filter
        self.bit_maps: Mapping[str, FilterBitMap] = {}
        self.digest = "not read yet"
        self.stamp: tuple[int, int] | None = None

    def reload(self) -> bool:
        """Read the file if it was changed; return whether its content is another."""
        try:
            status = os.stat(self.manager.path)
            stamp = (status.st_mtime_ns, status.st_ino)
        except FileNotFoundError:
            stamp = (0, 0)
        if stamp == self.stamp:
            return False
        self.stamp = stamp
        data = self.manager.path.read_bytes() if stamp[1] else b""
        digest = hashlib.sha256(data).hexdigest() if data else ""
        if digest == self.digest:
            return False
        self.manager.load()
        self.bit_maps = {
            topic: FilterBitMap(
                self.bloom_filter,
                [
                    ConsumerFilter(
                        consumer_group=group,
                        topic=topic,
                        sql_filter=compiled(found.expression),
                        bloom_filter_data=found.bits,
                        born_time=found.born_time,
                    )
                    for group, found in self.manager.filters_of_topic(topic).items()
                ],
            )
            for topic in self.manager.table
        }
        self.digest = digest
        return True

    def bit_map(self, request: DispatchRequest) -> bytes | None:
        """Return the bits of the filters that match a record, None where its topic has no filter."""
        bit_map = self.bit_maps.get(request.topic)
        if bit_map is None:
            return None
        return bit_map.calculate(filled_properties(decode_properties(request.properties or b"")))


def compiled(expression: str) -> SqlFilter | None:
    """Return the filter of an expression, None if it has none that RocketMQ would take."""
    try:
        return parse(expression)
    except FilterSyntaxError:
        return None
