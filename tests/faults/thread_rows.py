"""The row of the fault matrix in which an error ends a thread of the store: its waiters get an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import reput
from delivering import LIMIT_S, SMALL, all_records, wait_until
from faults.rows import row
from reput.consume.delivery.delay_offsets import DelayOffsets
from reput.consume.delivery.open_transactions import OpenTransactions
from reput.consume.delivery.schedule_service import ScheduleService
from reput.consume.delivery.transaction_messages import TransactionState
from reput.consume.pull.arrival_service import ArrivalService
from reput.consume.pull.pull_service import PullRequest
from reput.consume.registry.subscription import subscribe
from reput.consume.services import ConsumeServices
from reput.embedded.store import Store
from reput.errors import DispatcherError, ReputError, StoreError, StoreReadOnly
from reput.process.frames.release_service import ReleaseService
from reput.process.owner.inline_group import InlineGroup
from reput.process.owner.process_group import ProcessGroup
from reput.store.log.commit_log import CommitLog
from reput.store.log.commit_service import CommitService
from reput.store.log.flush_service import FlushService
from reput.store.retention.retention import Retention
from reput_hooks import Record

__all__ = ["DEATHS"]

POOL = {"transient_store_pool_enable": True}
SYNC = {"flush_disk_type": "SYNC_FLUSH"}
FAST = {"flush_consumer_offset_interval": 10, "flush_delay_offset_interval": 10}


class Victim:
    """The thread that will die in one store.

    Attributes:
        acknowledged: bodies that must exist at the end.
    """

    def __init__(self, store: Store, thread: str) -> None:
        self.store = store
        self.thread = thread
        self.acknowledged: list[bytes] = []

    def put(self, topic: str = "orders", **fields: Any) -> None:
        """Put a message that must exist at the end."""
        body = b"%d of %s" % (len(self.acknowledged), topic.encode())
        self.store.put(reput.Message(topic, body, **fields))
        self.acknowledged.append(body)

    def dies(self, owner: type, method: str, trigger: Callable[[], object]) -> None:
        """Make *method* raise, which only the thread calls, and return when it is dead."""
        with patch.object(owner, method, side_effect=RuntimeError("planted")):
            trigger()
            wait_until(lambda: self.thread in self.store._engine.threads.deaths)

    @contextmanager
    def told(self, kind: type[ReputError] = StoreError) -> Iterator[None]:
        """Expect an error that names the thread and the cause of its death."""
        with pytest.raises(kind, match=f"thread={self.thread} .*planted"):
            yield


def unsure(half: Record) -> TransactionState:
    """A sender that answers "unknown"."""
    return TransactionState.UNKNOWN


Act = Callable[[Victim], None]


class Death(msgspec.Struct, frozen=True):
    """How one thread dies, in a store that is opened with *settings*."""

    thread: str
    act: Act
    settings: dict[str, Any]


DEATHS: list[Death] = []


def death(thread: str, **settings: Any) -> Callable[[Act], Act]:
    """Register the death of a thread."""

    def enter(act: Act) -> Act:
        DEATHS.append(Death(thread, act, settings))
        return act

    return enter


@death("reput-flush")
@death("reput-flush", **POOL)
def flusher(victim: Victim) -> None:
    """Earlier messages exist; further puts are refused."""
    victim.dies(FlushService, "do_round", victim.put)
    with victim.told():
        victim.store.flush()
    with victim.told(StoreReadOnly):
        victim.put()


@death("reput-flush", **SYNC)
def flusher_that_puts_wait_for(victim: Victim) -> None:
    """Waiting threads and tasks get errors, and none of their messages counts as stored."""
    refused: list[Future[None]] = []

    def put_twice() -> None:
        refused.append(pool.submit(victim.put))
        refused.append(pool.submit(lambda: asyncio.run(victim.store.aput(reput.Message("orders", b"")))))

    with ThreadPoolExecutor(2) as pool:
        victim.dies(FlushService, "do_round", put_twice)
    for future in refused:
        with victim.told(StoreReadOnly):
            future.result()


@death("reput-commit", **POOL)
def committer(victim: Victim) -> None:
    """Messages that were only in memory reach the files all the same."""
    victim.dies(CommitService, "do_round", victim.put)
    with victim.told(StoreReadOnly):
        victim.put()


@death("reput-segments")
def helper(victim: Victim) -> None:
    """Puts do its work themselves, also in later segments."""
    victim.dies(CommitLog, "prepare", victim.store._engine.writer.commit_log.helper.wakeup)
    for _ in range(40):
        victim.put(properties={"large": "x" * 4000})
    assert len(list((victim.store.directory / "commitlog").iterdir())) > 2


@death("reput-retention")
def retention(victim: Victim) -> None:
    """Requests for space are refused."""
    victim.dies(Retention, "do_work", victim.store._engine.writer.retention.wakeup)
    with victim.told():
        victim.store.clean()


@contextmanager
def waiting_consumers(victim: Victim) -> Iterator[None]:
    """A thread and a task wait for a message meanwhile; both get an error, and so do later calls."""
    consumer = victim.store.consumer("billing", "never")
    group = victim.store._engine.services.consumer_groups["billing"]

    def receive_in_a_loop() -> None:
        asyncio.run(consumer.areceive(LIMIT_S))

    with ThreadPoolExecutor(2) as pool, consumer:
        waits = [pool.submit(consumer.receive), pool.submit(receive_in_a_loop)]
        wait_until(lambda: group.thread_count and group.members[0].tasks)
        yield
        for wait in waits:
            with victim.told():
                wait.result(LIMIT_S)
        with victim.told():
            consumer.receive()


@death("reput-hold")
def holder(victim: Victim) -> None:
    """Waiting consumers and pulls get an error; existing messages are still delivered."""
    victim.put()
    services = victim.store._engine.services
    answers: list[object] = []
    with victim.store.consumer("audit", "orders") as consumer, waiting_consumers(victim):
        victim.store.wait_for("consume_queue", victim.store.appended, LIMIT_S)
        request = PullRequest(
            group="audit", topic="orders", queue_id=0, queue_offset=2, subscription=subscribe("orders")
        )
        assert services.hold_service.pull(request, LIMIT_S, answers.append) is None
        victim.dies(ArrivalService, "take_arrivals", lambda: services.arrival_service.arrivals.put(None))
        (answer,) = answers
        assert isinstance(answer, StoreError)
        assert "thread=reput-hold" in str(answer)
        with victim.told():
            services.hold_service.pull(request, LIMIT_S, answers.append)
        record = consumer.receive()
        assert record is not None
        consumer.acknowledge(record)


@death("reput-offsets", **FAST)
def keeper(victim: Victim) -> None:
    """Consumers continue; `commit` and the close store their offsets."""
    victim.put()
    with victim.store.consumer("billing", "orders") as consumer:
        victim.dies(ConsumeServices, "look_for_queues", lambda: None)
        consumer.acknowledge(consumer.receive(LIMIT_S))
        consumer.commit()


@death("reput-delay-offsets", message_delay_level="0s", **FAST)
def keeper_of_delays(victim: Victim) -> None:
    """Deliveries continue, and the close stores them."""
    victim.dies(DelayOffsets, "keep", lambda: victim.put(delay_level=1))
    victim.put(delay_level=1)
    schedule = victim.store._engine.schedule
    assert schedule is not None
    wait_until(lambda: not schedule.has_waiting)


@death("reput-schedule", message_delay_level="0s")
def deliverer(victim: Victim) -> None:
    """Delayed messages wait for the next opening, and are delivered then."""
    victim.dies(ScheduleService, "deliver_due", lambda: victim.put(delay_level=1))
    victim.put(delay_level=1)
    assert victim.store._engine.waiting_delays() is not None


@death("reput-transactions")
def asker(victim: Victim) -> None:
    """Senders can commit; transactions without an answer wait for the next opening."""
    transactions = victim.store.transactions
    half = transactions.put_half("shop", reput.Message("orders", b"half"))
    victim.dies(OpenTransactions, "take_due", lambda: transactions.on_check("shop", unsure))
    transactions.commit(half)
    victim.acknowledged.append(b"half")


@death("reput-dispatchers", mode="inline")
def inline_dispatchers(victim: Victim) -> None:
    """Waiters for a view or a message get an error."""
    with waiting_consumers(victim):
        victim.dies(InlineGroup, "work", victim.put)
    with victim.told(DispatcherError):
        victim.store.wait_for("consume_queue", victim.store.appended)


@death("reput-group", mode="processes")
def group_watcher(victim: Victim) -> None:
    """Waiters for a view, a message or an answer get an error; the dispatchers end."""
    store = victim.store

    def refused() -> None:
        with victim.told(DispatcherError):
            store.rebuild("consume_queue")

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(store.wait_for, "consume_queue", 1 << 40)
        with waiting_consumers(victim):
            victim.dies(ProcessGroup, "take", refused)
        with victim.told(DispatcherError):
            waits.result(LIMIT_S)
    refused()
    victim.put()


@death("reput-release", mode="processes")
def releaser(victim: Victim) -> None:
    """Records are no longer held: waiting readers get them."""
    service = victim.store._engine.views.ring and victim.store._engine.views.ring.release_service
    assert service is not None
    victim.dies(ReleaseService, "look", service.wakeup)
    for _ in range(50):
        victim.put()
    victim.store.wait_for("consume_queue", victim.store.appended, LIMIT_S)


@row(
    "An error ends a thread",
    "each thread that an open store has",
    "whatever waits for it is told which one and why, status names it, close returns, nothing is lost",
    pytest.mark.processes,
)
def threads_die(root: Path) -> int:
    for number, case in enumerate(DEATHS):
        directory = root / str(number)
        victim = die_in(directory, case)
        with reput.open(directory, mode="inline", dispatchers=["consume_queue"]) as store:
            schedule = store._engine.schedule
            assert schedule is not None
            wait_until(lambda schedule=schedule: not schedule.has_waiting)
            found = [record.body for record in all_records(store) if record.topic == "orders"]
            assert set(victim.acknowledged) <= set(found)
            assert len(found) == len(set(found))
    return len(DEATHS)


def die_in(directory: Path, case: Death) -> Victim:
    """Let the death happen in a separate store, which is then closed."""
    settings = {"mode": "inline", "dispatchers": ["consume_queue"], **SMALL, **case.settings}
    with reput.open(directory, **settings) as store:
        victim = Victim(store, case.thread)
        victim.put()
        case.act(victim)
        reason = store.status().writer.reason
        assert reason is not None
        assert f"thread={case.thread} " in reason
        assert "planted" in reason
        assert list(store._engine.threads.deaths) == [case.thread]
    return victim
