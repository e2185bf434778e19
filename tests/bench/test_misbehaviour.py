"""Puts beside misbehaving dispatchers are measured."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import misbehaviour


@pytest.mark.long
@pytest.mark.processes
def test_a_kind_of_misbehaviour_is_measured(tmp_path, monkeypatch, capsys):
    """Scratch stores and plugins are removed afterwards."""
    monkeypatch.setattr(misbehaviour, "KINDS", ("crash_loop",))
    monkeypatch.setattr(misbehaviour, "ROUNDS", 1)
    before = list(sys.path)
    assert misbehaviour.main(["--directory", str(tmp_path), "--seconds", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in report["kinds"]] == ["crash_loop"]
    assert report["difference_percent_max"] == report["kinds"][0]["difference_percent"]
    assert list(tmp_path.iterdir()) == []
    assert sys.path == before
