"""Opening and closing of the writer: locks, epochs, kills, forks, and what an interrupted creation leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from delivering import wait_until
from reput.errors import (
    ConfigError,
    DamagedStore,
    NotAStore,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from reput.store import message_store
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.files import Clock
from reput.store.record.message import Message
from reput.store.state.store_lock import StoreLock
from small_store import (
    SEGMENT_SIZE,
    drop,
    message_of_size,
    open_store,
    records,
    small_settings,
)
from store.message_stores import NoRoomFor


@pytest.fixture
def store(tmp_path):
    """A new store of small segments, closed afterwards."""
    opened = open_store(tmp_path / "store")
    yield opened
    if opened.state != "STOPPED":
        opened.close(views_complete=True)


def test_a_store_goes_on_after_a_clean_close(tmp_path):
    """Offsets of log and queues continue, nothing is scanned, and the store's id stays the same."""
    first = open_store(tmp_path / "store")
    before = [first.put(Message("orders", b"a", queue_id=1)) for _ in range(50)]
    first.close(views_complete=True)
    assert not (tmp_path / "store" / "abort").exists()
    second = open_store(tmp_path / "store")
    assert second.store_id == first.store_id
    assert second.epochs.epoch == first.epochs.epoch
    after = second.put(Message("orders", b"b", queue_id=1))
    assert after.commit_log_offset == before[-1].next_commit_log_offset
    assert after.queue_offset == 50
    assert second.ordinal == 51
    second.close(views_complete=True)


def test_abort_is_there_while_the_store_is_open_and_where_views_are_behind(tmp_path):
    """RocketMQ recovers missing entries only if it finds that file."""
    opened = open_store(tmp_path / "store")
    opened.put(Message("orders", b"a"))
    assert (tmp_path / "store" / "abort").read_text() == str(os.getpid())
    opened.close(views_complete=False)
    assert (tmp_path / "store" / "abort").exists()
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    assert not (tmp_path / "store" / "abort").exists()


def test_a_store_that_was_dropped_goes_on_in_a_new_epoch(tmp_path):
    """Views may have seen records lost in a crash, so they learn where the log ended."""
    dropped = open_store(tmp_path / "store")
    for _ in range(30):
        dropped.put(message_of_size(300))
    drop(dropped)
    second = open_store(tmp_path / "store")
    assert second.epochs.epoch == dropped.epochs.epoch + 1
    assert second.epochs.history[-1].start_offset == dropped.appended == second.appended
    assert second.put(message_of_size(300)).queue_offset == 30
    second.close(views_complete=True)


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_killed_writer_loses_nothing_that_the_kernel_has(tmp_path):
    """`kill -9` during puts: every acknowledged message is there, and the queues continue without a gap."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from small_store import open_store\n"
        "from reput.store.record.message import Message\n"
        "opened = open_store(Path(sys.argv[1]))\n"
        "for i in range(1_000_000):\n"
        "    result = opened.put(Message('orders', b'%d' % i, queue_id=i % 2))\n"
        "    print(result.commit_log_offset, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store")], stdout=subprocess.PIPE, env=environment
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(400)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout.read().split(b"\n")[:-1] if line]
    writer.wait()
    writer.stdout.close()
    opened = open_store(tmp_path / "store")
    found = records(tmp_path / "store", unclean=True)
    assert {record.commit_log_offset for record in found} >= set(acknowledged)
    assert [record.body for record in found] == [b"%d" % i for i in range(len(found))]
    assert opened.put(Message("orders", b"")).queue_offset == (len(found) + 1) // 2
    opened.close(views_complete=True)


def test_a_second_writer_is_told_who_has_the_store(tmp_path, store):
    """Also within one process; the error has the holder's process id."""
    with pytest.raises(StoreLocked, match=f"pid={os.getpid()}"):
        open_store(tmp_path / "store")
    assert store.put(Message("orders", b"x")).queue_offset == 0


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_second_writer_in_another_process_is_told_who_has_the_store(tmp_path, store):
    """The lock belongs to the system, not only to the process."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from reput.errors import StoreLocked\n"
        "from small_store import open_store\n"
        "try:\n"
        "    open_store(Path(sys.argv[1]))\n"
        "except StoreLocked as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")], capture_output=True, text=True, env=environment
    )
    assert f"pid={os.getpid()}" in told.stdout, told.stderr


def test_a_store_is_free_after_its_close(tmp_path):
    """A closed store accepts no message."""
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    assert StoreLock.holder(tmp_path / "store") is None
    with pytest.raises(StoreClosed):
        opened.put(Message("orders", b""))
    with pytest.raises(StoreClosed):
        opened.put_batch([Message("orders", b"")])
    assert opened.state == "STOPPED"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_child_the_store_is_closed(store):
    """The child can neither write nor release the parent's lock, and does not wait for a missing thread."""
    store.put(Message("orders", b"x"))
    store.appender.put_lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 9
        try:
            store.forget()
            store.put(Message("orders", b"y"))
        except StoreClosed:
            code = 0
        finally:
            os._exit(code)
    store.appender.put_lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert StoreLock.holder(store.directory) == os.getpid()
    assert store.put(Message("orders", b"y")).queue_offset == 1


def test_a_directory_with_other_things_in_it_is_no_place_for_a_store(tmp_path):
    """Nothing is created in it."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("…")
    with pytest.raises(NotAStore, match="not empty"):
        open_store(tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]
    (tmp_path / "file").write_text("…")
    with pytest.raises(NotAStore):
        open_store(tmp_path / "file")


@pytest.mark.parametrize(
    "left", [["reput/"], ["reput/", "lock"], ["reput/", "lock", "commitlog/"], ["lock", "commitlog/"]]
)
def test_a_first_creation_that_was_interrupted_is_taken_up(tmp_path, left):
    """Before the first segment no data can be missing."""
    for name in left:
        path = tmp_path / "store" / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    opened = open_store(tmp_path / "store")
    assert opened.put(Message("orders", b"x")).commit_log_offset == 0
    opened.close(views_complete=True)


def test_a_first_segment_that_was_not_given_its_size_is_taken_up(tmp_path):
    """It was created, and the process died before it had a byte."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020d}").touch()
    opened = open_store(tmp_path / "store")
    assert opened.put(Message("orders", b"x")).commit_log_offset == 0
    opened.close(views_complete=True)
    assert len(records(tmp_path / "store")) == 1


def test_segments_of_a_size_that_none_can_have_are_left_as_they_are(tmp_path):
    """An incomplete copy or another program's file: its size must not become a setting."""
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"hello")
    with pytest.raises(DamagedStore, match=r"segment_size=5 size_min=1024 .*path="):
        open_store(tmp_path / "store")
    assert segment.read_bytes() == b"hello"
    assert not (tmp_path / "store" / "abort").exists()


def test_wrong_settings_of_hosts_are_named(tmp_path):
    """Records hold addresses, not names."""
    with pytest.raises(ConfigError, match="store_host"):
        small_settings(store_host="localhost:10911")


def test_segments_keep_the_size_that_they_have(tmp_path):
    """A different setting applies to new stores only."""
    opened = open_store(tmp_path / "store")
    opened.put(message_of_size(3000))
    opened.close(views_complete=True)
    opened = open_store(tmp_path / "store", mapped_file_size_commit_log=8192)
    assert opened.put(message_of_size(3000)).commit_log_offset == SEGMENT_SIZE
    opened.close(views_complete=True)


def test_a_damaged_log_is_not_opened_for_writing(tmp_path):
    """The error has the range and the possible decisions."""
    opened = open_store(tmp_path / "store")
    results = [opened.put(Message("orders", b"body", queue_id=i % 2)) for i in range(10)]
    opened.close(views_complete=True)
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[results[4].commit_log_offset + 90] ^= 4
    segment.write_bytes(data)
    for name in ("epochs", "queue_offsets"):
        (tmp_path / "store" / "reput" / name).unlink()
    begin, end = results[4].commit_log_offset, results[4].next_commit_log_offset
    with pytest.raises(DamagedStore, match=f"from={begin} until={end}") as caught:
        open_store(tmp_path / "store")
    assert f"--accept {begin}..{end}" in caught.value.advice
    assert StoreLock.holder(tmp_path / "store") is None


def test_a_store_whose_own_files_have_no_room_is_not_opened_and_says_which(tmp_path):
    """Once there is space, it opens with all its data."""
    opened = open_store(tmp_path / "store")
    offset = opened.put(message_of_size(300)).next_commit_log_offset
    opened.close(views_complete=True)
    with pytest.raises(StoreFull, match=r"opened for writing: .*error=No space.* path=.*/reput/epochs"):
        open_store(tmp_path / "store", files=NoRoomFor("epochs"))
    opened = open_store(tmp_path / "store")
    assert opened.appended == offset
    opened.close(views_complete=True)


def test_a_store_that_is_moved_while_it_is_open_refuses_messages_and_goes_on_at_its_new_place(tmp_path, monkeypatch):
    """Nothing is made at the old place: topics and views would lie apart from the log."""
    monkeypatch.setattr(message_store, "PLACE_LOOK_S", 0.0)
    old, new = tmp_path / "old", tmp_path / "new"
    store = open_store(old, clock=Clock(), flush_interval_commit_log=10)
    store.put(Message("orders", b"before"))
    old.rename(new)

    def refusal() -> str:
        try:
            store.put(Message("orders", b"behind"))
        except StoreReadOnly as error:
            return str(error)
        return ""

    wait_until(lambda: "was moved or removed while it was open" in refusal())
    with pytest.raises(StoreError, match="directory is gone"):
        TopicConfigManager(old).persist()
    end = store.appended
    store.close(views_complete=True)
    assert not old.exists()
    store = open_store(new)
    assert store.appended == end
    store.put(Message("orders", b"there"))
    store.close(views_complete=True)
