"""Java's string hash. RocketMQ's vectors of it are with those of the records, in ``tests/vectors``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reput.filter.string_hash import string_hash


def java_string_hash(text: str) -> int:
    """Return the hash as Java's documentation defines it, one UTF-16 unit at a time."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) % 2**32
    return value if value < 2**31 else value - 2**32


@given(st.text(max_size=300))
def test_the_hash_is_javas_for_any_text(text):
    """Tags and keys may be written in any script."""
    assert string_hash(text) == java_string_hash(text)


@given(st.integers(0, 400), st.sampled_from(["a", "\x00", "\x7f", "标", "😀"]))
def test_the_hash_is_javas_for_any_length(count, character):
    """Short and long texts use different algorithms for the same hash."""
    assert string_hash(character * count) == java_string_hash(character * count)


def test_a_lone_surrogate_is_hashed_as_the_unit_it_is():
    """Strings of Java and of Python may hold half a character."""
    assert string_hash("\ud83d") == 0xD83D
