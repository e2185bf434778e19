"""Backups and restores of small stores, in a directory, without processes: the views are left out."""

from __future__ import annotations

import errno
import os
import random
import shutil

import pytest

from backing_up import assert_restored, make_backup, make_restore, put, writing
from reput.backup.directory_target import DirectoryTarget, FileWriter
from reput.backup.follow import follow_store
from reput.backup.layout import BACKUPS, LOG
from reput.backup.restore import list_backups
from reput.backup.restored_log import verify_log
from reput.backup.retention import parse_keep
from reput.backup.source import BackupSource
from reput.backup.stored import newest_manifest, pieces_of
from reput.errors import ConfigError, DamagedStore, NotAStore, StoreError
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.log.segments import Segments
from reput.store.recovery.repair import cut
from reput.store.state.identity import read_store_id
from reput.store.state.topic_deletions import TopicDeletion
from small_store import (
    SEGMENT_SIZE,
    START_MS,
    ManualClock,
    drop,
    message_of_size,
    open_store,
    overwrite,
    small_settings,
)


def test_a_backup_of_an_open_store_restores_equal_to_its_log(tmp_path):
    """A store is backed up while it is written; the restored log has the same records, and goes on behind them."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 30)
        report = make_backup(store, target)
        put(writer, 5)
    assert report.records == 30
    assert_restored(target, tmp_path, store, report.log_end)
    with writing(tmp_path / "restored") as writer:
        result = writer.put(message_of_size(500))
        assert (result.commit_log_offset, result.queue_offset) == (report.log_end, 30)


@pytest.mark.slow
def test_a_later_backup_copies_only_what_has_grown(tmp_path):
    """What a backup copies is proportional to what the log has grown, and each backup can be restored."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 100)
        first = make_backup(store, target)
        put(writer, 10)
        second = make_backup(store, target)
        nothing = make_backup(store, target)
    assert first.copied > 100 * 500
    assert second.copied < 10 * 500 + SEGMENT_SIZE
    assert nothing.copied < 1000
    for number, report in ((1, first), (2, second), (3, nothing)):
        assert_restored(target, tmp_path, store, report.log_end, backup=number)


@pytest.mark.slow
def test_every_backup_among_many_small_ones_can_be_restored(tmp_path):
    """Pieces that join with earlier ones leave the older backups whole, and are few."""
    choose = random.Random(7)
    store, target = tmp_path / "store", tmp_path / "target"
    ends = []
    for _ in range(6):
        with writing(store) as writer:
            for _ in range(5):
                put(writer, choose.randrange(4), choose.randrange(150, 900))
                ends.append(make_backup(store, target).log_end)
    manifest = newest_manifest(DirectoryTarget(target))
    assert manifest is not None
    pieces = [*pieces_of(DirectoryTarget(target), manifest.full_segments), *manifest.pieces]
    assert len(pieces) < 3 * (1 + ends[-1] // SEGMENT_SIZE) + 4
    for number, end in list(enumerate(ends, 1))[::4]:
        assert_restored(target, tmp_path, store, end, backup=number)


def test_a_store_without_a_message_can_be_backed_up(tmp_path):
    """An empty log restores as an empty log, which takes messages."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store):
        make_backup(store, target)
        assert_restored(target, tmp_path, store, 0)
    with writing(tmp_path / "restored") as writer:
        assert put(writer, 1) == [0]


def test_a_killed_store_is_backed_up_as_it_would_recover(tmp_path):
    """A store whose writer was killed is backed up until its last whole record."""
    store, target = tmp_path / "store", tmp_path / "target"
    writer = open_store(store)
    put(writer, 20)
    drop(writer)
    assert_restored(target, tmp_path, store, make_backup(store, target).log_end)


def test_a_restore_ends_at_a_time(tmp_path):
    """--at restores the records stored until then, and counts those that the backup has behind them."""
    store, target, clock = tmp_path / "store", tmp_path / "target", ManualClock()
    with writing(store, clock) as writer:
        ends = []
        for _ in range(3):
            put(writer, 11)
            ends.append(writer.commit_log.appended)
            clock.ms += 1000
        make_backup(store, target)
    report = assert_restored(target, tmp_path, store, ends[1], at=START_MS + 1999)
    assert (report.records, report.records_left_out) == (22, 11)
    with pytest.raises(ConfigError, match="no record stored until that time"):
        make_restore(target, tmp_path / "early", at=START_MS - 1)


def test_a_restore_until_a_time_has_what_was_stored_while_the_backup_before_was_made(tmp_path, monkeypatch):
    """Records that are stored behind the end that a backup has fixed are restored from the next one."""
    store, target, clock = tmp_path / "store", tmp_path / "target", ManualClock()
    monkeypatch.setattr("reput.backup.backup.Clock", lambda: clock)
    find_end = BackupSource.durable_end
    with writing(store, clock) as writer:
        put(writer, 3)

        def find_end_and_go_on(*arguments):
            found = find_end(*arguments)
            put(writer, 2)
            clock.ms += 1000
            return found

        monkeypatch.setattr(BackupSource, "durable_end", find_end_and_go_on)
        assert make_backup(store, target).records == 3
        monkeypatch.setattr(BackupSource, "durable_end", find_end)
        end = make_backup(store, target).log_end
    assert assert_restored(target, tmp_path, store, end, at=START_MS).records == 5


def test_a_restore_ends_at_an_offset_between_two_records(tmp_path):
    """--offset ends the log there; inside of a record it is refused, with the two places beside it."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 25)
        end = make_backup(store, target).log_end
    for offset in (0, offsets[1], offsets[8], offsets[9], end):
        assert_restored(target, tmp_path, store, offset, offset=offset)
    with pytest.raises(ConfigError, match=f"offset={offsets[9] + 1} from={offsets[9]} until={offsets[10]}"):
        make_restore(target, tmp_path / "inside", offset=offsets[9] + 1)
    with pytest.raises(ConfigError, match=f"no backup has that offset: offset={end + 1}"):
        make_restore(target, tmp_path / "behind", offset=end + 1)


def test_offsets_of_groups_never_lie_behind_the_restored_queue(tmp_path):
    """A group that had consumed more than is restored continues at the queue's end, so that it misses nothing new."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 10)
        manager = ConsumerOffsetManager(store)
        manager.commit_offset("early", "orders", 0, 3)
        manager.commit_offset("late", "orders", 0, 9)
        manager.persist()
        make_backup(store, target)
    report = assert_restored(target, tmp_path, store, offsets[6], offset=offsets[6])
    restored = ConsumerOffsetManager(tmp_path / "restored")
    restored.load()
    assert restored.offset_table == {"orders@early": {0: 3}, "orders@late": {0: 6}}
    assert report.offsets_lowered == 1


def test_offsets_of_groups_of_a_store_that_only_rocketmq_wrote_never_lie_behind_its_queues(tmp_path):
    """A store without reput's own files is restored with such offsets, too."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 10)
    manager = ConsumerOffsetManager(store)
    manager.commit_offset("early", "orders", 0, 3)
    manager.commit_offset("late", "orders", 0, 9)
    manager.persist()
    shutil.rmtree(store / "reput")
    make_backup(store, target)
    report = assert_restored(target, tmp_path, store, offsets[6], offset=offsets[6])
    restored = ConsumerOffsetManager(tmp_path / "restored")
    restored.load()
    assert restored.offset_table == {"orders@early": {0: 3}, "orders@late": {0: 6}}
    assert report.offsets_lowered == 1


def test_a_queue_without_a_record_in_the_log_continues(tmp_path):
    """Queue offsets of messages that retention has removed are not given again."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        first = writer.put(message_of_size(500))
        assert first.queue_offset == 0
    for _ in range(2):
        with writing(store) as writer:
            for _ in range(10):
                message = message_of_size(500)
                writer.put(type(message)("others", message.body))
    (store / "commitlog" / f"{0:020d}").unlink()
    make_backup(store, target)
    make_restore(target, tmp_path / "restored")
    with writing(tmp_path / "restored") as writer:
        assert writer.put(message_of_size(500)).queue_offset == 1


def test_a_deletion_behind_the_restored_end_is_forgotten(tmp_path):
    """A topic that was deleted later than the time that is restored has its messages."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 6)
        writer.store_files.topic_deletions.add(TopicDeletion(START_MS, writer.commit_log.appended, "orders"))
        make_backup(store, target)
    make_restore(target, tmp_path / "restored", offset=offsets[5])
    with writing(tmp_path / "restored") as writer:
        assert writer.put(message_of_size(500)).queue_offset == 5


def test_a_target_belongs_to_one_store(tmp_path):
    """Backups of another store are refused by the names of both, and so is a folder that holds something else."""
    store, other, target = tmp_path / "store", tmp_path / "other", tmp_path / "target"
    for directory in (store, other):
        with writing(directory) as writer:
            put(writer, 3)
    make_backup(store, target)
    names = f"target_store_id={read_store_id(store)} store_id={read_store_id(other)}"
    with pytest.raises(StoreError, match=f"backups of another store: .*{names}"):
        make_backup(other, target)
    with pytest.raises(StoreError, match="not empty and holds no backups"):
        make_backup(store, other)


@pytest.mark.parametrize("folder", ["backups", "config/backups", "reput/backups"])
def test_a_target_is_no_folder_of_its_store(tmp_path, folder):
    """It would be lost with the store; and below config/, each backup would contain all before it."""
    store = tmp_path / "store"
    with writing(store) as writer:
        put(writer, 3)
    (tmp_path / "link").symlink_to(store)
    for target in (store / folder, tmp_path / "link" / folder, tmp_path / "x" / ".." / "store" / folder):
        with pytest.raises(ConfigError, match="the target lies in the store"):
            make_backup(store, target)
    assert not (store / folder).exists()
    make_backup(store, tmp_path / "store-backups")


def test_a_target_belongs_to_one_history(tmp_path):
    """If an older copy of a store was put back and written, its backups need another target."""
    store, copy, target = tmp_path / "store", tmp_path / "copy", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 3)
    shutil.copytree(store, copy)
    with writing(store) as writer:
        put(writer, 3)
    make_backup(store, target)
    with writing(copy) as writer:
        put(writer, 4, 600)
    with pytest.raises(StoreError, match=r"another history of this store: .*its bytes before"):
        make_backup(copy, target)


@pytest.mark.slow
def test_a_log_that_was_cut_is_backed_up_from_the_cut_on(tmp_path):
    """After `reput repair --cut-at`, backups go on: what was cut is copied anew, the older backup still has the old."""
    store, target, before = tmp_path / "store", tmp_path / "target", tmp_path / "before"
    with writing(store) as writer:
        offsets = put(writer, 30)
        first = make_backup(store, target)
    shutil.copytree(store, before)
    cut(store, offsets[18])
    with writing(store) as writer:
        put(writer, 10, 300)
        second = make_backup(store, target)
    assert second.copied < 14 * 500 + SEGMENT_SIZE
    assert_restored(target, tmp_path, store, second.log_end)
    assert_restored(target, tmp_path, before, first.log_end, backup=1)
    report = assert_restored(target, tmp_path, store, offsets[18], offset=offsets[18])
    assert report.epoch == second.epoch + 1


def test_the_restored_store_goes_on_in_its_target_and_the_old_one_does_not(tmp_path):
    """After a restore the store is backed up into the same target; a backup of the old one is refused."""
    store, target, restored = tmp_path / "store", tmp_path / "target", tmp_path / "restored"
    with writing(store) as writer:
        offsets = put(writer, 10)
        make_backup(store, target)
    assert_restored(target, tmp_path, store, offsets[7], offset=offsets[7])
    with writing(restored) as writer:
        put(writer, 2, 700)
        end = make_backup(restored, target).log_end
    assert_restored(target, tmp_path / "again", restored, end)
    with pytest.raises(StoreError, match="another history of this store: reason='its epochs"):
        make_backup(store, target)


def test_damage_of_the_source_is_reported_and_kept_as_it_is(tmp_path):
    """A backup of a damaged store names the damage, and so does its restore; the other records are there."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 20)
    overwrite(store, offsets[4] + 200, b"damage")
    report = make_backup(store, target)
    assert [(found.begin, found.end) for found in report.damage] == [(offsets[4], offsets[5])]
    again = make_backup(store, target)
    assert again.damage == report.damage
    restored = assert_restored(target, tmp_path, store, report.log_end)
    assert restored.damage == report.damage
    with pytest.raises(DamagedStore, match=f"from={offsets[4]} until={offsets[5]}"):
        open_store(tmp_path / "restored")


def test_a_damaged_record_behind_a_deletion_does_not_end_the_backup_of_an_open_store(tmp_path, monkeypatch):
    """Queue offsets begin anew behind a deletion: what follows damage there is no leftover of an older log."""
    # The machine has not started again since the writer's start, so that no power cut can have torn the log.
    monkeypatch.setattr("reput.store.recovery.log_end.Clock", ManualClock)
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 5)
        writer.delete_topic("orders")
        offsets = put(writer, 30)
        overwrite(store, offsets[0] + 200, b"damage")
        report = make_backup(store, target)
        assert report.log_end == writer.commit_log.appended
        assert (report.damage[0].begin, report.damage[0].end) == (offsets[0], offsets[1])
    assert make_restore(target, tmp_path / "restored").records == 34


def test_a_backup_that_cannot_reach_the_writers_end_is_no_success(tmp_path, monkeypatch):
    """If nothing tells why queue offsets begin anew behind damage, the backup fails and names where the log ends."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 5)
        writer.delete_topic("orders")
        begin, *_ = put(writer, 30)
        overwrite(store, begin + 200, b"damage")
        (store / "reput" / "topic_deletions.jsonl").unlink()
        end = writer.commit_log.appended
        monkeypatch.setattr(BackupSource, "durable_end", lambda *_: (end, True))
        with pytest.raises(DamagedStore, match=f"ends before where its writer is: .*log_end={begin} expected={end}"):
            make_backup(store, target)
    assert newest_manifest(DirectoryTarget(target)) is None


def test_known_damage_excuses_no_other_in_a_restored_log(tmp_path):
    """Damage that goes beyond what the backup knows, and a log that ends early, are found beside known damage."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 20)
    overwrite(store, offsets[4] + 200, b"damage")
    make_backup(store, target)
    manifest = newest_manifest(DirectoryTarget(target))
    assert manifest is not None

    def verify(directory):
        segments = Segments(directory / "commitlog")
        return verify_log(segments, manifest.log_end, manifest, [], demand_crc=False, on_progress=lambda _: None)

    assert verify(store).records == 19
    wider, shorter = tmp_path / "wider", tmp_path / "shorter"
    shutil.copytree(store, wider)
    overwrite(wider, offsets[5] + 200, b"damage")
    with pytest.raises(DamagedStore, match=f"where the backup's was not: from={offsets[4]} until={offsets[6]}"):
        verify(wider)
    shutil.copytree(store, shorter)
    overwrite(shorter, offsets[19], bytes(manifest.log_end - offsets[19]))
    with pytest.raises(DamagedStore, match=f"log_end={offsets[19]} expected={manifest.log_end}"):
        verify(shorter)


def test_a_restore_ends_behind_damage(tmp_path):
    """A log that is cut behind the damage that its backup knows is restored with it."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 20)
    overwrite(store, offsets[4] + 200, b"damage")
    make_backup(store, target)
    assert assert_restored(target, tmp_path, store, offsets[5], offset=offsets[5]).records == 4


@pytest.mark.parametrize("number", [0, 1])
def test_small_pieces_that_the_store_has_damaged_meanwhile_stay_as_they_were(tmp_path, monkeypatch, number):
    """A backup that would join earlier pieces keeps their good bytes if the store has lost them."""
    # A mark holds the last bytes of a backup, which here would be all of them.
    monkeypatch.setattr("reput.store.state.epochs.MARK_SIZE", 100)
    store, target, before = tmp_path / "store", tmp_path / "target", tmp_path / "before"
    with writing(store) as writer:
        offsets = put(writer, 3)
        make_backup(store, target)
        put(writer, 4)
        shutil.copytree(store, before)
        overwrite(store, offsets[number] + 200, b"damage")
        report = make_backup(store, target)
        assert (report.records, report.damage) == (7, [])
    assert_restored(target, tmp_path, before, report.log_end)
    names = {path.name for path in (target / LOG).iterdir()}
    manifest = newest_manifest(DirectoryTarget(target))
    assert manifest is not None
    assert names == {piece.name.split("/")[1] for piece in manifest.pieces}


@pytest.mark.parametrize("place", ["log", "files", "backups"])
def test_a_damaged_target_is_never_restored(tmp_path, place):
    """One changed bit of a backup's bytes is found, and the file named."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 20)
        make_backup(store, target)
    path = sorted((target / place).iterdir())[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedStore, match=path.name):
        make_restore(target, tmp_path / "restored")
    path.unlink()
    with pytest.raises(NotAStore if place == "backups" else DamagedStore):
        make_restore(target, tmp_path / "restored")


def test_old_backups_go_with_what_only_they_need(tmp_path):
    """--keep leaves the last backups, which share their pieces, and removes the rest."""
    store, target = tmp_path / "store", tmp_path / "target"
    ends = []
    for _ in range(5):
        with writing(store) as writer:
            put(writer, 3)
        ends.append(make_backup(store, target).log_end)
    before = len(list((target / LOG).iterdir()))
    (target / LOG / "0-left-over.draft").touch()
    report = make_backup(store, target, parse_keep("2"))
    assert report.removed == 4
    assert [manifest.number for manifest in list_backups(DirectoryTarget(target))] == [5, 6]
    assert len(list((target / LOG).iterdir())) < before
    assert_restored(target, tmp_path, store, ends[-1], backup=5)
    assert make_backup(store, target, parse_keep("1h")).removed == 0


def test_what_a_killed_backup_left_goes_before_the_next_one_needs_its_room(tmp_path, monkeypatch):
    """On a full disk, no backup would ever end. An earlier one that cannot be read does not keep the next one away."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 3)
    make_backup(store, target)
    with writing(store) as writer:
        put(writer, 3)
    left = target / LOG / "00000000000000001500-2-0badc0de.draft"
    left.write_bytes(bytes(5000))
    write = FileWriter.write

    def write_if_there_is_room(self, data):
        if left.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(FileWriter, "write", write_if_there_is_room)
    assert make_backup(store, target).records == 6
    (target / BACKUPS / "0000000001.json").write_bytes(b"not a manifest")
    with pytest.raises(DamagedStore):
        make_backup(store, target)
    assert [int(path.stem) for path in sorted((target / BACKUPS).iterdir())] == [1, 2, 3]


def test_segments_that_retention_removed_are_left_out_of_later_backups(tmp_path):
    """A later backup begins where the log begins; the earlier one still has the older segments."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 30)
    before = tmp_path / "before"
    shutil.copytree(store, before)
    first = make_backup(store, target)
    (store / "commitlog" / f"{0:020d}").unlink()
    second = make_backup(store, target)
    assert (first.log_begin, second.log_begin) == (0, SEGMENT_SIZE)
    assert_restored(target, tmp_path, store, second.log_end)
    assert_restored(target, tmp_path, before, first.log_end, backup=1)


def test_a_restore_refuses_a_directory_that_is_not_empty(tmp_path):
    """Nothing is ever replaced."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 3)
        make_backup(store, target)
    with pytest.raises(StoreError, match=r"not empty: .*commitlog"):
        make_restore(target, store)


def test_following_ships_what_is_put_and_keeps_one_backup_an_hour(tmp_path):
    """Each change is in the target a look later; the backups in between leave nothing behind."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 3)
        looks = iter(range(6))

        def wait() -> bool:
            number = next(looks)
            if number % 2:
                put(writer, 2)
            return number < 5

        reports = list(follow_store(store, DirectoryTarget(target), small_settings(), wait))
        assert [report.records for report in reports] == [3, 5, 7]
        end = reports[-1].log_end
    assert [manifest.number for manifest in list_backups(DirectoryTarget(target))] == [1, 3]
    assert_restored(target, tmp_path, store, end)


def test_only_one_backup_at_a_time_works_on_a_directory(tmp_path):
    """A second backup into a directory is refused while one runs."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        put(writer, 3)
        with DirectoryTarget(target).lock(), pytest.raises(StoreError, match="another backup works on this target"):
            make_backup(store, target)


def test_a_backup_does_not_look_into_views(tmp_path, monkeypatch):
    """A rebuild removes folders there at any time, which must not end a backup; and there may be very many."""
    store = tmp_path / "store"
    with writing(store) as writer:
        put(writer, 3)
    (store / "reput" / "shadow" / "index").mkdir(parents=True)
    (store / "config" / "more").mkdir(parents=True)
    looked = []
    scan = os.scandir

    def scandir(path):
        looked.append(os.path.relpath(path, store))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    make_backup(store, tmp_path / "target")
    assert "config/more" in looked
    assert not [path for path in looked if path.startswith(("reput/shadow", "reput/views"))]


def test_a_folder_of_configuration_that_cannot_be_read_is_not_left_out_in_silence(tmp_path, monkeypatch):
    """A backup without the offsets of groups is no backup."""
    store = tmp_path / "store"
    with writing(store) as writer:
        put(writer, 3)
    scan = os.scandir

    def scandir(path):
        if os.path.basename(path) == "config":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        make_backup(store, tmp_path / "target")
