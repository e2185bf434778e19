"""Bytes that change between master and follower: nothing wrong is appended or acknowledged, and the fault is named."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from delivering import wait_until
from replication.copies import SMALL_SEGMENT, assert_same_log, following, written
from replication.fake_master import FakeMaster, frame
from replication.meddler import FAULTS, Meddler
from reput.broker.broker import Broker
from reput.remoting.response_code import ResponseCode
from reput.replication import follower
from reput.replication.follower import FollowState
from reput.replication.ha_server import HaServer
from reput.store.log.log_scan import LogScan
from reput_hooks import Record
from serving import ServedBroker, served

SEGMENT = 1 << 20
ROUNDS = 30
LONG_ALONE = [pytest.param((fault,), marks=pytest.mark.long) for fault in FAULTS[1:]]
LONG_TWENTY = [pytest.param(fault, 20, marks=pytest.mark.long) for fault in FAULTS]
KEYED = {"UNIQ_KEY": "AC" + "0" * 30}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that connects again at once, however often it is deceived."""
    monkeypatch.setattr(follower, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(follower, "PAUSE_MAX_S", 0.02)
    monkeypatch.setattr(follower, "READ_WAIT_S", 0.05)


@contextmanager
def sync_master(path: Path) -> Iterator[tuple[ServedBroker, HaServer]]:
    """Serve a synchronous master."""
    listener = socket.create_server(("127.0.0.1", 0))
    servers: list[HaServer] = []

    def make(engine, address) -> Broker:
        servers.append(HaServer(engine, listener))
        broker = Broker(engine, address, ha_server=servers[0])
        servers[0].start(broker.turn)
        return broker

    settings = {"broker_role": "SYNC_MASTER", "slave_timeout": 300, "mapped_file_size_commit_log": SEGMENT}
    with served(path, make=make, **settings) as broker:
        yield broker, servers[0]
        servers[0].stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [("flip",), FAULTS, *(pytest.param((fault,), marks=pytest.mark.long) for fault in FAULTS[1:])],
    ids="-".join,
)
def test_a_reput_takes_and_confirms_nothing_that_changed_between_it_and_its_master(tmp_path, faults):
    """On both ways. What was answered with SEND_OK is on the copy's disk at that moment, byte for byte."""
    with (
        sync_master(tmp_path / "master") as (broker, server),
        Meddler(server.listener.getsockname(), seed=len(faults[0])) as meddler,
        following(meddler.address, tmp_path / "copy", broker="{}:{}".format(*broker.address)) as copy,
        broker.client() as client,
    ):
        wait_until(lambda: server.in_sync_count() == 1)
        meddler.faults = faults
        confirmed = 0
        while confirmed < ROUNDS or not all(meddler.committed[fault] for fault in faults):
            answer = client.send_message("orders", os.urandom(2000), KEYED)
            end = broker.engine.appended
            if answer.code == ResponseCode.SUCCESS:
                confirmed += 1
                assert copy.durable >= end
            assert copy.following.state is not FollowState.STOPPED, copy.following
        meddler.faults = ()
        wait_until(lambda: copy.durable == broker.engine.appended)
        end = copy.durable
    assert_same_log(tmp_path / "master", tmp_path / "copy", 0, end, SEGMENT)


def test_a_byte_that_changed_on_the_way_is_no_divergence(tmp_path, caplog):
    """The overlap differs at one connection only: both logs are asked for again, and the follower goes on."""
    log = written(tmp_path / "master", 100)
    with FakeMaster(bytes(log.data)) as master:
        ended = threading.Event()

        def serve(accepted: socket.socket, asked: int) -> None:
            count = len(master.asked)
            data = master.log[asked:]
            if count == 1:
                accepted.sendall(frame(asked, data[: master.segment_size - asked]))
                ended.wait(60)
            elif count == 2:
                changed = data[:500] + bytes([data[500] ^ 1]) + data[501 : master.segment_size - asked]
                accepted.sendall(frame(asked, changed))
                master.take_reports(accepted)
            else:
                master.send_log(accepted, asked)

        master.serve = serve
        with following(master.address, tmp_path / "copy", broker=broker_of(master)) as copy:
            wait_until(lambda: copy.durable > log.offsets[5])
            ended.set()
            wait_until(lambda: copy.durable == master.end or copy.following.state is FollowState.STOPPED)
            assert copy.durable == master.end, copy.following
    assert "bytes of the master's log have changed on the way" in caplog.text
    assert_same_log(tmp_path / "master", tmp_path / "copy", 0, master.end, SMALL_SEGMENT)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "count"), [("flip", 1), ("double", 1), *LONG_TWENTY])
def test_of_rocketmqs_protocol_no_changed_body_is_taken_nor_is_a_record_at_a_wrong_place(tmp_path, fault, count):
    """It has a CRC of bodies only, and none of its reports; the follower goes on, or stops and names the place."""
    log = written(tmp_path / "master", 400)
    for seed in range(count):
        directory = tmp_path / f"copy{seed}"
        with FakeMaster(bytes(log.data)) as master:
            host, port = master.address.split(":")
            with (
                Meddler((host, int(port)), seed, share=0.3) as meddler,
                following(meddler.address, directory, broker=broker_of(master)) as copy,
            ):
                meddler.faults = (fault,)
                wait_until(lambda: copy.durable == master.end or copy.following.state is FollowState.STOPPED)
                end, error = copy.durable, copy.following.reason
                if copy.following.state is FollowState.STOPPED:
                    assert error is not None
                    assert "offset" in error or "from=" in error
        for at in (at for at in log.offsets if at < end):
            theirs, ours = record_at(log.store, at), record_at(directory, at)
            assert (ours.commit_log_offset, ours.record_size) == (at, theirs.record_size)
            assert ours.body == theirs.body


def record_at(store: Path, commit_log_offset: int) -> Record:
    """Return one record of a log."""
    scan = LogScan(store)
    try:
        size = int.from_bytes(scan.read_bytes(commit_log_offset, 4), "big")
        return scan.read(commit_log_offset, size)
    finally:
        scan.close()


def broker_of(master: FakeMaster) -> str:
    """Return where a scripted master answers requests."""
    return f"127.0.0.1:{master.remoting.getsockname()[1]}"
