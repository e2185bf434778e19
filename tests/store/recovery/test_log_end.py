"""The end of a log as seen by a reader: torn tails, stale bytes, and the state after a power cut."""

from __future__ import annotations

from pathlib import Path

import pytest

import reput
from reput.errors import DamagedStore
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end, force_log
from written_log import WrittenLog


def end_of(store: Path, begin: int | None = None) -> int:
    """Return the end of the log in *store*."""
    return find_log_end(store, Segments(store / "commitlog"), begin)


def filled_log(directory: Path, count: int = 60) -> WrittenLog:
    """Return a log of several segments."""
    log = WrittenLog(directory)
    for number in range(count):
        log.append(b"%d" % number * 50)
    return log


@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "unclean"])
def test_the_end_is_behind_the_last_record(tmp_path: Path, unclean: bool):
    """Zeros follow it, whether the store was closed or not."""
    log = filled_log(tmp_path)
    store = log.save()
    if unclean:
        (store / "abort").touch()
    assert end_of(store) == log.end


@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "unclean"])
def test_a_torn_last_record_is_not_part_of_the_log(tmp_path: Path, unclean: bool):
    """Size and magic code exist, the body does not: the log ends before it."""
    log = filled_log(tmp_path)
    torn = log.append(b"torn" * 20)
    log.data[torn + 100 :] = bytes(len(log.data) - torn - 100)
    store = log.save()
    if unclean:
        (store / "abort").touch()
    assert end_of(store) == torn


def test_a_record_whose_crc_is_wrong_at_the_end_is_not_part_of_the_log(tmp_path: Path):
    """The sizes are right, but the body is not the appended one."""
    log = filled_log(tmp_path)
    last = log.append(b"whole")
    log.data[last + 88] ^= 1
    assert end_of(log.save()) == last


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("lost", ["body", "record"])
def test_a_log_that_reput_closed_ends_where_it_was_closed(tmp_path: Path, lost: str):
    """If its last record is damaged, a reader comes to the damage, instead of finding one message less."""
    with reput.open(tmp_path, mode="inline", dispatchers=["consume_queue"]) as store:
        for number in range(5):
            result = store.put(reput.Message("orders", b"%d" % number))
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(result.commit_log_offset + (88 if lost == "body" else 0))
        file.write(bytes(1 if lost == "body" else result.record_size))
    assert end_of(tmp_path) == result.next_commit_log_offset
    with reput.open(tmp_path, read_only=True) as opened:
        with pytest.raises(DamagedStore, match=f"commit_log_offset={result.commit_log_offset}"):
            opened.get("orders", 0, 4)
        with pytest.raises(DamagedStore):
            list(opened.records())


def test_after_a_crash_every_record_behind_the_checkpoint_is_checked(tmp_path: Path):
    """Pages reach the disk in any order: a torn record before whole ones is damage, and the log continues after it."""
    log = filled_log(tmp_path)
    log.data[log.offsets[30] + 88] ^= 1
    store = log.save()
    (store / "abort").touch()
    assert end_of(store) == log.end


def test_old_records_behind_the_end_are_not_part_of_the_log(tmp_path: Path):
    """RocketMQ cuts without zeroing: the bytes after the end were stored before the last record, and do not count."""
    old = WrittenLog(tmp_path)
    for number in range(30):
        old.append(b"old", store_timestamp=1_000 + number)
    new = WrittenLog(tmp_path)
    for number in range(10):
        new.append(b"something new", store_timestamp=2_000 + number)
    end = new.end
    new.data += old.data[len(new.data) :]
    assert end_of(new.save()) == end


def test_asking_again_sees_what_was_appended_since(tmp_path: Path):
    """From an earlier end on, only the new part is read, also across segments."""
    log = filled_log(tmp_path, 3)
    store = log.save()
    ends = [end_of(store)]
    for number in range(60):
        log.append(b"%d" % number * 50)
        log.save()
        ends.append(end_of(store, ends[-1]))
    assert ends[-1] == log.end
    assert ends == sorted(set(ends))
    assert end_of(store, ends[-1]) == ends[-1]


def test_forcing_the_log_changes_nothing(tmp_path: Path):
    """A reader may force the appended part to disk."""
    log = filled_log(tmp_path)
    store = log.save()
    before = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
    force_log(Segments(store / "commitlog"), 0, log.end)
    assert {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()} == before


def test_what_retention_took_meanwhile_needs_no_forcing(tmp_path: Path):
    """It removes only what is on disk."""
    log = filled_log(tmp_path, 60)
    store = log.save()
    segments = Segments(store / "commitlog")
    assert len(segments.list) > 1
    segments.list[0].path.unlink()
    force_log(segments, 0, log.end)
