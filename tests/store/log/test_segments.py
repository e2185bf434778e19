"""Segments: the files in a commit-log directory, as seen by a reader."""

from __future__ import annotations

import pytest

from reput.errors import NotAStore, OffsetOutOfRange
from reput.store.log.segments import Segments


def make(directory, *files):
    """Create files of (begin, size), each filled with its begin in thousands."""
    directory.mkdir(parents=True, exist_ok=True)
    for begin, size in files:
        (directory / f"{begin:020d}").write_bytes(bytes([begin // 1000 % 256]) * size)
    return directory


def test_segments_are_listed_in_the_order_of_their_names(tmp_path):
    """Other files in the directory are ignored."""
    directory = make(tmp_path / "log", (4000, 4000), (0, 4000), (8000, 4000))
    (directory / "notes.txt").write_text("…")
    (directory / "00000000000000016000.bak").write_text("…")
    (directory / "123").write_text("…")
    (directory / f"{12000:020d}").mkdir()
    # Its bytes would have no valid offsets.
    (directory / "09223372036854775807").write_text("…")
    (directory / "99999999999999999999").write_text("…")
    segments = Segments(directory)
    assert [(segment.begin, segment.end, segment.size) for segment in segments.list] == [
        (0, 4000, 4000),
        (4000, 8000, 4000),
        (8000, 12000, 4000),
    ]
    assert (segments.offset_min, segments.offset_end) == (0, 12000)


@pytest.mark.parametrize("make_it", [False, True])
def test_without_a_segment_there_is_no_log(tmp_path, make_it):
    """Whether the directory exists or not."""
    if make_it:
        (tmp_path / "log").mkdir()
    with pytest.raises(NotAStore, match="no commit log"):
        Segments(tmp_path / "log")


@pytest.mark.parametrize(
    "files",
    [
        [(0, 4000), (4000, 4000), (8000, 100)],
        [(0, 100), (4000, 4000)],
        [(0, 4000), (4000, 50), (8000, 4000), (12000, 30)],
        [(0, 4000), (12000, 4000)],
        [(8000, 4000)],
        [(8000, 4000), (12000, 0)],
    ],
)
def test_the_size_of_a_full_segment_is_read_off_names_and_lengths(tmp_path, files):
    """A file may have been cut short, and one may be missing."""
    assert Segments(make(tmp_path / "log", *files)).segment_size == 4000


def test_an_empty_last_file_holds_nothing_yet(tmp_path):
    """Its creation was interrupted. An empty file before others is a gap."""
    segments = Segments(make(tmp_path / "log", (0, 4000), (4000, 0), (8000, 4000), (12000, 0)))
    assert [segment.begin for segment in segments.list] == [0, 4000, 8000]
    assert segments.find(4000) is None
    with pytest.raises(NotAStore):
        Segments(make(tmp_path / "empty", (0, 0)))


def test_a_byte_is_found_in_its_segment(tmp_path):
    """None if a segment is missing or was cut short."""
    segments = Segments(make(tmp_path / "log", (4000, 4000), (8000, 100), (16000, 4000)), 4000)
    found = {offset: segments.find(offset) for offset in (3999, 4000, 7999, 8099, 8100, 12000, 16000, 20000)}
    assert {offset: segment and segment.begin for offset, segment in found.items()} == {
        3999: None,
        4000: 4000,
        7999: 4000,
        8099: 8000,
        8100: None,
        12000: None,
        16000: 16000,
        20000: None,
    }
    assert segments.following(8100).begin == 16000
    assert segments.following(8000).begin == 8000
    assert segments.following(16001) is None


def test_a_segment_that_appears_is_found(tmp_path):
    """The directory is listed again before a byte is reported missing."""
    directory = make(tmp_path / "log", (0, 4000))
    segments = Segments(directory)
    make(directory, (4000, 4000))
    assert segments.find(4000).begin == 4000
    (directory / f"{0:020d}").unlink()
    segments.refresh()
    assert segments.offset_min == 4000


def test_bytes_are_read_from_one_segment(tmp_path):
    """Never from two, and never fewer than requested."""
    segments = Segments(make(tmp_path / "log", (0, 4000), (4000, 4000)))
    assert segments.read(4010, 3) == b"\x04\x04\x04"
    for offset, size in ((3999, 2), (8000, 1), (7999, 2)):
        with pytest.raises(OffsetOutOfRange, match=f"commit_log_offset={offset}"):
            segments.read(offset, size)
