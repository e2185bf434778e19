"""Dead letters of groups: looked at, put back to their topic or to the group, once each."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from itertools import islice
from pathlib import Path

import pytest

import reput
from command_line import run_reput
from delivering import SMALL, open_inline
from reput import Message
from reput.consume.administration.dead_letters import REDRIVE_GROUP
from reput.consume.delivery.send_back import send_back
from reput.embedded.store import Store
from reput.errors import ConfigError
from reput_hooks import Record
from serving import served

GROUP = "billing"
SET = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


def die(store: Store, count: int) -> None:
    """Put messages to two topics in turn, and let all of them die."""
    for number in range(count):
        topic = ("orders", "parcels")[number % 2]
        store.put(Message(topic, b"body %d" % number, tags=("blue", "red")[number % 3 == 0], keys=[f"k{number}"]))
    store.administration.update_group(reput.SubscriptionGroupConfig(GROUP))
    for record in list(messages(store, "orders")) + list(messages(store, "parcels")):
        send_back(store._engine, GROUP, record, delay_level=-1)
    settle(store)


def settle(store: Store) -> None:
    """Wait until all that was put can be read by queue."""
    store.wait_for("consume_queue", store.appended, timeout=60)


def messages(store: Store, topic: str) -> list[Record]:
    settle(store)
    return list(store.get(topic, 0, 0, 1000))


@pytest.fixture
def store(tmp_path):
    with open_inline(tmp_path / "store") as opened:
        die(opened, 6)
        yield opened


def test_dead_letters_are_read_with_the_topic_they_were_sent_to(store):
    """The letters of a group come in the order in which they died, and can be chosen by topic, tag and property."""
    letters = store.administration.dead_letters(GROUP)
    assert [record.body for record in letters.read()] == [b"body %d" % number for number in (0, 2, 4, 1, 3, 5)]
    assert [record.body for record in letters.read(topic="parcels")] == [b"body 1", b"body 3", b"body 5"]
    assert [record.body for record in letters.read(tags="red")] == [b"body 0", b"body 3"]
    assert [record.body for record in letters.read(sql="KEYS = 'k4'")] == [b"body 4"]
    assert list(store.administration.dead_letters("nobody").read()) == []


def test_a_redrive_puts_each_letter_back_to_its_topic_once(store):
    """A redriven message is as it was sent, with no retry behind it; the next redrive begins behind it."""
    rows = list(store.administration.dead_letters(GROUP).redrive(count=4))
    assert [(row.queue_offset, row.topic, row.outcome) for row in rows] == [
        (0, "orders", "redriven"),
        (1, "orders", "redriven"),
        (2, "orders", "redriven"),
        (3, "parcels", "redriven"),
    ]
    again = messages(store, "orders")[3:]
    assert [(record.body, record.reconsume_times) for record in again] == [
        (b"body 0", 0),
        (b"body 2", 0),
        (b"body 4", 0),
    ]
    first, copy = messages(store, "orders")[0], again[0]
    assert copy.properties["TAGS"] == first.properties["TAGS"]
    assert copy.properties["KEYS"] == "k0"
    assert not {"RETRY_TOPIC", "DELAY", "WAIT"} & copy.properties.keys()
    assert copy.born_timestamp == first.born_timestamp
    assert [row.topic for row in store.administration.dead_letters(GROUP).redrive()] == ["parcels", "parcels"]
    assert list(store.administration.dead_letters(GROUP).redrive()) == []
    (progress,) = store.administration.group_progress(REDRIVE_GROUP)
    assert (progress.topic, progress.lag) == (f"%DLQ%{GROUP}", 0)


def test_a_redrive_ends_although_letters_die_again_meanwhile(store):
    """A message that nobody can handle would otherwise go round for ever, and fill the store."""
    rows = []
    for row in islice(store.administration.dead_letters(GROUP).redrive(), 20):
        rows.append(row.queue_offset)
        send_back(store._engine, GROUP, messages(store, row.topic)[-1], delay_level=-1)
        settle(store)
    assert rows == [0, 1, 2, 3, 4, 5]
    assert [row.queue_offset for row in store.administration.dead_letters(GROUP).redrive()] == [6, 7, 8, 9, 10, 11]


def test_a_redrive_to_the_group_reaches_that_group_alone(store):
    """--to group puts the letters into the group's retry topic, from where only its consumers get them."""
    before = len(messages(store, "orders"))
    assert {row.topic for row in store.administration.dead_letters(GROUP).redrive(to="group")} == {f"%RETRY%{GROUP}"}
    assert len(messages(store, "orders")) == before
    retried = messages(store, f"%RETRY%{GROUP}")
    assert [record.properties["RETRY_TOPIC"] for record in retried] == ["orders"] * 3 + ["parcels"] * 3


def test_a_dry_run_and_a_filter_leave_the_place_of_the_next_redrive(store):
    """Only a redrive of all letters moves on; what was chosen comes again."""
    letters = store.administration.dead_letters(GROUP)
    appended = store.appended
    assert {row.outcome for row in letters.redrive(dry_run=True)} == {"chosen"}
    assert store.appended == appended
    assert len(list(letters.redrive(tags="red"))) == 2
    assert len(list(letters.redrive("earliest", count=1))) == 1
    assert len(list(letters.redrive(dry_run=True))) == 6


def test_a_task_reads_and_redrives_dead_letters(store):
    """`aread` and `aredrive` do what `read` and `redrive` do; a loop that is left early keeps the place it came to."""

    async def use() -> tuple[list[bytes], list[int]]:
        letters = store.administration.dead_letters(GROUP)
        bodies = [record.body async for record in letters.aread(topic="parcels")]
        async with contextlib.aclosing(letters.aredrive()) as rows:
            async for row in rows:
                if row.queue_offset == 1:
                    break
        return bodies, [row.queue_offset async for row in letters.aredrive()]

    assert asyncio.run(use()) == ([b"body 1", b"body 3", b"body 5"], [2, 3, 4, 5])


def test_a_cancelled_redrive_ends_with_the_letter_that_it_puts_back(store, monkeypatch):
    """The put under way is completed, and the next redrive begins behind it."""
    letters = store.administration.dead_letters(GROUP)
    putting, cancelled = threading.Event(), threading.Event()
    put = letters._source.put

    def slow_put(message: Message) -> reput.PutMessageResult:
        putting.set()
        cancelled.wait(60)
        return put(message)

    monkeypatch.setattr(letters._source, "put", slow_put)

    async def redrive() -> None:
        async for _ in letters.aredrive():
            pass

    async def cancel() -> None:
        task = asyncio.create_task(redrive())
        await asyncio.to_thread(putting.wait, 60)
        task.cancel()
        asyncio.get_running_loop().call_later(0, cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert [row.queue_offset for row in store.administration.dead_letters(GROUP).redrive()] == [1, 2, 3, 4, 5]


def test_arguments_of_a_redrive_are_checked(store):
    """Wrong arguments put nothing."""
    for wrong in ({"to": "nowhere"}, {"rate": 0}, {"count": 0}, {"tags": "a", "sql": "b = 1"}):
        with pytest.raises(ConfigError):
            list(store.administration.dead_letters(GROUP).redrive(**wrong))


@pytest.mark.processes
def test_the_command_redrives_a_store_that_no_program_has_open(tmp_path):
    """`reput group dead-letters` shows them, `reput group redrive` puts them back, with a dry run before."""
    path = tmp_path / "store"
    with open_inline(path) as opened:
        die(opened, 3)
    shown = run_reput("group", "dead-letters", path, GROUP, "--format", "json", "--body", "text", *SET)
    assert [row["body"] for row in shown.rows()] == ["body 0", "body 2", "body 1"]
    assert run_reput("group", "redrive", path, GROUP, "--dry-run", *SET).stdout.endswith("3 chosen\n")
    done = run_reput("group", "redrive", path, GROUP, "--rate", "1000", *SET)
    assert (done.code, done.stdout.splitlines()[-1]) == (0, "3 redriven")
    assert run_reput("group", "redrive", path, GROUP, *SET).stdout == "no dead letters\n"


def test_the_client_redrives_through_a_broker(tmp_path: Path):
    """HOST:PORT and a client do the same through a broker, which keeps the place of the next redrive."""
    with served(tmp_path / "store") as broker:
        engine_store = Store(broker.engine)
        die(engine_store, 3)
        with reput.connect("{}:{}".format(*broker.address)) as client:
            assert [row.outcome for row in client.administration.dead_letters(GROUP).redrive(count=2)] == [
                "redriven"
            ] * 2
            assert [row.queue_offset for row in client.administration.dead_letters(GROUP).redrive()] == [2]
            assert list(client.administration.dead_letters(GROUP).redrive()) == []
        settle(engine_store)
        bodies = [
            record.body
            for queue_id in engine_store.queue_ids("orders")
            for record in engine_store.get("orders", queue_id, 0, 100)
        ]
        assert sorted(bodies) == [b"body 0", b"body 0", b"body 2", b"body 2"]
