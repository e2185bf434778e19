"""The ring's measurements run, and report what they measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.figures import FIGURES
from benchmarks.ring import main
from reput.bench.figures import look_up

pytestmark = [pytest.mark.processes, pytest.mark.long]


def test_the_ring_can_be_measured_anywhere(capsys):
    """A short run returns every figure as JSON: nothing was lost, and no reader was lapped."""
    assert main(["--requests", str(64 * 500), "--rounds", "1", "--wake-ups", "20"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert all(look_up(report, figure.path) is not None for figure in FIGURES["ring"])
    throughput = report["to_one_reader"]
    assert (throughput["requests"], throughput["lapped"], throughput["backstop"]) == (64 * 500, 0, 0)
    assert throughput["requests_per_second"] > 0
    assert {"alone_ns", "running_1_ns", "running_16_ns", "paused_16_ns", "parked_16_ns"} <= report["publish"].keys()
    assert report["wake"]["backstop"] == 0
    assert 0 < report["wake"]["to_reader"]["p50_us"] <= report["wake"]["to_reader"]["p99_us"]
