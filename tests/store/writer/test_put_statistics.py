"""Durations of puts, and puts per second."""

from __future__ import annotations

import pytest

from reput.store.writer.put_statistics import DISTRIBUTION, PutStatistics


class Counted:
    """A manual clock, and a manual count of messages."""

    def __init__(self) -> None:
        self.now = 100.0
        self.count = 7


@pytest.fixture
def counted():
    """There were seven messages before."""
    return Counted()


def statistics_of(counted: Counted, *, tells_all: bool = False) -> PutStatistics:
    return PutStatistics(lambda: counted.now, lambda: counted.count, tells_all=tells_all)


def test_before_the_first_put_nothing_is_known_of_times(counted):
    """Neither the average nor the maximum is 0."""
    totals = statistics_of(counted).totals(put_size=0)
    assert (totals.put_nums, totals.put_size) == (0, 0)
    assert totals.put_size_average is None
    assert totals.put_entire_time_max_ms is None
    assert totals.put_tps == {"10s": None, "60s": None, "600s": None}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0009, "[<=0ms]"),
        (0.001, "[0~10ms]"),
        (0.00999, "[0~10ms]"),
        (0.01, "[10~50ms]"),
        (0.3, "[200~500ms]"),
        (0.999, "[500ms~1s]"),
        (1.0, "[1~2s]"),
        (9.99, "[5~10s]"),
        (10.0, "[10s~]"),
        (900.0, "[10s~]"),
    ],
)
def test_a_put_counts_in_the_bucket_of_its_time(seconds, bucket, counted):
    """RocketMQ's thirteen buckets; the fast puts are those that were not recorded."""
    statistics = statistics_of(counted)
    counted.count += 5
    statistics.note(seconds, 2)
    totals = statistics.totals(put_size=500)
    expected = dict.fromkeys(DISTRIBUTION, 0)
    expected["[<=0ms]"] = 3
    expected[bucket] += 2
    assert totals.put_distribute_time == expected
    assert totals.put_size_average == 100.0
    assert totals.put_entire_time_max_ms == pytest.approx(seconds * 1000, abs=0.001)


def test_only_what_is_longer_than_before_or_slow_has_to_be_noted(counted):
    """So a put only pays for one comparison."""
    statistics = statistics_of(counted)
    assert statistics.threshold == 0
    statistics.note(0.0002, 1)
    assert statistics.threshold == 0.0002
    statistics.note(0.5, 1)
    assert statistics.threshold == 0.001


def test_where_every_call_is_noted_others_are_in_no_bucket(counted):
    """Transactional puts wait for the disk later, so their durations are unknown."""
    statistics = statistics_of(counted, tells_all=True)
    counted.count += 5
    statistics.note(0.0002, 2)
    assert sum(statistics.totals(put_size=1).put_distribute_time.values()) == 2


def test_messages_a_second_are_known_once_the_period_has_gone_by(counted):
    """Computed from the earlier count."""
    statistics = statistics_of(counted)
    for _ in range(9):
        counted.now += 1
        counted.count += 3
        statistics.sample()
    assert statistics.tps(10) is None
    counted.now += 1
    counted.count += 3
    assert statistics.tps(10) == 3.0
    for _ in range(700):
        counted.now += 1
        statistics.sample()
        statistics.sample()
    assert statistics.totals(put_size=1).put_tps == {"10s": 0.0, "60s": 0.0, "600s": 0.0}
