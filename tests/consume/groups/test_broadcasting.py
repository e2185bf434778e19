"""Consumers of a broadcasting group: each receives every message."""

from __future__ import annotations

import asyncio

import pytest

import reput
from reput.errors import ConfigError, DamagedStore, RequestRefused, StoreError
from reput.store.config.config_json import parse_config
from reput.store.config.subscription_group_manager import SubscriptionGroupConfig

WAIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test, with three messages."""
    with reput.open(tmp_path / "store", mode="inline") as opened:
        for body in (b"a", b"b", b"c"):
            opened.put(reput.Message("orders", body, tags=body.decode()))
        yield opened


def bodies_of(consumer, count: int) -> str:
    """Receive and acknowledge *count* messages, and return their bodies."""
    bodies = b""
    for _ in range(count):
        record = consumer.receive(WAIT_S)
        assert record is not None
        consumer.acknowledge(record)
        bodies += record.body
    return bodies.decode()


def test_every_consumer_of_the_group_is_given_every_message(store):
    """Including messages that come while they wait, each by its own filter; the store keeps no offset of the group."""

    async def both() -> tuple[bytes, bytes]:
        async with (
            store.consumer("caches", "orders", broadcast=True, begin="latest") as former,
            store.consumer("caches", "orders", "e", broadcast=True, begin="latest") as latter,
        ):
            waiting = [asyncio.create_task(consumer.areceive(WAIT_S)) for consumer in (former, latter)]
            await asyncio.sleep(0)
            store.put(reput.Message("orders", b"d", tags="d"))
            store.put(reput.Message("orders", b"e", tags="e"))
            return tuple([(await task).body for task in waiting])

    with (
        store.consumer("caches", "orders", broadcast=True) as former,
        store.consumer("caches", "orders", "b", broadcast=True) as latter,
    ):
        assert bodies_of(former, 3) == "abc"
        assert bodies_of(latter, 1) == "b"
        former.commit()
    assert asyncio.run(both()) == (b"d", b"e")
    assert "caches" not in store._engine.services.managers.offsets.groups()
    assert store._engine.services.statistics.of_group("caches", "orders").get_nums == 6


def test_a_consumer_goes_on_where_its_file_says(store, tmp_path):
    """A consumer without a file starts from the beginning each time."""
    path = tmp_path / "program" / "cache-1.json"
    with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
        assert bodies_of(consumer, 2) == "ab"
        consumer.receive(WAIT_S)
        with pytest.raises(ConfigError, match="another consumer uses this offset store"):
            store.consumer("caches", "orders", broadcast=True, offset_store=path)
    assert parse_config(path.read_text())["offsetTable"] == {"orders@caches": {0: 2}}
    with (
        store.consumer("caches", "orders", broadcast=True, offset_store=str(path)) as consumer,
        store.consumer("caches", "orders", broadcast=True) as other,
    ):
        assert bodies_of(consumer, 1) == "c"
        assert bodies_of(other, 3) == "abc"
        other.rewind()
        assert bodies_of(other, 3) == "abc"
        assert consumer.receive(timeout=0) is None
    with store.consumer("caches", "orders", broadcast=True) as other:
        assert bodies_of(other, 3) == "abc"


def test_a_torn_file_is_reported_and_not_begun_anew(store, tmp_path):
    """Unless its backup is undamaged."""
    path = tmp_path / "cache-1.json"
    path.write_text('{"offsetTable":{"ord')
    with pytest.raises(DamagedStore, match=r"cache-1\.json"):
        store.consumer("caches", "orders", broadcast=True, offset_store=path)
    path.with_name("cache-1.json.bak").write_text('{"offsetTable":{"orders@caches":{0:1}}}')
    with store.consumer("caches", "orders", broadcast=True, offset_store=path) as consumer:
        assert bodies_of(consumer, 2) == "bc"


def test_what_fails_is_dropped(store, caplog):
    """The other consumers receive it separately: it is not delivered again, and is in no retry topic."""
    with store.consumer("caches", "orders", broadcast=True) as consumer:
        assert consumer.retry(consumer.receive(WAIT_S)) is None
        assert "a failed broadcast message is dropped" in caplog.text
        assert bodies_of(consumer, 2) == "bc"
        assert consumer.receive(timeout=0) is None
    assert store._engine.services.statistics.of_group("caches", "orders").send_back_nums == 0
    assert set(store.topics()) == {"orders"}


def test_the_consumers_of_a_group_broadcast_or_share(store, tmp_path):
    """In a mixture, some messages would be delivered twice. A group without consumers may change its model."""
    with (
        store.consumer("caches", "orders", broadcast=True),
        pytest.raises(ConfigError, match="message_model_of_the_others=BROADCASTING"),
    ):
        store.consumer("caches", "orders")
    with (
        store.consumer("caches", "orders"),
        pytest.raises(ConfigError, match="message_model_of_the_others=CLUSTERING"),
    ):
        store.consumer("caches", "orders", broadcast=True)
    with store.consumer("caches", "orders", broadcast=True) as consumer:
        assert store._engine.services.consumer_manager.find("caches").message_model == "BROADCASTING"
        assert bodies_of(consumer, 3) == "abc"
    with pytest.raises(ConfigError, match="only a broadcast consumer has its own offset store"):
        store.consumer("caches", "orders", offset_store=tmp_path / "offsets.json")


def test_a_group_may_be_forbidden_to_broadcast(store):
    """By its configuration, as at a broker."""
    store._engine.services.groups.create_or_update(
        SubscriptionGroupConfig(group_name="caches", consume_broadcast_enable=False)
    )
    with pytest.raises(RequestRefused, match="may not consume by broadcasting") as refused:
        store.consumer("caches", "orders", broadcast=True)
    assert refused.value.response_code == 16
    with pytest.raises(RequestRefused, match="illegal character"):
        store.consumer("a b", "orders", broadcast=True)


def test_a_file_that_cannot_be_written_keeps_nothing_else_from_being(tmp_path, caplog):
    """The caller that closes the consumer gets an error; if the store closes it, the error is logged."""
    blocked = tmp_path / "blocked"
    with reput.open(tmp_path / "store", mode="inline") as store:
        store.put(reput.Message("orders", b"a"))
        told = store.consumer("caches", "orders", broadcast=True, offset_store=blocked / "1.json")
        bad = store.consumer("caches", "orders", broadcast=True, offset_store=blocked / "2.json")
        good = store.consumer("caches", "orders", broadcast=True, offset_store=tmp_path / "3.json")
        shared = store.consumer("billing", "orders")
        for consumer in (told, bad, good, shared):
            assert bodies_of(consumer, 1) == "a"
        blocked.write_text("not a directory")
        with pytest.raises(StoreError, match="blocked"):
            told.close()
    assert "a consumer could not leave its group cleanly: group=caches" in caplog.text
    assert parse_config((tmp_path / "3.json").read_text())["offsetTable"] == {"orders@caches": {0: 1}}
    offsets = parse_config((tmp_path / "store" / "config" / "consumerOffset.json").read_text())
    assert offsets["offsetTable"]["orders@billing"] == {0: 1}
    assert not (tmp_path / "store" / "abort").exists()
