"""What tests of transactions share."""

from __future__ import annotations

from pathlib import Path

import reput
import small_store
from delivering import all_records
from reput.consume.delivery.half_messages import HALF_TOPIC, OP_TOPIC
from reput.consume.delivery.transaction_messages import HalfMessage, half_message
from reput.embedded.store import Store
from reput.errors import MessageIllegal
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager
from reput.store.log.log_clock import PARTED_MS, LogClock
from reput.store.record.message import MessageExtBrokerInner
from reput_hooks import Record
from small_store import ManualClock

GROUP = "senders"


def set_clock(store: Store, clock: ManualClock) -> None:
    """Make the store use this clock from now on."""
    small_store.set_clock(store._engine.writer, clock)
    store._engine.writer.log_clock = LogClock(clock, 0)


class RunningClock(ManualClock):
    """A clock whose monotonic seconds advance with its time."""

    def monotonic(self) -> float:
        return self.ms / 1000


def set_clock_after_idle(store: Store, clock: ManualClock) -> None:
    """Make the store use this clock from now on, as if its last message were twelve hours old."""
    small_store.set_clock(store._engine.writer, clock)
    store._engine.writer.log_clock = LogClock(clock, clock.ms - 12 * 3_600_000)


def put_half(store: Store, body: bytes = b"body", **fields: object) -> HalfMessage:
    message = reput.Message("orders", body, tags="paid", keys=["k1"], queue_id=2, flag=9, **fields)
    return store.transactions.put_half(GROUP, message)


def put_clients_half(store: Store, body: bytes = b"body", **properties: str) -> HalfMessage:
    """Put a half message as a broker does for a client, with arbitrary properties."""
    message = MessageExtBrokerInner("orders", body, properties=properties, queue_id=2)
    return store.transactions.put_half(GROUP, message)


def advance(store: Store, ms: int) -> None:
    """Advance the clock, and wait until the service has noticed."""
    assert isinstance(store._engine.writer.clock, ManualClock)
    clock, log_clock = store._engine.writer.clock, store._engine.writer.log_clock
    while ms > 0:
        # The service does not trust a clock that jumps.
        clock.ms += min(ms, PARTED_MS // 2)
        ms -= PARTED_MS // 2
        log_clock.now_ms()
    with store.transactions._open.changed:
        store.transactions._open.changed.notify_all()


def of_topic(store: Store, topic: str) -> list[Record]:
    return [record for record in all_records(store) if record.topic == topic]


def progress(path: Path) -> tuple[int | None, int | None]:
    """Return the committed offsets of the half and the op topic."""
    manager = ConsumerOffsetManager(path)
    manager.load()
    return tuple(manager.query_offset("CID_RMQ_SYS_TRANS", topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))


def has_room(store: Store, size: int) -> bool:
    """Whether a half message with a property of *size* can be put."""
    message = reput.Message("orders", b"", tags="paid", keys=["k1"], properties={"large": "x" * size})
    try:
        store._engine.writer.preparer.prepare(half_message(message, GROUP, store._engine.writer.born_host))
    except MessageIllegal:
        return False
    return True
