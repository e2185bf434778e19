"""A broker in this process, and a client that speaks in frames: for tests of what the broker answers.

test's thread ── RawClient: frames over a socket ──▶ loop of the broker, on a thread of its own ──▶ inline store
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from delivering import LIMIT_S, wait_until
from reput.broker.broker import Broker
from reput.broker.requests.sent_message import SendHeader, ShortSendHeader
from reput.embedded.store_engine import StoreEngine
from reput.remoting.remoting_command import RemotingCommand, SerializeType, decode_frame, encode_frame
from reput.remoting.request_code import RequestCode
from reput.settings import Settings

# Of the fields of a send: the name in the first form of the header → in the second.
SHORT_NAMES = dict(zip(SendHeader.__struct_encode_fields__, ShortSendHeader.__struct_encode_fields__, strict=True))

__all__ = ["SMALL", "RawClient", "ServedBroker", "frame", "heartbeat_body", "served"]

Value = TypeVar("Value")

SMALL = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 6000,
    "max_hash_slot_num": 64,
    "max_index_num": 1000,
    "broker_name": "broker-a",
    "broker_cluster_name": "DefaultCluster",
    "dispatchers": ("consume_queue", "index"),
}


class ServedBroker:
    """A broker whose loop runs on a thread. The test's own thread asks it by `call` or over sockets.

    Attributes:
        broker: touched in the loop's thread only, by `call`.
        address: host and port.
    """

    def __init__(
        self, directory: Path, settings: Settings, make: Callable[..., Broker] = Broker, port: int = 0
    ) -> None:
        self.listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.address: tuple[str, int] = self.listener.getsockname()
        # Records name the broker's address, and clients connect to it.
        here = "{}:{}".format(*self.address)
        self.engine = StoreEngine(directory, replace(settings, store_host=here, born_host=here), "inline")
        self.make = make
        self.broker: Broker = None  # type: ignore[assignment]
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.stop: asyncio.Event = None  # type: ignore[assignment]
        self.started: Future[None] = Future()
        self.thread = threading.Thread(target=self.run, name="served-broker", daemon=True)
        self.thread.start()
        try:
            self.started.result(LIMIT_S)
        except BaseException:
            self.thread.join(LIMIT_S)
            self.engine.close()
            raise

    def run(self) -> None:
        """Serve until `close`."""
        try:
            asyncio.run(self.serve())
        except BaseException as error:
            if self.started.done():
                raise
            self.started.set_exception(error)

    async def serve(self) -> None:
        """Open a port and serve it."""
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        try:
            self.broker = self.make(self.engine, f"127.0.0.1:{self.address[1]}")
        except BaseException:
            self.listener.close()
            raise
        await self.broker.listen(self.listener)
        self.started.set_result(None)
        await self.stop.wait()
        await self.broker.close()

    def call(self, function: Callable[[], Value]) -> Value:
        """Return what *function* returns in the loop's thread."""
        done: Future[Value] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(LIMIT_S)

    def reaches(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds in the loop's thread."""
        wait_until(lambda: self.call(condition))

    def wait_until_readable(self, *views: str) -> None:
        """Wait until pulls find all that was put, and until the further *views* hold it: queries read the ``index``."""
        for view in ("consume_queue", *views):
            self.reaches(lambda view=view: self.engine.readable_up_to(view) >= self.engine.appended)

    def client(self, **options: Any) -> RawClient:
        """Return a new connection."""
        return RawClient(self.address, **options)

    def close(self) -> None:
        """End the broker, then the store."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(LIMIT_S)
        self.engine.close()


@contextmanager
def served(
    path: Path, *, make: Callable[..., Broker] = Broker, port: int = 0, **settings: Any
) -> Iterator[ServedBroker]:
    """Serve a store of small segments in *path*."""
    broker = ServedBroker(path, Settings(**{**SMALL, **settings}), make, port)
    try:
        yield broker
    finally:
        broker.close()


class RawClient:
    """One connection of a client that builds its frames itself. It answers nothing that the broker asks."""

    def __init__(
        self, address: tuple[str, int], *, wrap: Callable[[socket.socket], socket.socket] | None = None
    ) -> None:
        self.socket = socket.create_connection(address, timeout=LIMIT_S)
        if wrap is not None:
            self.socket = wrap(self.socket)
        self.opaques = itertools.count(1)
        self.data = bytearray()
        # Requests of the broker, and answers to other requests than the one that is waited for.
        self.others: list[RemotingCommand] = []

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def begin(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        **header: Any,
    ) -> int:
        """Send a request; return its number."""
        opaque = next(self.opaques)
        command = RemotingCommand(code, fields or {}, body, opaque=opaque, flag=2 if oneway else 0, **header)
        self.write(b"".join(encode_frame(command)))
        return opaque

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", **header: Any
    ) -> RemotingCommand:
        """Send a request and return its answer."""
        return self.answer_to(self.begin(code, fields, body, **header))

    def answer_to(self, opaque: int) -> RemotingCommand:
        """Return the answer to a request; others that come before it are kept in `others`."""
        for number, command in enumerate(self.others):
            if command.is_response and command.opaque == opaque:
                return self.others.pop(number)
        while True:
            command = self.read()
            if command.is_response and command.opaque == opaque:
                return command
            self.others.append(command)

    def request(self, code: int) -> RemotingCommand:
        """Return the next request of a code that the broker sends, or has sent."""
        for number, command in enumerate(self.others):
            if not command.is_response and command.code == code:
                return self.others.pop(number)
        while True:
            command = self.read()
            if not command.is_response and command.code == code:
                return command
            self.others.append(command)

    def read(self) -> RemotingCommand:
        """Return the next frame.

        Raises:
            EOFError: the broker has ended the connection.
        """
        while True:
            if len(self.data) >= 4:
                size = int.from_bytes(self.data[:4], "big")
                if len(self.data) >= 4 + size:
                    command = decode_frame(bytes(self.data[4 : 4 + size]))
                    del self.data[: 4 + size]
                    return command
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the broker has ended the connection")
            self.data += data

    def respond(self, request: RemotingCommand, code: int = 0) -> None:
        """Answer a request of the broker."""
        self.write(b"".join(encode_frame(RemotingCommand(code).response_to(request))))

    def is_ended(self) -> bool:
        """Wait until the broker ends the connection, whatever it sends before; False: it does not."""
        try:
            while True:
                self.read()
        except EOFError:
            return True
        except TimeoutError:
            return False

    # Requests that many tests need.

    def send_message(
        self,
        topic: str,
        body: bytes = b"body",
        properties: Mapping[str, str] | None = None,
        *,
        queue_id: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        fields: Mapping[str, str] | None = None,
        **header: Any,
    ) -> RemotingCommand:
        """Send one message and return the answer; *fields* replace those of the header."""
        return self.ask(code, send_fields(topic, properties, queue_id, code, fields), body, **header)

    def heartbeat(
        self, client_id: str, *, producers: tuple[str, ...] = (), **consumers: Mapping[str, str]
    ) -> RemotingCommand:
        """Send a heartbeat; ``group={topic: expression}`` names a consumer group and what it has subscribed to."""
        return self.ask(RequestCode.HEART_BEAT, body=heartbeat_body(client_id, producers, consumers))

    def pull(self, group: str, topic: str, queue_offset: int = 0, **fields: object) -> RemotingCommand:
        """Pull from a queue and return the answer."""
        return self.answer_to(self.begin_pull(group, topic, queue_offset, **fields))

    def begin_pull(
        self, group: str, topic: str, queue_offset: int = 0, *, code: int = RequestCode.PULL_MESSAGE, **fields: object
    ) -> int:
        """Begin a pull; return its number."""
        header: dict[str, object] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": queue_offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
            **fields,
        }
        return self.begin(code, {name: str(value) for name, value in header.items()})


def send_fields(
    topic: str,
    properties: Mapping[str, str] | None = None,
    queue_id: int = 0,
    code: int = RequestCode.SEND_MESSAGE_V2,
    fields: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the header of a send, with the names that its code has."""
    values = {
        "producerGroup": "pg",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items()),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        **(fields or {}),
    }
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return values
    return {SHORT_NAMES.get(name, name): value for name, value in values.items()}


def heartbeat_body(
    client_id: str, producers: tuple[str, ...] = (), consumers: Mapping[str, Mapping[str, str]] | None = None
) -> bytes:
    """Return the body of a heartbeat."""
    return json.dumps(
        {
            "clientID": client_id,
            "producerDataSet": [{"groupName": group} for group in producers],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "unitMode": False,
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": expression, "expressionType": "TAG", "subVersion": 0}
                        for topic, expression in topics.items()
                    ],
                }
                for group, topics in (consumers or {}).items()
            ],
        }
    ).encode()


def frame(header: bytes, body: bytes = b"", serialize_type: int = SerializeType.JSON) -> bytes:
    """Return a frame whose header is given as bytes."""
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + (serialize_type << 24 | len(header)).to_bytes(4, "big")
        + header
        + body
    )
