"""A program that runs beside the broker, and dies."""

from __future__ import annotations

import logging
import os

import pytest

from delivering import wait_until
from reput.broker import beside
from reput.broker.beside import Beside


@pytest.mark.parametrize(("steady_s", "grows"), [(60.0, True), (-1.0, False)], ids=["dies at once", "lived for long"])
def test_only_a_program_that_dies_at_once_is_started_later_each_time(steady_s, grows, monkeypatch, caplog):
    """One that lived for hours comes back after the shortest pause, however often that happened before."""
    monkeypatch.setattr(beside, "PAUSE_MIN_S", 0.001)
    monkeypatch.setattr(beside, "STEADY_S", steady_s)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    with caplog.at_level(logging.ERROR, "reput.broker.beside"):
        program = Beside(["false"], descriptor)
        try:
            wait_until(lambda: len(caplog.records) >= 4)
        finally:
            program.stop()
            os.close(descriptor)
    pauses = [record.args[1] for record in caplog.records[:4]]
    assert pauses == ([0.001, 0.002, 0.004, 0.008] if grows else [0.001] * 4)
