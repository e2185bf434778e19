"""Which messages the console finds without a queue's number, and the life of one message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import reput
from delivering import LIMIT_S, wait_until
from reput.console import body_search, message_search, topic_messages
from reput.console.message_life import life_of
from reput.console.message_search import find_messages
from reput.console.message_view import body_view

SMALL_LOG = {"mapped_file_size_commit_log": 1 << 16}


@pytest.fixture
def store(tmp_path) -> Iterator[reput.Store]:
    """A store whose first retries come after a second."""
    levels = " ".join(["1s"] * 18)
    with reput.open(tmp_path / "store", mode="inline", message_delay_level=levels, **SMALL_LOG) as store:
        yield store


def put_numbers(store: reput.Store, count: int) -> list[str]:
    """Put messages with numbers for bodies over three queues, and return the bodies."""
    store.administration.create_topic("orders", 3)
    results = store.put_batch([reput.Message("orders", b"%d" % at, queue_id=at % 3) for at in range(count)])
    store.wait_for("consume_queue", results[-1].next_commit_log_offset, LIMIT_S)
    return [str(at) for at in range(count)]


def bodies(found: message_search.FoundMessages) -> list[str]:
    """Return the bodies of what was found."""
    return [record.body.decode() for record in found.records]


def turned(store: reput.Store, given: dict[str, str], link: str) -> Iterator[list[str]]:
    """Yield the bodies of a page, and of those that a link leads to one after the other."""
    while True:
        found = find_messages(store, given)
        yield bodies(found)
        to = dict(found.links).get(link)
        if to is None:
            return
        given = dict(re.findall(r"[?&]([a-z_]+)=([^&]*)", to))


@pytest.mark.parametrize("page_max", [2, 5, 100])
def test_without_a_queue_the_messages_of_all_queues_come_by_time(page_max, store, monkeypatch):
    """Newest first, or from a time on; turning pages shows each once, although they share milliseconds."""
    monkeypatch.setattr(message_search, "PAGE_MAX", page_max)
    monkeypatch.setattr(topic_messages, "BLOCK", 4)
    numbers = put_numbers(store, 20)
    first = store.get("orders", 0, 0, 1)[0].store_timestamp
    pages = list(turned(store, {"topic": "orders"}, "Older"))
    assert [body for page in pages for body in page] == numbers[::-1]
    assert max(map(len, pages)) == min(page_max, 20)
    pages = list(turned(store, {"topic": "orders", "time": str(first)}, "Newer"))
    assert [body for page in pages for body in page] == numbers
    assert bodies(find_messages(store, {"topic": "orders", "time": str(first + 3_600_000)})) == []


def test_messages_that_came_meanwhile_are_on_the_newer_page(store):
    """The link stands on a page that had the newest ones."""
    put_numbers(store, 3)
    links = dict(find_messages(store, {"topic": "orders"}).links)
    result = store.put(reput.Message("orders", b"late"))
    store.wait_for("consume_queue", result.next_commit_log_offset, LIMIT_S)
    given = dict(re.findall(r"[?&]([a-z_]+)=([^&]*)", links["Newer"]))
    assert bodies(find_messages(store, given)) == ["late"]
    assert "Older" not in links


def test_a_queue_is_turned_by_its_offsets(store, monkeypatch):
    """From its end back, and on again; a link leads nowhere but to messages."""
    monkeypatch.setattr(message_search, "PAGE_MAX", 2)
    put_numbers(store, 15)
    pages = list(turned(store, {"topic": "orders", "queue_id": "1"}, "Older"))
    assert pages == [["10", "13"], ["4", "7"], ["1", "4"]]
    pages = list(turned(store, {"topic": "orders", "queue_id": "1", "queue_offset": "0"}, "Newer"))
    assert pages == [["1", "4"], ["7", "10"], ["13"]]


def settle(store: reput.Store) -> None:
    """Wait until each view has all that was put."""
    for view in ("consume_queue", "index"):
        store.wait_for(view, store.appended, LIMIT_S)


def life(store: reput.Store, message_id: str) -> list[tuple[str, str]]:
    """Return what has happened to a message, and how it stands."""
    (record,) = store.query(None, message_id)
    return [(step.what, step.state) for step in life_of(record, store.status(), store.administration, store)]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[], ["order-17"]], ids=["without keys", "by a key"])
def test_the_life_of_a_message_is_told_from_its_put_to_the_dead_letters(keys, store):
    """Each view, the group, the retry that waits, its delivery, and the end; every copy leads back to the first."""
    result = store.put(reput.Message("orders", b"hopeless", keys=keys))
    store.put(reput.Message("orders", b"another"))
    settle(store)
    first = [("put", "done"), ("stored", "done")]
    at_rest = [*first, ("on disk", "done"), ("in consume_queue", "done"), ("in index", "done")]
    with store.consumer("billing", "orders") as consumer:
        store.flush()
        assert life(store, result.message_id) == at_rest
        consumer.nack(consumer.receive(LIMIT_S))
        consumer.ack(consumer.receive(LIMIT_S))
        consumer.commit()
        store.flush()
        settle(store)
        taken = [*at_rest, ("group billing", "done")]
        assert life(store, result.message_id) == [*taken, ("comes again for billing", "waits")]
        again = consumer.receive(LIMIT_S)
        assert life(store, again.message_id)[:2] == [("redelivered", "done"), ("put", "done")]
        consumer.nack(again, -1)
        consumer.commit()
        store.flush()
        settle(store)
    ended = [("retried for billing", "done"), ("dead letter of billing", "failed")]
    assert life(store, result.message_id) == [*taken, *ended]


@pytest.mark.slow
def test_a_delayed_and_a_committed_message_say_what_they_waited_for(store):
    """While it waits in the topic of delays, and after its delivery; and before and after a commit."""
    result = store.put(reput.Message("orders", b"later", delay_level=2))
    settle(store)
    assert ("delayed", "done") in life(store, result.message_id)
    wait_until(lambda: len(store.get("orders").records) == 1)
    settle(store)
    assert ("delayed", "done") in life(store, store.get("orders")[0].message_id)
    half = store.transactions.put_half("shop", reput.Message("orders", b"paid"))
    settle(store)
    committed = store.transactions.commit(half)
    settle(store)
    assert ("committed", "done") in life(store, committed.message_id)


def test_a_search_for_a_text_goes_on_through_messages_of_one_millisecond(store, monkeypatch):
    """Each is found once, although more share a millisecond than one answer has."""
    monkeypatch.setattr(body_search, "FOUND_MAX", 2)
    numbers = put_numbers(store, 9)
    pages = []
    given = {"topic": "orders", "text": "0123456789"}
    monkeypatch.setattr(body_search, "has_text", lambda record, wanted: True)
    while given is not None and len(pages) < 10:
        found = find_messages(store, given)
        pages.append(bodies(found))
        given = next((dict(re.findall(r"[?&]([a-z_]+)=([^&]*)", to)) for _, to in found.links), None)
    assert [body for page in pages for body in page] == numbers[::-1]


@pytest.mark.parametrize("field", ["queue_id", "queue_offset", "time", "before", "passed"])
def test_a_number_of_thousands_of_digits_is_no_error_of_the_console(store, field):
    """It is as large as a number can be."""
    put_numbers(store, 3)
    assert bodies(find_messages(store, {"topic": "orders", field: "9" * 5000})) in ([], ["2", "1", "0"])
    assert message_search.whole(field, "0" * 5000 + "7") == 7


def test_a_part_of_a_body_that_is_shown_is_said_to_be_one(store):
    """In bytes of the body, also for a dump of it."""
    store.put(reput.Message("large", b""))
    (record,) = store.records()
    for body, note in (
        (bytes(100_000), "the first 13792 of 100000 bytes"),
        (b"x" * 100_000, "the first 65536 of 100000 characters"),
        (bytes(13_792), ""),
    ):
        view = body_view(replace(record, body=body))
        assert view.note == note
        if view.kind == "bytes":
            assert view.text.splitlines()[-1].startswith(f"{13_792 - 16:08x}  00")


def test_of_large_messages_few_are_in_memory(store, monkeypatch):
    """Of each queue one until its size is known; and a page is full of bytes, too. Of small ones, blocks are read."""
    numbers = put_numbers(store, 96)
    read = []
    get = store.get

    def counted(*arguments, **options):
        result = get(*arguments, **options)
        read.extend(result.records)
        return result

    monkeypatch.setattr(store, "get", counted)
    for block_size, page_size, shown, read_max in ((1, 1 << 20, 20, 30), (1, 1, 1, 10), (1 << 20, 1 << 20, 20, 75)):
        monkeypatch.setattr(topic_messages, "BLOCK_SIZE_MAX", block_size)
        monkeypatch.setattr(topic_messages, "PAGE_SIZE_MAX", page_size)
        monkeypatch.setattr(message_search, "PAGE_MAX", 20)
        read.clear()
        page = next(turned(store, {"topic": "orders"}, "Older"))
        assert page == numbers[::-1][:shown]
        assert len(read) < read_max
    assert [body for page in turned(store, {"topic": "orders"}, "Older") for body in page] == numbers[::-1]
