"""The measurements of decoding run, and report what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.bench.export import delays, measure_export


@pytest.mark.slow
def test_decoding_can_be_measured_without_spark(tmp_path: Path):
    """A short run decodes every record that it wrote, gives JSON, and leaves nothing behind."""
    report = measure_export(tmp_path, size=1 << 20, with_spark=False)
    assert json.loads(json.dumps(report)) == report
    assert report["decode"]["rows"] == report["count"] > 0
    assert report["decode"]["mb_per_s"] > 0
    assert "export" not in report
    assert list(tmp_path.iterdir()) == []


def test_the_delay_of_a_message_is_until_the_first_transaction_that_has_it():
    """Messages without a transaction do not count."""
    stored = [(1000, 10), (1100, 20), (1200, 30)]
    assert delays(stored, [(1500, 20), (1600, 25)]) == [0.5, 0.4]
