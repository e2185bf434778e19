"""Check: problems of a store are found, named, and distinguished from old data."""

from __future__ import annotations

import msgspec
import pytest

from golden_sets import CLEAN_SETS
from reput.errors import NotAStore
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.disk.files import Files
from reput.store.disk.sealed_file import seal
from reput.store.recovery.damage_list import DamagedRange, DamageList
from reput.store.recovery.repair import accept
from reput.store.state.dispatcher_cursors import keep_dispatcher_cursors
from small_store import ManualClock, drop, message_of_size, open_store, overwrite
from written_log import WrittenLog

# What the queues and the index of each part contain in addition, after RocketMQ's own recoveries; checked by hand.
PARTS = {
    # The log's head is gone, but views still have its entries. Rebuilt queues begin with pre-blank units.
    "aged-4.9/head-before": ("equal 588 0", "equal 1318 0"),
    "aged-4.9/head-after": ("equal 588 0", "equal 1318 0"),
    "aged-4.9/rebuilt-before": ("absent 0 0", "absent 0 0"),
    "aged-4.9/rebuilt-after": ("equal 288 0", "equal 0 0"),
    "aged-5.3/head-before": ("equal 230 0", "equal 534 0"),
    "aged-5.3/head-after": ("equal 230 0", "equal 534 0"),
    "aged-5.3/rebuilt-before": ("absent 0 0", "absent 0 0"),
    "aged-5.3/rebuilt-after": ("equal 230 0", "equal 0 0"),
    # Nine records were lost with the torn one; their units and keys were not, because RocketMQ zeroes nothing.
    "crash-5.3/before": ("equal 0 0", "equal 0 0"),
    "crash-5.3/after": ("equal 0 0", "equal 0 0"),
    "crash-5.3/lost-before": ("absent 0 0", "absent 0 0"),
    "crash-5.3/lost-after": ("equal 0 0", "equal 0 0"),
    "crash-5.3/torn-before": ("equal 0 9", "equal 0 29"),
    "crash-5.3/torn-after": ("equal 0 9", "equal 0 29"),
    "crash-5.3/soft-before": ("equal 0 9", "equal 0 29"),
    # RocketMQ kept the record with zeros in its properties, which changed one of its keys.
    "crash-5.3/soft-after": ("equal 0 8", "different 0 25"),
    # The record with the flipped bit is damage, and the log continues after it. RocketMQ ended its queues there.
    "damaged-4.9/clean-before": ("equal 0 0", "equal 0 0"),
    "damaged-4.9/abort-before": ("equal 0 0", "equal 0 0"),
    "damaged-4.9/clean-after": ("behind 0 0", "equal 0 0"),
    "damaged-4.9/abort-after": ("behind 0 0", "behind 0 0"),
}


def summary(view):
    """Return a view's state and additional content, as one line."""
    return f"{view.state} {view.expired_count} {view.stale_count}"


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_every_view_of_a_store_that_rocketmq_closed_is_equal_to_the_log(golden_read_only, golden_about, name):
    """Without its settings: sizes are inferred from the files."""
    report = check_store(golden_read_only(name) / "store", Settings())
    about = golden_about(name)
    assert report.ok
    assert report.clean_shutdown
    assert (report.records, report.segments) == (about["listing"]["records"], about["listing"]["files"])
    assert report.bytes == about["maxOffsetOfRealStore"]
    assert (report.damage, report.stale, report.notes) == ([], [], [])
    assert {view: found.state for view, found in report.views.items()} == {
        "consume_queue": "equal",
        "consume_queue_ext": "equal" if name == "ext-4.9" else "absent",
        "index": "equal",
    }
    assert all(view.expired_count == view.stale_count == view.unverified_count == 0 for view in report.views.values())


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("name", PARTS)
def test_what_a_crash_or_retention_left_is_told_from_what_is_wrong(golden_read_only, golden_about, name):
    """Expired and stale parts of a view are counted, but are not differences."""
    set_name, _, part = name.partition("/")
    report = check_store(golden_read_only(set_name) / part / "store", Settings())
    about = golden_about(set_name)["parts"][part]
    assert (summary(report.views["consume_queue"]), summary(report.views["index"])) == PARTS[name]
    assert report.clean_shutdown == about["cleanShutdown"]
    damaged = set_name == "damaged-4.9"
    assert [found.begin for found in report.damage] == ([660987] if damaged else [])
    torn = part in ("torn-before", "torn-after", "soft-before")
    assert [found.begin for found in report.stale] == ([169476] if torn else [])
    assert report.ok == (not damaged and name != "crash-5.3/soft-after")


def test_the_report_has_the_fields_that_scripts_rely_on(golden_read_only):
    """Ranges have from and until; a view without files is absent."""
    fields = msgspec.to_builtins(check_store(golden_read_only("damaged-4.9") / "clean-before" / "store", Settings()))
    assert list(fields) == [
        "ok",
        "store",
        "segments",
        "records",
        "bytes",
        "clean_shutdown",
        "damage",
        "stale",
        "views",
        "notes",
    ]
    assert fields["damage"] == [{"from": 660987, "until": 661309, "reason": "a CRC does not match"}]
    assert fields["views"]["consume_queue_ext"] == {
        "state": "absent",
        "behind_bytes": 0,
        "difference_count": 0,
        "differences": [],
        "expired_count": 0,
        "stale_count": 0,
        "unverified_count": 0,
    }
    assert fields["views"]["consume_queue"]["unverified_count"] == 1


def test_progress_is_told_in_bytes_of_the_log(golden_read_only):
    """It grows to the size of the log."""
    told = []
    report = check_store(golden_read_only("basic-5.3") / "store", Settings(), told.append)
    assert told == sorted(told)
    assert told[-1] == report.bytes


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    """Nothing is created in it."""
    with pytest.raises(NotAStore):
        check_store(tmp_path, Settings())
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_is_damage_and_the_views_still_know_the_record(golden):
    """The record's units and entries count as unverified, because there is nothing left to compare them with."""
    store = golden("basic-5.3") / "store"
    before = check_store(store, Settings())
    overwrite(store, 700, b"\xff")
    report = check_store(store, Settings())
    assert not report.ok
    assert len(report.damage) == 1
    assert report.damage[0].begin < 700 < report.damage[0].end
    assert report.records == before.records - 1
    assert report.views["consume_queue"].state == "equal"
    assert report.views["consume_queue"].unverified_count == 1
    assert report.views["index"].state == "equal"


def test_a_segment_that_is_gone_is_damage(golden):
    """From its first to its last byte; the views' entries for it cannot be verified."""
    store = golden("basic-5.3") / "store"
    (store / "commitlog" / f"{139264:020d}").unlink()
    report = check_store(store, Settings())
    assert [(found.begin, found.end) for found in report.damage] == [(139264, 208896)]
    assert report.views["consume_queue"].state == "equal"
    assert report.views["consume_queue"].unverified_count > 0


@pytest.mark.parametrize("name", ["basic-4.9", "lmq-5.3", "transaction-4.9"])
@pytest.mark.parametrize("how", ["cut short", "zeroed", "garbled"])
def test_a_lost_end_of_a_store_that_was_closed_is_damage(golden, golden_listing, name, how):
    """RocketMQ's checkpoint has the time of the last record, its queues have the position."""
    store = golden(name) / "store"
    last = golden_listing(name)[-1]["physicalOffset"]
    whole = check_store(store, Settings())
    end = whole.bytes
    path = max(path for path in (store / "commitlog").iterdir())
    if how == "cut short":
        path.write_bytes(path.read_bytes()[: (end - int(path.name)) // 2])
    elif how == "zeroed":
        overwrite(store, last + 50, bytes(end - last - 50))
    else:
        overwrite(store, last + 5, b"\xff\xff")
    report = check_store(store, Settings())
    assert not report.ok
    (found,) = report.damage
    assert found.end == end
    assert found.begin == report.bytes < end
    assert report.stale == []


def test_damage_that_was_accepted_is_still_listed(golden):
    """Each check shows it to the operator."""
    store = golden("damaged-4.9") / "clean-before" / "store"
    accept(store, 660987, 661309)
    report = check_store(store, Settings())
    assert [(found.begin, found.end) for found in report.damage] == [(660987, 661309)]
    assert not report.ok
    # Even if nothing is left of it.
    (store / "reput" / "damage").write_bytes(seal(DamageList([DamagedRange(100, 200, "once", True)])))
    report = check_store(store, Settings())
    assert [(found.begin, found.end) for found in report.damage] == [(100, 200), (660987, 661309)]


def test_beside_a_writer_nothing_is_said_of_what_lies_behind_the_end(tmp_path):
    """The last record may be half written, and a view may lag."""
    opened = open_store(tmp_path / "store")
    results = [opened.put(message_of_size(700)) for _ in range(9)]
    # A record whose size word is not written yet.
    overwrite(tmp_path / "store", opened.appended + 4, b"\xda\xa3\x20\xa7 half a record")
    report = check_store(tmp_path / "store", Settings())
    assert (report.ok, report.damage, report.stale) == (True, [], [])
    assert report.records == 9
    assert report.bytes == results[-1].next_commit_log_offset
    assert any("another process writes this store" in note for note in report.notes)
    assert not report.clean_shutdown
    opened.close(views_complete=True)


def test_what_a_crash_left_behind_the_end_is_stale(tmp_path):
    """It was never confirmed."""
    opened = open_store(tmp_path / "store", clock=ManualClock())
    results = [opened.put(message_of_size(700)) for _ in range(3)]
    drop(opened)
    overwrite(tmp_path / "store", results[-1].commit_log_offset + 400, bytes(300))
    report = check_store(tmp_path / "store", Settings())
    assert (report.ok, report.clean_shutdown, report.damage) == (True, False, [])
    assert [(found.begin, found.end) for found in report.stale] == [(1400, 1800)]


def test_a_topic_with_batch_queues_is_said_to_be_left_alone(tmp_path):
    """Its units have another format, in another folder."""
    log = WrittenLog(tmp_path / "store", 4096)
    log.append(topic=b"batches", sys_flag=0xC0, properties=b"INNER_NUM\x013\x02INNER_BASE\x010\x02")
    log.save()
    (log.store / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (log.store / "consumequeue" / "orders" / "0" / f"{0:020d}").write_bytes(bytes(6000))
    report = check_store(log.store, Settings())
    assert report.views["consume_queue"].state == "equal"
    assert report.notes == [
        "topic has a batch consume queue (RocketMQ 5, queue.type=BatchCQ), which is left alone: topic=batches"
    ]


def test_every_record_of_a_topic_with_batch_queues_is_left_alone(tmp_path, described_or_there):
    """Including records of single messages: RocketMQ also keeps their units in the other folder."""
    log = WrittenLog(tmp_path / "store", 4096)
    log.append(topic=b"batches", queue_offset=0)
    log.save()
    (log.store / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (log.store / "consumequeue" / "orders" / "0" / f"{0:020d}").write_bytes(bytes(6000))
    assert check_store(log.store, Settings()).views["consume_queue"].state == "behind"
    described_or_there(log.store)
    report = check_store(log.store, Settings())
    assert report.views["consume_queue"].state == "equal"
    assert len(report.notes) == 1


@pytest.fixture(params=["described", "there"])
def described_or_there(request):
    """Return a function that makes the topic ``batches`` of a store one with batch queues."""

    def described(store):
        topics = TopicConfigManager(store)
        topics.put("batches", TopicConfig(topic_name="batches", attributes={"queue.type": "BatchCQ"}))
        topics.persist()

    def there(store):
        (store / "batchconsumequeue" / "batches" / "0").mkdir(parents=True)

    return {"described": described, "there": there}[request.param]


def test_a_configuration_that_cannot_be_read_is_said(tmp_path):
    """With its path, and whether its backup is used instead. The results for log and views are not affected."""
    with_backup, torn, whole = (
        tmp_path / "store" / "config" / f"{name}.json" for name in ("topics", "consumerOffset", "delayOffset")
    )
    open_store(tmp_path / "store").close(views_complete=True)
    with_backup.parent.mkdir()
    for path in (with_backup, torn, whole):
        path.write_text("{}")
    with_backup.rename(with_backup.with_name(with_backup.name + ".bak"))
    with_backup.write_bytes(b"\0\0")
    torn.write_bytes(b'{"offsetTable":{')
    report = check_store(tmp_path / "store", Settings())
    assert report.ok
    first, second = report.notes
    assert f"path={with_backup} " in first
    assert first.endswith("; its backup is read instead")
    assert f"path={torn} " in second
    assert second.endswith("; there is no backup that can be read")


def test_views_of_plugins_are_said_not_to_be_checked(tmp_path):
    """Only they know their formats. The last running and the currently enabled ones are named."""
    opened = open_store(tmp_path / "store", clock=ManualClock())
    opened.put(message_of_size(700))
    drop(opened)
    assert check_store(tmp_path / "store", Settings()).notes == []
    keep_dispatcher_cursors(tmp_path / "store", {"index": None, "words": 700}, Files())
    (note,) = (
        note
        for note in check_store(tmp_path / "store", Settings(dispatchers=("index", "orders_hook"))).notes
        if "are not checked" in note
    )
    assert note == (
        "the views of other dispatchers are not checked, only they know them: views=words,orders_hook; "
        "`reput rebuild STORE VIEW` builds one again"
    )
