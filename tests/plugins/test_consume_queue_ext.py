"""The dispatcher `consume_queue_ext`: RocketMQ's units, and the consume queue that refers to them."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import reput
from delivering import wait_until
from dispatcher_host import Context, cut_into_batches, log_batch, view_bytes
from faulty_files import FullDisk, Killed, KilledFiles, PowerCutFiles
from reput.filter import BloomFilter
from reput.settings import Settings, load_settings
from reput.store.disk.files import Files
from reput.store.disk.open_files import OpenFiles
from reput.store.disk.sealed_file import read_sealed, seal
from reput.store.ext.consume_queue_ext import ConsumeQueueExt, is_address
from reput.store.queue.consume_queue import UNIT, UNIT_SIZE
from reput.store.recovery.damage_list import DamagedRange, DamageList
from reput.store.service.threads import Threads
from reput.store.state.identity import StoreIdentity, read_store_id
from reput_hooks import Cursor, DispatchBatch, RebuildNeeded, RetryLater
from reput_plugins.consume_queue import ConsumeQueueDispatcher
from reput_plugins.consume_queue_ext import (
    ConsumeQueueExtDispatcher,
    FiltersInUse,
    reput_create_dispatcher,
    reput_describe_dispatcher,
)
from simulation.simulated_machine import HeldThreads, PromptThreads
from small_store import overwrite, small_sidecars
from written_log import START_MS, WrittenLog

WAIT_S = 60.0
FOLDER = "consumequeue_ext"
QUEUES = "consumequeue"
SMALL = Settings(
    mapped_file_size_consume_queue=5 * UNIT_SIZE,
    mapped_file_size_consume_queue_ext=100,
    enable_consume_queue_ext=True,
    enable_calc_filter_bit_map=True,
    expect_consumer_num_use_filter=8,
)


def ext_of(
    store: Path,
    root: Path,
    settings: Settings = SMALL,
    files: Files | None = None,
    threads: Threads | None = None,
) -> ConsumeQueueExtDispatcher:
    """Return the dispatcher of the ext files below *root*; its parallel flushes are finished at once."""
    context = Context("consume_queue_ext", store, root, settings)
    return ConsumeQueueExtDispatcher(context, files, threads or PromptThreads())


def queues_of(store: Path, root: Path, settings: Settings = SMALL) -> ConsumeQueueDispatcher:
    """Return the dispatcher of the consume queues below *root*."""
    return ConsumeQueueDispatcher(Context("consume_queue", store, root, settings))


def batches_from(store: Path, cursor: Cursor | None, size: int) -> Iterator[DispatchBatch]:
    """Yield the log after *cursor* in batches of *size* records, with their properties."""
    begin = None if cursor is None else cursor.commit_log_offset
    return cut_into_batches(log_batch(store, begin, needs_properties=True), itertools.repeat(size))


def register(store: Path, expressions: dict[str, str], topic: str = "a") -> None:
    """Write ``consumerFilter.json`` with these expressions by group."""
    bloom_filter = BloomFilter(SMALL.max_error_rate_of_bloom_filter, SMALL.expect_consumer_num_use_filter)
    groups = {}
    for group, expression in expressions.items():
        bits = bloom_filter.calculate_for(group, topic)
        groups[group] = {
            "bloomFilterData": {"bitNum": bits.bit_count, "bitPos": list(bits.bit_positions)},
            "bornTime": START_MS,
            "clientVersion": 1,
            "consumerGroup": group,
            "dead": False,
            "deadTime": 0,
            "expression": expression,
            "expressionType": "SQL92",
            "topic": topic,
        }
    path = store / "config" / "consumerFilter.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"filterDataByTopic": {topic: {"groupFilterData": groups, "topic": topic}}}))
    # Two writes within a tick of the file system's clock differ only in the inode.
    os.utime(path, ns=(register.time_ns, register.time_ns))  # type: ignore[attr-defined]
    register.time_ns += 1_000_000_000  # type: ignore[attr-defined]


register.time_ns = START_MS * 1_000_000  # type: ignore[attr-defined]


@pytest.fixture
def small_log(tmp_path: Path) -> Path:
    """A log of 28 records in four queues, with a property that two filters use."""
    log = WrittenLog(tmp_path / "small", segment_size=4096)
    chance = random.Random(3)
    for number in range(28):
        log.append(
            b"x",
            topic=chance.choice([b"a", b"a", b"b"]),
            queue_id=chance.randrange(2),
            properties=b"n\x01%d\x02TAGS\x01t%d\x02" % (number, number % 3),
        )
    store = log.save()
    register(store, {"low": "n BETWEEN 0 AND 19", "high": "n BETWEEN 15 AND 99"})
    return store


def run(store: Path, root: Path, size: int = 1 << 30) -> dict[str, bytes]:
    """Build the ext files of *store* below *root* and return them."""
    dispatcher = ext_of(store, root)
    for batch in batches_from(store, dispatcher.start(), size):
        dispatcher.dispatch(batch)
    dispatcher.flush()
    dispatcher.close()
    return view_bytes(root / FOLDER)


@pytest.mark.parametrize("size", [1, 13, 1 << 30])
def test_units_and_addresses_equal_those_of_rocketmq(size, golden_read_only, broker_properties, tmp_path):
    """Ext files and consume queues have the broker's bytes."""
    store = golden_read_only("ext-4.9") / "store"
    settings = load_settings(broker_properties("ext-4.9")).settings
    ext, queues = ext_of(store, tmp_path, settings), queues_of(store, tmp_path, settings)
    assert ext.start() is None
    assert queues.start() is None
    for batch in batches_from(store, None, size):
        ext.dispatch(batch)
        queues.dispatch(batch)
    assert view_bytes(tmp_path / FOLDER) == view_bytes(store / FOLDER)
    assert view_bytes(tmp_path / QUEUES) == view_bytes(store / QUEUES)


def test_the_bits_are_those_of_the_filters_that_match(small_log, tmp_path):
    """A topic without filters has units without a bit map."""
    run(small_log, tmp_path)
    bloom_filter = BloomFilter(SMALL.max_error_rate_of_bloom_filter, SMALL.expect_consumer_num_use_filter)
    low, high = (bloom_filter.calculate_for(group, "a").mask for group in ("low", "high"))
    for topic in ("a", "b"):
        for queue_id in range(2):
            requests = [
                request for request in log_batch(small_log) if (request.topic, request.queue_id) == (topic, queue_id)
            ]
            ext = ConsumeQueueExt(tmp_path / FOLDER / topic / str(queue_id), 100, OpenFiles())
            units = [unit for _, unit in ext.units()]
            assert [unit.store_timestamp for unit in units] == [request.store_timestamp for request in requests]
            assert [unit.tags_code for unit in units] == [request.tags_code for request in requests]
            for unit, request in zip(units, requests, strict=True):
                number = request.store_timestamp - START_MS
                if topic == "b":
                    assert unit.filter_bit_map is None
                else:
                    assert unit.filter_bit_map is not None
                    bits = int.from_bytes(unit.filter_bit_map, "little")
                    assert bits == (low if number < 20 else 0) | (high if number >= 15 else 0)


def test_without_calculation_there_are_units_without_bits(small_log, tmp_path):
    """Like RocketMQ with ``enableCalcFilterBitMap`` off."""
    settings = msgspec.structs.replace(SMALL, enable_calc_filter_bit_map=False)
    dispatcher = ext_of(small_log, tmp_path, settings)
    dispatcher.start()
    for batch in batches_from(small_log, None, 10):
        dispatcher.dispatch(batch)
    ext = ConsumeQueueExt(tmp_path / FOLDER / "a" / "0", 100, OpenFiles())
    assert {unit.filter_bit_map for _, unit in ext.units()} == {None}


def test_new_filters_are_taken_up_and_told(small_log, tmp_path):
    """After a registration, the store time from which the filter's bits are reliable is reported."""
    dispatcher = ext_of(small_log, tmp_path)
    dispatcher.start()
    batches = list(batches_from(small_log, None, 20))
    told = tmp_path / "reput" / "views" / "consume_queue_ext" / "filters"
    dispatcher.dispatch(batches[0])
    first = read_sealed(told, FiltersInUse)
    assert first is not None
    assert first.store_timestamp == 0
    register(small_log, {"all": "n IS NOT NULL"})
    dispatcher.dispatch(batches[1])
    second = read_sealed(told, FiltersInUse)
    assert second is not None
    assert second.digest != first.digest
    assert second.store_timestamp == batches[0].end.store_timestamp
    # A restart with the same filters reports nothing new.
    dispatcher.flush()
    again = ext_of(small_log, tmp_path)
    again.start()
    again.dispatch(DispatchBatch(batches[1].end.commit_log_offset, batches[1].end, []))
    assert read_sealed(told, FiltersInUse) == second
    # It also works without the file.
    (small_log / "config" / "consumerFilter.json").unlink()
    again.dispatch(DispatchBatch(batches[1].end.commit_log_offset, batches[1].end, []))
    third = read_sealed(told, FiltersInUse)
    assert third is not None
    assert third.digest == ""


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("size", [1, 7])
def test_a_restart_anywhere_gives_the_same_bytes(size, small_log, tmp_path):
    """Records dispatched after the last flush are undone at the next start, and come again."""
    expected = run(small_log, tmp_path / "expected")
    root = tmp_path / "target"
    for stop in itertools.count(1):
        dispatcher = ext_of(small_log, root)
        batches = list(batches_from(small_log, dispatcher.start(), size))
        for number, batch in enumerate(batches[: stop % 4 + 1]):
            dispatcher.dispatch(batch)
            if number == 0:
                assert dispatcher.flush() == batch.end
        if len(batches) <= 1:
            break
    assert view_bytes(root / FOLDER) == expected


def flush_beside(dispatcher):
    """Check a flush that runs beside, like the host between batches."""
    if not dispatcher.prepare_flush():
        dispatcher.flush()


def test_a_flush_goes_on_beside(small_log, tmp_path):
    """Batches come in between; the cursor is that of the beginning, and later records are undone."""
    expected = run(small_log, tmp_path / "expected")
    dispatcher = ext_of(small_log, tmp_path / "target", threads=HeldThreads())
    assert not dispatcher.prepare_flush()
    dispatcher.start()
    first, *further = batches_from(small_log, None, 20)
    dispatcher.dispatch(first)
    assert dispatcher.prepare_flush()
    for batch in further:
        dispatcher.dispatch(batch)
    dispatcher.flushing.thread.join()
    assert not dispatcher.prepare_flush()
    assert dispatcher.flush() == first.end
    # Neither flushed again nor closed: the process is gone.
    assert ext_of(small_log, tmp_path / "target").start() == first.end
    assert run(small_log, tmp_path / "target", 20) == expected


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_kill_at_any_file_call_loses_nothing(small_log, tmp_path, monkeypatch):
    """Killed in the n-th call, for every n, including torn writes, and restarted: the same bytes."""
    small_sidecars(monkeypatch)
    expected = run(small_log, tmp_path / "expected")
    for calls in itertools.count():
        root = tmp_path / str(calls)
        files = KilledFiles(calls)
        try:
            dispatcher = ext_of(small_log, root, files=files)
            for number, batch in enumerate(batches_from(small_log, dispatcher.start(), 20)):
                dispatcher.dispatch(batch)
                flush_beside(dispatcher) if number % 2 else dispatcher.flush()
        except Killed:
            pass
        assert run(small_log, root, 20) == expected
        if not files.killed:
            break


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("seed", range(15))
def test_a_power_cut_loses_nothing(seed, small_log, tmp_path, monkeypatch):
    """Whatever unforced data the disk kept, the cursor marks the safe part and the rest comes again."""
    small_sidecars(monkeypatch)
    expected = run(small_log, tmp_path / "expected")
    chance = random.Random(seed)
    root = tmp_path / "target"
    files = PowerCutFiles()
    for _ in range(6):
        dispatcher = ext_of(small_log, root, files=files)
        for batch in itertools.islice(batches_from(small_log, dispatcher.start(), chance.randrange(1, 9)), 4):
            dispatcher.dispatch(batch)
            if chance.random() < 0.2:
                dispatcher.flush()
            for _ in range(chance.randrange(3)):
                flush_beside(dispatcher)
        dispatcher.close()
        files.cut(chance)
    assert run(small_log, root, 5) == expected


def test_a_full_disk_pauses_the_view(small_log, tmp_path):
    """The same batch comes again until there is space, and no unit is duplicated."""
    expected = run(small_log, tmp_path / "expected")
    disk = FullDisk(1)
    dispatcher = ext_of(small_log, tmp_path / "target", files=disk)
    dispatcher.start()
    refused = 0
    for batch in batches_from(small_log, None, 10):
        while True:
            try:
                dispatcher.dispatch(batch)
                break
            except RetryLater:
                refused += 1
                disk.room = refused
    assert refused
    assert view_bytes(tmp_path / "target" / FOLDER) == expected


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("kept", [0, 1, 17, 27])
def test_a_cut_history_is_forgotten(kept, small_log, tmp_path):
    """After `truncate` the files are as if built from the shorter log, even after a kill in the middle of it."""
    whole = log_batch(small_log, needs_properties=True)
    cut_at = [request.commit_log_offset for request in whole][kept]
    cut = Cursor(whole.end.store_id, 2, cut_at, 0)
    shorter = ext_of(small_log, tmp_path / "expected")
    shorter.start()
    if kept:
        shorter.dispatch(log_batch(small_log, until=cut_at, needs_properties=True))
    expected = view_bytes(tmp_path / "expected" / FOLDER)
    for calls in itertools.count():
        root = tmp_path / str(calls)
        run(small_log, root)
        files = KilledFiles(calls)
        try:
            dispatcher = ext_of(small_log, root, files=files)
            dispatcher.start()
            dispatcher.truncate(cut)
            assert dispatcher.flush() == cut
        except Killed:
            dispatcher = ext_of(small_log, root)
            cursor = dispatcher.start()
            assert cursor is not None
            if cursor.epoch == 1:
                dispatcher.truncate(cut)
        assert view_bytes(root / FOLDER) == expected
        if not files.killed:
            break


def test_what_expires_and_what_is_deleted_goes(small_log, tmp_path):
    """Files without units of existing records; all files of a topic. The next start finds the rest in order."""
    run(small_log, tmp_path)
    requests = list(log_batch(small_log))
    minimum = requests[20].commit_log_offset
    before = view_bytes(tmp_path / FOLDER)
    dispatcher = ext_of(small_log, tmp_path)
    dispatcher.start()
    dispatcher.expire(minimum)
    dispatcher.delete_topic("b")
    after = view_bytes(tmp_path / FOLDER)
    assert {Path(name).parts[0] for name in after} == {"a"}
    assert after.items() <= before.items()
    # The sidecar is also removed by files, which are large: the first file that it knows stays.
    assert ext_of(small_log, tmp_path).start() is not None


def adopt(store: Path) -> None:
    """Write the same files as the writer when it finds a store that RocketMQ closed cleanly."""
    identity = StoreIdentity(1, read_store_id(store), {}, adopted_clean=True)
    (store / "reput").mkdir(exist_ok=True)
    (store / "reput" / "store.json").write_bytes(seal(identity))


def test_a_store_that_rocketmq_closed_is_taken_over(golden, broker_properties):
    """No byte changes, and both views continue after the existing entries."""
    store = golden("ext-4.9") / "store"
    settings = load_settings(broker_properties("ext-4.9")).settings
    adopt(store)
    before = view_bytes(store / FOLDER), view_bytes(store / QUEUES)
    ext, queues = ext_of(store, store, settings), queues_of(store, store, settings)
    cursor = ext.start()
    assert cursor is not None
    assert queues.start() == cursor
    for batch in batches_from(store, cursor, 5):
        ext.dispatch(batch)
        queues.dispatch(batch)
    ext.flush()
    queues.flush()
    assert (view_bytes(store / FOLDER), view_bytes(store / QUEUES)) == before
    assert ext_of(store, store, settings).start() is not None


def begun_queues(small_log, tmp_path):
    """Return queues that have the first batch, like the ext files, and the log's batches."""
    ext, queues = ext_of(small_log, tmp_path), queues_of(small_log, tmp_path)
    ext.start()
    queues.start()
    batches = list(batches_from(small_log, None, 20))
    ext.dispatch(batches[0])
    queues.dispatch(batches[0])
    return queues, batches


def test_queues_are_made_anew_with_the_ext_files(small_log, tmp_path):
    """Addresses belong to one generation of the ext files; in another they would lead to other units."""
    queues, batches = begun_queues(small_log, tmp_path)
    units = UNIT.iter_unpack((tmp_path / QUEUES / "a" / "0" / ("0" * 20)).read_bytes())
    assert is_address(next(units)[2])
    queues.flush()
    assert queues_of(small_log, tmp_path).start() == batches[0].end
    (tmp_path / "reput" / "views" / "consume_queue_ext" / "cursor").unlink(missing_ok=True)
    ext_of(small_log, tmp_path).start()
    with pytest.raises(RebuildNeeded):
        queues.dispatch(batches[1])
    again = queues_of(small_log, tmp_path)
    again.start()
    with pytest.raises(RebuildNeeded):
        again.dispatch(batches[1])


def units_by_record(root: Path) -> dict[int, int]:
    """Return the third field of each unit of the queues, by the commit-log offset of its record."""
    return {
        unit[0]: unit[2]
        for path in (root / QUEUES).rglob("0*")
        if path.is_file()
        for unit in UNIT.iter_unpack(path.read_bytes())
        if unit[1]
    }


def test_queues_that_the_log_cannot_give_again_are_kept(small_log, tmp_path):
    """Readers would lose the messages after the damage. This is reported; new units have plain tags codes; and when the
    damage is accepted, the queues are rebuilt."""
    store = small_log
    batches = list(batches_from(store, None, 9))
    ext, queues = ext_of(store, tmp_path), queues_of(store, tmp_path)
    for dispatcher in (ext, queues):
        dispatcher.start()
        for batch in batches[:2]:
            dispatcher.dispatch(batch)
    queues.flush()
    before = units_by_record(tmp_path)
    damaged, following = [request.commit_log_offset for request in batches[0]][4:6]
    overwrite(store, damaged, b"\xff" * 8)
    (tmp_path / "reput" / "views" / "consume_queue_ext" / "cursor").unlink(missing_ok=True)
    ext_of(store, tmp_path).start()
    for dispatcher in (queues, restarted := queues_of(store, tmp_path)):
        if dispatcher is restarted:
            dispatcher.start()
        dispatcher.dispatch(batches[2])
        dispatcher.dispatch(batches[3])
        new = {request.commit_log_offset: request.tags_code for batch in batches[2:4] for request in batch}
        assert units_by_record(tmp_path) == before | new
    damage = DamageList([DamagedRange(damaged, following, "test", accepted=True)])
    (store / "reput").mkdir(exist_ok=True)
    (store / "reput" / "damage").write_bytes(seal(damage))
    with pytest.raises(RebuildNeeded):
        restarted.dispatch(batches[3])


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_program_that_ends_before_damage_leaves_readers_what_lies_behind(tmp_path):
    """The ext files are lost, and cannot be rebuilt beyond the damage: with their dispatcher stopped, the queues take
    in new records, and lose nothing."""
    views = {"mode": "inline", "dispatchers": ("consume_queue_ext", "consume_queue")}
    small = {"mapped_file_size_commit_log": 4096, "enable_consume_queue_ext": True, "dispatcher_flush_interval": 10}
    with reput.open(tmp_path, **views, **small) as store:
        results = [store.put(reput.Message("orders", b"x" * 100)) for _ in range(60)]
        store.wait_for("consume_queue", store.appended, WAIT_S)
    damaged = results[20].commit_log_offset
    overwrite(tmp_path, damaged, b"\xff" * 8)
    (tmp_path / FOLDER).rename(tmp_path.with_name("gone"))
    with reput.open(tmp_path, **views, **small) as store:
        wait_until(lambda: str(damaged) in str(store.status().dispatchers[0].error))
        store.put(reput.Message("orders", b"new"))
    with reput.open(tmp_path, read_only=True) as reader:
        assert [record.body for record in reader.get("orders", 0, 21, count_max=100)] == [b"x" * 100] * 39 + [b"new"]


def test_a_damaged_name_of_the_ext_files_is_another_name(small_log, tmp_path):
    """The queues are rebuilt, and use the new name from then on; no dispatcher fails."""
    queues, batches = begun_queues(small_log, tmp_path)
    generation = tmp_path / "reput" / "views" / "consume_queue_ext" / "generation"
    generation.write_bytes(b"\xb0" + generation.read_bytes())
    os.utime(generation, ns=(1, 1))
    with pytest.raises(RebuildNeeded):
        queues.dispatch(batches[1])
    again = queues_of(small_log, tmp_path)
    again.start()
    for batch in batches[:2]:
        again.dispatch(batch)


def test_without_ext_units_the_queue_has_the_tags_code(small_log, tmp_path):
    """The ext dispatcher may be paused or lag: a plain tags code makes filters check the record."""
    ext, queues = ext_of(small_log, tmp_path), queues_of(small_log, tmp_path)
    ext.start()
    queues.start()
    batches = list(batches_from(small_log, None, 20))
    ext.dispatch(batches[0])
    for batch in batches:
        queues.dispatch(batch)
    by_record = units_by_record(tmp_path)
    for request in batches[0]:
        assert is_address(by_record[request.commit_log_offset])
    for request in batches[1]:
        assert by_record[request.commit_log_offset] == request.tags_code


@pytest.mark.parametrize("lost", ["files", "cursor"])
def test_a_view_that_is_gone_is_built_again(lost, small_log, tmp_path):
    """A cursor without its files, or a damaged one, is detected at the start."""
    run(small_log, tmp_path)
    if lost == "files":
        (tmp_path / FOLDER).rename(tmp_path / "gone")
    else:
        path = tmp_path / "reput" / "views" / "consume_queue_ext" / "cursor"
        path.write_bytes(path.read_bytes().replace(b"cursor", b"cursed"))
    with pytest.raises(RebuildNeeded):
        ext_of(small_log, tmp_path).start()


def test_the_plugin_says_what_it_is(small_log, tmp_path):
    """It needs the properties that filters use."""
    described = reput_describe_dispatcher()
    assert (described.reads, described.needs_properties, described.store_folders) == ("appended", True, (FOLDER,))
    create: Callable[..., object] = reput_create_dispatcher
    context = Context("consume_queue_ext", small_log, tmp_path, SMALL)
    assert isinstance(create(context), ConsumeQueueExtDispatcher)
