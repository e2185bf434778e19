"""Records that a dispatcher rejected."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reput.errors import DamagedStore
from reput.process.views.dead_letters import DeadLetter, DeadLetters

LETTER = DeadLetter(1, 1, 100, 5, "orders", 0, 7, "poison", b"bytes")


def test_a_record_is_kept_once(tmp_path):
    """Even if another process meets it again after a crash."""
    assert DeadLetters(tmp_path, "index").add(LETTER)
    again = DeadLetters(tmp_path, "index")
    assert not again.add(replace(LETTER, timestamp=2))
    assert len(again) == 1
    assert list(again.lines.read()) == [LETTER]


def test_another_record_at_the_same_offset_is_another_letter(tmp_path):
    """A log that was cut reuses offsets."""
    letters = DeadLetters(tmp_path, "index")
    assert letters.add(LETTER)
    assert letters.add(replace(LETTER, record=b"others"))
    assert len(letters) == 2


def garble(path):
    """Put an invalid line between the first and the second line of *path*; return it."""
    first, *others = path.read_bytes().splitlines(keepends=True)
    damaged = b"\xff" + first[1:]
    path.write_bytes(b"".join([first, damaged, *others]))
    return damaged


def test_a_line_that_is_no_letter_stops_nobody_and_is_never_lost(tmp_path):
    """It is reported, stays in the file, even after a replay, and the other letters are read, added and replayed."""
    letters = DeadLetters(tmp_path, "index")
    letters.add(LETTER)
    second = replace(LETTER, commit_log_offset=200)
    letters.add(second)
    damaged = garble(letters.lines.path)
    letters = DeadLetters(tmp_path, "index")
    assert len(letters) == 2
    assert [line.number for line in letters.damaged_lines()] == [2]
    with pytest.raises(DamagedStore, match=r"index\.jsonl line=2"):
        letters.require_whole()
    assert letters.request_replay() == [LETTER, second]
    letters.finish_replay(letters.begin_replay()[:1])
    assert list(letters.read()) == [second]
    assert letters.lines.path.read_bytes().splitlines(keepends=True)[0] == damaged


def test_a_request_that_is_damaged_is_forgotten_and_named(tmp_path):
    """Otherwise it would end the dispatcher at every start; the letters can be replayed by a new request."""
    letters = DeadLetters(tmp_path, "index")
    letters.add(LETTER)
    letters.request_replay()
    letters.requested.write_bytes(b"[")
    with pytest.raises(DamagedStore, match=r"path=.*index\.replay"):
        letters.begin_replay()
    assert not letters.replay_is_due()
    assert letters.request_replay() == [LETTER]
