"""Sends: passes a broker's requests to store messages through the kernel, from their frames to those of the answers.

    bytes of a connection ── take ──▶ requests ── put, once a turn of the loop ──▶ the log
    bytes of a connection ◀── frames of the answers ──┘

All other requests take the Python path, `SendMessageProcessor`. While messages wait there, every request takes it, so
that the messages of a connection keep their order.
"""

from __future__ import annotations

import msgspec

from reput.broker.requests.pending_puts import PendingPuts
from reput.broker.requests.send_message import SendMessageProcessor, born_host
from reput.broker.state.broker_topics import NOT_SENT_TO
from reput.kernel import KernelSends, SendRequests, kernel
from reput.remoting.connection import Connection
from reput.remoting.remoting_command import LANGUAGE, VERSION, decode_frame
from reput.remoting.turn import Turn
from reput.store.config.topic_config_manager import PERM_WRITE

__all__ = ["Sends", "kernel_sends"]


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
        for connection, frames in zip(connections, answers, strict=True):
            connection.send_frames(frames)


def kernel_sends(sends: SendMessageProcessor, puts: PendingPuts, turn: Turn) -> Sends | None:
    """Return the compiled path of sends; None: there is none, or sends need more than to be stored.

    Raises:
        ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
    """
    found = kernel()
    compiled = sends.appender.kernel
    if (
        found is None
        or compiled is None
        or not sends.takes_plain
        or puts.replicas is not None
        or puts.writer.sync_flush
    ):
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
