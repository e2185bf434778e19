"""Handlers that raise, hang, block, fork, and return what no handler should: the worker loses no message."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from unittest.mock import Mock

import pytest

import reput
from delivering import LIMIT_S, wait_until
from reput.consume.groups.consumer_group import ConsumerGroup
from reput.errors import ConfigError
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.service.threads import Threads
from reput.worker.worker import QUEUE_HELD_MAX
from working import Background, put


def two_queues(store):
    """Describe the topic with two queues."""
    store.administration.create_topic("orders", 2)


def body_given_again(store):
    """Return the body of the next message that the group gets."""
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(LIMIT_S)
        return None if record is None else record.body


# What a handler is, and returns.


async def handle(record):
    raise AssertionError("nothing runs this coroutine")


async def handle_and_yield(record):
    yield record


def hand_on(record):
    yield record


async def return_unawaited(record):
    return handle(record)


@pytest.mark.parametrize(
    "handler",
    [
        lambda record: handle(record),
        lambda record: hand_on(record),
        lambda record: handle_and_yield(record),
        return_unawaited,
    ],
    ids=["coroutine", "generator", "asynchronous generator", "coroutine of a coroutine function"],
)
@pytest.mark.parametrize("order", ["any", "queue"])
def test_a_handler_that_returns_work_that_nothing_runs_ends_the_worker(store, handler, order):
    """The message was not handled: it is not acknowledged, and the error says what to give instead."""
    put(store, 1)
    with pytest.raises(ConfigError, match="the handler returned work that has not begun") as caught:
        store.run(handler, "orders", group="billing", order=order)
    assert "Give the coroutine function itself" in caught.value.advice
    assert body_given_again(store) == b"0"


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (hand_on, "is a generator function"),
        (handle_and_yield, "is a generator function"),
        (functools.partial(hand_on), "is a generator function"),
        (lambda: None, "does not take one message"),
        (lambda first, second: None, "does not take one message"),
        ("print", "is not callable"),
    ],
)
def test_what_can_handle_no_message_is_refused(store, handler, text):
    """Before the worker runs, by its signature."""
    with pytest.raises(ConfigError, match=text):
        store.worker(handler, "orders", group="billing")


class Asynchronous:
    """An object that handles messages in a coroutine."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, record):
        self.bodies.append(record.body)

    async def method(self, record, of=None):
        self.bodies.append(record.body)


@pytest.mark.parametrize(
    "make",
    [
        lambda handler: handler,
        lambda handler: handler.method,
        lambda handler: functools.partial(handler),
        lambda handler: functools.partial(functools.partial(handler.method), of=1),
    ],
    ids=["object", "method", "partial of an object", "partial of a partial"],
)
def test_a_coroutine_function_is_known_in_each_of_its_forms(store, make):
    """It runs in a task, whatever it is wrapped in."""
    put(store, 1)
    handler = Asynchronous()
    with Background(store.worker(make(handler), "orders", group="billing")) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 1)
    assert handler.bodies == [b"0"]


def test_a_mock_is_a_handler(store):
    """Tests of programs hand over such."""
    put(store, 1)
    handler = Mock()
    with Background(store.worker(handler, "orders", group="billing")) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 1)
    assert handler.call_args.args[0].body == b"0"


# What a handler raises.


class Speechless(Exception):
    """An exception that fails to tell what it is."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), StopIteration(), StopAsyncIteration(), GeneratorExit(), asyncio.CancelledError(), Speechless()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("order", ["any", "queue"])
def test_whatever_a_handler_raises_fails_that_run_alone(store, kind, error, order):
    """The worker goes on with the other messages, and tries the message again."""
    put(store, 2, queue_id=0)
    runs = Counter()

    def function(record):
        runs[record.body] += 1
        if record.body == b"0" and runs[b"0"] == 1:
            raise error

    worker = store.worker(kind(function), "orders", group="billing", order=order, suspend_time=0.01)
    with Background(worker) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 2)
    assert running.error is None
    assert runs == {b"0": 2, b"1": 1}


# Order.


@pytest.mark.slow
def test_in_order_a_long_queue_that_waits_does_not_starve_the_others(store, kind):
    """However many messages lie behind the one that fails."""
    two_queues(store)
    count = 40 * QUEUE_HELD_MAX
    for number in range(count):
        store.put(reput.Message("orders", b"%d" % number, queue_id=number % 2))

    def function(record):
        if record.queue_id == 0:
            raise ValueError("never")

    worker = store.worker(kind(function), "orders", group="billing", order="queue", concurrency=2, suspend_time=0.05)
    with Background(worker) as running:
        wait_until(lambda: running.worker.statistics.succeeded == count // 2)
    assert running.result.received <= count // 2 + QUEUE_HELD_MAX


def test_in_order_a_coroutine_that_catches_its_cancellation_stays_alone(store):
    """Past its limit it has failed; no other run for its queue begins before it has ended."""
    put(store, 2, queue_id=0)
    busy, most, seen = 0, 0, []

    async def handler(record):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if not seen:
            seen.append(record.body)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                for _ in range(100):
                    await asyncio.sleep(0)
        else:
            seen.append(record.body)
        busy -= 1

    worker = store.worker(handler, "orders", group="billing", order="queue", time_limit=0.05, suspend_time=0.0)
    with Background(worker) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 2)
    assert seen == [b"0", b"0", b"1"]
    assert most == 1


# The end.


def test_a_cancelled_coroutine_still_finds_the_store_open(store):
    """What it does at its cancellation is done before `run` returns, and an error then is no stray report."""
    put(store, 1)
    begun = threading.Event()
    results = []

    async def handler(record):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            results.append(await store.aput(reput.Message("cleanups", b"x")))

    running = Background(store.worker(handler, "orders", group="billing", drain_time=0.0))
    assert begun.wait(LIMIT_S)
    running.end()
    assert len(results) == 1
    assert body_given_again(store) == b"0"


@pytest.mark.parametrize("order", ["any", "queue"])
def test_a_handler_may_stop_its_worker(store, kind, order):
    """Its own message is acknowledged, the next one is given again."""
    put(store, 2, queue_id=0)
    worker = store.worker(
        kind(lambda record: worker.stop() if record.body == b"0" else None), "orders", group="billing", order=order
    )
    assert worker.run().succeeded >= 1
    assert body_given_again(store) in (b"1", None)


def close_in_a_function(store):
    def handler(record):
        store.close()

    return handler


def close_in_a_coroutine(store):
    async def handler(record):
        store.close()

    return handler


def await_close(store):
    async def handler(record):
        await store.aclose()

    return handler


@pytest.mark.slow
@pytest.mark.parametrize("make", [close_in_a_function, close_in_a_coroutine, await_close])
@pytest.mark.parametrize("order", ["any", "queue"])
def test_a_handler_that_closes_the_store_ends_the_worker(store, make, order):
    """Its run raises StoreClosed, and the store opens again with the message not done."""
    put(store, 1)
    with pytest.raises(reput.StoreClosed):
        store.run(make(store), "orders", group="billing", order=order)
    with reput.open(store.directory, mode="inline", dispatchers=["consume_queue"]) as again:
        assert body_given_again(again) == b"0"


def test_run_refuses_to_block_an_event_loop(store):
    """A task awaits `arun`."""

    async def main():
        with pytest.raises(ConfigError, match="would block the event loop"):
            store.run(print, "orders", group="billing")

    asyncio.run(main())


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGKILL), (signal.SIGTERM, 99999), ("TERM",)])
def test_a_signal_that_cannot_be_handled_is_an_error(store, signals):
    """And the handlers that were there before are there again."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError, match="a signal cannot be handled"):
        store.worker(print, "orders", group="billing").run(signals=signals)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"time_limit": 0}, "no handler ends within the limit: time_limit=0"),
        ({"time_limit": -1.0}, "no handler ends within the limit: time_limit=-1.0"),
        ({"suspend_time": -1}, "suspend_time is no time to wait: suspend_time=-1"),
        ({"suspend_time": None}, "suspend_time is no time to wait: suspend_time=None"),
        ({"drain_time": -0.5}, "drain_time is less than 0: drain_time=-0.5"),
        ({"concurrency": 1.5}, "concurrency is not a whole number"),
    ],
)
def test_a_time_that_no_handler_can_keep_is_refused(store, options, text):
    """A limit of 0 would make a dead letter of every message."""
    with pytest.raises(ConfigError, match=text):
        store.worker(print, "orders", group="billing", **options)


# Sending back.


def test_a_message_that_may_not_be_sent_back_is_not_forgotten(store, kind, monkeypatch):
    """It stays in flight and is sent back as soon as that is allowed; the worker does not run dry meanwhile."""
    monkeypatch.setattr("reput.worker.worker.TROUBLE_PAUSE_S", 0.01)
    retry_topic = TopicConfig(topic_name="%RETRY%billing", read_queue_nums=1, write_queue_nums=1, perm=4)
    store.administration.update_topic(retry_topic)
    put(store, 5)
    failed = Counter()

    def function(record):
        if not failed[record.body]:
            failed[record.body] += 1
            raise ValueError("once")

    with Background(store.worker(kind(function), "orders", group="billing")) as running:
        wait_until(lambda: running.worker.statistics.failed == 1)
        store.administration.update_topic(
            TopicConfig(topic_name="%RETRY%billing", read_queue_nums=1, write_queue_nums=1, perm=6)
        )
        wait_until(lambda: running.worker.statistics.succeeded == 5)
    assert running.result.sent_back == 5


# Many.


def test_more_messages_at_a_time_than_the_system_has_threads_end_the_worker(store, monkeypatch):
    """With the error of that thread; what was handled is acknowledged, the rest is given again."""
    put(store, 50, queue_id=0)
    start, release = Threads.start, threading.Event()

    def start_few(threads, name, target, end_waits=None):
        if name == "reput-worker-3":
            release.set()
            raise reput.StoreError("a thread of the store cannot be started: thread=reput-worker-3")
        return start(threads, name, target, end_waits)

    monkeypatch.setattr(Threads, "start", start_few)
    handled = []

    def function(record):
        assert release.wait(LIMIT_S)
        handled.append(record.queue_offset)

    with pytest.raises(reput.StoreError, match="cannot be started: thread=reput-worker-3"):
        store.run(function, "orders", group="billing", concurrency=10**9)
    with store.consumer("billing", "orders") as consumer:
        rest = []
        while (record := consumer.receive(0)) is not None:
            rest.append(record.queue_offset)
    assert sorted(handled + rest) == list(range(50))


@pytest.mark.slow
def test_the_queues_of_many_new_topics_are_shared_out_together(store, monkeypatch):
    """A worker of a thousand topics does not share out all queues anew for each of them."""
    shared_out = []
    assign = ConsumerGroup.assign

    def counted(group, topics=None):
        shared_out.append(topics)
        assign(group, topics)

    names = [f"orders-{number}" for number in range(300)]
    seen = []
    topics = ["orders", *names]
    put(store, 1)
    with Background(store.worker(lambda record: seen.append(record.topic), topics, group="billing")) as running:
        wait_until(lambda: running.worker.statistics.succeeded == 1)
        monkeypatch.setattr(ConsumerGroup, "assign", counted)
        store.put_batch([reput.Message(name, b"x") for name in names])
        wait_until(lambda: running.worker.statistics.succeeded == 301)
        # A topic may come twice: once by its message, once when the group looks for queues.
        assert None not in shared_out
        assert sum(len(topics) for topics in shared_out) < 600
    assert sorted(seen) == sorted(topics)


# Processes.

FORKS = """
import os, sys
import reput

path, kind = sys.argv[1:]

def function(record):
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

async def coroutine(record):
    function(record)

with reput.open(path, mode="inline", dispatchers=["consume_queue"]) as store:
    store.put(reput.Message("orders", b"0"))
    worker = None
    def handler(record):
        function(record)
        worker.stop()
    async def ahandler(record):
        await coroutine(record)
        worker.stop()
    worker = store.worker(handler if kind == "function" else ahandler, "orders", group="billing")
    print(worker.run().succeeded, flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind_name", ["function", "coroutine"])
def test_a_child_that_a_handler_forks_does_not_go_on_as_the_worker(tmp_path, kind_name):
    """A child that comes back from the handler ends; the worker goes on."""
    program = subprocess.run(
        [sys.executable, "-c", FORKS, tmp_path / "store", kind_name],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (program.returncode, program.stdout) == (0, "1\n"), program.stderr
    assert "a handler has forked" in program.stderr


HANGS = """
import asyncio, signal, sys, threading, time
import reput

path, kind = sys.argv[1:]

def function(record):
    print("begun", flush=True)
    tell_signal()
    threading.Event().wait()

async def coroutine(record):
    print("begun", flush=True)
    await asyncio.to_thread(tell_signal)
    await asyncio.Event().wait()

async def blocking(record):
    # The event loop stands still meanwhile.
    print("begun", flush=True)
    time.sleep(1)
    print("ended", flush=True)

def tell_signal():
    while signal.getsignal(signal.SIGINT).__name__ != "on_interrupt":
        time.sleep(0.01)
    print("told", flush=True)

try:
    with reput.open(path, mode="inline", dispatchers=["consume_queue"]) as store:
        store.put(reput.Message("orders", b"0"))
        counts = store.run(globals()[kind], "orders", group="billing")
        print("drained", counts.succeeded, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind_name", ["function", "coroutine"])
def test_a_second_ctrl_c_ends_a_worker_whose_handler_hangs(tmp_path, kind_name):
    """The first one waits for the handler; the store is closed in the end."""
    path = tmp_path / "store"
    program = subprocess.Popen([sys.executable, "-c", HANGS, path, kind_name], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "told\n"
    program.send_signal(signal.SIGINT)
    assert program.stdout.read() == "interrupted\n"
    assert program.wait(LIMIT_S) == 0
    program.stdout.close()
    with reput.open(path, mode="inline", dispatchers=["consume_queue"]) as store:
        assert body_given_again(store) == b"0"


@pytest.mark.processes
def test_a_sigterm_while_a_coroutine_blocks_the_loop_is_not_lost(tmp_path):
    """The worker ends when the loop runs again, and has acknowledged the message."""
    path = tmp_path / "store"
    program = subprocess.Popen([sys.executable, "-c", HANGS, path, "blocking"], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "begun\n"
    os.kill(program.pid, signal.SIGTERM)
    assert program.stdout.read() == "ended\ndrained 1\n"
    assert program.wait(LIMIT_S) == 0
    program.stdout.close()


ELSEWHERE = """
import signal, sys, threading
import reput

def handler(record):
    # The system may hand a signal to any thread of the program.
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    while not worker.is_stopped:
        stopped.wait(0.01)

stopped = threading.Event()
with reput.open(sys.argv[1], mode="inline", dispatchers=["consume_queue"]) as store:
    store.put(reput.Message("orders", b"0"))
    worker = store.worker(handler, "orders", group="billing")
    print("drained", worker.run().succeeded, flush=True)
"""


@pytest.mark.processes
def test_a_signal_that_another_thread_gets_ends_an_idle_worker(tmp_path):
    """The event loop has nothing else to wake it."""
    program = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (program.returncode, program.stdout) == (0, "drained 1\n"), program.stderr
