"""What `reput.connect` returns: puts, reads, and its life."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import contextmanager

import pytest

import reput
import reput.client.sender
import reput.client.session
from client.conftest import register
from delivering import wait_until
from reput import Message
from reput.client.sender import Sender
from reput.filter.string_hash import string_hash
from serving import served


def received(consumer, count):
    """Return the bodies of *count* messages, each acknowledged."""
    bodies = []
    for _ in range(count):
        record = consumer.receive(20)
        assert record is not None
        bodies.append(record.body)
        consumer.ack(record)
    return bodies


def got(client, topic, queue_id, queue_offset, count):
    """Return the bodies of *count* messages of a queue, once its view has them."""
    wait_until(lambda: len(client.get(topic, queue_id, queue_offset, count)) == count)
    return [record.body for record in client.get(topic, queue_id, queue_offset, count)]


def found(client, topic, key, count):
    """Return the messages with a key, once the index has *count*."""
    wait_until(lambda: len(client.query(topic, key)) == count)
    return client.query(topic, key)


def test_a_message_is_where_the_result_says(client):
    """What put returns leads to the message, by queue and by id."""
    result = client.put(Message("orders", b"one", tags="paid", keys=["order-17"], properties={"k": "v"}))
    assert got(client, "orders", result.queue_id, result.queue_offset, 1) == [b"one"]
    record = client.get("orders", result.queue_id, result.queue_offset)[0]
    assert record.commit_log_offset == result.commit_log_offset
    assert record.message_id == result.message_id
    assert (record.record_size, record.store_timestamp) == (result.record_size, result.store_timestamp)
    assert result.next_commit_log_offset == record.commit_log_offset + record.record_size
    assert record.properties["TAGS"] == "paid"
    assert record.properties["k"] == "v"
    assert [same.message_id for same in client.query(key=result.message_id)] == [result.message_id]
    assert result.status is reput.PutMessageStatus.PUT_OK


def test_a_get_by_tags_returns_no_other_tag_of_the_same_hash(client):
    """A broker compares hashes only: those of "AaAa" and "BBBB" are equal."""
    for tags in ("BBBB", "AaAa"):
        client.put(Message("orders", tags.encode(), tags=tags, queue_id=0))
    assert got(client, "orders", 0, 0, 2) == [b"BBBB", b"AaAa"]
    found = client.get("orders", 0, 0, 1, tags="AaAa")
    assert [record.body for record in found] == [b"AaAa"]
    assert (found.status.name, found.next_queue_offset) == ("FOUND", 2)


def test_messages_are_found_by_key_and_by_unique_key(client):
    """A query asks each broker's index and leaves out what only shares a hash."""
    for number in range(3):
        client.put(Message("orders", b"%d" % number, keys=["order-17", f"n{number}"]))
    records = found(client, "orders", "order-17", 3)
    assert [record.body for record in records] == [b"0", b"1", b"2"]
    assert [record.body for record in client.query("orders", "order-17", 2)] == [b"1", b"2"]
    uniq_key = records[1].properties["UNIQ_KEY"]
    assert [record.body for record in client.query("orders", uniq_key)] == [b"1"]
    assert client.query("orders", "order-18") == []


def test_a_message_is_found_by_its_topic_and_id_as_in_a_store(client):
    """In either case of letters; not in another topic, and not where no message begins."""
    result = client.put(Message("orders", b"one"))
    client.put(Message("mails", b"two"))
    wait_until(lambda: client.query("orders", result.message_id))
    for key in (result.message_id, result.message_id.lower()):
        assert [record.body for record in client.query("orders", key)] == [b"one"]
        assert [record.body for record in client.query(key=key)] == [b"one"]
    assert client.query("mails", result.message_id) == []
    assert client.query("orders", result.message_id, 0) == client.query(None, result.message_id, 0) == []
    nowhere = result.message_id[:-16] + f"{result.commit_log_offset + 1:016X}"
    assert client.query("orders", nowhere) == client.query(key=nowhere) == []


def test_puts_of_one_turn_are_one_request(client, broker):
    """Tasks that put together share requests, and each gets its own result."""

    async def put_many():
        messages = [Message("orders", b"%d" % number) for number in range(100)]
        return await asyncio.gather(*(client.aput(message) for message in messages))

    client.put(Message("orders", b"first"))
    before = broker.call(lambda: broker.broker.puts.engine.writer.appended)
    results = asyncio.run(put_many())
    assert before <= min(result.commit_log_offset for result in results)
    assert len({result.message_id for result in results}) == 100
    # One batch, one queue.
    assert len({result.queue_id for result in results}) == 1
    queue_id, first = results[0].queue_id, results[0].queue_offset
    assert got(client, "orders", queue_id, first, 100) == [b"%d" % number for number in range(100)]


def test_messages_take_turns_over_the_write_queues(client):
    """Puts that follow each other go round the queues of the topic."""
    results = [client.put(Message("orders", b"x")) for _ in range(8)]
    assert sorted(result.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_sharding_key_picks_the_queue_that_java_picks(client):
    """Messages with one key share a queue: the hash of the key by the number of queues."""
    results = [client.put(Message("orders", b"x", sharding_key="customer-1")) for _ in range(3)]
    assert {result.queue_id for result in results} == {abs(string_hash("customer-1")) % 4}


def test_a_queue_id_names_the_queue(client):
    """A message goes where it says; a queue that the topic does not have is refused by the broker."""
    assert client.put(Message("orders", b"x", queue_id=2)).queue_id == 2
    with pytest.raises(reput.RequestRefused, match="queueId") as refused:
        client.put(Message("orders", b"x", queue_id=99))
    assert refused.value.response_code == reput.ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("or ders", b"x"), "topic has an illegal character"),
        (Message("orders", b""), "the message has no body"),
        (Message("orders", b"x" * (4 << 20) + b"y"), "body is too long"),
        (Message("orders", "text"), "body is not bytes"),
        (Message("orders", b"x", properties={"a\x01": "b"}), "property name"),
        (Message("orders", b"x", queue_id=-1), "queue_id is not a number"),
        (Message("orders", b"x", queue_id=1, sharding_key="k"), "cannot have both a queue id and a sharding key"),
        (Message("orders", b"x", flag=1 << 40), "flag is not a number"),
        (Message("orders", b"x", delay_level=-1), "a delay level must be a nonnegative number"),
        ("no message", "this is not a message"),
    ],
)
def test_an_illegal_message_is_refused_before_it_is_sent(client, message, text):
    """The limits are those of the store, and the error is the same."""
    with pytest.raises(reput.MessageIllegal, match=text):
        client.put(message)
    with pytest.raises(reput.MessageIllegal, match=text):
        asyncio.run(client.aput(message))
    with pytest.raises(reput.MessageIllegal, match=text):
        client.put_batch([Message("orders", b"fine"), message])


def test_a_batch_is_stored_in_its_order(client):
    """A result for each message, also of several topics, and of messages that may not be part of a batch."""
    messages = [Message("orders", b"%d" % number) for number in range(50)]
    messages += [Message("mails", b"m", delay_level=1), Message("orders", b"last", queue_id=3)]
    results = client.put_batch(messages)
    assert len(results) == 52
    first = results[0]
    assert got(client, "orders", first.queue_id, first.queue_offset, 50) == [b"%d" % number for number in range(50)]
    assert results[-1].queue_id == 3
    assert client.put_batch([]) == []


def test_a_topic_that_no_broker_makes_is_refused(tmp_path):
    """The code says that the topic does not exist."""
    with (
        served(tmp_path / "store", auto_create_topic_enable=False) as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
    ):
        with pytest.raises(reput.RequestRefused, match="no broker takes messages") as refused:
            client.put(Message("unknown", b"x"))
        assert refused.value.response_code == reput.ResponseCode.TOPIC_NOT_EXIST


def test_a_put_outlasts_a_broker_that_stops_and_is_started_again(client, broker, monkeypatch):
    """While it drains, it refuses messages; its clients wait as for one that was killed."""
    sends = broker.broker.sends
    asked: list[object] = []
    put = sends.put

    def counted(request, connection):
        asked.append(request)
        return put(request, connection)

    client.put(Message("orders", b"before"))
    monkeypatch.setattr(sends, "put", counted)
    broker.call(lambda: setattr(sends, "is_draining", True))
    errors: list[BaseException] = []
    thread = put_in_thread(client, Message("orders", b"meanwhile"), errors)
    wait_until(lambda: len(asked) > 3)
    broker.call(lambda: setattr(sends, "is_draining", False))
    thread.join(20)
    assert errors == []
    assert not thread.is_alive()


def test_a_name_server_that_is_not_there_is_an_error_after_the_timeout(tmp_path):
    """A put tries until its time is over, and names the address."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with reput.connect(address, timeout=2) as client, pytest.raises(reput.BrokerError, match="cannot be reached"):
        client.put(Message("orders", b"x"))


@contextmanager
def stalled(broker):
    """The broker answers nothing, but its connections stay, as when its process is stopped."""
    goes_on = threading.Event()
    broker.loop.call_soon_threadsafe(goes_on.wait)
    try:
        yield
    finally:
        goes_on.set()


def put_in_thread(client, message, errors):
    """Put a message on a thread; its error is added to *errors*."""

    def put():
        try:
            client.put(message)
        except reput.ReputError as error:
            errors.append(error)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    return thread


def with_short_timeout(client):
    """Put a message, for which a slow machine has time, then let the client's puts take a second; return its sender."""
    client.put(Message("orders", b"first"))
    sender = client._sessions.background().sender
    sender.timeout = 1
    return sender


def test_puts_that_are_held_behind_others_fail_at_their_deadline(broker, address, monkeypatch):
    """While a broker stalls, puts over the limit of unanswered bytes wait no longer than the others."""
    monkeypatch.setattr(reput.client.sender, "UNANSWERED_SIZE_MAX", 1000)
    with reput.connect(address) as client:
        sender = with_short_timeout(client)
        errors = []
        with stalled(broker):
            threads = [put_in_thread(client, Message("orders", b"x" * 2000), errors)]
            wait_until(lambda: sender.unanswered_size > 1000)
            threads.append(put_in_thread(client, Message("orders", b"held"), errors))
            wait_until(lambda: len(errors) == 2)
        for thread in threads:
            thread.join(20)
        assert {type(error) for error in errors} == {reput.BrokerError}
        assert not sender.held
        sender.timeout = 60
        client.put(Message("orders", b"goes on"))


def test_held_puts_are_sent_once_the_broker_goes_on(broker, address, monkeypatch):
    """What waited for earlier puts follows them, in order."""
    monkeypatch.setattr(reput.client.sender, "UNANSWERED_SIZE_MAX", 1000)
    with reput.connect(address) as client:
        client.put(Message("orders", b"first", queue_id=0))
        sender = client._sessions.background().sender
        errors = []
        with stalled(broker):
            threads = [put_in_thread(client, Message("orders", b"x" * 2000, queue_id=0), errors)]
            wait_until(lambda: sender.unanswered_size > 1000)
            for number in range(3):
                threads.append(put_in_thread(client, Message("orders", b"%d" % number, queue_id=0), errors))
                wait_until(lambda: sum(len(waiting.sendings) for waiting in sender.held) == len(threads) - 1)
        for thread in threads:
            thread.join(20)
        assert errors == []
        assert got(client, "orders", 0, 0, 5) == [b"first", b"x" * 2000, b"0", b"1", b"2"]


def test_close_ends_the_puts_that_wait(broker, address, monkeypatch):
    """A client that is closed while a broker stalls leaves no thread behind."""
    monkeypatch.setattr(reput.client.sender, "UNANSWERED_SIZE_MAX", 1000)
    client = reput.connect(address)
    sender = with_short_timeout(client)
    errors = []
    with stalled(broker):
        threads = [put_in_thread(client, Message("orders", b"x" * 2000), errors)]
        wait_until(lambda: sender.unanswered_size > 1000)
        threads.append(put_in_thread(client, Message("orders", b"held"), errors))
        wait_until(lambda: sender.held)
        client.close()
        for thread in threads:
            thread.join(20)
        assert len(errors) == 2


def test_the_timeout_of_the_client_is_the_limit_of_a_put(broker, address, monkeypatch):
    """Neither an answer nor a route that does not come prolongs it; the error says how long the answer was late."""
    monkeypatch.setattr(reput.client.sender, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(reput.client.session, "INVOKE_TIMEOUT_S", 3600.0)
    with reput.connect(address) as client:
        with_short_timeout(client)
        with stalled(broker):
            with pytest.raises(reput.BrokerError, match=r"the broker does not answer: .* sent_s_ago=\d+\.\d"):
                client.put(Message("orders", b"late"))
            with pytest.raises(
                reput.BrokerError, match="no name server gives a route in time: topic='mails' timeout_s=1"
            ):
                client.put(Message("mails", b"late"))


def test_a_connection_whose_broker_hangs_is_given_up(broker, address, monkeypatch):
    """It would keep in memory whatever is sent, for as long as the broker hangs."""
    monkeypatch.setattr(reput.client.sender, "ANSWER_TIMEOUT_S", 0.1)
    with reput.connect(address) as client:
        sender = with_short_timeout(client)
        connection = client._sessions.background().session.connected(broker.broker.address)
        with stalled(broker), pytest.raises(reput.BrokerError):
            client.put(Message("orders", b"late"))
        assert connection.closed
        assert not connection.waiting
        sender.timeout = 60
        client.put(Message("orders", b"goes on"))


@pytest.mark.parametrize(("avoided_s", "lost"), [(3600.0, {1}), (0.0, range(2, 99))], ids=["avoided", "tried again"])
def test_puts_avoid_a_broker_that_hangs(broker, address, client, monkeypatch, avoided_s, lost):
    """For a while: only the first of them waits for its answer. RocketMQ's producer waits each time by default."""
    monkeypatch.setattr(reput.client.sender, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(reput.client.sender, "AVOIDED_S", avoided_s)
    client.put(Message("orders", b"first"))
    with socket.create_server(("127.0.0.1", 0)) as listener, reput.connect(address) as other:
        register(broker, "orders", listener.getsockname()[1])
        lose, waited = Sender.lost, []
        monkeypatch.setattr(Sender, "lost", lambda *arguments: (waited.append(arguments), lose(*arguments)))
        for number in range(20):
            other.put(Message("orders", b"%d" % number))
        assert len(waited) in lost


def test_a_closed_client_says_so(address):
    """After close every method raises, and closing again does nothing."""
    client = reput.connect(address)
    client.put(Message("orders", b"x"))
    consumer = client.consumer("billing", "orders")
    client.close()
    client.close()
    assert client.closed
    assert consumer.closed
    for call in (
        lambda: client.put(Message("orders", b"x")),
        lambda: client.consumer("billing", "orders"),
        lambda: client.get("orders"),
        lambda: client.transactions,
        lambda: asyncio.run(client.aput(Message("orders", b"x"))),
        consumer.receive,
    ):
        with pytest.raises(reput.StoreClosed):
            call()


def test_a_client_serves_several_loops_one_after_the_other(client):
    """Each loop has connections of its own, which end with it."""
    for _ in range(3):
        asyncio.run(client.aput(Message("orders", b"x")))
    with client.consumer("billing", "orders") as consumer:
        assert received(consumer, 3) == [b"x"] * 3


def test_a_client_is_closed_in_the_loop_that_uses_it(address):
    """Async with ends what tasks have begun."""

    async def use():
        async with reput.connect(address) as client:
            await client.aput_batch([Message("orders", b"1"), Message("orders", b"2")])
            async with await client.aconsumer("billing", "orders") as consumer:
                records = [await consumer.areceive(20) for _ in range(2)]
                for record in records:
                    consumer.ack(record)
                await consumer.acommit()
            assert len(await client.aget("orders", records[0].queue_id)) == 2
            assert await client.aqueue_ids("orders") == client.queue_ids("orders")
            assert await client.aqueue_range("orders", records[0].queue_id) == (0, 2)
            administration = await client.aadministration()
            assert [row.queue_id for row in await administration.atopic_stats("orders")] == client.queue_ids("orders")
            assert (await client.aquery(key=records[0].message_id))[0].body == records[0].body
            # A blocking call has a loop of its own.
            client.put(Message("orders", b"3"))

    asyncio.run(use())


def test_a_client_is_closed_while_its_loop_does_not_run(address):
    """As between two calls of `run_until_complete`: nobody else would run the loop."""
    loop = asyncio.new_event_loop()
    client = reput.connect(address)
    loop.run_until_complete(client.aput(Message("orders", b"x")))
    consumer = loop.run_until_complete(client.aconsumer("billing", "orders"))
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert consumer.closed
    loop.close()


def test_a_producer_puts_under_its_group(client):
    """The producer of a group has the methods of the client."""
    producer = client.producer("billing")
    assert producer.group == "billing"
    result = producer.put(Message("orders", b"x"))
    assert got(client, "orders", result.queue_id, 0, 1) == [b"x"]
    with pytest.raises(reput.RequestRefused, match="group"):
        client.producer("no group")


@pytest.mark.processes
def test_a_forked_child_has_connections_of_its_own(client):
    """A server that forks its workers after connecting goes on in each of them."""
    client.put(Message("orders", b"parent", queue_id=0))
    pid = os.fork()
    if not pid:
        try:
            client.put(Message("orders", b"child", queue_id=0))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    client.put(Message("orders", b"parent", queue_id=0))
    assert got(client, "orders", 0, 0, 3) == [b"parent", b"child", b"parent"]


@pytest.mark.parametrize("target", ["", "unix:", 7, "127.0.0.1:99999"])
def test_a_target_that_is_none_is_refused(target):
    """The error names it."""
    with pytest.raises(reput.ReputError, match=r"target|address"):
        reput.connect(target)


def test_a_store_that_no_broker_serves_is_an_error(tmp_path):
    """The advice says how to start one."""
    with reput.connect(tmp_path, timeout=1) as client:
        with pytest.raises(reput.BrokerError, match="no broker serves the store") as error:
            client.put(Message("orders", b"x"))
        assert "reput serve" in error.value.advice


@pytest.mark.slow
def test_transactions_are_seen_once_they_are_committed(client):
    """A half message is delivered by commit, and never after rollback."""
    transactions = client.transactions
    with client.consumer("billing", "orders") as consumer:
        committed = transactions.put_half("payments", Message("orders", b"paid"))
        dropped = transactions.put_half("payments", Message("orders", b"dropped"))
        transactions.rollback(dropped)
        transactions.commit(committed)
        assert received(consumer, 1) == [b"paid"]
        assert consumer.receive(0.2) is None
        with pytest.raises(reput.RequestRefused):
            transactions.commit(dropped)


def test_a_broker_asks_about_a_transaction_that_is_left_open(tmp_path):
    """The checker of the group settles it."""
    settings = {"transaction_time_out": 100, "transaction_check_interval": 100}
    with (
        served(tmp_path / "store", **settings) as broker,
        reput.connect("{}:{}".format(*broker.address)) as client,
        client.consumer("billing", "orders") as consumer,
    ):
        client.transactions.on_check("payments", lambda half: reput.TransactionState.COMMIT)
        client.transactions.put_half("payments", Message("orders", b"forgotten"))
        assert received(consumer, 1) == [b"forgotten"]
