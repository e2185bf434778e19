"""The fault matrix of the views' bytes: each byte of queue units and index entries is changed, and no message is
missing silently."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import reput
from faults.rows import row
from reput.errors import DamagedStore
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.disk.file_name import file_name
from reput.store.queue.consume_queue import UNIT_SIZE
from small_store import SEGMENT_SIZE

__all__: list[str] = []

UNITS_PER_FILE = 8
FILE_SIZE = UNITS_PER_FILE * UNIT_SIZE
COUNT = 20
# First and last units of the queue and of its files, and some in between.
PLACES = (0, 1, 7, 8, 11, 18, 19)
FLIPS = (0x01, 0x10, 0x80, 0xFF)
SIZES = {"mapped_file_size_commit_log": SEGMENT_SIZE, "mapped_file_size_consume_queue": FILE_SIZE}
TAGS_CODE_AT = 12
FAULT = "Byte of a unit changed"


def open_writer(path: Path) -> reput.Store:
    return reput.open(path, mode="inline", dispatchers=["consume_queue"], **SIZES)


def put(store: reput.Store, number: int) -> None:
    """Put one message, after one of another topic, and wait until it can be read."""
    store.put(reput.Message("others", bytes(50)))
    result = store.put(reput.Message("orders", b"%d" % number, tags="tag"))
    store.wait_for("consume_queue", result.next_commit_log_offset, timeout=60)


def write(path: Path) -> Path:
    """Write a store and close it."""
    with open_writer(path) as store:
        for number in range(COUNT):
            put(store, number)
    return path


def toggle(path: Path, at: int, flip: int) -> None:
    """Change one byte of a file, or change it back."""
    with path.open("r+b") as file:
        file.seek(at)
        was = file.read(1)[0]
        file.seek(at)
        file.write(bytes([was ^ flip]))


@contextmanager
def changed(store: Path, place: int, byte: int, flip: int) -> Iterator[None]:
    """Change one byte of the unit at *place*."""
    at = place * UNIT_SIZE
    path = store / "consumequeue" / "orders" / "0" / file_name(at - at % FILE_SIZE)
    toggle(path, at % FILE_SIZE + byte, flip)
    try:
        yield
    finally:
        toggle(path, at % FILE_SIZE + byte, flip)


def require_told(store: reput.Store | reput.ReadOnlyStore, count: int, changed_places: Iterable[int]) -> None:
    """Read a queue of *count* messages from its beginning: each is right, or the error names its place."""
    there: dict[int, bytes] = {}
    named = set()
    at = 0
    for _ in range(2 * count + 1):
        try:
            found = store.get("orders", 0, at, 1)
        except DamagedStore as error:
            # The place in the error.
            named.add(int(str(error).split(" queue_offset=")[1].split(":")[0].split()[0]))
            at += 1
            continue
        there.update((record.queue_offset, record.body) for record in found)
        if found.next_queue_offset <= at:
            break
        at = found.next_queue_offset
    else:
        raise AssertionError("the queue has no end")
    assert named <= set(changed_places)
    assert there == {number: b"%d" % number for number in range(count) if number not in named}
    if not named:
        assert [record.body for record in store.get("orders", 0, 0, count)] == list(there.values())


def every_change(places: Iterable[int], flips: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    return ((place, byte, flip) for place in places for byte in range(UNIT_SIZE) for flip in flips)


def changed_at_rest(store: Path) -> int:
    times = 0
    for change in every_change(PLACES, FLIPS):
        with changed(store, *change), reput.open(store, read_only=True, **SIZES) as opened:
            require_told(opened, COUNT, change[:1])
        times += 1
    return times


@row(FAULT, "queue that is not open", "each message is right or its place is named")
def change_unit_at_rest(root: Path) -> int:
    return changed_at_rest(write(root / "store"))


@row(FAULT, "queue of which nothing is known but its files", "each message is right or its place is named")
def change_unit_of_strangers_store(root: Path) -> int:
    store = write(root / "store")
    shutil.rmtree(store / "reput")
    return changed_at_rest(store)


@row(FAULT, "queue that is checked", "the check says that it is different")
def change_unit_before_check(root: Path) -> int:
    store = write(root / "store")
    settings = Settings(mapped_file_size_commit_log=SEGMENT_SIZE, mapped_file_size_consume_queue=FILE_SIZE)
    times = 0
    for change in every_change((0, 11, 19), (0x01, 0x80)):
        with changed(store, *change):
            view = check_store(store, settings).views["consume_queue"]
            if change[1:] == (TAGS_CODE_AT, 0x80):
                # It looks like the address of an ext unit, and there is no ext file to compare with.
                assert view.unverified_count == 1
            else:
                assert view.state == "different", change
        times += 1
    assert check_store(store, settings).ok
    return times


@row(FAULT, "queue beside its writer", "the same, and what is put afterwards is read; a rebuild makes it whole")
def change_unit_beside_writer(root: Path) -> int:
    times = 0
    count = COUNT
    with open_writer(write(root / "store")) as store:
        store.wait_for("consume_queue", store.appended, timeout=60)
        for change in every_change(PLACES, (0x01, 0x80)):
            with changed(store.directory, *change):
                store._engine.reader.store.forget()
                require_told(store, count, change[:1])
            times += 1
        store._engine.reader.store.forget()
        for byte in range(UNIT_SIZE):
            # A reader that follows the queue finds it, and so does one that starts at the beginning.
            last = count - 1
            with changed(store.directory, last, byte, 0x80):
                if byte % 2:
                    store._engine.reader.store.forget()
                require_told(store, count, [last])
                put(store, count)
                count += 1
                require_told(store, count, [last])
            times += 1
    with changed(store.directory, count - 2, 3, 0x80):
        with reput.open(store.directory, dispatchers=["consume_queue"], **SIZES) as store:
            require_told(store, count, [count - 2])
            store.rebuild("consume_queue")
            require_told(store, count, [])
        # The view was replaced by another one: there is nothing to change back.
        shutil.copytree(store.directory, root / "rebuilt")
    with reput.open(root / "rebuilt", read_only=True, **SIZES) as opened:
        require_told(opened, count, [])
    return times + 1


@contextmanager
def changed_record(store: Path, at: int) -> Iterator[None]:
    """Change one byte of the log."""
    path = store / "commitlog" / file_name(at - at % SEGMENT_SIZE)
    toggle(path, at % SEGMENT_SIZE, 0x80)
    try:
        yield
    finally:
        toggle(path, at % SEGMENT_SIZE, 0x80)


@row(
    "Byte of a record changed",
    "last record of a queue",
    "each message is right or its place is named, at the log's end as well",
)
def change_last_record(root: Path) -> int:
    times = 0
    for behind in (0, 2):
        path = root / f"store{behind}"
        with open_writer(path) as store:
            for number in range(4):
                put(store, number)
            (last,) = store.get("orders", 0, 3, 1)
            for _ in range(behind):
                store.put(reput.Message("others", bytes(50)))
            store.flush()
        for at in range(last.record_size):
            with changed_record(path, last.commit_log_offset + at), reput.open(path, read_only=True, **SIZES) as opened:
                require_told(opened, 4, [3])
            times += 1
    with open_writer(path) as store:
        store.wait_for("consume_queue", store.appended, timeout=60)
        # The writer does not compare its own bodies, which the first opening has verified.
        for at in range(0, last.record_size, 3):
            with changed_record(path, last.commit_log_offset + at):
                store._engine.reader.store.forget()
                require_told(store, 4, [3])
            times += 1
    return times


@row(
    "Byte of an index file changed",
    "header, slots and entries",
    "a query has the right answer or names the file, but where a slot or an entry skips part of its own chain",
)
def change_index(root: Path) -> int:
    sizes = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 5, "max_index_num": 24}
    store = root / "store"
    with reput.open(store, mode="inline", dispatchers=["consume_queue", "index"], **sizes) as opened:
        for number in range(40):
            result = opened.put(reput.Message("orders", b"%d" % number, keys=[f"key_{number % 7}"]))
        opened.wait_for("index", result.next_commit_log_offset, timeout=60)
    keys = [f"key_{number}" for number in range(7)]

    def answers() -> list[list[bytes] | None]:
        """Return the bodies by key, None if the query raises."""
        found: list[list[bytes] | None] = []
        with reput.open(store, read_only=True, **sizes) as opened:
            for key in keys:
                try:
                    found.append([record.body for record in opened.query("orders", key)])
                except DamagedStore:
                    found.append(None)
        return found

    right = answers()
    times = 0
    for path in sorted((store / "index").iterdir()):
        whole = path.read_bytes()
        for at in range(0, 40 + 5 * 4 + 24 * 20, 3):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
            assert all(found in (None, expected) for found, expected in zip(answers(), right, strict=True)), at
            times += 1
        path.write_bytes(whole)
    assert answers() == right
    return times
