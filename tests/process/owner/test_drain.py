"""How long a close waits for dispatchers, and what it logs meanwhile."""

from __future__ import annotations

import logging
import math

import pytest

from reput.process.owner import drain
from reput.process.owner.drain import await_drain


class Dispatchers:
    """Simulated dispatchers; *ended_after*: the number of waits until they have ended."""

    def __init__(self, ended_after=math.inf, ended_in_hurry=False):
        self.ended_after = ended_after
        self.ended_in_hurry = ended_in_hurry
        self.waits = []
        self.hurried = False

    def join(self, seconds):
        """Return at once."""
        self.waits.append(seconds)
        return len(self.waits) > self.ended_after or (self.hurried and self.ended_in_hurry)

    def hurry(self):
        """Count the call."""
        self.hurried = True

    def wait(self, timeout):
        """Wait for them."""
        return await_drain(self.join, self.hurry, lambda: "audit:500", timeout)


@pytest.fixture
def fast_clock(monkeypatch):
    """Each reading of the clock is a second later."""
    now = iter(range(1000))
    monkeypatch.setattr(drain.time, "monotonic", lambda: float(next(now)))


def test_those_that_have_ended_are_not_waited_for(caplog):
    """Nothing is logged."""
    waited_for = Dispatchers(ended_after=0)
    assert waited_for.wait(60.0)
    assert not waited_for.hurried
    assert not caplog.records


def test_what_is_waited_for_is_said(caplog, fast_clock):
    """The dispatchers, their lags, the waiting time and the limit."""
    waited_for = Dispatchers(ended_after=2)
    with caplog.at_level(logging.WARNING):
        assert waited_for.wait(100.0)
    assert len(caplog.records) == 2
    assert "bytes_behind=audit:500" in caplog.text
    assert "timeout_s=100" in caplog.text
    assert max(waited_for.waits) == drain.TELL_S


def test_the_wait_has_an_end(caplog, fast_clock):
    """Then they are told to hurry, and the result tells whether they ended."""
    for in_hurry in (True, False):
        waited_for = Dispatchers(ended_in_hurry=in_hurry)
        assert waited_for.wait(20.0) == in_hurry
        assert waited_for.hurried
        assert waited_for.waits[-1] == drain.HURRY_S
    assert "closing stops waiting" in caplog.text


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_without_any_time_they_hurry_at_once(timeout):
    """Unless they have already ended."""
    assert Dispatchers(ended_after=0).wait(timeout)
    waited_for = Dispatchers(ended_in_hurry=True)
    assert waited_for.wait(timeout)
    assert waited_for.hurried
