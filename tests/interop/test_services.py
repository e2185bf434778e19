"""Delays and transactions alternately under reput and RocketMQ: each delivers and settles the other's, once.

No test waits for a delay: a level of two hours for one program is a second for the next, and a message that is due
later than its level allows is due at once for both.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

import reput
from delivering import wait_until
from interop.file_sizes import FILE_SIZES
from interop.put_questions import put_question
from interop.rocketmq_store import record_of
from reput.consume.delivery.half_messages import OP_TOPIC, done_offsets
from reput.consume.delivery.transaction_messages import TransactionState
from reput.settings import Settings
from reput.store.record.message import Message

pytestmark = [pytest.mark.java, pytest.mark.processes, pytest.mark.slow]

SETTINGS = Settings(**FILE_SIZES)
GROUP = "shop"
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK


class Broker:
    """RocketMQ with the services that deliver and settle; *levels* are the delays of its levels."""

    def __init__(self, rocketmq, directory, levels: str) -> None:
        self.store = rocketmq(directory, SETTINGS, services=True, messageDelayLevel=levels)

    def put(self, body: str, level: int) -> None:
        """Put a delayed message."""
        self.ask_put(Message("orders", body.encode(), tags="t", properties={"DELAY": str(level)}))

    def put_half(self, body: str) -> dict[str, object]:
        """Begin a transaction, and return the position of its half message."""
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"7F000001{body.encode().hex()}"}
        return self.ask_put(Message("orders", body.encode(), properties=properties), do="half")

    def ask_put(self, message: Message, **fields: object) -> dict[str, object]:
        answer = self.store.ask(**put_question(message, SETTINGS, time.time_ns() // 1_000_000 - 1, **fields))
        assert answer["status"] == "PUT_OK"
        return answer

    def end(self, queue_offset: int, commit_log_offset: int, state: TransactionState, *, asked: bool = False) -> None:
        """Settle a transaction."""
        answer = self.store.ask(
            "end",
            producerGroup=GROUP,
            tranStateTableOffset=queue_offset,
            commitLogOffset=commit_log_offset,
            commitOrRollback=int(state),
            fromTransactionCheck=asked,
            msgId="",
            transactionId="",
        )
        assert answer["code"] == 0, answer

    def settled(self) -> set[int]:
        """Return the queue offsets of half messages that have op records; version 5 writes them with a delay."""
        ops = self.store.read_queue(OP_TOPIC, 0) if (OP_TOPIC, 0) in self.store.queues() else []
        return {offset for op in ops for offset in done_offsets(op)}

    def bodies(self) -> Counter[str]:
        """Return the bodies that consumers get."""
        return Counter(record.body.decode() for record in self.store.read_queue("orders", 0))


def bodies_of(store: reput.Store) -> Counter[str]:
    """Return the bodies that consumers get."""
    store.wait_for("consume_queue", store.appended, 60)
    return Counter(record.body.decode() for record in store.get("orders", count_max=100))


def test_what_one_left_waiting_the_other_delivers_and_settles_once(tmp_path, rocketmq):
    """RocketMQ begins and is shut down, reput closes, RocketMQ continues and is killed, and reput has everything."""
    directory = tmp_path / "store"
    directory.mkdir()
    expected = Counter()

    broker = Broker(rocketmq, directory, "2h 2h 2h")
    for body, level in (("theirs, due to reput", 1), ("theirs, too", 1), ("theirs, never due", 2)):
        broker.put(body, level)
    broker.put_half("theirs, open")
    ended = {state: broker.put_half(f"theirs, {state.name}") for state in (COMMIT, ROLLBACK)}
    for state, answer in ended.items():
        broker.end(answer["queueOffset"], answer["physicalOffset"], state)
    expected["theirs, COMMIT"] += 1
    wait_until(lambda: broker.settled() == {answer["queueOffset"] for answer in ended.values()})
    assert broker.bodies() == expected
    broker.store.shutdown()

    with reput.open(directory, read_only=True, **FILE_SIZES) as looked_at:
        status = looked_at.status()
        assert (status.waiting_delays, status.half_messages) == ({1: 2, 2: 1}, 1)
    with reput.open(directory, mode="inline", message_delay_level="1s 2h 2h", **FILE_SIZES) as store:
        store.transactions.on_check(GROUP, lambda half: COMMIT)
        for number in range(2):
            store.put(Message("orders", f"ours {number}, due to RocketMQ".encode(), delay_level=3))
        expected.update(["theirs, due to reput", "theirs, too", "theirs, open"])
        wait_until(lambda: bodies_of(store) == expected)
        store.transactions.on_check(GROUP, None)
        half, committed, rolled_back = (
            store.transactions.put_half(GROUP, Message("orders", f"ours, {name}".encode()))
            for name in ("open", "committed", "rolled back")
        )
        store.transactions.commit(committed)
        store.transactions.rollback(rolled_back)
        expected["ours, committed"] += 1
        assert store.transactions.status() == 1

    broker = Broker(rocketmq, directory, "2h 2h 1s")
    asked = [record_of(line) for line in broker.store.ask("check", timeout=0, max=15)["records"]]
    assert [record.body for record in asked] == [b"ours, open"]
    assert asked[0].uniq_key == half.transaction_id
    broker.end(asked[0].queue_offset, asked[0].commit_log_offset, COMMIT, asked=True)
    expected.update(["ours, open", "ours 0, due to RocketMQ", "ours 1, due to RocketMQ"])
    wait_until(lambda: broker.bodies() == expected)
    broker.store.kill()

    with reput.open(
        directory, mode="inline", change_settings=["message_delay_level"], message_delay_level="2h 2h 2h", **FILE_SIZES
    ) as store:
        wait_until(lambda: store.statistics().waiting_delays == {2: 1})
        assert store.transactions.status() == 0
        assert bodies_of(store) == expected
    with reput.open(directory, read_only=True, **FILE_SIZES) as looked_at:
        status = looked_at.status()
        assert (status.waiting_delays, status.half_messages) == ({2: 1}, 0)
