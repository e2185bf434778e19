"""The fault matrix of the log's bytes: torn, flipped, left over and lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.rows import row
from reput.errors import DamagedStore
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.record.message import Message
from small_store import (
    SEGMENT_SIZE,
    ManualClock,
    UnforcedFiles,
    drop,
    message_of_size,
    open_store,
    overwrite,
    records,
)

__all__: list[str] = []


@row("Last record torn", "at each of its bytes", "the log ends before it, and its queue offset is given again")
def tear_last_record(root: Path) -> int:
    store = root / "store"
    writer = open_store(store, files=UnforcedFiles())
    writer.put(message_of_size(200))
    last = writer.put(Message("orders", b"the last body", tags="tag", keys=["k1", "k2"]))
    drop(writer)
    end = last.next_commit_log_offset
    whole = (store / "commitlog" / f"{0:020d}").read_bytes()
    for at in range(last.commit_log_offset, end):
        overwrite(store, 0, whole[:at] + bytes(SEGMENT_SIZE - at))
        writer = open_store(store, files=UnforcedFiles())
        assert writer.appended == last.commit_log_offset
        assert writer.put(message_of_size(100)).queue_offset == last.queue_offset
        drop(writer)
    return last.record_size


# Field of a record with an IPv4 host → its first byte.
FIELDS = {
    "size": 3,
    "magic": 5,
    "body CRC": 9,
    "queue id": 15,
    "flag": 19,
    "queue offset": 27,
    "commit-log offset": 35,
    "sys flag": 39,
    "born time": 47,
    "born host": 50,
    "store time": 63,
    "store host": 66,
    "reconsume times": 75,
    "prepared transaction offset": 83,
    "body size": 87,
    "body": 90,
    "topic size": 96,
    "topic": 99,
    "properties size": 104,
    "properties": 108,
}
UNCOVERED = {
    "queue id",
    "flag",
    "queue offset",
    "born time",
    "born host",
    "store time",
    "store host",
    "reconsume times",
    "prepared transaction offset",
    "topic",
    "properties",
    "sys flag",
}


def flip_fields(root: Path, fields: set[str], **settings: object) -> int:
    """Flip a bit of each of *fields* in a record of a closed log; the check must name the record each time."""
    store = root / "store"
    writer = open_store(store, files=UnforcedFiles(), **settings)
    puts = [writer.put(Message("orders", b"12345678", tags="tag")) for _ in range(5)]
    writer.close(views_complete=True)
    target = puts[2]
    path = store / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    for field in fields:
        at = target.commit_log_offset + FIELDS[field]
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        report = check_store(store, Settings(mapped_file_size_commit_log=SEGMENT_SIZE))
        assert not report.ok, field
        assert [(found.begin, found.end) for found in report.damage] == [
            (target.commit_log_offset, target.next_commit_log_offset)
        ], field
    return len(fields)


@row("Bit flipped", "each field of a record that the body's CRC or a size covers", "the check names the record's range")
def flip_covered(root: Path) -> int:
    return flip_fields(root, set(FIELDS) - UNCOVERED)


@row("Bit flipped", "each field of a record with the CRC of the whole record", "the check names the record's range")
def flip_all(root: Path) -> int:
    return flip_fields(root, set(FIELDS), enabled_append_prop_crc=True)


@row("Old bytes of another segment", "after the end of the log", "they are moved away and never read")
def stale_bytes(root: Path) -> int:
    for number in range(2):
        store = root / str(number)
        writer = open_store(store, files=UnforcedFiles())
        puts = [writer.put(message_of_size(400)) for _ in range(24)]
        drop(writer)
        end = puts[-1].next_commit_log_offset
        old = (store / "commitlog" / f"{number * SEGMENT_SIZE:020d}").read_bytes()
        overwrite(store, end, old[end % SEGMENT_SIZE :])
        clock = ManualClock()
        writer = open_store(store, files=UnforcedFiles(), clock=clock)
        assert writer.appended == end
        assert writer.put(message_of_size(400)).queue_offset == 24
        writer.close(views_complete=False)
        assert len(records(store)) == 25
        assert any((store / "reput" / "cut").iterdir())
    return 2


@row("Page in the middle of the log lost", "while the machine ran on", "the opening is refused, and names the range")
def hole_without_power_cut(root: Path) -> int:
    store = root / "store"
    writer = open_store(store, files=UnforcedFiles())
    puts = [writer.put(message_of_size(400)) for _ in range(24)]
    drop(writer)
    overwrite(store, puts[5].commit_log_offset + 100, bytes(200))
    with pytest.raises(DamagedStore, match=f"from={puts[5].commit_log_offset}"):
        open_store(store, files=UnforcedFiles())
    return 1
