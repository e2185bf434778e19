"""Requests to store messages: the kernel's way gives the same bytes, frames and answers as the Python path."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.broker.requests import send_message
from reput.broker.requests.kernel_sends import kernel_sends
from reput.broker.requests.pending_puts import PendingPuts
from reput.broker.requests.send_message import SendMessageProcessor
from reput.errors import ReputError
from reput.kernel import VARIABLE, Kernel
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import refusal
from reput.remoting.turn import Turn
from reput.settings import Settings
from reput.store.config.topic_config_manager import TopicConfig
from reput.store.message_store import MessageStore
from reput.store.record.message import Message
from twin_stores import TwinStores

NAMES = ("topic", "queue_id", "sys_flag", "born", "flag", "properties", "times", "unit", "times_max", "batch")
SHORT = dict(zip(NAMES, "befghijklm", strict=True))
LONG = {
    "topic": "topic",
    "queue_id": "queueId",
    "sys_flag": "sysFlag",
    "born": "bornTimestamp",
    "flag": "flag",
    "properties": "properties",
    "times": "reconsumeTimes",
    "unit": "unitMode",
    "times_max": "maxReconsumeTimes",
    "batch": "batch",
}
LENGTHS = Struct(">II")
USUAL = {"topic": "orders", "queue_id": "1", "sys_flag": "0", "born": "1600000000000", "flag": "0"}

KEY = st.integers(0, 999).map(lambda number: f"UNIQ_KEY\x01AC{number:030d}")
FURTHER = st.sampled_from(["TAGS\x01a", "TAGS\x01grün", "KEYS\x01k1 k2", "WAIT\x01false", 'n\x01a"b\\c/\n', "k\x01v"])
ODD = st.sampled_from(["DELAY\x013", "", "n", "\x01v", "n\x01a\x01b", "n\x01\x00", 'UNIQ_KEY\x01a"b', "n\x01😀"])
PROPERTIES = st.one_of(
    st.tuples(KEY, st.lists(FURTHER, max_size=2, unique=True)).map(lambda found: "\x02".join((found[0], *found[1]))),
    st.lists(st.one_of(KEY, FURTHER, ODD), max_size=3).map("\x02".join),
)
PROPERTIES = st.tuples(PROPERTIES, st.sampled_from(["", "\x02"])).map("".join)
TOPIC = st.sampled_from(["orders", "orders", "orders", "spread", "T" * 127, "unknown", "SCHEDULE_TOPIC_XXXX", "ü"])
INT = st.one_of(st.sampled_from(["0", "1", "2", "-1", "7", "01", "", "x", "4294967296"]), st.integers(0, 3).map(str))
FLAG = st.one_of(st.sampled_from(["0", "0", "-2147483648"]), INT)
FIELDS = st.fixed_dictionaries(
    {"topic": TOPIC, "queue_id": INT, "properties": PROPERTIES},
    optional={
        "sys_flag": st.sampled_from(["0", "1", "4", "12", "16", "128", "x"]),
        "flag": FLAG,
        "times": INT,
        "unit": st.sampled_from(["false", "true", "no"]),
        "times_max": INT,
        "born": st.sampled_from(["0", "-1", "x"]),
    },
).map(lambda fields: USUAL | fields)
USUAL_FIELDS = st.tuples(st.integers(0, 3), KEY).map(
    lambda found: {**USUAL, "queue_id": str(found[0]), "properties": found[1] + "\x02TAGS\x01a\x02"}
)
FORM = st.fixed_dictionaries(
    {},
    optional={
        "code": st.sampled_from([10, 310, 310, 320, 11]),
        "flag": st.sampled_from([0, 2, 1]),
        "language": st.sampled_from(["GO", "PYTHON", "x"]),
        "remark": st.sampled_from([None, "r"]),
        "other": st.just(1),
    },
)
REQUEST = st.tuples(
    st.one_of(USUAL_FIELDS, FIELDS), st.one_of(st.just({}), FORM), st.binary(max_size=200), st.booleans(), st.booleans()
)
BATCH = st.lists(st.tuples(st.binary(max_size=99), PROPERTIES), max_size=4)


def frame(
    fields: dict[str, str], form: dict[str, Any], body: bytes, *, is_ascii: bool = True, is_wide: bool = False
) -> bytes:
    """Return the frame of a request."""
    header: dict[str, Any] = {"code": 310, "flag": 0, "language": "JAVA", "opaque": len(body), "version": 479, **form}
    is_long = header["code"] == 10
    names = LONG if is_long else SHORT
    group = {"producerGroup": "g", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    header["extFields"] = (group if is_long else dict(zip("acd", group.values(), strict=True))) | {
        names[name]: value for name, value in fields.items()
    }
    data = json.dumps(header, ensure_ascii=is_ascii, separators=None if is_wide else (",", ":")).encode()
    return LENGTHS.pack(4 + len(data) + len(body), len(data)) + data + body


def batch_frame(fields: dict[str, str], form: dict[str, Any], messages: list[tuple[bytes, str]]) -> bytes:
    """Return the frame of a batch."""
    parts = []
    for body, properties in messages:
        data = properties.encode()
        size = 20 + len(body) + 2 + len(data)
        parts += [Struct(">iiiii").pack(size, 0, 0, 7, len(body)), body, len(data).to_bytes(2, "big"), data]
    return frame({**fields, "batch": "true"}, {**form, "code": 320}, b"".join(parts))


class Transport:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        """The test sends nothing before it has all answers."""

    def resume_reading(self) -> None:
        """See above."""

    def get_extra_info(self, name: str) -> object:
        return ("10.0.0.7", 4711) if name == "peername" else ("127.0.0.1", 10911)

    def set_write_buffer_limits(self, high: int) -> None:
        del high


class SendSide:
    """What a broker does with requests to store messages, on one of the twins. In a loop."""

    def __init__(self, store: MessageStore) -> None:
        engine: Any = SimpleNamespace(settings=Settings(), writer=store, delivers=True)
        table = {name: TopicConfig(name, 2, 2) for name in ("orders", "spread", "T" * 127, "SCHEDULE_TOPIC_XXXX")}
        topics: Any = SimpleNamespace(
            topics=SimpleNamespace(manager=SimpleNamespace(table=table)), found_or_created=lambda *_, is_unit: None
        )
        turn = Turn()
        puts = PendingPuts(engine, turn)
        self.sends = SendMessageProcessor(engine, puts, topics, SimpleNamespace(), lambda _: None)  # type: ignore[arg-type]
        compiled = kernel_sends(self.sends, puts, turn)
        self.is_compiled = compiled is not None
        self.connection = Connection(self.handle, turn=turn, frame_taker=None if compiled is None else compiled.take)
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        """Answer as the server does."""
        response: RemotingCommand | None
        try:
            response = self.sends.send(request, connection) if request.code in (10, 310, 320) else RemotingCommand(3)
        except ReputError as error:
            response = refusal(error)
        if response is not None:
            connection.respond(request, response)

    async def receive(self, data: bytes) -> tuple[list[bytes], bool]:
        """Receive bytes in one read; return the answers in any order, and whether the connection was ended."""
        before = len(self.transport.sent)
        self.connection.get_buffer(0)[: len(data)] = data
        self.connection.buffer_updated(len(data))
        turn = self.connection.turn
        while turn.jobs or turn.senders or self.connection.is_postponed:
            await asyncio.sleep(0)
        sent, answers = self.transport.sent[before:], []
        while sent:
            size = 4 + int.from_bytes(sent[:4], "big")
            answers.append(sent[:size])
            sent = sent[size:]
        return sorted(answers), self.transport.is_aborted


def compared(directory: Path, reads: list[bytes], *, needs_properties: bool = False) -> Callable[[], list[bytes]]:
    """Send the same reads to both; return a function that closes both and returns their logs."""

    async def run() -> Callable[[], list[bytes]]:
        twins = TwinStores(directory, same_runs=False, max_message_size=1500, mapped_file_size_commit_log=9000)
        for store in twins.stores:
            store.preparer.carry_properties(needs_properties)
        twins.both(lambda store: store.put(Message("orders", b"")))
        sides = []
        for store, mode in zip(twins.stores, ("require", "off"), strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(VARIABLE, mode)
                sides.append(SendSide(store))
        assert [side.is_compiled for side in sides] == [True, False]
        for data in reads:
            answers = [await side.receive(data) for side in sides]
            assert answers[0] == answers[1]
            assert twins.state(0) == twins.state(1)
        return twins.close

    return asyncio.run(run())


@pytest.fixture(autouse=True, scope="module")
def _choices():
    """What the broker chooses is the same on both sides: keys and queues."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_message, "new_uniq_key", lambda host: host.hex())
        patch.setattr(send_message, "random", SimpleNamespace(randrange=lambda _: 0))
        yield


@pytest.mark.slow
@pytest.mark.newest_python
@settings(max_examples=20)
@given(
    st.lists(
        st.one_of(
            st.lists(REQUEST, min_size=1, max_size=5).map(
                lambda found: b"".join([frame(*three, is_ascii=a, is_wide=w) for *three, a, w in found])
            ),
            st.tuples(USUAL_FIELDS, FORM, BATCH).map(lambda found: batch_frame(*found)),
            st.tuples(FIELDS, st.just({}), BATCH).map(lambda found: batch_frame(*found)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.one_of(st.none(), st.tuples(st.integers(0, 400), st.integers(0, 255))),
    st.one_of(st.none(), st.integers(1, 300)),
    st.booleans(),
)
def test_any_requests_give_the_same_bytes_and_answers(
    required_kernel: Kernel,
    reads: list[bytes],
    damage: tuple[int, int] | None,
    cut: int | None,
    needs_properties: bool,
) -> None:
    """Whatever a client sends, whole or broken, in one read or in two: log, frames and answers are the same."""
    if damage is not None and damage[0] < len(reads[-1]):
        damaged = bytearray(reads[-1])
        damaged[damage[0]] = damage[1]
        reads[-1] = bytes(damaged)
    if cut is not None:
        reads[:1] = [reads[0][:cut], reads[0][cut:]]
    with tempfile.TemporaryDirectory() as directory:
        compared(Path(directory), [read for read in reads if read], needs_properties=needs_properties)()


def test_usual_requests_go_through_the_kernel(required_kernel: Kernel, tmp_path: Path) -> None:
    """All messages of one read are stored by one call, batches too; a request for an unknown topic does not stop it."""
    fields = {**USUAL, "properties": "UNIQ_KEY\x01AC\x02TAGS\x01a"}
    single = frame(fields, {}, b"body")
    batch = batch_frame(fields, {"language": "PYTHON"}, [(b"x", "k\x01v"), (b"y", "")])
    plain_batch = batch_frame(fields, {}, [(b"x", "k\x01v"), (b"y", "k\x01v")])
    before = required_kernel.counts()["sent"]
    logs = compared(tmp_path, [single * 4, plain_batch, batch, frame({**fields, "topic": "no"}, {}, b"x"), single])()
    assert required_kernel.counts()["sent"] - before == 4 + 2 + 1
    assert logs


def test_requests_at_the_end_of_a_segment_go_the_python_way(required_kernel: Kernel, tmp_path: Path) -> None:
    """A run that does not fit is stored as Python stores it: as much as fits, the rest in the next segment."""
    fields = {**USUAL, "properties": "UNIQ_KEY\x01AC\x02"}
    reads = [frame(fields, {}, bytes(1000)) * 5] * 4
    before = required_kernel.counts()["sent"]
    logs = compared(tmp_path, reads)()
    assert 0 < required_kernel.counts()["sent"] - before < 20
    assert len(logs[0]) > 9000
