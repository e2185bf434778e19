"""Stored configuration: RocketMQ's files read, changed, and replaced with their backups."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from golden_sets import CLEAN_SETS, PART_SETS
from reput.errors import DamagedStore, StoreFull
from reput.filter import BloomFilter
from reput.store.config.config_json import format_config, parse_config
from reput.store.config.config_manager import ConfigManager
from reput.store.config.consumer_filter_manager import ConsumerFilterData, ConsumerFilterManager, StoredBits
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager, LmqConsumerOffsetManager
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig, SubscriptionGroupManager
from reput.store.config.topic_config_manager import TopicConfig, TopicConfigManager
from reput.store.disk.files import Clock, Files

NOW_MS = 1_795_257_000_000  # within minutes of when the golden sets were made
DAY_MS = 86_400_000


class FixedClock(Clock):
    """A clock that does not move."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


class FailingFiles(Files):
    """Files, one of which cannot be replaced."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def replace(self, path: Path, data: bytes) -> None:
        if path.name.endswith(self.suffix):
            raise OSError(28, "No space left on device", str(path))
        super().replace(path, data)


def filters(store: Path, clock: Clock | None = None, expected_count: int = 8) -> ConsumerFilterManager:
    """Return the filters of a broker with the golden set's settings."""
    return ConsumerFilterManager(store, BloomFilter(20, expected_count), DAY_MS, clock=clock or FixedClock())


def managers(store: Path) -> list[ConfigManager]:
    """Return all managers of one store."""
    simple = (
        TopicConfigManager,
        SubscriptionGroupManager,
        ConsumerOffsetManager,
        LmqConsumerOffsetManager,
        DelayOffsetManager,
    )
    return [filters(store), *(manager(store, clock=FixedClock()) for manager in simple)]


def stores(root: Path) -> list[Path]:
    """Return the stores of a golden set."""
    return sorted(path.parent for path in root.rglob("config") if path.is_dir())


@pytest.mark.parametrize("name", [*CLEAN_SETS, *PART_SETS])
def test_a_broker_s_files_go_through_every_manager_unchanged(
    name: str, golden_read_only: Callable[[str], Path], tmp_path
):
    """No data of 4.9, 5.3 or 5.5 is lost or rearranged, and unchanged files are not written."""
    for number, store in enumerate(stores(golden_read_only(name))):
        copy = tmp_path / str(number)
        copy.mkdir()
        for manager in managers(store):
            path = manager.path
            if not path.exists():
                continue
            manager.load()
            text = path.read_bytes().decode()
            if '"dead":false' in text:
                continue  # A start takes every filter for dead.
            manager.path = copy / "config" / manager.file_name
            manager.whole_text = None
            manager.persist()
            # In the format of fastjson 1, which all brokers up to 5.3 use.
            assert manager.path.read_bytes().decode() == format_config(parse_config(text))
            assert not manager.backup_path.exists()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store directory without any configuration."""
    directory = tmp_path / "store"
    directory.mkdir()
    return directory


def test_a_new_store_has_nothing_configured(store: Path):
    """Absent files are not an error, and reading creates none."""
    for manager in managers(store):
        manager.load()
    assert list(store.iterdir()) == []


def test_a_topic_is_written_in_rocketmq_s_shape(store: Path):
    """Brokers of 4.9 and 5.x can read it; missing fields get their defaults."""
    manager = TopicConfigManager(store, clock=FixedClock())
    manager.load()
    manager.put("TopicTest", TopicConfig(topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4))
    manager.persist()
    assert (store / "config" / "topics.json").read_text() == (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":1795257000000\n\t},\n\t"topicConfigTable":{\n'
        '\t\t"TopicTest":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":4,\n'
        '\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"TopicTest",\n\t\t\t"topicSysFlag":0,\n'
        '\t\t\t"writeQueueNums":4\n\t\t}\n\t}\n}'
    )


def test_topics_are_changed_and_removed(store: Path):
    """Each change increases the version, so that name servers notice it."""
    manager = TopicConfigManager(store, clock=FixedClock())
    manager.put("a", TopicConfig(topic_name="a"))
    manager.put("a", TopicConfig(topic_name="a", perm=4, attributes={"queue.type": "BatchCQ"}))
    manager.put("b", TopicConfig(topic_name="b"))
    manager.remove("b")
    manager.persist()
    again = TopicConfigManager(store)
    again.load()
    assert again.entries == manager.entries
    assert again.entries["a"].perm == 4
    assert again.entries["a"].has_batch_consume_queue
    assert again.data_version.counter == 4
    with pytest.raises(KeyError):
        again.remove("b")


def test_unknown_fields_are_kept(golden: Callable[[str], Path]):
    """Fields of another version of RocketMQ survive a change made here."""
    store = golden("basic-5.3") / "store"
    path = store / "config" / "subscriptionGroup.json"
    before = parse_config(path.read_text())
    manager = SubscriptionGroupManager(store, clock=FixedClock())
    manager.load()
    manager.put("billing", SubscriptionGroupConfig(group_name="billing", retry_max_times=3))
    manager.persist()
    after = parse_config(path.read_text())
    assert after["subscriptionGroupTable"].pop("billing")["retryMaxTimes"] == 3
    assert after["subscriptionGroupTable"] == before["subscriptionGroupTable"]
    assert after["forbiddenTable"] == {}
    assert after["dataVersion"] == before["dataVersion"] | {
        "counter": before["dataVersion"]["counter"] + 1,
        "timestamp": NOW_MS,
    }
    assert list(after) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]


def test_nulls_and_names_that_are_left_out_count_as_what_is_not_there(store: Path):
    """Like in RocketMQ: other programs print nulls, and an entry's name is also its key."""
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(
        '{"dataVersion":null,"topicConfigTable":{"a":{"perm":4,"order":null,"topicName":null},"b":{}}}'
    )
    (store / "config" / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"g":{"retryMaxTimes":3}}}')
    topics, groups = TopicConfigManager(store), SubscriptionGroupManager(store)
    topics.load()
    groups.load()
    assert topics.entries == {"a": TopicConfig(topic_name="a", perm=4), "b": TopicConfig(topic_name="b")}
    assert groups.entries == {"g": SubscriptionGroupConfig(group_name="g", retry_max_times=3)}


def test_offsets_are_committed_and_found_again(store: Path):
    """Per group, topic and queue; an uncommitted offset is None, and going back is allowed."""
    manager = ConsumerOffsetManager(store)
    assert manager.query_offset("billing", "orders", 0) is None
    manager.commit_offset("billing", "orders", 0, 5)
    manager.commit_offset("billing", "orders", 1, 9)
    manager.commit_offset("billing", "orders", 1, 7)
    manager.commit_offset("audit", "orders", 0, 1)
    manager.persist()
    assert (store / "config" / "consumerOffset.json").read_text() == (
        '{\n\t"offsetTable":{\n\t\t"orders@billing":{0:5,1:7\n\t\t},\n\t\t"orders@audit":{0:1\n\t\t}\n\t}\n}'
    )
    again = ConsumerOffsetManager(store)
    again.load()
    assert again.query_offset("billing", "orders", 1) == 7
    assert again.query_offset("billing", "orders", 2) is None
    assert again.offsets_of_group("billing") == {"orders": {0: 5, 1: 7}}


def test_offsets_with_quoted_queue_ids_are_read(store: Path):
    """A strict JSON writer would write them like this."""
    (store / "config").mkdir()
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable": {"orders@billing": {"0": 5}}}')
    manager = ConsumerOffsetManager(store)
    manager.load()
    assert manager.query_offset("billing", "orders", 0) == 5


def test_a_5_x_file_keeps_its_map_of_topics(golden: Callable[[str], Path]):
    """A topic that a group consumes for the first time is listed there, too."""
    store = golden("delay-retry-5.3") / "store"
    manager = ConsumerOffsetManager(store)
    manager.load()
    assert manager.query_offset("GID_Meadow_bad-12", "Ember_work-12", 0) == 15
    manager.commit_offset("GID_Meadow_bad-12", "orders", 0, 1)
    manager.commit_offset("GID_Meadow_bad-12", "Ember_work-12", 3, 1)
    manager.commit_offset("new", "orders", 0, 1)
    manager.persist()
    fields = parse_config((store / "config" / "consumerOffset.json").read_text())
    topics = fields["groupTopicMap"]
    assert topics["GID_Meadow_bad-12"] == ["%RETRY%GID_Meadow_bad-12", "Ember_work-12", "orders"]
    assert topics["new"] == ["orders"]
    assert fields["dataVersion"]["stateVersion"] == 0


def test_groups_of_light_queues_have_a_table_of_their_own(store: Path):
    """Other groups of the same broker are in the same file."""
    manager = LmqConsumerOffsetManager(store)
    manager.commit_offset("%LMQ%cid", "%LMQ%t", 0, 4)
    manager.commit_offset("billing", "orders", 2, 6)
    manager.persist()
    again = LmqConsumerOffsetManager(store)
    again.load()
    assert again.query_offset("%LMQ%cid", "%LMQ%t", 0) == 4
    assert again.query_offset("%LMQ%cid", "%LMQ%u", 0) is None
    assert again.query_offset("billing", "orders", 2) == 6
    assert again.offsets_of_group("%LMQ%cid") == {"%LMQ%t": {0: 4}}
    assert again.offsets_of_group("billing") == {"orders": {2: 6}}
    assert parse_config(again.path.read_text())["lmqOffsetTable"] == {"%LMQ%t@%LMQ%cid": 4}
    assert again.clean_offset_by_topic("%LMQ%t")
    assert again.query_offset("%LMQ%cid", "%LMQ%t", 0) is None
    assert not again.clean_offset_by_topic("%LMQ%t")


def test_delay_offsets_are_kept_by_level(golden: Callable[[str], Path]):
    """As the schedule service left them."""
    store = golden("delay-retry-5.3") / "store"
    manager = DelayOffsetManager(store)
    manager.load()
    assert manager.query_offset(1) == 22
    assert manager.query_offset(4) is None
    manager.update_offset(4, 2)
    manager.persist()
    assert parse_config(manager.path.read_text())["offsetTable"] == {1: 22, 2: 5, 3: 1, 17: 0, 18: 0, 4: 2}


def test_filters_are_read_with_their_bits(golden_read_only: Callable[[str], Path]):
    """With the bits that `BloomFilter` calculates for the same group and topic."""
    manager = filters(golden_read_only("ext-4.9") / "store")
    manager.load()
    [topic] = manager.table
    assert len(manager.filters_of_topic(topic)) == 5
    assert manager.filters_of_topic("none") == {}
    for group, data in manager.filters_of_topic(topic).items():
        assert data.is_dead
        assert data.expression_type == "SQL92"
        assert data.bits == manager.bloom_filter.calculate_for(group, topic)


@pytest.mark.parametrize(
    "bits",
    [None, StoredBits(bit_pos=(1, 2), bit_num=32), StoredBits(bit_pos=(1, 2, 3), bit_num=40)],
)
def test_filters_with_bits_of_other_sizes_are_all_ignored(bits: StoredBits | None, store: Path):
    """After a change of the settings the old bit maps are meaningless."""
    manager = filters(store)
    for group, stored in (("a", StoredBits(bit_pos=(1, 2, 3), bit_num=32)), ("b", bits)):
        manager.put(
            ConsumerFilterData(
                consumer_group=group,
                topic="t",
                expression="a > 5",
                expression_type="SQL92",
                born_time=NOW_MS,
                bloom_filter_data=stored,
            )
        )
    manager.persist()
    again = filters(store)
    again.load()
    assert again.filters_of_topic("t") == {}


def test_a_filter_that_was_alive_is_dead_since_half_a_minute(store: Path):
    """After a start no consumer uses it, and the file lacks the time; but it never dies before its birth."""
    manager = filters(store)
    bits = StoredBits(bit_pos=(1, 2, 3), bit_num=32)
    for group, born_time in (("old", NOW_MS - DAY_MS), ("young", NOW_MS - 5)):
        manager.put(
            ConsumerFilterData(
                consumer_group=group,
                topic="t",
                expression="a > 5",
                expression_type="SQL92",
                born_time=born_time,
                bloom_filter_data=bits,
            )
        )
    manager.persist()
    assert '"dead":false,\n' in manager.path.read_text()
    again = filters(store)
    again.load()
    assert {group: data.dead_time for group, data in again.filters_of_topic("t").items()} == {
        "old": NOW_MS - 30_000,
        "young": NOW_MS - 5,
    }
    again.persist()
    assert '"dead":true,\n' in manager.path.read_text()
    late = filters(store, FixedClock(NOW_MS - 5 + DAY_MS))
    late.load()
    late.persist()
    assert parse_config(late.path.read_text()) == {"filterDataByTopic": {}}


def test_the_backup_holds_what_was_before(store: Path):
    """Like in RocketMQ: one change back."""
    manager = DelayOffsetManager(store)
    manager.update_offset(1, 1)
    manager.persist()
    first = manager.path.read_bytes()
    assert not manager.backup_path.exists()
    manager.update_offset(1, 2)
    manager.persist()
    assert manager.backup_path.read_bytes() == first
    manager.persist()
    assert manager.backup_path.read_bytes() == first


@pytest.mark.parametrize("torn", [b"", b"\0" * 30, b'{"offsetTable":{1:', b'{"offsetTable":{1:"x"}}', b"[]", b"\xff"])
def test_a_torn_file_survives_by_its_backup(torn: bytes, store: Path):
    """The backup is read, and the torn file never replaces it."""
    manager = DelayOffsetManager(store)
    for offset in (1, 2):
        manager.update_offset(1, offset)
        manager.persist()
    good = manager.backup_path.read_bytes()
    manager.path.write_bytes(torn)
    again = DelayOffsetManager(store)
    again.load()
    assert again.query_offset(1) == 1
    again.persist()
    assert again.path.read_bytes() == good
    assert again.backup_path.read_bytes() == good


def test_an_absent_file_survives_by_its_backup(store: Path):
    """RocketMQ deletes the file before it renames the new one; a crash in between leaves only the backup."""
    manager = DelayOffsetManager(store)
    for offset in (1, 2):
        manager.update_offset(1, offset)
        manager.persist()
    manager.path.unlink()
    again = DelayOffsetManager(store)
    again.load()
    assert again.query_offset(1) == 1


def test_two_torn_files_are_an_error(store: Path):
    """Offsets are not silently reset; the error has the path and the reason."""
    manager = DelayOffsetManager(store)
    for offset in (1, 2):
        manager.update_offset(1, offset)
        manager.persist()
    manager.path.write_bytes(b"{")
    manager.backup_path.write_bytes(b"[")
    with pytest.raises(DamagedStore, match=r"path=.*delayOffset\.json reason=the text ends") as caught:
        DelayOffsetManager(store).load()
    assert ".bak" in caught.value.advice


def test_a_torn_file_without_backup_is_an_error(store: Path):
    """There is no fallback."""
    (store / "config").mkdir()
    (store / "config" / "delayOffset.json").write_bytes(b"{")
    with pytest.raises(DamagedStore, match="stored configuration cannot be read"):
        DelayOffsetManager(store).load()


@pytest.mark.parametrize("text", ["[]", "5", '{1:2,"offsetTable":{}}'])
def test_what_is_no_object_with_names_is_an_error(store: Path, text: str):
    """The file could not be written back, so it is refused when it is read."""
    (store / "config").mkdir()
    (store / "config" / "consumerOffset.json").write_text(text)
    with pytest.raises(DamagedStore, match="not a JSON object"):
        ConsumerOffsetManager(store).load()


@pytest.mark.parametrize("suffix", [".bak", ".json"])
def test_a_file_that_cannot_be_replaced_stays(suffix: str, store: Path):
    """A full disk loses the change, not the old content; the next attempt writes it."""
    manager = DelayOffsetManager(store)
    manager.update_offset(1, 1)
    manager.persist()
    before = manager.path.read_bytes()
    manager.files = FailingFiles(suffix)
    manager.update_offset(1, 2)
    with pytest.raises(StoreFull, match="configuration cannot be written: error=No space left on device path="):
        manager.persist()
    assert manager.path.read_bytes() == before
    manager.files = Files()
    manager.persist()
    again = DelayOffsetManager(store)
    again.load()
    assert again.query_offset(1) == 2


def test_configuration_is_read_from_a_read_only_copy(golden_read_only: Callable[[str], Path]):
    """Loading changes no byte; the fixture compares checksums."""
    for manager in managers(golden_read_only("basic-5.3") / "store"):
        manager.load()


def test_files_that_rocketmq_left_keep_their_backups(golden: Callable[[str], Path]):
    """The first change after RocketMQ makes its file the backup."""
    store = golden("basic-4.9") / "store"
    shutil.copy(store / "config" / "topics.json", store / "expected")
    manager = TopicConfigManager(store, clock=FixedClock())
    manager.load()
    manager.put("a", TopicConfig(topic_name="a"))
    manager.persist()
    assert manager.backup_path.read_bytes() == (store / "expected").read_bytes()


def test_a_change_formats_only_the_entries_that_it_changes(store: Path, monkeypatch: pytest.MonkeyPatch):
    """The file stays the same as if all were formatted, whatever was changed, removed or read again."""
    formatted: list[str] = []

    class NotedConfig(TopicConfig, frozen=True):
        def to_fields(self) -> dict[str, Any]:
            formatted.append(self.topic_name)
            return super().to_fields()

    manager = TopicConfigManager(store)
    for name in ("a", "b\n", "c"):
        manager.put(name, NotedConfig(topic_name=name))
        manager.persist()
    manager.put("a", NotedConfig(topic_name="a", perm=4))
    manager.persist()
    manager.remove("c")
    manager.persist()
    assert formatted == ["a", "b\n", "c", "a"]
    assert manager.path.read_text() == format_config(manager.write_fields())
    manager.load()
    manager.remove("a")
    manager.remove("b\n")
    manager.persist()
    assert manager.path.read_text() == format_config(manager.write_fields())
