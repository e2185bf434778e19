"""A program that kills reput in its system calls: ``killed_program.py DEED DIRECTORY KILLS_MAX``.

It does a deed with a real store, with real threads and files, in a forked child that it kills in the n-th call, for
every n; or, if there are more calls than KILLS_MAX, for that many of them, evenly spread. After each kill it opens the
store again and checks its promises. It prints the number of kills and the number of calls.

This is a separate process because it forks, and therefore must have only one thread. The dispatchers run on a thread of
the child, so that views are killed in their calls, too.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import reput
from faults.system_calls import Ending, Marks, TracingRefused, kill_at
from reput.embedded.views import Mode
from reput.errors import DispatcherError
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.state.store_lock import StoreLock

__all__ = ["DEEDS", "Deed"]

VIEWS = ("consume_queue", "index")
SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 5 * 20,
    "max_hash_slot_num": 7,
    "max_index_num": 12,
}
TIMEOUT = 60.0
# Messages of one call, a part of which may be stored when it is killed.
BATCH_SIZE = 3
REFUSED = 77


def message(number: int, topic: str | None = None) -> reput.Message:
    """Return message number *number*."""
    return reput.Message(
        topic or ("orders", "payments")[number % 2],
        f"{number} ".encode().ljust(50 + number * 37 % 400, b"b"),
        tags=("", "red")[number % 2],
        keys=[f"key-{number % 5}"],
        queue_id=number % 3,
    )


def opened(directory: Path, mode: Mode = "inline", **settings: object) -> reput.Store:
    store = reput.open(directory, mode=mode, dispatchers=VIEWS, **SIZES, **settings)
    assert isinstance(store, reput.Store)
    return store


def put(store: reput.Store, marks: Marks, count: int) -> None:
    """Put messages one by one and in batches, and mark them once the store has acknowledged them."""
    number = marks.acknowledged
    while count:
        size = min(count, BATCH_SIZE if number % 2 else 1)
        store.put_batch([message(number + at) for at in range(size)])
        number += size
        count -= size
        marks.acknowledged = number


def await_views(store: reput.Store) -> None:
    for view in VIEWS:
        store.wait_for(view, store.appended, TIMEOUT)


class Deed(msgspec.Struct, frozen=True):
    """The work during which a process is killed.

    Attributes:
        prepare: creates the initial store, and marks its messages.
        do: the work; it marks when its calls begin to count.
    """

    prepare: Callable[[Path, Marks], None]
    do: Callable[[Path, Marks], None]


def nothing(directory: Path, marks: Marks) -> None:
    """Begin without a store."""


def closed_store(directory: Path, marks: Marks) -> None:
    with opened(directory) as store:
        put(store, marks, 24)
        await_views(store)


def killed_store(directory: Path, marks: Marks) -> None:
    """Create a store whose writer was killed in the bytes of the last record."""
    closed_store(directory, marks)

    def begin(marks: Marks) -> None:
        store = opened(directory)
        put(store, marks, 14)
        memory, at = store._engine.writer.commit_log.memory, store.appended - store._engine.writer.commit_log.begin
        memory[at + 4 : at + 40] = b"\xda\xa3\x20\xa7" + b"torn" * 8
        marks.counting = True
        store.flush()

    assert kill_at(1, begin, marks).killed
    marks.counting = False


def append_roll_and_flush(directory: Path, marks: Marks) -> None:
    store = opened(directory, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)
    marks.counting = True
    put(store, marks, 24)
    await_views(store)


def close(directory: Path, marks: Marks) -> None:
    store = opened(directory)
    put(store, marks, 6)
    marks.counting = True
    store.close()


def open_it(directory: Path, marks: Marks) -> None:
    marks.counting = True
    await_views(opened(directory))


def rebuild(directory: Path, marks: Marks) -> None:
    store = opened(directory, "processes")
    marks.counting = True
    # If a process that takes part in the rebuild is killed, the rebuild fails and the old views stay.
    with contextlib.suppress(DispatcherError):
        store.rebuild(*VIEWS)
    await_views(store)


def dispatch_in_processes(directory: Path, marks: Marks) -> None:
    store = opened(directory, "processes")
    marks.counting = True
    put(store, marks, 24)
    await_views(store)
    store.close()


def remove_segments(directory: Path, marks: Marks) -> None:
    store = opened(directory)
    marks.counting = True
    for path in sorted((directory / "commitlog").iterdir())[:2]:
        store._engine.writer.trim(path, int(path.name) + SIZES["mapped_file_size_commit_log"])
    put(store, marks, 2)
    await_views(store)


def delete_topic(directory: Path, marks: Marks) -> None:
    store = opened(directory)
    await_views(store)
    marks.counting = True
    store.delete_topic("payments", TIMEOUT)
    await_views(store)


DEEDS = {
    "append_roll_and_flush": Deed(closed_store, append_roll_and_flush),
    "close": Deed(closed_store, close),
    "make": Deed(nothing, open_it),
    "open": Deed(closed_store, open_it),
    "recover": Deed(killed_store, open_it),
    "dispatch_in_processes": Deed(closed_store, dispatch_in_processes),
    "rebuild": Deed(closed_store, rebuild),
    "remove_segments": Deed(closed_store, remove_segments),
    "delete_topic": Deed(closed_store, delete_topic),
}


def verify(directory: Path, acknowledged: int, deed: str) -> None:
    """Open the store again, put more messages, close it, and compare everything with what was put."""
    with opened(directory) as store:
        numbers = [int(record.body.split()[0]) for record in store.records()]
        begin = numbers[0] if numbers else 0
        assert numbers == list(range(begin, begin + len(numbers))), numbers
        assert acknowledged <= begin + len(numbers) <= acknowledged + BATCH_SIZE, (numbers, acknowledged)
        assert begin == 0 or deed == "remove_segments", numbers
        offsets: dict[tuple[str, int], int] = {}
        for record, number in zip(store.records(), numbers, strict=True):
            wanted = message(number)
            assert (record.topic, record.queue_id, record.body) == (wanted.topic, wanted.queue_id, wanted.body)
            following = offsets.get((record.topic, record.queue_id), record.queue_offset)
            assert record.queue_offset == following, record
            offsets[record.topic, record.queue_id] = following + 1
        more = Marks()
        more.acknowledged = begin + len(numbers)
        put(store, more, 4)
        await_views(store)
        read_all(store, deed)
    report = check_store(directory, Settings(**SIZES))
    assert report.ok, report
    assert {report.views[view].state for view in VIEWS} == {"equal"}, report
    drafts = [path for path in directory.rglob("*") if path.suffix == ".draft" or path.name == "abort"]
    assert not drafts, drafts
    assert not list((directory / "reput").glob("views/*.*")), list((directory / "reput").rglob("*"))
    StoreLock(directory).close()


def read_all(store: reput.Store, deed: str) -> None:
    """Read every record through its queue, and by its key."""
    records = list(store.records())
    by_queue = {(topic, queue_id) for topic, queue_ids in store.topics().items() for queue_id in queue_ids}
    found = {record.commit_log_offset for queue in by_queue for record in read_queue(store, *queue)}
    missing = {record.topic for record in records if record.commit_log_offset not in found}
    assert missing <= ({"payments"} if deed == "delete_topic" else set()), missing
    for key in range(5):
        for topic in ("orders", "payments"):
            wanted = [
                record.commit_log_offset
                for record in records
                if record.topic == topic and record.properties["KEYS"] == f"key-{key}"
            ]
            assert [record.commit_log_offset for record in store.query(topic, f"key-{key}")] == wanted


def read_queue(store: reput.Store, topic: str, queue_id: int) -> Iterator[reput.Record]:
    at, end = store.queue_range(topic, queue_id)
    while at < end:
        batch = store.get(topic, queue_id, at)
        assert len(batch), (topic, queue_id, at)
        yield from batch
        at = batch.next_queue_offset


def run(name: str, root: Path, kills_max: int) -> tuple[int, int]:
    """Kill a deed in its calls; return the number of kills and the number of calls."""
    deed = DEEDS[name]
    marks = Marks()
    template = root / "template"
    deed.prepare(template, marks)
    prepared = marks.acknowledged

    def kill(number: int) -> Ending:
        directory = root / str(number)
        if template.exists():
            shutil.copytree(template, directory)
        marks.acknowledged, marks.counting = prepared, False
        try:
            ending = kill_at(number, lambda marks: deed.do(directory, marks), marks)
            verify(directory, marks.acknowledged, name)
        except AssertionError as error:
            raise AssertionError(f"deed={name} killed_in_call={number}: {error}") from error
        shutil.rmtree(directory)
        return ending

    calls = kill(0).calls
    # Threads interleave differently each time, so a run may make fewer calls.
    step = max(1.0, calls / kills_max)
    return sum(kill(1 + int(at * step)).killed for at in range(min(kills_max, calls))), calls


def main() -> None:
    # The kernel would count the writing of compiled modules among reput's calls, but only in the first run.
    sys.dont_write_bytecode = True
    name, root, kills_max = sys.argv[1:]
    try:
        print(*run(name, Path(root), int(kills_max)))
    except TracingRefused as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
