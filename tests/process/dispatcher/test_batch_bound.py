"""BatchBound: how batches grow and shrink."""

from __future__ import annotations

import pytest

from reput.process.dispatcher.batch_bound import RECORD_COUNT_MAX, SIZE_MAX, BatchBound, BatchSize, smaller_batch
from reput_hooks import DispatcherDescription


def grown(bound, seconds_per_record, batch_count=40):
    """Feed a bound with full batches of 100-byte records; return the number of records of each."""
    counts = []
    for _ in range(batch_count):
        counts.append(bound.record_count)
        bound.took(BatchSize(bound.record_count, bound.record_count * 100), bound.record_count * seconds_per_record)
    return counts


def test_batches_grow_up_to_what_the_plugin_declares():
    """While batches are quick, they double from a small size."""
    assert grown(BatchBound(DispatcherDescription(), 60.0), 0.0)[::10] == [256, *3 * [RECORD_COUNT_MAX]]
    declared = DispatcherDescription(batch_record_count_max=1000, batch_size_max=5000)
    bound = BatchBound(declared, 60.0)
    assert grown(bound, 0.0)[-1] == 1000
    assert bound.size == 5000


def test_the_first_batch_is_no_larger_than_declared():
    """Not even by one record."""
    bound = BatchBound(DispatcherDescription(batch_record_count_max=10), 60.0)
    assert (bound.record_count, bound.size) == (10, SIZE_MAX)


@pytest.mark.parametrize("seconds_per_record", [0.0003, 0.001, 0.01])
def test_slow_records_come_in_batches_that_stay_away_from_the_time_limit(seconds_per_record):
    """However large the backlog. Even on a machine three times slower each batch ends in time."""
    counts = grown(BatchBound(DispatcherDescription(), 1.0), seconds_per_record)
    assert max(counts[1:]) * seconds_per_record < 1.0 / 3 or counts[-1] == 64


def test_few_records_do_not_make_batches_grow():
    """Single quick records say nothing about the time for thousands."""
    bound = BatchBound(DispatcherDescription(), 1.0)
    for _ in range(100):
        bound.took(BatchSize(1, 100), 0.0001)
    assert bound.record_count == 256


def test_a_plugin_that_takes_long_for_any_batch_does_not_get_single_records():
    """For example, a request to a server takes as long for one record as for many."""
    bound = BatchBound(DispatcherDescription(), 1.0)
    for _ in range(20):
        bound.took(BatchSize(bound.record_count, 1000), 0.7)
    assert bound.record_count == 64


def test_after_a_kill_a_fraction_comes_and_grows_again():
    """Down to one record if necessary."""
    bound = BatchBound(DispatcherDescription(), 1.0, smaller_batch(BatchSize(256, 40_000)))
    assert (bound.record_count, bound.size) == (32, 5_000)
    assert grown(bound, 0.0001)[:3] == [32, 64, 128]
    assert bound.size > 5_000
    assert smaller_batch(BatchSize(3, 5)) == BatchSize(1, 1)


def test_a_plugin_that_reads_the_log_itself_is_bounded_by_bytes():
    """By a gigabyte, by its declaration, and by less after a kill."""
    assert BatchBound(DispatcherDescription(feeds="positions"), 60.0).size == 1 << 30
    declared = DispatcherDescription(feeds="positions", batch_size_max=1 << 20)
    bound = BatchBound(declared, 60.0, smaller_batch(BatchSize(0, 1 << 20)))
    assert bound.size == 1 << 17
    bound.took(BatchSize(0, 1 << 17), 0.1)
    assert bound.size == 1 << 18
