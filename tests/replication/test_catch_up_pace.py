"""How often followers that are far behind get the log: producers lose little, and the followers still catch up."""

from __future__ import annotations

import pytest

from reput.replication.catch_up_pace import CYCLE_S, SLOWED_MAX, CatchUpPace, Part

STEP_S = 0.005
SECONDS = 60
GROWTH, SENT = 50 << 20, 400 << 20


class Machine:
    """A log that grows, and more slowly while a follower gets it, beside one that takes nothing; and a clock."""

    def __init__(self, growth: int, slowed: float, sent: int = SENT, busy_for: float = 0.05) -> None:
        """*growth*, *sent*: bytes a second. *slowed*: by which share, beside followers.

        *busy_for*: seconds that these need for what is in their buffers.
        """
        self.busy_for, self.busy_until = busy_for, 0.0
        self.pace = CatchUpPace()
        self.growth, self.slowed, self.sent_a_second, self.is_needed = growth, slowed, sent, True
        self.now, self.end, self.sent = 1000.0, 1 << 31, 0

    def run(self, seconds: float) -> tuple[float, float]:
        """Return how much the log has grown and followers have got, a second."""
        end, sent = self.end, self.sent
        for _ in range(round(seconds / STEP_S)):
            is_busy = self.now < self.busy_until
            self.pace.look(self.now, self.end, is_needed=self.is_needed, is_settled=not is_busy)
            is_open = not self.pace.wait(self.now)
            if is_open:
                self.busy_until = self.now + self.busy_for
                self.sent += round(self.sent_a_second * STEP_S)
                self.pace.add(1, round(self.sent_a_second * STEP_S))
                self.pace.add(2, 0)
            self.end += round(self.growth * STEP_S * (1 - self.slowed * is_busy))
            self.now += STEP_S
        return (self.end - end) / seconds, (self.sent - sent) / seconds


@pytest.mark.parametrize(
    ("slowed", "busy_for"), [(0.2, 0.05), (0.3, 0.05), (0.35, 0.05), (0.2, 0.15), (0.25, 0.15), (0.3, 0.1)]
)
def test_puts_are_hardly_slowed_and_the_follower_catches_up(slowed, busy_for):
    """Whatever they lose while the follower gets the log and works on it, it is a tenth on the whole at most."""
    machine = Machine(GROWTH, slowed, busy_for=busy_for)
    machine.run(5)
    growth, sent = machine.run(SECONDS)
    assert growth >= GROWTH * (1 - SLOWED_MAX - 0.02)
    assert sent >= 1.05 * growth


def test_a_follower_gets_more_than_the_log_grows_even_if_that_slows_puts():
    """Else it would never catch up: it would need more and more of a log that is removed one day."""
    machine = Machine(GROWTH, 0.5, sent=GROWTH * 2)
    machine.run(5)
    growth, sent = machine.run(SECONDS)
    assert sent >= 1.05 * growth


def test_followers_that_cost_the_puts_nothing_get_four_fifths_of_the_time():
    """On machines of their own, for example."""
    machine = Machine(GROWTH, 0.0)
    machine.run(5)
    _, sent = machine.run(SECONDS)
    assert sent >= 0.78 * SENT


def test_a_log_that_hardly_grows_is_sent_without_a_pause():
    """Its producers are in no hurry."""
    machine = Machine(1 << 18, 0.5)
    _, sent = machine.run(SECONDS)
    assert sent >= 0.999 * SENT


def test_nothing_is_measured_while_nobody_is_behind_or_the_thread_did_not_run():
    """A cycle that was not seen says nothing."""
    machine = Machine(GROWTH, 0.3)
    machine.run(5)
    share = machine.pace.share
    machine.is_needed = False
    machine.run(5)
    assert (machine.pace.share, machine.pace.part) == (share, Part.OPEN)
    machine.is_needed = True
    machine.run(CYCLE_S * 0.8)
    assert machine.pace.wait(machine.now)
    machine.now += 3 * CYCLE_S
    machine.run(STEP_S)
    assert (machine.pace.share, machine.pace.part) == (share, Part.OPEN)
