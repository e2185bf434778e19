"""Reads of consume queues: the kernel gives the same records, statuses and errors as the Python path."""

from __future__ import annotations

import copy
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reput
from cached_reads import require_cached_reads
from reput.errors import ReputError
from reput.filter import TagMessageFilter
from reput.filter.tags import parse_tags
from reput.kernel import Kernel
from reput.settings import Settings
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import KernelRecords, TransferLimits
from reput.store.record.message import Message
from reput.store.record.sent_record import decode_sent_fields
from small_store import small_settings

SEGMENT_SIZE = 16384
SETTINGS: dict[str, Any] = {"mapped_file_size_commit_log": SEGMENT_SIZE, "mapped_file_size_consume_queue": 20 * 32}
QUEUES = [("orders", 0), ("orders", 1), ("T" * 127, 0), ("absent", 0)]
# Every seventh message of the store has the first of these tags, some others have the second.
FILTERS = [None, "*", "TagA", "TagB", "TagA || TagB", "TagC"]
# As a broker's: bytes and number of what is handed out at once, and how near to the log's end a record is in memory.
LIMITS = [None, (262144, 32, 1 << 40), (1500, 32, 1 << 40), (0, 2, 1 << 40), (262144, 3, 40_000)]
GET = st.tuples(
    st.sampled_from(QUEUES),
    st.integers(-1, 140),
    st.sampled_from([0, 1, 1, 3, 32, 200]),
    st.sampled_from(FILTERS),
    st.sampled_from(LIMITS),
)
# Which of the files, the place in its used part in millionths, the byte.
DAMAGE = st.tuples(st.integers(0, 20), st.integers(0, 999_999), st.integers(0, 255))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A closed store with records of many sizes in several segments, and where its log ends."""
    directory = tmp_path_factory.mktemp("reads") / "store"
    with reput.open(directory, mode="inline", **SETTINGS) as store:
        for number in range(250):
            topic, queue_id = QUEUES[0 if number < 90 else number % 3]
            tags = "TagA" if number % 7 == 0 else "TagB" if number % 5 == 0 else None
            store.put(Message(topic, bytes([number]) * (number * 37 % 900), tags=tags, queue_id=queue_id, keys=["k"]))
        store.wait_for("consume_queue", store.appended)
        end = store.appended
    return directory, end


def twin_readers(directory: Path, end: int, own_from: int, kernel: Kernel) -> list[MessageReader]:
    """Return a reader that takes the Python path, and one that uses the kernel."""
    readers = []
    for used in (None, kernel):
        store = ReadableStore(directory, small_settings(**SETTINGS), lambda view: end, own_from=own_from, at_rest=True)
        store.kernel = used
        readers.append(MessageReader(store))
    return readers


def outcome_of(reader: MessageReader, get: Any) -> Any:
    """Return everything that a get says, or its error as text."""
    (topic, queue_id), queue_offset, count_max, tags, limits = get
    message_filter = None if tags is None else TagMessageFilter(parse_tags(tags))
    transfer = None
    if limits is not None:
        bytes_max, number_max, memory_size = limits
        transfer = TransferLimits(bytes_max, number_max, bytes_max // 2, max(number_max // 2, 1), memory_size)
    try:
        found = reader.get_message(
            topic, queue_id, queue_offset, count_max, message_filter=message_filter, limits=transfer
        )
    except ReputError as error:
        return type(error), str(error)
    records = list(found)
    return (
        found.status,
        (found.next_queue_offset, found.queue_offset_min, found.queue_offset_max),
        found.records.data,
        records,
        [record.__reduce__() for record in records],
        list(found.records.with_queue_offsets()),
        found.records[-1:],
    )


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=15)
# A record whose size is negative.
@example([(("orders", 0), 63, 1, None, None)], [(2, 0, 128)], 0)
@given(
    st.lists(GET, min_size=1, max_size=12), st.lists(DAMAGE, max_size=3), st.sampled_from([0, 20_000, (1 << 63) - 1])
)
def test_any_gets_give_the_same_records_and_errors(
    required_kernel: Kernel, written: tuple[Path, int], gets: list[Any], damages: list[Any], own_from: int
) -> None:
    """Wherever a read begins, and whatever bytes of the log or of a queue are damaged."""
    source, end = written
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "store")
        shutil.copytree(source, directory)
        files = sorted((directory / "commitlog").iterdir()) + sorted((directory / "consumequeue").rglob("0*0"))
        for number, place, byte in damages:
            data = bytearray(files[number % len(files)].read_bytes())
            used = len(data.rstrip(b"\0"))
            if used:
                data[place * used // 1_000_000] = byte
                files[number % len(files)].write_bytes(data)
        readers = twin_readers(directory, end, own_from, required_kernel)
        for get in gets:
            outcomes = [outcome_of(reader, get) for reader in readers]
            assert outcomes[0] == outcomes[1]
        for reader in readers:
            reader.close()


def test_plain_reads_go_through_the_kernel(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """Records in the page cache, once their files are open. A get across two queue files takes the Python path."""
    directory, end = written
    require_cached_reads(directory)
    reader = twin_readers(directory, end, 0, required_kernel)[1]
    # The first read opens the files. While the directory's last change is only moments old, each read opens them again.
    while not isinstance(reader.get_message("orders", 0, 40, 24).records, KernelRecords):
        pass
    reader.get_message("orders", 0, 7, 1)
    before = required_kernel.counts()["read"]
    assert isinstance(reader.get_message("orders", 0, 40, 20).records, KernelRecords)
    assert isinstance(reader.get_message("orders", 0, 7, 1).records, KernelRecords)
    assert required_kernel.counts()["read"] - before == 21
    # As a broker reads for its clients: all messages, or those with a tag.
    for message_filter, count in ((None, 24), (TagMessageFilter(parse_tags("TagA")), 4)):
        found = reader.get_message(
            "orders", 0, 40, 32, message_filter=message_filter, limits=TransferLimits.of(Settings())
        )
        assert (len(found), found.next_queue_offset) == (count, 64)
        assert isinstance(found.records, KernelRecords)
    assert required_kernel.counts()["read"] - before == 49
    assert len(reader.get_message("orders", 0, 20, 20)) == 20
    assert required_kernel.counts()["read"] - before == 49
    reader.close()


def test_results_are_copied_and_pickled(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """A result of the kernel can be sent to another process, and stored, as one of the Python path."""
    directory, end = written
    require_cached_reads(directory)
    python, compiled = twin_readers(directory, end, 0, required_kernel)
    expected = python.get_message("orders", 0, 40, 20)
    while not isinstance((found := compiled.get_message("orders", 0, 40, 20)).records, KernelRecords):
        pass
    for other in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert other == expected
        assert other.records.data == expected.records.data
        assert list(other.records.with_queue_offsets()) == list(expected.records.with_queue_offsets())
    python.close()
    compiled.close()


def test_files_that_are_closed_are_opened_again(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """The kernel reads files that are open; the Python path opens them."""
    directory, end = written
    reader = twin_readers(directory, end, 0, required_kernel)[1]
    found = reader.get_message("orders", 0, 3, 20)
    reader.store.files.close()
    assert reader.get_message("orders", 0, 3, 20) == found
    reader.close()


def test_odd_arguments_are_no_reads(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """Places and counts that no file has, and descriptors of nothing, give None or an error, never a crash."""
    directory, _ = written
    path = str(next((directory / "consumequeue" / "orders" / "0").iterdir()))
    with open(path, "rb") as file:
        for descriptors, at, count in (
            ({}, 0, 1),
            ({path: -1}, 0, 1),
            ({path: file.fileno()}, -20, 1),
            ({path: file.fileno()}, 1 << 62, 1),
            ({path: file.fileno()}, 0, 1 << 60),
            ({path: file.fileno()}, 7, 3),
            ({path: file.fileno()}, 0, 3),
        ):
            for codes, bytes_max in ((None, 0), (frozenset({1 << 62, -1}), sys.maxsize)):
                arguments = (
                    descriptors,
                    path,
                    at,
                    count,
                    0,
                    codes,
                    9,
                    bytes_max,
                    0,
                    0,
                    0,
                    b"\x06orders",
                    lambda offset: None,
                )
                assert required_kernel.read_queue(*arguments) is None
        with pytest.raises(TypeError):
            required_kernel.read_queue({path: "7"}, path, 0, 1, 0, None, 1, 9, 0, 0, 0, b"", None)  # type: ignore[dict-item, arg-type]


def test_objects_are_made_of_classes_that_have_only_slots(required_kernel: Kernel) -> None:
    """The kernel makes them without a call of Python, so a class that makes its objects itself is refused."""
    with pytest.raises(TypeError, match="the class makes its objects itself"):
        required_kernel.RecordMaker(bytes, decode_sent_fields, 0)
    with pytest.raises(TypeError, match="the class has no such slot"):
        required_kernel.RecordMaker(object, decode_sent_fields, 0)
