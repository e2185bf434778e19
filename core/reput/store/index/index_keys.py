"""The keys of a batch and their hashes, thousands at a time with numpy.

Java's String.hashCode of ``topic#key`` is a polynomial in 31, so it is the sum of the hash of ``topic#``, shifted by
the key's length, and the hash of the key; see `string_hashes`. An index has a record's tags as ``topic#T#tags``.

Source: RocketMQ store, IndexService.buildIndex and IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reput.filter.string_hash import string_hash
from reput.store.index.index_file import TAGS_TYPE
from reput.store.record.string_hashes import StringHashes

__all__ = ["KeyHashes"]

SPACE = 32
HASH_MAX = 0x7FFFFFFF
SIZES_BEFORE_TAGS = ("uniq_key_size", "keys_size", "multi_dispatch_size", "properties_size")

Array = np.ndarray[Any, Any]


class KeyHashes:
    """Hashes the keys of one batch after the other; keeps the hashes of the topics."""

    topics_max = 100_000

    def __init__(self) -> None:
        self.hashes = StringHashes()
        self.topics: dict[str, tuple[int, int]] = {}

    def find(
        self, rows: Array, queues: Sequence[tuple[str, int]], texts: bytes, *, with_tags: bool
    ) -> tuple[Array, Array, Array]:
        """Return for each key of each record, in order: the number of its row, its hash, and whether it is the tags.

        The keys of a record are its unique key, if it has one, the parts of its KEYS that are not empty, which single
        spaces separate, and *with_tags* its tags.
        """
        row, begin, size, is_tags = key_places(rows, texts, with_tags=with_tags)
        hashes, units = self.hashes.find(texts, begin, size)
        topics = [self.hash_topic(topic) for topic, _ in queues]
        queue = rows["queue_index"][row]
        prefix = np.array([of_keys for of_keys, _ in topics], np.uint32)[queue]
        if with_tags:
            prefix[is_tags] = np.array([of_tags for _, of_tags in topics], np.uint32)[queue[is_tags]]
        # No text has more units than bytes, so there are powers enough.
        hashes += prefix * self.hashes.powers[units]
        positive = np.abs(hashes.view(np.int32).astype(np.int64))
        positive[positive > HASH_MAX] = 0
        return row, positive, is_tags

    def hash_topic(self, topic: str) -> tuple[int, int]:
        """Return the hashes of ``topic#`` and ``topic#T#``, as unsigned 32 bits."""
        known = self.topics.get(topic)
        if known is None:
            if len(self.topics) >= self.topics_max:
                self.topics.clear()
            prefixes = (f"{topic}#", f"{topic}#{TAGS_TYPE}#")
            of_keys, of_tags = (string_hash(prefix) & 0xFFFFFFFF for prefix in prefixes)
            known = self.topics[topic] = of_keys, of_tags
        return known


def key_places(rows: Array, texts: bytes, *, with_tags: bool) -> tuple[Array, Array, Array, Array]:
    """Return row number, begin in *texts*, size in bytes, and whether it is the tags, of each key in log order."""
    sizes = rows["texts_size"].astype(np.int64)
    row_end = np.cumsum(sizes)
    row_begin = row_end - sizes
    uniq_size = rows["uniq_key_size"].astype(np.int64)
    keys_size = rows["keys_size"].astype(np.int64)
    with_keys = np.flatnonzero(keys_size > 0)
    keys_begin = row_begin[with_keys] + np.maximum(uniq_size[with_keys], 0)
    keys_end = keys_begin + keys_size[with_keys]
    part_row, part_begin, part_end = split_at_spaces(texts, with_keys, keys_begin, keys_end)
    with_uniq = np.flatnonzero(uniq_size >= 0)
    row = np.concatenate((with_uniq, part_row))
    begin = np.concatenate((row_begin[with_uniq], part_begin))
    size = np.concatenate((uniq_size[with_uniq], part_end - part_begin))
    key_count = len(row)
    if with_tags:
        tags_begin = row_begin + sum(np.maximum(rows[name].astype(np.int64), 0) for name in SIZES_BEFORE_TAGS)
        tagged = np.flatnonzero(tags_begin < row_end)
        row = np.concatenate((row, tagged))
        begin = np.concatenate((begin, tags_begin[tagged]))
        size = np.concatenate((size, row_end[tagged] - tags_begin[tagged]))
    # A row's unique key comes before its other keys, its tags behind them, and a stable sort keeps that.
    order = np.argsort(row, kind="stable")
    return row[order], begin[order], size[order], order >= key_count


def split_at_spaces(texts: bytes, row: Array, begin: Array, end: Array) -> tuple[Array, Array, Array]:
    """Return row, begin and end of the parts of each run [begin, end) of *texts* that single spaces separate."""
    run_count = len(row)
    spaces = np.flatnonzero(np.frombuffer(texts, np.uint8) == SPACE)
    first_space = np.searchsorted(spaces, begin)
    count = np.searchsorted(spaces, end) - first_space
    total = int(count.sum())
    if not total:
        return row, begin, end
    before = np.cumsum(count) - count
    # Keys between the runs, such as a unique key, may contain spaces, too.
    spaces = spaces[np.arange(total) + np.repeat(first_space - before, count)]
    # A run has a part more than spaces. Each space ends a part and begins the next.
    first_part = np.arange(run_count) + before
    at = np.arange(total) + np.repeat(np.arange(run_count), count)
    part_begin, part_end = np.empty((2, run_count + total), np.int64)
    part_begin[first_part] = begin
    part_begin[at + 1] = spaces + 1
    part_end[at] = spaces
    part_end[first_part + count] = end
    row = np.repeat(row, count + 1)
    filled = part_end > part_begin
    return (row, part_begin, part_end) if filled.all() else (row[filled], part_begin[filled], part_end[filled])
