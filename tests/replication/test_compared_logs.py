"""A follower compares its log with its master's: lost tails, gaps, messages that were sent again, other logs."""

from __future__ import annotations

import contextlib
import socket

import msgspec
import pytest

import reput
from command_line import run_reput
from delivering import wait_until
from replication.copies import SMALL_SEGMENT, assert_same_log, following, reaches, stops, written
from replication.fake_master import frame
from reput.errors import FollowError
from reput.remoting.request_code import RequestCode
from reput.replication import follower, master_configuration
from written_log import START_MS

pytestmark = pytest.mark.usefixtures("quick")


def test_a_master_that_lost_its_tail_is_refused_and_the_parting_is_named(master, log, tmp_path):
    """Its log ends before the copy. What is only here is counted; nothing is written."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    master.log = master.log[: log.offsets[45]]
    with following(master.address, copy) as store:
        reason = stops(store)
        assert store.durable == log.end
    assert f"from={log.offsets[45]} own_end={log.end}" in reason
    assert "records_only_here=5" in reason


def test_a_master_that_loses_its_tail_under_a_connection_is_refused_at_the_next(master, log, tmp_path):
    """The copy does not wait until the master's log has grown beyond its own."""

    def serve(accepted: socket.socket, asked: int) -> None:
        master.send_from(accepted, asked)
        with contextlib.suppress(OSError):
            master.take_reports(accepted, lambda report: report == log.end and accepted.shutdown(socket.SHUT_RDWR))
        master.log = master.log[: log.offsets[45]]

    master.serve = serve
    with following(master.address, tmp_path / "copy") as store:
        assert f"diverges from this copy: from={log.offsets[45]} own_end={log.end}" in stops(store)


def test_a_master_that_lost_its_tail_and_grew_again_is_found_by_the_overlap(master, log, tmp_path):
    """RocketMQ's slaves diverge in silence. Then --discard keeps the bytes, and the copy goes on."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    other = written(tmp_path / "other", 45)
    for _ in range(20):
        other.append(b"another " * 30)
    other.save()
    master.log = bytes(other.data)
    assert other.offsets[44] == log.offsets[44]
    with following(master.address, copy) as store:
        reason = stops(store)
    assert f"from={log.offsets[45]} " in reason
    assert "records_only_here=5" in reason
    with following(master.address, copy, discard=True) as store:
        reaches(store, other.end)
        store.wait_for("consume_queue", other.end, 60)
        bodies = [record.body for record in store.get("orders", 0, 44, count_max=100)]
        assert bodies == [b"b" * 200, *[b"another " * 30] * 20]
    assert_same_log(other.store, copy, 0, other.end, SMALL_SEGMENT)
    kept = b"".join(path.read_bytes() for path in sorted((copy / "reput" / "cut").iterdir()))
    assert bytes(log.data[log.offsets[45] : log.offsets[46]]) in kept


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_large_message_that_was_sent_again_does_not_hide_that_the_logs_part(fake_master, tmp_path, comes_back):
    """The last bytes of both logs are the same, because a producer has sent again what it had no answer to."""
    logs = []
    for number, name in enumerate(("old", "new")):
        log = written(tmp_path / name, 0)
        log.segment_size = 1 << 20
        for _ in range(3):
            log.append(b"both")
        log.append(name.encode())
        log.append(b"sent again" * 20_000, store_timestamp=START_MS + 1000 * number)
        log.save()
        logs.append(log)
    old, new = logs
    assert old.data[-100_000:] == new.data[-100_000:]
    fake_master.log, fake_master.segment_size = bytes(new.data), 1 << 20
    if comes_back:
        with pytest.raises(FollowError, match=f"records that the master lacks: from={old.offsets[3]} "):
            reput.follow(fake_master.address, old.store)
        return
    fake_master.log = bytes(old.data)
    with following(fake_master.address, tmp_path / "copy") as store:
        reaches(store, old.end)
    fake_master.log = bytes(new.data)
    with following(fake_master.address, tmp_path / "copy") as store:
        assert f"diverges from this copy: from={old.offsets[3]} " in stops(store)


def test_a_copy_that_compares_a_long_log_is_closed_at_once(master, log, tmp_path):
    """The thread does not first look for the place where the logs part."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    master.log = master.log[: log.offsets[45]]
    asked: list[int] = []
    sent = 0

    def serve(accepted: socket.socket, at: int) -> None:
        nonlocal sent
        asked.append(at)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(at, master.end):
            accepted.sendall(frame(number, master.log[number : number + 1]))
            sent += 1
            master.ended.wait(0.005)

    master.serve = serve
    with following(master.address, copy):
        wait_until(lambda: sent > 10)
    assert asked == [1]
    assert sent < master.end / 2


def test_a_gap_is_refused_and_named(master, log, tmp_path):
    """The master's retention was faster: its log begins behind the copy's end."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    later = written(tmp_path / "later", 10, begin=SMALL_SEGMENT * 10)
    master.log, master.offset_min = bytes(later.data), later.begin
    with following(master.address, copy) as store:
        reason = stops(store)
        assert store.durable == log.end
    assert f"removed records that were not copied: own_end={log.end} master_begin={later.begin}" in reason


def test_a_gap_that_opens_under_a_connection_is_refused_and_named(master, log, tmp_path, monkeypatch):
    """Its retention has removed what comes next: RocketMQ sends heartbeats then, for ever."""
    monkeypatch.setattr(follower, "QUIET_S", 0.1)
    monkeypatch.setattr(master_configuration, "INTERVAL_S", 0.05)
    copied = log.offsets[20]

    def serve(accepted: socket.socket, asked: int) -> None:
        master.send_from(accepted, asked, copied)
        master.log, master.offset_min = master.log[SMALL_SEGMENT * 2 :], SMALL_SEGMENT * 2
        while True:
            accepted.sendall(frame(copied))
            accepted.recv(64)

    assert copied < SMALL_SEGMENT * 2
    master.serve = serve
    with following(master.address, tmp_path / "copy") as store:
        assert f"removed records that were not copied: own_end={copied} master_begin={SMALL_SEGMENT * 2}" in stops(
            store
        )


def test_an_overlap_that_is_removed_as_it_is_asked_for_is_asked_for_anew(master, log, tmp_path, monkeypatch):
    """Behind what was removed, and the copy goes on."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    monkeypatch.setattr(follower, "QUIET_S", 0.1)
    monkeypatch.setattr(master_configuration, "INTERVAL_S", 0.05)

    def serve(accepted: socket.socket, asked: int) -> None:
        master.log, master.offset_min = master.log[-(master.end - SMALL_SEGMENT) :], SMALL_SEGMENT
        if asked < SMALL_SEGMENT:
            accepted.sendall(frame(asked))
            master.take_reports(accepted)
        master.send_log(accepted, asked)

    for _ in range(5):
        log.append(b"later")
    log.save()
    master.log = bytes(log.data)
    master.serve = serve
    with following(master.address, copy) as store:
        reaches(store, log.end)
    assert master.asked == [1, 1, SMALL_SEGMENT]
    assert_same_log(log.store, copy, 0, log.end, SMALL_SEGMENT)


def test_another_log_of_the_same_broker_is_refused(master, log, tmp_path):
    """The master was replaced by an empty one, which has got other messages."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    other = written(tmp_path / "other", 60, body=b"other" * 30)
    master.log = bytes(other.data)
    with following(master.address, copy) as store:
        assert "another log from its first byte on" in stops(store)


def test_an_old_master_is_told_what_parts_and_follows_only_with_discard(master, log, tmp_path):
    """It has records that the new master never got."""
    old = written(tmp_path / "old", 50)
    for _ in range(3):
        old.append(b"lost")
    old.save()
    grown = written(tmp_path / "new", 50)
    grown.append(b"kept")
    master.log = bytes(grown.data)
    refused = run_reput("follow", master.address, old.store)
    assert refused.code == 3
    assert f"records that the master lacks: from={log.end} until={old.end} records=3 queues=orders@0: 50 to 52" in (
        refused.stderr
    )
    with following(master.address, old.store, discard=True) as store:
        reaches(store, grown.end)
    (kept,) = (old.store / "reput" / "cut").iterdir()
    assert kept.read_bytes() == bytes(old.data[log.end :])


@pytest.mark.parametrize(
    "history",
    [
        {"marks": [{"offset": 4096, "size": 4097, "crc": 0}]},
        {"marks": [{"offset": -1, "size": 0, "crc": 0}]},
        {"marks": [{"offset": 1, "size": 1, "crc": 0}] * 33},
    ],
)
def test_a_master_does_not_decide_how_much_a_copy_reads_for_a_mark(master, log, tmp_path, history):
    """A mark of a whole segment would take as much memory; a reput sends 32 of 4 KiB."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    master.properties["reputEpoch"] = 2
    master.bodies[int(RequestCode.REPUT_GET_HISTORY)] = msgspec.json.encode({"store_id": "s", "epoch": 2, **history})
    with following(master.address, copy) as store:
        wait_until(lambda: "history cannot be read" in (store.following.reason or ""))


def test_a_master_whose_log_is_another_does_not_replace_the_configuration(master, log, tmp_path, monkeypatch):
    """A master that was set up anew has no topics and no offsets: only the copy still has them."""
    monkeypatch.setattr(master_configuration, "INTERVAL_S", 0.02)
    copy = tmp_path / "copy"
    topics = b'{"dataVersion":{"counter":%d,"timestamp":5},"topicConfigTable":{%s}}'
    master.bodies = {21: topics % (3, b'"orders":{"topicName":"orders"}'), 43: b'{"offsetTable":{"orders@g":{0:30}}}'}
    with following(master.address, copy) as store:
        reaches(store, log.end)
        wait_until(lambda: store._engine.services.managers.offsets.query_offset("g", "orders", 0) == 30)
    other = written(tmp_path / "other", 60, body=b"other" * 30)
    master.log = bytes(other.data)
    master.bodies = {21: topics % (9, b""), 43: b'{"offsetTable":{}}'}
    with following(master.address, copy) as store:
        assert "another log from its first byte on" in stops(store)
        # It is still asked where its log lies.
        begin = master.codes.count(28)
        wait_until(lambda: master.codes.count(28) > begin + 3)
        services = store._engine.services
        assert services.managers.offsets.query_offset("g", "orders", 0) == 30
        assert "orders" in services.topics.manager.entries
