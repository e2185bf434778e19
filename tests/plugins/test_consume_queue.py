"""The dispatcher `consume_queue`: RocketMQ's bytes, in all circumstances."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher_host import Context, cut_into_batches, log_batch, view_bytes
from faulty_files import FullDisk, Killed, KilledFiles, PowerCutFiles
from golden_sets import CLEAN_SETS
from reput.settings import Settings, load_settings
from reput.store.disk import files as files_module
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import seal
from reput.store.ext.consume_queue_ext import is_address
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from reput.store.record.layout import INNER_BATCH_FLAG
from reput.store.state.identity import StoreIdentity, read_store_id
from reput_hooks import Cursor, DispatchBatch, RebuildNeeded, RetryLater
from reput_plugins.consume_queue import ConsumeQueueDispatcher, reput_create_dispatcher, reput_describe_dispatcher
from simulation.simulated_machine import HeldThreads, PromptThreads
from written_log import WrittenLog

FOLDER = "consumequeue"
# Five units per file, so that every boundary is crossed.
SMALL = Settings(mapped_file_size_consume_queue=5 * UNIT_SIZE)


def units(data: bytes) -> list[tuple[int, int, int]]:
    """Return the units of a file."""
    return list(UNIT.iter_unpack(data))


def without_ext_addresses(files: dict[str, bytes]) -> dict[str, list[tuple[int, int, int]]]:
    """Return the units of all files, with 0 for an address, because without ext files they have plain tags codes."""
    return {
        name: [(offset, size, 0 if is_address(tags_code) else tags_code) for offset, size, tags_code in units(data)]
        for name, data in files.items()
    }


def run(
    store: Path, root: Path, settings: Settings, batches: Iterator[DispatchBatch], files: Files | None = None
) -> dict[str, bytes]:
    """Build the queues of *store* below *root* from their current position, and return their files."""
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", store, root, settings), files)
    dispatcher.start()
    for batch in batches:
        dispatcher.dispatch(batch)
    dispatcher.flush()
    dispatcher.close()
    return view_bytes(root / FOLDER)


@pytest.fixture
def small_log(tmp_path: Path) -> Path:
    """A log of 40 records in six queues, some with many messages and some with one."""
    log = WrittenLog(tmp_path / "small", segment_size=2048)
    chance = random.Random(3)
    for _ in range(40):
        log.append(bytes(chance.randrange(40)), topic=chance.choice([b"a", b"a", b"b"]), queue_id=chance.randrange(3))
    return log.save()


def batches_from(store: Path, cursor: Cursor | None, size: int) -> Iterator[DispatchBatch]:
    """Yield the log after *cursor* in batches of *size* records."""
    begin = None if cursor is None else cursor.commit_log_offset
    return cut_into_batches(log_batch(store, begin), itertools.repeat(size))


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("how", ["whole", "one by one", "at random"])
@pytest.mark.parametrize("name", CLEAN_SETS)
def test_queues_equal_those_of_rocketmq(name, how, golden_read_only, broker_properties, tmp_path):
    """Rebuilt from the log, each file has the broker's bytes, for any division of the log into batches."""
    store = golden_read_only(name) / "store"
    settings = load_settings(broker_properties(name)).settings
    chance = random.Random(name)
    sizes = {
        "whole": itertools.repeat(1 << 30),
        "one by one": itertools.repeat(1),
        "at random": iter(lambda: chance.choice([1, 2, 3, 25, 100]), None),
    }[how]
    batches = cut_into_batches(log_batch(store, settings=settings), sizes)
    ours, theirs = run(store, tmp_path / "target", settings, batches), view_bytes(store / FOLDER)
    if name.startswith("ext"):
        plain = {file: [unit[:2] for unit in rows] for file, rows in without_ext_addresses(theirs).items()}
        assert {file: [unit[:2] for unit in units(data)] for file, data in ours.items()} == plain
    else:
        assert ours == theirs


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_restart_anywhere_gives_the_same_bytes(size, small_log, tmp_path):
    """Records dispatched after the last flush are undone at the next start, and come again."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    root = tmp_path / "target"
    for stop in itertools.count(1):
        dispatcher = ConsumeQueueDispatcher(Context("consume_queue", small_log, root, SMALL))
        cursor = dispatcher.start()
        batches = list(batches_from(small_log, cursor, size))
        for number, batch in enumerate(batches[: stop % 4 + 1]):
            dispatcher.dispatch(batch)
            if number == 0:
                assert dispatcher.flush() == batch.end
        # Neither flushed nor closed: the process is gone.
        if len(batches) <= 1:
            break
    assert view_bytes(root / FOLDER) == expected


def flush_beside(dispatcher: ConsumeQueueDispatcher) -> None:
    """Check a flush that runs beside, like the host between batches."""
    if not dispatcher.prepare_flush():
        dispatcher.flush()


def finish_beside(dispatcher: ConsumeQueueDispatcher) -> None:
    """Check a flush that runs beside until it is done."""
    while dispatcher.prepare_flush():
        pass


@pytest.mark.parametrize(("size", "beside"), [(14, False), pytest.param(6, True, marks=pytest.mark.slow)])
def test_a_kill_at_any_file_call_loses_nothing(size, beside, small_log, tmp_path):
    """Killed in the n-th call, for every n, including torn writes, and restarted: the same bytes."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    for calls in itertools.count():
        root = tmp_path / str(calls)
        files = KilledFiles(calls)
        context = Context("consume_queue", small_log, root, SMALL)
        try:
            dispatcher = ConsumeQueueDispatcher(context, files, PromptThreads())
            for batch in batches_from(small_log, dispatcher.start(), size):
                dispatcher.dispatch(batch)
                flush_beside(dispatcher) if beside else dispatcher.flush()
        except Killed:
            pass
        dispatcher = ConsumeQueueDispatcher(context)
        cursor = dispatcher.start()
        for batch in batches_from(small_log, cursor, size):
            dispatcher.dispatch(batch)
        dispatcher.close()
        assert view_bytes(root / FOLDER) == expected
        if not files.killed:
            break
    assert calls > 30


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_loses_nothing(seed, small_log, tmp_path):
    """Whatever unforced data the disk kept, the cursor marks the safe part and the rest comes again."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    chance = random.Random(seed)
    root = tmp_path / "target"
    context = Context("consume_queue", small_log, root, SMALL)
    files = PowerCutFiles()
    for _ in range(8):
        dispatcher = ConsumeQueueDispatcher(context, files, PromptThreads())
        for batch in itertools.islice(batches_from(small_log, dispatcher.start(), chance.randrange(1, 12)), 6):
            dispatcher.dispatch(batch)
            if chance.random() < 0.2:
                dispatcher.flush()
            for _ in range(chance.randrange(3)):
                flush_beside(dispatcher)
        dispatcher.close()
        files.cut(chance)
    dispatcher = ConsumeQueueDispatcher(context)
    for batch in batches_from(small_log, dispatcher.start(), 5):
        dispatcher.dispatch(batch)
    dispatcher.close()
    assert view_bytes(root / FOLDER) == expected


class CountingContext(Context):
    """Counts calls of `alive`."""

    alive_count = 0

    def alive(self) -> None:
        self.alive_count += 1


def many_queues(tmp_path: Path, count: int) -> Path:
    """Return a store whose log has one message for each of *count* queues."""
    log = WrittenLog(tmp_path / "log")
    for number in range(count):
        log.append(b"x", queue_id=number, queue_offset=0)
    return log.save()


def test_a_large_flush_gives_signs_of_life_as_long_as_the_disk_answers(tmp_path, monkeypatch):
    """So any number of new queues stays within the time limit, unless the disk does not answer."""
    monkeypatch.setattr(files_module, "FORCES_TOGETHER_MAX", 4)
    context = CountingContext("consume_queue", many_queues(tmp_path, 100), tmp_path, SMALL)
    threads = HeldThreads()
    dispatcher = ConsumeQueueDispatcher(context, threads=threads)
    dispatcher.start()
    first, second = batches_from(context.store_directory, None, 50)
    dispatcher.dispatch(first)
    assert dispatcher.prepare_flush()
    # The disk has not answered yet.
    assert dispatcher.prepare_flush()
    assert context.alive_count == 0
    dispatcher.flushing.thread.join()
    assert not dispatcher.prepare_flush()
    assert context.alive_count == 1
    assert dispatcher.flush() == first.end
    # So does the start, however many queues must be read.
    before = context.alive_count
    ConsumeQueueDispatcher(context).start()
    assert context.alive_count >= before + 50
    # If another thread waits for the flush, that thread reports, and at first the dispatcher's.
    dispatcher.dispatch(second)
    assert dispatcher.prepare_flush()
    dispatcher.await_flush()
    assert context.alive_count > 10
    before = context.alive_count
    assert dispatcher.flush() == second.end
    assert context.alive_count > before + 10
    dispatcher.close()


def test_a_flush_goes_on_beside(tmp_path):
    """Batches come in between, and the cursor is that of the beginning; a flush on demand covers everything."""
    log = WrittenLog(tmp_path / "log")
    for number in range(120):
        log.append(b"x", queue_id=number % 40, queue_offset=number // 40)
    threads = HeldThreads()
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", log.save(), tmp_path, SMALL), threads=threads)
    assert not dispatcher.prepare_flush()
    dispatcher.start()
    first, second, third = batches_from(log.store, None, 40)
    dispatcher.dispatch(first)
    assert dispatcher.prepare_flush()
    dispatcher.dispatch(second)
    assert dispatcher.prepare_flush()
    dispatcher.flushing.thread.join()
    assert not dispatcher.prepare_flush()
    assert dispatcher.flush() == first.end
    assert dispatcher.prepare_flush()
    dispatcher.dispatch(third)
    assert dispatcher.flush() == third.end
    dispatcher.close()
    again = ConsumeQueueDispatcher(dispatcher.context)
    assert again.start() == third.end
    assert again.builder.table["orders"][39].end == 60
    again.close()


def test_a_flush_that_fails_beside_is_told(tmp_path, monkeypatch):
    """The next check raises it, or the close; nothing counts as durable, and a full disk is waited for."""
    log = WrittenLog(tmp_path / "log")
    log.append(b"x")
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", log.save(), tmp_path, SMALL))
    dispatcher.start()
    (batch,) = batches_from(log.store, None, 1)
    dispatcher.dispatch(batch)
    for number, kind in ((errno.EIO, OSError), (errno.ENOSPC, RetryLater)):

        def refuse(path, data, number=number):
            raise OSError(number, os.strerror(number), str(path))

        with monkeypatch.context() as patch:
            patch.setattr(dispatcher.files, "replace", refuse)
            with pytest.raises(kind):
                finish_beside(dispatcher)
    finish_beside(dispatcher)
    assert dispatcher.flush() == batch.end
    dispatcher.close()


def test_a_full_disk_pauses_the_view(small_log, tmp_path):
    """The same batch comes again until there is space, and nothing is duplicated or omitted."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    disk = FullDisk(2)
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", small_log, tmp_path / "target", SMALL), disk)
    dispatcher.start()
    refused = 0
    for batch in batches_from(small_log, None, 10):
        while True:
            try:
                dispatcher.dispatch(batch)
                break
            except RetryLater:
                refused += 1
                disk.room += 3
    dispatcher.close()
    assert refused
    assert view_bytes(tmp_path / "target" / FOLDER) == expected


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_history_is_forgotten(seed, small_log, tmp_path):
    """After `truncate` the queues are as if built from the shorter log, even after a kill in the middle of it."""
    whole = log_batch(small_log)
    offsets = [request.commit_log_offset for request in whole]
    cut_at = offsets[[0, 1, 20, 33, 39][seed]]
    expected_root = tmp_path / "expected"
    expected = run(small_log, expected_root, SMALL, iter([log_batch(small_log, until=cut_at)] if seed else []))
    for calls in itertools.count():
        root = tmp_path / str(calls)
        context = Context("consume_queue", small_log, root, SMALL)
        run(small_log, root, SMALL, iter([whole]))
        files = KilledFiles(calls)
        cut = Cursor(whole.end.store_id, 2, cut_at, 0)
        try:
            dispatcher = ConsumeQueueDispatcher(context, files)
            dispatcher.start()
            dispatcher.truncate(cut)
            assert dispatcher.flush() == cut
        except Killed:
            # Otherwise a file after a hole would hide its units from RocketMQ.
            for queue in (root / FOLDER).glob("*/*"):
                begins = sorted(int(path.name) for path in queue.iterdir())
                assert begins == list(range(0, len(begins) * 5 * UNIT_SIZE, 5 * UNIT_SIZE))
            dispatcher = ConsumeQueueDispatcher(context)
            cursor = dispatcher.start()
            assert cursor is not None
            if cursor.epoch == 1:
                dispatcher.truncate(cut)
        dispatcher.close()
        assert view_bytes(root / FOLDER) == expected
        if not files.killed:
            break


def test_a_trimmed_log_takes_the_files_that_lie_below(small_log, tmp_path):
    """A file is removed when all its records are gone; the last one of a queue stays."""
    run(small_log, tmp_path, SMALL, batches_from(small_log, None, 7))
    requests = list(log_batch(small_log))
    minimum = requests[30].commit_log_offset
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", small_log, tmp_path, SMALL))
    dispatcher.start()
    dispatcher.expire(minimum)
    dispatcher.close()
    for queue in sorted((tmp_path / FOLDER).glob("*/*")):
        names = sorted(path.name for path in queue.iterdir())
        last_units = [units((queue / name).read_bytes())[-1] for name in names[:-1]]
        assert all(offset >= minimum for offset, _, _ in last_units)
        of_queue = [r for r in requests if (r.topic, str(r.queue_id)) == (queue.parent.name, queue.name)]
        assert int(names[0]) // UNIT_SIZE <= min(
            (r.queue_offset for r in of_queue if r.commit_log_offset >= minimum), default=of_queue[-1].queue_offset
        )
    # The next start finds everything in order.
    assert ConsumeQueueDispatcher(Context("consume_queue", small_log, tmp_path, SMALL)).start() is not None


def test_a_kill_while_files_expire_leaves_them_to_the_next_start(small_log, tmp_path):
    """The ends without them are on disk before the first one is removed."""
    minimum = list(log_batch(small_log))[30].commit_log_offset
    for calls in itertools.count():
        root = tmp_path / str(calls)
        run(small_log, root, SMALL, batches_from(small_log, None, 7))
        context = Context("consume_queue", small_log, root, SMALL)
        files = KilledFiles(calls)
        try:
            dispatcher = ConsumeQueueDispatcher(context, files)
            dispatcher.start()
            dispatcher.expire(minimum)
        except Killed:
            pass
        assert ConsumeQueueDispatcher(context).start() is not None
        if not files.killed:
            break


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_deleted_topic_leaves_no_queue(small_log, tmp_path):
    """Its directories are removed, even if the process is killed meanwhile; later messages begin a new queue."""
    for calls in itertools.count():
        root = tmp_path / str(calls)
        run(small_log, root, SMALL, batches_from(small_log, None, 7))
        context = Context("consume_queue", small_log, root, SMALL)
        files = KilledFiles(calls)
        try:
            dispatcher = ConsumeQueueDispatcher(context, files)
            dispatcher.start()
            dispatcher.delete_topic("a")
        except Killed:
            dispatcher = ConsumeQueueDispatcher(context)
            dispatcher.start()
            dispatcher.delete_topic("a")
        assert sorted(path.name for path in (root / FOLDER).iterdir()) == ["b"]
        dispatcher.close()
        if not files.killed:
            break


def test_a_queue_that_does_not_begin_with_0_begins_with_pre_blank_units(tmp_path):
    """Like RocketMQ fills them, from the begin of the file that holds the first unit."""
    log = WrittenLog(tmp_path / "log")
    log.queue_offsets[b"orders", 0] = 12
    offset = log.append(b"x")
    store = log.save()
    files = run(store, tmp_path / "target", SMALL, iter([log_batch(store)]))
    (name,) = files
    assert name == f"orders/0/{10 * UNIT_SIZE:020d}"
    assert units(files[name])[:2] == [(0, PRE_BLANK_SIZE, 0)] * 2
    assert units(files[name])[2][0] == offset
    assert units(files[name])[3:] == [(0, 0, 0)] * 2


def test_lost_queue_offsets_get_pre_blank_units(tmp_path):
    """A hole in the log does not shift later messages: each unit stays at its queue offset."""
    log = WrittenLog(tmp_path / "log")
    first = log.append(b"x")
    log.queue_offsets[b"orders", 0] = 8
    behind = log.append(b"y")
    store = log.save()
    files = run(store, tmp_path / "target", SMALL, iter([log_batch(store)]))
    rows = [unit for name in sorted(files) for unit in units(files[name])]
    assert [row[0] for row in rows[:9]] == [first, *[0] * 7, behind]
    assert {row[1] for row in rows[1:8]} == {PRE_BLANK_SIZE}


def test_records_that_can_have_no_unit_are_put_aside(tmp_path):
    """A topic that leads out of the folder, an impossible queue offset: both are dead letters, the view continues."""
    log = WrittenLog(tmp_path / "log")
    bad = [
        log.append(b"x", topic=b"../escape"),
        log.append(b"x", topic=b".."),
        log.append(b"x", topic=b"a/b"),
        log.append(b"x", topic="é".encode() * 63 + b"ab", queue_offset=-1),
        log.append(b"x", topic=b"far", queue_offset=1 << 62),
    ]
    log.append(b"x", topic=b"good")
    log.append(b"x", topic=b"good", queue_offset=1 << 40)
    store = log.save()
    for size in (1, 50):
        root = tmp_path / str(size)
        context = Context("consume_queue", store, root, SMALL)
        dispatcher = ConsumeQueueDispatcher(context)
        dispatcher.start()
        for batch in batches_from(store, None, size):
            dispatcher.dispatch(batch)
        assert [offset for offset, _ in context.rejected] == [*bad, log.offsets[-1]]
        assert sorted(view_bytes(root / FOLDER)) == ["good/0/" + "0" * 20]
        assert not (tmp_path / "escape").exists()


def test_batch_queues_of_rocketmq_5_are_left_alone(tmp_path):
    """Records of several messages, and all records of a topic described as of that kind, get no unit."""
    log = WrittenLog(tmp_path / "log")
    for number in range(30):
        log.append(b"x", topic=b"inner", sys_flag=INNER_BATCH_FLAG)
        log.append(b"x", topic=b"batch")
        log.append(b"x", topic=b"plain", queue_offset=number)
    store = log.save()
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{"batch":{"attributes":{"queue.type":"BatchCQ"},'
        '"order":false,"perm":6,"readQueueNums":1,"topicFilterType":"SINGLE_TAG","topicName":"batch","topicSysFlag":0,'
        '"writeQueueNums":1}}}'
    )
    for size in (1, 1000):
        context = Context("consume_queue", store, tmp_path / str(size), SMALL)
        dispatcher = ConsumeQueueDispatcher(context)
        dispatcher.start()
        for batch in batches_from(store, None, size):
            dispatcher.dispatch(batch)
        assert {path.name for path in (tmp_path / str(size) / FOLDER).iterdir()} == {"plain"}
        assert context.counter("left_alone").value == 60


def adopt(store: Path) -> None:
    """Write the same files as the writer when it finds a store that RocketMQ closed cleanly."""
    identity = StoreIdentity(1, read_store_id(store), {}, adopted_clean=True)
    (store / "reput").mkdir(exist_ok=True)
    (store / "reput" / "store.json").write_bytes(seal(identity))


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_a_store_that_rocketmq_closed_is_taken_over(name, golden, broker_properties):
    """Nothing is rebuilt and no byte changes; dispatching continues after the last unit of all queues."""
    store = golden(name) / "store"
    settings = load_settings(broker_properties(name)).settings
    adopt(store)
    before = view_bytes(store / FOLDER)
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", store, store, settings))
    cursor = dispatcher.start()
    assert cursor is not None
    ends = [o + s for data in before.values() for o, s, _ in units(data) if s != PRE_BLANK_SIZE]
    assert cursor.commit_log_offset == max(ends)
    for batch in batches_from(store, cursor, 10):
        dispatcher.dispatch(batch)
    dispatcher.flush()
    assert view_bytes(store / FOLDER) == before


def test_stale_units_of_rocketmq_do_not_survive(golden, broker_properties):
    """RocketMQ cuts a queue without zeroing. Units that contradict the log are removed, and the records come again."""
    store = golden("basic-5.3") / "store"
    settings = load_settings(broker_properties("basic-5.3")).settings
    adopt(store)
    before = view_bytes(store / FOLDER)
    for name, data in before.items():
        used = data.rstrip(b"\0")
        count = -(-len(used) // UNIT_SIZE)
        if count + 3 < len(data) // UNIT_SIZE:
            offset, size, _ = units(data)[0]
            stale = b"".join(UNIT.pack(offset + 1 + number, size, 7) for number in range(3))
            at = count * UNIT_SIZE
            (store / FOLDER / name).write_bytes(data[:at] + stale + data[at + len(stale) :])
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", store, store, settings))
    for batch in batches_from(store, dispatcher.start(), 10):
        dispatcher.dispatch(batch)
    dispatcher.close()
    assert view_bytes(store / FOLDER) == before


def test_queues_of_a_killed_rocketmq_are_built_again(golden):
    """They may lack any unit, so none is trusted."""
    store = golden("crash-5.3") / "before" / "store"
    identity = StoreIdentity(1, read_store_id(store), {}, adopted_clean=False)
    (store / "reput").mkdir()
    (store / "reput" / "store.json").write_bytes(seal(identity))
    settings = Settings(mapped_file_size_consume_queue=6000)
    dispatcher = ConsumeQueueDispatcher(Context("consume_queue", store, store, settings))
    assert dispatcher.start() is None
    assert view_bytes(store / FOLDER) == {}


def test_a_view_that_is_gone_is_built_again(small_log, tmp_path):
    """A cursor without its files, or with an older copy of them, is found out at the start."""
    run(small_log, tmp_path / "old", SMALL, itertools.islice(batches_from(small_log, None, 20), 1))
    run(small_log, tmp_path / "new", SMALL, batches_from(small_log, None, 20))
    folder = tmp_path / "new" / FOLDER
    folder.rename(tmp_path / "gone")
    context = Context("consume_queue", small_log, tmp_path / "new", SMALL)
    with pytest.raises(RebuildNeeded):
        ConsumeQueueDispatcher(context).start()
    (tmp_path / "old" / FOLDER).rename(folder)
    with pytest.raises(RebuildNeeded):
        ConsumeQueueDispatcher(context).start()


def test_a_damaged_cursor_has_the_view_built_again(small_log, tmp_path):
    """Its end is unknown."""
    run(small_log, tmp_path, SMALL, batches_from(small_log, None, 20))
    context = Context("consume_queue", small_log, tmp_path, SMALL)
    path = context.directory / "cursor"
    path.write_bytes(path.read_bytes().replace(b"cursor", b"cursed"))
    with pytest.raises(RebuildNeeded):
        ConsumeQueueDispatcher(context).start()


def test_the_plugin_says_what_it_is(small_log, tmp_path):
    """It reads appended records, comes after the ext files if they are built, and owns one folder of the store."""
    described = reput_describe_dispatcher()
    assert (described.reads, described.after, described.after_failed) == ("appended", ("consume_queue_ext",), "proceed")
    assert described.store_folders == (FOLDER,)
    context = Context("consume_queue", small_log, tmp_path, SMALL)
    create: Callable[..., object] = reput_create_dispatcher
    assert isinstance(create(context), ConsumeQueueDispatcher)


@pytest.mark.parametrize("begin", [3 * 6000, 10**18, 9 * 10**18])
def test_a_store_with_a_strange_queue_file_is_built_again(golden, broker_properties, begin):
    """By its name most of the queue is missing; the missing files are not listed."""
    store = golden("basic-5.3") / "store"
    settings = load_settings(broker_properties("basic-5.3")).settings
    adopt(store)
    queue = next(path for path in sorted((store / FOLDER).glob("*/0")))
    (queue / f"{begin:020d}").write_bytes(b"strange")
    with pytest.raises(RebuildNeeded):
        ConsumeQueueDispatcher(Context("consume_queue", store, store, settings)).start()
