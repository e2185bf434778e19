"""What operators do is measured, in a small form: backups and restores, and an open console."""

from __future__ import annotations

import json

import pytest

from benchmarks import backup, console

pytestmark = pytest.mark.long


def test_backups_are_measured_and_an_increment_is_as_large_as_what_has_grown(tmp_path, capsys):
    """The first copies the log, the second what was put since, and the small end that it is joined with."""
    assert backup.main(["--gib", "0.02", "--body-size", "4000", "--directory", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    first, increment, restore = report["first"], report["increment"], report["restore"]
    assert first["bytes"] > 0.02 * (1 << 30)
    assert increment["grown"] <= increment["bytes"] < increment["grown"] * 1.01 + 40_000
    assert restore["records"] > first["records"]
    assert report["disk"]["mb_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_an_open_console_is_measured(tmp_path, monkeypatch, capsys):
    """Parts with and without open pages alternate; each tells the console's memory."""
    monkeypatch.setattr(console, "PAGES", 2)
    assert console.main(["--seconds", "1", "--parts", "2", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["pages"] for row in rows] == [0, 2]
    assert all(row["puts_per_s"] > 0 and row["console_mib"] > 0 for row in rows)
    assert lines[-1].startswith("with 2 pages: put rate x")
    assert list(tmp_path.iterdir()) == []
