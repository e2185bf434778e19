"""Store.run: handlers in threads and tasks, retries, order, time limits, dead letters and the end by a signal."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

import reput
from delivering import LIMIT_S, wait_until
from reput.errors import ConfigError, RequestRefused
from reput.store.config.topic_config_manager import TopicConfig
from reput.worker.handler_threads import HandlerThreads
from working import Background, as_coroutine, put


def test_a_handler_gets_every_message_and_what_it_handled_is_acknowledged(store, kind):
    """Once; another consumer of the group finds nothing left."""
    put(store, 200)
    seen = []
    with Background(store.worker(kind(lambda record: seen.append(record.body)), "orders", group="billing")) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 200)
    assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
    assert (running.result.received, running.result.failed, running.result.running) == (200, 0, 0)
    with store.consumer("billing", "orders") as consumer:
        assert consumer.receive(0) is None


def test_as_many_messages_are_handled_at_a_time_as_the_concurrency_says(store, kind):
    """Never more, and that many if there are so many."""
    put(store, 12)
    together = threading.Barrier(4)
    now, most, lock = 0, 0, threading.Lock()

    def count(change):
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    def function(record):
        count(1)
        together.wait(LIMIT_S)
        count(-1)

    arrived = 0
    all_here = asyncio.Event()

    async def coroutine(record):
        nonlocal arrived
        count(1)
        arrived += 1
        if arrived % 4 == 0:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), LIMIT_S)
        count(-1)

    handler = coroutine if kind is as_coroutine else function
    with Background(store.worker(handler, "orders", group="billing", concurrency=4)) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 12)
    assert most == 4


def test_what_fails_comes_again_while_others_go_on(store, kind):
    """With its count of retries raised, from the topic that it was sent to."""
    put(store, 3)
    seen = []

    def handle(record):
        seen.append((record.body, record.reconsume_times, record.topic))
        if record.body == b"0" and record.reconsume_times < 2:
            raise ValueError("not yet")

    with Background(store.worker(kind(handle), "orders", group="billing")) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 3)
    assert [times for body, times, _ in seen if body == b"0"] == [0, 1, 2]
    assert {body for body, times, _ in seen if times == 0} == {b"0", b"1", b"2"}
    assert (running.result.failed, running.result.sent_back) == (2, 2)


@pytest.mark.parametrize("order", ["any", "queue"])
def test_what_fails_too_often_is_a_dead_letter(store, kind, order):
    """After *max_reconsume_times* retries; the messages behind it are handled."""
    put(store, 2)
    runs = Counter()

    def handle(record):
        runs[record.body] += 1
        if record.body == b"0":
            raise ValueError("never")

    worker = store.worker(
        kind(handle), "orders", group="billing", order=order, max_reconsume_times=2, suspend_time=0.01
    )
    with Background(worker) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 1 and store.queue_ids("%DLQ%billing"))
    assert runs == {b"0": 3, b"1": 1}
    (dead,) = [record for record in store.records() if record.topic == "%DLQ%billing"]
    assert dead.body == b"0"


@pytest.mark.slow
def test_in_order_a_failed_message_holds_back_its_queue_alone(store, kind):
    """It is tried in its place until it is done; queues have no order among each other."""
    store.administration.update_topic(TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=3))
    for number in range(30):
        store.put(reput.Message("orders", b"%d" % number, queue_id=number % 3))
    seen = {0: [], 1: [], 2: []}
    others_done = threading.Event()

    def handle(record):
        number = int(record.body)
        if number == 3 and not others_done.is_set():
            if len(seen[1]) == len(seen[2]) == 10:
                others_done.set()
            raise ValueError("not yet")
        seen[number % 3].append(number)

    worker = store.worker(kind(handle), "orders", group="billing", order="queue", concurrency=2, suspend_time=0.01)
    with Background(worker) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 30)
    assert seen == {queue_id: list(range(queue_id, 30, 3)) for queue_id in range(3)}
    assert running.result.sent_back == 0


def test_in_order_no_two_messages_of_a_queue_are_handled_at_the_same_time(store, kind):
    """Whatever the concurrency."""
    put(store, 50, queue_id=0)
    busy = threading.Lock()
    seen = []

    def handle(record):
        assert busy.acquire(blocking=False)
        seen.append(record.queue_offset)
        busy.release()

    with Background(store.worker(kind(handle), "orders", group="billing", order="queue", concurrency=8)) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 50)
    assert seen == list(range(50))


def test_a_coroutine_past_its_limit_is_cancelled_and_its_message_comes_again(store):
    """The limit is for one run."""
    put(store, 1)
    cancelled = []

    async def handle(record):
        if record.reconsume_times == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(record.body)
                raise

    with Background(store.worker(handle, "orders", group="billing", time_limit=0.05)) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 1)
    assert cancelled == [b"0"]
    assert (running.result.timed_out, running.result.failed, running.result.sent_back) == (1, 1, 1)


def test_the_message_of_a_function_past_its_limit_comes_again(store):
    """Its thread goes on, and is taken for other messages when it returns."""
    put(store, 1)
    goes_on = threading.Event()

    def handle(record):
        if record.reconsume_times == 0:
            assert goes_on.wait(LIMIT_S)

    with Background(store.worker(handle, "orders", group="billing", concurrency=2, time_limit=0.05)) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 1)
        goes_on.set()
    assert (running.result.timed_out, running.result.sent_back) == (1, 1)


def test_a_worker_that_is_stopped_lets_its_handlers_end(store, kind):
    """What was received and not begun is given again."""
    put(store, 5)
    begun, may_end = threading.Event(), threading.Event()

    def handle(record):
        begun.set()
        assert may_end.wait(LIMIT_S)

    running = Background(store.worker(handle, "orders", group="billing", order="queue"))
    assert begun.wait(LIMIT_S)
    running.worker.stop()
    may_end.set()
    assert running.end().succeeded == 1
    with store.consumer("billing", "orders") as consumer:
        assert [consumer.receive(LIMIT_S).queue_offset for _ in range(4)] == [1, 2, 3, 4]


def test_a_handler_that_does_not_end_is_left_after_the_drain_time(store, kind):
    """Its message is given again."""
    put(store, 1)
    begun, may_end = threading.Event(), threading.Event()

    def function(record):
        begun.set()
        may_end.wait(LIMIT_S)

    async def coroutine(record):
        begun.set()
        await asyncio.Event().wait()

    handler = coroutine if kind is as_coroutine else function
    running = Background(store.worker(handler, "orders", group="billing", drain_time=0.05))
    assert begun.wait(LIMIT_S)
    assert running.end().succeeded == 0
    may_end.set()
    with store.consumer("billing", "orders") as consumer:
        assert consumer.receive(LIMIT_S).queue_offset == 0


def test_a_worker_outlasts_a_full_disk(store, kind, monkeypatch):
    """It sends its message back once the disk has space, and ends even if acknowledged messages cannot be written."""
    put(store, 2)
    managers = store._engine.services.managers
    refused = []

    def refuse(path, data):
        refused.append(path.name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def handle(record):
        if record.body == b"0" and not record.reconsume_times:
            monkeypatch.setattr(managers.topics.files, "replace", refuse)
            monkeypatch.setattr(managers.offsets.files, "replace", refuse)
            raise ValueError("not yet")

    with Background(store.worker(kind(handle), "orders", group="billing")) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 2)
    assert running.error is None
    assert running.result.sent_back == 1
    assert refused
    monkeypatch.undo()


def test_a_worker_that_is_stopped_before_it_runs_returns_at_once(store):
    """And it runs once only."""
    worker = store.worker(print, "orders", group="billing")
    worker.stop()
    assert worker.run().received == 0
    with pytest.raises(ConfigError, match="a worker runs once"):
        worker.run()


def test_a_worker_ends_when_one_of_its_threads_dies(store, monkeypatch):
    """Its run raises an error that names the thread, and the message is given again."""

    def die(threads):
        raise RuntimeError("planted")

    put(store, 1)
    monkeypatch.setattr(HandlerThreads, "work", die)
    with pytest.raises(reput.StoreError, match=r"thread=reput-worker-0 .*planted"):
        store.worker(print, "orders", group="billing").run()
    monkeypatch.undo()
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(timeout=LIMIT_S)
        assert record is not None
        assert record.body == b"0"


def test_a_worker_whose_store_is_closed_says_so(store):
    """Its run raises StoreClosed."""
    running = Background(store.worker(print, "orders", group="billing"))
    wait_until(lambda: "billing" in store.administration.group_names())
    store.close()
    running.thread.join(LIMIT_S)
    assert isinstance(running.error, reput.StoreClosed)


def test_tasks_run_a_worker_too(store):
    """Other tasks go on meanwhile; a cancelled worker leaves its group."""
    put(store, 3)

    async def main():
        seen = asyncio.Queue()

        async def handle(record):
            await seen.put(record.body)

        worker = store.worker(handle, "orders", group="billing")
        running = asyncio.create_task(worker.arun())
        async with asyncio.timeout(LIMIT_S):
            assert [await seen.get() for _ in range(3)] == [b"0", b"1", b"2"]
            while worker.statistics.succeeded < 3:
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            early = asyncio.create_task(store.arun(handle, "orders", group="billing"))
            await asyncio.sleep(0)
            early.cancel()
            with pytest.raises(asyncio.CancelledError):
                await early
        with store.consumer("billing", "orders") as consumer:
            assert consumer.receive(0) is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency is less than 1"),
        ({"order": "topic"}, "order is unknown: order='topic' known=any,queue"),
        ({"time_limit": "x"}, "time_limit is not a number of seconds"),
        ({"max_reconsume_times": -1}, "max_reconsume_times is less than 0"),
        ({"handler": None}, "the handler is not callable: handler=None"),
    ],
)
def test_a_wrong_option_is_named(store, options, text):
    """Before anything runs."""
    with pytest.raises(ConfigError, match=text):
        store.worker(options.pop("handler", print), "orders", group="billing", **options)


def test_what_a_consumer_refuses_a_worker_raises(store):
    """As the illegal name of a group."""
    with pytest.raises(RequestRefused, match="group has an illegal character"):
        store.run(print, "orders", group="a b")


PROGRAM = """
import asyncio, os, signal, sys, time
import reput

def before(number, frame):
    print("before", flush=True)

signal.signal(signal.SIGTERM, before)
path, kind, order = sys.argv[1:]

def say(word, record):
    # One system call: lines of two threads do not mix.
    os.write(1, f"{word} {record.queue_id} {record.queue_offset}\\n".encode())

def function(record):
    say("begun", record)
    time.sleep(0.005)
    say("done", record)

async def coroutine(record):
    say("begun", record)
    await asyncio.sleep(0.005)
    say("done", record)

handler = function if kind == "function" else coroutine
with reput.open(path) as store:
    counts = store.run(handler, "orders", group="billing", concurrency=4, order=order)
    print("drained", counts.succeeded, counts.running, flush=True)
    assert signal.getsignal(signal.SIGTERM) is before
print("closed", flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind_name", "order"),
    [
        ("function", "any"),
        ("coroutine", "queue"),
        pytest.param("function", "queue", marks=pytest.mark.long),
        pytest.param("coroutine", "any", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_gets_sigterm_loses_nothing_and_does_nothing_twice(tmp_path, kind_name, order):
    """It ends what it has begun and acknowledges that; the next run handles all the rest, and each message once."""
    path = tmp_path / "store"
    with reput.open(path, mode="inline", dispatchers=["consume_queue"]) as store:
        store.administration.update_topic(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
        put(store, 200)
    done = []
    for turn in range(3):
        program = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, path, kind_name, order], stdout=subprocess.PIPE, text=True
        )
        lines = []
        is_told = False
        for line in program.stdout:
            lines.append(line.split())
            is_last = len(done) + sum(line[0] == "done" for line in lines) == 200
            if not is_told and (is_last or (turn < 2 and len(lines) == 60)):
                is_told = True
                os.kill(program.pid, signal.SIGTERM)
        assert program.wait(LIMIT_S) == 0
        program.stdout.close()
        handled = [tuple(line[1:]) for line in lines if line[0] == "done"]
        begun = [tuple(line[1:]) for line in lines if line[0] == "begun"]
        assert sorted(begun) == sorted(handled)
        assert lines[-2:] == [["drained", str(len(handled)), "0"], ["closed"]]
        done += handled
    assert len(done) == len(set(done)) == 200
