"""Consume queues and index: the kernel gives the same bytes, states and errors as the Python path."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.kernel import VARIABLE, Kernel
from reput.store.index.index_builder import IndexBuilder, IndexState
from reput.store.index.index_layout import IndexHeader
from reput.store.queue.consume_queue_builder import ConsumeQueueBuilder
from reput_hooks import Cursor, DispatchBatch, DispatchColumns
from reput_hooks.dispatch import ROW, ROW_SIZE
from small_store import ManualClock, UnforcedFiles

KEY = st.one_of(
    st.sampled_from([b"k1", b"k2", b"order-7", b"\xff", b"\xed\xa0\x80", "ключ😀".encode()]), st.binary(max_size=6)
)
ROW_TEXTS = st.tuples(
    st.one_of(st.none(), KEY),
    st.one_of(st.none(), st.lists(KEY, max_size=3).map(b" ".join)),
    st.none(),
    st.one_of(st.none(), st.none(), st.binary(max_size=5)),
    st.one_of(st.just(b""), st.just(b"TagA"), KEY),
)
TOPIC = st.sampled_from(["orders", "T" * 127, "zahlung-ü", "a/b"])
QUEUE = st.tuples(TOPIC, st.integers(0, 3))
STEP = st.one_of(st.just(1), st.just(1), st.just(1), st.sampled_from([0, 2, 40, -1, 6_000_000]))
# Texts, queue, step of the queue offset, step of the store time, sys_flag, tags code.
RECORD = st.tuples(
    ROW_TEXTS,
    QUEUE,
    STEP,
    st.sampled_from([0, 0, 1, 999, 5000, -3000]),
    st.sampled_from([0, 0, 0, 0, 4, 8, 12, 0x80]),
    st.sampled_from([0, 2598919, -7, 2**40]),
)
PART = st.lists(RECORD, max_size=12)
BATCHES = st.lists(st.lists(PART, min_size=1, max_size=3), min_size=1, max_size=6)
NAMES = ("off", "require")


class Rows:
    """Makes batches that follow each other."""

    def __init__(self, timestamp: int) -> None:
        self.timestamp = timestamp
        self.end = 0
        self.queue_offsets: dict[tuple[str, int], int] = {}

    def batch(self, parts: Sequence[Sequence[Any]]) -> DispatchBatch:
        """Return the batch of the records in *parts*."""
        begin = self.end
        columns = [self.columns(part) for part in parts]
        return DispatchBatch(begin, Cursor("store", 1, self.end, self.timestamp), columns)

    def columns(self, records: Sequence[Any]) -> DispatchColumns:
        queues: dict[tuple[str, int], int] = {}
        rows, all_texts = b"", b""
        for texts, queue, step, ms, sys_flag, tags_code in records:
            index = queues.setdefault(queue, len(queues))
            queue_offset = self.queue_offsets.get(queue, 3) + step
            if sys_flag & 4:
                queue_offset = 0
            else:
                self.queue_offsets[queue] = queue_offset
            self.timestamp += ms
            sizes = [-1 if text is None else len(text) for text in texts[:4]]
            joined = b"".join(text for text in texts if text)
            rows += ROW.pack(
                self.end, queue_offset, tags_code, self.timestamp, 0, 200, index, sys_flag, len(joined), *sizes
            )
            all_texts += joined
            self.end += 200
        return DispatchColumns(list(queues), rows, all_texts)


def outcome_of(put: Callable[[DispatchBatch], None], batch: DispatchBatch) -> Any:
    """Return None, or the error as text."""
    try:
        put(batch)
    except Exception as error:
        return type(error), str(error)
    return None


def files_in(directory: Path) -> dict[str, bytes]:
    """Return the bytes of all files below *directory*."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def twin_builders(make: Callable[[str], Any]) -> list[Any]:
    """Return a builder that takes the Python path, and one that uses the kernel."""
    builders = []
    for name in NAMES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, name)
            builders.append(make(name))
    assert [builder.kernel is not None for builder in builders] == [False, True]
    return builders


def twin_indexes(directory: Path, *, with_tags: bool) -> list[IndexBuilder]:
    """Return two builders of small index files, whose slots collide."""

    def make(name: str) -> IndexBuilder:
        builder = IndexBuilder(directory / name, 7, 20, with_tags=with_tags, files=UnforcedFiles(), clock=ManualClock())
        builder.restore(IndexState([], IndexHeader()))
        return builder

    return twin_builders(make)


def twin_queues(directory: Path, refused: dict[str, list[Any]]) -> list[ConsumeQueueBuilder]:
    """Return two builders of queues with small files; *refused* gets what they refuse."""

    def make(name: str) -> ConsumeQueueBuilder:
        builder = ConsumeQueueBuilder(
            directory / name,
            20 * 16,
            files=UnforcedFiles(),
            refuse=lambda offset, reason: refused.setdefault(name, []).append((offset, reason)),
            has_batch_queue=lambda topic: topic == "T" * 127,
            recreated_at={("orders", 1): 1000},
        )
        builder.restore({})
        return builder

    return twin_builders(make)


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@given(BATCHES, st.booleans(), st.sampled_from([0, -5000, 1_600_000_000_000]))
def test_any_batches_give_the_same_index_files(
    required_kernel: Kernel, batches: list[Any], with_tags: bool, timestamp: int
) -> None:
    """Whatever keys, tags and times the records have, and wherever a file is full."""
    rows = Rows(timestamp)
    with tempfile.TemporaryDirectory() as directory:
        builders = twin_indexes(Path(directory), with_tags=with_tags)
        for parts in batches:
            batch = rows.batch(parts)
            outcomes = [outcome_of(builder.put, batch) for builder in builders]
            assert outcomes[0] == outcomes[1]
            assert builders[0].state() == builders[1].state()
        for builder in builders:
            builder.close()
        files = [files_in(Path(directory, name)) for name in NAMES]
        assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@given(BATCHES)
def test_any_batches_give_the_same_queue_files(required_kernel: Kernel, batches: list[Any]) -> None:
    """Whatever queues the records are in, with gaps, repetitions, half messages and topics that have no queue."""
    rows, refused = Rows(1_600_000_000_000), {}
    with tempfile.TemporaryDirectory() as directory:
        builders = twin_queues(Path(directory), refused)
        for parts in batches:
            batch = rows.batch(parts)
            outcomes = [outcome_of(builder.put, batch) for builder in builders]
            assert outcomes[0] == outcomes[1]
            ends = [
                {name: (queue.begin, queue.known(), queue.dirty) for name, queue in builder.queues.items()}
                for builder in builders
            ]
            assert ends[0] == ends[1]
            assert builders[0].left_alone_count == builders[1].left_alone_count
            lists = [sorted(refused.get(name, [])) for name in NAMES]
            assert lists[0] == lists[1]
        for builder in builders:
            builder.close()
        files = [files_in(Path(directory, name)) for name in NAMES]
        assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=50)
@given(st.lists(PART, min_size=1, max_size=2), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6))
def test_damaged_rows_do_no_harm(required_kernel: Kernel, parts: list[Any], damage: list[tuple[int, int]]) -> None:
    """Bytes that are no rows never crash the process. What the kernel takes in gives what the Python path gives."""
    rows = Rows(1_600_000_000_000)
    batch = rows.batch(parts)
    columns = batch.parts[0]
    data = bytearray(columns.rows)
    for at, byte in damage:
        if data:
            data[at % len(data)] = byte
    cut = bytes(data[: len(data) - (damage[0][1] % 3 if damage else 0)])
    damaged = DispatchBatch(0, batch.end, [DispatchColumns(columns.queues, cut, columns.texts), *batch.parts[1:]])
    found = required_kernel.index_keys(damaged.parts, True), required_kernel.queue_units(damaged.parts)
    if len(cut) % ROW_SIZE:
        assert found == (None, None)
    if found[0] is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        builders = twin_indexes(Path(directory), with_tags=True)
        outcomes = [outcome_of(builder.put, damaged) for builder in builders]
        for builder in builders:
            builder.close()
        assert outcomes[0] == outcomes[1]
        assert files_in(Path(directory, "off")) == files_in(Path(directory, "require"))


def test_batches_go_through_the_kernel(required_kernel: Kernel, tmp_path: Path) -> None:
    """Each record of plain batches is counted; a record that stands in further queues takes the Python path."""
    record = ((b"u1", b"k1 k2", None, None, b"TagA"), ("orders", 0), 1, 1, 0, 7)
    further = ((None, b"k", b"other\x021", None, b""), ("orders", 0), 1, 1, 0, 7)
    rows, refused = Rows(1_600_000_000_000), {}
    index, queues = twin_indexes(tmp_path / "index", with_tags=True)[1], twin_queues(tmp_path / "queues", refused)[1]
    before = required_kernel.counts()
    for parts in ([[record] * 5], [[record] * 3, [further]]):
        batch = rows.batch(parts)
        index.put(batch)
        queues.put(batch)
    after = required_kernel.counts()
    for builder in (index, queues):
        builder.close()
    assert after["index"] - before["index"] == 9
    assert after["consume_queue"] - before["consume_queue"] == 5


def test_keys_that_do_not_fit_the_file_are_refused(required_kernel: Kernel, tmp_path: Path) -> None:
    """The kernel writes nothing beyond a mapped file, whatever it is told."""
    keys = bytes(20 * 4)
    memory = memoryview(bytearray(40 + 4 * 7 + 20 * 20))
    for slots, entries, first, count, index_count in (
        (7, 20, 0, 4, 17),
        (7, 4, 0, 4, 1),
        (0, 20, 0, 1, 1),
        (7, 20, 3, 2, 1),
        (7, 20, 2**63, 2, 1),
        (7, 20, 0, 1, -1),
        (8, 20, 0, 1, 1),
        (2**32 - 1, 2**32 - 1, 0, 1, 2**31 - 1),
    ):
        header = IndexHeader(index_count=index_count)
        with pytest.raises(ValueError, match="keys"):
            required_kernel.put_index_keys(memory, slots, entries, header, keys, first, count)
        assert header == IndexHeader(index_count=index_count)
    assert not any(memory)
