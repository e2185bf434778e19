"""Index: messages by key, across files, within a time range, with slots as a crash may leave them."""

from __future__ import annotations

import os

import pytest

from reput.errors import DamagedStore
from reput.store.disk.files import Files
from reput.store.disk.open_files import OpenFiles
from reput.store.index.index_file import Index, key_hash, overlaps
from reput.store.index.index_layout import ENTRY, HEADER, SLOT, index_paths, read_header, read_headers
from reput.store.index.index_mapping import IndexMapping, index_file_size

SLOTS, ENTRIES = 7, 24
BEGIN_MS = 1_700_000_000_000
FOR_EVER = 0x7FFFFFFFFFFFFFFF


class Written:
    """An index written by hand: entry n is the record at n * 100, stored n seconds after the begin."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        self.open_files = OpenFiles()
        self.index = Index(directory, SLOTS, ENTRIES, self.open_files)
        self.wrong = set()

    def path(self, number):
        return self.directory / f"{20260101000000000 + number}"

    def write(self, number, keys, first):
        """Write a file with entries for *keys*; the first one is entry *first* overall."""
        files = Files()
        path = self.path(number)
        if not path.exists():
            files.create(path, index_file_size(SLOTS, ENTRIES))
        mapping = IndexMapping(path, SLOTS, ENTRIES, files)
        mapping.reserve(len(keys))
        mapping.put(
            [(key_hash("t", key), 100 * n, BEGIN_MS + 1000 * n) for n, key in enumerate(keys, first)],
        )
        mapping.close()

    def query(self, key, count_max=100, begin=0, end=FOR_EVER, progress=FOR_EVER):
        """Return the numbers of the entries found, newest first."""
        found = self.index.query(
            key_hash("t", key), count_max, begin, end, progress, lambda offset: offset not in self.wrong
        )
        return [offset // 100 for offset in found.offsets]


@pytest.fixture
def written(tmp_path):
    """Return two files: keys a and b in turns in the first, a in the second."""
    written = Written(tmp_path / "index")
    written.write(1, ["a", "b"] * 10, 0)
    written.write(2, ["a"] * 5, 20)
    yield written
    written.open_files.close()


def test_newest_come_first_across_files(written):
    """Up to the requested number."""
    assert written.query("a") == [24, 23, 22, 21, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0]
    assert written.query("a", 7) == [24, 23, 22, 21, 20, 18, 16]
    assert written.query("b", 2) == [19, 17]
    assert written.query("b", 0) == []
    assert written.query("c") == []


def test_an_index_without_files_finds_nothing(tmp_path):
    """The same holds for an absent directory."""
    assert (
        Index(tmp_path / "absent", SLOTS, ENTRIES, OpenFiles())
        .query(key_hash("t", "a"), 1, 0, FOR_EVER, FOR_EVER, lambda _: True)
        .offsets
        == []
    )
    assert index_paths(tmp_path / "absent") == []
    assert read_headers(tmp_path / "absent") == []


def test_what_lies_at_or_behind_the_progress_is_not_there_yet(written):
    """Even if an entry refers to it."""
    assert written.query("a", progress=2300) == [22, 21, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0]


def test_a_hash_is_no_key(written):
    """The reader compares the keys; records of other keys do not count towards the maximum."""
    written.wrong = {2400, 1800}
    assert written.query("a", 5) == [23, 22, 21, 20, 16]


def test_times_bound_the_answer_to_the_second(written):
    """Both bounds are inclusive."""
    assert written.query("a", begin=BEGIN_MS + 10_000, end=BEGIN_MS + 21_000) == [21, 20, 18, 16, 14, 12, 10]
    assert written.query("b", begin=BEGIN_MS + 20_000) == []


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 9, False), (0, 10, True), (0, 15, True), (12, 15, True), (20, 30, True), (21, 30, False), (0, 30, True)],
)
def test_a_file_is_looked_into_if_it_may_hold_something(begin, end, expected):
    """Its own range is 10 to 20; RocketMQ skips a file that lies strictly inside the requested range."""
    assert overlaps(begin, end, 10, 20) is expected


def test_a_file_without_an_entry_is_passed_over(written):
    """It was just created; later entries are found."""
    Files().create(written.path(3), index_file_size(SLOTS, ENTRIES))
    assert written.query("a", 1) == [24]
    assert read_header(written.path(3)).index_count == 1
    written.write(3, ["a"], 25)
    assert written.query("a", 2) == [25, 24]


def test_files_that_are_no_index_are_left_alone(written):
    """Names are digits and define the order. Listing does not block on a named pipe."""
    (written.directory / "notes.txt").write_text("x")
    (written.directory / "٣").write_text("x")
    (written.directory / "30000101000000001").mkdir()
    os.mkfifo(written.directory / "30000101000000002")
    assert [path.name for path in index_paths(written.directory)] == [written.path(1).name, written.path(2).name]


def test_a_chain_that_does_not_lead_back_is_damage(written):
    """It is neither followed in a circle, nor treated as the end of the key's messages."""
    data = bytearray(written.path(2).read_bytes())
    at = HEADER.size + SLOT.size * SLOTS + ENTRY.size * 3
    code, offset, seconds, _ = ENTRY.unpack_from(data, at)
    ENTRY.pack_into(data, at, code, offset, seconds, 4)
    written.path(2).write_bytes(data)
    with pytest.raises(DamagedStore, match=r"path=.*: an entry does not lead back: entry=3 previous=4"):
        written.query("a", 4)
    assert written.query("a", 2) == [24, 23]


def test_a_slot_that_leads_behind_the_files_end_is_an_error(written):
    """The file was cut short, and its content is unknown."""
    with written.path(2).open("r+b") as file:
        file.truncate(HEADER.size + SLOT.size * SLOTS + ENTRY.size * 3)
    with pytest.raises(DamagedStore, match="cut short") as caught:
        written.query("a", 3)
    assert f"path={written.path(2)}" in str(caught.value)
    assert "reput rebuild" in caught.value.advice


@pytest.mark.parametrize(
    "size",
    [
        HEADER.size,
        HEADER.size + 1,
        HEADER.size + SLOT.size * SLOTS - 1,
        HEADER.size + SLOT.size * SLOTS + 1,
        HEADER.size + SLOT.size * SLOTS + ENTRY.size * 3 + 7,
    ],
)
def test_a_file_that_is_cut_short_after_it_was_listed_is_named(written, size):
    """The slot or an entry is not there, or not whole."""
    assert written.query("a", 1) == [24]
    os.truncate(written.path(2), size)
    with pytest.raises(DamagedStore, match="cut short") as caught:
        written.query("a", 3)
    assert f"path={written.path(2)}" in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 5])
def test_a_file_that_has_lost_its_header_counts_as_one_that_is_being_made(written, size):
    """Nothing tells them apart; `reput check` compares the entries with the log."""
    assert written.query("a", 1) == [24]
    os.truncate(written.path(2), size)
    assert written.query("a", 1) == [18]


def test_how_far_the_newest_file_goes_is_told(written):
    """RocketMQ reports it to its clients, too."""
    found = written.index.query(key_hash("t", "a"), 1, 0, FOR_EVER, FOR_EVER, lambda _: True)
    assert (found.last_update_offset, found.last_update_timestamp) == (2400, BEGIN_MS + 24_000)


def test_the_hash_is_never_negative():
    """Java's smallest int has no absolute value; it counts as 0."""
    assert key_hash("t", "a") == abs(hash_of("t#a"))
    assert min(key_hash("t", str(number)) for number in range(1000)) >= 0


def hash_of(text):
    """Return Java's hash of ASCII text."""
    code = 0
    for letter in text.encode():
        code = (31 * code + letter) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


@pytest.mark.parametrize(
    ("field", "value"), [(0, BEGIN_MS + 10**6), (0, -1), (1, BEGIN_MS + 20_000), (2, 1900), (3, 2500)]
)
def test_a_header_whose_times_leave_something_out_is_compared_first(written, field, value):
    """With its first and last entry, and with the log; otherwise a changed header would hide whole files."""
    times = {100 * n: BEGIN_MS + 1000 * n for n in range(25)}
    data = bytearray(written.path(2).read_bytes())
    fields = list(HEADER.unpack_from(data, 0))
    fields[field] = value
    HEADER.pack_into(data, 0, *fields)
    written.path(2).write_bytes(data)
    with pytest.raises(DamagedStore, match=r"contradicts"):
        written.index.query(
            key_hash("t", "a"), 9, BEGIN_MS + 1000, BEGIN_MS + 22_000, FOR_EVER, lambda _: True, times.get
        )


def test_a_header_that_denies_an_entry_is_named(written):
    """A new file has no slot in use."""
    data = bytearray(written.path(2).read_bytes())
    data[36:40] = bytes(4)
    written.path(2).write_bytes(data)
    with pytest.raises(DamagedStore, match=r"a slot leads to an entry, and there is none: entry=5 count=0"):
        written.query("a", 3)
    assert written.query("b", 2) == [19, 17]


def test_what_contradicts_itself_is_looked_at_again(written, monkeypatch):
    """Beside a live builder the parts of a file may be from different moments."""
    search, times = Index.search, []

    def first_is_torn(*arguments):
        times.append(1)
        if len(times) == 1:
            raise DamagedStore("torn")
        return search(*arguments)

    monkeypatch.setattr(Index, "search", first_is_torn)
    assert written.query("a", 2) == [24, 23]
    assert len(times) == 2
