"""How fast counters grow: in the last minute, hour and day."""

from __future__ import annotations

from reput.broker.state.broker_statistics import GrowthWindows

KEY = ("TOPIC_PUT_NUMS", "T")
SAMPLE_S = 10


class Counted:
    """A counter and a clock, both set by the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.count = 0
        self.windows = GrowthWindows(lambda: self.now, lambda: {KEY: self.count})

    def advance(self, samples: int, growth: int) -> None:
        """Let that many spans of 10 s pass, in each of which the counter grows."""
        for _ in range(samples):
            self.now += SAMPLE_S
            self.count += growth
            self.windows.sample()

    def sums(self) -> list[int]:
        return [growth.sum for growth in self.windows.growths(KEY, self.count)]

    def rates(self) -> list[float]:
        return [round(growth.per_second, 3) for growth in self.windows.growths(KEY, self.count)]


def test_what_came_since_the_last_sample_counts_at_once():
    """A rate is there before the first sample is."""
    counted = Counted()
    counted.now += 4
    counted.count = 8
    assert counted.sums() == [8, 8, 8]
    assert counted.rates() == [2.0, 2.0, 2.0]


def test_a_rate_at_the_moment_of_the_start_is_zero():
    """And no division by zero."""
    assert Counted().rates() == [0.0, 0.0, 0.0]


def test_the_last_minute_forgets_what_came_before():
    """The hour and the day do not."""
    counted = Counted()
    counted.advance(6, 10)
    counted.advance(6, 0)
    assert counted.sums() == [0, 60, 60]


def test_the_last_hour_forgets_what_came_before():
    """In steps of ten minutes."""
    counted = Counted()
    counted.advance(60, 1)
    counted.advance(5 * 60, 0)
    assert counted.sums() == [0, 60, 60]
    counted.advance(60, 0)
    assert counted.sums() == [0, 0, 60]


def test_the_last_day_forgets_what_came_before():
    """In steps of an hour."""
    counted = Counted()
    counted.advance(360, 1)
    counted.advance(23 * 360, 0)
    assert counted.sums() == [0, 0, 360]
    counted.advance(360, 0)
    assert counted.sums() == [0, 0, 0]


def test_a_steady_rate_is_the_same_in_every_window():
    """However long it lasts."""
    counted = Counted()
    counted.advance(25 * 360, 20)
    assert counted.rates() == [2.0, 2.0, 2.0]


def test_a_counter_that_begins_anew_has_no_negative_growth():
    """A topic was deleted, and is there again."""
    counted = Counted()
    counted.advance(1, 100)
    counted.count = 3
    assert counted.sums() == [100, 100, 100]
    counted.advance(1, 0)
    assert counted.sums() == [100, 100, 100]
