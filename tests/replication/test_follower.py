"""A follower at a master that does what RocketMQ does not: bad frames, wrong answers, silence."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from contextlib import ExitStack
from unittest.mock import Mock

import pytest

import reput
from command_line import run_reput
from delivering import wait_until
from replication.copies import INLINE, SMALL_SEGMENT, assert_same_log, following, reaches, stops, written
from replication.fake_master import FakeMaster, frame
from reput.errors import BrokerError, ConfigError, FollowError, StoreClosed, WaitTimeout
from reput.replication import master_configuration, master_stream
from reput.replication.follower import Follower, FollowState
from reput.store.disk.files import Files
from reput.store.record.layout import MESSAGE_MAGIC_CODE
from reput.store.state.followed_master import read_followed_master
from reput.store.state.lease_mark import LEASE_MARK, LeaseMark
from written_log import WrittenLog

pytestmark = pytest.mark.usefixtures("quick")


def test_a_copy_is_the_same_log_and_acknowledges_only_what_is_on_disk(master, log, tmp_path):
    """The first report asks, alone; each later one is an end of whole records that are forced."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
        assert store.commit_log_offset_min == 0
        wait_until(lambda: log.end in master.reports)
        store.wait_for("consume_queue", log.end, 60)
        assert [record.queue_offset for record in store.get("orders", 0, 0, count_max=100)] == list(range(50))
    assert master.asked == [1]
    sizes = [int.from_bytes(log.data[offset : offset + 4], "big") for offset in log.offsets]
    ends = {offset + size for offset, size in zip(log.offsets, sizes, strict=True)}
    # A segment's begin is the end of the blank before it.
    assert {report for report in master.reports if report % SMALL_SEGMENT} <= {1, *ends}
    assert_same_log(log.store, copy, 0, log.end, SMALL_SEGMENT)
    assert run_reput("check", copy).code == 0


def test_frames_in_single_bytes_and_all_at_once_are_the_same_log(master, log, tmp_path):
    """As the network likes."""

    def in_bytes(accepted: socket.socket, asked: int) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(asked, master.log[asked:600]):
            accepted.send(bytes((byte,)))
        master.send_from(accepted, 600, size_max=17)
        master.take_reports(accepted)

    master.serve = in_bytes
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
    assert_same_log(log.store, tmp_path / "copy", 0, log.end, SMALL_SEGMENT)


def test_a_connection_that_is_lost_anywhere_is_taken_up(master, log, tmp_path):
    """In a header, in a record, one byte before and behind the end of a segment."""
    lost = [5, 12, 13, 500, SMALL_SEGMENT - 1, SMALL_SEGMENT, SMALL_SEGMENT + 1, SMALL_SEGMENT * 2 + 12 * 9 + 7]

    def serve(accepted: socket.socket, asked: int) -> None:
        if not lost:
            return master.send_log(accepted, asked)
        # Frames of 256 bytes, up to that byte on the wire.
        wire, at = b"", asked
        while at < master.end:
            size = min(256, SMALL_SEGMENT - at % SMALL_SEGMENT, master.end - at)
            wire += frame(at, master.log[at : at + size])
            at += size
        return accepted.sendall(wire[: lost.pop(0)])

    master.serve = serve
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
        assert store.following.connections == 9
    assert_same_log(log.store, tmp_path / "copy", 0, log.end, SMALL_SEGMENT)


def test_an_idle_copy_reports_again_and_again_and_changes_nothing_at_its_master(master, log, tmp_path, monkeypatch):
    """RocketMQ drops a slave that says nothing for 20 s. No request registers the copy, or writes anything."""
    assert master_stream.REPORT_INTERVAL_S < 5
    monkeypatch.setattr(master_stream, "REPORT_INTERVAL_S", 0.05)
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
        wait_until(lambda: master.reports[-5:] == [log.end] * 5)
        wait_until(lambda: {26, 28, 21, 43, 45, 201, 402, 60, 61} == set(master.codes))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (frame(9999, b"abc"), "another place"),
        (frame(9999), "another place"),
        (struct.pack(">qi", 1, -7), "impossible size"),
        (struct.pack(">qi", 1, 5 << 20), "impossible size"),
        (struct.pack(">qi", 1, 4096), "across two segments"),
    ],
)
def test_a_bad_frame_ends_the_connection_and_writes_nothing(master, log, tmp_path, bad, reason):
    """The next connection, to a master that has come to its senses, copies the log."""
    answers = [bad, bad]

    def serve(accepted: socket.socket, asked: int) -> None:
        if answers:
            accepted.sendall(answers.pop())
            master.take_reports(accepted)
        else:
            master.send_log(accepted, asked)

    master.serve = serve
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
        assert store.following.connections == 3
    assert master.asked == [1, 1, 1]
    assert_same_log(log.store, tmp_path / "copy", 0, log.end, SMALL_SEGMENT)


def test_a_broken_record_stops_the_following_and_is_named(master, log, tmp_path):
    """All before it is copied; `status` and the command say where it lies."""
    begin = log.offsets[20]
    broken = bytearray(master.log)
    broken[begin + 100] ^= 1
    master.log = bytes(broken)
    with following(master.address, tmp_path / "copy") as store:
        assert f"wrong CRC: from={begin}" in stops(store)
        wait_until(lambda: store.durable == begin)
        with pytest.raises(FollowError, match="wrong CRC"):
            store.wait_copied(log.end, timeout=60)


def test_a_copy_continues_from_its_durable_end_with_an_overlap(master, log, tmp_path):
    """At each connection the bytes before the end are compared before anything is appended."""
    copy = tmp_path / "copy"
    whole, master.log = master.log, master.log[: log.offsets[25]]
    with following(master.address, copy) as store:
        reaches(store, log.offsets[25])
    master.log = whole
    with following(master.address, copy) as store:
        reaches(store, log.end)
    assert len(master.asked) == 2
    assert_same_log(log.store, copy, 0, log.end, SMALL_SEGMENT)


def test_a_master_does_not_decide_how_large_a_record_is_held(fake_master, tmp_path):
    """It may claim anything; the operator of the copy allows records beyond what a client can send."""
    size, segment = 20 << 20, 32 << 20
    fake_master.properties["maxMessageSize"] = 1 << 30
    fake_master.log, fake_master.segment_size = struct.pack(">II", size, MESSAGE_MAGIC_CODE), segment
    with following(fake_master.address, tmp_path / "copy") as store:
        assert f"record that is too large: commit_log_offset=0 record_size={size}" in stops(store)


def test_a_record_larger_than_the_master_takes_now_is_copied_if_the_copy_may_have_it(fake_master, tmp_path):
    """It was stored before maxMessageSize was lowered; max_message_size of the copy counts as well."""
    log = WrittenLog(tmp_path / "master", 1 << 20)
    log.append(b"x" * 200_000)
    log.save()
    fake_master.log, fake_master.segment_size = bytes(log.data), 1 << 20
    fake_master.properties["maxMessageSize"] = 1000
    copy = tmp_path / "copy"
    with following(fake_master.address, copy, max_message_size=1000) as store:
        assert "record that is too large: commit_log_offset=0" in stops(store)
        assert "max_message_size" in store._follower.error.advice
    with following(fake_master.address, copy) as store:
        reaches(store, log.end)


@pytest.mark.parametrize(
    "table",
    [
        b'{"commitLogMaxOffset":"x","commitLogMinOffset":"0"}',
        b'{"commitLogMaxOffset":"9"}',
        b'{"commitLogMaxOffset":null}',
        b'{"commitLogMaxOffset":1e400,"commitLogMinOffset":"0"}',
        b'{"commitLogMaxOffset":"100","commitLogMinOffset":"4096"}',
        b'{"commitLogMaxOffset":"9223372036854775808","commitLogMinOffset":"0"}',
    ],
)
def test_a_master_that_does_not_say_where_its_log_lies_is_no_end_of_the_copy(master, log, tmp_path, table, monkeypatch):
    """What it says is asked for again; of a master that says it, a copy is begun."""
    monkeypatch.setattr(master_configuration, "INTERVAL_S", 0.02)
    garbled = {28: b'{"table":%b}' % table}
    master.bodies = garbled
    with pytest.raises(BrokerError, match="where its log ends"):
        reput.follow(master.address, tmp_path / "copy")
    master.bodies = {}
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
        master.bodies = garbled
        complaints = store._engine.master_configuration.complaints
        wait_until(lambda: 28 in complaints)
        master.bodies = {}
        wait_until(lambda: 28 not in complaints)


@pytest.mark.parametrize(
    "properties",
    [
        {"mappedFileSizeCommitLog": 0},
        {"mappedFileSizeCommitLog": 1 << 70},
        # Its log would begin inside of a segment.
        {"mappedFileSizeCommitLog": 5000},
        {"brokerIP1": "\\uzzzz"},
        {"brokerId": "x"},
    ],
)
def test_settings_of_a_master_that_cannot_be_are_no_end_of_the_copy(fake_master, tmp_path, properties):
    """Nothing is written for them, and a copy that is there waits for others."""
    log = written(tmp_path / "master", 50, begin=SMALL_SEGMENT)
    fake_master.log, fake_master.offset_min = bytes(log.data[:2000]), log.begin
    good = fake_master.properties
    fake_master.properties = good | properties
    with pytest.raises(BrokerError, match="settings cannot be read"):
        reput.follow(fake_master.address, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    fake_master.properties = good
    with following(fake_master.address, tmp_path / "copy") as store:
        wait_until(lambda: store.following.state is FollowState.COPYING)
        fake_master.properties = good | properties
        fake_master.end_connections()
        wait_until(lambda: "settings cannot be read" in (store.following.reason or ""))
        fake_master.properties, fake_master.log = good, bytes(log.data)
        reaches(store, log.end)


@pytest.mark.parametrize("addresses", [b'{"x":"y"}', b"5", b'{1:"127.0.0.1:10921"}'])
def test_a_name_server_that_knows_no_master_is_named(fake_master, tmp_path, addresses):
    """Slaves are no masters, and what cannot be read is none either."""
    fake_master.bodies = {106: b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":%b}}}' % addresses}
    name_server = f"127.0.0.1:{fake_master.remoting.getsockname()[1]}"
    with pytest.raises(BrokerError, match=r"knows no master of this name: .* known=broker-a"):
        reput.follow("broker-a", tmp_path / "copy", name_server=name_server)


def test_a_compression_without_its_library_is_refused_before_anything_is_opened(master, tmp_path, monkeypatch):
    """Not by the thread that copies, which would end for good."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match="needs zstandard"):
        reput.follow(master.address, tmp_path / "copy", ha_compression="zstd")
    with following(master.address, tmp_path / "copy"):
        pass


def test_another_broker_is_refused_before_anything_is_opened(master, log, tmp_path):
    """A copy belongs to one broker of one cluster."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    master.properties["brokerName"] = "broker-b"
    with pytest.raises(FollowError, match="follows another broker: broker_name=broker-a"):
        reput.follow(master.address, copy)


@pytest.mark.parametrize("mode", ["enableControllerMode", "enableDLegerCommitLog", "duplicationEnable"])
def test_modes_with_another_wire_are_refused_by_name(master, tmp_path, mode):
    """Nothing is made for them."""
    master.properties[mode] = "true"
    with pytest.raises(FollowError, match=f"{mode}=true"):
        reput.follow(master.address, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_master_that_changes_to_another_mode_ends_the_following_by_name(master, log, tmp_path, quick):
    """It is asked again at every connection."""
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
        master.properties["enableControllerMode"] = "true"
        master.end_connections()
        assert "enableControllerMode=true" in stops(store)


@pytest.mark.parametrize(("begin", "expected"), [("earliest", 2), ("latest", 5), (SMALL_SEGMENT * 4 + 7, 4)])
def test_a_copy_may_begin_in_the_middle(fake_master, tmp_path, begin, expected):
    """At what the master still has: its first segment, its last, or the one that holds an offset."""
    log = written(tmp_path / "master", 50, begin=SMALL_SEGMENT * 2)
    assert log.end // SMALL_SEGMENT == 5
    fake_master.log, fake_master.offset_min = bytes(log.data), log.begin
    copy = tmp_path / "copy"
    with following(fake_master.address, copy, begin=begin) as store:
        reaches(store, log.end)
        assert store.commit_log_offset_min == expected * SMALL_SEGMENT
        store.wait_for("consume_queue", log.end, 60)
        first = next(number for number, offset in enumerate(log.offsets) if offset >= expected * SMALL_SEGMENT)
        found = store.get("orders", 0, first, count_max=100)
        assert [record.queue_offset for record in found] == list(range(first, 50))
    for name in ("commitlog",):
        assert sorted(path.name for path in (copy / name).iterdir())[0] == f"{expected * SMALL_SEGMENT:020d}"
    assert run_reput("check", copy).code == 0


def test_a_silent_master_is_left_and_heartbeats_keep_a_connection(master, log, tmp_path, monkeypatch):
    """Judged by what was received."""
    monkeypatch.setattr(master_stream, "SILENCE_MAX_S", 1.0)
    beats: list[int] = []

    def serve(accepted: socket.socket, asked: int) -> None:
        end = master.send_from(accepted, asked)
        if len(master.asked) > 1:
            master.take_reports(accepted)
        accepted.settimeout(0.1)
        for _ in range(15):
            beats.append(1)
            accepted.sendall(frame(end))
            with contextlib.suppress(TimeoutError):
                accepted.recv(64)
        master.ended.wait(60)

    master.serve = serve
    with following(master.address, tmp_path / "copy") as store:
        wait_until(lambda: len(beats) == 15)
        assert store.following.connections == 1
        wait_until(lambda: store.following.connections >= 2)


def test_a_flood_of_empty_frames_costs_no_reply(master, log, tmp_path):
    """RocketMQ 5.3.3 sends hundreds of thousands of them with its flow control."""

    def serve(accepted: socket.socket, asked: int) -> None:
        end = master.send_from(accepted, asked)
        accepted.sendall(frame(end) * 200_000)
        master.take_reports(accepted)

    master.serve = serve
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
    assert len(master.reports) < 100


def test_a_topic_that_the_master_deleted_and_made_again_begins_anew_here(fake_master, tmp_path):
    """The log does not say so, only its queue offsets; the views follow."""
    log = written(tmp_path / "master", 20)
    log.queue_offsets.clear()
    for _ in range(5):
        log.append(b"new")
    fake_master.log = bytes(log.data)
    copy = tmp_path / "copy"
    with following(fake_master.address, copy) as store:
        reaches(store, log.end)
        store.wait_for("consume_queue", log.end, 60)
        assert [record.body for record in store.get("orders", 0, 0, count_max=100)] == [b"new"] * 5
        assert store.next_queue_offset("orders") == 5
    with reput.open(copy, read_only=True) as store:
        assert [record.body for record in store.get("orders", 0, 0, count_max=100)] == [b"new"] * 5


def test_configuration_comes_along_with_its_unquoted_keys(master, log, tmp_path):
    """Files of the same names; offsets never point beyond the copied log, and own groups stay."""
    master.bodies = {
        21: b'{"dataVersion":{"counter":3,"timestamp":5},"topicConfigTable":{"orders":{"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,"writeQueueNums":4}}}',
        43: b'{"offsetTable":{"orders@g1":{0:30,1:825}}}',
        45: b'{"offsetTable":{2:20}}',
        201: b'{"dataVersion":{"counter":1,"timestamp":5},"subscriptionGroupTable":{"g1":{"groupName":"g1"}}}',
        # A RocketMQ 5 has these; to the other masters of these tests they are unknown.
        402: b'{"messageRequestModeMap":{"orders":{}}}',
        60: struct.pack(">7q", *range(1, 8)),
    }
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
        with store.consumer("own", "orders") as consumer:
            for _ in range(10):
                record = consumer.receive(timeout=60)
                assert record is not None
                consumer.ack(record)
        wait_until(lambda: store._engine.services.managers.offsets.query_offset("g1", "orders", 0) == 30)
        assert store._engine.services.managers.offsets.query_offset("g1", "orders", 1) == 0
        wait_until(lambda: (copy / "config" / "timercheck").exists())
    # Place and length of the timer log are the master's own.
    assert struct.unpack(">7q", (copy / "config" / "timercheck").read_bytes()) == (1, 0, 0, 4, 5, 6, 7)
    assert '"orders"' in (copy / "config" / "messageRequestMode.json").read_text()
    assert "{2:20" in (copy / "config" / "delayOffset.json").read_text()
    assert '"writeQueueNums":4' in (copy / "config" / "topics.json").read_text()
    assert '"g1"' in (copy / "config" / "subscriptionGroup.json").read_text()
    offsets = (copy / "config" / "consumerOffset.json").read_text()
    assert '"orders@g1":{0:30' in offsets
    assert '"orders@own":{0:10' in offsets


def test_what_only_a_copy_has_stays_and_what_the_master_deletes_meanwhile_goes(master, log, tmp_path, monkeypatch):
    """Its own groups are not removed and made again in each round; a group deleted while the copy was stopped goes."""
    monkeypatch.setattr(master_configuration, "INTERVAL_S", 0.02)
    groups = b'{"dataVersion":{"counter":%d,"timestamp":5},"subscriptionGroupTable":{%s}}'
    master.bodies = {
        201: groups % (1, b'"g1":{"groupName":"g1"},"g2":{"groupName":"g2"}'),
        43: b'{"offsetTable":{"orders@g1":{0:30},"orders@g2":{0:20}}}',
    }
    copy = tmp_path / "copy"

    def rounds(count: int) -> None:
        """Wait until the master was asked for groups as often again."""
        begin = master.codes.count(43)
        wait_until(lambda: master.codes.count(43) > begin + count)

    with following(master.address, copy) as store:
        reaches(store, log.end)
        services = store._engine.services
        wait_until(lambda: services.managers.offsets.query_offset("g2", "orders", 0) == 20)
        assert services.groups.find("own") is not None
        services.managers.offsets.commit_offset("own", "orders", 0, 10)
        rounds(2)
        written_at = (copy / "config" / "subscriptionGroup.json").stat().st_mtime_ns
        rounds(3)
        assert (copy / "config" / "subscriptionGroup.json").stat().st_mtime_ns == written_at
        assert {"g1", "g2", "own"} <= services.groups.manager.entries.keys()
    master.bodies = {
        201: groups % (2, b'"g1":{"groupName":"g1"}'),
        43: b'{"offsetTable":{"orders@g1":{0:30}}}',
    }
    with following(master.address, copy) as store:
        services = store._engine.services
        wait_until(lambda: services.managers.offsets.query_offset("g2", "orders", 0) is None)
        assert services.managers.offsets.query_offset("own", "orders", 0) == 10
        wait_until(lambda: "g2" not in services.groups.manager.entries)
        assert {"g1", "own"} <= services.groups.manager.entries.keys()
    # Damaged, the file is as none: offsets stay, and it is written again.
    (copy / "reput" / "brought_along").write_bytes(b"garbage")
    with following(master.address, copy) as store:
        wait_until(lambda: (copy / "reput" / "brought_along").read_bytes() != b"garbage")
        assert store._engine.services.managers.offsets.query_offset("own", "orders", 0) == 10


def test_a_copy_is_not_opened_for_messages_until_it_is_promoted(master, log, tmp_path):
    """A message of its own would part its log from the master's."""
    master.bodies = {43: b'{"offsetTable":{"orders@g1":{0:30}}}'}
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
        wait_until(lambda: (copy / "reput" / "brought_along").exists())
        busy = run_reput("promote", copy)
        assert busy.code == 3
    with pytest.raises(reput.StoreReadOnly, match="follows a master"):
        reput.open(copy)
    LeaseMark("orders", "m", 1).write(copy, Files())
    node = run_reput("promote", copy)
    assert node.code == 2
    assert "a lease decides whether this store is the master: lease=orders" in node.stderr
    (copy / "reput" / LEASE_MARK).unlink()
    promoted = run_reput("promote", copy, "--format", "json").report()
    assert (promoted["epoch"], promoted["commit_log_offset"]) == (2, log.end)
    # What it had from its master is its own now.
    assert not (copy / "reput" / "brought_along").exists()
    # Its clients and other copies look for these.
    assert (promoted["broker_name"], promoted["cluster_name"]) == ("broker-a", "C")
    with reput.open(copy, mode="inline") as store:
        assert store.put(reput.Message("orders", b"mine")).queue_offset == 50
    again = run_reput("promote", copy)
    assert "follows no master" in again.stderr


def test_the_death_of_the_following_thread_is_told_and_the_store_closes(master, log, tmp_path, monkeypatch):
    """Callers that wait for the copy get the error, `reput status` names it, and what was copied stays readable."""
    with following(master.address, tmp_path / "copy") as store:
        reaches(store, log.end)
        monkeypatch.setattr(Follower, "look", Mock(side_effect=RuntimeError("planted")))
        assert "planted" in stops(store)
        with pytest.raises(FollowError, match="planted"):
            store.wait_copied(log.end + 1, timeout=60)
        assert "planted" in (store._engine.writer.notice or "")
        assert "reput-follower" in store._engine.writer.threads.deaths
        store.wait_for("consume_queue", log.end, 60)
        assert len(store.get("orders", 0, 0, count_max=100)) == 50
    assert run_reput("check", tmp_path / "copy").code == 0


def test_a_task_follows_a_master_and_waits_for_its_log(master, log, tmp_path):
    """`afollow` and `await_copied` leave the event loop free; a wait ends with the store, too."""

    async def use() -> None:
        store = await reput.afollow(master.address, tmp_path / "copy", **INLINE)
        await store.await_copied(log.end, timeout=60)
        assert store.durable == log.end
        with pytest.raises(WaitTimeout, match="not copied that far in time"):
            await store.await_copied(log.end + 1, timeout=0.01)
        waiting = asyncio.create_task(store.await_copied(log.end + 1))
        await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(StoreClosed):
            await waiting

    asyncio.run(use())


def test_a_copy_finds_its_master_at_another_address(master, log, tmp_path):
    """By any of its name servers, which are asked at every connection; the new address is recorded."""
    whole, master.log = master.log, master.log[: log.offsets[25]]
    copy = tmp_path / "copy"
    with FakeMaster() as names, FakeMaster(whole) as moved, socket.create_server(("127.0.0.1", 0)) as nobody:
        places = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (nobody, names.remoting)]
        nobody.close()

        def know(place: FakeMaster) -> None:
            address = b"127.0.0.1:%d" % place.remoting.getsockname()[1]
            names.bodies = {106: b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"%b"}}}}' % address}

        know(master)
        with following("broker-a", copy, name_server=";".join(places)) as store:
            reaches(store, log.offsets[25])
            know(moved)
            master.__exit__()
            reaches(store, log.end)
            assert store.following.master == moved.address
            with pytest.raises(reput.StoreReadOnly, match=moved.address):
                store.put(reput.Message("orders", b"mine"))
        recorded = read_followed_master(copy)
        assert recorded is not None
        assert recorded.ha_address == moved.address
    assert_same_log(log.store, copy, 0, log.end, SMALL_SEGMENT)


def test_a_copy_goes_on_while_its_name_server_knows_no_master(master, log, tmp_path):
    """A master that is away is registered nowhere. The copy is opened, and finds it where it was."""
    copy, name_server = tmp_path / "copy", f"127.0.0.1:{master.remoting.getsockname()[1]}"
    whole, master.log = master.log, master.log[: log.offsets[25]]
    known = b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"%b"}}}}' % name_server.encode()
    for answer, end in ((known, log.offsets[25]), (b'{"brokerAddrTable":{}}', log.end)):
        master.bodies = {106: answer}
        with following("broker-a", copy, name_server=name_server) as store:
            reaches(store, end)
        master.log = whole


class DrippingMaster(FakeMaster):
    """Once it *drips*, an answer comes byte by byte, each in time, and never ends."""

    drips = False

    def answer(self, accepted: socket.socket) -> None:
        if not self.drips:
            return super().answer(accepted)
        accepted.sendall(struct.pack(">i", 1 << 20))
        while not self.ended.wait(0.1):
            accepted.sendall(b" ")
        return None


def test_a_copy_is_closed_while_an_answer_of_its_master_does_not_end(log, tmp_path):
    """Neither the thread that copies nor the one that brings the configuration along waits for it."""
    with DrippingMaster(bytes(log.data)) as master, ExitStack() as closing:
        store = closing.enter_context(following(master.address, tmp_path / "copy"))
        reaches(store, log.end)
        master.drips = True
        master.end_connections()
        wait_until(lambda: len(store._follower.requests.connections) > 0)
        ending = threading.Thread(target=closing.pop_all().close)
        ending.start()
        wait_until(lambda: not ending.is_alive())


def test_a_copy_is_read_while_its_master_is_away(master, log, tmp_path):
    """It waits for the master with growing pauses, and says so."""
    copy = tmp_path / "copy"
    with following(master.address, copy) as store:
        reaches(store, log.end)
    address = master.address
    master.__exit__()
    with following(address, copy) as store:
        wait_until(lambda: store.following.state is FollowState.WAITING)
        assert "does not answer" in (store.following.reason or "")
        assert len(list(store.records(0))) == 50
