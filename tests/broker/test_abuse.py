"""What strangers may send: nothing of it stops the broker, fills its memory, leaves its store, or gets into its log."""

from __future__ import annotations

import json
import logging
import os

import pytest

from delivering import wait_until
from reput.broker.requests import consumer_offsets, pending_puts, pull_message, reply_message, send_message
from reput.broker.state import broker_topics, connected_clients
from reput.consume.registry import subscription_groups
from reput.remoting import connection as connection_module
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from serving import frame, heartbeat_body, send_fields, served

SUSPEND, SUBSCRIPTION = 2, 4
PATHS = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "a/b",
    "a\0b",
    "\n",
    "C:\\x",
    "x" * 5000,
    "%2e%2e%2f",
    "\ud7ff\uffff",
]


@pytest.fixture(autouse=True)
def clean_log(caplog):
    """No request may bring an exception into the log."""
    with caplog.at_level(logging.ERROR):
        yield
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def lives(broker):
    """Whether the broker answers a new connection."""
    with broker.client() as client:
        return client.ask(Code.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 100,
        b"\x7f\xff\xff\xff" * 100,
        bytes(100),
        frame(b"{}"),
        frame(b"[" * 100_000),
        frame(b'{"code":34,"extFields":' + b'{"a":' * 50_000),
        frame(b'{"code":1e9999}'),
        frame(b'{"code":' + b"9" * 1000 + b"}"),
        frame(b'{"code":34}', serialize_type=1),
        frame(bytes(21), serialize_type=1)[:-1] + b"\xff",
        (12).to_bytes(4, "big") + (0x00FFFFFF).to_bytes(4, "big") + bytes(8),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_what_is_no_frame_ends_its_connection_alone(broker, client, data):
    """The others go on."""
    with broker.client() as stranger:
        stranger.write(data)
        assert stranger.is_ended()
    assert client.heartbeat("me").code == ResponseCode.SUCCESS


def test_half_frames_of_many_connections_wait(broker, client):
    """Each may send its request as slowly as it likes, until its connection has been silent for too long."""
    whole = frame(json.dumps({"code": Code.GET_BROKER_CLUSTER_INFO, "opaque": 7}).encode())
    strangers = [broker.client() for _ in range(50)]
    for position in range(len(whole) - 1):
        strangers[position % 50].write(whole[:1] if position < 50 else b"")
    assert client.heartbeat("me").code == ResponseCode.SUCCESS
    strangers[0].write(whole[1:])
    assert strangers[0].read().opaque == 7

    def grow_old():
        for connection in broker.broker.server.connections:
            connection.last_active -= 121
        broker.broker.server.close_idle()

    broker.call(grow_old)
    assert all(stranger.is_ended() for stranger in strangers)
    for stranger in strangers:
        stranger.close()


def test_bodies_of_deep_json_are_refused(client):
    """Wherever a body is JSON."""
    for code in (
        Code.HEART_BEAT,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.CHECK_CLIENT_CONFIG,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.REGISTER_BROKER,
    ):
        for body in (b"[" * 100_000, b'{"a":' * 100_000, b'{"clientID":"c","x":' + b"[" * 100_000):
            fields = {"brokerName": "b", "brokerAddr": "1.2.3.4:5", "clusterName": "c", "brokerId": "0"}
            assert client.ask(code, fields, body).code != ResponseCode.SUCCESS


def test_a_large_heartbeat_is_refused(client):
    """Decoded, JSON takes many times its size."""
    body = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[' + b"{}," * 1_000_000 + b"{}]}]}"
    )
    answer = client.ask(Code.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "too large" in answer.remark


# A request a line: its code, and its fields; NAME stands for what a stranger writes.
REQUESTS_WITH_NAMES = """
GET_MAX_OFFSET topic=NAME queueId=0
GET_MIN_OFFSET topic=NAME queueId=0
SEARCH_OFFSET_BY_TIMESTAMP topic=NAME queueId=0 timestamp=0
GET_EARLIEST_MSG_STORETIME topic=NAME queueId=0
QUERY_CONSUMER_OFFSET consumerGroup=NAME topic=NAME queueId=0
UPDATE_CONSUMER_OFFSET consumerGroup=NAME topic=NAME queueId=0 commitOffset=1
UPDATE_CONSUMER_OFFSET consumerGroup=g topic=NAME queueId=0 commitOffset=1
QUERY_MESSAGE topic=NAME key=NAME maxNum=9 beginTimestamp=0 endTimestamp=9
CONSUMER_SEND_MSG_BACK group=NAME offset=0 delayLevel=-1 originTopic=NAME
GET_CONSUMER_LIST_BY_GROUP consumerGroup=NAME
UNREGISTER_CLIENT clientID=NAME producerGroup=NAME consumerGroup=NAME
UPDATE_AND_CREATE_TOPIC topic=NAME defaultTopic=T readQueueNums=1 writeQueueNums=1 perm=6 order=false
DELETE_TOPIC_IN_BROKER topic=NAME
DELETE_SUBSCRIPTIONGROUP groupName=NAME cleanOffset=true
GET_TOPIC_STATS_INFO topic=NAME
GET_CONSUME_STATS consumerGroup=NAME topic=NAME
GET_CONSUMER_CONNECTION_LIST consumerGroup=NAME
GET_PRODUCER_CONNECTION_LIST producerGroup=NAME
INVOKE_BROKER_TO_RESET_OFFSET topic=NAME group=NAME timestamp=0 isForce=true
QUERY_TOPIC_CONSUME_BY_WHO topic=NAME
QUERY_CONSUME_TIME_SPAN topic=NAME group=NAME
QUERY_CONSUME_QUEUE topic=NAME queueId=0 index=0 count=1 consumerGroup=NAME
QUERY_TOPICS_BY_CONSUMER group=NAME
QUERY_SUBSCRIPTION_BY_CONSUMER group=NAME topic=NAME
GET_TOPIC_CONFIG topic=NAME
GET_SUBSCRIPTIONGROUP_CONFIG group=NAME
CONSUME_MESSAGE_DIRECTLY consumerGroup=NAME clientId=NAME msgId=NAME topic=NAME
END_TRANSACTION producerGroup=NAME tranStateTableOffset=0 commitLogOffset=0 commitOrRollback=8 msgId=NAME topic=NAME
GET_ROUTEINFO_BY_TOPIC topic=NAME
DELETE_TOPIC_IN_NAMESRV topic=NAME
REGISTER_BROKER brokerName=NAME brokerAddr=NAME clusterName=NAME brokerId=0
""".strip().splitlines()
LOCK = {"consumerGroup": "NAME", "clientId": "NAME", "mqSet": [{"brokerName": "NAME", "topic": "NAME", "queueId": 0}]}
BODIES_WITH_NAMES = [
    (Code.LOCK_BATCH_MQ, json.dumps(LOCK).encode()),
    (Code.HEART_BEAT, heartbeat_body("NAME", ("NAME",), {"NAME": {"NAME": "*"}})),
    (Code.HEART_BEAT, heartbeat_body("c", (), {"g": {"NAME": "NAME"}}).replace(b"TAG", b"NAME")),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"NAME"}'),
]
SENDS = (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)


def requests_with_names():
    """Return code, header and body of each request that has a name."""
    requests = []
    for line in REQUESTS_WITH_NAMES:
        code, *fields = line.split()
        requests.append((Code[code], dict(field.split("=") for field in fields), b""))
    requests += [(code, {}, body) for code, body in BODIES_WITH_NAMES]
    requests += [(code, send_fields(topic), b"body") for code in SENDS for topic in ("NAME", "%RETRY%NAME")]
    return [*requests, (Code.SEND_MESSAGE_V2, send_fields("T", fields={"defaultTopic": "NAME"}), b"body")]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "fields", "body"), requests_with_names(), ids=lambda value: str(value)[:12])
def test_names_lead_nowhere(broker, client, tmp_path, code, fields, body):
    """Whatever a topic, a group or a client is called: no file comes or goes outside of the store, or with its name."""
    client.send_message("T")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("secret")
    before = sorted(os.listdir(tmp_path))
    for name in PATHS:
        header = {key: value.replace("NAME", name) for key, value in fields.items()}
        data = body.replace(b'"NAME"', json.dumps(name).encode())
        answer = client.ask(code, header, data)
        assert b"secret" not in answer.body_bytes
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "etc" / "passwd").read_text() == "secret"
    topics = broker.engine.services.managers.topics.entries
    queues = tmp_path / "store" / "consumequeue"
    names = [*topics, *(path.name for path in queues.glob("*"))]
    assert not [name for name in names if any(mark in name for mark in "/\\.\0\n")]
    assert lives(broker)


@pytest.mark.slow
def test_unknown_queues_leave_nothing_behind(broker, client):
    """A reader keeps what it knows of a queue; strangers may ask for any."""
    client.send_message("T")
    for number in range(300):
        for code in (Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.QUERY_CONSUMER_OFFSET):
            fields = {"topic": f"none-{number}", "queueId": str(number), "consumerGroup": "g"}
            client.ask(code, fields)
            client.ask(code, {**fields, "topic": "T", "queueId": str(1000 + number)})
            client.ask(code, {**fields, "topic": "T", "queueId": str(-1 - number)})
    assert len(broker.engine.reader.queues) < 100


def test_offsets_of_queues_that_a_topic_lacks_have_a_limit(client, monkeypatch):
    """RocketMQ keeps the offset of any queue id; here a group can fill only so many. Its real queues always count."""
    monkeypatch.setattr(consumer_offsets, "UNKNOWN_QUEUES_MAX", 2)
    client.send_message("T")
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    codes = [
        client.ask(Code.UPDATE_CONSUMER_OFFSET, {**fields, "queueId": str(queue_id)}).code
        for queue_id in (1000, -1, 2**31 - 1, 1000, 0)
    ]
    assert codes == [0, 0, ResponseCode.INVALID_PARAMETER, 0, 0]


def test_offsets_have_a_limit(broker, client, monkeypatch):
    """Of pairs of topic and group; those that are there go on."""
    monkeypatch.setattr(consumer_offsets, "ROWS_MAX", 3)
    client.send_message("T")
    codes = []
    for number in (0, 1, 2, 3, 0):
        fields = {"consumerGroup": f"g{number}", "topic": "T", "queueId": "0", "commitOffset": "1"}
        codes.append(client.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code)
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_BUSY, 0]


def test_topics_and_groups_that_clients_create_have_a_limit(broker, client, monkeypatch):
    """What is there goes on."""
    topics, groups = broker.engine.services.managers.topics.entries, broker.engine.services.managers.groups.entries
    client.send_message("T")
    monkeypatch.setattr(broker_topics, "TOPICS_MAX", len(topics) + 1)
    monkeypatch.setattr(subscription_groups, "GROUPS_MAX", len(groups) + 1)
    assert [client.send_message(topic).code for topic in ("A", "B", "A", "T")] == [0, ResponseCode.SYSTEM_BUSY, 0, 0]
    codes = [client.pull(group, "T").code for group in ("g", "h")]
    assert codes[1] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert client.heartbeat("me", h={"T": "*"}).code == ResponseCode.SUCCESS
    assert broker.call(lambda: "h" not in broker.broker.clients.consumers)


def test_groups_of_one_connection_have_a_limit(broker, client, monkeypatch):
    """They end with it."""
    monkeypatch.setattr(connected_clients, "GROUPS_MAX", 10)
    with broker.client() as stranger:
        codes = [stranger.heartbeat("s", producers=tuple(f"p{number}" for number in range(9))).code]
        codes += [stranger.heartbeat("s", **{f"g{number}": {"T": "*"}}).code for number in range(3)]
        assert codes == [0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
        stranger.ask(Code.UNREGISTER_CLIENT, {"clientID": "s", "producerGroup": "p0"})
        assert stranger.heartbeat("s", g1={"T": "*"}).code == ResponseCode.SUCCESS
    clients = broker.broker.clients
    broker.reaches(lambda: not (clients.producers or clients.consumers or clients.memberships))


def test_subscriptions_of_one_connection_have_a_limit(client, monkeypatch):
    """Many heartbeats cannot add up to more than one could hold."""
    monkeypatch.setattr(connected_clients, "SUBSCRIPTIONS_SIZE_MAX", 10_000)
    codes = [client.heartbeat("s", **{f"g{number}": {"T": "x" * 4000}}).code for number in range(3)]
    assert codes == [0, 0, ResponseCode.SYSTEM_BUSY]
    # The same group again takes its own place.
    assert client.heartbeat("s", g1={"T": "y" * 4000}).code == ResponseCode.SUCCESS


def test_a_connection_that_changes_its_name_leaves_none_behind(broker, client):
    """Each heartbeat may name another client."""
    for number in range(100):
        client.heartbeat(f"client-{number}", g={"T": "*"})
    registry = broker.engine.services.consumer_manager
    assert list(registry.find("g").client_ids) == ["client-99"]
    client.close()
    wait_until(lambda: registry.find("g") is None)


@pytest.mark.parametrize("name", ["clientID", "groupName"])
def test_names_of_clients_have_a_limit(client, name):
    """They are kept as long as the connection lives."""
    long = "x" * 5000
    body = heartbeat_body(long if name == "clientID" else "c", (long,) if name == "groupName" else ())
    assert client.ask(Code.HEART_BEAT, body=body).code == ResponseCode.INVALID_PARAMETER


def test_held_pulls_have_a_limit(broker, client, monkeypatch):
    """Of each connection and of all; numbers of requests that repeat hide none of them."""
    monkeypatch.setattr(pull_message, "HELD_MAX", 5)
    client.send_message("T")
    fields = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 60_000}
    with broker.client() as stranger:
        for _ in range(8):
            stranger.opaques = iter([7])
            stranger.begin_pull("g", "T", 1, **fields)
        answers = [stranger.read() for _ in range(3)]
        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
        assert broker.call(lambda: broker.broker.pulls.held_count) == 5
    broker.reaches(lambda: broker.broker.pulls.held_count == 0)
    held = client.begin_pull("g", "T", 1, **fields)
    client.send_message("T")
    assert client.answer_to(held).code == ResponseCode.SUCCESS
    assert broker.call(lambda: broker.broker.pulls.held_count) == 0


def test_a_reader_that_never_reads_is_bounded(broker, client, monkeypatch, caplog):
    """Its answers pile up to a limit, of its own and of all together; then it is gone."""
    monkeypatch.setattr(connection_module, "UNREAD_MAX", 8 << 20)
    for _ in range(2):
        client.send_message("T", bytes(200_000))
    broker.wait_until_readable()
    limits = broker.broker.server.limits
    with broker.client() as stranger:
        stranger.socket.settimeout(5)
        for _ in range(2000):
            try:
                stranger.begin_pull("g", "T")
            except OSError:
                break
        # It is not read either, so what it has brought about stays small.
        assert broker.call(lambda: limits.unread.size) <= 8 << 20
        assert client.heartbeat("me").code == ResponseCode.SUCCESS
        monkeypatch.setattr(limits.unread, "size_max", 1)
        broker.call(lambda: [one.count_unread(size) for one, size in list(limits.unread.held.items())])
        assert stranger.is_ended()
    broker.reaches(lambda: limits.unread.size == 0)
    assert lives(broker)


def test_messages_that_wait_for_the_disk_have_a_limit(tmp_path, monkeypatch):
    """With SYNC_FLUSH; the next is refused with SYSTEM_BUSY."""
    monkeypatch.setattr(pending_puts, "WAITING_MAX", 0)
    with served(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as broker, broker.client() as client:
        assert client.send_message("T").code == ResponseCode.SYSTEM_BUSY
        monkeypatch.setattr(pending_puts, "WAITING_MAX", 10)
        assert [client.send_message("T").code for _ in range(20)] == [0] * 20


def test_half_messages_and_replies_have_a_limit(client, monkeypatch):
    """Each waits for a thread, or for a client."""
    monkeypatch.setattr(send_message, "HALVES_MAX", 0)
    half = {"TRAN_MSG": "true", "PGROUP": "pg"}
    assert client.send_message("T", properties=half).code == ResponseCode.SYSTEM_BUSY
    monkeypatch.setattr(send_message, "HALVES_MAX", 10)
    assert [client.send_message("T", properties=half).code for _ in range(20)] == [0] * 20
    monkeypatch.setattr(reply_message, "REPLIES_MAX", 0)
    answer = client.send_message("DefaultCluster_REPLY_TOPIC", code=Code.SEND_REPLY_MESSAGE_V2)
    assert answer.code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("properties", [{"DELAY": "x"}, {"TIMER_DELAY_SEC": "1"}])
def test_a_reply_that_is_refused_is_answered(client, properties):
    """Its checks come before it waits for its client."""
    answer = client.send_message("T", properties=properties, code=Code.SEND_REPLY_MESSAGE_V2)
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.slow
def test_a_flood_of_requests_without_answer_is_taken(broker, client):
    """All of it is stored or refused; nobody waits behind it for long."""
    count = 5000
    with broker.client() as stranger:
        for _ in range(count):
            stranger.begin(Code.SEND_MESSAGE_V2, send_fields("T"), b"body", oneway=True)
            stranger.begin(Code.QUERY_MESSAGE, {"topic": "T"}, oneway=True)
        fields = {"topic": "T", "queueId": "0"}
        assert stranger.ask(Code.GET_MAX_OFFSET, fields).code == ResponseCode.SUCCESS
        broker.wait_until_readable()
        assert stranger.ask(Code.GET_MAX_OFFSET, fields).ext_fields == {"offset": str(count)}


def test_a_query_returns_a_bounded_answer(broker, client):
    """However many messages have a key, and however many are asked for."""
    for _ in range(100):
        client.send_message("T", bytes(1000), {"KEYS": "k"})
    broker.wait_until_readable("index")
    fields = {"topic": "T", "key": "k", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    answer = client.ask(Code.QUERY_MESSAGE, {**fields, "maxNum": str(2**31 - 1)})
    assert answer.code == ResponseCode.SUCCESS
    assert len(answer.body) < 64 * 1500
    for number in ("0", "-1", str(-(2**31))):
        assert client.ask(Code.QUERY_MESSAGE, {**fields, "maxNum": number}).code == ResponseCode.QUERY_NOT_FOUND


def test_connections_have_a_limit(tmp_path):
    """Further ones are closed at once; when one ends, another is taken."""
    from functools import partial

    from reput.broker.broker import Broker

    with served(tmp_path / "store", make=partial(Broker, connections_max=3)) as broker:
        clients = [broker.client() for _ in range(3)]
        assert all(client.heartbeat("c").code == 0 for client in clients)
        with broker.client() as late:
            assert late.is_ended()
        clients.pop().close()
        broker.reaches(lambda: len(broker.broker.server.connections) == 2)
        assert lives(broker)
        for client in clients:
            client.close()


DANGEROUS = [
    "rocketmqHome=-c $@|sh . echo id;",
    "filterServerNums=1",
    "brokerConfigPath={target}",
    "configStorePath={target}",
    "kvConfigPath={target}",
    "storePathRootDir={target}",
    "storePathCommitLog={target}",
    "brokerName=ghost",
    "namesrvAddr=192.0.2.1:9876",
    "aclEnable=false",
    "tls.server.mode=disabled",
    "tls_server_cert_path={target}",
    "acl_file={target}",
    "dispatchers=spark_export",
    "dispatchers.x.plugin=evil",
]


@pytest.mark.parametrize("assignment", DANGEROUS)
def test_settings_that_could_harm_cannot_be_changed_from_afar(broker, client, tmp_path, assignment):
    """CVE-2023-33246: a configuration that a request writes becomes a command, a file or another broker."""
    target = tmp_path / "owned"
    before = broker.engine.settings
    answer = client.ask(Code.UPDATE_BROKER_CONFIG, body=assignment.replace("{target}", str(target)).encode())
    assert answer.code != ResponseCode.SUCCESS
    assert broker.engine.settings == before
    assert not target.exists()


def test_the_configuration_that_is_shown_holds_no_secrets(tmp_path):
    """CVE-2024-23321: neither keys nor the paths of files with keys."""
    settings = {
        "tls_server_key_password": "the-password",
        "auth_file": "/secret/auth.yml",
        "acl_file": "/secret/acl.yml",
    }
    with served(tmp_path / "store", **settings) as broker, broker.client() as client:
        for code in (Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_NAMESRV_CONFIG):
            answer = client.ask(code)
            text = answer.body_bytes + json.dumps(dict(answer.ext_fields)).encode()
            assert b"the-password" not in text
            assert b"/secret" not in text
