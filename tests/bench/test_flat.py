"""Costs with few and with many queues and segments are measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.figures import FIGURES
from benchmarks.flat import main
from reput.bench.figures import look_up


@pytest.mark.long
@pytest.mark.processes
def test_flatness_is_measured(tmp_path, capsys):
    """The report compares a put and a get in both stores."""
    assert main(["--directory", str(tmp_path), "--queues", "20", "--segments", "2", "--rounds", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["queues"]["numbers"] == [10, 20]
    assert report["segments"]["put"]["many_to_few"] > 0
    assert all(look_up(report, figure.path) is not None for figure in FIGURES["flat"])
    assert list(tmp_path.iterdir()) == []
