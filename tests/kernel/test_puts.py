"""The kernel's puts give the same bytes, frames, results and errors as the Python path."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.errors import StoreError
from reput.kernel import VARIABLE, Kernel
from reput.process.frames.held_records import HeldRecords
from reput.process.frames.holding_publisher import HoldingPublisher
from reput.ring import RingMemory, RingReader, RingWriter
from reput.store.message_store import MessageStore
from reput.store.record.layout import MESSAGE_MAGIC_CODE, SIZE_AND_MAGIC
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.writer.appender import Appender
from reput.store.writer.publisher import AppendedRecords
from reput.store.writer.topic_table import Topic
from small_store import ManualClock, UnforcedFiles, log_bytes, small_settings
from twin_stores import TwinStores, outcome_of

# Texts of any kind, and those that most messages have.
WORD = st.text("abcXYZ019_-", min_size=1, max_size=12)
TEXT = st.one_of(WORD, st.text(max_size=8), st.sampled_from(["", " ", "a b", "a||b", "\x02", "\x00", "ключ", "\ud800"]))
KEYS = st.one_of(
    st.none(),
    TEXT,
    st.lists(WORD, max_size=4),
    st.lists(TEXT, max_size=3).map(tuple),
    st.sampled_from([7, [7], [None]]),
)
NUMBERS = st.one_of(st.just(0), st.integers(0, 5), st.sampled_from([-1, 2**31 - 1, 2**31, -(2**31), True, "0", 1.0]))
PLAIN = st.builds(
    Message,
    topic=st.sampled_from(["orders", "spread", "T" * 127]),
    body=st.binary(max_size=300),
    tags=st.one_of(st.none(), st.sampled_from(["TagA", "grün"])),
    keys=st.one_of(st.none(), WORD, st.lists(WORD, min_size=1, max_size=3)),
    flag=st.integers(-5, 5),
    queue_id=st.one_of(st.none(), st.integers(0, 3)),
)
ANY = st.builds(
    Message,
    topic=st.one_of(st.sampled_from(["orders", "spread", "%RETRY%" + "r" * 200, "a/b", "", 5]), WORD),
    body=st.one_of(st.binary(max_size=3000), st.binary(max_size=40).map(bytearray), st.just("text"), st.none()),
    tags=st.one_of(st.none(), TEXT, st.just(5)),
    keys=KEYS,
    properties=st.one_of(st.none(), st.just({}), st.dictionaries(TEXT, TEXT, max_size=3), st.just([])),
    flag=NUMBERS,
    queue_id=st.one_of(st.none(), NUMBERS),
    delay_level=st.one_of(st.just(0), NUMBERS),
    sharding_key=st.one_of(st.none(), TEXT),
)
MESSAGE = st.one_of(PLAIN, PLAIN, ANY)
BATCH = st.one_of(st.lists(PLAIN, max_size=12), st.lists(MESSAGE, max_size=6))
# One message, a batch, or the messages of an event loop's tasks.
PUT = st.tuples(st.integers(-1, 2), st.one_of(MESSAGE, BATCH, BATCH.map(tuple)))


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@given(
    st.lists(PUT, min_size=1, max_size=25),
    st.sampled_from([4096, 16384]),
    st.sampled_from([1000, 65536]),
    st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"]),
)
def test_any_puts_give_the_same_bytes_results_and_errors(
    required_kernel: Kernel, puts: list[tuple[int, Any]], segment_size: int, max_message_size: int, flush: str
) -> None:
    """Whatever a program puts, the log, the frames, the results and the errors do not tell which way it went."""
    with tempfile.TemporaryDirectory() as directory:
        twins = TwinStores(
            Path(directory),
            mapped_file_size_commit_log=segment_size,
            max_message_size=max_message_size,
            flush_disk_type=flush,
        )
        for ticks, put in puts:
            twins.clock.ms += ticks
            if isinstance(put, list):
                twins.both(lambda store, batch=put: store.appender.append_batch(list(batch)))
            elif isinstance(put, tuple):
                twins.both(lambda store, messages=put: put_each(store, messages))
            else:
                twins.both(lambda store, message=put: store.appender.append(message))
        twins.close()


def put_each(store: MessageStore, messages: Sequence[Message]) -> list[Any]:
    """Put messages as the tasks of an event loop do, and return what each task gets."""
    outcomes, admitted = [], []
    for message in messages:
        outcome = outcome_of(lambda store, message=message: store.appender.admit(message), store)
        if isinstance(outcome[0], Message):
            admitted.append(outcome)
        else:
            outcomes.append(outcome)
    if not admitted:
        return outcomes
    stored = store.appender.append_each([message for message, _ in admitted], [prepared for _, prepared in admitted])
    return [*outcomes, *[str(outcome) if isinstance(outcome, StoreError) else outcome for outcome in stored]]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_plain_puts_go_through_the_kernel(required_kernel: Kernel, tmp_path: Path, flush: str) -> None:
    """Once the writer has met a topic and its tags, each plain message that fits its segment is put by the kernel."""
    twins = TwinStores(tmp_path, mapped_file_size_commit_log=1 << 20, flush_disk_type=flush)
    messages = [
        Message("orders", b"body", tags="TagA", keys=["key"]),
        Message("orders", b"", keys="two keys"),
        Message("spread", b"body"),
        Message("orders", b"body", tags="grün", keys=("ключ",), flag=7, queue_id=5),
    ]
    for message in messages:
        twins.both(lambda store, message=message: store.appender.append(message))
    before = required_kernel.counts()
    for message in messages:
        twins.both(lambda store, message=message: store.appender.append(message))
    twins.both(lambda store: store.appender.append_batch(messages))
    twins.both(lambda store: put_each(store, messages))
    after = required_kernel.counts()
    twins.close()
    for way in ("put", "put_batch", "put_each"):
        assert after[way] - before[way] == len(messages)


def test_a_task_keeps_its_queue_when_its_put_takes_the_python_path(required_kernel: Kernel, tmp_path: Path) -> None:
    """One of the messages that tasks put together is not plain: all go to the queues whose turn it was, in order."""
    twins = TwinStores(tmp_path, mapped_file_size_commit_log=1 << 20, flush_disk_type="SYNC_FLUSH")
    plain = Message("spread", b"body")
    before = required_kernel.counts()
    stored: list[PutMessageResult] = []
    for messages in ([plain], [plain, plain, Message("spread", b"", properties={"a": "b"}), plain], [plain]):
        stored += twins.both(lambda store, messages=messages: put_each(store, messages))
    assert required_kernel.counts()["put_each"] - before["put_each"] == 1
    assert [result.queue_id for result in stored] == [0, 1, 2, 0, 1, 2]
    twins.close()


def test_puts_to_disk_are_written_as_the_python_path_writes_them(required_kernel: Kernel, tmp_path: Path) -> None:
    """What the kernel gathers is in the files when its puts return."""
    logs = []
    for mode in ("require", "off"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, mode)
            settings = small_settings(mapped_file_size_commit_log=1 << 16, flush_disk_type="SYNC_FLUSH")
            store = MessageStore(tmp_path / mode, settings, clock=ManualClock())
        for number in range(20):
            store.put(Message("orders", b"body" * number, tags="TagA", keys=f"key-{number}"))
        store.put_batch([Message("orders", b"body", tags="TagA")] * 3)
        assert store.durable == store.appended
        logs.append(log_bytes(store.directory))
        store.close(views_complete=False)
    assert logs[0] == logs[1]
    assert logs[0].count(b"body" * 19) == 1


class CountedPublisher(HoldingPublisher):
    """Counts the calls that reach Python."""

    calls = 0

    def publish(self, records: AppendedRecords) -> None:
        self.calls += 1
        super().publish(records)


def test_the_kernel_holds_single_puts_for_the_same_frames(required_kernel: Kernel, tmp_path: Path) -> None:
    """After each put the readers of both rings have the same, and as many records wait for the next ones."""
    segment_size = 4096
    twins = TwinStores(tmp_path, mapped_file_size_commit_log=segment_size)
    queues = [Message("orders", b"body", tags="TagA", keys=["key"], queue_id=queue_id) for queue_id in (0, 1, 2, 1)]
    for message in queues:
        twins.both(lambda store, message=message: store.put(message))
    publishers: list[CountedPublisher] = []
    readers: list[RingReader] = []
    with contextlib.ExitStack() as opened:
        for store in twins.stores:
            memory = RingMemory.create(1 << 16, 4)
            opened.callback(memory.close)
            ring = RingWriter(memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)
            readers.append(RingReader(memory, memory.open_cell(1)))
            publishers.append(CountedPublisher(ring, 1, lambda reason: None, lambda: None, segment_size))
            store.attach(publishers[-1], needs_properties=False)
        publishers[1].held = HeldRecords(segment_size)
        for number in range(120):
            # Another millisecond, a batch, and a record that was not published come between.
            twins.clock.ms += number % 23 == 22
            if number % 31 == 30:
                twins.both(lambda store: store.put_batch([queues[0], queues[1]]))
            elif number == 40:
                for publisher in publishers:
                    publisher.held.end -= 1
            else:
                message = queues[number // 5 % len(queues)]
                twins.both(lambda store, message=message: store.put(message))
            frames = [reader.read() for reader in readers]
            assert frames[0] == frames[1]
            held = [(publisher.held.pieces() if publisher.held else [], publisher.held.end) for publisher in publishers]
            assert held[0] == held[1]
        assert twins.stores[0].appended > 3 * segment_size
        twins.close()
    by_kernel, by_python = (publisher.calls for publisher in publishers)
    assert by_kernel < by_python / 3


def test_the_kernel_publishes_what_it_holds_for_a_reader_that_parks(required_kernel: Kernel, tmp_path: Path) -> None:
    """With the next record if nothing is held, at the next look otherwise."""
    settings = small_settings(mapped_file_size_commit_log=1 << 20)
    store = MessageStore(tmp_path / "store", settings, files=UnforcedFiles(), clock=ManualClock())
    message = Message("orders", b"body", tags="TagA")
    store.put(message)
    memory = RingMemory.create(1 << 16, 4)
    cell = memory.open_cell(1)
    ring = RingWriter(memory, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)
    publisher = CountedPublisher(ring, 1, lambda reason: None, lambda: None, 1 << 20)
    store.attach(publisher, needs_properties=False)
    for _ in range(3):
        store.put(message)
    assert len(publisher.held) == 2
    cell.begin_parking(frames=True, durable=None, predecessors=0, progress=0)
    store.put(message)
    assert len(publisher.held) == 3
    store.put(message)
    assert (len(publisher.held), memory.header.appended) == (0, store.appended)
    cell.end_parking()
    cell.begin_parking(frames=True, durable=None, predecessors=0, progress=0)
    store.put(message)
    assert (len(publisher.held), memory.header.appended) == (0, store.appended)
    assert publisher.calls == 2
    cell.end_parking()
    store.close(views_complete=False)
    memory.close()


def test_a_batch_that_is_cut_off_leaves_nothing_that_looks_like_a_record(
    required_kernel: Kernel, tmp_path: Path
) -> None:
    """Whenever the process is killed in a batch, the next opening finds the end of the log, and no damage behind it."""
    store = MessageStore(tmp_path / "store", small_settings(mapped_file_size_commit_log=1 << 20), files=UnforcedFiles())
    message = Message("orders", b"body", tags="TagA")
    first, second = store.put(message), store.put(message)
    size = second.commit_log_offset - first.commit_log_offset
    made: list[int] = []

    def result_or_end(*fields: Any) -> None:
        made.append(fields[1])
        if len(made) == 3:
            raise KeyboardInterrupt

    appender = store.appender
    appender.kernel = required_kernel.KernelPuts(
        appender, Message, Topic, result_or_end, AppendedRecords, PutMessageStatus.PUT_OK, StoreError, None
    )
    with pytest.raises(KeyboardInterrupt):
        store.put_batch([message] * 4)
    memory = store.commit_log.memory
    assert made == [store.appended + number * size for number in range(3)]
    for at in made:
        assert bytes(memory[at : at + 8]) == SIZE_AND_MAGIC.pack(0, MESSAGE_MAGIC_CODE)
    store.close(views_complete=False)


def test_an_object_whose_class_has_changed_is_refused(required_kernel: Kernel, tmp_path: Path) -> None:
    """The kernel reads attributes where the class it knows has them: objects of another one may have others there."""

    class Other(Appender):
        __slots__ = ()

    store = MessageStore(tmp_path / "store", small_settings(), files=UnforcedFiles())
    first = store.put(Message("orders", b"body"))
    store.appender.__class__ = Other
    with pytest.raises(TypeError, match="the object is not of the class"):
        store.put(Message("orders", b"body"))
    store.appender.__class__ = Appender
    assert store.put(Message("orders", b"body")).commit_log_offset == first.next_commit_log_offset
    store.close(views_complete=False)


def test_a_class_without_the_slots_is_refused(required_kernel: Kernel, tmp_path: Path) -> None:
    """The two sides name the same attributes, or the store is not opened."""
    store = MessageStore(tmp_path / "store", small_settings(), files=UnforcedFiles())
    with pytest.raises(TypeError, match="the class has no such slot"):
        required_kernel.KernelPuts(
            store.appender,
            Message,
            object,
            PutMessageResult,
            AppendedRecords,
            PutMessageStatus.PUT_OK,
            StoreError,
            None,
        )
    store.close(views_complete=False)
