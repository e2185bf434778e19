"""The picture of the layout and its constants agree."""

from __future__ import annotations

import re

from reput.ring import layout


def rows(heading: str) -> dict[str, int]:
    """Return name -> number from the docstring's table that begins with *heading*."""
    text = (layout.__doc__ or "").split(f"    {heading}", 1)[1].split("\n\n", 1)[0]
    return {name: int(number) for number, name in re.findall(r"^ +(\d+)  ([A-Z_]+)\b", text, re.MULTILINE)}


def test_each_word_of_the_ring_lies_where_the_picture_says():
    """A dump of the ring has each word at its number."""
    drawn = rows("word  name")
    assert drawn == {name: getattr(layout, name) for name in drawn}
    assert {"MAGIC", "TAIL", "INTENT", "APPENDED", "DURABLE", "CLOSED", "AWAITED"} <= drawn.keys()
    assert layout.HEADER_WORDS == 512


def test_each_word_of_a_cell_lies_where_the_picture_says():
    """A dump of a cell has each word at its byte."""
    drawn = rows("byte  name")
    # A name that exists in both the ring and a cell is a word of the ring.
    assert drawn == {name: 8 * getattr(layout, name) for name in drawn}
    assert {"PARKED", "STATE", "PROGRESS", "HEARTBEAT_NS", "COUNTER_COUNT"} <= drawn.keys()


def test_no_two_words_share_a_place():
    """Every word of the ring and of a cell has a different number."""
    for heading in ("word  name", "byte  name"):
        drawn = rows(heading)
        assert len(set(drawn.values())) == len(drawn)
