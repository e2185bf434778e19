"""Ranges of the log that a view never had."""

from __future__ import annotations

from reput.process.views.gaps import Gap, Gaps


def test_gaps_are_kept_and_counted_once(tmp_path):
    """A repeated start finds the same gap, or a larger one."""
    gaps = Gaps(tmp_path, "index")
    for gap in (Gap(1, 100, 200), Gap(2, 100, 200), Gap(3, 100, 300), Gap(4, 500, 600)):
        gaps.add(gap)
    assert gaps.size == 300
    assert Gaps(tmp_path, "index").size == 300
    assert len(list(gaps.lines.read())) == 3
    assert Gaps(tmp_path, "other").size == 0


def test_a_line_that_is_no_gap_stops_nobody(tmp_path):
    """It is reported, and stays; the other gaps count."""
    gaps = Gaps(tmp_path, "index")
    gaps.add(Gap(1, 100, 200))
    gaps.lines.path.write_bytes(b"rubbish\n" + gaps.lines.path.read_bytes())
    gaps = Gaps(tmp_path, "index")
    gaps.add(Gap(2, 300, 400))
    again = Gaps(tmp_path, "index")
    assert (again.size, [line.number for line in again.damaged_lines]) == (200, [1])
