"""Backoff: when a dispatcher is restarted."""

from __future__ import annotations

from reput.process.supervisor.backoff import Backoff
from reput.settings import load_settings


def backoff(name="index", **settings):
    """Return a back-off without jitter."""
    return Backoff(name, load_settings(**settings).settings, uniform=lambda low, high: high)


def test_the_first_retry_comes_within_100_ms():
    """Whatever the jitter."""
    assert 0 < backoff(dispatcher_backoff_min=100).failed(None) <= 0.1


def test_pauses_double_up_to_the_bound():
    """While failures repeat without progress."""
    tried = backoff(dispatcher_backoff_min=50, dispatcher_backoff_max=300)
    assert [tried.failed(7) for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]


def test_jitter_spreads_the_restarts():
    """Two dispatchers that died at the same time do not always restart together."""
    tried = Backoff("index", load_settings().settings, uniform=lambda low, high: low)
    assert tried.failed(None) == 0.025


def test_a_crash_loop_ends():
    """After the set number of restarts without progress."""
    tried = backoff(dispatcher_restart_count_max=3)
    assert [tried.failed(7) is None for _ in range(4)] == [False, False, False, True]


def test_progress_begins_the_count_again():
    """A dispatcher that fails occasionally, but makes progress, is not in a crash loop."""
    tried = backoff(dispatcher_restart_count_max=2)
    assert all(tried.failed(offset) == 0.05 for offset in range(10))


def test_going_over_the_same_records_is_no_progress():
    """After a crash the durable cursor is behind, and the same record crashes it again."""
    tried = backoff(dispatcher_restart_count_max=2)
    assert [tried.failed(offset) is None for offset in (9, 4, 9)] == [False, False, True]


def test_the_consume_queue_is_tried_without_limit():
    """Consumers depend on it."""
    tried = backoff("consume_queue", dispatcher_restart_count_max=1)
    assert all(tried.failed(7) is not None for _ in range(100))


def test_the_consume_queue_comes_back_at_once():
    """The first time; a crash loop is slowed down like any other."""
    tried = backoff("consume_queue", dispatcher_backoff_min=50)
    assert [tried.failed(7) for _ in range(3)] == [0.0, 0.1, 0.2]


def test_a_person_may_begin_again():
    """A manual start resets the count of tries."""
    tried = backoff(dispatcher_restart_count_max=1)
    assert [tried.failed(7), tried.failed(7)] == [0.05, None]
    tried.forgive()
    assert tried.failed(7) == 0.05
