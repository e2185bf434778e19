"""Small append-only files of lines."""

from __future__ import annotations

import msgspec
import pytest

from reput.errors import DamagedStore
from reput.store.disk.json_lines import DamagedLine, JsonLines, seal_line


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line."""

    number: int


def test_rows_come_back_in_their_order(tmp_path):
    """The first row creates the file and its folder."""
    lines = JsonLines(tmp_path / "folder" / "rows.jsonl", Row)
    assert list(lines.read()) == []
    for number in range(3):
        lines.append(Row(number))
    assert list(lines.read()) == [Row(0), Row(1), Row(2)]


@pytest.mark.parametrize("torn", [b'{"numb', b"x" * 10_000])
def test_a_torn_line_counts_for_nothing_and_is_replaced(tmp_path, torn):
    """A crash in the middle of a line confirmed nothing."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.append(Row(1))
    with lines.path.open("ab") as file:
        file.write(torn)
    assert list(lines.read()) == [Row(1)]
    lines.append(Row(2))
    assert lines.path.read_bytes() == seal_line(Row(1)) + seal_line(Row(2))


def test_a_line_torn_at_any_byte_counts_for_nothing(tmp_path):
    """Including its line end: only then was it confirmed."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    whole = seal_line(Row(2))
    for size in range(len(whole)):
        lines.path.write_bytes(seal_line(Row(1)) + whole[:size])
        assert list(lines.read()) == [Row(1)]
        lines.append(Row(3))
        assert list(lines.read()) == [Row(1), Row(3)]


def test_any_flipped_bit_is_noticed_in_its_line(tmp_path):
    """Including bits of a line's end, of its checksum, and of the mark that there is one."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    rows = [Row(100), Row(200), Row(300)]
    data = b"".join(map(seal_line, rows))
    for at in range(len(data)):
        line_number = data[:at].count(b"\n") + 1
        for bit in range(8):
            lines.path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            with pytest.raises(DamagedStore, match=f"line={line_number} "):
                list(lines.read())


def test_a_last_line_that_has_lost_its_end_stays_and_is_told_of(tmp_path):
    """It is complete, so it was confirmed; a later line is not mixed with it."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.path.write_bytes(seal_line(Row(1))[:-1] + b"\x0b")
    lines.append(Row(2))
    damaged, last = lines.read_lines()
    assert isinstance(damaged, DamagedLine)
    assert (damaged.number, last) == (1, Row(2))


def test_lines_from_before_there_were_checksums_are_read(tmp_path):
    """New lines can be added."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.path.write_bytes(b'{"number":1}\n{"number":2}\n')
    lines.append(Row(3))
    assert list(lines.read()) == [Row(1), Row(2), Row(3)]


def test_a_line_with_its_checksum_is_json(tmp_path):
    """Other tools can read the file."""
    assert msgspec.json.decode(seal_line(Row(1)))["number"] == 1


def test_a_whole_line_that_is_no_row_is_an_error(tmp_path):
    """Another program wrote there; the error has file and line."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.append(Row(1))
    with lines.path.open("ab") as file:
        file.write(b"rubbish\n")
    with pytest.raises(DamagedStore, match=r"path=.*rows\.jsonl line=2"):
        list(lines.read())


def test_who_can_go_on_gets_a_line_that_is_no_row_in_its_place(tmp_path):
    """With its bytes and a message."""
    lines = JsonLines(tmp_path / "rows.jsonl", Row)
    lines.path.write_bytes(b'{"number":1}\nrub\xffbish\n{"number":2}\n')
    first, damaged, last = lines.read_lines()
    assert (first, last) == (Row(1), Row(2))
    assert isinstance(damaged, DamagedLine)
    assert (damaged.number, damaged.data) == (2, b"rub\xffbish")
    assert str(damaged).startswith(f"a line is not what was written: path={lines.path} line=2 error=")
