"""Small files to which lines are only added."""

from __future__ import annotations

import msgspec
import pytest

from reput.errors import DamagedStore
from reput.store.json_lines import DamagedLine, JsonLines


class Row(msgspec.Struct, frozen=True):
    """A line."""

    number: int


def test_rows_come_back_in_their_order(tmp_path):
    """The file and its folder are made by the first row."""
    lines = JsonLines(tmp_path / "folder" / "rows.jsonl", Row)
    assert list(lines.read()) == []
    for number in range(3):
        lines.append(Row(number))
    assert list(lines.read()) == [Row(0), Row(1), Row(2)]


@pytest.mark.parametrize("torn", [b'{"numb', b"x" * 10_000])
def test_a_torn_line_counts_for_nothing_and_is_replaced(tmp_path, torn):
    """A crash in the middle of a line promised nothing."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.append(Row(1))
    with lines.path.open("ab") as file:
        file.write(torn)
    assert list(lines.read()) == [Row(1)]
    lines.append(Row(2))
    assert lines.path.read_bytes() == b'{"number":1}\n{"number":2}\n'


def test_a_whole_line_that_is_no_row_is_an_error(tmp_path):
    """Somebody else has written there; file and line are named."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.append(Row(1))
    with lines.path.open("ab") as file:
        file.write(b"rubbish\n")
    with pytest.raises(DamagedStore, match=r"path=.*rows\.jsonl line=2"):
        list(lines.read())


def test_who_can_go_on_gets_a_line_that_is_no_row_in_its_place(tmp_path):
    """With its bytes, and what to tell of it."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.path.write_bytes(b'{"number":1}\nrub\xffbish\n{"number":2}\n')
    first, damaged, last = lines.read_lines()
    assert (first, last) == (Row(1), Row(2))
    assert isinstance(damaged, DamagedLine)
    assert (damaged.number, damaged.data) == (2, b"rub\xffbish")
    assert str(damaged).startswith(f"a line is not what was written: path={lines.path} line=2 error=")
