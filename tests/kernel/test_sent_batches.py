"""Batches from clients: the kernel's way gives the same bytes, frames, results and errors as the Python path."""

from __future__ import annotations

import tempfile
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.broker.requests.send_message import SendMessageProcessor
from reput.broker.requests.sent_message import BATCH_COUNT_MAX, SendHeader
from reput.errors import RequestRefused
from reput.kernel import Kernel
from reput.store.message_store import MessageStore
from reput.store.record.message import Message
from reput.store.record.record import encode_host
from twin_stores import TwinStores

HEAD = Struct(">iiiii")
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
CONNECTION: Any = SimpleNamespace(attachments={"born_host": encode_host("10.0.0.7", 4711)})

NAME = st.one_of(st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"n"]), st.binary(max_size=4))
SPECIAL = st.sampled_from([b"DELAY\x013", b"CLUSTER\x01c", b"", b"n", b"\x01v", b"n\x01", b"n\x01a\x01b", b"n\x01\x00"])
VALUE = st.one_of(st.sampled_from([b"TagA", b"a b", "grün".encode(), b"\xff"]), st.binary(min_size=1, max_size=6))
PIECE = st.one_of(st.tuples(NAME, VALUE).map(b"\x01".join), st.tuples(NAME, VALUE).map(b"\x01".join), SPECIAL)
ENDED = st.sampled_from([b"", b"\x02"])
PLAIN = st.fixed_dictionaries({b"UNIQ_KEY": st.binary(min_size=3, max_size=3).map(bytes.hex).map(str.encode)}).map(
    lambda named: b"\x02".join(name + b"\x01" + value for name, value in named.items())
)
PROPERTIES = st.one_of(PLAIN, st.tuples(st.lists(PIECE, max_size=3).map(b"\x02".join), ENDED).map(b"".join))
SENT = st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=200), PROPERTIES)
OF_BATCH = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "b", "DELAY"]), st.sampled_from(["false", "v", "ключ", "1"])
)


def batch_of(messages: list[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch."""
    parts = []
    for flag, body, properties in messages:
        size = HEAD.size + len(body) + 2 + len(properties)
        parts += [HEAD.pack(size, 0, 0, flag, len(body)), body, len(properties).to_bytes(2, "big"), properties]
    return b"".join(parts)


def stored_batch(store: MessageStore, header: SendHeader, body: bytes, of_batch: dict[str, str]) -> Any:
    """Store a batch as the broker does."""
    processor = SendMessageProcessor.__new__(SendMessageProcessor)
    processor.appender, processor.preparer, processor.store_host = store.appender, store.preparer, store.store_host
    processor.takes_plain, processor.added = True, ADDED
    return processor.stored_batch(CONNECTION, header, header.queue_id, body, of_batch)


def header_of(topic: str, queue_id: int) -> SendHeader:
    """Return the header of a batch."""
    return SendHeader("group", topic, "TBW102", 4, queue_id, 0, 1_600_000_000_000, 0)


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["orders", "T" * 127]),
            st.integers(0, 3),
            st.one_of(st.lists(SENT, max_size=5), st.lists(SENT.filter(lambda sent: b"UNIQ" in sent[2]), max_size=9)),
            st.one_of(st.just({}), OF_BATCH),
            st.one_of(st.none(), st.tuples(st.integers(0, 400), st.integers(0, 255))),
        ),
        min_size=1,
        max_size=10,
    ),
    st.booleans(),
)
def test_any_batches_give_the_same_bytes_results_and_errors(
    required_kernel: Kernel, batches: list[Any], needs_properties: bool
) -> None:
    """Whatever a client sends, whole or broken, log, frames, results and errors do not tell which way it went."""
    with tempfile.TemporaryDirectory() as directory:
        twins = TwinStores(Path(directory), max_message_size=1500)
        for store in twins.stores:
            store.preparer.carry_properties(needs_properties)
        for topic, queue_id, messages, of_batch, damage in batches:
            body = bytearray(batch_of(messages))
            if damage is not None and damage[0] < len(body):
                body[damage[0]] = damage[1]
            header, sent = header_of(topic, queue_id), bytes(body)
            twins.both(
                lambda store, header=header, sent=sent, of_batch=of_batch: stored_batch(store, header, sent, of_batch)
            )
        twins.close()


def test_plain_batches_go_through_the_kernel(required_kernel: Kernel, tmp_path: Path) -> None:
    """A batch whose properties are stored as they come is decoded and stored by the kernel."""
    twins = TwinStores(tmp_path, mapped_file_size_commit_log=1 << 20)
    twins.both(lambda store: store.put(Message("orders", b"")))
    body = batch_of([(number, b"body", b"UNIQ_KEY\x01u%d\x02TAGS\x01TagA\x02" % number) for number in range(32)])
    before = required_kernel.counts()["sent_batch"]
    results = twins.both(lambda store: stored_batch(store, header_of("orders", 2), body, {"WAIT": "true"}))
    assert required_kernel.counts()["sent_batch"] - before == 32
    assert required_kernel.message_ids(results) == ",".join(result.message_id for result in results)
    twins.close()


def test_a_batch_with_too_many_messages_is_refused(required_kernel: Kernel, tmp_path: Path) -> None:
    """Also where the settings allow a batch that is large enough for them."""
    twins = TwinStores(tmp_path, mapped_file_size_commit_log=1 << 24, max_message_size=15 << 20)
    twins.both(lambda store: store.put(Message("t", b"")))
    body = batch_of([(0, b"", b"k\x01v")] * (BATCH_COUNT_MAX + 1))
    for store in twins.stores:
        with pytest.raises(RequestRefused, match=f"batch_count_max={BATCH_COUNT_MAX}"):
            stored_batch(store, header_of("t", 0), body, {})
    twins.close()
