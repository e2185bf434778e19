"""Sends: passes a broker's requests to store messages through the kernel, from their frames to those of the answers.

    bytes of a connection ── take ──▶ requests ── put, once a turn of the loop ──▶ the log
    bytes of a connection ◀── frames of the answers ──┘
                                 once followers have the messages, with SYNC_MASTER

All other requests take the Python path, `SendMessageProcessor`. While messages wait there, every request takes it, so
that the messages of a connection keep their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import msgspec

from reput.broker.requests.pending_puts import PendingPuts
from reput.broker.requests.send_message import STATUS_CODES, SendMessageProcessor, born_host
from reput.broker.state.broker_topics import NOT_SENT_TO
from reput.kernel import KernelSends, SendRequests, kernel
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import LANGUAGE, VERSION, decode_frame, encode_frame
from reput.remoting.response_code import ResponseCode
from reput.remoting.turn import Turn
from reput.store.config.topic_config_manager import PERM_WRITE
from reput.store.record.message import PutMessageStatus

__all__ = ["Sends", "kernel_sends"]

# The property of a message that waits for no follower, as it stands in the frames of both header formats.
WAITS_FOR_NONE = re.compile(rb"WAIT(?:\x01|\\u0001)false")
# Each answer has one.
OPAQUE = b'"opaque":'
LENGTH_SIZE = 4

# The frames of the answers to a connection.
Answers = tuple[Connection, bytes]


class Sends:
    """Used in the thread of the broker's loop only."""

    def __init__(self, sends: SendMessageProcessor, puts: PendingPuts, turn: Turn, compiled: KernelSends) -> None:
        self.sends = sends
        self.puts = puts
        self.turn = turn
        self.compiled = compiled
        self.engine = sends.engine
        self.settings = sends.settings
        self.put_lock = sends.appender.put_lock
        self.replicas = puts.replicas
        self.connections: list[Connection] = []
        self.requests: list[SendRequests] = []
        puts.store_earlier = self.put

    def take(self, connection: Connection, data: memoryview) -> int:
        """Take the requests that *data* begins with; return their bytes, 0: the first takes the Python path."""
        if (
            self.puts.messages
            or self.sends.is_draining
            or not self.engine.delivers
            or not self.settings.broker_permission & PERM_WRITE
            or self.put_lock.locked()
            # A batch of this size is refused, although its records may fit the kernel's limits.
            or len(data) > self.settings.max_message_size
            or (self.replicas is not None and WAITS_FOR_NONE.search(data))
        ):
            return 0
        found = self.compiled.take(data, born_host(connection, self.sends.store_host))
        if found is None:
            return 0
        requests, size = found
        if not self.requests:
            self.turn.at_end(self.put)
        self.connections.append(connection)
        self.requests.append(requests)
        return size

    def put(self) -> None:
        """Store the messages of this turn, and answer."""
        if not self.requests:
            return
        connections, requests = self.connections, self.requests
        self.connections, self.requests = [], []
        answers = self.compiled.put(requests)
        if answers is None:
            for connection, refused in zip(connections, requests, strict=True):
                for frame in refused.frames():
                    connection.take(decode_frame(frame))
            return
        answered = list(zip(connections, answers, strict=True))
        if self.replicas is None:
            send_answers(answered, PutMessageStatus.PUT_OK)
            return
        end, count = self.sends.appender.commit_log.appended, sum(frames.count(OPAQUE) for frames in answers)
        self.puts.wait_for_followers(self.replicas, end, count, partial(send_answers, answered))


def send_answers(answers: Sequence[Answers], status: PutMessageStatus) -> None:
    """Send the answers to messages that are stored, with the outcome of their replication."""
    for connection, frames in answers:
        is_ok = status is PutMessageStatus.PUT_OK
        connection.send_frames(frames if is_ok else with_code(frames, STATUS_CODES[status]))


def with_code(frames: bytes, code: ResponseCode) -> bytes:
    """Return the frames of answers with another code."""
    pieces: list[bytes | memoryview] = []
    at = 0
    while at < len(frames):
        begin = at + LENGTH_SIZE
        at = begin + int.from_bytes(frames[at:begin], "big")
        answer = decode_frame(frames[begin:at])
        answer.code = code
        pieces += encode_frame(answer)
    return b"".join(pieces)


def kernel_sends(sends: SendMessageProcessor, puts: PendingPuts, turn: Turn) -> Sends | None:
    """Return the compiled path of sends; None: there is none, or sends need more than to be stored.

    Raises:
        ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
    """
    found = kernel()
    compiled = sends.appender.kernel
    if found is None or compiled is None or not sends.takes_plain or puts.writer.sync_flush:
        return None
    answer_fields = msgspec.json.encode(sends.common_fields)[1:-1].decode()
    return Sends(
        sends,
        puts,
        turn,
        found.KernelSends(
            compiled,
            sends.topics.topics.manager,
            sends.added_data,
            sorted(NOT_SENT_TO),
            answer_fields,
            LANGUAGE,
            VERSION,
        ),
    )
