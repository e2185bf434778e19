"""reput.open: writer, dispatchers and readers, as used by a program."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import reput
from reput.errors import (
    ConfigError,
    DamagedStore,
    DispatcherError,
    MessageIllegal,
    NotAStore,
    StoreClosed,
    StoreFull,
    StoreLocked,
    WaitTimeout,
)
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.disk.files import Mapping
from reput.store.reader.results import GetMessageStatus
from reput.store.recovery.repair import accept
from written_log import WrittenLog

TINY = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 20,
}
VIEWS = ("consume_queue", "index")
TIMEOUT = 60.0


def open_tiny(path: Path, **settings: object) -> reput.Store:
    store = reput.open(path, **{**TINY, **settings})
    assert isinstance(store, reput.Store)
    return store


def catch_up(store: reput.Store) -> None:
    for view in VIEWS:
        store.wait_for(view, store.appended, timeout=TIMEOUT)


def message(number: int) -> reput.Message:
    return reput.Message("orders", f"body {number}".encode(), tags=f"t{number % 3}", keys=[f"k{number}"])


@pytest.fixture(params=["inline", pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.every_python])])
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


def test_a_second_writer_is_told_who_holds_the_store(tmp_path):
    """The error names the process."""
    with open_tiny(tmp_path / "store", mode="inline"):
        program = f"import reput; reput.open({str(tmp_path / 'store')!r}, mode='inline')"
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert f"pid={os.getpid()}" in second.stderr
    with open_tiny(tmp_path / "store", mode="inline"), pytest.raises(StoreLocked, match=f"pid={os.getpid()}"):
        open_tiny(tmp_path / "store", mode="inline")


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


def test_a_closed_store_takes_nothing(tmp_path):
    """Closing twice does no harm."""
    store = open_tiny(tmp_path / "store", mode="inline")
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.put(message(0))


def test_a_close_that_the_disk_refuses_gives_everything_back(tmp_path, mode, monkeypatch):
    """Consumer offsets cannot be written: the close raises, no process or thread is left, and the store opens again."""
    threads = set(threading.enumerate())
    store = open_tiny(tmp_path / "store", mode=mode)
    store.put(message(0))
    consumer = store.consumer("billing", "orders")
    consumer.acknowledge(consumer.receive(TIMEOUT))

    def refuse() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "consumerOffset.json")

    monkeypatch.setattr(store._engine.services.managers.offsets, "persist", refuse)
    supervisor = getattr(store._engine.group, "process", None)
    with pytest.raises(StoreFull, match=r"could not be closed cleanly.*path=consumerOffset.json"):
        store.close()
    assert supervisor is None or supervisor.poll() is not None
    assert set(threading.enumerate()) <= threads
    with open_tiny(tmp_path / "store", mode=mode) as again:
        assert again.put(message(1)).queue_offset == 1
        catch_up(again)


def test_a_consumer_that_cannot_leave_keeps_nothing_else_from_closing(tmp_path, monkeypatch, caplog):
    """The store and its other consumers close cleanly, and the log names the failed one."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        store.put(message(0))
        stuck, other = store.consumer("billing", "orders"), store.consumer("shipping", "orders")

        def refuse(reference: object) -> None:
            raise DamagedStore("the queue is damaged: topic=orders")

        monkeypatch.setattr(store._engine.services.consumer_groups[stuck.group], "leave", refuse)
    assert "could not leave its group cleanly: group=billing error=the queue is damaged: topic=orders" in caplog.text
    assert other.closed
    assert not (tmp_path / "store" / "abort").exists()


def test_a_close_takes_no_longer_than_it_is_given(tmp_path, monkeypatch):
    """The limit is its own argument, or the setting; other types are refused."""
    given = []
    for settings, timeout in (({}, 2.5), ({"dispatcher_drain_time_max": 7_000}, None)):
        store = open_tiny(tmp_path / "store", mode="inline", **settings)
        drain_and_stop = store._engine.group.drain_and_stop
        monkeypatch.setattr(store._engine.group, "drain_and_stop", given.append)
        with pytest.raises(ConfigError, match="timeout is not a number"):
            store.close(timeout="soon")
        store.close(timeout=timeout)
        drain_and_stop()
    assert given == [2.5, 7.0]


@pytest.mark.parametrize("method", ["flush", "clean", "topics", "pids"])
def test_what_a_closed_store_is_asked_for_is_refused_at_once(tmp_path, method):
    """A forked child of the writer would wait for a flusher that it does not have."""
    store = open_tiny(tmp_path / "store", mode="inline", dispatchers=[])
    store.put(message(0))
    store.close()
    with pytest.raises(StoreClosed):
        getattr(store, method)()


# The child only tries to put, and ends.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_cannot_write(tmp_path):
    """The child's copy is closed, and every method raises the same error; the parent's store stays open."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        store.put(message(0))
        pid = os.fork()
        if pid == 0:
            told = set()
            for use in (lambda: store.put(message(1)), store.flush, lambda: store.consumer("g", "orders")):
                try:
                    use()
                except StoreClosed as error:
                    told.add(f"{error}")
            holder = f"its parent holds it: parent_pid={os.getppid()} "
            os._exit(7 if len(told) == 1 and holder in told.pop() else 0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert store.put(message(1)).queue_offset == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_the_disk(tmp_path):
    """The child never forces the log, so its task would wait for ever."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        result = store.put(message(0))
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(asyncio.wait_for(store.await_durable(result.next_commit_log_offset + 1), TIMEOUT))
            except StoreClosed:
                os._exit(7)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7


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


def test_opening_waits_for_a_store_that_another_process_is_closing(tmp_path):
    """Like in a deployment, whose new process starts before the old one has ended."""
    first = open_tiny(tmp_path / "store", mode="inline")
    first.put(message(0))
    opened = []
    waiter = threading.Thread(
        target=lambda: opened.append(open_tiny(tmp_path / "store", mode="inline", lock_timeout=None))
    )
    waiter.start()
    first.close()
    waiter.join(TIMEOUT)
    with opened[0] as second:
        assert second.put(message(1)).queue_offset == 1


def test_a_store_that_stays_open_is_waited_for_no_longer_than_asked(tmp_path):
    """The error has the waiting time, and the process that holds the store."""
    with open_tiny(tmp_path / "store", mode="inline"), pytest.raises(StoreLocked) as raised:
        open_tiny(tmp_path / "store", mode="inline", lock_timeout=0.01)
    assert f"already has the store open: pid={os.getpid()} " in str(raised.value)
    assert "waited_s=0.01" in str(raised.value)
    with pytest.raises(ConfigError, match="lock_timeout='now'"):
        open_tiny(tmp_path / "store", mode="inline", lock_timeout="now")
