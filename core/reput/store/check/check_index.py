"""Checking the key index: the entries of all files, in order, are the keys of all records, in the order of the log.

Entries come in with the records, so the index is read once, from front to back. Other entries are legal, too: the keys
of a record a second time (a repeated dispatch of the last record), entries of records that the log has lost, and
entries behind its end. Slots and chains follow from the entries alone and are compared file by file.

The tags of a record stand behind its keys or do not: from 5.4.0 on RocketMQ enters them, and versions take turns.

Source: RocketMQ store, IndexService.buildIndex and IndexFile.putKey.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.check.expected_records import ExpectedRecords
from reput.store.index.index_keys import KeyHashes
from reput.store.index.index_layout import HEADER, IndexHeader, index_paths
from reput.store.index.index_sizes import ENTRY_DTYPE, SLOT_DTYPE, IndexSizes, find_common_sizes
from reput.store.record.layout import TRANSACTION_ROLLBACK_TYPE
from reput.store.recovery.check_report import Findings, Ranges, ViewReport, points_into
from reput.store.recovery.log_walk import ProvedRecords
from reput_hooks import DispatchColumns

__all__ = ["IndexCheck"]

Array = np.ndarray[Any, Any]
# Entries that are looked at once.
READ_MAX = 1 << 16
SECONDS_MAX = 0x7FFFFFFF
ACTUAL = np.dtype(
    [
        ("commit_log_offset", np.int64),
        ("key_hash", np.int64),
        ("seconds", np.int64),
        ("file", np.int32),
        ("number", np.int32),
    ]
)

EXPECTED = np.dtype(
    [
        ("commit_log_offset", np.int64),
        ("key_hash", np.int64),
        ("store_timestamp", np.int64),
        ("is_tags", bool),
    ]
)


class IndexFileView:
    """One index file, open to read, with the entries that it had when the check began: 1 to *count* - 1.

    It is not mapped: on a full tmpfs, the first look at a hole of a mapping would end the process.
    """

    def __init__(self, path: Path, sizes: IndexSizes) -> None:
        self.name = path.name
        self.sizes = sizes
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.header = IndexHeader(*HEADER.unpack(self.read(0, HEADER.size)))
        self.count = min(max(self.header.index_count, 1), sizes.entry_count)

    def read(self, at: int, size: int) -> bytes:
        """Return *size* bytes from *at* on; zeros stand for what the file does not have."""
        return os.pread(self.descriptor, size, at).ljust(size, b"\0")

    def entries(self, begin: int, end: int) -> Array:
        """Return the entries from number *begin* to before *end*; 0 is the unused one."""
        size = ENTRY_DTYPE.itemsize
        begin, end = min(begin, self.count), min(end, self.count)
        return np.frombuffer(self.read(self.sizes.entries_at + begin * size, (end - begin) * size), ENTRY_DTYPE)

    def slots(self) -> Array:
        """Return all slots."""
        return np.frombuffer(self.read(HEADER.size, self.sizes.slot_count * SLOT_DTYPE.itemsize), SLOT_DTYPE)


class IndexCheck:
    """Compares the files below ``index/`` with the log."""

    def __init__(
        self,
        store_directory: Path,
        configured: IndexSizes,
        expected_records: ExpectedRecords,
        damage: Ranges,
        *,
        unclean: bool = False,
    ) -> None:
        """Open the files.

        Args:
            damage: is looked at whenever it matters, and may grow until then.
            unclean: the last writer was killed, possibly between writing an entry and the slot that leads to it.
        """
        self.unclean = unclean
        self.expected_records = expected_records
        self.damage = damage
        self.findings = Findings(live=expected_records.live)
        self.keys = KeyHashes()
        # The next records probably behave like the previous ones.
        self.with_tags = False
        self.files: list[IndexFileView] = []
        # The next entry to be read: its file and its number there.
        self.file_number = 0
        self.entry_number = 1
        self.last_offset = -1
        # Entries whose offset was beyond the records compared with them.
        self.ahead: list[Array] = []
        paths = index_paths(store_directory / "index")
        self.absent = not paths
        while True:
            try:
                self.open_files(paths, configured)
                return
            except FileNotFoundError:
                # Retention takes the first ones.
                left = index_paths(store_directory / "index")
                if left == paths:
                    raise
                paths = left

    def open_files(self, paths: list[Path], configured: IndexSizes) -> None:
        """Open the files of the right size, and name the others.

        Raises:
            FileNotFoundError: one is gone by now.
        """
        self.files = []
        sizes = find_common_sizes(paths, configured)
        for path in paths:
            if sizes is not None and path.stat().st_size == sizes.file_size:
                self.files.append(IndexFileView(path, sizes))
            elif has_entries(path):
                expected = sizes or configured
                self.findings.differ(
                    f"index file has another size: file={path.name} size={path.stat().st_size} "
                    f"expected={expected.file_size} max_hash_slot_num={expected.slot_count} "
                    f"max_index_num={expected.entry_count}"
                )

    def take(self, rows: Array, columns: DispatchColumns, until: int) -> None:
        """Take in records, in log order, that end at *until*; *rows* are those of *columns*."""
        if self.absent:
            return
        entries = self.entries_until(until)
        for with_tags in (self.with_tags, not self.with_tags):
            expected = self.expected_entries(rows, columns, with_tags=with_tags)
            if len(entries) == len(expected) and (entries["commit_log_offset"] == expected["commit_log_offset"]).all():
                self.with_tags = with_tags
                if len(expected):
                    self.findings.take(expected["commit_log_offset"][-1:], np.ones(1, bool), str)
                    self.last_offset = int(expected["commit_log_offset"][-1])
                    self.compare_hashes(entries, expected["key_hash"])
                    self.compare_times(entries, expected["store_timestamp"])
                return
        expected = self.expected_entries(rows, columns, with_tags=True)
        if len(entries):
            self.compare_records(entries, expected)
        else:
            first_keys = np.flatnonzero(np.diff(expected["commit_log_offset"], prepend=-1))
            self.find_missing(expected["commit_log_offset"][first_keys], expected["is_tags"][first_keys])

    @property
    def place(self) -> tuple[int, int]:
        """The number of the file with the next entry to be read, and the entry's number there."""
        file_number, entry_number = self.file_number, self.entry_number
        while file_number < len(self.files) and entry_number >= self.files[file_number].count:
            file_number, entry_number = file_number + 1, 1
        return file_number, entry_number

    def seek(self, commit_log_offset: int) -> tuple[int, int]:
        """Continue with the first entry of the records from *commit_log_offset* on, and return its place.

        If entries are not in the order of the log, it may be another place.
        """

        def offset_of(number: int) -> int:
            return int(file.entries(number, number + 1)["commit_log_offset"][0])

        self.last_offset = -1
        self.ahead = []
        self.file_number, self.entry_number = len(self.files), 1
        for file_number, file in enumerate(self.files):
            if file.count > 1 and offset_of(file.count - 1) >= commit_log_offset:
                numbers = range(1, file.count)
                self.file_number = file_number
                self.entry_number = numbers[bisect_left(numbers, commit_log_offset, key=offset_of)]
                break
        return self.place

    def can_pass(self, proved: ProvedRecords) -> bool:
        """Tell whether the entries of these records are the next ones here, too."""
        file_number, entry_number = proved.index_end
        known = file_number < len(self.files) and entry_number <= self.files[file_number].count
        return proved.index_begin == self.place and (known or proved.index_end == (len(self.files), 1))

    def take_proved(self, proved: ProvedRecords) -> None:
        """Take in records whose entries are there, in log order."""
        self.file_number, self.entry_number = proved.index_end
        if proved.last_indexed >= 0:
            self.with_tags = proved.with_tags
            self.last_offset = proved.last_indexed
            self.findings.take(np.array([proved.last_indexed]), np.ones(1, bool), str)

    def expected_entries(self, rows: Array, columns: DispatchColumns, *, with_tags: bool) -> Array:
        """Return the index entries of these records, in the index's order."""
        row, hashes, is_tags = self.keys.find(rows, columns.queues, columns.texts, with_tags=with_tags)
        wanted = (rows["sys_flag"][row] & TRANSACTION_ROLLBACK_TYPE) != TRANSACTION_ROLLBACK_TYPE
        if not wanted.all():
            row, hashes, is_tags = row[wanted], hashes[wanted], is_tags[wanted]
        expected = np.empty(len(row), EXPECTED)
        expected["commit_log_offset"] = rows["commit_log_offset"][row]
        expected["store_timestamp"] = rows["store_timestamp"][row]
        expected["key_hash"] = hashes
        expected["is_tags"] = is_tags
        return expected

    def entries_until(self, until: int) -> Array:
        """Return the next entries of records below *until*; those of later ones that stand between are put aside."""
        pieces: list[Array] = []
        while self.file_number < len(self.files):
            file = self.files[self.file_number]
            raw = file.entries(self.entry_number, self.entry_number + READ_MAX)
            if not len(raw):
                self.file_number += 1
                self.entry_number = 1
                continue
            piece = np.empty(len(raw), ACTUAL)
            for name in ("commit_log_offset", "key_hash", "seconds"):
                piece[name] = raw[name]
            piece["file"] = self.file_number
            piece["number"] = np.arange(self.entry_number, self.entry_number + len(raw))
            below = np.flatnonzero(piece["commit_log_offset"] < until)
            count = int(below[-1]) + 1 if len(below) else 0
            self.entry_number += count
            piece_below = piece[:count]
            if len(below) < count:
                self.ahead.append(piece_below[piece_below["commit_log_offset"] >= until])
                piece_below = piece[below]
            pieces.append(piece_below)
            if count < len(raw):
                break
        return np.concatenate(pieces) if pieces else np.empty(0, ACTUAL)

    def compare_hashes(self, entries: Array, hashes: Array) -> None:
        """Compare entries with the keys that they stand for, one to one."""
        self.findings.differ_at(
            np.flatnonzero(entries["key_hash"] != hashes).tolist(),
            lambda number: (
                f"entry has another hash: {self.where(entries[number])} key_hash={entries['key_hash'][number]} "
                f"expected={hashes[number]}"
            ),
        )

    def compare_times(self, entries: Array, timestamps: Array) -> None:
        """Compare the times of entries, and of their files, with those of their records, one to one."""
        for file_number in np.unique(entries["file"]).tolist():
            file = self.files[file_number]
            own = entries["file"] == file_number
            numbers, seconds, times = entries["number"][own], entries["seconds"][own], timestamps[own]
            base = file.header.begin_timestamp
            expected = np.clip((times - base) // 1000, 0, SECONDS_MAX) if base > 0 else np.zeros(len(times), np.int64)
            wrong = seconds != expected
            if numbers[0] == 1:
                # It counts from the end of the file before, which RocketMQ's retention may have removed.
                before = self.files[file_number - 1].header if file_number else None
                wrong[0] = (
                    before is not None
                    and abs(int(seconds[0]) - max(int(times[0]) - before.end_timestamp, 0) // 1000) > 1
                )
                if base != times[0]:
                    self.findings.differ(
                        f"index file has another begin: file={file.name} begin_timestamp={base} expected={times[0]}"
                    )
            apart = numbers[-1] == file.count - 1 and abs(file.header.end_timestamp - int(times[-1])) >= 1000
            if apart and not self.in_the_making(file):
                self.findings.differ(
                    f"index file has another end: file={file.name} end_timestamp={file.header.end_timestamp} "
                    f"expected={times[-1]}"
                )
            positions = np.flatnonzero(own)
            self.findings.differ_at(
                np.flatnonzero(wrong).tolist(),
                lambda number, positions=positions, expected=expected: (  # type: ignore[misc]
                    f"entry has another time: {self.where(entries[positions[number]])} "
                    f"seconds={entries['seconds'][positions[number]]} expected={expected[number]}"
                ),
            )

    def compare_records(self, entries: Array, expected: Array) -> None:
        """Compare entries with keys record by record, where they are not one to one."""
        offsets, hashes, is_tags = expected["commit_log_offset"], expected["key_hash"], expected["is_tags"]
        begins = np.flatnonzero(np.diff(offsets, prepend=-1))
        bounds = [*begins.tolist(), len(offsets)]
        number_of = {int(offsets[begin]): number for number, begin in enumerate(bounds[:-1])}
        # A record with tags alone may have no entry.
        present = is_tags[begins]
        groups = [*np.flatnonzero(np.diff(entries["commit_log_offset"], prepend=-1)).tolist(), len(entries)]
        for group, at in enumerate(groups[:-1]):
            found = entries[at : groups[group + 1]]
            offset = int(found["commit_log_offset"][0])
            number = number_of.get(offset)
            if number is None:
                self.judge_unexpected(found)
                continue
            begin, end = bounds[number], bounds[number + 1]
            if offset < self.last_offset:
                self.findings.differ(f"entry comes behind those of a later record: {self.where(found[0])}")
            self.last_offset = max(self.last_offset, offset)
            matched = match_repeated(found["key_hash"].tolist(), hashes[begin:end].tolist(), int(is_tags[end - 1]))
            if matched is None:
                present[number] = True
                self.findings.differ(f"entries of a record have other hashes: {self.where(found[0])}")
            else:
                present[number] = present[number] or matched
                self.compare_times(found, np.full(len(found), expected["store_timestamp"][begin]))
        self.find_missing(offsets[begins], present)

    def find_missing(self, offsets: Array, present: Array) -> None:
        """Take in whether the keys of each record are there."""
        if not present.all():
            self.expected_records.refresh()
            kept = offsets >= self.expected_records.begin
            offsets, present = offsets[kept], present[kept]
        self.findings.take(
            offsets, present, lambda number: f"keys of a record are missing: commit_log_offset={offsets[number]}"
        )

    def judge_unexpected(self, entries: Array) -> None:
        """Judge entries at whose offset the log has no record with keys."""
        offsets = entries["commit_log_offset"]
        expired = offsets < self.expected_records.begin
        if not expired.all():
            # Their messages may be gone by now.
            self.expected_records.refresh()
            expired = offsets < self.expected_records.begin
        inside = points_into(offsets, self.damage) & ~expired
        self.findings.expired_count += int(expired.sum())
        self.findings.unverified_count += int(inside.sum())
        strange = entries[~expired & ~inside]
        self.findings.differ_at(
            range(len(strange)),
            lambda number: f"entry has no record with keys in the log: {self.where(strange[number])}",
        )

    def where(self, entry: Any) -> str:
        """Return which entry that is."""
        return (
            f"file={self.files[int(entry['file'])].name} position={entry['number']} "
            f"commit_log_offset={entry['commit_log_offset']}"
        )

    def finish(self, log_end: int) -> ViewReport:
        """Look at the entries that are left, and at slots and chains; return the report."""
        if self.absent:
            return ViewReport("absent")
        for entries in (*self.ahead, self.entries_until(1 << 63 - 1)):
            behind = entries["commit_log_offset"] >= log_end
            if not self.findings.live:
                self.findings.stale_count += int(behind.sum())
                self.judge_unexpected(entries[~behind])
        for file in self.files:
            self.check_structure(file, growing=self.in_the_making(file))
        return self.findings.report(log_end)

    def in_the_making(self, file: IndexFileView) -> bool:
        """Tell whether slots and header of *file* may be at odds with its last entry, which is written before them."""
        return (self.findings.live or self.unclean) and file is self.files[-1]

    def check_structure(self, file: IndexFileView, *, growing: bool) -> None:
        """Compare slots, chains and the header of one file with its entries.

        Each entry is led to by exactly one other, or by its slot, and leads to an earlier one of its slot. That alone
        makes every chain the right one: the newest entry of a slot can only hang on the slot, the next one on it.
        """
        count, findings = file.count, self.findings
        if count == 1:
            return
        slot_of, previous = np.empty(count, np.int64), np.empty(count, np.int64)
        for begin in range(0, count, READ_MAX):
            entries = file.entries(begin, begin + READ_MAX)
            slot_of[begin : begin + READ_MAX] = entries["key_hash"]
            previous[begin : begin + READ_MAX] = entries["previous"]
        slot_of %= file.sizes.slot_count
        previous[0] = 0
        numbers = np.arange(count)
        wrong = (previous < 0) | (previous >= numbers)
        wrong[0] = False
        linked = np.where(wrong, 0, previous)
        wrong |= (linked > 0) & (slot_of[linked] != slot_of)
        findings.differ_at(
            np.flatnonzero(wrong).tolist(),
            lambda number: (
                f"chain is broken: file={file.name} position={number} previous={previous[number]} "
                f"slot={slot_of[number]}"
            ),
        )
        if growing or wrong.any():
            return
        slots = file.slots()
        used = np.flatnonzero(slots)
        heads = slots[used].astype(np.int64)
        astray = (heads < 0) | (heads >= count)
        astray |= slot_of[np.where(astray, 0, heads)] != used
        findings.differ_at(
            np.flatnonzero(astray).tolist(),
            lambda number: f"slot leads astray: file={file.name} slot={used[number]} position={heads[number]}",
        )
        led_to = np.bincount(linked, minlength=count) + np.bincount(heads[~astray], minlength=count)
        led_to[0] = 1
        findings.differ_at(
            np.flatnonzero(led_to != 1).tolist(),
            lambda number: f"entry is in {led_to[number]} chains: file={file.name} position={number}",
        )
        header = file.header
        # Before 4.7.1 every entry was counted, now every used slot.
        first, last = (int(file.entries(at, at + 1)["commit_log_offset"][0]) for at in (1, count - 1))
        if header.hash_slot_count not in (len(used), count - 1):
            findings.differ(
                f"index file counts other slots: file={file.name} hash_slot_count={header.hash_slot_count} "
                f"expected={len(used)}"
            )
        if (header.begin_offset, header.end_offset) != (first, last):
            findings.differ(
                f"index file has another range: file={file.name} begin_offset={header.begin_offset} "
                f"end_offset={header.end_offset} expected={first}..{last}"
            )


def has_entries(path: Path) -> bool:
    """Tell whether a file of unknown sizes has anything in it."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    return len(head) < HEADER.size or int(HEADER.unpack(head)[-1]) > 1


def match_repeated(found: list[int], expected: list[int], optional_count: int) -> bool | None:
    """Tell whether *found* has all of *expected*, as often as it was begun; None if it has something else.

    The last *optional_count* of *expected* may be missing.

    A dispatch that was interrupted leaves the first keys of a record, and the next one begins with the first again.
    """
    at, complete = 0, False
    while at < len(found):
        length = 0
        while length < len(expected) and at + length < len(found) and found[at + length] == expected[length]:
            length += 1
        if not length:
            return None
        complete = complete or length >= len(expected) - optional_count
        at += length
    return complete
