"""Identity: a store's id, and how stores are recognised."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from reput.errors import DamagedStore, NotAStore, StoreError
from reput.store.disk.sealed_file import seal
from reput.store.log.segments import Segments
from reput.store.record.message import Message
from reput.store.recovery.repair import cut
from reput.store.state import identity
from reput.store.state.epochs import Epoch, read_epochs
from reput.store.state.identity import (
    LAYOUT_VERSION,
    StoreIdentity,
    derive_store_id,
    is_store,
    is_unfinished,
    may_be_store,
    new_store_id,
    read_identity,
    read_store_id,
    require_store,
)
from small_store import open_store
from written_log import WrittenLog


def test_a_new_store_gets_an_id_that_no_other_has(tmp_path):
    """32 hex digits, which never change."""
    first, second = open_store(tmp_path / "first"), open_store(tmp_path / "second")
    assert first.store_id != second.store_id
    assert len(first.store_id) == 32 == len(new_store_id())
    int(first.store_id, 16)
    for opened in (first, second):
        opened.close(views_complete=True)
    assert read_store_id(tmp_path / "first") == first.store_id


def test_a_store_without_an_id_is_called_by_its_first_record_until_reput_writes_it(tmp_path):
    """Retention removes the first record, so the first write creates a permanent id."""
    log = WrittenLog(tmp_path / "store", 4096)
    log.append(b"first")
    log.save()
    derived = read_store_id(log.store)
    log.append(b"second")
    log.save()
    assert read_store_id(log.store) == derived == derive_store_id(Segments(log.store / "commitlog"))
    opened = open_store(log.store)
    assert opened.store_id != derived
    opened.put(Message("orders", b""))
    opened.close(views_complete=True)
    assert read_store_id(log.store) == opened.store_id == read_epochs(log.store, opened.store_id).store_id


def test_a_repair_before_the_first_writing_is_of_the_same_store(tmp_path):
    """The new epoch belongs to the store, whatever its later id."""
    log = WrittenLog(tmp_path / "store", 4096)
    for _ in range(3):
        log.append(b"record")
    log.save()
    cut(log.store, log.offsets[2])
    opened = open_store(log.store)
    assert opened.epochs.store_id == opened.store_id
    assert Epoch(2, log.offsets[2], opened.epochs.history[1].start_timestamp) in opened.epochs.history
    opened.close(views_complete=True)


def test_other_first_bytes_give_another_id(tmp_path):
    """So do different segments."""
    ids = set()
    for number, (begin, size) in enumerate([(0, 4096), (4096, 4096), (0, 8192)]):
        log = WrittenLog(tmp_path / str(number), size, begin=begin)
        log.append(b"first")
        ids.add(derive_store_id(Segments(log.save() / "commitlog")))
    other = WrittenLog(tmp_path / "other", 4096)
    other.append(b"first", born_timestamp=5)
    ids.add(derive_store_id(Segments(other.save() / "commitlog")))
    assert len(ids) == 4


def test_a_store_of_a_newer_reput_is_refused(tmp_path):
    """The error says what to do."""
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    identity = read_identity(tmp_path / "store")
    newer = msgspec.structs.replace(identity, layout_version=LAYOUT_VERSION + 1)
    (tmp_path / "store" / "reput" / "store.json").write_bytes(seal(newer))
    with pytest.raises(StoreError, match="newer reput") as caught:
        open_store(tmp_path / "store")
    assert caught.value.advice
    with pytest.raises(StoreError, match=f"layout_version={LAYOUT_VERSION + 1}"):
        read_store_id(tmp_path / "store")


def test_a_torn_identity_is_damage(tmp_path):
    """It is not created again, because cursors contain it."""
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    path = tmp_path / "store" / "reput" / "store.json"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(DamagedStore, match="checksum"):
        open_store(tmp_path / "store")


def test_the_sizes_that_files_do_not_show_are_recorded(tmp_path):
    """They override RocketMQ's defaults at the next opening."""
    opened = open_store(tmp_path / "store", max_hash_slot_num=77, max_index_num=99)
    opened.close(views_complete=True)
    identity = read_identity(tmp_path / "store")
    assert isinstance(identity, StoreIdentity)
    assert identity.file_sizes["max_hash_slot_num"] == 77
    assert identity.file_sizes["max_index_num"] == 99
    assert identity.file_sizes["mapped_file_size_commit_log"] == 4096


def test_a_store_is_what_has_a_log_or_an_identity(tmp_path):
    """Reading verbs refuse everything else, and create nothing."""
    assert not is_store(tmp_path / "absent")
    with pytest.raises(NotAStore, match="no such directory"):
        require_store(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert not is_store(tmp_path / "empty")
    with pytest.raises(NotAStore, match="missing=commitlog"):
        require_store(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    opened = open_store(tmp_path / "store")
    opened.close(views_complete=True)
    require_store(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "commitlog")
    assert is_store(tmp_path / "store")


@pytest.mark.parametrize(
    ("names", "unfinished"),
    [
        ([], True),
        (["lock"], True),
        (["reput/", "lock"], True),
        (["reput/", "reput/store.json.draft"], True),
        (["commitlog/", "commitlog/00000000000000000000"], True),
        (["readme.txt"], False),
        (["lock/"], False),
        (["reput/", "reput/__init__.py"], False),
        (["reput/", "reput/views/"], False),
        (["commitlog/", "commitlog/old/"], False),
        (["consumequeue/"], False),
        (["lock", "abort", "checkpoint", "commitlog/", "consumequeue/", "config/", "config/topics.json"], True),
    ],
)
def test_what_the_making_of_a_store_leaves_is_told_from_other_things(tmp_path, names, unfinished):
    """Only its remains may be adopted; never a folder with other files."""
    for name in names:
        path = tmp_path / name
        path.mkdir() if name.endswith("/") else path.touch()
    assert is_unfinished(tmp_path) is unfinished


def test_a_store_that_another_process_makes_meanwhile_is_one(tmp_path, monkeypatch):
    """Otherwise whoever comes second would be told that the directory holds other things."""

    def look_while_it_is_made(directory):
        monkeypatch.undo()
        open_store(directory).close(views_complete=True)
        return is_unfinished(directory)

    monkeypatch.setattr(identity, "is_unfinished", look_while_it_is_made)
    assert may_be_store(tmp_path)


def test_files_with_bytes_are_never_left_overs(tmp_path):
    """They were written."""
    (tmp_path / "lock").write_text("a note of mine")
    assert not is_unfinished(tmp_path)
    (tmp_path / "lock").write_text("lock")
    assert is_unfinished(tmp_path)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(b"\0")
    assert not is_unfinished(tmp_path)


def test_queues_without_a_log_are_no_store_that_was_never_used(tmp_path):
    """RocketMQ's checkpoint and units exist: their log is lost, and no new log may begin over them."""
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    queue = tmp_path / "consumequeue" / "orders" / "0"
    queue.mkdir(parents=True)
    assert is_unfinished(tmp_path)
    (queue / f"{0:020d}").write_bytes(bytes(20))
    assert not is_unfinished(tmp_path)


def test_a_store_that_rocketmq_began_and_never_used_is_written_to(tmp_path):
    """It has a checkpoint and its configuration, but no segment before the first message."""
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    (tmp_path / "lock").write_text("lock")
    (tmp_path / "abort").touch()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{}")
    store = open_store(tmp_path)
    assert store.put(Message("orders", b"first")).commit_log_offset == 0
    store.close(views_complete=True)


def test_a_file_that_has_the_name_of_our_folder_is_named(tmp_path):
    """The store itself is a directory."""
    (tmp_path / "reput").touch()
    with pytest.raises(StoreError, match=f"this is not a directory: path={tmp_path}/reput"):
        read_identity(tmp_path)
