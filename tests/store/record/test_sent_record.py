"""Bodies that a producer's client has compressed, as programs get them."""

from __future__ import annotations

import pickle
import zlib

import pytest

import reput
from reput.kernel import VARIABLE, found_kernel
from reput.store.record.body_compression import unpack_body
from reput.store.record.message import MessageExtBrokerInner
from reput.store.record.record import decode_record
from reput.store.record.sent_record import stored_body

# Not on every Python of CI.
pa = pytest.importorskip("pyarrow")

LONG = b"long " * 1000
SENT = [
    (zlib.compress(LONG), 1),
    (zlib.compress(LONG), 1 | 3 << 8),
    (pa.compress(LONG, codec="lz4", asbytes=True), 1 | 1 << 8),
    (pa.compress(LONG, codec="zstd", asbytes=True), 1 | 2 << 8),
    (b"no zlib", 1),
    (b"plain", 0),
]
SEEN = [(LONG, 0)] * 4 + [(b"no zlib", 1), (b"plain", 0)]


def message(body: bytes, sys_flag: int) -> MessageExtBrokerInner:
    """What a broker stores for a client."""
    return MessageExtBrokerInner("orders", body, keys=["k"], queue_id=0, sys_flag=sys_flag)


@pytest.fixture(params=["off", "require"])
def store(request, tmp_path, monkeypatch):
    """A store with these messages, with and without the kernel."""
    if request.param == "require" and found_kernel()[0] is None:
        pytest.skip("the kernel cannot be used")
    monkeypatch.setenv(VARIABLE, request.param)
    with reput.open(tmp_path / "store", mode="inline", message_delay_level="1s 1s 1s 1s") as store:
        results = [store.put(message(*sent)) for sent in SENT]
        for view in ("consume_queue", "index"):
            store.wait_for(view, results[-1].next_commit_log_offset, timeout=20)
        yield store


def test_a_body_that_unpacks_to_too_much_is_left_as_it_is():
    """A few bytes that stand for 65 MiB."""
    bomb = zlib.compress(bytes(65 << 20))
    assert unpack_body(bomb, sys_flag=1) is None


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("orders", 0, 0),
        lambda store: store.get("orders", 0, 0)[:],
        lambda store: [store.get("orders", 0, 0)[index] for index in range(len(SENT))],
        lambda store: store.query("orders", key="k"),
        lambda store: [store.query(key=record.message_id)[0] for record in store.get("orders", 0, 0)],
        lambda store: store.records(),
    ],
    ids=["get", "slice", "item", "query", "id", "records"],
)
def test_a_body_is_read_as_it_was_sent(store, read):
    """If it does not unpack, it is the stored one, and its flag says so."""
    records = list(read(store))
    # Whichever of the two is asked for first.
    assert [(record.body, record.sys_flag) for record in records[::2]] == SEEN[::2]
    assert [(record.sys_flag, record.body) for record in records[1::2]] == [seen[::-1] for seen in SEEN[1::2]]
    assert [stored_body(record) for record in records] == SENT
    assert [pickle.loads(pickle.dumps(record)) for record in records] == records


def test_a_body_is_not_unpacked_before_it_is_asked_for(store):
    """A query with many results must not hold what they unpack to."""
    for record in store.query("orders", key="k")[:4]:
        assert record.message_id
        assert record.store_timestamp
        assert record.properties
        with pytest.raises(AttributeError):
            object.__getattribute__(record, "body")


def test_a_message_is_sent_back_with_its_stored_bytes(store):
    """Its consumer sees the body of the producer both times; a bigger one than a store takes is sent back, too."""
    with store.consumer("billing", "orders") as consumer:
        first = [consumer.receive(20) for _ in SENT]
        assert [(record.body, record.sys_flag) for record in first] == SEEN
        for record in first:
            consumer.nack(record)
        again = sorted((consumer.receive(20) for _ in SENT), key=lambda record: record.commit_log_offset)
    assert [(record.body, record.sys_flag, record.topic) for record in again] == [(*seen, "orders") for seen in SEEN]
    assert [stored_body(record) for record in again] == SENT


def test_a_log_has_the_bytes_that_were_sent(store):
    """A record that is decoded for anything but a program is as it was stored."""
    data = store.get("orders", 0, 0).records.data
    assert [(record.body, record.sys_flag) for record in map(decode_record, data)] == SENT
