"""Gets and queries that the kernel does alone: the same records, statuses and errors as the Python path."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reput
from cached_reads import require_cached_reads
from reput.errors import ReputError, StoreClosed
from reput.kernel import Kernel, ViewWords, kernel
from reput.store.reader import kernel_reads
from reput.store.reader.kernel_reads import MAP_AFTER
from reput.store.reader.message_reader import MessageReader
from reput.store.reader.readable_store import ReadableStore
from reput.store.reader.results import KernelRecords
from reput.store.record.message import Message
from small_store import small_settings

UNITS_PER_FILE = 32
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 16384,
    "mapped_file_size_consume_queue": 20 * UNITS_PER_FILE,
    "max_hash_slot_num": 16,
    "max_index_num": 150,
    "dispatchers": ["consume_queue", "index"],
}
QUEUES = [("orders", 0), ("orders", 1), ("paid", 0), ("absent", 0)]
KEYS = ["even", "odd", "k7", "k100", "uniq-9", "none", "", "two words", "é", "0" * 32]
# Words of the view's dispatcher, and the word that says when somebody asked.
PROGRESS, GENERATION, ASKED = 0, 1, 0
FOREVER = (1 << 63) - 1

GET = st.tuples(
    st.just("get"), st.sampled_from(QUEUES), st.integers(-1, 140), st.sampled_from([0, 1, 1, 1, 3, 32, 200])
)
QUERY = st.tuples(
    st.just("query"),
    st.sampled_from(["orders", "paid", "absent"]),
    st.sampled_from(KEYS),
    st.sampled_from([0, 1, 5, 64]),
    st.sampled_from([(0, FOREVER), (0, FOREVER), (0, 1), (FOREVER, FOREVER), (-5, FOREVER)]),
)
CHANGE = st.one_of(
    st.tuples(st.just("progress"), st.integers(0, 1000)),
    st.tuples(st.just("generation"), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 1000)),
    st.tuples(st.just("trim"), st.just(0)),
    st.tuples(st.just("close files"), st.just(0)),
    # Which of the files, the place in it in millionths, the byte.
    st.tuples(st.just("damage"), st.integers(0, 40), st.integers(0, 999_999), st.integers(0, 255)),
    st.tuples(st.just("cut"), st.integers(0, 40), st.integers(0, 999_999)),
)


# A record in the log's first file, and a key of several records.
GET_TWICE = ("get", ("orders", 0), 5, 1)
QUERY_TWICE = ("query", "orders", "even", 64, (0, FOREVER))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A closed store with several segments and index files, and where its log ends."""
    directory = tmp_path_factory.mktemp("reads") / "store"
    with reput.open(directory, mode="inline", **SETTINGS) as store:
        for number in range(200):
            topic, queue_id = QUEUES[0 if number < 90 else number % 3]
            keys = ["odd" if number % 2 else "even", f"k{number}", "é"]
            properties = {"UNIQ_KEY": "two words" if number == 120 else f"uniq-{number}"} if number % 3 == 0 else None
            body = bytes([number]) * (number * 37 % 900 + (3000 if number % 41 == 0 else 0))
            store.put(Message(topic, body, queue_id=queue_id, keys=keys, properties=properties or {}))
        for view in ("consume_queue", "index"):
            store.wait_for(view, store.appended)
        end = store.appended
    # What was found in a directory that has just changed is not relied on: it might change again within the same tick.
    os.utime(directory / "index", ns=(0, 0))
    return directory, end


class Twins:
    """Two readers of one store in a writer's process: one takes the Python path, one the kernel's where it can."""

    def __init__(self, directory: Path, end: int, own_from: int, map_after: int = MAP_AFTER) -> None:
        self.directory = directory
        self.end = end
        self.cells = array("Q", [end, 1])
        self.appender = SimpleNamespace(deleted_at={})
        self.writer = SimpleNamespace(commit_log_offset_min=0, appender=self.appender)
        self.group = SimpleNamespace(members={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel_reads, "MAP_AFTER", map_after)
            self.readers = [self.reader(own_from) for _ in range(2)]
        self.readers[0].store.kernel = self.readers[0].store.reads = None

    def reader(self, own_from: int) -> MessageReader:
        store = ReadableStore(
            self.directory,
            small_settings(**SETTINGS),
            lambda view: self.cells[PROGRESS],
            lambda view: self.cells[GENERATION],
            lambda: self.writer.commit_log_offset_min,
            lambda: self.appender.deleted_at,
            own_from,
            at_rest=True,
            writer=self.writer,
            view_words=self.words,
        )
        return MessageReader(store)

    def words(self, view: str) -> ViewWords:
        used = kernel()
        assert used is not None
        return used.ViewWords(self.group, self.group.members, self.cells, PROGRESS, GENERATION, array("Q", [0]), ASKED)

    def files(self) -> list[Path]:
        found = [
            path
            for folder in ("commitlog", "consumequeue", "index")
            for path in (self.directory / folder).rglob("*")
            if path.is_file() and path.name.isdigit()
        ]
        return sorted(found)

    def change(self, what: str, *how: int) -> None:
        """Change the store as a dispatcher, retention, another thread or a broken disk would."""
        match what:
            case "progress":
                self.cells[PROGRESS] = self.end * how[0] // 1000
            case "generation":
                self.cells[GENERATION] += 1
            case "delete":
                self.appender.deleted_at["orders"] = self.end * how[0] // 1000
            case "trim":
                path = sorted((self.directory / "commitlog").iterdir())[0]
                self.writer.commit_log_offset_min = int(path.name) + SETTINGS["mapped_file_size_commit_log"]
                for reader in self.readers:
                    reader.store.files.forget(str(path.parent))
                path.unlink()
            case "close files":
                for reader in self.readers:
                    reader.store.files.forget()
            case _:
                files = self.files()
                path = files[how[0] % len(files)]
                data = path.read_bytes()
                # In place: the readers keep their files open.
                with path.open("r+b") as file:
                    if what == "damage":
                        file.seek(len(data.rstrip(b"\0")) * how[1] // 1_000_000)
                        file.write(bytes([how[2]]))
                    else:
                        file.truncate(len(data) * how[1] // 1_000_000)


def outcome_of(reader: MessageReader, step: tuple[Any, ...]) -> Any:
    """Return all that a get or a query says, as `OpenedStore` asks for it, or its error as text."""
    reads = reader.store.reads
    try:
        if step[0] == "get":
            _, (topic, queue_id), queue_offset, count_max = step
            found = None if reads is None else reads.get(topic, queue_id, queue_offset, count_max)
            if found is None:
                found = reader.get_message(topic, queue_id, queue_offset, count_max)
                reader.keep_queue(topic, queue_id, found)
            records = list(found)
            return (
                (found.status, found.next_queue_offset, found.queue_offset_min, found.queue_offset_max),
                (len(found), found.records.data),
                [record.__reduce__() for record in records],
                list(found.records.with_queue_offsets()),
            )
        _, topic, key, count_max, (begin, end) = step
        known = None if reads is None else reads.query(topic, key, count_max, begin, end)
        if known is None:
            known = reader.index.query_message(topic, key, count_max, begin, end).records
        return [record.__reduce__() for record in known]
    except (ReputError, OSError) as error:
        return type(error), str(error)


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@example([("get", ("orders", 0), 5, 1), ("trim", 0), ("get", ("orders", 0), 5, 1)], 0, 0)
@example(
    [("query", "orders", "even", 5, (0, FOREVER)), ("trim", 0), ("query", "orders", "even", 64, (0, FOREVER))], 0, 0
)
# The log's first file, then the index's newest, is cut short within a page that is mapped, and to nothing.
@example([GET_TWICE, GET_TWICE, ("cut", 0, 90_000), GET_TWICE, ("cut", 0, 0), GET_TWICE], FOREVER, 0)
@example([QUERY_TWICE, QUERY_TWICE, ("cut", -1, 40_000), QUERY_TWICE, ("cut", -1, 0), QUERY_TWICE], FOREVER, 0)
@given(
    st.lists(st.one_of(GET, QUERY, GET, QUERY, CHANGE), min_size=2, max_size=14),
    st.sampled_from([0, 20_000, FOREVER]),
    st.sampled_from([0, 0, MAP_AFTER]),
)
def test_any_reads_give_the_same_results_and_errors(
    required_kernel: Kernel, written: tuple[Path, int], steps: list[Any], own_from: int, map_after: int
) -> None:
    """Whatever happens to views, log and files between two reads, each read done twice."""
    source, end = written
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "store")
        shutil.copytree(source, directory)
        twins = Twins(directory, end, own_from, map_after)
        for step in steps:
            if step[0] not in ("get", "query"):
                if step[0] != "trim" or len(list((directory / "commitlog").iterdir())) > 1:
                    twins.change(*step)
                continue
            for _ in range(2):
                outcomes = [outcome_of(reader, step) for reader in twins.readers]
                assert outcomes[0] == outcomes[1]
        for reader in twins.readers:
            reader.close()


def test_second_reads_go_through_the_kernel_alone(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """The first read finds out where a queue ends and which files the index has; the next ones need no Python."""
    directory, end = written
    require_cached_reads(directory)
    twins = Twins(directory, end, FOREVER)
    reader = twins.readers[1]
    steps = [("get", QUEUES[0], 7, 1), ("get", QUEUES[0], 35, 20), ("query", "orders", "k7", 64, (0, FOREVER))]
    for step in [*steps, ("query", "orders", "odd", 64, (0, FOREVER))]:
        outcome_of(reader, step)
    before = required_kernel.counts()
    found = reader.store.reads.get("orders", 0, 7, 1)  # type: ignore[union-attr]
    assert isinstance(found.records, KernelRecords)
    for step in steps:
        assert outcome_of(reader, step) == outcome_of(twins.readers[0], step)
    after = required_kernel.counts()
    assert (after["get"] - before["get"], after["query"] - before["query"]) == (22, 1)
    # Another view, another member of the group, and a deletion are for the Python path to look at.
    twins.group.members = {}
    assert reader.store.reads.get("orders", 0, 7, 1) is None  # type: ignore[union-attr]
    assert reader.store.reads.query("orders", "k7", 64, 0, FOREVER) is None  # type: ignore[union-attr]
    for reader in twins.readers:
        reader.close()


def test_odd_arguments_go_the_python_way(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """Values of other types and sizes are refused or accepted by Python, which says why."""
    directory, end = written
    reader = Twins(directory, end, FOREVER).readers[1]
    reads = reader.store.reads
    assert reads is not None
    outcome_of(reader, ("get", QUEUES[0], 7, 1))
    outcome_of(reader, ("query", "orders", "k7", 64, (0, FOREVER)))
    for odd in (None, "7", 7.0, True, -1, 1 << 70, b"orders", "\ud800"):
        assert reads.get(odd, 0, 7, 1) is None
        assert reads.get("orders", odd, 7, 1) is None
        assert reads.get("orders", 0, odd, 1) is None
        assert reads.get("orders", 0, 7, odd) is None
        assert reads.query(odd if odd != "7" else None, "k7", 64, 0, FOREVER) is None
        assert reads.query("orders", odd if odd != "7" else None, 64, 0, FOREVER) is None
        assert reads.query("orders", "k7", odd, 0, FOREVER) is None
    reader.close()


def test_an_open_store_uses_the_kernel(required_kernel: Kernel, tmp_path: Path) -> None:
    """Gets and queries of a writer's process, beside its dispatchers; new messages, a deletion and a close are seen."""
    if not Path("/dev/shm").is_dir():
        require_cached_reads(tmp_path)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        with reput.open(Path(scratch, "store"), dispatchers=["consume_queue", "index"]) as store:
            for number in range(3):
                result = store.put(Message("orders", bytes([number]), keys=[f"k{number}"], queue_id=0))
                for view in ("consume_queue", "index"):
                    store.wait_for(view, store.appended)
                for _ in range(2):
                    assert [record.body for record in store.get("orders", 0, number, 1)] == [bytes([number])]
                    assert [record.message_id for record in store.query("orders", f"k{number}")] == [result.message_id]
            before = required_kernel.counts()["query"]
            # While the index directory's last change is only moments old, each query lists it again.
            while required_kernel.counts()["query"] == before:
                store.query("orders", "k0")
            counts = required_kernel.counts()
            assert store.get("orders", 0, 3, 1).next_queue_offset == 3
            assert store.query("orders", "k9") == []
            store.get("orders", 0, 1, 1)
            after = required_kernel.counts()
            assert (after["get"] - counts["get"], after["query"] - counts["query"]) == (1, 1)
            store.delete_topic("orders")
            assert len(store.get("orders", 0, 1, 1)) == 0
        with pytest.raises(StoreClosed):
            store.get("orders", 0, 1, 1)
        with pytest.raises(StoreClosed):
            store.query("orders", "k1")


def test_a_closed_store_is_freed(required_kernel: Kernel, tmp_path: Path) -> None:
    """The kernel keeps where a view's numbers stand, and that belongs to the store that keeps the kernel's reads."""
    with reput.open(tmp_path / "store", dispatchers=["consume_queue", "index"]) as store:
        store.put(Message("orders", b"", keys=["k"], queue_id=0))
        for view in ("consume_queue", "index"):
            store.wait_for(view, store.appended)
        assert len(store.get("orders", 0, 0, 1)) == len(store.query("orders", "k")) == 1
    reads = ref(store._engine.reader)
    del store
    gc.collect()
    assert reads() is None


def test_files_that_are_read_often_are_mapped(required_kernel: Kernel, written: tuple[Path, int]) -> None:
    """A mapped file takes no descriptor, and is unmapped as soon as the reader closes it: its space becomes free."""
    directory, end = written
    require_cached_reads(directory)
    twins = Twins(directory, end, FOREVER, map_after=0)
    reader = twins.readers[1]
    for _ in range(3):
        for step in (GET_TWICE, QUERY_TWICE):
            assert outcome_of(reader, step) == outcome_of(twins.readers[0], step)
    assert {path.parent.name for path in mapped_files(directory)} == {"commitlog", "0", "index"}
    reader.store.files.forget(reader.store.log_directory)
    assert "commitlog" not in {path.parent.name for path in mapped_files(directory)}
    for reader in twins.readers:
        reader.close()
    assert not mapped_files(directory)


def test_reads_that_alternate_between_files_of_a_queue_map_all_of_them(
    required_kernel: Kernel, written: tuple[Path, int]
) -> None:
    """Gets at random in a long queue make no system calls once its files were read often, and keep the log mapped."""
    directory, end = written
    require_cached_reads(directory)
    twins = Twins(directory, end, FOREVER, map_after=2)
    for _ in range(5):
        for queue_offset in (0, UNITS_PER_FILE):
            step = ("get", ("orders", 0), queue_offset, 1)
            assert outcome_of(twins.readers[1], step) == outcome_of(twins.readers[0], step)
    mapped = {path.name for path in mapped_files(directory) if path.parent.name == "0"}
    assert mapped == {f"{number * UNITS_PER_FILE * 20:020}" for number in range(2)}


def mapped_files(directory: Path) -> set[Path]:
    """Return the files below *directory* that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if f"{directory}/" in line}
