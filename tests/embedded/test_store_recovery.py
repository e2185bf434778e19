"""What an opening finds after kills, cuts and losses, and what a RocketMQ before left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import reput
from embedded.tiny_stores import TINY, catch_up, message, open_tiny
from reput.errors import (
    ConfigError,
    DamagedStore,
)
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.recovery.repair import accept
from written_log import WrittenLog


@pytest.fixture(params=["inline", pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.newest_python])])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_opening_that_is_refused_leaves_the_store_as_it_found_it(tmp_path, mode):
    """It stays closed cleanly, with RocketMQ's times of log and views; after a kill it still needs recovery."""
    path = tmp_path / "store"

    def refuse_openings():
        with pytest.raises(ConfigError, match="unheard_of"):
            open_tiny(path, mode=mode, **{"dispatchers.consume_queue.unheard_of": 1})
        with pytest.raises(ConfigError, match="nobody"):
            open_tiny(path, mode=mode, dispatchers=["consume_queue", "nobody"])

    with open_tiny(path, mode=mode) as store:
        store.put_batch([message(number) for number in range(30)])
    names = ("checkpoint", "reput/dispatcher_cursors")
    before = [(path / name).read_bytes() for name in names]
    refuse_openings()
    assert not (path / "abort").exists()
    assert [(path / name).read_bytes() for name in names] == before
    (path / "abort").touch()
    refuse_openings()
    assert (path / "abort").exists()
    with open_tiny(path, mode=mode) as store:
        assert store.put(message(30)).queue_offset == 30
    assert not (path / "abort").exists()


def test_whoever_asks_at_once_gets_what_was_there_before(tmp_path, mode):
    """The answer is not empty while the dispatchers are still starting."""
    path = tmp_path / "store"
    with open_tiny(path, mode=mode) as store:
        store.put_batch([message(number) for number in range(20)])
    for _ in range(3):
        with open_tiny(path, mode=mode) as store:
            assert store.query("orders", "k7")[0].queue_offset == 7
            assert len(store.get("orders", 0, 0, 20)) == 20
            assert store.queue_range("orders") == (0, 20)


def test_a_store_of_rocketmq_is_carried_on(golden, mode):
    """Queue offsets continue after RocketMQ's, and its views are adopted, not rebuilt."""
    root = golden("basic-5.3") / "store"
    with reput.open(
        root, mode=mode, mapped_file_size_consume_queue=6000, max_hash_slot_num=100, max_index_num=400
    ) as store:
        topic = "Meadow_orders-12"
        result = store.put(reput.Message(topic, b"new", keys=["new-key"]))
        assert result.queue_offset == 340
        catch_up(store)
        assert store.queue_range(topic, 0) == (0, 341)
        assert [record.body for record in store.query(topic, "new-key")] == [b"new"]


def lose_topic(queues: Path) -> None:
    """A whole directory of queues is deleted."""
    shutil.rmtree(queues / "Meadow_orders-12")


def lose_queue(queues: Path) -> None:
    shutil.rmtree(queues / "Cobalt_codec-12" / "0")


def lose_oldest_file(queues: Path) -> None:
    (queues / "Meadow_orders-12" / "0" / f"{0:020d}").unlink()


def lose_newest_file(queues: Path) -> None:
    (queues / "Meadow_orders-12" / "0" / f"{6000:020d}").unlink()


def lose_a_unit(queues: Path) -> None:
    """In a file that is not the queue's last one, whose units are not all checked."""
    with (queues / "Meadow_orders-12" / "0" / f"{0:020d}").open("r+b") as file:
        file.seek(40)
        file.write(bytes(20))


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("lose", [lose_topic, lose_queue, lose_oldest_file, lose_newest_file, lose_a_unit])
def test_what_queues_of_rocketmq_have_lost_comes_again(golden, lose):
    """RocketMQ would serve an empty or a shorter queue. Its log was read when the store was found, and tells better."""
    folder = golden("basic-5.3")
    lines = [msgspec.json.decode(line) for line in (folder / "listing.jsonl").read_bytes().splitlines()]
    lose(folder / "store" / "consumequeue")
    with reput.open(folder / "store", mode="inline", mapped_file_size_consume_queue=6000) as store:
        assert isinstance(store, reput.Store)
        catch_up(store)
        for line in lines:
            found = store.get(line["topic"], line["queueId"], line["queueOffset"], 1)
            assert [record.commit_log_offset for record in found] == [line["physicalOffset"]]


def test_a_topic_that_rocketmq_deleted_stays_deleted(golden):
    """Its records are still in the log, but neither a queue nor the stored configuration has it."""
    root = golden("basic-5.3") / "store"
    lose_topic(root / "consumequeue")
    path = root / "config" / "topics.json"
    topics = msgspec.json.decode(path.read_bytes())
    del topics["topicConfigTable"]["Meadow_orders-12"]
    path.write_bytes(msgspec.json.encode(topics))
    with reput.open(root, mode="inline", mapped_file_size_consume_queue=6000) as store:
        assert isinstance(store, reput.Store)
        catch_up(store)
        assert store.queue_range("Meadow_orders-12", 0) == (0, 0)
        assert store.queue_range("Orchid_events-12", 0)[1] > 0


@pytest.mark.processes
def test_a_killed_writer_loses_nothing_that_was_put(tmp_path):
    """After kill -9 the group is gone, and the next opening finds every acknowledged message in log and views."""
    program = (
        "import reput, sys\n"
        f"store = reput.open({str(tmp_path / 'store')!r}, **{TINY!r})\n"
        "number = 0\n"
        "while True:\n"
        "    store.put(reput.Message('orders', b'body %d' % number, keys=['k%d' % number]))\n"
        "    number += 1\n"
        "    print(number, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = 0
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged >= 500:
            break
    writer.send_signal(signal.SIGKILL)
    for line in writer.stdout:
        if line.strip().isdigit():
            acknowledged = int(line)
    writer.wait()
    writer.stdout.close()
    with open_tiny(tmp_path / "store") as store:
        catch_up(store)
        found = store.get("orders", 0, 0, 100_000)
        assert len(found.records) >= acknowledged
        assert [record.body for record in found.records] == [b"body %d" % n for n in range(len(found.records))]
        assert [record.queue_offset for record in store.query("orders", f"k{acknowledged - 1}")] == [acknowledged - 1]
        assert store.status().writer.epoch == 2


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("cut", [0, 0.5, -1])
@pytest.mark.parametrize("view", ["consumequeue/orders/0", "consumequeue_ext/orders/0", "index"])
def test_a_file_of_a_view_that_was_cut_short_is_noticed_by_the_opening(tmp_path, view, cut):
    """RocketMQ would not start on it: the view is rebuilt, and no unit is missing. Read-only readers get an error."""
    settings = {"mapped_file_size_consume_queue_ext": 100, "enable_consume_queue_ext": True}
    names = ["consume_queue_ext", "consume_queue", "index"]
    path = tmp_path / "store"
    with open_tiny(path, mode="inline", dispatchers=names, **settings) as store:
        for number in range(30):
            store.put(message(number))
    victim = sorted((path / view).iterdir())[0]
    data = victim.read_bytes()
    victim.write_bytes(data[: int(len(data) * cut)] if cut >= 0 else data[:cut])
    if view == "consumequeue/orders/0":
        with reput.open(path, read_only=True) as reader:
            with pytest.raises(DamagedStore, match="the file was cut short"):
                reader.get("orders", 0, 9)
            assert [record.queue_offset for record in reader.get("orders", 0, 10).records] == list(range(10, 30))
    if cut != -1 or view != "consumequeue_ext/orders/0":
        # If no byte of an ext unit is missing, each address leads to one.
        name = view.partition("/")[0].replace("consumequeue", "consume_queue")
        assert check_store(path, store.settings).views[name].state == "different"
    with open_tiny(path, mode="inline", dispatchers=names, **settings) as store:
        catch_up(store)
        assert len(store.get("orders", 0, 0).records) == 30
        assert len(store.query("orders", "k1")) == 1
    assert check_store(path, store.settings).ok


def test_a_byte_that_no_crc_covers_brings_nothing_back_that_was_deleted(tmp_path):
    """The log's end has changed, and reput wrote it last: records after the deletion are still there."""
    path = tmp_path / "store"
    with open_tiny(path, mode="inline") as store:
        store.put(message(0))
    with open_tiny(path, mode="inline") as store:
        store.put(message(1))
        store.delete_topic("orders")
        results = [store.put(message(2)), store.put(message(3))]
    with (path / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(results[-1].commit_log_offset + 47)
        segment.write(b"\xaa")
    with open_tiny(path, mode="inline") as store:
        catch_up(store)
        assert [record.body for record in store.get("orders", 0, 0).records] == [b"body 2", b"body 3"]
        assert store.put(message(4)).queue_offset == 2
    assert check_store(path, store.settings).ok


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("size", [None, 0, 1000])
def test_a_segment_that_is_gone_or_cut_short_is_noticed_by_the_opening(tmp_path, size, killed):
    """The error names its range, which the operator decides about; once accepted, it no longer prevents an opening."""
    path = tmp_path / "store"
    with open_tiny(path, mode="inline") as store:
        for number in range(100):
            store.put(message(number))
    segment = path / "commitlog" / f"{4096:020}"
    if size is None:
        segment.unlink()
    else:
        os.truncate(segment, size)
    if killed:
        (path / "abort").touch()
    with pytest.raises(DamagedStore, match=r"the log is damaged: from=\d+ until=8192 ") as refused:
        open_tiny(path, mode="inline")
    begin = int(str(refused.value).partition("from=")[2].split()[0])
    accept(path, begin, 8192)
    with open_tiny(path, mode="inline") as store:
        store.put(message(100))
        catch_up(store)
    assert [row.accepted for row in reput.open(path, read_only=True).status().damage] == [True]


def test_a_rocketmq_that_ran_past_retention_leaves_no_queue_behind(tmp_path):
    """RocketMQ lost our last records, wrote others with the same queue offsets, and deleted all of ours."""
    store = tmp_path / "store"
    with open_tiny(store, mode="inline") as opened:
        for number in range(40):
            opened.put(message(number))
        catch_up(opened)
        end = opened.appended
    for path in (store / "commitlog").iterdir():
        path.unlink()
    other = WrittenLog(store, 4096, begin=(end // 4096 + 3) * 4096)
    for number in range(20):
        other.append(b"theirs %d" % number, queue_offset=30 + number, store_timestamp=2**41 + number)
    other.save()
    with open_tiny(store, mode="inline") as opened:
        catch_up(opened)
        found = opened.get("orders", 0, 30, count_max=32)
        assert [record.body for record in found] == [b"theirs %d" % number for number in range(20)]
        assert opened.put(message(0)).queue_offset == 50
    assert check_store(store, Settings(**TINY)).ok
