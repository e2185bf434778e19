"""Closed, closing and forked stores."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading

import pytest

from embedded.tiny_stores import TIMEOUT, catch_up, message, open_tiny
from reput.errors import (
    ConfigError,
    DamagedStore,
    StoreClosed,
    StoreFull,
    StoreLocked,
)


@pytest.fixture(params=["inline", pytest.param("processes", marks=[pytest.mark.processes, pytest.mark.newest_python])])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_second_writer_is_told_who_holds_the_store(tmp_path):
    """The error names the process."""
    with open_tiny(tmp_path / "store", mode="inline"):
        program = f"import reput; reput.open({str(tmp_path / 'store')!r}, mode='inline')"
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert f"pid={os.getpid()}" in second.stderr
    with open_tiny(tmp_path / "store", mode="inline"), pytest.raises(StoreLocked, match=f"pid={os.getpid()}"):
        open_tiny(tmp_path / "store", mode="inline")


def test_a_closed_store_takes_nothing(tmp_path):
    """Closing twice does no harm."""
    store = open_tiny(tmp_path / "store", mode="inline")
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.put(message(0))


def test_a_close_that_the_disk_refuses_gives_everything_back(tmp_path, mode, monkeypatch):
    """Consumer offsets cannot be written: the close raises, no process or thread is left, and the store opens again."""
    threads = set(threading.enumerate())
    store = open_tiny(tmp_path / "store", mode=mode)
    store.put(message(0))
    consumer = store.consumer("billing", "orders")
    consumer.acknowledge(consumer.receive(TIMEOUT))

    def refuse() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "consumerOffset.json")

    monkeypatch.setattr(store._engine.services.managers.offsets, "persist", refuse)
    supervisor = getattr(store._engine.group, "process", None)
    with pytest.raises(StoreFull, match=r"could not be closed cleanly.*path=consumerOffset.json"):
        store.close()
    assert supervisor is None or supervisor.poll() is not None
    assert set(threading.enumerate()) <= threads
    with open_tiny(tmp_path / "store", mode=mode) as again:
        assert again.put(message(1)).queue_offset == 1
        catch_up(again)


def test_a_consumer_that_cannot_leave_keeps_nothing_else_from_closing(tmp_path, monkeypatch, caplog):
    """The store and its other consumers close cleanly, and the log names the failed one."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        store.put(message(0))
        stuck, other = store.consumer("billing", "orders"), store.consumer("shipping", "orders")

        def refuse(reference: object) -> None:
            raise DamagedStore("the queue is damaged: topic=orders")

        monkeypatch.setattr(store._engine.services.consumer_groups[stuck.group], "leave", refuse)
    assert "could not leave its group cleanly: group=billing error=the queue is damaged: topic=orders" in caplog.text
    assert other.closed
    assert not (tmp_path / "store" / "abort").exists()


def test_a_close_takes_no_longer_than_it_is_given(tmp_path, monkeypatch):
    """The limit is its own argument, or the setting; other types are refused."""
    given = []
    for settings, timeout in (({}, 2.5), ({"dispatcher_drain_time_max": 7_000}, None)):
        store = open_tiny(tmp_path / "store", mode="inline", **settings)
        drain_and_stop = store._engine.group.drain_and_stop
        monkeypatch.setattr(store._engine.group, "drain_and_stop", given.append)
        with pytest.raises(ConfigError, match="timeout is not a number"):
            store.close(timeout="soon")
        store.close(timeout=timeout)
        drain_and_stop()
    assert given == [2.5, 7.0]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("flush", ()), ("clean", ()), ("topics", ()), ("pids", ()), ("next_queue_offset", ("orders",))],
)
def test_what_a_closed_store_is_asked_for_is_refused_at_once(tmp_path, method, arguments):
    """A forked child of the writer would wait for a flusher that it does not have."""
    store = open_tiny(tmp_path / "store", mode="inline", dispatchers=[])
    store.put(message(0))
    store.close()
    with pytest.raises(StoreClosed):
        getattr(store, method)(*arguments)


# The child only tries to put, and ends.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_cannot_write(tmp_path):
    """The child's copy is closed, and every method raises the same error; the parent's store stays open."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        store.put(message(0))
        pid = os.fork()
        if pid == 0:
            told = set()
            for use in (lambda: store.put(message(1)), store.flush, lambda: store.consumer("g", "orders")):
                try:
                    use()
                except StoreClosed as error:
                    told.add(f"{error}")
            holder = f"its parent holds it: parent_pid={os.getppid()} "
            os._exit(7 if len(told) == 1 and holder in told.pop() else 0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert store.put(message(1)).queue_offset == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_the_disk(tmp_path):
    """The child never forces the log, so its task would wait for ever."""
    with open_tiny(tmp_path / "store", mode="inline") as store:
        result = store.put(message(0))
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(asyncio.wait_for(store.await_durable(result.next_commit_log_offset + 1), TIMEOUT))
            except StoreClosed:
                os._exit(7)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7


def test_opening_waits_for_a_store_that_another_process_is_closing(tmp_path):
    """Like in a deployment, whose new process starts before the old one has ended."""
    first = open_tiny(tmp_path / "store", mode="inline")
    first.put(message(0))
    opened = []
    waiter = threading.Thread(
        target=lambda: opened.append(open_tiny(tmp_path / "store", mode="inline", lock_timeout=None))
    )
    waiter.start()
    first.close()
    waiter.join(TIMEOUT)
    with opened[0] as second:
        assert second.put(message(1)).queue_offset == 1


def test_a_store_that_stays_open_is_waited_for_no_longer_than_asked(tmp_path):
    """The error has the waiting time, and the process that holds the store."""
    with open_tiny(tmp_path / "store", mode="inline"), pytest.raises(StoreLocked) as raised:
        open_tiny(tmp_path / "store", mode="inline", lock_timeout=0.01)
    assert f"already has the store open: pid={os.getpid()} " in str(raised.value)
    assert "waited_s=0.01" in str(raised.value)
    with pytest.raises(ConfigError, match="lock_timeout='now'"):
        open_tiny(tmp_path / "store", mode="inline", lock_timeout="now")
