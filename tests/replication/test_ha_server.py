"""The HA port of a store: what followers of every kind are sent, and which of them are refused."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from certificates import write_certificate
from delivering import wait_until
from replication.copies import assert_same_log, following, reaches
from reput.access.protection import server_tls
from reput.embedded.store_engine import StoreEngine
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.tls import HANDSHAKE_BYTE
from reput.replication import ha_connection, ha_server
from reput.replication.ha_connection import Protection
from reput.replication.ha_protocol import HELLO, hello
from reput.replication.ha_server import HaServer
from reput.settings import Settings
from reput.store.record.message import Message

SEGMENT = 64 << 10


class Master:
    """A store with an HA port, and a raw follower of it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        given = {"mapped_file_size_commit_log": SEGMENT, "max_hash_slot_num": 64, "max_index_num": 1000, **settings}
        self.directory = directory
        self.engine = StoreEngine(directory, Settings(**given), "inline")
        self.server = HaServer(self.engine, socket.create_server(("127.0.0.1", 0)))
        self.server.start()
        self.address = self.server.listener.getsockname()

    def put(self, count: int, size: int = 1000) -> int:
        """Put *count* messages; return where the log ends."""
        self.engine.writer.put_batch([Message("orders", b"x" * size) for _ in range(count)])
        return self.engine.appended

    def connect(self, report: int | None = None) -> socket.socket:
        """Return a follower's connection."""
        connection = socket.create_connection(self.address, timeout=60)
        if report is not None:
            connection.sendall(struct.pack(">q", report))
        return connection

    def log(self, begin: int, end: int) -> bytes:
        """Return the log's bytes."""
        return b"".join(
            (self.directory / "commitlog" / f"{at:020d}").read_bytes()[max(begin - at, 0) : end - at]
            for at in range(begin - begin % SEGMENT, end, SEGMENT)
        )

    def close(self) -> None:
        """End the port, then the store."""
        self.server.stop()
        self.engine.close()


@contextmanager
def serving_log(path: Path, **settings: Any) -> Iterator[Master]:
    """Serve a log inside the block."""
    master = Master(path / "master", **settings)
    try:
        yield master
    finally:
        master.close()


@pytest.fixture
def master(tmp_path) -> Iterator[Master]:
    """A master with RocketMQ's times."""
    with serving_log(tmp_path) as master:
        yield master


def read(connection: socket.socket, size: int) -> bytes:
    """Return exactly *size* bytes."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the master has ended the connection"
        data += piece
    return data


def frames(connection: socket.socket, end: int) -> tuple[int, bytes]:
    """Return where the frames begin, and their bodies, up to commit-log offset *end*."""
    first, body = -1, b""
    while first < 0 or first + len(body) < end:
        offset, size = struct.unpack(">qi", read(connection, 12))
        first = offset if first < 0 else first
        assert offset == first + len(body)
        assert offset % SEGMENT + size <= SEGMENT
        body += read(connection, size)
    return first, body


def test_a_follower_gets_no_more_a_second_than_was_set(tmp_path):
    """A second's worth at once, then at the rate: what is behind that cannot have come sooner."""
    rate = 100_000
    with serving_log(tmp_path, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=rate) as master:
        end = master.put(300)
        assert end > 3 * rate
        begin = time.monotonic()
        with master.connect(0) as connection:
            assert frames(connection, end) == (0, master.log(0, end))
        # A frame may overdraw it.
        at_once = rate + master.engine.settings.ha_transfer_batch_size
        assert time.monotonic() - begin > (end - at_once) / rate


def is_ended(connection: socket.socket) -> bool:
    """Wait until the master ends the connection, whatever it sends before."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("asked", [0, 1, 777, SEGMENT - 1, SEGMENT])
def test_a_follower_gets_the_log_from_where_it_asks(master, asked):
    """Any byte; 0 is the whole log, and never only its last segment."""
    end = master.put(200)
    with master.connect(asked) as connection:
        assert frames(connection, end) == (asked, master.log(asked, end))
        # At the end it waits, and gets what comes, at once.
        grown = master.put(1)
        assert frames(connection, grown) == (end, master.log(end, grown))


def test_reports_come_in_pieces_and_several_at_once(master):
    """The last whole one counts."""
    end = master.put(10)
    with master.connect() as connection:
        report = struct.pack(">q", end)
        connection.sendall(report[:3])
        connection.sendall(report[3:])
        wait_until(lambda: [row.acknowledged for row in master.server.followers()] == [end])
        assert master.server.acknowledged_by_count(1) == -1
        grown = master.put(2)
        frames(connection, grown)
        connection.sendall(struct.pack(">qq", end, grown))
        wait_until(lambda: master.server.acknowledged_by_count(1) == grown)
    wait_until(lambda: master.server.followers() == [])
    assert master.server.acknowledged_by_count(1) == -1


@pytest.mark.parametrize("report", [lambda end: end + 1, lambda end: -5, lambda end: 1 << 62])
def test_a_first_report_that_cannot_be_ends_the_connection(master, report, caplog):
    """Beyond the end, or negative; it confirms nothing."""
    end = master.put(10)
    with master.connect(report(end)) as connection:
        assert is_ended(connection)
    wait_until(lambda: "a follower has gone" in caplog.text)


def test_a_later_report_of_what_was_not_sent_ends_the_connection(master):
    """It would confirm messages that nobody has."""
    end = master.put(10)
    with master.connect(end) as connection:
        wait_until(lambda: len(master.server.followers()) == 1)
        connection.sendall(struct.pack(">q", end + 1))
        assert is_ended(connection)


def test_what_retention_has_removed_cannot_be_asked_for(master, caplog):
    """The connection ends with a reason, instead of heartbeats for ever."""
    master.put(200)
    first = sorted((master.directory / "commitlog").iterdir())[0]
    master.engine.writer.trim(first, SEGMENT)
    with master.connect(10) as connection:
        assert is_ended(connection)
    wait_until(lambda: f"asked=10 log_begin={SEGMENT}" in caplog.text)


def test_heartbeats_come_with_the_next_offset_and_silence_ends_a_connection(tmp_path):
    """Within the interval, and a follower or a bare connection that says nothing is dropped."""
    with serving_log(tmp_path, ha_send_heartbeat_interval=100, ha_housekeeping_interval=1500) as master:
        end = master.put(10)
        bare = master.connect()
        with master.connect(end) as connection:
            assert read(connection, 24) == struct.pack(">qi", end, 0) * 2
            assert is_ended(connection)
        assert is_ended(bare)
        bare.close()
        assert master.server.in_sync_count() == 0


def test_connections_that_ask_for_nothing_keep_no_follower_out(master, monkeypatch):
    """The oldest of them makes room; where all are followers, a further one is refused."""
    monkeypatch.setattr(ha_server, "FOLLOWERS_MAX", 3)
    end = master.put(1)
    with ExitStack() as stack:
        silent = [stack.enter_context(master.connect()) for _ in range(3)]
        for count in range(1, 4):
            follower = stack.enter_context(master.connect(1))
            assert frames(follower, end) == (1, master.log(1, end))
            assert is_ended(silent[count - 1])
        assert is_ended(stack.enter_context(master.connect(1)))
        assert len(master.server.all_connections()) == 3


def test_a_flood_of_connections_keeps_no_follower_out_and_does_not_fill_the_log(master, monkeypatch, caplog):
    """What a follower has asked for is read before it would have to make room for those that came after it."""
    end = master.put(1)
    held, came = threading.Event(), threading.Event()
    read_of = HaServer.read

    def read_later(self, connection) -> None:
        came.set()
        held.wait(60)
        read_of(self, connection)

    monkeypatch.setattr(HaServer, "read", read_later)
    with ExitStack() as stack:
        stack.enter_context(master.connect(end))
        assert came.wait(60)
        follower = stack.enter_context(master.connect(1))
        for _ in range(100):
            stack.enter_context(master.connect())
        held.set()
        assert frames(follower, end) == (1, master.log(1, end))
        wait_until(lambda: len(master.server.all_connections()) == ha_server.FOLLOWERS_MAX)
        assert len(master.server.followers()) == 2
    assert caplog.text.count("too many followers") == 1


def test_a_follower_that_does_not_read_holds_up_nobody(master):
    """Its socket is full; the others and the puts go on, and it gets everything in the end."""
    # An empty log does not have what they ask for.
    end = master.put(1)
    with master.connect(1) as slow, master.connect(1) as quick:
        received = 0
        for _ in range(15):
            end = master.put(200, 2000)
        first, body = frames(quick, end)
        received += len(body)
        assert first + received == end
        assert frames(slow, end) == (1, master.log(1, end))


def test_a_follower_far_behind_is_held_while_puts_go_first_and_gets_all_in_the_end(master, monkeypatch):
    """Those that keep up are not."""
    monkeypatch.setattr(ha_server, "FAR_BEHIND", SEGMENT)
    end = master.put(200)
    with monkeypatch.context() as holding:
        holding.setattr(master.server.pace, "wait", lambda now: 0.05)
        with master.connect(1) as slow, master.connect(end) as quick:
            wait_until(lambda: [one.held_for for one in master.server.all_connections()] == [0.05, 0.0])
            grown = master.put(2)
            assert frames(quick, grown) == (end, master.log(end, grown))
            wait_until(lambda: [one.sent for one in master.server.all_connections()] == [1, grown])
            holding.undo()
            assert frames(slow, grown) == (1, master.log(1, grown))


def test_a_follower_far_behind_is_not_held_if_the_puts_wait_for_it(tmp_path, monkeypatch):
    """They are slow as long as it is behind: it goes first."""
    monkeypatch.setattr(ha_server, "FAR_BEHIND", SEGMENT)
    with serving_log(tmp_path, broker_role="SYNC_MASTER") as master:
        end = master.put(200)
        monkeypatch.setattr(master.server.pace, "wait", lambda now: 0.05)
        with master.connect(1) as slow:
            assert frames(slow, end) == (1, master.log(1, end))
            with master.connect(end), master.connect(1):
                wait_until(lambda: [one.held_for for one in master.server.all_connections()] == [0.0, 0.0, 0.05])


def test_a_reput_that_does_not_read_takes_the_memory_of_one_frame(master):
    """Its frames are read for their CRC, one at a time."""
    end = master.put(1)
    with master.connect() as slow:
        slow.sendall(hello(RemotingCommand(RequestCode.REPUT_FOLLOW, {"offset": "1"})))
        for _ in range(25):
            end = master.put(200, 2000)
        wait_until(lambda: [connection.is_blocked for connection in master.server.all_connections()] == [True])
        (connection,) = master.server.all_connections()
        assert connection.sent < end - 2 * ha_connection.CATCH_UP_SIZE
        assert len(connection.body) <= ha_connection.CATCH_UP_SIZE


@pytest.mark.parametrize("fields", [b'"\xff"', b"[1e999]", b'{"a":1e999}'])
def test_a_request_whose_fields_cannot_be_read_ends_its_connection_alone(master, fields, caplog):
    """Fields are decoded later than the rest of a request; the thread serves all others."""
    end = master.put(1)
    header = b'{"code":52002,"extFields":{"offset":%b}}' % fields
    with master.connect(HELLO) as garbled:
        request = struct.pack(">iI", 4 + len(header), len(header)) + header
        garbled.sendall(struct.pack(">I", zlib.crc32(request)) + request)
        assert is_ended(garbled)
    wait_until(lambda: "a follower's request cannot be read" in caplog.text)
    with master.connect(1) as other:
        assert frames(other, end) == (1, master.log(1, end))


def test_a_connection_that_is_reset_as_it_begins_to_encrypt_ends_alone(master, tmp_path):
    """Its first byte can still be read, and its socket is no connection any more."""
    made = write_certificate(tmp_path, "server")
    tls = server_tls(Settings(tls_server_cert_path=str(made.cert), tls_server_key_path=str(made.key)))
    end = master.put(1)
    server = HaServer(master.engine, socket.create_server(("127.0.0.1", 0)))
    server.protection = Protection(tls)
    with socket.create_connection(server.listener.getsockname()) as reset:
        reset.sendall(HANDSHAKE_BYTE)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.start()
    try:
        with socket.create_connection(server.listener.getsockname(), timeout=60) as other:
            other.sendall(struct.pack(">q", 1))
            assert frames(other, end) == (1, master.log(1, end))
    finally:
        server.stop()


def test_a_follower_for_which_there_is_no_descriptor_waits_and_keeps_the_thread_idle(master, monkeypatch):
    """It is looked for again after a pause, and served once there is one."""
    monkeypatch.setattr(ha_server, "LOOK_S", 0.1)
    listener = socket.create_server(("127.0.0.1", 0))
    has_failed = 0

    def accept() -> Any:
        nonlocal has_failed
        if has_failed < 4:
            has_failed += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return listener.accept()

    end = master.put(1)
    server = HaServer(master.engine, Mock(wraps=listener, accept=accept))
    server.start()
    began = time.monotonic()
    try:
        with socket.create_connection(listener.getsockname(), timeout=60) as follower:
            follower.sendall(struct.pack(">q", 1))
            assert frames(follower, end) == (1, master.log(1, end))
            assert time.monotonic() - began > 4 * 0.1
    finally:
        server.stop()


def test_the_death_of_the_thread_is_told_and_the_store_closes(master, monkeypatch):
    """`reput status` names the thread; its followers are gone."""
    with master.connect(0) as follower:
        end = master.put(1)
        frames(follower, end)
        monkeypatch.setattr(HaServer, "serve_once", Mock(side_effect=RuntimeError("planted")))
        master.put(1)
        wait_until(lambda: "reput-ha" in master.engine.threads.deaths)
        assert master.server.followers() == []


def test_a_reput_follows_a_reput_and_is_followed_itself(tmp_path, fake_master):
    """A copy of a copy is the same log."""
    with serving_log(tmp_path) as master:
        end = master.put(100)
        fake_master.segment_size = SEGMENT
        # The requests are answered for each master's HA port by one that tells its end.
        fake_master.log = bytes(end)
        broker = f"127.0.0.1:{fake_master.remoting.getsockname()[1]}"
        host, port = master.address
        with following(f"{host}:{port}", tmp_path / "a", broker=broker) as first:
            reaches(first, end)
            server = HaServer(first._engine, socket.create_server(("127.0.0.1", 0)))
            server.start()
            try:
                host, port = server.listener.getsockname()
                with following(f"{host}:{port}", tmp_path / "b", broker=broker) as second:
                    reaches(second, end)
                    grown = master.put(50)
                    fake_master.log = bytes(grown)
                    reaches(second, grown)
            finally:
                server.stop()
        assert_same_log(master.directory, tmp_path / "a", 0, grown, SEGMENT)
        assert_same_log(master.directory, tmp_path / "b", 0, grown, SEGMENT)


def test_retention_waits_for_followers(master):
    """They stand among the dispatchers that do not have a segment yet."""
    master.put(200)
    master.engine.writer.flush()
    with master.connect(5):
        wait_until(lambda: len(master.server.followers()) == 1)
        (name,) = master.server.cursors()
        fate = master.engine.writer.retention.plan(asked=True)[0]
        assert name in fate.missed_by
