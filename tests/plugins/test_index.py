"""The dispatcher `index`: RocketMQ's bytes, in all circumstances."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dispatcher_host import Context, cut_into_batches, log_batch, view_bytes
from faulty_files import FullDisk, Killed, KilledFiles, PowerCutFiles
from golden_sets import CLEAN_SETS
from reput.settings import Settings, load_settings
from reput.store.disk.files import Clock, Files
from reput.store.disk.sealed_file import seal
from reput.store.index.index_builder import next_name
from reput.store.index.index_tags import shown_index_tags
from reput.store.state.identity import StoreIdentity, read_store_id
from reput_hooks import Cursor, DispatchBatch, RebuildNeeded, RetryLater
from reput_plugins.index import IndexDispatcher, reput_create_dispatcher, reput_describe_dispatcher
from simulation.simulated_machine import HeldThreads, PromptThreads
from written_log import WrittenLog

FOLDER = "index"
# Few slots make long chains, few entries make many files, which end within records.
SMALL = Settings(max_hash_slot_num=7, max_index_num=23, index_tags=True)


def index_bytes(root: Path) -> list[bytes]:
    """Return the files in the order of their names, which are not predictable."""
    return list(view_bytes(root / FOLDER).values())


def index_names(root: Path) -> list[str]:
    """Return the names of the files, ascending."""
    return sorted(view_bytes(root / FOLDER))


def run(
    store: Path, root: Path, settings: Settings, batches: Iterator[DispatchBatch], files: Files | None = None
) -> list[bytes]:
    """Build the index of *store* below *root* from its current position, and return its files."""
    dispatcher = IndexDispatcher(Context("index", store, root, settings), files)
    dispatcher.start()
    for batch in batches:
        dispatcher.dispatch(batch)
    dispatcher.flush()
    dispatcher.close()
    return index_bytes(root)


def batches_from(store: Path, cursor: Cursor | None, size: int) -> Iterator[DispatchBatch]:
    """Yield the log after *cursor* in batches of *size* records."""
    begin = None if cursor is None else cursor.commit_log_offset
    return cut_into_batches(log_batch(store, begin), itertools.repeat(size))


@pytest.fixture
def settings_of(
    golden_read_only: Callable[[str], Path], broker_properties: Callable[[str], Path]
) -> Callable[..., Settings]:
    """Return the settings with which a golden set is opened; *base*: instead of those of its broker."""

    def read(name: str, base: Settings | None = None) -> Settings:
        settings = base or load_settings(broker_properties(name)).settings
        sizes = settings.max_hash_slot_num, settings.max_index_num
        shown = shown_index_tags(golden_read_only(name) / "store", *sizes)
        return msgspec.structs.replace(settings, index_tags=bool(shown))

    return read


@pytest.fixture
def small_log(tmp_path: Path) -> Path:
    """A log of 60 records with none to seven keys each, including rolled-back and prepared ones."""
    log = WrittenLog(tmp_path / "small", segment_size=4096)
    chance = random.Random(5)
    for number in range(60):
        keys = " ".join(f"k{chance.randrange(30)}" for _ in range(chance.choice([0, 0, 1, 2, 6])))
        uniq = f"UNIQ_KEY\x01u{number}\x02" if chance.random() < 0.7 else ""
        uniq += chance.choice(["", "TAGS\x01paid\x02", "TAGS\x01bezahlt ✓ 😀\x02", "TAGS\x01\x02"])
        log.append(
            b"x",
            properties=f"{uniq}KEYS\x01{keys}\x02".encode() if keys else uniq.encode(),
            sys_flag=chance.choice([0, 0, 0, 0x4, 0x8, 0xC]),
            store_timestamp=1_700_000_000_000 + number * 700,
        )
    return log.save()


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("how", ["whole", "one by one", "at random"])
@pytest.mark.parametrize("name", CLEAN_SETS)
def test_the_index_equals_that_of_rocketmq(name, how, golden_read_only, settings_of, tmp_path):
    """Rebuilt from the log, each file has the broker's bytes, for any division of the log into batches."""
    store = golden_read_only(name) / "store"
    settings = settings_of(name)
    chance = random.Random(name)
    sizes = {
        "whole": itertools.repeat(1 << 30),
        "one by one": itertools.repeat(1),
        "at random": iter(lambda: chance.choice([1, 2, 3, 25, 100]), None),
    }[how]
    batches = cut_into_batches(log_batch(store, settings=settings), sizes)
    assert run(store, tmp_path / "target", settings, batches) == index_bytes(store)


@pytest.mark.parametrize("size", [1, 2, 7, 20])
def test_batches_of_any_size_make_the_same_files(size, small_log, tmp_path):
    """Key by key or thousands at a time, with a file's end within a record or after one without keys."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    assert len(expected) > 3
    assert run(small_log, tmp_path / "target", SMALL, batches_from(small_log, None, size)) == expected


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_restart_anywhere_gives_the_same_bytes(size, small_log, tmp_path):
    """Records dispatched after the last flush are undone at the next start, and come again."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    root = tmp_path / "target"
    for stop in itertools.count(1):
        dispatcher = IndexDispatcher(Context("index", small_log, root, SMALL))
        cursor = dispatcher.start()
        batches = list(batches_from(small_log, cursor, size))
        for number, batch in enumerate(batches[: stop % 4 + 1]):
            dispatcher.dispatch(batch)
            if number == 0:
                assert dispatcher.flush() == batch.end
        # Neither flushed nor closed: the process is gone.
        if len(batches) <= 1:
            break
    assert index_bytes(root) == expected


def flush_beside(dispatcher: IndexDispatcher) -> None:
    """Check a flush that runs beside, like the host between batches."""
    if not dispatcher.prepare_flush():
        dispatcher.flush()


def test_a_flush_goes_on_beside(small_log, tmp_path):
    """Batches come in between and fill files; the cursor is that of the beginning; later records are undone."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    context = Context("index", small_log, tmp_path / "target", SMALL)
    dispatcher = IndexDispatcher(context, threads=HeldThreads())
    assert not dispatcher.prepare_flush()
    dispatcher.start()
    batches = list(batches_from(small_log, None, 7))
    for batch in batches[:3]:
        dispatcher.dispatch(batch)
    assert dispatcher.prepare_flush()
    count = len(dispatcher.builder.names)
    for batch in batches[3:]:
        dispatcher.dispatch(batch)
        assert dispatcher.prepare_flush()
    assert len(dispatcher.builder.names) > count + 1
    dispatcher.flushing.thread.join()
    assert not dispatcher.prepare_flush()
    assert dispatcher.flush() == batches[2].end
    # Neither flushed again nor closed: the process is gone.
    again = IndexDispatcher(context)
    assert again.start() == batches[2].end
    for batch in batches[3:]:
        again.dispatch(batch)
    assert again.flush() == batches[-1].end
    again.close()
    dispatcher.close()
    assert index_bytes(tmp_path / "target") == expected


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize(("size", "beside"), [(4, True), (25, False)])
def test_a_kill_at_any_file_call_loses_nothing(size, beside, small_log, tmp_path):
    """Killed in the n-th call, for every n, and restarted: the same bytes."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    for calls in itertools.count():
        root = tmp_path / str(calls)
        files = KilledFiles(calls)
        context = Context("index", small_log, root, SMALL)
        try:
            dispatcher = IndexDispatcher(context, files, threads=PromptThreads())
            for number, batch in enumerate(batches_from(small_log, dispatcher.start(), size)):
                dispatcher.dispatch(batch)
                if number % 2:
                    flush_beside(dispatcher) if beside else dispatcher.flush()
        except Killed:
            pass
        dispatcher = IndexDispatcher(context)
        cursor = dispatcher.start()
        for batch in batches_from(small_log, cursor, size):
            dispatcher.dispatch(batch)
        dispatcher.close()
        assert index_bytes(root) == expected
        if not files.killed:
            break


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_loses_nothing(seed, small_log, tmp_path):
    """Slots and entries may be from any time since the last force: the safe entries suffice."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    chance = random.Random(seed)
    root = tmp_path / "target"
    context = Context("index", small_log, root, SMALL)
    files = PowerCutFiles()
    for _ in range(8):
        dispatcher = IndexDispatcher(context, files, threads=PromptThreads())
        for batch in itertools.islice(batches_from(small_log, dispatcher.start(), chance.randrange(1, 12)), 6):
            dispatcher.dispatch(batch)
            if chance.random() < 0.2:
                dispatcher.flush()
            for _ in range(chance.randrange(3)):
                flush_beside(dispatcher)
        dispatcher.close()
        files.cut(chance)
    dispatcher = IndexDispatcher(context)
    for batch in batches_from(small_log, dispatcher.start(), 5):
        dispatcher.dispatch(batch)
    dispatcher.close()
    assert index_bytes(root) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_between_any_two_words_loses_nothing(seed, small_log, tmp_path):
    """Any of the words written since the last flush may have reached the disk, and any other not."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    chance = random.Random(seed)
    root = tmp_path / "target"
    context = Context("index", small_log, root, SMALL)
    dispatcher = IndexDispatcher(context)
    dispatcher.start()
    batches = list(batches_from(small_log, None, chance.randrange(1, 30)))
    flushed = chance.randrange(len(batches))
    for batch in batches[:flushed]:
        dispatcher.dispatch(batch)
    dispatcher.flush()
    before = view_bytes(root / FOLDER)
    for batch in batches[flushed : flushed + 2]:
        dispatcher.dispatch(batch)
    dispatcher.close()
    for name, data in before.items():
        path = root / FOLDER / name
        after = path.read_bytes()
        path.write_bytes(b"".join(chance.choice((data, after))[at : at + 4] for at in range(0, len(data), 4)))
    dispatcher = IndexDispatcher(context)
    for batch in batches_from(small_log, dispatcher.start(), 5):
        dispatcher.dispatch(batch)
    dispatcher.close()
    assert index_bytes(root) == expected


def test_a_full_disk_pauses_the_view(small_log, tmp_path):
    """Space is reserved before anything changes: the same batch comes again, and nothing is duplicated or omitted."""
    expected = run(small_log, tmp_path / "expected", SMALL, batches_from(small_log, None, 1 << 30))
    disk = FullDisk(1)
    root = tmp_path / "target"
    dispatcher = IndexDispatcher(Context("index", small_log, root, SMALL), disk)
    dispatcher.start()
    refused = 0
    for batch in batches_from(small_log, None, 20):
        while True:
            before = index_bytes(root)
            try:
                dispatcher.dispatch(batch)
                break
            except RetryLater:
                assert index_bytes(root) == before
                refused += 1
                disk.room += refused
    dispatcher.close()
    assert refused
    assert index_bytes(root) == expected


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("seed", range(6))
def test_a_cut_history_is_forgotten(seed, small_log, tmp_path):
    """After `truncate` and the same records the bytes are the same, even after a kill in the middle of it."""
    whole = log_batch(small_log)
    cut_at = [request.commit_log_offset for request in whole][[0, 1, 20, 33, 50, 59][seed]]
    expected = run(small_log, tmp_path / "expected", SMALL, iter([whole]))
    for calls in itertools.count():
        root = tmp_path / str(calls)
        context = Context("index", small_log, root, SMALL)
        run(small_log, root, SMALL, iter([whole]))
        before = index_names(root)
        files = KilledFiles(calls)
        cut = Cursor(whole.end.store_id, 2, cut_at, 0)
        try:
            dispatcher = IndexDispatcher(context, files)
            dispatcher.start()
            dispatcher.truncate(cut)
            assert dispatcher.flush() == cut
        except Killed:
            # Otherwise a file after a hole would hide its entries from RocketMQ.
            assert index_names(root) == before[: len(index_names(root))]
            dispatcher = IndexDispatcher(context)
            cursor = dispatcher.start()
            assert cursor is not None
            if cursor.epoch == 1:
                dispatcher.truncate(cut)
        dispatcher = IndexDispatcher(context)
        assert dispatcher.start() == cut
        for batch in batches_from(small_log, cut, 9):
            dispatcher.dispatch(batch)
        dispatcher.close()
        assert index_bytes(root) == expected
        if not files.killed:
            break


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_cut_index_is_as_if_built_from_the_shorter_log(small_log, tmp_path):
    """Header, slots and entries; a file without entries is removed until the next record."""
    requests = list(log_batch(small_log))
    for request in requests[1:]:
        cut_at = request.commit_log_offset
        shorter = log_batch(small_log, until=cut_at)
        expected = run(small_log, tmp_path / f"expected-{cut_at}", SMALL, iter([shorter]))
        root = tmp_path / f"cut-{cut_at}"
        run(small_log, root, SMALL, batches_from(small_log, None, 25))
        dispatcher = IndexDispatcher(Context("index", small_log, root, SMALL))
        dispatcher.start()
        dispatcher.truncate(Cursor(shorter.end.store_id, 2, cut_at, 0))
        dispatcher.close()
        while expected and not int.from_bytes(expected[-1][36:40], "big"):
            expected.pop()
        assert index_bytes(root) == expected


def test_a_trimmed_log_takes_the_files_that_lie_below(small_log, tmp_path):
    """A file is removed with its last record, never the newest one; after a kill in between, at the next start."""
    minimum = list(log_batch(small_log))[45].commit_log_offset
    for calls in itertools.count():
        root = tmp_path / str(calls)
        before = run(small_log, root, SMALL, batches_from(small_log, None, 9))
        kept = [data for data in before if int.from_bytes(data[24:32], "big") >= minimum]
        assert 0 < len(kept) < len(before)
        context = Context("index", small_log, root, SMALL)
        files = KilledFiles(calls)
        try:
            dispatcher = IndexDispatcher(context, files)
            dispatcher.start()
            dispatcher.expire(minimum)
        except Killed:
            dispatcher = IndexDispatcher(context)
            dispatcher.start()
            dispatcher.expire(minimum)
        assert index_bytes(root) == kept
        if not files.killed:
            break


def adopt(store: Path) -> None:
    """Write the same files as the writer when it finds a store that RocketMQ closed cleanly."""
    identity = StoreIdentity(1, read_store_id(store), {}, adopted_clean=True)
    (store / "reput").mkdir(exist_ok=True)
    (store / "reput" / "store.json").write_bytes(seal(identity))


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("name", CLEAN_SETS)
def test_a_store_that_rocketmq_closed_is_taken_over(name, configured, golden, settings_of):
    """Nothing is rebuilt and no byte changes, even if the number of slots is not configured."""
    store = golden(name) / "store"
    settings = settings_of(name) if configured else settings_of(name, Settings())
    adopt(store)
    before = index_bytes(store)
    dispatcher = IndexDispatcher(Context("index", store, store, settings))
    cursor = dispatcher.start()
    assert cursor is not None
    requests = list(log_batch(store))
    assert cursor.commit_log_offset > requests[-10].commit_log_offset
    for batch in batches_from(store, cursor, 10):
        dispatcher.dispatch(batch)
    dispatcher.flush()
    assert index_bytes(store) == before


@pytest.mark.parametrize("name", ["basic-4.9", "basic-5.3", "basic-5.5"])
def test_keys_that_a_killed_rocketmq_lost_come_back(name, golden, settings_of):
    """RocketMQ drops its partial file and continues with a later record; the index is adopted up to that hole."""
    store = golden(name) / "store"
    settings = settings_of(name)
    adopt(store)
    before = index_bytes(store)
    paths = sorted((store / FOLDER).iterdir())
    paths[2].unlink()
    dispatcher = IndexDispatcher(Context("index", store, store, settings))
    cursor = dispatcher.start()
    assert cursor is not None
    for batch in batches_from(store, cursor, 10):
        dispatcher.dispatch(batch)
    dispatcher.flush()
    assert [path.name for path in sorted((store / FOLDER).iterdir())][:2] == [path.name for path in paths[:2]]
    assert index_bytes(store) == before


@pytest.mark.parametrize("name", ["basic-4.9", "basic-5.3", "basic-5.5", "batch-4.9"])
def test_the_newest_file_comes_again_when_it_is_gone(name, golden, settings_of):
    """Keys of the last record in a full file may have been in the next one."""
    store = golden(name) / "store"
    settings = settings_of(name)
    adopt(store)
    before = index_bytes(store)
    max((store / FOLDER).iterdir()).unlink()
    dispatcher = IndexDispatcher(Context("index", store, store, settings))
    for batch in batches_from(store, dispatcher.start(), 10):
        dispatcher.dispatch(batch)
    dispatcher.flush()
    assert index_bytes(store) == before


def test_a_last_file_that_is_not_whole_is_built_again(golden, settings_of):
    """RocketMQ 4.9 leaves forcing it to the system, so pages may be lost even after a clean end."""
    store = golden("basic-4.9") / "store"
    settings = settings_of("basic-4.9")
    adopt(store)
    before = index_bytes(store)
    last = max((store / FOLDER).iterdir())
    data = bytearray(last.read_bytes())
    data[40:400] = bytes(360)
    last.write_bytes(data)
    dispatcher = IndexDispatcher(Context("index", store, store, settings))
    for batch in batches_from(store, dispatcher.start(), 10):
        dispatcher.dispatch(batch)
    dispatcher.flush()
    assert index_bytes(store) == before


def test_an_index_of_a_killed_rocketmq_is_built_again(golden):
    """It may lack any entry, so none is trusted."""
    store = golden("crash-5.3") / "before" / "store"
    identity = StoreIdentity(1, read_store_id(store), {}, adopted_clean=False)
    (store / "reput").mkdir()
    (store / "reput" / "store.json").write_bytes(seal(identity))
    assert IndexDispatcher(Context("index", store, store, Settings())).start() is None
    assert index_bytes(store) == []


def test_a_view_that_is_gone_is_built_again(small_log, tmp_path):
    """A cursor without its files, or with an older copy of them, is detected at the start."""
    run(small_log, tmp_path, SMALL, batches_from(small_log, None, 20))
    context = Context("index", small_log, tmp_path, SMALL)
    last = max((tmp_path / FOLDER).iterdir())
    data = last.read_bytes()
    last.write_bytes(data[:100] + bytes(len(data) - 100))
    with pytest.raises(RebuildNeeded):
        IndexDispatcher(context).start()
    last.unlink()
    with pytest.raises(RebuildNeeded):
        IndexDispatcher(context).start()


class StoppedClock(Clock):
    """A clock that only moves manually."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


def test_files_are_named_in_their_order_whatever_the_clock_does(small_log, tmp_path):
    """Names determine the order: they are at least 1 ms apart, and never go back."""
    clock = StoppedClock(1_700_000_000_999)
    dispatcher = IndexDispatcher(Context("index", small_log, tmp_path, SMALL), clock=clock)
    dispatcher.start()
    ends = []
    for batch in batches_from(small_log, None, 9):
        dispatcher.dispatch(batch)
        clock.time_ms -= 5_000
    dispatcher.close()
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert {len(name) for name in names} == {17}
    ends = [int.from_bytes((tmp_path / FOLDER / name).read_bytes()[24:32], "big") for name in names]
    assert ends == sorted(ends)


def test_a_name_that_is_no_time_is_followed_too():
    """RocketMQ accepts any number as the name of an index file."""
    assert next_name("99999999999999999", 0) == "100000000000000000"
    assert next_name("20261121102843999", 0) == "20261121102844000"
    assert next_name("20261231235959999", 0) == "20270101000000000"


def test_the_plugin_says_what_it_is(small_log, tmp_path):
    """It reads appended records, and owns one folder of the store."""
    described = reput_describe_dispatcher()
    assert (described.reads, described.after, described.store_folders) == ("appended", (), (FOLDER,))
    assert isinstance(reput_create_dispatcher(Context("index", small_log, tmp_path, SMALL)), IndexDispatcher)
