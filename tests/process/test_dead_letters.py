"""Records that a dispatcher refused."""

from __future__ import annotations

from msgspec.structs import replace

from reput.process.dead_letters import DeadLetter, DeadLetters

LETTER = DeadLetter(1, 1, 100, 5, "orders", 0, 7, "poison", b"bytes")


def test_a_record_is_kept_once(tmp_path):
    """Also when another process meets it again after a crash."""
    assert DeadLetters(tmp_path, "index").add(LETTER)
    again = DeadLetters(tmp_path, "index")
    assert not again.add(replace(LETTER, timestamp=2))
    assert len(again) == 1
    assert list(again.lines.read()) == [LETTER]


def test_another_record_at_the_same_offset_is_another_letter(tmp_path):
    """A log that was cut uses offsets again."""
    letters = DeadLetters(tmp_path, "index")
    assert letters.add(LETTER)
    assert letters.add(replace(LETTER, record=b"others"))
    assert len(letters) == 2
