"""A stuck put keeps others from queueing up behind it; a busy lock does not."""

from __future__ import annotations

import threading
import time

import pytest

from reput.errors import StoreBusy
from reput.store.log.page_cache_watch import PageCacheWatch
from reput.store.record.message import Message
from small_store import ManualClock, open_store

LIMIT_S = 60.0


class Log:
    """A commit log, represented by its end."""

    appended = 0


class Ticking(ManualClock):
    """A clock whose monotonic time advances on request."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def watch():
    """Return a watch with a limit of a second, of a log that does not grow."""
    return PageCacheWatch(threading.Lock(), Log(), Ticking(), 1000)


def look(watch: PageCacheWatch, seconds: float) -> bool:
    """Check at a given time, and return whether puts are refused then."""
    watch.clock.seconds = seconds
    watch.look()
    return watch.busy


def test_a_lock_that_is_held_while_nothing_is_appended_is_stuck(watch):
    """From the limit on, until it is released."""
    watch.put_lock.acquire()
    assert [look(watch, seconds) for seconds in (0.0, 0.9, 1.0, 9.0)] == [False, False, True, True]
    watch.put_lock.release()
    assert not look(watch, 9.1)


def test_a_lock_that_is_held_by_one_put_after_the_other_is_not(watch):
    """The log grows."""
    watch.put_lock.acquire()
    for seconds in range(10):
        watch.commit_log.appended += 1
        assert not look(watch, float(seconds))


def test_a_free_lock_is_not_stuck_however_long_nothing_is_put(watch):
    """Its next holder then has the full time."""
    assert not look(watch, 0.0)
    assert not look(watch, 100.0)
    watch.put_lock.acquire()
    assert not look(watch, 100.9)
    assert look(watch, 101.0)


def test_a_put_is_refused_by_what_it_finds_itself(watch):
    """Whatever the flusher saw last: puts are accepted once the lock is free or the log grows."""
    watch.put_lock.acquire()
    assert [look(watch, seconds) for seconds in (0.0, 5.0)] == [False, True]
    assert watch.is_stuck()
    watch.commit_log.appended += 1
    assert not watch.is_stuck()
    watch.put_lock.release()
    assert watch.busy
    assert not watch.is_stuck()


def test_a_put_finds_another_one_stuck_while_the_flusher_is_stuck_too(watch):
    """Only puts check; a put after an idle period has the full time."""
    assert not look(watch, 0.0)
    watch.clock.seconds = 100.0
    watch.put_lock.acquire()
    assert not watch.is_stuck()
    watch.clock.seconds = 100.9
    assert not watch.is_stuck()
    watch.clock.seconds = 101.0
    assert watch.is_stuck()
    assert not watch.busy


def test_a_put_succeeds_at_once_when_no_other_waits_any_more(tmp_path):
    """However late the flusher checks again."""
    store = open_store(tmp_path, os_page_cache_busy_time_out_mills=1, flush_interval_commit_log=3_600_000)
    end = time.monotonic() + LIMIT_S
    with store.appender.put_lock:
        while not store.appender.page_cache.is_stuck():
            assert time.monotonic() < end
        with pytest.raises(StoreBusy, match="OS_PAGECACHE_BUSY"):
            store.put(Message("orders", b"x"))
        store.appender.page_cache.look()
    for number in range(3):
        assert store.put(Message("orders", b"x")).queue_offset == number
    store.close(views_complete=False)


def test_puts_are_refused_while_another_one_is_stuck(tmp_path):
    """They store nothing, and succeed as soon as the stuck put continues."""
    store = open_store(tmp_path, os_page_cache_busy_time_out_mills=1, flush_interval_commit_log=1)
    end = time.monotonic() + LIMIT_S
    with store.appender.put_lock:
        while not store.appender.page_cache.busy:
            assert time.monotonic() < end
        with pytest.raises(StoreBusy, match="OS_PAGECACHE_BUSY"):
            store.put(Message("orders", b"x"))
        with pytest.raises(StoreBusy):
            store.put_batch([Message("orders", b"x")])
    while store.appender.page_cache.busy:
        assert time.monotonic() < end
    assert store.put(Message("orders", b"x")).queue_offset == 0
    store.close(views_complete=False)
