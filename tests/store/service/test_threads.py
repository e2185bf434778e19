"""Threads of a store that end with an unexpected error."""

from __future__ import annotations

import threading

import pytest

from reput.errors import StoreError
from reput.store.service.threads import Threads


@pytest.mark.parametrize("error", [ValueError("planted"), SystemExit(3), MemoryError()])
def test_a_thread_that_dies_is_named_with_its_error(error, caplog):
    """Waiters are notified, and then the store's observer."""
    threads = Threads()
    told = []
    threads.on_death = lambda: told.append(dict(threads.deaths))

    def work():
        raise error

    threads.start("reput-trial", work, told.append).join()
    reason = f"a thread of the store has died: thread=reput-trial error={error!r}"
    assert told == [reason, {"reput-trial": reason}]
    assert reason in caplog.text
    assert "in work" in caplog.text


def test_a_thread_that_ends_in_good_order_is_not_mentioned(caplog):
    """Nothing is logged."""
    threads = Threads()
    threads.start("reput-trial", lambda: None).join()
    assert threads.deaths == {}
    assert caplog.text == ""


def test_a_system_that_starts_no_thread_is_named_with_what_to_do(monkeypatch):
    """For example at the limit of threads, or at the end of the program."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StoreError, match="thread=reput-trial: error=the system cannot start a thread") as refused:
        Threads().start("reput-trial", lambda: None)
    assert "ulimit -u" in refused.value.advice
