"""MessageReader: behaviour that RocketMQ's own stores in ``tests/golden`` do not show."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

import reput
from reput.errors import DamagedStore, StoreError
from reput.filter import BloomFilter, ConsumerFilter, ExpressionMessageFilter, parse
from reput.store.disk.open_files import DirectoryStamp, OpenFiles
from reput.store.index.index_layout import ENTRY, HEADER, SLOT
from reput.store.queue.consume_queue import ConsumeQueue
from reput.store.reader.results import BoundaryType, GetMessageStatus


def test_an_expression_does_not_see_a_property_without_a_value(tmp_path):
    """RocketMQ's parser of properties drops it, so it is null there."""
    wanted = ConsumerFilter(
        consumer_group="group",
        topic="orders",
        sql_filter=parse("a IS NULL"),
        bloom_filter_data=None,
        born_time=0,
    )
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=4096) as store:
        for value in ("1", ""):
            result = store.put(reput.Message("orders", value.encode(), properties={"a": value, "b": "2"}))
        store.wait_for("consume_queue", result.next_commit_log_offset, timeout=60)
        message_filter = ExpressionMessageFilter(wanted, BloomFilter(20, 32))
        found = store._engine.reader.get_message("orders", 0, 0, message_filter=message_filter)
        assert [record.properties for record in found] == [{"a": "", "b": "2"}]


def open_small(path: Path) -> reput.Store:
    """Open a store of small segments with a consume queue."""
    return reput.open(path / "store", dispatchers=["consume_queue"], mode="inline", mapped_file_size_commit_log=4096)


def fill_segments(store: reput.Store) -> list[Path]:
    """Put messages until there are four segments, and return them; each message can be read."""
    directory = store.directory / "commitlog"
    while len(segments := sorted(directory.iterdir())) < 4:
        store.put(reput.Message("orders", bytes(500)))
    store.wait_for("consume_queue", store.appended, timeout=60)
    return segments


def test_a_reader_in_the_writers_process_asks_no_directory(tmp_path, monkeypatch):
    """It is notified of new and removed files, so a read needs no additional system call."""
    with open_small(tmp_path) as store:
        first, second, *_ = fill_segments(store)
        assert store.get("orders", 0, 0, 1).status is GetMessageStatus.FOUND
        monkeypatch.delattr(DirectoryStamp, "changed")
        store._engine.writer.trim(first, int(second.name))
        found = store.get("orders", 0, 0, 1)
        assert found.status is GetMessageStatus.OFFSET_TOO_SMALL
        low, high = store.queue_range("orders")
        assert found.next_queue_offset == low > 0
        assert [record.queue_offset for record in store.get("orders", 0, low, high)] == list(range(low, high))


def test_readers_know_that_a_segment_goes_before_it_does(tmp_path, monkeypatch):
    """Reads right before and right after the removal agree, by place and by key, and nothing is partial."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=4096) as store:
        for number in range(20):
            last = store.put(reput.Message("orders", bytes(500), keys=["k", f"k{number}"]))
        for view in ("consume_queue", "index"):
            store.wait_for(view, last.next_commit_log_offset, timeout=60)
        first, second, *_ = sorted((store.directory / "commitlog").iterdir())
        seen = []

        def look() -> None:
            found = store.get("orders", 0, 0)
            low = found.next_queue_offset
            assert found.status is GetMessageStatus.OFFSET_TOO_SMALL
            assert [record.queue_offset for record in store.get("orders", 0, low)] == list(range(low, 20))
            assert [record.queue_offset for record in store.query("orders", "k")] == list(range(low, 20))
            assert store.query("orders", f"k{low - 1}") == []
            seen.append(low)

        remove = store._engine.writer.files.remove

        def remove_looked_at(path: Path) -> None:
            look()
            remove(path)
            look()

        with monkeypatch.context() as patch:
            patch.setattr(store._engine.writer.files, "remove", remove_looked_at)
            store._engine.writer.trim(first, int(second.name))
        look()
        assert seen[0] > 0
        assert len(set(seen)) == 1


@pytest.mark.parametrize("is_open", [True, False])
def test_a_segment_that_somebody_else_removes_leaves_no_hole(tmp_path, is_open):
    """A reader that had it open may still read it; others get the queue's new begin."""
    with open_small(tmp_path) as store:
        first, second, *_ = fill_segments(store)
        store.get("orders", 0, 0, 1)
        if not is_open:
            store._engine.reader.store.files.forget()
        first.unlink()
        found = store.get("orders", 0, 0, 10)
        if is_open:
            assert [record.queue_offset for record in found.records] == list(range(10))
        else:
            assert found.status is GetMessageStatus.OFFSET_TOO_SMALL
        store._engine.writer.commit_log_offset_min = int(second.name)
        assert store.get("orders", 0, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL


@pytest.mark.parametrize("asked", ["key", "time"])
def test_a_segment_that_goes_in_the_middle_of_a_query_takes_its_messages_along(tmp_path, asked):
    """By key, the remaining messages are found; by time, the position of the message is the answer."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=4096) as store:
        for _ in range(9):
            last = store.put(reput.Message("orders", bytes(1000), keys=["k"]))
        for view in ("consume_queue", "index"):
            store.wait_for(view, last.next_commit_log_offset, timeout=60)
        first, second, *_ = sorted((store.directory / "commitlog").iterdir())
        # A reader that checks before it reads has checked by now.
        assert store._engine.reader.store.log().offset_min == 0
        first.unlink()
        if asked == "key":
            assert store.query("orders", "k")[0].commit_log_offset == int(second.name)
        else:
            assert store._engine.reader.offset_by_time("orders", 0, 0) == 0


@pytest.mark.parametrize("gone", [1, 2])
def test_a_queue_file_that_goes_while_files_are_looked_at_is_left_out(tmp_path, monkeypatch, gone):
    """A message is still found by its time, like with RocketMQ 4."""
    path = tmp_path / "store"
    with reput.open(path, mode="inline", dispatchers=["consume_queue"], mapped_file_size_consume_queue=40) as store:
        for _ in range(6):
            last = store.put(reput.Message("orders", b"x"))
    begins, removed = ConsumeQueue.begins, []

    def list_and_remove(queue: ConsumeQueue) -> list[int]:
        found = begins(queue)
        if not removed:
            removed.extend(queue.directory / f"{begin:020d}" for begin in found[:gone])
            for file in removed:
                file.unlink()
        return found

    with reput.open(path, read_only=True, mapped_file_size_consume_queue=40) as store:
        store.queue_range("orders")
        monkeypatch.setattr(ConsumeQueue, "begins", list_and_remove)
        nearest = store._engine.reader.offset_by_time(
            "orders", 0, last.store_timestamp + 3_600_000, BoundaryType.NEAREST
        )
        assert nearest == 5


def test_a_log_that_could_not_be_listed_is_listed_again(tmp_path, monkeypatch):
    """The old list is not used instead of the current files."""
    with open_small(tmp_path) as store:
        first, second, *_ = fill_segments(store)
    with reput.open(tmp_path / "store", read_only=True) as opened:
        assert opened._engine.reader.store.log().offset_min == 0
        first.unlink()
        # Old enough for the directory's time to be trusted.
        os.utime(first.parent, ns=(0, time.time_ns() - 10**10))

        def no_more_files(path: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        with monkeypatch.context() as refused:
            refused.setattr(os, "scandir", no_more_files)
            with pytest.raises(StoreError, match="Too many open files"):
                opened._engine.reader.store.log()
        assert opened._engine.reader.store.log().offset_min == int(second.name)


def test_an_id_that_names_no_record_costs_no_more_than_one_that_does(tmp_path, monkeypatch):
    """In the middle of a record there are sizes up to that of the segment, which would be read as a whole."""
    sizes: list[int] = []
    read = OpenFiles.read

    def note(files: OpenFiles, path: str, size: int, at: int) -> bytes:
        sizes.append(size)
        return read(files, path, size, at)

    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=1 << 26) as store:
        for number in range(10):
            result = store.put(reput.Message("orders", bytes(5000), properties={"number": str(number)}))
        store.wait_for("index", store.appended, timeout=60)
        monkeypatch.setattr(OpenFiles, "read", note)
        # A record that is larger than the first read is read completely.
        assert store.query("orders", result.message_id)[0].body == bytes(5000)
        assert max(sizes) == result.record_size
        for at in range(1, 120):
            assert not store.query("orders", f"{result.message_id[:-16]}{at:016X}")
        assert max(sizes) == result.record_size


@pytest.mark.parametrize("host", ["127.0.0.1:10911", "[::1]:10911"])
def test_a_message_is_found_by_the_id_that_the_store_gave_it(tmp_path, host):
    """In its topic only, within the requested times; other text in the form of an id finds nothing."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=4096, store_host=host) as store:
        results = [store.put(reput.Message("orders", bytes(1500), keys=["k"])) for _ in range(4)]
        store.wait_for("consume_queue", store.appended, timeout=60)
        store.wait_for("index", store.appended, timeout=60)
        for result in results:
            (found,) = store.query("orders", result.message_id)
            assert found.commit_log_offset == result.commit_log_offset
        result = results[1]
        assert not store.query("others", result.message_id)
        assert not store.query("orders", result.message_id, end=result.store_timestamp - 1)
        assert not store.query("orders", result.message_id, 0)
        head = result.message_id[:-16]
        for offset in (1, result.commit_log_offset + 1, 4095, store.appended, 1 << 62, (1 << 64) - 1):
            assert not store.query("orders", f"{head}{offset:016X}")
        assert not store.query("orders", f"{'0' * len(head)}{result.commit_log_offset:016X}")
        assert not store.query("orders", result.message_id[:-1])
        assert store.query("orders", result.message_id.lower()) == store.query("orders", result.message_id)


@pytest.mark.parametrize(
    ("shift", "what"), [(8, "an entry leads to no record"), (None, "an entry leads to a record of other keys")]
)
def test_an_entry_of_the_index_that_leads_elsewhere_is_named(tmp_path, shift, what):
    """A message is not missing because its entry was changed, and the log is not reported as damaged."""
    sizes = {"max_hash_slot_num": 5, "max_index_num": 24, "mapped_file_size_commit_log": 4096}
    with reput.open(tmp_path / "store", mode="inline", **sizes) as store:
        puts = [store.put(reput.Message("orders", b"body", keys=[key])) for key in ("a", "b", "c")]
        store.wait_for("index", store.appended, timeout=60)
    (path,) = (tmp_path / "store" / "index").iterdir()
    data = bytearray(path.read_bytes())
    at = HEADER.size + SLOT.size * 5 + ENTRY.size * 2
    offset = puts[0].commit_log_offset if shift is None else puts[1].commit_log_offset + shift
    data[at + 4 : at + 12] = offset.to_bytes(8, "big")
    path.write_bytes(data)
    with reput.open(tmp_path / "store", read_only=True, **sizes) as store:
        with pytest.raises(DamagedStore, match=f"the index is damaged: topic=orders: {what}") as error:
            store.query("orders", "b")
        assert error.value.place is None
        assert "reput rebuild STORE index" in error.value.advice
        assert len(store.query("orders", "a")) == len(store.query("orders", "c")) == 1


def test_the_end_of_a_queue_of_large_messages_is_found_without_their_bodies(tmp_path, monkeypatch):
    """The first get of such a queue costs the same as with small messages, plus the one message."""
    size = 300_000
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=1 << 24) as store:
        for _ in range(16):
            store.put(reput.Message("orders", bytes(size)))
        store.wait_for("consume_queue", store.appended, timeout=60)
    read, sizes = OpenFiles.read, []

    def recorded(self, path, size, at):
        sizes.append(size)
        return read(self, path, size, at)

    monkeypatch.setattr(OpenFiles, "read", recorded)
    with reput.open(tmp_path / "store", read_only=True) as store:
        assert len(store.get("orders", 0, 3, 1)) == 1
        assert sum(sizes) < 2 * size
        assert store.queue_range("orders") == (0, 16)
