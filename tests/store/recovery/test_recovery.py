"""Recovery: the end of a log after every kind of damage, and the next queue offsets."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys

import pytest

from faulty_files import Killed, KilledFiles, PowerCutFiles
from golden_sets import CLEAN_SETS, read_lines
from reput.errors import ConfigError, DamagedStore
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.check.dump import dump_log
from reput.store.log.segments import Segments
from reput.store.record.message import Message
from reput.store.recovery.recovery import recover
from reput.store.recovery.repair import accept, cut
from reput_hooks import Cursor
from small_store import (
    SEGMENT_SIZE,
    START_MS,
    ManualClock,
    UnforcedFiles,
    drop,
    extents,
    log_bytes,
    message_of_size,
    open_store,
    overwrite,
    records,
)
from written_log import WrittenLog


def recovered(store, store_id="0" * 32):
    """Return the result of a recovery, without opening the store."""
    return recover(store, Segments(store / "commitlog"), store_id, START_MS, None)


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"the last body", tags="tag", keys=["k1", "k2"]),
        Message("orders", b""),
        Message("orders", bytes(20)),
        Message("orders", b"x", properties={"a": "b"}),
    ],
    ids=["texts", "empty", "zeros", "property"],
)
def test_a_last_record_that_is_torn_at_any_byte_is_cut(tmp_path, message):
    """Whatever part of it reached the disk: the log ends before it, its queue offset is reused, and nothing is lost."""
    store = tmp_path / "store"
    opened = open_store(store, files=UnforcedFiles())
    opened.put(Message("orders", b"first", tags="tag"))
    last = opened.put(message)
    drop(opened)
    begin, whole = last.commit_log_offset, log_bytes(store)
    data = whole[begin : last.next_commit_log_offset]
    for left in range(last.record_size + 1):
        overwrite(store, begin, data[:left].ljust(len(data), b"\0"))
        is_whole = not data[left:].strip(b"\0")
        again = open_store(store, files=UnforcedFiles())
        assert again.appended == (last.next_commit_log_offset if is_whole else begin), left
        assert again.queue_offsets.next_offset("orders", 0) == 1 + is_whole, left
        drop(again)
        cut = store / "reput" / "cut"
        if not is_whole and data[:left].strip(b"\0"):
            kept = [path.read_bytes() for path in cut.iterdir()]
            assert kept == [data[:left].rstrip(b"\0")], left
            for path in cut.iterdir():
                path.unlink()


@pytest.mark.parametrize("left", range(0, 30, 3))
def test_a_batch_that_is_torn_ends_with_its_last_whole_record(tmp_path, left):
    """The batch's earlier records exist."""
    store = tmp_path / "store"
    opened = open_store(store)
    results = opened.put_batch([Message("orders", b"body", tags="t") for _ in range(6)])
    drop(opened)
    overwrite(store, results[4].commit_log_offset + left, bytes(results[5].next_commit_log_offset))
    again = open_store(store)
    assert again.appended == results[4].commit_log_offset
    assert again.put(Message("orders", b"")).queue_offset == 4
    again.close(views_complete=True)


def test_a_segment_that_was_made_ahead_is_no_damage(tmp_path):
    """It is empty, and is removed."""
    store = tmp_path / "store"
    opened = open_store(store)
    opened.put(message_of_size(3900))
    drop(opened)
    (store / "commitlog" / f"{SEGMENT_SIZE:020d}").write_bytes(bytes(SEGMENT_SIZE))
    (store / "commitlog" / f"{2 * SEGMENT_SIZE:020d}").write_bytes(bytes(SEGMENT_SIZE))
    again = open_store(store)
    assert again.appended == 3900
    again.close(views_complete=True)
    assert [path.name for path in (store / "commitlog").iterdir()] == [f"{0:020d}"]


def test_an_empty_last_segment_file_is_no_damage(tmp_path):
    """Its creation was interrupted before it had its size. The log rolls into it as if it did not exist."""
    store = tmp_path / "store"
    opened = open_store(store)
    opened.put(message_of_size(3900))
    drop(opened)
    path = store / "commitlog" / f"{SEGMENT_SIZE:020d}"
    path.unlink(missing_ok=True)
    path.touch()
    again = open_store(store)
    assert again.put(message_of_size(1000)).commit_log_offset == SEGMENT_SIZE
    again.close(views_complete=True)
    assert len(records(store)) == 2


def test_a_hole_in_a_log_that_was_closed_is_damage(tmp_path):
    """Only an operator decides about it."""
    store = tmp_path / "store"
    opened = open_store(store)
    results = [opened.put(message_of_size(500, queue_id=number % 3)) for number in range(12)]
    opened.close(views_complete=True)
    begin, end = results[2].commit_log_offset, results[5].commit_log_offset
    overwrite(store, begin, bytes(end - begin))
    # reput would not read beyond its own mark, which is still valid.
    assert recovered(store).end == results[-1].next_commit_log_offset
    (store / "reput" / "queue_offsets").unlink()
    with pytest.raises(DamagedStore, match=f"from={begin} until={end}"):
        recovered(store)


def test_a_last_record_that_is_garbled_after_a_clean_close_is_damage(tmp_path):
    """It existed when the store was closed, so it is not treated as the result of a crash."""
    store = tmp_path / "store"
    opened = open_store(store)
    results = [opened.put(message_of_size(500)) for _ in range(3)]
    opened.close(views_complete=True)
    begin = results[-1].commit_log_offset
    overwrite(store, begin + 200, b"?")
    with pytest.raises(DamagedStore, match=f"from={begin}"):
        open_store(store)


@pytest.mark.parametrize("left", [1, 1000])
def test_a_log_that_is_shorter_than_when_it_was_closed_is_damaged(tmp_path, left):
    """Whether the missing records left traces or not."""
    store = tmp_path / "store"
    opened = open_store(store)
    for _ in range(5):
        opened.put(message_of_size(500))
    opened.close(views_complete=True)
    overwrite(store, 1000, bytes(1500))
    with pytest.raises(DamagedStore, match="from=1000 until=2500"):
        open_store(store)
    path = store / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DamagedStore, match="until=2500"):
        open_store(store)


def test_old_records_behind_the_end_are_put_away(tmp_path):
    """RocketMQ leaves them when it cuts. They are kept elsewhere, and no reader meets them again."""
    old = WrittenLog(tmp_path / "old", SEGMENT_SIZE)
    for _ in range(12):
        old.append(b"o" * 500)
    new = WrittenLog(tmp_path / "store", SEGMENT_SIZE)
    for _ in range(3):
        new.append(b"o" * 500)
    new.append(b"n" * 600, store_timestamp=START_MS + 1000)
    end = new.end
    new.data += old.data[end:]
    new.save()
    opened = open_store(new.store)
    assert opened.appended == end
    assert opened.put(Message("orders", b"next")).queue_offset == 4
    drop(opened)
    assert extents(new.store, unclean=True) == [f"records 0..{opened.appended} count=5"]
    kept = sorted((new.store / "reput" / "cut").iterdir())
    assert b"".join(path.read_bytes() for path in kept).rstrip(b"\0").endswith(bytes(old.data).rstrip(b"\0")[-100:])
    again = open_store(new.store)
    assert again.appended == opened.appended
    again.close(views_complete=True)


def test_a_rocketmq_that_went_on_is_noticed(tmp_path):
    """It keeps our files and writes after our end: its history begins there, and the queues continue."""
    store = tmp_path / "store"
    opened = open_store(store)
    for _ in range(3):
        opened.put(message_of_size(300))
    opened.close(views_complete=True)
    end = opened.appended
    append_by_hand(store, end, queue_offset=3)
    again = open_store(store)
    assert again.epochs.epoch == opened.epochs.epoch + 1
    assert again.epochs.history[-1].start_offset == end
    assert again.put(Message("orders", b"")).queue_offset == 4
    again.close(views_complete=True)


def append_by_hand(store, end, queue_offset, body=b"by another program", store_timestamp=START_MS + 1):
    """Write one record at *end*, like RocketMQ."""
    other = WrittenLog(store.parent / "other", SEGMENT_SIZE, begin=end)
    other.append(body, queue_offset=queue_offset, store_timestamp=store_timestamp)
    overwrite(store, end, bytes(other.data))


def test_a_rocketmq_that_cut_and_wrote_anew_is_noticed(tmp_path):
    """From the last valid mark on, the log belongs to the other program."""
    store = tmp_path / "store"
    opened = open_store(store)
    results = [opened.put(message_of_size(300, tags="a")) for _ in range(3)]
    opened.close(views_complete=True)
    kept_until = opened.appended
    opened = open_store(store)
    later = [opened.put(message_of_size(300)) for _ in range(3)]
    opened.close(views_complete=True)
    overwrite(store, later[0].commit_log_offset, bytes(900))
    append_by_hand(store, later[0].commit_log_offset, queue_offset=3, body=b"z" * 900)
    again = open_store(store)
    assert again.epochs.epoch == opened.epochs.epoch + 1
    assert again.epochs.history[-1].start_offset == kept_until == results[-1].next_commit_log_offset
    assert [record.body[:1] for record in records(store)] == [b"x", b"x", b"x", b"z"]
    again.close(views_complete=True)


@pytest.mark.parametrize("overtaken", [True, False], ids=["beyond-our-end", "below-our-end"])
def test_what_retention_took_is_unknown_and_not_refuted(tmp_path, caplog, overtaken):
    """RocketMQ ran for longer than it keeps its files: the new history begins at the log's minimum, never at 0."""
    store = tmp_path / "store"
    opened = open_store(store)
    for _ in range(30):
        opened.put(message_of_size(300))
    opened.close(views_complete=True)
    minimum = (opened.appended // SEGMENT_SIZE + (1 if overtaken else 0)) * SEGMENT_SIZE
    for path in (store / "commitlog").iterdir():
        path.unlink()
    other = WrittenLog(store, SEGMENT_SIZE, begin=minimum)
    for number in range(20):
        other.append(b"by another program" * 20, queue_offset=40 + number, store_timestamp=START_MS + 1)
    other.save()
    again = open_store(store)
    latest = again.epochs.history[-1]
    assert (latest.number, latest.start_offset, latest.located) == (opened.epochs.epoch + 1, minimum, False)
    assert f"the history before its beginning is unknown: commit_log_offset_min={minimum}" in caplog.text
    view = Cursor(opened.store_id, opened.epochs.epoch, opened.appended, 0)
    found = again.epochs.first_difference(view, again.commit_log_offset_min)
    assert (found.commit_log_offset if found else None) == (None if overtaken else minimum)
    again.close(views_complete=True)


def test_queues_without_a_record_go_on_where_their_files_end(tmp_path):
    """The log was trimmed; only the units show the queue's end."""
    log = WrittenLog(tmp_path / "store", SEGMENT_SIZE, begin=SEGMENT_SIZE)
    log.append(topic=b"orders", queue_offset=7)
    log.save()
    units = [(0, 0x7FFFFFFF, 0), (0, 0x7FFFFFFF, 0), (100, 200, 5), (300, 200, 5), (SEGMENT_SIZE * 9, 200, 5)]
    queue = log.store / "consumequeue" / "silent" / "3"
    queue.mkdir(parents=True)
    data = b"".join(
        offset.to_bytes(8, "big") + size.to_bytes(4, "big") + code.to_bytes(8, "big") for offset, size, code in units
    )
    (queue / f"{0:020d}").write_bytes(data.ljust(6000, b"\0"))
    found = recovered(log.store)
    assert found.queue_offsets.next_offset("silent", 3) == 4
    assert found.queue_offsets.next_offset("orders", 0) == 8


def test_what_was_known_to_be_on_disk_is_not_given_up_as_torn(tmp_path):
    """A crash only takes unforced bytes. If the log ends before our mark, records were lost."""
    store = tmp_path / "store"
    opened = open_store(store)
    for _ in range(4):
        opened.put(message_of_size(300))
    opened.close(views_complete=True)
    again = open_store(store)
    again.put(message_of_size(300))
    drop(again)
    overwrite(store, 1200, bytes(300))
    drop(open_store(store))
    overwrite(store, 600, bytes(900))
    with pytest.raises(DamagedStore, match="from=600 until=1200"):
        open_store(store)


def test_a_store_whose_log_is_gone_does_not_begin_anew(tmp_path):
    """Its id is in cursors, which would mistake new records for the ones they saw."""
    store = tmp_path / "store"
    opened = open_store(store)
    opened.put(message_of_size(300))
    opened.close(views_complete=True)
    for path in (store / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(DamagedStore, match="gone"):
        open_store(store)
    (store / "commitlog").rmdir()
    with pytest.raises(DamagedStore, match="gone"):
        open_store(store)
    assert not (store / "commitlog").exists()


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_a_store_that_rocketmq_closed_goes_on_where_it_ended(golden, golden_queries, name):
    """The log's end and the next offset of every queue are those of the real store."""
    store = golden(name) / "store"
    opened = open_store(store)
    (log,) = golden_queries(name, "commitLog")
    assert opened.appended == log["maxOffset"]
    for line in golden_queries(name, "queue"):
        assert opened.queue_offsets.next_offset(line["topic"], line["queueId"]) == line["maxOffset"], line
    before = len(records(store))
    opened.put(Message("orders", b"ours"))
    opened.close(views_complete=True)
    assert len(records(store)) == before + 1
    assert not (store / "reput" / "cut").exists()


# RocketMQ keeps a record that is torn in its properties, with zeros in them; reput does not.
SOFT_END = {"crash-5.3/soft-before": 169476}
CRASHED = [
    *(f"crash-5.3/{part}" for part in ("before", "torn-before", "soft-before", "lost-before")),
    *(f"crash-5.3/{part}" for part in ("after", "torn-after", "soft-after", "lost-after")),
    *(f"aged-{version}/{part}" for version in ("4.9", "5.3") for part in ("head-before", "rebuilt-before")),
    *(f"aged-{version}/{part}" for version in ("4.9", "5.3") for part in ("head-after", "rebuilt-after")),
]


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("name", CRASHED)
def test_a_store_that_crashed_or_was_trimmed_goes_on_where_the_real_one_does(golden, golden_queries, name):
    """The log ends at the real store's end, and its queues continue at the same offsets."""
    set_name, _, part = name.partition("/")
    store = golden(set_name) / part / "store"
    opened = open_store(store)
    (log,) = golden_queries(name, "commitLog")
    assert opened.appended == SOFT_END.get(name, log["maxOffset"])
    assert opened.commit_log_offset_min == log["minOffset"]
    ends = {(line["topic"], line["queueId"]): line["maxOffset"] for line in golden_queries(name, "queue")}
    found = {queue: opened.queue_offsets.next_offset(*queue) for queue in ends}
    # Only the torn record's queue may be one message shorter.
    assert sum(ends.values()) - sum(found.values()) == (name in SOFT_END)
    assert all(0 <= end - found[queue] <= 1 for queue, end in ends.items())
    opened.close(views_complete=True)


@pytest.mark.parametrize("part", ["before", "lost-before"])
def test_every_send_that_was_acknowledged_before_the_kill_is_there(golden, part):
    """Opening the store for writing must not lose any."""
    folder = golden("crash-5.3")
    store = folder / part / "store"
    opened = open_store(store)
    found = {record.message_id: record for record in records(store)}
    acknowledged = read_lines(folder / "acked.jsonl")
    for line in acknowledged:
        record = found[line["offsetMsgId"]]
        assert record.properties["UNIQ_KEY"] == line["uniqKey"]
        assert (record.queue_id, record.queue_offset) == (line["queueId"], line["queueOffset"])
    assert len(acknowledged) > 300
    opened.close(views_complete=True)


# The state after a power cut.


def store_with_lost_page(directory, lost, *, forced=0):
    """Put ten records, the first *forced* of them marked as durable; lose 100 bytes of record *lost*; then kill."""
    opened = open_store(directory, files=UnforcedFiles())
    puts = [opened.put(message_of_size(300, keys=f"k{number}")) for number in range(10)]
    if forced:
        opened.close(views_complete=True)
        opened = open_store(directory, files=UnforcedFiles())
        puts = puts[:forced] + [opened.put(message_of_size(300)) for _ in range(10)]
    drop(opened)
    overwrite(directory, puts[lost].commit_log_offset + 150, bytes(100))
    return puts


def reopened(directory, boot):
    """Open the store on a machine at its start number *boot*."""
    clock = ManualClock()
    clock.boot = boot
    return open_store(directory, files=UnforcedFiles(), clock=clock)


def test_a_page_that_a_power_cut_took_ends_the_log(tmp_path):
    """Later whole records were not forced or confirmed, either. They are moved away, not deleted."""
    puts = store_with_lost_page(tmp_path / "store", 4)
    opened = reopened(tmp_path / "store", boot=2)
    assert opened.appended == puts[4].commit_log_offset
    assert opened.put(message_of_size(300)).queue_offset == 4
    opened.close(views_complete=False)
    assert any((tmp_path / "store" / "reput" / "cut").iterdir())


def test_a_hole_without_a_power_cut_is_damage(tmp_path):
    """The kernel keeps every byte that a killed process wrote, so the hole has another cause."""
    puts = store_with_lost_page(tmp_path / "store", 4)
    with pytest.raises(DamagedStore, match=f"from={puts[4].commit_log_offset}"):
        reopened(tmp_path / "store", boot=1)


def test_a_hole_in_what_was_forced_is_damage_after_a_power_cut_too(tmp_path):
    """It lies before the last mark."""
    puts = store_with_lost_page(tmp_path / "store", 4, forced=10)
    with pytest.raises(DamagedStore, match=f"from={puts[4].commit_log_offset}"):
        reopened(tmp_path / "store", boot=2)


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_recovery_that_is_killed_anywhere_is_taken_up(tmp_path):
    """Until it is finished, the store counts as written before the power cut, so the hole is still no damage."""
    puts = store_with_lost_page(tmp_path / "store", 4)
    clock = ManualClock()
    clock.boot = 2
    calls, killed = 0, True
    while killed:
        store = tmp_path / str(calls)
        shutil.copytree(tmp_path / "store", store)
        files = KilledFiles(calls)
        with contextlib.suppress(Killed):
            drop(open_store(store, files=files, clock=clock))
        opened = open_store(store, files=UnforcedFiles(), clock=clock)
        assert opened.appended == puts[4].commit_log_offset
        opened.close(views_complete=False)
        calls, killed = calls + 1, files.killed
    assert calls > 10


@pytest.mark.parametrize("part", ["topic", "properties"])
def test_a_record_whose_texts_were_lost_ends_the_log_though_records_follow(tmp_path, part):
    """No checksum covers topic and properties. RocketMQ continues with zeros in them."""
    opened = open_store(tmp_path / "store", files=UnforcedFiles())
    puts = [opened.put(Message("orders", b"body", properties={"name": "v" * 200})) for _ in range(5)]
    drop(opened)
    at = puts[2].next_commit_log_offset - (150 if part == "properties" else 216)
    overwrite(tmp_path / "store", at, bytes(20 if part == "properties" else 4))
    opened = reopened(tmp_path / "store", boot=2)
    assert opened.appended == puts[2].commit_log_offset
    opened.close(views_complete=False)


def test_what_a_killed_writer_did_not_force_is_forced_before_it_counts_as_durable(tmp_path):
    """Readers of durable bytes see it at once, so no later power cut may take it."""
    opened = open_store(tmp_path / "store", files=UnforcedFiles())
    end = [opened.put(message_of_size(300)) for _ in range(30)][-1].next_commit_log_offset
    drop(opened)
    files = PowerCutFiles()
    files.durable = {path: bytes(SEGMENT_SIZE) for path in (tmp_path / "store" / "commitlog").iterdir()}
    opened = open_store(tmp_path / "store", files=files)
    assert opened.durable == end
    drop(opened)
    before = log_bytes(tmp_path / "store")
    files.cut(random.Random(1))
    assert log_bytes(tmp_path / "store") == before


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_store_that_was_closed_opens_without_numpy(tmp_path):
    """Nothing is scanned, so a program that only puts does not load it."""
    program = """if True:
        import sys, reput
        for count in (1, 2):
            with reput.open(sys.argv[1], mode="inline", dispatchers=[]) as store:
                store.put(reput.Message("orders", b"two shirts"))
                assert store._engine.put_totals() == {"orders": count}
            assert "numpy" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("behind", [True, False], ids=["in the middle", "at the end"])
def test_a_record_without_its_own_crc_is_damage_where_all_are_to_have_one(tmp_path, behind):
    """It is complete, so it is not a torn tail that could be cut; an operator decides, and the others stay readable."""
    store = tmp_path / "store"
    for appends in (True, False, True)[: 2 + behind]:
        opened = open_store(
            store, files=UnforcedFiles(), enabled_append_prop_crc=appends, change_settings=["enabled_append_prop_crc"]
        )
        # Across the end of a segment.
        results = [opened.put(Message("orders", b"x" * 300)) for _ in range(6)]
        if not appends:
            begin, end = results[0].commit_log_offset, results[-1].next_commit_log_offset
        drop(opened)
    demanding = Settings(force_verify_prop_crc=True)
    with pytest.raises(DamagedStore, match=f"from={begin} .*force_verify_prop_crc"):
        open_store(store, force_verify_prop_crc=True, enabled_append_prop_crc=behind)
    assert check_store(store, Settings()).damage == []
    damage = check_store(store, demanding).damage
    assert (damage[0].begin, damage[-1].end) == (begin, end)
    rows = dump_log(store, demand_crc=True)
    assert next(row.begin for row in rows if getattr(row, "kind", "") == "damage") == begin
    if behind:
        for part in damage:
            accept(store, part.begin, part.end, demand_crc=True)
    else:
        with pytest.raises(ConfigError, match="does not continue"):
            accept(store, damage[-1].begin, damage[-1].end, demand_crc=True)
        assert cut(store, begin, demand_crc=True).kept
    opened = open_store(store, files=UnforcedFiles(), force_verify_prop_crc=True, enabled_append_prop_crc=behind)
    assert opened.appended == (results[-1].next_commit_log_offset if behind else begin)
    drop(opened)


def test_a_log_whose_records_all_carry_their_crc_is_recovered_as_any_other(tmp_path):
    """A torn one at its end is cut, although all records must have a CRC."""
    store = tmp_path / "store"
    opened = open_store(store, files=UnforcedFiles(), enabled_append_prop_crc=True)
    results = [opened.put(Message("orders", b"x" * 300)) for _ in range(20)]
    drop(opened)
    overwrite(store, results[-1].next_commit_log_offset - 40, bytes(40))
    opened = open_store(store, files=UnforcedFiles(), force_verify_prop_crc=True, enabled_append_prop_crc=True)
    assert opened.appended == results[-1].commit_log_offset
    drop(opened)
