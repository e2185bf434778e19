"""reput.open: writer, dispatchers and readers, as used by a program."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import reput
from embedded.tiny_stores import TIMEOUT, TINY, VIEWS, catch_up, message, open_tiny
from reput.errors import (
    ConfigError,
    DamagedStore,
    DispatcherError,
    MessageIllegal,
    NotAStore,
    WaitTimeout,
)
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.disk.files import Mapping
from reput.store.reader.results import GetMessageStatus
from reput.store.recovery.repair import accept


@pytest.fixture(params=["inline", pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.newest_python])])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_put_can_be_got_queried_and_read_from_the_log(tmp_path, mode):
    """A message is found by its queue offset, by its key, and in the log, over many tiny files."""
    with open_tiny(tmp_path / "store", mode=mode) as store:
        results = [store.put(message(number)) for number in range(100)]
        assert [result.queue_offset for result in results] == list(range(100))
        catch_up(store)
        found = store.get("orders", 0, 40, 50)
        assert found.status is GetMessageStatus.FOUND
        assert found.next_queue_offset == 90
        assert [record.body for record in found.records] == [f"body {number}".encode() for number in range(40, 90)]
        assert [record.queue_offset for record in store.query("orders", "k77")] == [77]
        assert [record.queue_offset for record in store.records()] == list(range(100))
        assert [record.message_id for record in store.records()] == [result.message_id for result in results]


def test_a_batch_is_stored_like_its_messages(tmp_path, mode):
    """`put_batch` returns one result per message, across segments and queues."""
    with open_tiny(tmp_path / "store", mode=mode) as store:
        batch = [
            reput.Message("orders", b"x" * (number % 700), queue_id=number % 3, keys=f"a{number} b{number}")
            for number in range(90)
        ]
        results = store.put_batch(batch)
        catch_up(store)
        assert [(result.queue_id, result.queue_offset) for result in results] == [(n % 3, n // 3) for n in range(90)]
        for number in (0, 44, 89):
            assert [record.body for record in store.query("orders", f"b{number}")] == [batch[number].body]


def test_a_store_goes_on_where_it_was_closed(tmp_path, mode):
    """Queue offsets continue, epochs do not, and the store is left like a clean one of RocketMQ's."""
    path = tmp_path / "store"
    with open_tiny(path, mode=mode) as store:
        store.put_batch([message(number) for number in range(30)])
    assert not (path / "abort").exists()
    with open_tiny(path, mode=mode) as store:
        assert store.status().writer.epoch == 1
        assert store.put(message(30)).queue_offset == 30
        catch_up(store)
        assert len(store.get("orders", 0, 0, 100).records) == 31


@pytest.mark.processes
def test_another_process_reads_beside_the_writer(tmp_path):
    """A read-only store sees the views up to the positions in the live group's cells."""
    with open_tiny(tmp_path / "store") as store:
        store.put_batch([message(number) for number in range(50)])
        catch_up(store)
        program = (
            "import reput, sys\n"
            f"with reput.open({str(tmp_path / 'store')!r}, read_only=True, **{TINY!r}) as store:\n"
            "    print(len(store.get('orders', 0, 0, 100).records), len(store.query('orders', 'k7')),"
            " len(list(store.records())))"
        )
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert second.stdout.split() == ["50", "1", "50"]


def test_reading_changes_no_byte(golden):
    """A store that RocketMQ wrote is read without a trace."""
    root = golden("basic-5.3") / "store"
    before = checksums(root)
    with reput.open(
        root, read_only=True, mapped_file_size_consume_queue=6000, max_hash_slot_num=100, max_index_num=400
    ) as store:
        assert sum(1 for _ in store.records()) == 822
        topics = store.topics()
        assert sum(store.queue_range(topic, queue)[1] for topic in topics for queue in topics[topic]) == 822
    assert checksums(root) == before


def checksums(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("read_only", [True, False])
def test_a_body_that_the_disk_has_changed_is_handed_out_to_nobody(tmp_path, read_only):
    """Opening a cleanly closed store does not check older segments. A reader that finds the damage gets an error."""
    root = tmp_path / "store"
    with open_tiny(root, mode="inline") as store:
        results = [store.put(message(number)) for number in range(100)]
        catch_up(store)
    damaged = results[5]
    segment = root / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[damaged.commit_log_offset + 88] ^= 1
    segment.write_bytes(data)
    [found] = check_store(root, Settings(**TINY)).damage
    assert (found.begin, found.end) == (damaged.commit_log_offset, damaged.next_commit_log_offset)
    where = f"body does not have its CRC: .*commit_log_offset={damaged.commit_log_offset}"
    with reput.open(root, mode="inline", read_only=read_only, **TINY) as store:
        for fails in (
            lambda: store.get("orders", 0, 5, 1),
            lambda: store.get("orders", 0, 0, 32),
            lambda: store.get("orders", 0, 0, 32, tags="t2"),
            lambda: store.query("orders", "k5"),
            lambda: store.query("orders", damaged.message_id),
        ):
            with pytest.raises(DamagedStore, match=where):
                fails()
        with pytest.raises(DamagedStore, match=f"a CRC does not match: from={damaged.commit_log_offset}"):
            list(store.records())
        assert len(store.get("orders", 0, 0, 5)) == 5
        assert len(store.get("orders", 0, 6, 94)) == 94
        assert [record.queue_offset for record in store.query("orders", "k6")] == [6]
    accept(root, damaged.commit_log_offset, damaged.next_commit_log_offset)
    with reput.open(root, read_only=True, **TINY) as store:
        assert [record.queue_offset for record in store.get("orders", 0, 4, 3)] == [4, 6, 7]
        assert store.query("orders", "k5") == []
        assert len(list(store.records())) == 99


def test_what_is_wrong_is_refused_by_name(tmp_path):
    """Unknown settings, modes, dispatchers and directories are named."""
    with pytest.raises(ConfigError, match="mapped_file_size_comit_log"):
        reput.open(tmp_path / "store", mapped_file_size_comit_log=4096)
    with pytest.raises(ConfigError, match="mode='threads'"):
        reput.open(tmp_path / "store", mode="threads")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="consume_que"):
        reput.open(tmp_path / "store", mode="inline", dispatchers=["consume_que"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("not ours")
    with pytest.raises(NotAStore, match="other"):
        reput.open(tmp_path / "other", mode="inline")
    with pytest.raises(NotAStore, match="absent"):
        reput.open(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("topic", ["", " ", "../up", "a/b", "ü", "x" * 128, "a b", "."])
def test_a_topic_that_rocketmq_refuses_is_refused(tmp_path, topic):
    """Nothing of such a message is stored."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        with pytest.raises(MessageIllegal):
            store.put(reput.Message(topic, b""))
        assert store.appended == 0


def test_a_dispatcher_that_is_not_enabled_is_named(tmp_path):
    """Waiting for it would never end."""
    with (
        open_tiny(tmp_path / "store", mode="inline", dispatchers=["consume_queue"]) as store,
        pytest.raises(DispatcherError, match="index"),
    ):
        store.wait_for("index", 0, timeout=1)


def test_many_threads_put_at_once(tmp_path):
    """Every message gets its own offset, and is read once."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        threads = [
            threading.Thread(target=lambda: [store.put(message(number)) for number in range(200)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        catch_up(store)
        found = store.get("orders", 0, 0, 2000)
        assert [record.queue_offset for record in found.records] == list(range(1600))


def test_sync_flush_returns_when_the_message_is_on_disk(tmp_path):
    """put, put_batch and aput all wait for the disk."""
    with open_tiny(tmp_path / "store", mode="inline", flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000) as store:
        result = store.put(message(0))
        assert store.status().writer.durable >= result.next_commit_log_offset
        last = store.put_batch([message(1), message(2)])[-1]
        assert store.status().writer.durable >= last.next_commit_log_offset

        async def put_many() -> list[reput.PutMessageResult]:
            return await asyncio.gather(*(store.aput(message(number)) for number in range(50)))

        results = asyncio.run(put_many())
        assert store.status().writer.durable >= max(result.next_commit_log_offset for result in results)


def test_sync_flush_shows_nothing_that_the_disk_may_still_lose(tmp_path, mode, monkeypatch):
    """Neither in this program nor in others, neither by queue, by key nor in the log.

    After a power cut, another message would get its place, and earlier readers would have read a message that never
    was.
    """
    entered, go_on = threading.Event(), threading.Event()
    write_forced = Mapping.write_forced

    def write_slowly(mapping: Mapping, data: bytes, at: int) -> None:
        # It is already in the file, but not on disk.
        mapping.write(memoryview(data), at)
        entered.set()
        go_on.wait(TIMEOUT)
        write_forced(mapping, data, at)

    def shown(store: reput.Store | reput.ReadOnlyStore) -> set[int]:
        return {
            len(store.get("orders", 0, 0, 9)),
            len([record for key in ("k0", "k1") for record in store.query("orders", key)]),
            len(list(store.records())),
            store.queue_range("orders")[1],
        }

    with open_tiny(tmp_path / "store", mode=mode, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000) as store:
        first = store.put(message(0))
        catch_up(store)
        monkeypatch.setattr(Mapping, "write_forced", write_slowly)
        putting = threading.Thread(target=store.put, args=(message(1),))
        putting.start()
        try:
            assert entered.wait(TIMEOUT)
            assert store.appended > first.next_commit_log_offset
            for view in VIEWS:
                with pytest.raises(WaitTimeout):
                    store.wait_for(view, store.appended, timeout=0.1)
            assert shown(store) == {1}
            if mode == "processes":
                with reput.open(tmp_path / "store", read_only=True) as beside:
                    assert shown(beside) == {1}
        finally:
            go_on.set()
            putting.join()
        catch_up(store)
        assert shown(store) == {2}


def test_sync_flush_tells_of_a_deletion_behind_which_nothing_is_put(tmp_path, mode):
    """There is nothing to force that the deletion could wait for."""
    with open_tiny(tmp_path / "store", mode=mode, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000) as store:
        store.put(message(0))
        catch_up(store)
        store.delete_topic("orders", TIMEOUT)
        assert not (tmp_path / "store" / "consumequeue" / "orders").exists()
        assert store.queue_range("orders") == (0, 0)


def test_records_follow_the_log(tmp_path):
    """With `follow`, the iterator continues with later records, and ends when the store is closed."""
    store = open_tiny(tmp_path / "store", mode="inline")
    store.put(message(0))
    seen: list[int] = []
    first, tenth = threading.Event(), threading.Event()

    def follow() -> None:
        for record in store.records(follow=True):
            seen.append(record.queue_offset)
            first.set()
            if len(seen) == 10:
                tenth.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(TIMEOUT)
    for number in range(1, 10):
        store.put(message(number))
    assert tenth.wait(TIMEOUT)
    store.close()
    thread.join(TIMEOUT)
    assert seen == list(range(10))
