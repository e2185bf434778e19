"""Consumers through a broker."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import zlib

import pyarrow as pa
import pytest

import reput
import reput.client.session
from client.conftest import register
from delivering import wait_until
from reput import Message
from reput.client import group_session
from reput.consume.delivery.send_back import send_back
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.store.config.topic_config_manager import TopicConfig
from reput_plugins.consume_queue import ConsumeQueueDispatcher
from serving import served


def received(consumer, count):
    """Return *count* messages, each acknowledged."""
    records = []
    for _ in range(count):
        record = consumer.receive(20)
        assert record is not None
        consumer.ack(record)
        records.append(record)
    return records


def bodies(records):
    """Return the bodies of messages, sorted."""
    return sorted(record.body for record in records)


def test_a_message_has_what_its_producer_gave_it(client):
    """Body, tags, keys and properties come as they were put."""
    result = client.put(Message("orders", b"one", tags="paid", keys=["k1", "k2"], properties={"colour": "red"}))
    with client.consumer("billing", "orders") as consumer:
        (record,) = received(consumer, 1)
    assert (record.topic, record.queue_id, record.queue_offset) == ("orders", result.queue_id, result.queue_offset)
    assert record.properties["KEYS"] == "k1 k2"
    assert record.properties["colour"] == "red"
    assert record.message_id == result.message_id


def test_a_message_that_comes_later_ends_the_wait(client):
    """A held pull is answered at once when a message arrives, for threads and for tasks."""

    async def task():
        async with await client.aconsumer("mailing", "orders") as consumer:
            await client.aput(Message("orders", b"later"))
            record = await consumer.areceive(20)
            consumer.ack(record)
            assert await consumer.areceive(0.01) is None
            return record.body

    client.put(Message("orders", b"first"))
    with client.consumer("billing", "orders") as consumer:
        received(consumer, 1)
        assert consumer.receive(0.01) is None
        threading.Timer(0.1, client.put, [Message("orders", b"second")]).start()
        assert received(consumer, 1)[0].body == b"second"
        with client.consumer("mailing", "orders") as other:
            received(other, 2)
        assert asyncio.run(task()) == b"later"


def test_a_group_goes_on_where_it_was(client):
    """What is acknowledged is committed at the end; what is not is given again."""
    client.put_batch([Message("orders", b"%d" % number, queue_id=0) for number in range(5)])
    with client.consumer("billing", "orders") as consumer:
        received(consumer, 2)
        held = consumer.receive(20)
        (record,) = received(consumer, 1)
    with client.consumer("billing", "orders") as consumer:
        again = received(consumer, 3)
    assert [record.body for record in again] == [b"2", b"3", b"4"]
    with pytest.raises(reput.StoreClosed):
        consumer.receive()
    assert held.body == b"2"
    assert record.body == b"3"


def test_two_consumers_share_the_queues(client):
    """Each queue has one consumer; when one leaves, the other takes its queues."""
    client.put(Message("orders", b"x", queue_id=0))
    with client.consumer("billing", "orders") as one:
        received(one, 1)
        with client.consumer("billing", "orders") as two:
            wait_until(
                lambda: (
                    sorted(
                        at.queue_id
                        for consumer in (one, two)
                        for at in list(consumer._session.queues)
                        if at.topic == "orders"
                    )
                    == [0, 1, 2, 3]
                )
            )
            client.put_batch([Message("orders", b"%d" % number, queue_id=number) for number in range(4)])
            assert bodies(received(one, 2) + received(two, 2)) == [b"0", b"1", b"2", b"3"]
        wait_until(lambda: len([at for at in list(one._session.queues) if at.topic == "orders"]) == 4)
        client.put_batch([Message("orders", b"%d" % number, queue_id=number) for number in range(4)])
        assert bodies(received(one, 4)) == [b"0", b"1", b"2", b"3"]


def test_tags_and_expressions_select_messages(tmp_path):
    """By tags, by hash and then by text; by SQL92 where the broker allows it."""
    with (
        served(tmp_path / "store", enable_property_filter=True) as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
    ):
        # "AaBB" and "BBBB" have one hash in Java.
        client.put_batch([Message("orders", tags.encode(), tags=tags) for tags in ("AaBB", "BBBB", "other")])
        client.put_batch([Message("orders", b"%d" % n, tags="n", properties={"price": str(n)}) for n in range(5)])
        with client.consumer("by_tag", "orders", "AaBB || gone") as consumer:
            assert bodies(received(consumer, 1)) == [b"AaBB"]
            assert consumer.receive(0.2) is None
        with client.consumer("by_price", "orders", reput.filter.parse("price > 2")) as consumer:
            assert bodies(received(consumer, 2)) == [b"3", b"4"]
            assert consumer.receive(0.2) is None


def test_text_that_looks_like_an_expression_is_refused_as_by_a_store(client):
    """As tags it would select nothing, and the group would pass its messages over."""
    client.put_batch([Message("orders", b"%d" % price, properties={"price": str(price)}) for price in range(5)])
    with pytest.raises(reput.filter.FilterSyntaxError, match="no list of tags"):
        client.consumer("billing", "orders", "price > 3")
    with pytest.raises(reput.filter.FilterSyntaxError, match="no list of tags"):
        asyncio.run(client.aconsumer("billing", "orders", "price > 3"))
    with client.consumer("billing", "orders") as consumer:
        assert bodies(received(consumer, 5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_an_expression_that_the_broker_does_not_take_is_an_error(client):
    """The consumer is not made; the broker's settings forbid it."""
    client.put(Message("orders", b"x"))
    with pytest.raises(reput.RequestRefused, match="filter"):
        client.consumer("billing", "orders", reput.filter.parse("price > 2"))


def test_latest_begins_behind_what_is_there(client, monkeypatch):
    """A new group gets what comes after it has joined, and all of a topic that is made later.

    So also where the consume queue lags behind the log.
    """
    joined = threading.Event()
    dispatch = ConsumeQueueDispatcher.dispatch

    def dispatch_later(dispatcher, batch):
        assert joined.wait(20)
        dispatch(dispatcher, batch)

    monkeypatch.setattr(ConsumeQueueDispatcher, "dispatch", dispatch_later)
    client.put(Message("orders", b"old"))
    with client.consumer("billing", ["orders", "mails"], begin="latest") as consumer:
        wait_until(lambda: [at.topic for at in list(consumer._session.queues)].count("orders") == 4)
        joined.set()
        client.put(Message("orders", b"new"))
        assert bodies(received(consumer, 1)) == [b"new"]
        client.put(Message("mails", b"first of its topic"))
        assert bodies(received(consumer, 1)) == [b"first of its topic"]


def test_a_time_begins_with_the_messages_from_then_on(client):
    """A store time in ms since 1970."""
    client.put(Message("orders", b"old", queue_id=0))
    time.sleep(0.01)
    middle = int(time.time() * 1000)
    time.sleep(0.01)
    client.put(Message("orders", b"new", queue_id=0))
    wait_until(lambda: len(client.get("orders", 0)) == 2)
    with client.consumer("billing", "orders", begin=middle) as consumer:
        assert bodies(received(consumer, 1)) == [b"new"]


def test_a_message_that_is_sent_back_comes_again(tmp_path):
    """After the delay, with its first topic and a count; below zero it is a dead letter."""
    with (
        served(tmp_path / "store", message_delay_level="1s 1s 1s 1s") as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
    ):
        client.put(Message("orders", b"x", keys=["k"]))
        with client.consumer("billing", "orders") as consumer:
            record = consumer.receive(20)
            consumer.nack(record)
            with pytest.raises(reput.RequestRefused, match="not in flight"):
                consumer.ack(record)
            again = consumer.receive(20)
            assert (again.body, again.topic, again.reconsume_times) == (b"x", "orders", 1)
            consumer.nack(again, -1)
        with client.consumer("undertaker", "%DLQ%billing") as consumer:
            assert bodies(received(consumer, 1)) == [b"x"]


def test_a_message_that_retention_took_is_sent_back_as_a_copy(tmp_path):
    """As RocketMQ's consumers do; with the retries counted, and as a dead letter at once if that is asked."""
    with (
        served(
            tmp_path / "store",
            mapped_file_size_commit_log=64 << 10,
            delete_when="00",
            message_delay_level="1s 1s 1s 1s",
        ) as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
    ):
        client.put(Message("orders", b"x" * 1000, tags="paid", keys=["k"], properties={"a": "b"}))
        client.put(Message("orders", b"dead"))
        with client.consumer("billing", "orders") as consumer:
            records = sorted((consumer.receive(20), consumer.receive(20)), key=lambda record: record.commit_log_offset)
            segment = min((tmp_path / "store" / "commitlog").iterdir())
            client.put_batch([Message("filler", b"f" * (60 << 10)) for _ in range(2)])
            long_ago = time.time() - 73 * 3600
            os.utime(segment, (long_ago, long_ago))
            retention = broker.engine.writer.retention
            wait_until(lambda: retention.plan(asked=True)[0].goes)
            retention.clean()
            wait_until(lambda: not segment.exists())
            consumer.nack(records[0])
            consumer.nack(records[1], -1)
            again = consumer.receive(20)
            consumer.ack(again)
        assert (again.body, again.topic, again.tags, again.keys) == (b"x" * 1000, "orders", "paid", ["k"])
        assert (again.properties["a"], again.reconsume_times) == ("b", 1)
        assert again.uniq_key == records[0].uniq_key
        assert again.properties["ORIGIN_MESSAGE_ID"] == records[0].message_id
        with client.consumer("undertaker", "%DLQ%billing") as consumer:
            assert bodies(received(consumer, 1)) == [b"dead"]


def test_a_full_consumer_waits_for_acknowledgements(client):
    """in_flight_max bounds what a program holds."""
    client.put_batch([Message("orders", b"%d" % number) for number in range(5)])
    with client.consumer("billing", "orders", in_flight_max=2) as consumer:
        held = [consumer.receive(20), consumer.receive(20)]
        assert consumer.receive(0.1) is None
        consumer.ack(held[0])
        assert consumer.receive(20) is not None


@pytest.mark.slow
def test_seek_and_rewind_move_the_group(client):
    """Messages in flight are forgotten; a place that the queue does not have is refused."""
    client.put_batch([Message("orders", b"%d" % number, queue_id=1) for number in range(5)])
    with client.consumer("billing", "orders") as consumer:
        records = received(consumer, 5)
        consumer.seek("orders", 1, 3)
        assert bodies(received(consumer, 2)) == [b"3", b"4"]
        consumer.rewind("earliest")
        assert len(received(consumer, 5)) == 5
        consumer.rewind(records[2].store_timestamp)
        received(consumer, 1)
        with pytest.raises(reput.OffsetOutOfRange):
            consumer.seek("orders", 1, 6)
        with pytest.raises(reput.OffsetOutOfRange):
            consumer.seek("orders", 7, 0)
        with pytest.raises(reput.ConfigError):
            consumer.seek("mails", 0, 0)


def test_broadcasting_consumers_get_everything_each(client, tmp_path):
    """The place is kept in a file, if one is given; nothing is sent back."""
    place = tmp_path / "place.json"
    client.put_batch([Message("orders", b"1"), Message("orders", b"2")])
    with (
        client.consumer("news", "orders", broadcast=True, offset_store=place) as one,
        client.consumer("news", "orders", broadcast=True) as two,
    ):
        assert bodies(received(one, 2)) == bodies(received(two, 2)) == [b"1", b"2"]
        client.put(Message("orders", b"3"))
        two.nack(two.receive(20))
    with client.consumer("news", "orders", broadcast=True, offset_store=place) as one:
        assert bodies(received(one, 1)) == [b"3"]
    place.write_text("{")
    with pytest.raises(reput.DamagedStore, match=r"place\.json"):
        client.consumer("news", "orders", broadcast=True, offset_store=place)
    with pytest.raises(reput.ConfigError, match="offset_store"):
        client.consumer("news", "orders", offset_store=place)


@pytest.mark.slow
def test_a_compressed_body_is_inflated(broker, client):
    """As RocketMQ's producers compress: zlib, LZ4 or zstd, by bits in the flags. So it is for `get` and `query`."""
    long = b"long " * 1000
    sent = [(zlib.compress(long), 1), (b"no zlib", 1)]
    sent += [(pa.compress(long, codec=codec, asbytes=True), 1 | kind << 8) for kind, codec in ((1, "lz4"), (2, "zstd"))]
    with broker.client() as raw:
        answers = [raw.send_message("orders", body, fields={"sysFlag": str(flag)}) for body, flag in sent]
    with client.consumer("billing", "orders") as consumer:
        records = received(consumer, 4)
    assert [record.body for record in records] == [long, b"no zlib", long, long]
    assert [record.sys_flag for record in records] == [0, 1, 0, 0]
    assert list(client.get("orders", 0)) == records
    assert [client.query(key=answer.ext_fields["msgId"])[0] for answer in answers] == records


@pytest.mark.parametrize("options", [{}, {"in_order": True}, {"broadcast": True}, {"begin": "latest"}])
def test_a_topic_that_is_made_anew_is_consumed_from_its_first_message(broker, client, options):
    """The queues begin at 0 again; the running consumer keeps no place of the old ones, and commits none."""
    client.put(Message("orders", b"first", queue_id=0))
    with client.consumer("billing", "orders", **options) as consumer:
        client.put_batch([Message("orders", b"old", queue_id=0) for _ in range(10)])
        received(consumer, 9 if "begin" in options else 10)
        in_flight = consumer.receive(20)
        consumer.commit()
        client.administration.delete_topic("orders")
        client.put_batch([Message("orders", b"new %d" % number, queue_id=0) for number in range(15)])
        assert [record.body for record in received(consumer, 15)] == [b"new %d" % number for number in range(15)]
        with pytest.raises(reput.RequestRefused, match="not in flight"):
            consumer.ack(in_flight)
    if "broadcast" not in options:
        assert broker.engine.services.managers.offsets.query_offset("billing", "orders", 0) == 15


def test_order_is_kept_by_locks_at_the_broker(client, broker):
    """A consumer in order locks its queues, and gives them back at the end."""
    client.put(Message("orders", b"x", queue_id=0))
    with client.consumer("billing", "orders", in_order=True) as consumer:
        received(consumer, 1)
        assert broker.call(lambda: broker.broker.locks.is_locked("billing"))
    broker.reaches(lambda: not broker.broker.locks.is_locked("billing"))


def wait_until_leaving(consumer):
    """Wait until a consumer is about to leave its last queue to another one."""
    queue = consumer._session.queues[MessageQueue("broker-a", 3, "orders")]
    wait_until(lambda: queue.pulling.done())


def test_a_queue_in_order_moves_once_its_messages_are_done(client):
    """Those that are in flight are not delivered to the other consumer, and those that wait are delivered there."""
    client.put_batch([Message("orders", b"%d" % number, queue_id=3) for number in range(3)])
    with client.consumer("billing", "orders", in_order=True) as first:
        record = first.receive(20)
        assert record.body == b"0"
        wait_until(lambda: any(queue.buffer for queue in first._session.queues.values()))
        with client.consumer("billing", "orders", in_order=True) as second:
            wait_until_leaving(first)
            assert first.receive(0.1) is None
            first.ack(record)
            assert [record.body for record in received(second, 2)] == [b"1", b"2"]


def test_the_last_message_of_a_queue_in_order_is_not_delivered_twice(client):
    """Its consumer has nothing else of the queue when another one takes it."""
    client.put(Message("orders", b"old", queue_id=3))
    with client.consumer("billing", "orders", in_order=True) as first:
        record = first.receive(20)
        with client.consumer("billing", "orders", in_order=True) as second:
            wait_until_leaving(first)
            first.ack(record)
            client.put(Message("orders", b"new", queue_id=3))
            assert received(second, 1)[0].body == b"new"


def test_a_consumer_that_ends_while_it_leaves_a_queue_releases_it(client):
    """The other consumer does not wait until the lock expires."""
    client.put(Message("orders", b"x", queue_id=3))
    with client.consumer("billing", "orders", in_order=True) as first:
        first.receive(20)
        with client.consumer("billing", "orders", in_order=True) as second:
            wait_until_leaving(first)
            first.close()
            assert received(second, 1)[0].body == b"x"


def test_a_consumer_in_order_gives_nothing_once_its_lock_is_over(client, monkeypatch):
    """Another consumer may have the queue; what waits is pulled again when the lock is back."""
    client.put_batch([Message("orders", b"%d" % number, queue_id=0) for number in range(3)])
    monkeypatch.setattr(group_session, "LOCK_INTERVAL_S", 0.05)
    with client.consumer("billing", "orders", in_order=True) as consumer:
        wait_until(lambda: any(queue.buffer for queue in consumer._session.queues.values()))
        with monkeypatch.context() as away:
            away.setattr(group_session, "LOCK_LIVES_S", -1.0)
            wait_until(lambda: not any(queue.buffer for queue in consumer._session.queues.values()))
            assert consumer.receive(0) is None
        assert [record.body for record in received(consumer, 3)] == [b"0", b"1", b"2"]


def test_an_administrator_moves_a_running_group(client, broker):
    """The broker tells the consumer, which goes on from there."""
    client.put_batch([Message("orders", b"%d" % number, queue_id=2) for number in range(3)])
    with client.consumer("billing", "orders") as consumer:
        received(consumer, 3)
        consumer.commit()
        fields = {"topic": "orders", "group": "billing", "timestamp": "0", "isForce": "true"}
        with broker.client() as raw:
            assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == 0
        assert bodies(received(consumer, 3)) == [b"0", b"1", b"2"]


def test_a_consumer_ends_with_its_loop(client):
    """Nothing would bring messages any more; neither a wait for one nor the client's end hangs or fails."""
    client.put(Message("orders", b"x"))

    async def joined():
        return await client.aconsumer("billing", "orders")

    consumer = asyncio.run(joined())
    assert consumer.closed
    with pytest.raises(reput.StoreClosed):
        consumer.receive(20)
    client.close()


@pytest.mark.processes
def test_a_forked_child_does_not_have_the_consumers(client):
    """They go on in the parent; in the child, neither a wait for a message nor the client's end hangs."""
    with client.consumer("billing", "orders") as consumer:
        pid = os.fork()
        if not pid:
            try:
                with pytest.raises(reput.StoreClosed):
                    consumer.receive(20)
                client.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        client.put(Message("orders", b"x"))
        assert received(consumer, 1)[0].body == b"x"


@pytest.mark.parametrize("order", ["any", "queue"])
def test_a_worker_handles_each_message(client, order):
    """The worker of the embedded store, through a broker; a failed message comes again."""
    client.put_batch([Message("orders", b"%d" % number) for number in range(20)])
    handled = []
    failed = []

    def handle(record):
        if record.body == b"7" and order == "queue" and not failed:
            failed.append(record)
            raise ValueError
        handled.append(record.body)

    worker = client.worker(handle, "orders", group="billing", concurrency=4, order=order, suspend_time=0.01)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: len(handled) == 20)
    worker.stop()
    thread.join(20)
    assert sorted(handled, key=int) == [b"%d" % number for number in range(20)]
    assert worker.statistics.succeeded == 20
    with client.consumer("billing", "orders") as consumer:
        assert consumer.receive(0.2) is None


def test_a_worker_sends_a_message_back_once_the_broker_can_store_it(client, monkeypatch):
    """A broker whose disk is full, for example, answers with SYSTEM_ERROR; the message is not forgotten."""
    monkeypatch.setattr("reput.worker.worker.TROUBLE_PAUSE_S", 0.01)
    attempts: list[str] = []

    def busy_at_first(engine, group, *arguments, **options):
        attempts.append(group)
        if len(attempts) < 3:
            raise reput.StoreBusy("not now")
        return send_back(engine, group, *arguments, **options)

    def busy(*arguments):
        raise reput.StoreBusy("not now")

    monkeypatch.setattr("reput.broker.requests.send_back.send_back", busy_at_first)
    # The copy that the consumer sends then.
    monkeypatch.setattr("reput.broker.requests.send_message.dead_letter_when_exhausted", busy)

    def handle(record):
        raise ValueError(record.body)

    client.put(Message("orders", b"x"))
    worker = client.worker(handle, "orders", group="billing")
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: worker.statistics.sent_back == 1)
    worker.stop()
    thread.join(20)
    assert len(attempts) == 3


def test_a_consumer_that_waits_is_woken_by_close(client):
    """Threads and tasks that wait get StoreClosed; iterating ends."""
    consumer = client.consumer("billing", "orders")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(consumer))
    thread.start()
    consumer.close()
    thread.join(20)
    assert not thread.is_alive()
    assert seen == []
    consumer.close()


@pytest.mark.parametrize(
    "options",
    [
        {"group": "no group", "topics": "orders"},
        {"group": "billing", "topics": []},
        {"group": "billing", "topics": "or ders"},
        {"group": "billing", "topics": 5},
        {"group": "billing", "topics": "orders", "filter": 5},
        {"group": "billing", "topics": "orders", "begin": "soon"},
        {"group": "billing", "topics": "orders", "in_flight_max": 0},
        {"group": "billing", "topics": "orders", "allocation": "fairly"},
    ],
)
def test_a_wrong_argument_is_refused(client, options):
    """The error names it."""
    with pytest.raises((reput.ConfigError, reput.RequestRefused)):
        client.consumer(**options)


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [True, False])
def test_a_consumer_starts_while_one_of_the_brokers_is_away(tmp_path, hangs, monkeypatch):
    """It consumes from the others, and from that one as soon as it is there."""
    monkeypatch.setattr(reput.client.session, "INVOKE_TIMEOUT_S", 0.2)
    with (
        served(tmp_path / "a", enable_property_filter=True) as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        port = listener.getsockname()[1]
        if not hangs:
            listener.close()
        client.put_batch([Message("orders", b"%d" % number, properties={"price": "1"}) for number in range(4)])
        register(broker, "orders", port)
        with client.consumer("billing", "orders", reput.filter.parse("price > 0")) as consumer:
            assert bodies(received(consumer, 4)) == [b"0", b"1", b"2", b"3"]
            listener.close()
            with (
                served(tmp_path / "z", port=port, broker_name="broker-z", enable_property_filter=True) as other,
                reput.connect("{}:{}".format(*other.address)) as local,
            ):
                local.put(Message("orders", b"later", properties={"price": "1"}, queue_id=0))
                assert bodies(received(consumer, 1)) == [b"later"]


def test_a_consumer_does_not_start_while_all_brokers_are_away(broker, client):
    """The error names the broker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    register(broker, "orders", port)
    with pytest.raises(reput.BrokerError, match=f"the peer cannot be reached: address=127.0.0.1:{port}"):
        client.consumer("billing", "orders")


def test_a_client_is_closed_while_its_broker_hangs(broker, client, monkeypatch):
    """Within one time limit, not within one for each consumer and each queue whose offset is to be committed."""
    monkeypatch.setattr(group_session, "CLOSE_TIMEOUT_S", 0.3)
    queues, hanging = 40, threading.Event()
    client.administration.update_topic(TopicConfig("orders", queues, queues))
    client.put_batch([Message("orders", b"x", queue_id=queue_id) for queue_id in range(queues)])
    for group in ("billing", "shipping"):
        assert len(received(client.consumer(group, "orders"), queues)) == queues
    broker.loop.call_soon_threadsafe(hanging.wait)
    try:
        before = time.monotonic()
        client.close()
        assert time.monotonic() - before < 15
    finally:
        hanging.set()


@pytest.mark.parametrize(
    ("code", "in_order"),
    [
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, False),
        (RequestCode.QUERY_CONSUMER_OFFSET, False),
        (RequestCode.GET_MIN_OFFSET, False),
        (RequestCode.PULL_MESSAGE, False),
        (RequestCode.LOCK_BATCH_MQ, True),
    ],
)
def test_a_wrong_answer_does_not_end_a_consumer(client, monkeypatch, code, in_order):
    """A broker or a proxy may mix answers up; the consumer asks again."""
    monkeypatch.setattr(group_session, "REBALANCE_AGAIN_S", 0.05)
    client.put(Message("orders", b"x"))
    invoke, wrong = reput.client.session.Session.invoke, []

    async def invoke_wrongly(session, broker, command, *timeout):
        response = await invoke(session, broker, command, *timeout)
        if command.code == code and len(wrong) < 2:
            wrong.append(command)
            return RemotingCommand(0, {"msgId": "1"}, b"\xff")
        return response

    monkeypatch.setattr(reput.client.session.Session, "invoke", invoke_wrongly)
    with client.consumer("billing", "orders", in_order=in_order) as consumer:
        assert bodies(received(consumer, 1)) == [b"x"]
    assert wrong


@pytest.mark.slow
def test_a_broker_that_is_away_is_waited_for(tmp_path):
    """A put and a consumer go on when the broker is back at its address: nothing but a delay is noticed."""
    with served(tmp_path / "store") as broker:
        client = reput.connect("{}:{}".format(*broker.address))
        client.put(Message("orders", b"before"))
        consumer = client.consumer("billing", "orders")
        received(consumer, 1)
        consumer.commit()
        port = broker.address[1]
    result = []
    thread = threading.Thread(target=lambda: result.append(client.put(Message("orders", b"after"))))
    thread.start()
    with served(tmp_path / "store", port=port):
        thread.join(20)
        assert result
        assert bodies(received(consumer, 1)) == [b"after"]
        consumer.close()
        client.close()
