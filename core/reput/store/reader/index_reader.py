"""IndexReader: messages by key and by tags.

The index holds hashes. A record that one of its entries leads to is compared with the key that was asked for.

Source: RocketMQ store, DefaultMessageStore.queryMessage.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.errors import ConfigError, DamagedStore, OffsetOutOfRange
from reput.store.index.index_file import Index, hashes_of, index_damage, key_hash, tags_hash
from reput.store.index.index_tags import shown_index_tags
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import QueryMessageResult
from reput.store.reader.unit_damage import begins_no_record
from reput_hooks import Record

__all__ = ["IndexReader"]

TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF


class IndexReader:
    """Reads the index of one store."""

    def __init__(self, store: ReadableStore) -> None:
        self.store = store
        settings = store.settings
        sizes = settings.max_hash_slot_num, settings.max_index_num
        self.index = Index(store.directory / "index", *sizes, store.files)
        store.on_forget.append(self.index.stamp.forget)

    def query_message(
        self, topic: str, key: str, count_max: int = 64, begin: int = 0, end: int = TIMESTAMP_MAX
    ) -> QueryMessageResult:
        """Return the newest *count_max* messages of *topic* with this key, in commit-log order.

        The unique key that clients give counts as a key. If no message has this key, it may be the id that the store
        itself gave a message, which encodes the place in the log.

        Args:
            begin, end: store time in ms, both included; the index is precise to the second.
        """

        def has_key(record: Record) -> bool:
            return key in record.keys or record.uniq_key == key

        found = self.query_index(topic, key_hash(topic, key), has_key, count_max, begin, end)
        if found.records:
            return found
        record = self.store.record_of_id(key)
        wanted = record is not None and record.topic == topic and begin <= record.store_timestamp <= end
        return QueryMessageResult([record] if record is not None and wanted and count_max > 0 else [], 0, 0)

    def query_tags(
        self, topic: str, tags: str, count_max: int = 64, begin: int = 0, end: int = TIMESTAMP_MAX
    ) -> QueryMessageResult:
        """Return the newest *count_max* messages of *topic* whose tags are *tags*, in commit-log order.

        Args:
            begin, end: as of `query_message`.

        Raises:
            ConfigError: the index of this store has no tags.
        """
        settings = self.store.settings
        sizes = settings.max_hash_slot_num, settings.max_index_num
        if not (settings.index_tags or shown_index_tags(self.store.directory, *sizes)):
            raise ConfigError(
                f"the index of this store has no tags: index_tags=false store={self.store.directory}",
                f"Run `reput settings {self.store.directory} --change index_tags=true`, then "
                f"`reput rebuild {self.store.directory} index` to add existing records.",
            )
        return self.query_index(
            topic, tags_hash(topic, tags), lambda record: record.tags == tags, count_max, begin, end
        )

    def query_index(
        self, topic: str, wanted: int, agrees_with: Callable[[Record], bool], count_max: int, begin: int, end: int
    ) -> QueryMessageResult:
        """Return the newest *count_max* messages of *topic* under a hash of the index that *agrees_with* accepts."""
        store = self.store
        records: dict[int, Record] = {}
        log_min = store.log().offset_min

        def agrees(commit_log_offset: int) -> bool:
            # Retention has trimmed the log; the index follows.
            if commit_log_offset < log_min:
                return False
            record = self.indexed_record(topic, commit_log_offset)
            if record is None:
                return False
            if record.topic != topic or not agrees_with(record):
                if wanted not in hashes_of(record):
                    raise index_damage(
                        f"topic={topic}",
                        f"an entry leads to a record of other keys: commit_log_offset={commit_log_offset}",
                    )
                return False
            if not store.has_whole_body(record):
                return False
            records[commit_log_offset] = record
            return True

        count_max = min(count_max, store.settings.max_msgs_num_batch)
        found = self.index.query(wanted, count_max, begin, end, store.progress("index"), agrees, self.stored_at)
        self.keep_files()
        if not found.offsets:
            return QueryMessageResult([], 0, 0)
        return QueryMessageResult(
            [records[offset] for offset in sorted(found.offsets)], found.last_update_timestamp, found.last_update_offset
        )

    def keep_files(self) -> None:
        """Tell the kernel which files the index has, as the last query has found them, so that it queries alone."""
        store, index = self.store, self.index
        view = store.view_words("index")
        if store.reads is None or view is None or index.unfinished:
            return
        files = [(path, slots, index.entry_count_of(path, slots)) for path, slots in index.listed if slots is not None]
        if len(files) < len(index.listed):
            return
        store.reads.keep_index(
            view, store.generations["index"], store.known_log_begin, index.directory, index.stamp.seen, files
        )

    def indexed_record(self, topic: str, commit_log_offset: int) -> Record | None:
        """Return the record that an entry of the index leads to, None if it is gone, or an operator has given it up.

        Raises:
            DamagedStore: there is none; the error says whether the index is at fault or the log.
        """
        try:
            return self.store.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange) as error:
            if self.store.is_accepted(commit_log_offset):
                return None
            segment = self.store.log().find(commit_log_offset)
            if segment is None or begins_no_record(self.store, segment.begin, commit_log_offset):
                raise index_damage(
                    f"topic={topic}", f"an entry leads to no record: commit_log_offset={commit_log_offset}"
                ) from None
            raise self.store.told(
                DamagedStore.at(commit_log_offset, None, f"{error} topic={topic} commit_log_offset={commit_log_offset}")
            ) from None

    def stored_at(self, commit_log_offset: int) -> int | None:
        """Return the store time of the record there, None if the log has none there that could be read."""
        if not self.store.log().offset_min <= commit_log_offset < self.store.progress("index"):
            return None
        try:
            record = self.store.record_at(commit_log_offset)
        except (DamagedStore, OffsetOutOfRange):
            return None
        return None if record is None else record.store_timestamp
