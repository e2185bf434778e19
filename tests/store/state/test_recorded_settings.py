"""Recorded settings: the meaning of a store's bytes is stored with it, and later openings cannot change it."""

from __future__ import annotations

import msgspec
import pytest

from reput.errors import ConfigError
from reput.settings import Settings, load_settings
from reput.store.check.check import check_store
from reput.store.disk.sealed_file import seal
from reput.store.log.log_scan import LogScan
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import Message
from reput.store.state.identity import RecordedValue, read_identity
from reput.store.state.recorded_settings import (
    MEANINGS,
    changed_settings,
    history,
    load_store_settings,
    meaning_on_disk,
    read_delay_history,
    read_recorded,
)
from small_store import open_store
from written_log import WrittenLog


def close(opened):
    opened.close(views_complete=True)


def test_the_first_opening_records_what_bytes_mean(tmp_path):
    """Later openings, and every verb, use the record."""
    close(open_store(tmp_path / "store", message_delay_level="1s 1h", enable_lmq=True))
    recorded = read_recorded(tmp_path / "store")
    assert recorded["message_delay_level"] == "1s 1h"
    assert recorded["mapped_file_size_commit_log"] == 4096
    assert recorded.keys() >= set(MEANINGS)
    settings = load_settings(recorded=recorded).settings
    assert settings.message_delay_level == "1s 1h"
    assert settings.enable_lmq


@pytest.mark.parametrize(
    ("name", "value"),
    [("message_delay_level", "1s"), ("enable_multi_dispatch", True), ("max_index_num", 99)],
)
def test_a_writer_with_another_value_is_refused(tmp_path, name, value):
    """No byte of the store changes."""
    close(open_store(tmp_path / "store"))
    before = (tmp_path / "store" / "reput" / "store.json").read_bytes()
    with pytest.raises(ConfigError, match=f"{name}=.* recorded="):
        open_store(tmp_path / "store", **{name: value})
    assert (tmp_path / "store" / "reput" / "store.json").read_bytes() == before
    close(open_store(tmp_path / "store"))


def test_what_was_put_before_a_change_keeps_its_delay(tmp_path):
    """The new levels apply from the log's end on, for readers and for the writer."""
    store = tmp_path / "store"
    opened = open_store(store, message_delay_level="1s 1h")
    first = opened.put(Message("orders", b"old", delay_level=2))
    close(opened)
    opened = open_store(store, message_delay_level="1s 5s", change_settings=["message_delay_level"])
    second = opened.put(Message("orders", b"new", delay_level=2))
    close(opened)
    scan = LogScan(store, delay_history=read_delay_history(store, "1s 5s"))
    found = list(scan.scan(0, second.next_commit_log_offset).columns)
    scan.close()
    assert [request.topic for request in found] == [SCHEDULE_TOPIC] * 2
    assert [request.tags_code - request.store_timestamp for request in found] == [3_600_000, 5_000]
    identity = read_identity(store)
    assert identity is not None
    assert identity.settings["message_delay_level"] == [
        RecordedValue(0, "1s 1h"),
        RecordedValue(first.next_commit_log_offset, "1s 5s"),
    ]


def test_a_change_that_a_cut_took_the_ground_from_holds_from_the_log_s_end_on():
    """The next messages use the new value, not the former one until the old end is reached."""
    known = [RecordedValue(0, "1s"), RecordedValue(8000, "2s")]
    assert history(known, "2s", 9000) == known
    assert history(known, "2s", 4000) == [RecordedValue(0, "1s"), RecordedValue(4000, "2s")]
    assert history(known, "3s", 4000) == [RecordedValue(0, "1s"), RecordedValue(4000, "3s")]
    assert history(known, "1s", 4000) == [RecordedValue(0, "1s")]
    assert history(known, "2s", 0) == [RecordedValue(0, "2s")]
    assert history([], "2s", 4000) == [RecordedValue(0, "2s")]


def test_a_store_from_before_the_record_takes_the_settings_of_its_next_opening(tmp_path):
    """Until then every verb uses its own arguments."""
    store = tmp_path / "store"
    close(open_store(store))
    identity = read_identity(store)
    assert identity is not None
    (store / "reput" / "store.json").write_bytes(seal(msgspec.structs.replace(identity, settings={})))
    assert "message_delay_level" not in read_recorded(store)
    assert load_settings(recorded=read_recorded(store), message_delay_level="7s").settings.message_delay_level == "7s"
    close(open_store(store, message_delay_level="7s"))
    assert read_recorded(store)["message_delay_level"] == "7s"
    assert read_recorded(store)["max_index_num"] == identity.file_sizes["max_index_num"]


def test_a_store_of_rocketmq_s_is_recorded_with_the_sizes_that_its_files_show(golden, broker_properties):
    """Its broker's configuration may be given later: it agrees."""
    store = golden("basic-5.3") / "store"
    shown = meaning_on_disk(store, Settings())
    assert read_recorded(store) == {}
    close(open_store(store))
    configured = load_settings(broker_properties("basic-5.3"), recorded=read_recorded(store)).settings
    for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num"):
        assert read_recorded(store)[name] == shown[name] == getattr(configured, name)
    assert check_store(store, configured).ok


def test_what_the_bytes_of_an_unrecorded_store_give_away_need_not_be_configured(golden, tmp_path):
    """Light queues, and records with their own CRC; an explicit configuration takes precedence."""
    light = golden("lmq-5.3") / "store"
    found = load_store_settings(light).settings
    assert (found.enable_lmq, found.enable_multi_dispatch) == (True, True)
    assert not load_store_settings(light, enable_multi_dispatch=False).settings.enable_multi_dispatch
    close(open_store(light, **msgspec.structs.asdict(found)))
    assert read_recorded(light)["enable_lmq"]
    assert load_store_settings(light, assignments=["enableLmq=true"]).settings.enable_lmq
    with pytest.raises(ConfigError, match="enable_lmq=false recorded=true"):
        load_store_settings(light, enable_lmq=False)
    log = WrittenLog(tmp_path / "plain", 4096)
    log.append(b"x")
    assert not load_store_settings(log.save()).settings.enabled_append_prop_crc
    opened = open_store(tmp_path / "store", enabled_append_prop_crc=True)
    opened.put(Message("orders", b"x"))
    close(opened)
    (tmp_path / "store" / "reput" / "store.json").unlink()
    assert load_store_settings(tmp_path / "store").settings.enabled_append_prop_crc


def test_a_size_that_the_files_contradict_cannot_be_recorded(golden):
    """Even if requested by name: a store cannot change the size of its files."""
    store = golden("basic-5.3") / "store"
    close(open_store(store))
    with pytest.raises(ConfigError, match="the files of the store have a different size: max_index_num=7 shown="):
        open_store(store, max_index_num=7, change_settings=["max_index_num"])


def test_only_a_setting_that_is_recorded_can_be_changed_by_name():
    """All other settings are given as usual."""
    assert changed_settings(["messageDelayLevel", "enable_lmq"]) == {"message_delay_level", "enable_lmq"}
    for wrong in (["max_message_size"], ["xyzzy"], [5], "enable_lmq", 5):
        with pytest.raises(ConfigError, match="change"):
            changed_settings(wrong)


def test_a_store_of_a_rocketmq_that_enters_tags_gets_tags_from_reput_too(golden):
    """A store of an older version does not, unless requested."""
    for name, expected in (("basic-5.3", False), ("basic-5.5", True)):
        store = golden(name) / "store"
        assert meaning_on_disk(store, Settings())["index_tags"] is expected
        close(open_store(store))
        assert read_recorded(store)["index_tags"] is expected
    store = golden("basic-4.9") / "store"
    close(open_store(store, index_tags=True))
    assert read_recorded(store)["index_tags"]


def test_tags_that_a_newer_rocketmq_entered_are_gone_on_with(golden):
    """Even if reput wrote the store first: the index shows the later entries."""
    store = golden("basic-5.5") / "store"
    close(open_store(store))
    identity = read_identity(store)
    assert identity is not None
    for begin, expected in ((0, True), (1 << 40, False)):
        recorded = {**identity.settings, "index_tags": [RecordedValue(begin, False)]}
        (store / "reput" / "store.json").write_bytes(seal(msgspec.structs.replace(identity, settings=recorded)))
        opened = open_store(store, **identity.file_sizes)
        assert opened.settings.index_tags is expected
        close(opened)


def test_tags_that_are_to_be_left_out_are(golden):
    """Although the index has them up to this point."""
    store = golden("basic-5.5") / "store"
    close(open_store(store, index_tags=False, change_settings=["index_tags"]))
    assert not read_recorded(store)["index_tags"]
